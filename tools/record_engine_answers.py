"""Ask a running engine of another project and keep its real answers for the tests of its dialect.

    python tools/record_engine_answers.py vllm|llama.cpp URL OUT.jsonl

One line for each exchange: what was asked, and status, content type and body as they came. The
prompts are token ids of the default model, so the engine must serve that (`bench/setup_peers.sh`
shows how). An engine that speculates and a plain one answer differently: record both.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx

FRANCE = [504, 3575, 282, 4649, 314]
"""The capital of France is"""
COUNT = [9825, 42, 216, 33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28]
"""Count: 1, 2, 3, 4,"""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LARK = '%llguidance {}\nstart: /[a-c]{3}/ "x"'

METRIC = re.compile(r"(vllm|llamacpp):(?!\w*(bucket|count|created|info|sum)[{ ])")

Exchange = tuple[str, str, dict[str, Any] | str | None]


def vllm_exchanges() -> list[Exchange]:
    """Return what to ask vLLM: a name, a path, and a body (None: GET; a string: as it is)."""
    base: dict[str, Any] = {"prompt": COUNT, "max_tokens": 8, "temperature": 0}
    base |= {"return_token_ids": True}
    stream = base | {"stream": True, "stream_options": {"include_usage": True}}
    bodies: dict[str, dict[str, Any] | str] = {
        "answer": base,
        "stream": stream,
        "stream without usage": base | {"stream": True},
        "one token": base | {"max_tokens": 1},
        "logprobs": base | {"max_tokens": 3, "logprobs": 2, "return_tokens_as_token_ids": True},
        "logprobs in a stream": stream
        | {"max_tokens": 6, "logprobs": 1, "return_tokens_as_token_ids": True},
        "prompt logprobs": base | {"prompt": FRANCE, "max_tokens": 1, "prompt_logprobs": 0},
        "end of text": stream | {"max_tokens": 4, "structured_outputs": {"choice": ["a", "b"]}},
        "stop string": base | {"max_tokens": 24, "stop": ["7,"]},
        "stop string in a stream": stream | {"max_tokens": 24, "stop": ["7,"]},
        "stop token": stream | {"max_tokens": 24, "stop_token_ids": [39]},
        "two choices": base | {"max_tokens": 2, "n": 2, "temperature": 0.1, "seed": 1},
        "json": base | {"max_tokens": 24, "structured_outputs": {"json": SCHEMA}},
        "llguidance grammar": base | {"structured_outputs": {"grammar": LARK}},
        "cut at the context": base
        | {"prompt": COUNT * 146, "max_tokens": 99, "return_token_ids": False},
        "bad schema": base | {"structured_outputs": {"json": {"type": "nonsense"}}},
        "logit bias": base | {"max_tokens": 2, "logit_bias": {"28": -100}},
        "min_p": base | {"max_tokens": 2, "temperature": 0.1, "min_p": 0.1},
        "unknown model": base | {"model": "other"},
        "unknown token": base | {"prompt": [999999]},
        "too long": base | {"prompt": COUNT * 150},
        "wrong type": base | {"temperature": "hot"},
        "no tokens": base | {"max_tokens": 0},
        "bad JSON": "{bad",
    }
    asked: list[Exchange] = [(name, "/v1/completions", body) for name, body in bodies.items()]
    paths = ("/health", "/version", "/v1/models", "/metrics", "/nothing")
    return [*asked, *((path, path, None) for path in paths)]


def llama_exchanges() -> list[Exchange]:
    """Return what to ask llama.cpp's server."""
    base: dict[str, Any] = {"prompt": COUNT, "n_predict": 8, "temperature": 0, "top_k": 0}
    base |= {"top_p": 1, "min_p": 0, "return_tokens": True, "cache_prompt": True}
    stream = base | {"stream": True}
    bodies: dict[str, dict[str, Any] | str] = {
        "answer": base,
        "stream": stream,
        "one token": base | {"n_predict": 1},
        "chosen fields": base | {"response_fields": ["tokens", "stop_type", "timings"]},
        "logprobs": base | {"n_predict": 6, "n_probs": 1},
        "logprobs in a stream": stream | {"n_predict": 6, "n_probs": 1},
        "end of text": stream | {"grammar": 'root ::= "a" | "b"'},
        "stop string": base | {"n_predict": 24, "stop": ["7,"]},
        "stop string in a stream": stream | {"n_predict": 24, "stop": ["7,"]},
        "json": base | {"n_predict": 24, "json_schema": SCHEMA},
        "logit bias": base | {"n_predict": 2, "logit_bias": [[28, -100]]},
        "bad grammar": base | {"grammar": "root ::= ("},
        "bad schema": base | {"json_schema": {"type": "nonsense"}},
        "unknown token": base | {"prompt": [999999]},
        "too long": base | {"prompt": COUNT * 150},
        "wrong type": base | {"temperature": "hot"},
        "bad JSON": "{bad",
    }
    asked: list[Exchange] = [(name, "/completion", body) for name, body in bodies.items()]
    paths = ("/health", "/v1/models", "/slots", "/metrics", "/nothing")
    return [*asked, *((path, path, None) for path in paths)]


def ask(client: httpx.Client, exchange: Exchange) -> dict[str, Any]:
    """Run one exchange; return it for the file."""
    name, path, body = exchange
    if body is None:
        answer = client.get(path)
    else:
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        answer = client.post(path, content=content, headers=headers)
    text = answer.text
    if path == "/metrics":  # histograms are long, and nothing reads them
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if METRIC.match(line))
    kind = answer.headers.get("content-type", "")
    return {"name": name, "path": path, "asked": _short(body), "status": answer.status_code,
            "content_type": kind, "body": text}  # fmt: skip


def _short(body: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
    """Return a body without a prompt of thousands of tokens."""
    if isinstance(body, dict) and len(body["prompt"]) > 99:
        return body | {"prompt": f"{len(body['prompt'])} tokens"}
    return body


def main() -> int:
    """Ask everything and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=("vllm", "llama.cpp"))
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    exchanges = vllm_exchanges() if args.engine == "vllm" else llama_exchanges()
    # llama.cpp's server promises to keep a connection and closes it behind every stream.
    headers = {"Connection": "close"}
    with httpx.Client(base_url=args.url, headers=headers, timeout=300) as client:
        lines = [json.dumps(ask(client, exchange), ensure_ascii=False) for exchange in exchanges]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
