"""Choosing a backend, and what is said when the fast one is not there."""

import os
import sys

import pytest

from headlong.errors import BackendError
from headlong.ops.backends import MODULES, make_ops


def test_auto_takes_the_native_backend() -> None:
    ops = make_ops("auto", threads=1)
    assert ops.name == "native"
    assert "1 threads" in ops.note


def test_without_kernels_auto_says_why_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headlong.ops.native_ops", None)  # as if not built
    ops = make_ops("auto")
    assert ops.name == "numpy"
    assert "headlong.ops.native_ops" in ops.note
    assert "pip install" in ops.note
    with pytest.raises(BackendError, match="not built"):
        make_ops("native")


def test_on_apple_silicon_auto_asks_for_mlx_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(iter(MODULES)) == "mlx"
    monkeypatch.setitem(MODULES, "mlx", MODULES["mlx"]._replace(is_default=True))
    monkeypatch.setitem(sys.modules, "headlong.ops.mlx_ops", None)  # as if not installed
    ops = make_ops("auto")
    assert ops.name == "native"
    assert "headlong[mlx]" in ops.note
    assert f"`--upgrade`. {make_ops('native').note}" in ops.note


def test_unknown_backends_are_refused_by_name() -> None:
    with pytest.raises(BackendError, match="abacus"):
        make_ops("abacus")


def test_the_environment_forces_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", "portable")
    assert make_ops("native").note.startswith("portable")
    monkeypatch.setenv("HEADLONG_ISA", "abacus")
    with pytest.raises(BackendError, match="abacus"):
        make_ops("native")


def test_the_environment_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_THREADS", "3")
    assert "3 threads" in make_ops("native").note


@pytest.mark.parametrize("named", ["two", "0", "-1", "1.5", "²"])
def test_an_impossible_number_of_threads_is_refused(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADLONG_THREADS", named)
    with pytest.raises(BackendError, match="HEADLONG_THREADS is"):
        make_ops("native")


def test_it_starts_where_affinity_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no such call; the backend must start there, too."""
    monkeypatch.delenv("HEADLONG_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert f"{min(os.cpu_count() or 1, 8)} threads" in make_ops("native").note
