"""`bench/mlx_figures.py`: what it counts where graphs are compiled, and mlx-lm that cannot read."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from export_parts import write_pair
from headlong.llm import LLM

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import graphs as mlx_graphs  # noqa: E402  # needs MLX

SCRIPT = Path(__file__).parents[2] / "bench" / "mlx_figures.py"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("mlx_figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mlx_figures", module)
    spec.loader.exec_module(module)
    return module


def test_reading_a_new_graph_is_no_wait_of_a_round(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Mac, where passes are compiled after some rounds; here a graph runs as it stands."""
    pair = write_pair(tmp_path)
    llm = LLM.load(pair.model, head=pair.head, drafter="head", backend="mlx")
    llm.backbone.ops.graphs.is_on = True  # type: ignore[attr-defined]
    monkeypatch.setattr(mlx_graphs, "COMPILE_AFTER", 4)
    mx.disable_compile()
    try:
        found = figures.rounds(llm, Namespace(tokens=24, k=3))
    finally:
        mx.enable_compile()
    assert found["graphs_compiled"] > 0
    assert found["waits_per_round"] == 1


def test_a_model_that_mlx_lm_cannot_load_is_measured_without_it(
    figures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = tmp_path / "site" / "mlx_lm"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def load(path):\n    raise ValueError('Model type gpt9 not supported.')\n"
    )
    (package / "models" / "__init__.py").touch()
    (package / "models" / "cache.py").write_text("make_prompt_cache = trim_prompt_cache = None\n")
    monkeypatch.syspath_prepend(package.parent)
    for name in [one for one in sys.modules if one.partition(".")[0] == "mlx_lm"]:
        monkeypatch.delitem(sys.modules, name)
    assert figures._theirs(tmp_path, 32) is None
    assert "gpt9 not supported" in capsys.readouterr().err
