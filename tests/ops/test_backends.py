"""Choosing a backend, and what is said when the fast one is not there."""

import os
import sys
from pathlib import Path

import pytest

from headlong.doctor.subject import ExamOptions, load_subject
from headlong.errors import BackendError
from headlong.llm import LLM
from headlong.ops import backends
from headlong.ops.backends import MODULES, BackendModule, fit_ops, make_ops
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Ops
from headlong.weights.checkpoint import open_checkpoint


def test_auto_takes_the_native_backend() -> None:
    ops = make_ops("auto", threads=1)
    assert ops.name == "native"
    assert "1 threads" in ops.note


def test_without_kernels_auto_says_why_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headlong.ops.native.ops", None)  # as if not built
    ops = make_ops("auto")
    assert ops.name == "numpy"
    assert "headlong.ops.native.ops" in ops.note
    assert "pip install" in ops.note
    with pytest.raises(BackendError, match="not built"):
        make_ops("native")


def test_on_apple_silicon_auto_asks_for_mlx_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(MODULES)
    assert names.index("mlx") < names.index("native")
    monkeypatch.setitem(MODULES, "mlx", MODULES["mlx"]._replace(is_default=True))
    monkeypatch.setitem(sys.modules, "headlong.ops.mlx.ops", None)  # as if not installed
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


class CardOps(NumpyOps):
    """Stands in for a backend with memory of its own."""

    name = "card"
    free = 0

    def free_bytes(self) -> int:
        """Return what the test says is free."""
        return self.free


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> type[CardOps]:
    """A backend with memory of its own, the one that "auto" asks for first."""
    found = BackendModule("headlong.ops.numpy.ops", "", is_default=True)
    monkeypatch.setattr(backends, "MODULES", {"card": found, **MODULES})
    monkeypatch.setitem(backends._makers, "card", lambda threads: CardOps())
    monkeypatch.setattr(CardOps, "free", 0)
    return CardOps


def weight_bytes(path: Path) -> int:
    ops = NumpyOps()
    return sum(ops.matrix_bytes(one) for one in open_checkpoint(path).tensors.values())


def test_auto_takes_the_card_where_weights_and_a_tenth_more_fit(
    card: type[CardOps], tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = open_checkpoint(tiny_model_path).tensors.values()
    monkeypatch.setattr(card, "free", int(1.11 * weight_bytes(tiny_model_path)))
    assert fit_ops(make_ops("auto"), "auto", weights).name == "card"
    monkeypatch.setattr(card, "free", int(1.05 * weight_bytes(tiny_model_path)))
    assert fit_ops(make_ops("auto"), "auto", weights).name == "native"


def test_a_model_too_large_for_the_card_runs_elsewhere_and_says_so(
    card: type[CardOps], tiny_model_path: Path
) -> None:
    llm = LLM.load(tiny_model_path, drafter="none")
    assert llm.backbone.ops.name == "native"
    assert any("card backend has 0.0 GB free" in note for note in llm.notes)
    subject = load_subject(ExamOptions(str(tiny_model_path), backend="auto", is_quick=True))
    assert subject.ops.name == "native"


def test_a_card_that_was_asked_for_by_name_refuses_a_model_too_large(
    card: type[CardOps], tiny_model_path: Path
) -> None:
    with pytest.raises(BackendError, match=r"card backend has 0\.0 GB free; the weights take"):
        LLM.load(tiny_model_path, backend="card")


def test_auto_goes_on_where_an_installed_backend_cannot_run(
    card: type[CardOps], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(threads: int | None) -> Ops:
        raise BackendError("There is no card.", "Put one in.")

    monkeypatch.setitem(backends._makers, "card", refuse)
    ops = make_ops("auto")
    assert ops.name == "native"
    assert ops.note.startswith("There is no card. Put one in.")


def test_loading_says_why_the_first_default_does_not_compute(
    card: type[CardOps], tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Mac where MLX is missing or too old."""
    monkeypatch.setattr(card, "free", 1 << 40)
    assert LLM.load(tiny_model_path, drafter="none").notes == ()
    found = MODULES["mlx"]._replace(is_default=True)
    monkeypatch.setattr(backends, "MODULES", {**MODULES, "mlx": found})
    monkeypatch.setitem(sys.modules, "headlong.ops.mlx.ops", None)  # as if not installed
    (note,) = LLM.load(tiny_model_path, drafter="none").notes
    assert "headlong[mlx]" in note
