"""MTP layers between the formats: byte for byte what llama.cpp's converter writes, and back."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from float8_files import to_float8, write_safetensors
from golden_gguf import write_golden_gguf
from golden_models import CONVERTED, GOLDEN, WITH_MTP, load_with_head
from headlong.errors import HeadlongError
from headlong.export.mtp_files import MtpRequest, MtpWritten, convert_mtp_layers
from headlong.heads.head_files import load_head
from headlong.heads.head_weights import FloatType, store_array
from headlong.heads.layer_head import LayerHead
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.gguf_file import read_gguf
from headlong.weights.gguf_writer import GgufEntry, write_gguf
from headlong.weights.progress import LogProgress
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensors import StoredTensor
from model_files import FROM_GOLDEN

WRITTEN_AS: dict[str, FloatType] = {
    "tiny-deepseek_v3": "bfloat16",
    "tiny-glm4_moe_lite": "bfloat16",
}
"""The goldens whose converted file is not in the type of their folder."""


def convert(
    model: Path, out: Path, into: Path | None = None, float_type: FloatType | None = None
) -> MtpWritten:
    """Convert without a bar."""
    return convert_mtp_layers(MtpRequest(model, out, into, float_type), LogProgress())


def reference(name: str, folder: Path) -> Path:
    """Return the whole model in GGUF, not written by us."""
    if name in FROM_GOLDEN:
        return write_golden_gguf(folder / "reference.gguf", name)
    return GOLDEN / name / "converted.gguf"


def same_data(ours: StoredTensor, theirs: StoredTensor) -> bool:
    """Tell whether two tensors are stored alike, byte for byte."""
    is_alike = (ours.shape, ours.type) == (theirs.shape, theirs.type)
    return is_alike and ours.data.tobytes() == theirs.data.tobytes()


def drafts_of(head: LayerHead) -> bytes:
    """Return logits of two depths over random states."""
    rng, cache = np.random.default_rng(1), head.make_cache()
    rows = rng.standard_normal((5, len(head.norm.weight))).astype(np.float32)
    state = head.step(head.enter(rows), [rng.integers(0, 60, 5)], [cache])
    second = head.step(state[-1:], [np.array([7])], [cache])
    return head.logits(state).tobytes() + head.logits(second).tobytes()


@pytest.mark.parametrize("name", WITH_MTP)
def test_layers_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    convert(GOLDEN / name, tmp_path / "mtp.gguf", float_type=WRITTEN_AS.get(name))
    ours, theirs = read_gguf(tmp_path / "mtp.gguf"), read_gguf(reference(name, tmp_path))
    first = open_checkpoint(GOLDEN / name).num_layers
    assert first is not None
    behind = {n for n in theirs.tensors if n.startswith("blk.") and int(n.split(".")[1]) >= first}
    assert ours.tensors.keys() == behind
    assert all(same_data(ours.tensors[n], theirs.tensors[n]) for n in behind)


@pytest.mark.parametrize("name", WITH_MTP)
def test_there_and_back_is_the_same_head(name: str, tmp_path: Path) -> None:
    """Norms that are stored as w - 1 may lose a last bit; what is computed with does not."""
    convert(GOLDEN / name, tmp_path / "mtp.gguf")
    convert(tmp_path / "mtp.gguf", tmp_path / "back")
    begun, ended = (open_checkpoint(path).tensors for path in (GOLDEN / name, tmp_path / "back"))
    assert len(ended) > 10
    assert all(same_data(ended[name], begun[name]) for name in ended)
    own_names = read_safetensors(GOLDEN / name / "model.safetensors").keys()
    assert read_safetensors(tmp_path / "back" / "model.safetensors").keys() <= own_names
    head = load_with_head(name, "numpy")
    assert isinstance(head, LayerHead)
    expected = drafts_of(head)
    for path in (tmp_path / "mtp.gguf", tmp_path / "back"):
        again = load_head(path, head.backbone)
        assert isinstance(again, LayerHead)
        assert drafts_of(again) == expected


def entry_of(tensor: StoredTensor) -> GgufEntry:
    """Return a tensor as it is, to be written."""
    assert isinstance(tensor.type, GGMLQuantizationType)
    return GgufEntry(tensor.name, tensor.shape, tensor.type, partial(replace, tensor))


def write_stripped(path: Path, whole: Path) -> Path:
    """Write a GGUF model without its MTP layers, as many converters do."""
    file = read_gguf(whole)
    architecture = file.metadata["general.architecture"]
    count_key, blocks_key = f"{architecture}.nextn_predict_layers", f"{architecture}.block_count"
    num_layers = file.metadata[blocks_key] - file.metadata[count_key]
    metadata = {
        key: value[:num_layers]
        if isinstance(value, list) and len(value) == file.metadata[blocks_key]
        else value
        for key, value in file.metadata.items()
        if key not in (count_key, "general.architecture")
    }
    entries = [
        entry_of(one)
        for name, one in file.tensors.items()
        if not (name.startswith("blk.") and int(name.split(".")[1]) >= num_layers)
    ]
    write_gguf(path, architecture, metadata | {blocks_key: num_layers}, entries)
    return path


@pytest.mark.parametrize("name", [*(n for n in CONVERTED if n in WITH_MTP), *FROM_GOLDEN])
def test_file_with_the_layers_is_the_one_that_never_lost_them(name: str, tmp_path: Path) -> None:
    whole = reference(name, tmp_path)
    stripped = write_stripped(tmp_path / "stripped.gguf", whole)
    convert(GOLDEN / name, tmp_path / "with.gguf", stripped, WRITTEN_AS.get(name))
    ours, theirs = read_gguf(tmp_path / "with.gguf"), read_gguf(whole)
    assert ours.metadata == theirs.metadata
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(same_data(one, theirs.tensors[name]) for name, one in ours.tensors.items())


def test_gguf_files_give_their_layers_to_each_other(tmp_path: Path) -> None:
    whole = GOLDEN / "tiny-qwen3_5" / "converted.gguf"
    stripped = write_stripped(tmp_path / "stripped.gguf", whole)
    convert(whole, tmp_path / "mtp.gguf")
    convert(tmp_path / "mtp.gguf", tmp_path / "with.gguf", stripped)
    ours, theirs = read_gguf(tmp_path / "with.gguf").tensors, read_gguf(whole).tensors
    assert ours.keys() == theirs.keys()
    assert all(same_data(one, theirs[name]) for name, one in ours.items())


def test_quantised_layers_become_floats_in_folders(tmp_path: Path) -> None:
    whole = read_gguf(GOLDEN / "tiny-qwen3_5" / "converted.gguf")
    entries, q8 = [], GGMLQuantizationType.Q8_0
    for name, one in whole.tensors.items():
        values = one.to_float32()
        if name.startswith("blk.4.ffn"):
            one = StoredTensor(name, one.shape, q8, quantize(values, q8))
        entries.append(entry_of(one))
    metadata = {k: v for k, v in whole.metadata.items() if k != "general.architecture"}
    write_gguf(tmp_path / "q8.gguf", "qwen35", metadata, entries)
    rounded = convert(tmp_path / "q8.gguf", tmp_path / "half")
    exact = convert(tmp_path / "q8.gguf", tmp_path / "whole", float_type="float32")
    assert (rounded.num_rounded > 0, exact.num_rounded) == (True, 0)
    up = "mtp.layers.0.mlp.up_proj.weight"
    half, full = (
        read_safetensors(tmp_path / name / "model.safetensors")[up] for name in ("half", "whole")
    )
    assert half.type == GGMLQuantizationType.F16
    meant = read_gguf(tmp_path / "q8.gguf").tensors["blk.4.ffn_up.weight"].to_float32()
    assert np.array_equal(full.to_float32(), meant)
    # Where types stay, GGUF keeps what is quantised as it is.
    convert(tmp_path / "q8.gguf", tmp_path / "mtp.gguf")
    assert read_gguf(tmp_path / "mtp.gguf").tensors["blk.4.ffn_up.weight"].type == q8


def test_float8_layers_are_unpacked_with_their_scales(tmp_path: Path) -> None:
    source, folder, block = GOLDEN / "tiny-deepseek_v3", tmp_path / "model", (16, 8)
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(block)}
    (folder / "config.json").write_text(json.dumps(config))
    stored: dict[str, tuple[str, Any]] = {}
    for name, one in read_safetensors(source / "model.safetensors").items():
        values = one.to_float32()
        stored[name] = ("F32", values)
        if name.startswith("model.layers.4.") and name.endswith("_proj.weight"):
            data, scales = to_float8(values, block)
            stored |= {name: ("F8_E4M3", data), f"{name}_scale_inv": ("F32", scales)}
    write_safetensors(folder / "model.safetensors", stored)
    convert(folder, tmp_path / "mtp.gguf")
    ours, theirs = (open_checkpoint(p).tensors for p in (tmp_path / "mtp.gguf", folder))
    stack = ours["blk.4.ffn_down_exps.weight"]
    assert stack.type == GGMLQuantizationType.BF16
    third = theirs["blk.4.ffn_down_exps.2.weight"].to_float32()
    np.testing.assert_allclose(stack.to_float32()[2], third, rtol=2**-8)
    values_up = ours["blk.4.attn_v_b.weight"].to_float32().reshape(4, -1, 16)
    both = theirs["blk.4.attn_kv_b.weight"].to_float32().reshape(4, -1, 16)
    np.testing.assert_allclose(values_up, both[:, -values_up.shape[1] :], rtol=2**-8)


def refused(model: Path, out: Path, into: Path | None = None) -> str:
    """Return what a refusal says; nothing may be left behind."""
    with pytest.raises(HeadlongError) as refusal:
        convert(model, out, into)
    assert refusal.value.remedy
    assert not list(out.parent.glob(f"*{out.name}*"))
    return str(refusal.value)


def test_what_cannot_be_converted_is_said(tmp_path: Path) -> None:
    qwen, glm = GOLDEN / "tiny-qwen3_5", GOLDEN / "tiny-glm4_moe"
    out = tmp_path / "out.gguf"
    assert "whose MTP layers are not converted" in refused(GOLDEN / "tiny-qwen3", out)
    assert "holds no MTP layers" in refused(GOLDEN / "tiny-deepseek_v2", out)
    stripped = write_stripped(tmp_path / "stripped.gguf", qwen / "converted.gguf")
    assert "holds no MTP layers" in refused(stripped, out)
    assert "has MTP layers already" in refused(qwen, out, qwen / "converted.gguf")
    assert "of a model of glm4moe with 4" in refused(glm, out, stripped)
    assert "safetensors file of architecture qwen35" in refused(qwen, out, qwen)
    assert "put into GGUF files only" in refused(qwen, tmp_path / "folder", stripped)


def test_layers_of_another_width_are_refused(tmp_path: Path) -> None:
    stripped = write_stripped(
        tmp_path / "stripped.gguf", GOLDEN / "tiny-qwen3_5" / "converted.gguf"
    )
    file = read_gguf(stripped)
    metadata = {k: v for k, v in file.metadata.items() if k != "general.architecture"}
    embedding = store_array("token_embd.weight", np.zeros((64, 48)))
    write_gguf(tmp_path / "wide.gguf", "qwen35", metadata, [entry_of(embedding)])
    told = refused(GOLDEN / "tiny-qwen3_5", tmp_path / "out.gguf", tmp_path / "wide.gguf")
    assert "the embedding [64, 48], the MTP layers have the projection [32, 64]" in told


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "mtp.gguf"
    out.write_text("mine")
    with pytest.raises(HeadlongError, match="is there already"):
        convert(GOLDEN / "tiny-qwen3_5", out)
    assert out.read_text() == "mine"


def test_file_that_does_not_read_back_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(path: Path, *rest: Any) -> None:
        write_gguf(path, *rest)
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(bytes(data))

    monkeypatch.setattr("headlong.export.mtp_files.write_gguf", damage)
    assert "does not read back" in refused(GOLDEN / "tiny-qwen3_5", tmp_path / "mtp.gguf")
