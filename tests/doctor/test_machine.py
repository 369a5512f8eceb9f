"""Machines of every kind, made of a few files under a folder that stands for the root."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headlong.doctor.finding import Severity
from headlong.doctor.machine import (
    MachineReadings,
    check_backend,
    check_huge_pages,
    check_instruction_set,
    check_load,
    check_memory,
    check_threads,
    read_machine,
)
from headlong.ops.backends import make_ops
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.ops import NumpyOps

QUIET = MachineReadings(
    num_cores=4, cpu_quota=None, huge_pages="madvise", available_bytes=8 * 10**9, load=0.2
)


def write(root: Path, name: str, text: str) -> None:
    """Put a file of the system in its place."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_readings_of_a_plain_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    found = read_machine(tmp_path)
    assert found.available_bytes == 1_024_000
    assert found.huge_pages == "madvise"
    assert found.cpu_quota is None
    assert found.num_cores >= 1


def test_limits_of_a_container_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:    1000000 kB\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "3000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1000\n")
    found = read_machine(tmp_path)
    assert found.cpu_quota == 1.5
    assert found.available_bytes == 2000


def test_first_generation_of_cgroups_is_read_too(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n")
    found = read_machine(tmp_path)
    assert found.cpu_quota == 0.5
    assert found.available_bytes is None


def test_system_that_tells_nothing_is_not_guessed_about(tmp_path: Path) -> None:
    found = read_machine(tmp_path)
    assert (found.huge_pages, found.available_bytes) == (None, None)
    assert check_huge_pages(make_ops(), found).level is Severity.SKIPPED
    assert check_memory(found, 1, 1).level is Severity.SKIPPED
    assert check_load(replace(found, load=None)).level is Severity.SKIPPED


def test_fallback_to_numpy_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headlong.ops.native.ops", None)
    found = check_backend(NumpyOps("whatever"), "auto")
    assert found.level is Severity.WARNING
    assert "headlong.ops.native.ops" in found.seen
    assert "pip install" in found.remedy
    assert check_backend(NumpyOps("asked"), "numpy").level is Severity.OK
    other = NumpyOps("MLX on Apple's GPU")
    other.name = "mlx"
    assert check_backend(other, "auto").level is Severity.OK
    assert check_backend(other, "mlx").seen == "MLX on Apple's GPU"
    monkeypatch.undo()
    assert check_backend(make_ops("native"), "auto").level is Severity.OK


def test_forced_instruction_set_is_noticed() -> None:
    found = check_instruction_set(NativeOps(threads=1, instruction_set="portable"))
    best = NativeOps(threads=1, instruction_set="auto").engine.instruction_set
    if best == "portable":
        pytest.skip("this processor has nothing better")
    assert found.level is Severity.WARNING
    assert found.numbers == {"instruction_set": "portable", "best": best}
    assert check_instruction_set(NativeOps(threads=1)).level is Severity.OK
    assert check_instruction_set(NumpyOps()).level is Severity.SKIPPED


@pytest.mark.parametrize(
    ("threads", "quota", "level", "words"),
    [
        (4, None, Severity.OK, "4 on 4"),
        (6, None, Severity.WARNING, "6 threads share 4 cores"),
        (2, None, Severity.WARNING, "2 threads on 4 cores"),
        (4, 1.5, Severity.WARNING, "1.5 cores' worth"),
    ],
)
def test_threads_are_held_against_cores(
    threads: int, quota: float | None, level: Severity, words: str
) -> None:
    found = check_threads(NativeOps(threads=threads), replace(QUIET, cpu_quota=quota))
    assert found.level is level
    assert words in found.seen


def test_a_thread_that_works_alone_is_a_warning() -> None:
    ops = NativeOps(threads=4)
    ops.engine.set_alone(True)
    found = check_threads(ops, QUIET)
    assert found.level is Severity.WARNING
    assert "Of 4 threads one works alone" in found.seen
    assert found.numbers["in_use"] == 1


def test_more_cores_than_can_help_need_no_more_threads() -> None:
    assert check_threads(NativeOps(threads=8), replace(QUIET, num_cores=64)).level is Severity.OK


def test_busy_machine_is_a_warning() -> None:
    assert check_load(QUIET).level is Severity.OK
    found = check_load(replace(QUIET, load=3.9))
    assert found.level is Severity.WARNING
    assert "3.9" in found.seen


def test_huge_pages_switched_off_are_a_warning() -> None:
    found = check_huge_pages(make_ops("native"), replace(QUIET, huge_pages="never"))
    assert found.level is Severity.WARNING
    assert "/sys/kernel/mm/transparent_hugepage/enabled" in found.remedy
    assert check_huge_pages(make_ops("native"), QUIET).level is Severity.OK
    assert check_huge_pages(NumpyOps(), QUIET).level is Severity.SKIPPED


def test_too_little_memory_is_a_warning() -> None:
    assert check_memory(QUIET, 7 * 10**9, 8192).level is Severity.OK
    found = check_memory(QUIET, 9 * 10**9, 8192)
    assert found.level is Severity.WARNING
    assert "8.0 GB are free" in found.seen
    assert "9.00 GB" in found.seen
