"""Checks and compilation in processes beside each other, for a card in a machine of many cores.

In:  names of jobs. Out: what each said, as soon as it ends; those that are not through in time are
ended. Compiled kernels stay in Triton's cache, where what is timed later finds them.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda_checks import (
    CASES,
    REHEARSED,
    ROUNDS,
    TWINS,
    check_bits,
    check_picks,
    check_rounds,
    check_twin,
)
from cuda_kernels import WARM, warm
from cuda_report import say
from cuda_tiles import WORKERS, compile_share

JOBS: dict[str, Callable[[int], bool | None]] = {
    "twin": check_twin,
    "bits": check_bits,
    "picks": check_picks,
    "rounds": check_rounds,
    "warm": warm,
    "tiles": compile_share,
}
COUNTS = {
    "twin": len(TWINS),
    "bits": len(CASES),
    "picks": 2,
    "rounds": len(ROUNDS),
    "warm": len(WARM),
    "tiles": WORKERS,
}
CHECKS = ("twin", "bits", "picks", "rounds")


def run_jobs(kinds: tuple[str, ...], seconds: float, told: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run all jobs of some kinds; raise at the end where a check did not hold."""
    script = Path(__file__).with_name("cuda_card.py")
    begun = {
        f"{kind} {number}": subprocess.Popen(
            [sys.executable, str(script), "--job", kind, str(number), *told],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for kind in kinds
        for number in range(len(REHEARSED) if told else COUNTS[kind])
    }
    stop_s = time.monotonic() + seconds
    found: dict[str, Any] = {}
    while len(found) < len(begun):
        for name in [one for one in begun if one not in found]:
            if begun[name].poll() is not None or time.monotonic() > stop_s:
                found[name] = _ended(name, begun[name])
        time.sleep(0.2)
    wrong = [name for name in found if found[name]["status"] and name.split()[0] in CHECKS]
    if wrong:
        raise RuntimeError(f"did not hold: {', '.join(wrong)}\n{found}")
    return found


def _ended(name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return how a job ended, and say it where it is a check or failed."""
    if process.poll() is None:
        process.kill()
    told, _ = process.communicate()
    status = process.returncode
    if status or name.split()[0] in CHECKS:
        say(f"  {name}: {'' if status == 0 else f'status {status}: '}{told[-900:].strip()}")
    return {"status": status, "told": told[-900:].strip()}
