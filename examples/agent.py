"""An agent with three tools, and what drafts gained in each of its steps.

Start `headlong serve`, then: python examples/agent.py ["a task of your own" …]
HEADLONG_URL and HEADLONG_API_KEY name another server and its key.
"""

import json
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

URL = os.environ.get("HEADLONG_URL", "http://127.0.0.1:8000") + "/v1/chat/completions"
KEY = os.environ.get("HEADLONG_API_KEY", "none")
OTHERS = sorted(set(Path(__file__).parent.glob("*.py")) - {Path(__file__)})
FILES = {path.name: path.read_text() for path in OTHERS}
LINES = [f"{name}: {line}" for name, text in FILES.items() for line in text.splitlines()]
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBER = {"type": "integer", "minimum": -99999, "maximum": 99999}
MAX_STEPS = 4
OPTIONS = {"mtp": "auto", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 160}
TASKS = [
    'Search the files for the text "LLM.load" and list the lines that have it.',
    "Read the file stream.py and repeat its code.",
    "What is 12 + 37?",
]
CALLS: dict[str, Callable[..., str]] = {
    "calculate": lambda a, sign, b: f"{a} {sign} {b} = {SIGNS[sign](a, b)}",
    "read_file": lambda file: FILES[file][:1500],
    "search": lambda text: "\n".join([line for line in LINES if text in line][:6]) or "nothing",
}


def describe(name: str, about: str, **fields: Any) -> dict[str, Any]:
    schema = {"properties": fields, "required": [*fields], "additionalProperties": False}
    function = {"name": name, "description": about, "parameters": {"type": "object"} | schema}
    return {"type": "function", "function": function}


TOOLS = [  # calls always fit these schemas, however small the model is
    describe("calculate", "Do a sum.", a=NUMBER, sign={"enum": [*SIGNS]}, b=NUMBER),
    describe("read_file", "Read a file.", file={"enum": [*FILES]}),
    describe("search", "Search all files.", text={"type": "string", "maxLength": 30}),
]


def ask(messages: list[dict[str, Any]], tool_choice: str) -> Any:
    body = {"messages": messages, "tools": TOOLS, "tool_choice": tool_choice, **OPTIONS}
    try:
        answer = httpx.post(URL, json=body, headers={"x-api-key": KEY}, timeout=300)
    except httpx.HTTPError as error:
        sys.exit(f"No answer from {URL}: {error}. Start `headlong serve`, or set HEADLONG_URL.")
    return answer.json() if answer.is_success else sys.exit(f"{URL} refused: {answer.text}")


gains = []
for task in sys.argv[1:] or TASKS:
    print(f"\n{task}")
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for step in range(1, MAX_STEPS + 1):
        answer = ask(messages, "required" if step == 1 else "auto")
        choice, mtp, ms = answer["choices"][0], answer["mtp"], answer["timings"]["predicted_ms"]
        count, speedup = answer["usage"]["completion_tokens"], mtp["measured_speedup"] or 1
        gains.append((count, ms, ms * speedup))
        print(f"{step}: {count} tokens, {mtp['acceptance_length']:.1f} a round, {speedup:.2f} x")
        if choice["finish_reason"] != "tool_calls":
            print(choice["message"]["content"] or "(a call that was cut short)")
            break
        messages.append(choice["message"])
        for call in choice["message"]["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            print(f"{name} {arguments}")
            result = CALLS[name](**json.loads(arguments))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
tokens, spent_ms, plain_ms = (sum(column) for column in zip(*gains, strict=True))
print(f"\nTogether: {tokens} tokens in {spent_ms:.0f} ms, {plain_ms / spent_ms:.2f} x as fast")
