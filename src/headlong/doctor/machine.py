"""What the machine gives: cores, instruction sets, huge pages, memory, and who else uses it.

In:  files under /proc and /sys, and the backend in use.
Out: `MachineReadings`, and one finding per thing that decides speed. A reading that the system does
not tell is None, and its check says so instead of guessing.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from headlong.bench.pass_cost import native_engine
from headlong.doctor.finding import Check, Finding, skipped
from headlong.ops.backends import MODULES, backend_problem
from headlong.ops.op_set import Ops

BUSY_SHARE = 0.6
"""Waiting processes per core, from which on timings are someone else's too."""

MAX_USEFUL_THREADS = 8
"""Reading memory is the limit long before this many cores are busy."""

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class MachineReadings:
    """What the system reports about the machine."""

    num_cores: int
    """Cores this process may use."""
    cpu_quota: float | None
    """Cores' worth of time a container may use; None when nothing limits it."""
    huge_pages: str | None
    """always, madvise or never."""
    available_bytes: int | None
    """Memory that can still be taken, by the system's or the container's limit."""
    load: float | None
    """Processes that wanted a core during the last minute, on average."""


def read_machine(root: Path = Path("/")) -> MachineReadings:
    """Read the machine's state; `root` replaces the root of the file system."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return MachineReadings(
        num_cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        cpu_quota=_read_quota(root),
        huge_pages=(_read(root / _HUGE_PAGES) or "").partition("[")[2].partition("]")[0] or None,
        available_bytes=_read_available(root),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def check_backend(ops: Ops, asked: str) -> Finding:
    """Is the fast backend at work?"""
    if ops.name == "native":
        return Check("backend", {"backend": ops.name}).ok(f"compiled kernels: {ops.note}")
    check = Check("backend", {"backend": ops.name, "note": ops.note})
    if ops.name == "numpy" and asked != "auto":
        return check.ok("numpy, as asked for; it is the slow, readable one")
    if ops.name != "numpy":
        return check.ok(ops.note)
    return check.warning(
        f"The slow numpy backend computes. {backend_problem('native')}",
        MODULES["native"].remedy,
    )


def check_instruction_set(ops: Ops) -> Finding:
    """Are these the best kernels this processor has?"""
    engine = native_engine(ops)
    if engine is None:
        return skipped("instruction set", "only the compiled kernels have several")
    used, best = engine.instruction_set, type(engine)("auto", 1).instruction_set
    check = Check("instruction set", {"instruction_set": used, "best": best})
    if used == best:
        return check.ok(f"{used}, the best this processor has")
    return check.warning(
        f"HEADLONG_ISA holds the kernels at {used}; this processor has {best}.",
        "Unset HEADLONG_ISA, unless you compare instruction sets.",
    )


def check_threads(ops: Ops, machine: MachineReadings) -> Finding:
    """Are there as many threads as cores, and are those cores really ours?"""
    engine = native_engine(ops)
    if engine is None:
        return skipped("threads", "only the compiled kernels use several")
    threads, cores = engine.num_threads, machine.num_cores
    numbers = {"threads": threads, "in_use": engine.num_threads_in_use, "cores": cores}
    check = Check("threads", numbers | {"cpu_quota": machine.cpu_quota})
    if threads > cores:
        return check.warning(
            f"{threads} threads share {cores} cores; they will wait for each other.",
            "Unset HEADLONG_THREADS, or set it to the number of cores.",
        )
    if machine.cpu_quota is not None and threads > machine.cpu_quota:
        return check.warning(
            f"{threads} threads run where the container is given {machine.cpu_quota:g} cores' worth"
            " of time; they are stopped whenever it is used up.",
            "Set HEADLONG_THREADS to the container's cores, rounded down, or raise its limit.",
        )
    if threads < min(cores, MAX_USEFUL_THREADS):
        return check.warning(
            f"{threads} threads on {cores} cores leave memory bandwidth unused.",
            "Unset HEADLONG_THREADS.",
        )
    if engine.num_threads_in_use < threads:
        return check.warning(
            f"Of {threads} threads one works alone now: other processes take cores away, and all "
            "together would be slower.",
            "Stop other programs, or give this process cores of its own.",
        )
    return check.ok(f"{threads} on {cores} cores")


def check_load(machine: MachineReadings) -> Finding:
    """Do other processes use the cores?"""
    if machine.load is None:
        return skipped("load", "this system does not tell")
    check = Check("load", {"load": machine.load})
    seen = f"{machine.load:.1f} processes want the {machine.num_cores} cores"
    if machine.load > BUSY_SHARE * machine.num_cores:
        return check.warning(
            f"{seen}; the timings below are partly theirs.", "Ask again when the machine is quiet."
        )
    return check.ok(seen)


def check_huge_pages(ops: Ops, machine: MachineReadings) -> Finding:
    """May weights lie on huge pages? On 4 KiB pages memory is read a third slower."""
    if machine.huge_pages is None:
        return skipped("huge pages", "this system does not tell")
    if ops.name != "native":
        return skipped("huge pages", "only the compiled kernels ask for them")
    check = Check("huge pages", {"setting": machine.huge_pages})
    if machine.huge_pages == "never":
        return check.warning(
            "Transparent huge pages are switched off; weights are read from 4 KiB pages.",
            f"echo madvise | sudo tee /{_HUGE_PAGES}",
        )
    return check.ok(f"granted ({machine.huge_pages})")


def check_memory(machine: MachineReadings, needed_bytes: int, context_length: int) -> Finding:
    """Is there room for one sequence over the model's whole context?"""
    if machine.available_bytes is None:
        return skipped("memory", "this system does not tell")
    check = Check(
        "memory", {"available_bytes": machine.available_bytes, "needed_bytes": needed_bytes}
    )
    seen = (
        f"{machine.available_bytes / 1e9:.1f} GB are free; keys and values of one full context "
        f"({context_length:,} tokens) take {needed_bytes / 1e9:.2f} GB"
    )
    if machine.available_bytes < needed_bytes:
        return check.warning(
            f"{seen}.",
            "Keep prompts and answers shorter, or free memory; `headlong plan` computes the need.",
        )
    return check.ok(seen)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _read_number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _read_quota(root: Path) -> float | None:
    """Read the container's CPU limit, from either version of cgroups."""
    words = (_read(root / "sys/fs/cgroup/cpu.max") or "max").split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        return int(words[0]) / int(words[1])
    quota = _read_number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read_number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _read_available(root: Path) -> int | None:
    lines = (_read(root / "proc/meminfo") or "").splitlines()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    free = [int(found[0]) * 1024] if found else []
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit = _read_number(root / "sys/fs/cgroup" / limit_name)
        used = _read_number(root / "sys/fs/cgroup" / used_name)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            free.append(max(0, limit - used))
    return min(free) if free else None
