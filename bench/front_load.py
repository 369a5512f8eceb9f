"""Load on a server that stands before three engines which slow down, garble and die.

    python bench/front_load.py [--seconds 300] [--rate 100] [--model MODEL] [--json OUT]

Starts three scripted engines (`tests/support/http_engine.py`) and `headlong serve --engine vllm`
before them, then asks at a fixed rate, every other request as a stream. One engine is killed every
20 seconds and comes back 3 seconds later; the second is slow with every tenth request, the third
sends garbage with every tenth. Every right answer is known, so one that is lost, given twice or
another's is seen. Also told is the server's own processor time for a request; what it adds to one
is measured by `bench/front_overhead.py`. Prints a table; the last line is JSON; exit code 0 when
nothing was lost.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from front_load_client import Answer, Asked, ask
from front_load_engines import (
    SLOW_S,
    SUPPORT,
    TOKEN_S,
    Engine,
    run_engines,
    run_front,
    scripted_words,
)

from headlong.provenance import read_provenance
from headlong.text.tokenizer import Tokenizer

sys.path.insert(0, str(SUPPORT))
from scripted_model import ScriptedModel  # it lies with the tests

KILL_EVERY_S = 20.0
DEAD_FOR_S = 3.0
LATE_S = 60.0
"""An answer that takes longer is lost."""

FAILURES = ("lost", "told", "twice", "mixed up")


@dataclass
class Load:
    """What is asked, and what came of it."""

    url: str
    tokenizer: Tokenizer
    model: ScriptedModel
    mtp: Iterator[str]
    answers: list[Answer]

    async def ask(self, number: int) -> None:
        """Ask once and keep what came."""
        prompt = f"Request {number} of the load: what is {number * 7919 % 9973}?"
        num_tokens = 8 + number * 31 % 25
        said = self.model.answer(self.tokenizer.encode(prompt), num_tokens)
        asked = Asked(
            number,
            prompt,
            num_tokens,
            is_stream=number % 2 == 0,
            mtp=next(self.mtp),
            expected=self.tokenizer.decode(said),
        )
        self.answers.append(await ask(self.url, asked, LATE_S))


async def offer(load: Load, rate: float, seconds: float) -> None:
    """Ask at a fixed rate, however the answers come."""
    begin, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        task = asyncio.create_task(load.ask(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def kill_in_turns(engines: list[Engine], every_s: float, dead_for_s: float) -> None:
    """Kill one engine after another, each back a moment later."""
    for engine in cycle(engines):
        await asyncio.sleep(every_s - dead_for_s)
        engine.kill()
        await asyncio.sleep(dead_for_s)
        await asyncio.to_thread(engine.start)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the whole load and return what came of it."""
    tokenizer, words, path = scripted_words(args.model)
    with (
        run_engines(words, tokenizer) as engines,
        run_front(path, [one.url for one in engines]) as (url, process),
    ):
        model = ScriptedModel(words, min(tokenizer.eos_ids), tokenizer.vocab_size)
        load = Load(url, tokenizer, model, cycle(("off", "auto")), [])
        begin, before_s = time.monotonic(), _processor_s(process)
        killer = asyncio.create_task(kill_in_turns(engines, args.kill_every, DEAD_FOR_S))
        try:
            await offer(load, args.rate, args.seconds)
        finally:
            killer.cancel()
        seconds, own_s = time.monotonic() - begin, _processor_s(process) - before_s
        kills = sum(one.num_kills for one in engines)
    told = {"seconds": seconds, "kills": kills, **summary(load.answers)}
    return told | {"front_processor_ms": 1000 * own_s / max(1, len(load.answers))}


def summary(answers: list[Answer]) -> dict[str, Any]:
    """Count what came, and how long it took."""
    kinds = Counter(one.kind for one in answers)
    right = [one for one in answers if one.kind == "right"]
    return {
        "asked": len(answers),
        "streamed": sum(one.is_stream for one in answers),
        **{kind: kinds[kind] for kind in ("right", "refused", *FAILURES)},
        "first_token_ms": _quantiles([one.first_s for one in right if one.is_stream]),
        "answer_ms": _quantiles([one.total_s for one in right]),
        "examples": [f"{one.number}: {one.seen}" for one in answers if one.kind in FAILURES][:5],
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered, at = sorted(seconds), {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {n: 1000 * ordered[min(last, int(q * len(ordered)))] for n, q in at.items() if ordered}


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rate", type=float, default=100, help="requests per second")
    parser.add_argument("--model", help="whose tokenizer the server has (default: its own)")
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY_S, metavar="S")
    parser.add_argument("--json", type=Path, help="where the result goes")
    args = parser.parse_args()
    outcome = asyncio.run(run(args))
    conditions = {
        **read_provenance().to_dict(),
        "rate": args.rate,
        "engines": f"3 scripted ones, {1000 * TOKEN_S:g} ms a round; one killed every "
        f"{args.kill_every:g} s for {DEAD_FOR_S:g} s, one slower by {SLOW_S:g} s an event with "
        "every tenth request, one that garbles every tenth",
    }
    for name, value in outcome.items():
        sys.stdout.write(f"{name:>16}  {value}\n")
    document = {"conditions": conditions, "front_load": outcome}
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.exit(any(outcome[kind] for kind in FAILURES))


if __name__ == "__main__":
    main()
