"""Many answers with MTP on against the same answers with it off: how many tokens differ?

    python bench/exactness.py [--model MODEL] [--backend NAME] [--quant FORMAT] [--answers 10000]
                              [--seconds 600] [--tokens 40] [--prompts FILE.jsonl] [--json FILE]

The requests are a mix: every task, temperatures 0 to 1, filters, penalties, logprobs, prompts that
begin alike. The truth is what an engine gives with MTP off, many streams at a time. Engines under
other conditions then answer the same requests, each in a mode of its own (K = 1 to 8, auto, off)
and in another order: one stream, a few, many, with prompts in small chunks, with so little memory
that requests are set back. Stops in time, and says how many answers it compared. The exit status is
1 where a token differs.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headlong.bench.prompt_sets import read_prompt_set
from headlong.config import MtpMode
from headlong.decode.divergence import find_divergence
from headlong.decode.request import Request
from headlong.engine.client import TokenStream
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.errors import HeadlongError
from headlong.llm import LLM, GenerateOptions, make_request
from headlong.provenance import read_provenance

MODES: tuple[MtpMode, ...] = ("auto", 1, 2, 3, 4, 5, 6, 7, 8)
KINDS: tuple[GenerateOptions, ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05, "top_p": 0.95},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    {"temperature": 0.0, "presence_penalty": 0.5, "logit_bias": {11: -2.0, 28: 1.5}},
)
TRUTH_SHARE = 0.4
"""Of the time."""

LONGEST_PROMPT = 384


@dataclass(frozen=True)
class Condition:
    """How an engine runs the requests."""

    name: str
    num_streams: int
    share: float
    """Of all answers."""
    modes: tuple[MtpMode, ...] = MODES
    limits: EngineLimits = field(default_factory=EngineLimits)


@dataclass
class Outcome:
    """What one condition gave."""

    answers: int = 0
    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    wrong_answers: int = 0
    wrong_tokens: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    seconds: float = 0.0
    first: dict[str, Any] | None = None
    """The first answer that differed."""
    error: str | None = None
    """What ended the condition before its time."""


def main(told: Sequence[str] | None = None) -> int:
    """Compare, print, write."""
    args = read_arguments(told)
    ends_s = time.monotonic() + args.seconds
    console = Console(stderr=True)
    llm = LLM.load(args.model, backend=args.backend, quant=args.quant)
    gc.freeze()
    requests = draw_requests(llm, args)
    conditions = list_conditions(llm, requests, args.streams)
    outcomes: dict[str, Outcome] = {}
    with Progress(console=console) as progress:
        task = progress.add_task("truth", total=len(requests) + args.answers)
        truth: list[tuple[int, ...]] = []
        plain = Condition("truth", args.streams, 1.0, ("off",), many(args.streams))
        stop_s = time.monotonic() + (ends_s - time.monotonic()) * TRUTH_SHARE
        for stream in run(llm, plain, requests, stop_s, Outcome()):
            truth.append(read(stream))
            progress.advance(task)
        for place, one in enumerate(conditions):
            progress.update(task, description=one.name)
            own = outcomes[one.name] = Outcome()
            rng = random.Random(place)
            order = [rng.randrange(len(truth)) for _ in range(round(args.answers * one.share))]
            asked = [replace(requests[i], mtp=rng.choice(one.modes)) for i in order]
            left = sum(later.share for later in conditions[place:])
            stop_s = time.monotonic() + (ends_s - time.monotonic()) * one.share / left
            streams = run(llm, one, asked, stop_s, own)
            compare_all(streams, [truth[i] for i in order], own)
            progress.advance(task, own.answers)
            record = record_of(llm, args, outcomes)
            if args.json is not None:  # at once: what was compared stays, whatever comes next
                args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    show(console, outcomes)
    total = sum_up(outcomes)
    sys.stdout.write(json.dumps(record) + "\n")
    return 1 if total.wrong_answers or total.error or not total.answers else 0


def read_arguments(told: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="the default model when not said")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--quant", help="of the weights; the file's own when not said")
    parser.add_argument("--answers", type=int, default=10_000, help="to compare")
    parser.add_argument("--tokens", type=int, default=40, help="of an answer in the mean, at most")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long")
    parser.add_argument("--streams", type=int, default=64, help="at one time, where there are many")
    parser.add_argument("--prompts", help="a file of prompts; the built-in tasks when not said")
    parser.add_argument("--json", type=Path, help="write the result there")
    return parser.parse_args(told)


def record_of(llm: LLM, args: argparse.Namespace, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return what has been found so far, and under which conditions."""
    return {
        "model": llm.model_path.name,
        "drafter": None if llm.drafter is None else llm.drafter.name,
        "backend": llm.engine.backend,
        "total": asdict(sum_up(outcomes)),
        "conditions": {name: asdict(one) for name, one in outcomes.items()},
        "asked": {
            name: getattr(args, name)
            for name in ("answers", "tokens", "seconds", "streams", "quant")
        },
        "provenance": read_provenance().to_dict(),
    }


def many(num_streams: int, **limits: Any) -> EngineLimits:
    """Return the limits of an engine for so many streams, each K honoured."""
    rows = 8 * num_streams
    return EngineLimits(max_running=num_streams, rows_per_step=rows, honour_k=True, **limits)


