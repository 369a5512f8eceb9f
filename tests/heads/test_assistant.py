"""Gemma 4's assistant: it drafts what transformers drafts, in both formats, or is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import model_files
from assistant_files import write_assistant_folder, write_assistant_gguf
from golden_models import GOLDEN
from headlong.config import SamplingParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.sampling import Sampler
from headlong.errors import HeadError
from headlong.heads.assistant import Gemma4Assistant
from headlong.heads.head_files import load_head
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint

ASSISTANT = GOLDEN / "tiny-gemma4-assistant"

Maker = Callable[[str], Backbone]


def load_assistant(path: Path, backbone: Backbone) -> Gemma4Assistant:
    """Load an assistant for a backbone."""
    head = load_head(path, backbone)
    assert isinstance(head, Gemma4Assistant)
    return head


def load_pair(path: Path, backend: str = "numpy") -> Gemma4Assistant:
    """Load the golden backbone and an assistant on it."""
    checkpoint = open_checkpoint(GOLDEN / "tiny-gemma4-shared")
    return load_assistant(path, load_backbone(checkpoint, make_ops(backend)).backbone)


def draft(head: Gemma4Assistant, token_ids: list[int], end: int, depth: int = 3) -> list[int]:
    """Draft behind the first `end` tokens and the one after them, one token from the other."""
    cache = head.backbone.make_cache()
    hidden = head.backbone.forward([np.array(token_ids[:end])], [cache])
    state, drafted = head.features(hidden)[-1:], [token_ids[end]]
    for _ in range(depth):
        result = head.step(state, np.array(drafted[-1:]), [cache], [end - 1])
        drafted.append(int(head.logits(result)[0].argmax()))
        state = head.carry(result)
    return drafted[1:]


def with_window(folder: Path, window: int) -> Path:
    """Copy the golden assistant with another window in its config."""
    shutil.copytree(ASSISTANT, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["sliding_window"] = window
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("backend", ["numpy", "native", "torch"])
@pytest.mark.parametrize("file", ["", "converted.gguf"])
def test_drafts_inside_the_window_are_those_of_transformers(file: str, backend: str) -> None:
    golden = json.loads((ASSISTANT / "golden.json").read_text())
    head = load_pair(ASSISTANT / file, backend)
    assert head.backbone.config.sliding_window == 8
    inside = golden["drafts"][:7]
    for end, chain in enumerate(inside, 1):
        assert draft(head, golden["token_ids"], end) == [one["id"] for one in chain], end


def test_drafts_behind_the_window_would_be_too_with_what_transformers_reads(
    tmp_path: Path,
) -> None:
    """It reads W + 1 positions of a window of W, we and llama.cpp W - 1."""
    golden = json.loads((ASSISTANT / "golden.json").read_text())
    window = json.loads((ASSISTANT / "config.json").read_text())["text_config"]["sliding_window"]
    head = load_pair(with_window(tmp_path / "wider", window + 2))
    drafts = [draft(head, golden["token_ids"], end) for end in range(1, 24)]
    assert drafts == [[one["id"] for one in chain] for chain in golden["drafts"]]


def test_its_backbone_goes_on_as_in_transformers() -> None:
    golden = json.loads((ASSISTANT / "golden.json").read_text())
    backbone = load_pair(ASSISTANT).backbone
    sampler = Sampler(SamplingParams(), golden["token_ids"], backbone.config.vocab_size)
    plain = generate_plain(backbone, golden["token_ids"], sampler)
    assert [next(plain).token_id for _ in golden["greedy"]] == golden["greedy"]


def test_both_formats_are_one_head(tiny_backbone: Maker, tmp_path: Path) -> None:
    backbone, ids = tiny_backbone(model_files.GEMMA4), list(range(3, 23))
    folder = load_assistant(write_assistant_folder(tmp_path / "head"), backbone)
    gguf = load_assistant(write_assistant_gguf(tmp_path / "head.gguf"), backbone)
    assert draft(folder, ids, 15, 8) == draft(gguf, ids, 15, 8)
    assert folder.num_bytes + 4 * 16 == gguf.num_bytes  # what does not turn is a tensor there
    assert folder.report.unused_tensors == gguf.report.unused_tensors == ()


def test_native_kernels_compute_what_the_oracle_does(tiny_backbone: Maker, tmp_path: Path) -> None:
    folder, results = write_assistant_folder(tmp_path), []
    for name in (model_files.GEMMA4, f"{model_files.GEMMA4}@native"):
        backbone = tiny_backbone(name)
        head, cache = load_assistant(folder, backbone), backbone.make_cache()
        ids = np.arange(3, 23)
        hidden = backbone.forward([ids], [cache])
        results.append(head.step(hidden.normed[-1:], ids[-1:], [cache], [19]))
    np.testing.assert_allclose(results[1], results[0], rtol=2e-2, atol=2e-2)


def test_a_sequence_is_drafted_alike_alone_and_among_others(
    tiny_backbone: Maker, tmp_path: Path
) -> None:
    backbone = tiny_backbone(f"{model_files.GEMMA4}@native")
    head = load_assistant(write_assistant_folder(tmp_path), backbone)
    caches = [backbone.make_cache() for _ in range(3)]
    sequences = [np.arange(3, 3 + length) for length in (20, 5, 70)]
    hidden = backbone.forward(sequences, caches)
    ends = np.cumsum([20, 5, 70]) - 1
    newest, positions = np.array([7, 8, 9]), [19, 4, 69]
    together = head.step(hidden.normed[ends], newest, caches, positions)
    for i in range(3):
        row = hidden.normed[ends[i] : ends[i] + 1]
        alone = head.step(row, newest[i : i + 1], [caches[i]], [positions[i]])
        assert alone.tobytes() == together[i : i + 1].tobytes()


def test_centroids_are_left_out_and_that_is_said(tiny_backbone: Maker, tmp_path: Path) -> None:
    centroids: dict[str, NDArray[Any]] = {
        "masked_embedding.centroids.weight": np.zeros((4, 32), dtype=np.float32),
        "masked_embedding.token_ordering": np.arange(96),
    }
    folder = write_assistant_folder(tmp_path, **centroids)
    report = load_assistant(folder, tiny_backbone(model_files.GEMMA4)).report
    assert sorted(report.unused_tensors) == sorted(centroids)
    assert "centroids are not used" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("head_dim", 8, "2 heads of size 8 where the backbone has 2 key/value heads of size 16"),
        ("global_head_dim", 64, "heads of size 64 where"),
        ("num_attention_heads", 3, "3 heads of size 16 where the backbone has 2"),
        ("intermediate_size", 32, "do not fit"),
        ("sliding_window", None, "lacks the sizes"),
    ],
)
def test_an_assistant_that_does_not_fit_is_refused(
    tiny_backbone: Maker, tmp_path: Path, name: str, value: object, complaint: str
) -> None:
    folder = write_assistant_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][name] = value
    if name == "num_attention_heads":
        config["text_config"]["num_key_value_heads"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadError, match=complaint):
        load_head(folder, tiny_backbone(model_files.GEMMA4))


def test_an_assistant_of_another_model_is_refused(tiny_backbone: Maker, tmp_path: Path) -> None:
    folder = write_assistant_folder(tmp_path)
    with pytest.raises(HeadError, match="assistant for Gemma 4 models"):
        load_head(folder, tiny_backbone("llama"))
    tensors = load_file(folder / "model.safetensors")
    tensors["post_projection.weight"] = np.zeros((48, 32), dtype=np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(HeadError, match="hidden states of 48 numbers"):
        load_head(folder, tiny_backbone(model_files.GEMMA4))


def test_an_assistant_is_no_model_of_its_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_assistant_folder(tmp_path))
    with pytest.raises(Exception, match="gemma4-assistant"):
        load_backbone(checkpoint, make_ops("numpy"))
