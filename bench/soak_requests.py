"""What the clients of `soak.py` send, and how what they get is compared."""

import random
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 12}},
            "required": ["word"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"", 400),
    (b"{", 400),
    (b"[1, 2]", 400),
    (b"\xff\xfe", 400),
    (b'{"messages": "hello"}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "mtp": 99}', 400),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "model": "gpt-4"}', 404),
    (b'{"messages": [{"role": "user", "content": "' + b"word " * 9000 + b'"}]}', 400),
    (b"[" * 50_000, 400),
)
KILLED_CLIENT = """
import json, sys, threading, urllib.request
def ask():
    body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    for line in urllib.request.urlopen(request):
        pass
for _ in range(3):
    threading.Thread(target=ask).start()
"""


def draw_body(rng: random.Random) -> dict[str, Any]:
    """Draw a request; few enough that they repeat."""
    question = rng.choice(("Name a colour.", "What is tea?", "Count to ten.", "Why? " * 60))
    messages = [{"role": "user", "content": question}]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": "Be brief and kind. " * 12})
    body: dict[str, Any] = {
        "messages": messages,
        "seed": rng.randrange(3),
        "temperature": rng.choice((0, 0.8)),
        "max_tokens": rng.choice((4, 24, 80)),
        "mtp": rng.choice(("auto", "auto", "off", 2, 6)),
        "stream": rng.random() < 0.7,
    }
    shaped: tuple[dict[str, Any], ...] = (
        {"tools": [TOOL], "tool_choice": rng.choice(("auto", "required"))},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"n": 3},
        {"logprobs": True, "top_logprobs": 5},
        {"stop": ["a", "the"]},
    )
    return {**body, **(rng.choice(shaped) if rng.random() < 0.4 else {})}


def said(message: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return what a message says, without the ids of its calls."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(call["name"], call["arguments"]) for call in calls]


def joined(deltas: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
    """Return what streamed pieces say together."""
    calls: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        pieces = calls.setdefault(call["index"], [call["function"].get("name", ""), ""])
        pieces[1] += call["function"].get("arguments", "")
    return "".join(one.get("content") or "" for one in deltas), [(a, b) for a, b in calls.values()]
