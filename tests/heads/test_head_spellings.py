"""What is no head of a known kind is named; `test_head_files.py` reads the spellings."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headlong.errors import HeadError
from headlong.heads.head_files import read_head_weights, save_head
from headlong.models.transformer import Backbone
from random_heads import random_eagle3


def test_eagle1_head_is_named_and_refused(tmp_path: Path) -> None:
    zeros = np.zeros((2, 2), dtype=np.float32)
    tensors = {"fc.weight": zeros, "layers.0.self_attn.q_proj.weight": zeros}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(HeadError, match="EAGLE-1"):
        read_head_weights(tmp_path)


@pytest.mark.parametrize("kind", ["dflash", "peagle", "mtp"])
def test_other_drafters_of_speculators_are_named_and_refused(
    backbone: Backbone, tmp_path: Path, kind: str
) -> None:
    weights = random_eagle3(backbone.config)
    save_head(tmp_path, replace(weights, config={"speculators_model_type": kind, "vocab_size": 96}))
    with pytest.raises(HeadError, match=f"another kind, '{kind}'"):
        read_head_weights(tmp_path)


def test_unknown_tensors_are_shown(tmp_path: Path) -> None:
    save_file({"what.is.this": np.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(HeadError, match=r"no known head; its tensors are what\.is\.this"):
        read_head_weights(tmp_path)
