"""The CUDA backend on this card, part by part: is it right, how fast is it, where does time go?

    python bench/cuda_card.py PART… [--seconds 540] [--out FOLDER] [--model MODEL]

Parts: `checks` (what is installed, kernels against plain torch, bits, picks, and all compilation),
`speed` (what issue 23 asks for), `exact` (ten thousand answers with MTP on against off), `profile`
(microseconds per kernel), `tiles` (other tile sizes). Each writes FOLDER/PART.json as it goes, goes
on behind a step that fails, begins no step when time is up, and ends with a short table. Without
--model, random weights take the place of the small model, and what needs text is left out.
--rehearse runs tiny shapes in plain torch, on any machine. `bench/cuda.sh` says more.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import cuda_profile
import cuda_timing
import exactness
import torch
from cuda_jobs import JOBS, run_jobs
from cuda_kernels import time_chunk, time_levels, time_mates, time_passes, time_prefill
from cuda_profile import profile_large, profile_small
from cuda_report import Report, say
from cuda_rounds import (
    Lengths,
    Subject,
    measure_auto_streams,
    measure_large_rounds,
    measure_plain,
    measure_small_rounds,
    measure_streams,
    measure_tasks,
)
from cuda_shapes import LARGE, SMALL, TINY, Model
from cuda_tiles import search_tiles

import headlong.ops.cuda.backend  # noqa: F401  # registers itself, before another takes its place
from headlong.bench import round_cost
from headlong.ops.backends import make_ops, register_backend
from headlong.ops.cuda.ops import CudaOps

PACKAGES = ("torch", "triton", "numpy", "gguf", "tokenizers", "safetensors", "llguidance", "httpx")
TINY_LENGTHS = Lengths(70, 80, rounds=1, tokens=6, streams=3, asked=1, answer=4)


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--seconds", type=float, default=540, help="of each part")
    parser.add_argument("--out", type=Path, default=Path("cuda-report"))
    parser.add_argument("--model", help="the small model; random weights when not said")
    parser.add_argument("--quant", help="of --model; bf16 when not said, its own for `exact`")
    parser.add_argument("--only", metavar="STEP,…", help="of all steps that the parts have")
    parser.add_argument("--answers", type=int, default=10_000, help="of `exact`")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on any machine")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rehearse:
        torch.set_num_threads(1)
        cuda_timing.DEVICE = torch.device("cpu")
        round_cost.IN_A_ROW = cuda_profile.REPEATS = 2
        register_backend("cuda")(lambda threads=None: CudaOps(cuda_timing.DEVICE))
    if args.job:
        return 1 if JOBS[args.job[0]](int(args.job[1])) is False else 0
    status = 0
    for part in args.parts:
        report = Report(args.out / f"{part}.json", args.seconds, args.only)
        PARTS[part](report, args)
        status |= report.conclude()
    return status


def check(report: Report, args: argparse.Namespace) -> None:
    """See what is there; compare kernels with plain torch, and bits; compile what is timed."""
    report.run("environment", describe)
    report.run("ceilings", partial(_ceilings, args))
    kinds = ("twin", "picks", "rounds", *(() if args.rehearse else ("bits", "warm")))
    told = ("--rehearse",) if args.rehearse else ()
    report.run("kernels", lambda: run_jobs(kinds, report.seconds_left, told))


def describe() -> dict[str, Any]:
    """Return what runs here."""
    found: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in PACKAGES:
        try:
            import_module(name)
            found[name] = metadata.version(name)
        except Exception as error:
            found[name] = repr(error)
    found["compiler"] = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        found |= {"card": card.name, "bytes": card.total_memory, "cuda": torch.version.cuda}
        found["free"] = torch.cuda.mem_get_info()[0]
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv"]
        found["driver"] = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout
    found["headlong"] = make_ops("cuda").note
    for name, value in found.items():
        say(f"  {name}: {value}")
    return found


def _ceilings(args: argparse.Namespace) -> dict[str, float]:
    found = cuda_timing.measure_ceilings(64 if args.rehearse else 8192)
    say(f"  copy {found['bandwidth'] / 1e12:.2f} TB/s, product {found['rate'] / 1e12:.0f} TFLOP/s")
    return found


def measure_speed(report: Report, args: argparse.Namespace) -> None:
    """Time what the issue asks for, the most wanted first."""
    lengths = TINY_LENGTHS if args.rehearse else Lengths()
    small, large = (TINY, TINY) if args.rehearse else (SMALL, LARGE)
    subject = Subject(args.model, lengths, small, args.quant or "bf16")
    ceilings = {"bandwidth": cuda_timing.BANDWIDTH, "rate": cuda_timing.RATE}

    def measured() -> dict[str, float]:
        ceilings.update(_ceilings(args))
        return ceilings

    report.run("ceilings", measured)
    report.run("small rounds", lambda: measure_small_rounds(subject, report))
    rounds = report.entries.get("small rounds", {})
    report.run("plain", lambda: measure_plain(subject, report, rounds), 10)
    report.run("large rounds", lambda: measure_large_rounds(report, ceilings, lengths, large), 60)
    if args.model is not None:
        report.run("tasks", lambda: measure_tasks(subject, report), 30)
    report.run("streams", lambda: measure_streams(subject, report), 30)
    if args.model is not None:
        report.run("auto streams", lambda: measure_auto_streams(subject, report), 40)
    counts = (1, 8) if args.rehearse else (1, 2, 4, 8, 16, 64)
    report.run("small kernels", lambda: time_passes(small, "bf16", counts), 20)
    report.run("large kernels", lambda: time_passes(large, "bf16", counts), 30)
    if args.rehearse:
        report.run("prefill", lambda: time_chunk(Model(cuda_timing.make_ops(), TINY, "q4"), 20))
        return
    report.run("levels", time_levels, 40)
    report.run("prefill", time_prefill, 30)


def compare_answers(report: Report, args: argparse.Namespace) -> None:
    """Compare answers with MTP on and off."""
    path = args.out / "exactness.json"
    told = ["--backend", "cuda", "--answers", str(args.answers), "--json", str(path)]
    told += [
        "--seconds",
        str(report.seconds_left - 20),
        "--streams",
        "6" if args.rehearse else "64",
    ]
    told += ["--model", args.model] if args.model else []
    told += ["--quant", args.quant] if args.quant else []

    def compare() -> dict[str, str]:
        if exactness.main(told):
            raise RuntimeError(f"answers differ, or there are none: {path}")
        return {"see": str(path)}

    report.run("answers", compare)


def profile_rounds(report: Report, args: argparse.Namespace) -> None:
    """See where a round's time goes."""
    lengths = TINY_LENGTHS if args.rehearse else Lengths()
    small, large = (TINY, TINY) if args.rehearse else (SMALL, LARGE)
    subject = Subject(args.model, lengths, small, args.quant or "bf16")
    report.run("small", lambda: profile_small(subject))
    report.run("large", lambda: profile_large(lengths, large), 60)


def try_tiles(report: Report, args: argparse.Namespace) -> None:
    """Time rows turned apart from attention, then other tiles, compiled side by side."""
    report.run("mates", time_mates)
    report.run("compile", lambda: run_jobs(("tiles",), report.seconds_left / 3))
    report.run("tiles", search_tiles)


PARTS = {
    "checks": check,
    "speed": measure_speed,
    "exact": compare_answers,
    "profile": profile_rounds,
    "tiles": try_tiles,
}

if __name__ == "__main__":
    sys.exit(main())