def list_conditions(llm: LLM, requests: Sequence[Request], most: int) -> list[Condition]:
    """Return all conditions; memory is short where it holds the longest request a few times."""
    longest = max(len(one.prompt_ids) + one.stopping.max_tokens for one in requests)
    one = llm.backbone.make_cache().bytes_for(longest)
    few = max(2, most // 8)
    short = many(most, kv_bytes=one * (2 + most // 8), prefix_bytes=one)
    return [
        Condition("many streams", most, 0.5, limits=many(most)),
        Condition("small chunks", most, 0.15, limits=many(most, prefill_rows_per_step=24)),
        Condition("short memory", most, 0.15, limits=short),
        Condition("few streams", few, 0.14, limits=many(few)),
        Condition("off, few streams", few, 0.03, ("off",), many(few)),
        Condition("one stream", 1, 0.03, (*MODES, "off"), many(1)),
    ]


def draw_requests(llm: LLM, args: argparse.Namespace) -> list[Request]:
    """Return requests with MTP off: half as many as answers, since each is asked more than once."""
    rng = random.Random(0)
    prompts = read_prompt_set([args.prompts] if args.prompts else [], sys.stdin.read).prompts
    encoded = [llm.encode(prompt.messages)[:LONGEST_PROMPT] for prompt in prompts]
    requests = []
    for seed in range(max(1, args.answers // 2)):
        ids = rng.choice(encoded)
        begins_like_others = ids[: rng.randint(1, len(ids))] if rng.random() < 0.5 else ids
        length = rng.randint(args.tokens // 2, args.tokens * 3 // 2)
        options: GenerateOptions = {"mtp": "off", "max_tokens": length, "seed": seed}
        options |= rng.choice(KINDS)
        requests.append(make_request(begins_like_others, llm.tokenizer.eos_ids, options))
    return requests


def run(
    llm: LLM, how: Condition, asked: Sequence[Request], stop_s: float, outcome: Outcome
) -> Iterator[TokenStream]:
    """Answer requests in order until time is up; what has begun is brought to its end."""
    gc.collect()  # the engine before this one may hold most of a card
    engine = Engine.for_model(llm.backbone, llm.drafter, how.limits)
    began_s = time.monotonic()
    waiting, running = list(reversed(asked)), list[TokenStream]()
    while (waiting and time.monotonic() < stop_s) or running:
        while waiting and engine.num_running + engine.num_waiting < how.num_streams:
            if time.monotonic() >= stop_s:
                break
            running.append(engine.submit(waiting.pop()))
        engine.step()
        while running and running[0].finish_reason is not None:
            yield running.pop(0)
    seen = engine.snapshot()
    outcome.preemptions, outcome.prefix_hit_tokens = seen.num_preemptions, seen.prefix_hit_tokens
    outcome.seconds = time.monotonic() - began_s


def read(stream: TokenStream) -> tuple[int, ...]:
    """Return the tokens of an answer; an error ends the comparison."""
    if stream.error is not None:
        raise stream.error
    return tuple(emitted.pick.token_id for emitted in stream.take())


def compare_all(
    streams: Iterable[TokenStream], truths: Sequence[tuple[int, ...]], outcome: Outcome
) -> None:
    """Compare the answers of a condition; an error ends it, since others may show its cause."""
    try:
        for stream, truth in zip(streams, truths, strict=False):
            compare(stream, truth, outcome)
    except HeadlongError as error:
        outcome.error = str(error)


def compare(stream: TokenStream, truth: tuple[int, ...], outcome: Outcome) -> None:
    """Count what differs."""
    got, stats = read(stream), stream.report().stats
    outcome.answers += 1
    outcome.tokens += len(got)
    outcome.rounds += stats.rounds
    outcome.accepted += stats.num_accepted
    place = find_divergence(truth, got)
    if place is None:
        return
    outcome.wrong_answers += 1
    outcome.wrong_tokens += max(len(truth), len(got)) - place
    request = stream.request
    if outcome.first is None:
        outcome.first = {
            "place": place,
            "expected": truth[place : place + 3],
            "got": got[place : place + 3],
            "mtp": request.mtp,
            "prompt_tokens": len(request.prompt_ids),
            "sampling": {k: v for k, v in asdict(request.sampling).items() if v},
        }


def sum_up(outcomes: dict[str, Outcome]) -> Outcome:
    """Return all conditions together."""
    total = Outcome()
    for one in outcomes.values():
        for name, value in asdict(one).items():
            if name not in ("first", "error"):
                setattr(total, name, getattr(total, name) + value)
        total.first = total.first or one.first
        total.error = total.error or one.error
    return total


def show(console: Console, outcomes: dict[str, Outcome]) -> None:
    """Print a row a condition."""
    table = Table()
    columns = ("", "answers", "tokens", "tokens a round", "set back", "prefix", "s", "wrong")
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for name, one in [*outcomes.items(), ("all", sum_up(outcomes))]:
        table.add_row(
            name,
            f"{one.answers:,}",
            f"{one.tokens:,}",
            f"{one.tokens / max(1, one.rounds):.2f}",
            f"{one.preemptions:,}",
            f"{one.prefix_hit_tokens:,}",
            f"{one.seconds:.1f}",
            f"{one.wrong_answers:,}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
