"""An exported head in another engine against the same head here, prompt by prompt.

    python bench/exported_head.py BACKBONE HEAD [--vllm URL] [--llama URL] [--plain-vllm URL]
                                  [--prompts FILE.jsonl] [--count 18] [--tokens 128] [-k 4]
                                  [--backend numpy|native]

BACKBONE and HEAD are what the other engine serves (`headlong export`). Here both compute in
float32, by default in numpy: native attention rounds to 16-bit integers, which now and then turns a
near-tie over. Greedy, token ids in and out: are the tokens equal, and how many rounds did each side
take? Rounds are compared and not accepted tokens, since vLLM counts those behind the end, too.
Then each engine answers at --temperature, and our backbone says how likely those answers are, per
token. An engine that speculates exactly writes answers as likely as our own, which are those of
plain decoding; how far two seeds of our own differ says what a difference means. The last line is
JSON.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from headlong.bench.prompt_sets import read_prompt_set
from headlong.decode.request import Request
from headlong.errors import HeadlongError
from headlong.llm import LLM
from headlong.provenance import read_provenance

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine wrote, and in how many rounds."""

    token_ids: Ids
    rounds: int | None
    """None where it does not speculate."""


Ask = Callable[[Ids, int, float, int], Answer]
"""Answers a prompt: its ids, most tokens, temperature, seed."""


def main() -> int:
    """Measure, print, and end with JSON."""
    args = _parse()
    try:
        llm = LLM.load(
            args.backbone,
            head=args.head,
            drafter="head",
            quant="f32",
            head_quant="f32",
            backend=args.backend,
        )
        prompts = _choose(llm, args)
        with httpx.Client(timeout=600, headers={"Connection": "close"}) as client:
            record = _measure(llm, prompts, _sides(llm, client, args), args)
    except (HeadlongError, httpx.HTTPError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    record |= {"provenance": read_provenance().to_dict()}
    record["provenance"].pop("argv")  # names of files on this machine
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("backbone", type=Path, help="the backbone's Hugging Face folder")
    parser.add_argument("head", type=Path, help="the head's folder")
    parser.add_argument("--vllm", help="URL of a vLLM that speculates with the head")
    parser.add_argument("--plain-vllm", help="URL of one that does not")
    parser.add_argument("--llama", help="URL of a llama.cpp server that speculates with the head")
    parser.add_argument("--backend", default="numpy", help="what computes here")
    parser.add_argument("--prompts", help="file of prompts; the built-in set when not said")
    parser.add_argument("--count", type=int, default=18, help="prompts, of all tasks alike")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--context", type=int, default=2048, help="of the other engines")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the sampled answers")
    parser.add_argument("-k", type=int, default=4, help="draft tokens per round, on all sides")
    return parser.parse_args()


def _choose(llm: LLM, args: argparse.Namespace) -> dict[str, Ids]:
    """Return the ids of the first prompts of every task in turn that fit into the context."""
    by_task = defaultdict(list)
    for prompt in read_prompt_set([args.prompts] if args.prompts else [], sys.stdin.read).prompts:
        ids = llm.encode(list(prompt.messages), prompt.tools or None)
        if len(ids) + args.tokens <= args.context:
            by_task[prompt.task].append(ids)
    places = sorted((i, task) for task, them in by_task.items() for i in range(len(them)))
    return {f"{task} {i}": by_task[task][i] for i, task in places[: args.count]}


def _sides(llm: LLM, client: httpx.Client, args: argparse.Namespace) -> dict[str, Ask]:
    """Return who answers."""

    def ask_here(ids: Ids, tokens: int, temperature: float, seed: int) -> Answer:
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        out = llm.generate(ids, mtp=args.k, max_tokens=tokens, **sampling)
        return Answer(out.token_ids, out.stats.rounds)

    sides: dict[str, Ask] = {"headlong": ask_here}
    for name, url in (("vllm", args.vllm), ("vllm plain", args.plain_vllm)):
        if url:
            sides[name] = _vllm(client, url)
    if args.llama:
        sides["llama.cpp"] = _llama(client, args.llama)
    return sides


