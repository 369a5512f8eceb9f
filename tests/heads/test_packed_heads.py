"""Heads whose files hold 4 bits are the heads they were as floats on the same grid."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headlong.config import HEAD_QUANTS
from headlong.heads.head_files import load_head, read_head_weights, save_head
from headlong.heads.head_weights import HeadKind, store_array
from headlong.models.transformer import Backbone
from passages import first_logits
from random_heads import HEAD_KINDS, random_head


@pytest.mark.parametrize("kind", HEAD_KINDS)
@pytest.mark.parametrize("name", ["llama", "llama@native"])
def test_head_in_four_bits_is_the_one_packed_when_loaded(
    tiny_backbone: Callable[[str], Backbone], tmp_path: Path, kind: HeadKind, name: str
) -> None:
    """A file of 4 bits instead of floats must not change a single draft."""
    backbone = tiny_backbone(name)
    packed = random_head(kind, backbone.config).in_four_bits()
    floats = {name: store_array(name, one.to_float32()) for name, one in packed.tensors.items()}
    save_head(tmp_path / "floats", replace(packed, tensors=floats))
    save_head(tmp_path / "packed", packed)
    save_head(tmp_path / "again", read_head_weights(tmp_path / "packed"))
    for file in ("config.json", "model.safetensors"):
        one, other = (tmp_path / folder / file for folder in ("packed", "again"))
        assert one.read_bytes() == other.read_bytes()
    sizes = [(tmp_path / one / "model.safetensors").stat().st_size for one in ("packed", "floats")]
    assert sizes[0] < 0.5 * sizes[1]
    for quant in HEAD_QUANTS:
        # In floats as stored, numpy computes with the same numbers, the kernels with others.
        if quant != "stored" or name == "llama":
            loaded = [load_head(tmp_path / one, backbone, quant) for one in ("packed", "floats")]
            logits = [first_logits(head, backbone).tobytes() for head in loaded]
            assert logits[0] == logits[1], quant
