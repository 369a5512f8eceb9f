"""Which head was measured: told apart by content, whatever folder it lies in."""

import json
from pathlib import Path

from faulty_heads import copy_shipped
from headlong.bench.head_name import name_head
from headlong.llm import LLM


def test_name_follows_the_content_not_the_place(default_model_path: Path, tmp_path: Path) -> None:
    """Results of an old and a new head under one name would else be put together."""
    llm = LLM.load(default_model_path)
    shipped = name_head(llm, None)
    assert shipped.startswith("smollm2-135m-instruct (")
    folder = copy_shipped(tmp_path / "smollm2-135m-instruct")
    assert name_head(llm, folder) == name_head(llm, folder / "model.safetensors") == shipped
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1.0}))
    assert name_head(llm, folder) != shipped


def test_model_without_a_head_has_none(tiny_llm: LLM) -> None:
    assert name_head(tiny_llm, None) == "none"