def _vllm(client: httpx.Client, url: str) -> Ask:
    def ask(ids: Ids, tokens: int, temperature: float, seed: int) -> Answer:
        sampling = {"max_tokens": tokens, "temperature": temperature, "seed": seed}
        body = {"prompt": ids, "return_token_ids": True, **sampling}
        answer = client.post(f"{url}/v1/completions", json=body).raise_for_status().json()
        drafts = (answer["metrics"] or {}).get("speculative_decoding")
        rounds = drafts and drafts["num_spec_steps"]
        return Answer(tuple(answer["choices"][0]["token_ids"]), rounds)

    return ask


def _llama(client: httpx.Client, url: str) -> Ask:
    neutral = {"top_k": 0, "top_p": 1, "min_p": 0, "return_tokens": True, "cache_prompt": False}

    def ask(ids: Ids, tokens: int, temperature: float, seed: int) -> Answer:
        sampling = {"n_predict": tokens, "temperature": temperature, "seed": seed}
        body = {"prompt": ids, **sampling, **neutral}
        answer = client.post(f"{url}/completion", json=body).raise_for_status().json()
        timings = answer["timings"]
        # It counts no rounds. The first token has none; every other one not drafted ends one.
        rounds = timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0)
        return Answer(tuple(answer["tokens"]), rounds)

    return ask


def _measure(
    llm: LLM, prompts: dict[str, Ids], sides: dict[str, Ask], args: argparse.Namespace
) -> dict[str, Any]:
    rows = []
    for name, ids in prompts.items():
        answers = {side: ask(ids, args.tokens, 0, 0) for side, ask in sides.items()}
        ours = answers["headlong"].token_ids
        rows.append(
            {
                "prompt": name,
                "prompt_tokens": len(ids),
                "rounds": {side: answer.rounds for side, answer in answers.items()},
                "same_tokens": {side: answer.token_ids == ours for side, answer in answers.items()},
                "tokens": {side: len(answer.token_ids) for side, answer in answers.items()},
            }
        )
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    greedy = {side: _summarise(rows, side) for side in sides}
    again = {"headlong, other seed": sides["headlong"]}
    sampled = {
        side: _score(llm, prompts.values(), ask, args, seed=1 + (side in again))
        for side, ask in {**sides, **again}.items()
    }
    for side, numbers in sampled.items():
        sys.stdout.write(f"{side:20} {greedy.get(side)}\n{'':20} sampled {numbers}\n")
    settings = {"num_prompts": len(prompts), "max_tokens": args.tokens, "k": args.k}
    settings |= {"precision": "float32", "temperature": args.temperature}
    return {**settings, "greedy": greedy, "sampled": sampled, "prompts": rows}


def _summarise(rows: list[dict[str, Any]], side: str) -> dict[str, Any]:
    """Return how a side's greedy answers compare with ours."""
    summary = {"same_tokens": sum(row["same_tokens"][side] for row in rows)}
    rounds = [row["rounds"][side] for row in rows]
    if all(number is not None for number in rounds):
        # Every token but the first is of a round, so both sides are counted alike.
        emitted = sum(row["tokens"][side] - 1 for row in rows)
        same = sum(row["rounds"][side] == row["rounds"]["headlong"] for row in rows)
        summary |= {"rounds": sum(rounds), "same_rounds": same}
        summary["tokens_per_round"] = emitted / sum(rounds)
    return summary


def _score(
    llm: LLM, prompts: Iterable[Ids], ask: Ask, args: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Let a side answer at a temperature; return how likely our backbone finds its tokens."""
    means = []
    for ids in prompts:
        answer = ask(ids, min(args.tokens, 64), args.temperature, seed).token_ids
        stream = llm.engine.submit(Request(ids + answer, prompt_logprobs=0, mtp="off"))
        while stream.finish_reason is None:
            llm.engine.step()
        known = stream.report().prompt_logprobs
        places = range(len(ids), len(ids) + len(answer))
        means.append(statistics.mean(known[place].logprob for place in places))
    error = statistics.stdev(means) / len(means) ** 0.5
    return {"mean_logprob": statistics.mean(means), "standard_error": error}


if __name__ == "__main__":
    sys.exit(main())
