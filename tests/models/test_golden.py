"""Backbones against numbers made by an independent implementation (tests/golden/README.md).

The tolerance: the same implementation differs from itself by up to 5e-5 in a logit when its
threads, attention kernel or batching change (`noise` in the golden files); ours may differ ten
times as much.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from golden_gguf import write_golden_gguf
from golden_models import CONVERTED, GOLDEN, read_golden
from headlong.arrays import FloatArray
from headlong.config import SamplingParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.sampling import Sampler
from headlong.heads.head_files import find_native_head
from headlong.heads.nextn import NextnHead
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.sources import resolve_model
from model_files import FROM_GOLDEN

TOLERANCE = 5e-4

TINY = sorted(path.parent.name for path in GOLDEN.glob("tiny-*/config.v5.json"))


def load(path: Path) -> Backbone:
    """Load a backbone on the oracle backend."""
    return load_backbone(open_checkpoint(path), NumpyOps()).backbone


def all_logits(backbone: Backbone, token_ids: Sequence[int]) -> FloatArray:
    """Return the logits after every token of a prompt."""
    cache = backbone.make_cache()
    return backbone.logits(backbone.forward([np.array(token_ids)], [cache]).normed)


@pytest.mark.parametrize("config", ["config.json", "config.v5.json"])
@pytest.mark.parametrize("name", TINY)
def test_tiny_models_agree_with_transformers(name: str, config: str, tmp_path: Path) -> None:
    """Both spellings of config.json, before and after transformers 5, mean the same model."""
    shutil.copy(GOLDEN / name / "model.safetensors", tmp_path)
    shutil.copy(GOLDEN / name / config, tmp_path / "config.json")
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    logits = all_logits(load(tmp_path), golden["token_ids"])
    np.testing.assert_allclose(logits, np.array(golden["logits"]), atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CONVERTED if name in TINY])
def test_what_llama_cpps_converter_wrote_is_the_same_model(name: str) -> None:
    """It orders heads anew, stacks experts, and stores norms and decay rates in another way."""
    golden = read_golden(name)
    loaded = load_backbone(open_checkpoint(GOLDEN / name / "converted.gguf"), NumpyOps())
    logits = all_logits(loaded.backbone, golden["token_ids"])
    np.testing.assert_allclose(logits, np.array(golden["logits"]), atol=TOLERANCE, rtol=1e-5)
    assert loaded.report.left_over == loaded.report.head_tensors


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4"])
def test_text_part_of_a_multimodal_file_is_the_same_model(tmp_path: Path, name: str) -> None:
    """Published files put the text model behind a prefix, and in part an MTP layer beside it."""
    source = GOLDEN / f"tiny-{name}"
    tensors = load_file(source / "model.safetensors")
    names = {name: name.replace("model.", "model.language_model.", 1) for name in tensors}
    renamed = {names[name]: values for name, values in tensors.items()}
    extra = np.zeros((4, 4), dtype=np.float32)
    beside = {"model.visual.patch_embed.proj.weight": extra}
    save_file(renamed | beside, tmp_path / "model.safetensors")
    text = json.loads((source / "config.json").read_text())
    config = {"model_type": name, "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    golden = json.loads((source / "golden.json").read_text())
    loaded = load_backbone(open_checkpoint(tmp_path), NumpyOps())
    logits = all_logits(loaded.backbone, golden["token_ids"])
    np.testing.assert_allclose(logits, np.array(golden["logits"]), atol=TOLERANCE, rtol=1e-5)
    heads = set(loaded.report.head_tensors)
    assert set(loaded.report.left_over) - heads == set(beside)
    assert {tensor.split(".")[1] for tensor in heads} == ({"4"} if name == "qwen3_5" else set())


def check_rows(logits: FloatArray, golden: dict[str, Any], prompt: dict[str, Any]) -> None:
    """Compare every row's best tokens, probed tokens and log-sum-exp."""
    for row, expected in zip(logits.astype(np.float64), prompt["rows"], strict=True):
        np.testing.assert_allclose(row[expected["top_ids"]], expected["top_logits"], atol=TOLERANCE)
        probed = row[golden["probe_ids"]]
        np.testing.assert_allclose(probed, expected["probe_logits"], atol=TOLERANCE)
        log_sum_exp = row.max() + np.log(np.exp(row - row.max()).sum())
        assert log_sum_exp == pytest.approx(expected["log_sum_exp"], abs=TOLERANCE)


