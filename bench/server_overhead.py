"""What the server adds to the engine: seconds per token over HTTP against an engine-only loop.

    python bench/server_overhead.py [--model MODEL] [--tokens 256] [--pairs 12] [--streams 1]

Both run in this process on the same weights, in turns, so that a neighbour on the machine hits both
alike. The client is a process of its own that reads bytes and parses nothing. Time counts from the
first token to the end; the overhead is the median over pairs. On a machine with neighbours look at
the processor time instead (with HEADLONG_THREADS=1, since threads burn time while they wait). It
counts the whole exchange, prompt included, of this process alone. The last line is JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.llm import LLM, make_request
from headlong.provenance import read_provenance
from headlong.server.app import make_app
from headlong.server.settings import ServerSettings

SETTINGS = ServerSettings(port=0, prefix_bytes=0)

MESSAGES = [{"role": "user", "content": "Write a long story about a lighthouse keeper."}]

CLIENT = r"""
import select, socket, sys, time
port, num_streams, body = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
for line in sys.stdin:
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(num_streams)]
    for stream in streams:
        stream.sendall(head + body)
    first, open_streams = None, set(streams)
    while open_streams:
        for stream in select.select(list(open_streams), [], [])[0]:
            data = stream.recv(1 << 20)
            now = time.perf_counter()
            if first is None and b"data: " in data:
                first = now
            if not data:
                open_streams.discard(stream)
    print(now - first, flush=True)
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="the default model when not said")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--pairs", type=int, default=12, help="runs of each side")
    parser.add_argument("--streams", type=int, default=1, help="answers at one time")
    args = parser.parse_args()
    llm = LLM.load(args.model, limits=SETTINGS.engine_limits)
    results: dict[str, Any] = {}
    with serving(llm) as port:
        for mtp in ("off", "auto"):
            results[mtp] = measured = compare(llm, port, mtp, args)
            sys.stdout.write(
                f"mtp {mtp:4}  engine {measured['engine_ms']:.3f} ms/token"
                f"  server {measured['server_ms']:.3f}"
                f"  overhead {100 * measured['overhead']:+.1f} %"
                f"  in processor time {100 * measured['cpu_overhead']:+.1f} %\n"
            )
    record = {**vars(args), "results": results, "provenance": read_provenance().to_dict()}
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


@contextmanager
def serving(llm: LLM) -> Iterator[int]:
    """Serve the model on a free port from a thread."""
    config = uvicorn.Config(make_app(llm, SETTINGS), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def compare(llm: LLM, port: int, mtp: str, args: argparse.Namespace) -> dict[str, float]:
    """Run both sides in turns; return medians of milliseconds per token and of the ratio."""
    options: dict[str, Any] = {"mtp": mtp, "max_tokens": args.tokens, "temperature": 0}
    options["ignore_eos"] = True
    body = json.dumps({"messages": MESSAGES, "stream": True, **options})
    command = [sys.executable, "-c", CLIENT, str(port), str(args.streams), body]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    engine_s, server_s, cpu_ratios = list[float](), list[float](), list[float]()
    for _ in range(args.pairs + 1):
        began_s = time.process_time()
        client.stdin.write("\n")
        client.stdin.flush()
        server_s.append(float(client.stdout.readline()))
        between_s = time.process_time()
        engine_s.append(run_engine(llm, options, args.streams))
        cpu_ratios.append((between_s - began_s) / (time.process_time() - between_s) - 1)
    client.stdin.close()
    client.wait()
    engine_s, server_s = engine_s[1:], server_s[1:]  # the first pair warms up
    num_tokens = (args.tokens - 1) * args.streams
    ratios = [server / engine - 1 for server, engine in zip(server_s, engine_s, strict=True)]
    return {
        "engine_ms": 1e3 * statistics.median(engine_s) / num_tokens,
        "server_ms": 1e3 * statistics.median(server_s) / num_tokens,
        "overhead": statistics.median(ratios),
        "cpu_overhead": statistics.median(cpu_ratios[1:]),
    }


def run_engine(llm: LLM, options: dict[str, Any], num_streams: int) -> float:
    """Return the seconds from the first token to the end, with nothing around the engine."""
    # Like the server's, but that nothing is kept: neither side may begin with the other's prompt.
    engine = Engine.for_model(llm.backbone, llm.drafter, EngineLimits(prefix_bytes=0))
    request = make_request(llm.encode(MESSAGES), llm.tokenizer.eos_ids, {**options, "seed": 0})
    runnings = [engine.submit(request) for _ in range(num_streams)]
    while not any(running.num_ready for running in runnings):
        engine.step()
    start = time.perf_counter()
    while any(running.finish_reason is None for running in runnings):
        engine.step()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
