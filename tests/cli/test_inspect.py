import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemma4_files
import mixture_files
import model_files
from golden_models import GOLDEN
from headlong.cache.sequence_state import MAX_SNAPSHOTS
from headlong.cli.main import main
from headlong.cli.model_description import describe_model
from headlong.errors import TextError
from headlong.heads.head_files import save_head
from headlong.llm import LLM
from headlong.models.model_config import read_config
from headlong.ops.backends import make_ops
from headlong.text.tokenizer import Tokenizer
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.tensors import StoredTensor
from headlong.weights.weight_reader import WeightReader
from latent_files import RANK, ROTARY_DIM
from native_heads import DEEPSEEK, QWEN, head_arrays, spell, write_folder_with
from random_heads import random_eagle3
from talking_model import write_talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a tiny model."""
    return write_talking_model(tmp_path_factory.mktemp("inspect") / "tiny.gguf")


def inspect(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    """Return what `headlong inspect --json` tells."""
    assert main(["inspect", "--json", *argv]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_default_model_is_described_when_none_is_named(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real thing, in full; its numbers are known from its publisher and by counting."""
    assert main(["inspect", "--backend", "numpy"]) == 0
    shown = capsys.readouterr().out
    assert default_model_path.name in shown
    for fact in (
        "llama · 30 layers",
        "134.52 M in the backbone",
        "hidden 576 · MLP 1,536",
        "9 heads share 3 key/value heads of size 64",
        "8,192 tokens",
        "49,152 tokens · BPE, byte-level",
        "98.4 MB · gguf",
        "537.9 MB for the weights",
        "46.1 MB for 1,000 tokens of KV cache",
        "shipped with Headlong: eagle3, fits",
        "nothing; every tensor is read",
    ):
        assert fact in " ".join(shown.split()), fact
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("Q4_1")]
    assert rows == [["Q4_1", "210", "106.17", "M", "66.4", "MB", "5.00", "f32"]]