@pytest.fixture(scope="module")
def default_backbone(default_model_path: Path) -> Backbone:
    """The default model on the oracle backend."""
    return load(default_model_path)


@pytest.fixture(scope="module")
def default_golden() -> dict[str, Any]:
    """The default model's golden numbers."""
    golden: dict[str, Any] = json.loads((GOLDEN / "smollm2-135m-instruct.json").read_text())
    return golden


def test_default_model_logits_agree(
    default_backbone: Backbone, default_golden: dict[str, Any]
) -> None:
    for prompt in default_golden["prompts"]:
        check_rows(all_logits(default_backbone, prompt["token_ids"]), default_golden, prompt)


def test_default_model_hidden_states_agree(
    default_backbone: Backbone, default_golden: dict[str, Any]
) -> None:
    """Guards the taps an EAGLE-3 head reads: inputs of layers 2, 15 and 27, not outputs."""
    taps = tuple(default_golden["tap_layers"])
    for prompt in default_golden["prompts"]:
        cache = default_backbone.make_cache()
        hidden = default_backbone.forward([np.array(prompt["token_ids"])], [cache], taps)
        assert hidden.taps is not None
        found = dict(zip(taps, np.split(hidden.taps[-1], len(taps)), strict=True))
        states = {f"input_of_layer_{layer}": state for layer, state in found.items()}
        states |= {"raw": hidden.raw[-1], "normed": hidden.normed[-1]}
        for name, expected in prompt["last_hidden"].items():
            values = np.array(expected["values"])
            np.testing.assert_allclose(states[name][: len(values)], values, atol=5e-3, rtol=1e-4)
            assert np.linalg.norm(states[name]) == pytest.approx(expected["norm"], rel=1e-5)


def test_default_model_writes_the_same_text(
    default_backbone: Backbone, default_golden: dict[str, Any]
) -> None:
    for prompt in default_golden["prompts"]:
        sampler = Sampler(SamplingParams(), prompt["token_ids"], default_backbone.config.vocab_size)
        plain = generate_plain(default_backbone, prompt["token_ids"], sampler)
        expected = prompt["greedy"]["token_ids"]
        assert [next(plain).token_id for _ in expected] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b-instruct", "gemma-3-270m"])
def test_other_real_models_agree(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    backbone = load(resolve_model(name))
    for prompt in golden["prompts"]:
        check_rows(all_logits(backbone, prompt["token_ids"]), golden, prompt)


@pytest.mark.parametrize("name", FROM_GOLDEN)
def test_gguf_files_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """The same model as llama.cpp's converter writes it, its MTP layers included."""
    path = write_golden_gguf(tmp_path / "tiny.gguf", name)
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    folder, checkpoint = open_checkpoint(GOLDEN / name), open_checkpoint(path)
    backbone = load(path)
    logits = all_logits(backbone, golden["token_ids"])
    np.testing.assert_allclose(logits, np.array(golden["logits"]), atol=TOLERANCE, rtol=1e-5)
    heads = [find_native_head(one, backbone) for one in (folder, checkpoint)]
    assert isinstance(heads[1], NextnHead)
    first, second = (_carried(head) for head in heads if isinstance(head, NextnHead))
    np.testing.assert_allclose(first, second, atol=1e-5)


def _carried(head: NextnHead) -> FloatArray:
    ids = np.array([1, 17, 42, 42, 5, 63])
    hidden = head.backbone.forward([ids[:-1]], [head.backbone.make_cache()])
    states: FloatArray = head.step(head.features(hidden), [ids[1:]], [head.make_cache()])
    return states
