"""What the front adds to an engine in another process: the same requests with it and without it.

    python bench/front_overhead.py FRONT_URL ENGINE_URL --engine vllm|llama.cpp [--mtp off]
                                   [--front-pid PID] [--pairs 40] [--tokens 64] [--streams 1]

Requests go in turns to `headlong serve --engine …` and to the engine behind it, greedy, with the
same token ids, so that whatever the machine does hits both alike. Each side opens a connection for
every request, reads bytes and parses nothing. Per request: the time to the first token. Per token:
the time from the first to the last one. Each number is the median of the pairs' differences, with
the quartiles beside it; where pids are known, also the processor time that the front itself took
for a whole answer. The last line is JSON.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headlong.provenance import read_provenance

PROMPT = [9825, 42, 216, 33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28]
"""Count: 1, 2, 3, 4, for the default model."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where requests go, and what is asked there."""

    url: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Times:
    """What one request took, in milliseconds."""

    first: float
    rest: float


def main() -> int:
    """Measure and print."""
    args = _parse()
    front, engine = _sides(args)
    for side in (front, engine) * 3:
        ask(side, args.streams)  # warms up
    pairs = list[tuple[Times, Times]]()
    cpu_s = _cpu_seconds(args.front_pid)
    for number in range(args.pairs):
        order = (front, engine) if number % 2 else (engine, front)
        times = {side: ask(side, args.streams) for side in order}
        pairs.append((times[front], times[engine]))
    cpu_s = _cpu_seconds(args.front_pid) - cpu_s
    num_tokens = args.tokens * args.streams
    results = {
        "first_token_added_ms": _spread([one.first - two.first for one, two in pairs]),
        "engine_first_token_ms": _spread([two.first for _, two in pairs]),
        "per_token_added": _spread([one.rest / two.rest - 1 for one, two in pairs]),
        "engine_ms_per_token": _spread([two.rest / (num_tokens - 1) for _, two in pairs]),
        "front_cpu_ms_per_answer": 1e3 * cpu_s / (args.pairs * args.streams) or None,
    }
    for name, value in results.items():
        sys.stdout.write(f"{name:24} {value}\n")
    settings = {"engine": args.engine, "mtp": args.mtp, "pairs": args.pairs}
    settings |= {"tokens": args.tokens, "streams": args.streams}
    provenance = read_provenance().to_dict() | {"argv": None}
    sys.stdout.write(json.dumps({**settings, **results, "provenance": provenance}) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("front")
    parser.add_argument("engine_url")
    parser.add_argument("--engine", choices=("vllm", "llama.cpp"), default="vllm")
    parser.add_argument("--mtp", default="off", help="off, auto or K, as the front is asked")
    parser.add_argument("--front-pid", type=int, help="to count its processor time")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--streams", type=int, default=1, help="answers at one time")
    return parser.parse_args()


def _sides(args: argparse.Namespace) -> tuple[Side, Side]:
    """Return the front's side and the engine's own."""
    mtp: Any = int(args.mtp) if args.mtp.isdigit() else args.mtp
    asked = {"prompt": PROMPT, "temperature": 0, "stream": True}
    front = asked | {"max_tokens": args.tokens, "ignore_eos": True, "mtp": mtp}
    if args.engine == "vllm":
        extras = {"max_tokens": args.tokens, "ignore_eos": True, "return_token_ids": True}
        path, engine = "/v1/completions", asked | extras
    else:
        neutral = {"top_k": 0, "top_p": 1, "min_p": 0, "return_tokens": True}
        path, engine = "/completion", asked | neutral | {"n_predict": args.tokens}
    return (
        Side(args.front, "/v1/completions", json.dumps(front).encode()),
        Side(args.engine_url, path, json.dumps(engine).encode()),
    )


def ask(side: Side, num_streams: int) -> Times:
    """Ask once, or so many times at once; return the medians."""
    got = list[Times]()
    threads = [threading.Thread(target=lambda: got.append(_ask(side))) for _ in range(num_streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(got) < num_streams:
        raise SystemExit(f"{side.url}{side.path} did not answer.")
    return Times(_median(got, lambda one: one.first), _median(got, lambda one: one.rest))


def _ask(side: Side) -> Times:
    connection = http.client.HTTPConnection(urlsplit(side.url).netloc, timeout=300)
    start = time.perf_counter()
    connection.request("POST", side.path, side.body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise SystemExit(f"{side.url}: {response.status} {response.read(999)!r}")
    first = None
    while data := response.read1(1 << 20):
        last = time.perf_counter()
        if first is None and b"data: " in data:
            first = last
    connection.close()
    if first is None:
        raise SystemExit(f"{side.url} sent no token.")
    return Times(1e3 * (first - start), 1e3 * (last - first))


def _median(times: Sequence[Times], take: Callable[[Times], float]) -> float:
    return statistics.median(map(take, times))


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


def _cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a process so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