def test_weights_are_not_unpacked(
    default_model_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked: list[int] = []
    to_float32 = StoredTensor.to_float32

    def count(tensor: StoredTensor) -> Any:
        unpacked.append(tensor.num_bytes)
        return to_float32(tensor)

    monkeypatch.setattr(StoredTensor, "to_float32", count)
    told = inspect(capsys, str(default_model_path), "--backend", "numpy")
    assert told["can_run"]
    # A head is small, and its numbers are looked through like in loading; its scales count twice.
    (head,) = told["heads"]
    assert sum(unpacked) < 1.2 * head["stored_bytes"] + 1_000_000


def test_memory_is_what_loading_takes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = inspect(capsys, str(model), "--backend", "numpy")
    backbone = LLM.load(model, backend="numpy").backbone
    blocks = [linear.weight.values.nbytes for layer in backbone.layers for linear in layer.linears]
    frame = backbone.embedding.values.nbytes + backbone.lm_head.weight.values.nbytes
    assert told["weights_bytes"] == sum(blocks) + frame
    cache = backbone.make_cache()
    cache.append(512)
    assert told["kv_bytes_per_token"] * 512 == cache.num_bytes


def test_hybrid_grows_by_its_attending_layers_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_files.write_hf_folder(tmp_path / "hybrid", model_files.HYBRID)
    told = inspect(capsys, str(folder))
    layer = inspect(capsys, str(folder), "--backend", "numpy")["kv_bytes_per_token"]
    assert told["can_run"]
    assert told["state_bytes_per_sequence"] > 0
    assert told["num_active_parameters"] == told["num_parameters"]
    assert layer == 2 * model_files.NUM_KV_HEADS * model_files.HEAD_DIM * 4


def test_experts_are_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of eight experts a row goes through two; two of the three layers have them."""
    folder = model_files.write_hf_folder(tmp_path / "mixture", model_files.MIXTURE)
    told = inspect(capsys, str(folder))
    one = 3 * mixture_files.EXPERT_SIZE * model_files.HIDDEN_SIZE
    assert told["num_parameters"] - told["num_active_parameters"] == 2 * 6 * one
    assert told["state_bytes_per_sequence"] == 0
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "active for each row" in shown
    assert "2 of 8 for each row" in shown


def test_keys_that_layers_share_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_files.write_hf_folder(tmp_path / "gemma4", model_files.GEMMA4)
    told = inspect(capsys, str(folder), "--backend", "numpy")
    local = 2 * 2 * model_files.NUM_KV_HEADS * model_files.HEAD_DIM  # layers 0 and 1
    full = 2 * gemma4_files.NUM_GLOBAL_KV_HEADS * gemma4_files.GLOBAL_HEAD_DIM  # layer 2
    assert told["can_run"], told["problem"]
    assert told["kv_bytes_per_token"] == 4 * (local + full)
    assert told["left_over"] == []
    assert main(["inspect", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 key/value head of size 32 · the last 2 read those of earlier layers" in shown


def test_recurrent_states_are_told_by_the_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    """Three Mamba-2 layers of 8 heads with states of 12 × 8, over windows of 3 × 112 inputs."""
    folder = str(GOLDEN / model_files.MAMBA)
    told = inspect(capsys, folder, "--backend", "numpy")
    per_layer = 4 * (8 * 12 * 8 + 3 * 112)
    assert told["state_bytes_per_sequence"] == 3 * per_layer * (1 + MAX_SNAPSHOTS)
    assert main(["inspect", folder]) == 0
    assert "for the recurrent states of a sequence" in " ".join(capsys.readouterr().out.split())


def test_table_that_stays_in_its_file_takes_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gemma 4's per-layer embeddings are larger than all else, and single rows are read."""
    told = inspect(capsys, str(model_files.write_hf_folder(tmp_path / "m", model_files.GEMMA4)))
    tensors = model_files.tiny_tensors(model_files.GEMMA4)
    matrices = {one.gguf_name: one.values.size for one in tensors if one.values.ndim == 2}
    table = matrices.pop("per_layer_token_embd.weight")
    assert told["weights_bytes"] == 4 * sum(matrices.values())
    assert table > 10_000


def test_latent_attention_keeps_one_vector_for_all_heads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_files.write_hf_folder(tmp_path / "latent", model_files.LATENT)
    told = inspect(capsys, str(folder), "--backend", "numpy")
    num_layers = model_files.NUM_LAYERS[model_files.LATENT]
    assert told["kv_bytes_per_token"] == num_layers * (2 * RANK + ROTARY_DIM) * 4
    main(["inspect", str(folder)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 heads of size 48 share a latent vector of 64 and 16 rotary numbers" in shown


def test_weighing_a_model_keeps_no_copy_of_its_weights(tmp_path: Path) -> None:
    """Rows of latent attention are moved, and a moved tensor is a copy."""
    folder = model_files.write_hf_folder(tmp_path / "latent", model_files.LATENT)
    ops, made = make_ops("native"), []
    real = WeightReader.matrices

    def matrices(*args: Any) -> list[Any]:
        made.extend(real(*args))
        return made[-len(args[3]) :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightReader, "matrices", matrices)
        assert describe_model(folder, ops).weights_bytes
    assert len(made) == 3 * model_files.NUM_LAYERS[model_files.LATENT]
    for tensor in made:
        assert tensor.num_bytes == np.prod(tensor.shape) * 4
        assert tensor.data.strides == (0, 0), "all its bytes are the same one"


def test_text_side_is_described(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect(capsys, str(model))["text"]
    assert text["has_chat_template"] is True
    assert "<|im_end|>" in text["eos_tokens"]
    base = write_talking_model(tmp_path / "base.gguf", chat_template=None)
    assert inspect(capsys, str(base))["text"]["has_chat_template"] is False


def test_fitting_head_is_described(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = read_config(open_checkpoint(model))
    save_head(tmp_path / "head", random_eagle3(config, draft_vocab_size=64))
    told = inspect(capsys, str(model), "--head", str(tmp_path / "head"))
    (head,) = told["heads"]
    assert head["problem"] == ""
    assert head["kind"] == "eagle3"
    assert head["draft_vocab_size"] == 64
    assert head["memory_bytes"] > 0
    assert main(["inspect", str(model), "--head", str(tmp_path / "head")]) == 0
    assert "eagle3, fits" in capsys.readouterr().out


def test_misfit_head_gives_the_reason_and_fails(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = read_config(open_checkpoint(model_files.write_hf_folder(tmp_path / "other", "llama")))
    save_head(tmp_path / "head", random_eagle3(other))
    told = inspect(capsys, str(model), "--head", str(tmp_path / "head"), code=1)
    assert str(model_files.VOCAB_SIZE) in told["heads"][0]["problem"]
    missing = inspect(capsys, str(model), "--head", str(tmp_path / "nothing"), code=1)
    assert "There is no head at" in missing["heads"][0]["problem"]
    assert main(["inspect", str(model), "--head", str(tmp_path / "head")]) == 1
    assert "cannot draft here" in capsys.readouterr().out


@pytest.mark.parametrize("spelling", [QWEN, DEEPSEEK], ids=["mtp", "layer"])
def test_native_head_is_found_and_listed(
    spelling: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = read_config(open_checkpoint(model_files.write_hf_folder(tmp_path / "bare", "llama")))
    extra = spell(head_arrays(config), spelling, block=config.num_layers)
    folder = write_folder_with(tmp_path / "model", "llama", extra)
    told = inspect(capsys, str(folder))
    (head,) = told["heads"]
    assert head["source"] == "inside the model"
    assert head["kind"] == "nextn"
    assert head["problem"] == ""
    assert len(told["head_tensors"]) == len(extra)
    assert told["left_over"] == []
    bare = inspect(capsys, str(tmp_path / "bare"))
    assert told["num_parameters"] == bare["num_parameters"]


def test_heads_are_weighed_as_they_are_loaded(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = inspect(capsys, str(default_model_path), "--backend", "native")
    (head,) = told["heads"]
    # Stored in 4 bits, with a scale and a minimum for each group, and kept so.
    assert head["memory_bytes"] == pytest.approx(head["stored_bytes"], rel=0.02)
    assert {share["type"]: share["packed_as"] for share in told["types"]} == {
        "Q4_1": ["q4"],
        "Q8_0": ["q8"],
        "F32": ["f32"],
    }


def test_text_that_cannot_be_shown_is_a_problem_of_the_text_only(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tokenizer: Tokenizer, token_id: int) -> str:
        raise TextError(f"There is no token {token_id}.", "")

    monkeypatch.setattr(Tokenizer, "token_text", refuse)
    told = inspect(capsys, str(model))
    assert "There is no token" in told["text"]["problem"]
    assert told["can_run"] is True


def test_names_in_a_file_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {"vision\x1b[2J.weight": np.ones(4, dtype=np.float32)}
    folder = write_folder_with(tmp_path / "model", "llama", extra)
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "vision" in shown
    assert "\x1b" not in shown


def test_left_over_tensors_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {f"vision.{i}.weight": np.ones(4, dtype=np.float32) for i in range(12)}
    folder = write_folder_with(tmp_path / "model", "llama", extra)
    assert set(inspect(capsys, str(folder))["left_over"]) == set(extra)
    assert main(["inspect", str(folder)]) == 0
    assert "12 tensors unread" in (shown := " ".join(capsys.readouterr().out.split()))
    assert "and 4 more (--all lists them)" in shown
    assert main(["inspect", str(folder), "--all"]) == 0
    assert "vision.9.weight" in capsys.readouterr().out


def test_unknown_architecture_is_described_as_far_as_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_files.write_hf_folder(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba9"}))
    told = inspect(capsys, str(folder))
    assert told["architecture"] == "mamba9"
    assert told["can_run"] is False
    assert "mamba9" in told["problem"]
    assert told["types"][0]["type"] == "F32"
    expected = sum(tensor.values.size for tensor in model_files.tiny_tensors("llama"))
    assert told["num_parameters"] == expected
    assert main(["inspect", str(folder)]) == 0
    assert "cannot run" in capsys.readouterr().out


def test_missing_tensors_are_told_not_fatal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = model_files.tiny_tensors("llama")
    stripped = [tensor for tensor in tensors if "layers.1.mlp.up_proj" not in tensor.hf_name]
    monkeypatch.setattr(model_files, "tiny_tensors", lambda *_: stripped)
    folder = model_files.write_hf_folder(tmp_path / "model", "llama")
    told = inspect(capsys, str(folder))
    assert "'blk.1.ffn_up.weight' is missing" in told["problem"]
    assert told["config"]["num_layers"] == 3
    assert told["weights_bytes"] is None


def test_sharded_folder_counts_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_files.write_hf_folder(tmp_path / "model", "qwen2", num_shards=3)
    told = inspect(capsys, str(folder))
    assert told["file_bytes"] == sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert told["format"] == "safetensors"
    assert told["text"]["problem"]  # the tiny folder has no tokenizer, which is said, not fatal


def test_unknown_backend_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--backend", "abacus"]) == 1
    assert "abacus" in capsys.readouterr().err
