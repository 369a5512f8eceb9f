"""Triton's kernels without a card: interpreted against plain torch, and compiled for Hopper."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
from compiled_blocks import LARGE, SHARED_MEMORY, SMALL, EmptyModel, Sizes  # all need both
from triton_interpreter import interpreted


def test_kernels_equal_the_plain_blocks() -> None:
    interpreted("interpreted_blocks")


def check_compiled(model: EmptyModel, counts: tuple[int, ...]) -> None:
    """Compile passes over so many rows; every kernel must fit on the chip."""
    for count in counts:
        model.compile(count)
    for key, kernel in model.launcher.compiled.items():
        assert kernel.metadata.shared <= SHARED_MEMORY, key


def test_kernels_compile_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards what no interpreter sees: types, shapes and what Triton's compiler refuses."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    model = EmptyModel("bf16")
    check_compiled(model, (1,))
    assert model.launcher.names() == {
        "embed_kernel",
        "rows_kernel",
        "attend_apart_kernel",
        "norm_kernel",
    }
    many = EmptyModel("q4", has_norms=True)
    check_compiled(many, (128,))
    assert many.launcher.names() >= {
        "scale_kernel",
        "tiles_kernel",
        "turn_kernel",
        "attend_kernel",
    }
    EmptyModel("bf16", reads_beside=True).compile_qkv()
    model.compile_noise()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "q4", "q8"])
@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_every_size_of_pass_fits_on_the_chip(kind: str, sizes: Sizes) -> None:
    check_compiled(EmptyModel(kind, sizes), (1, 16, 32, 64, 512, 2048))
    check_compiled(EmptyModel(kind, sizes, reads_beside=True), (1, 64))
    check_compiled(EmptyModel(kind, sizes, has_norms=True), (1, 64))
