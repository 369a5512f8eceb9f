"""Each fault of a head's files is planted once, and must be found by its own check."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import model_files
from faulty_heads import Arrays, copy_shipped, edit_json
from headlong.doctor.finding import Severity
from headlong.doctor.head_checks import (
    check_numbers,
    check_presence,
    check_stale,
    check_vocabulary,
)
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from headlong.heads.head_files import save_head
from native_heads import DEEPSEEK, GGUF, head_arrays, spell, write_folder_with, write_gguf_with
from random_heads import random_eagle3
from subjects import parts, with_head
from tiny_text import byte_level_metadata

CHECKS = (check_presence, check_numbers, check_vocabulary, check_stale)
LM_HEAD = "lm_head.weight"


@pytest.mark.parametrize("check", CHECKS)
def test_shipped_head_of_the_default_model_is_sound(
    check: Callable[[Subject], object], default_subject: Subject
) -> None:
    assert getattr(check(default_subject), "level") is Severity.OK  # noqa: B009


def test_model_without_any_head_is_told_where_to_get_one(tiny_subject: Subject) -> None:
    found = check_presence(tiny_subject)
    assert found.level is Severity.WARNING
    assert "none is shipped" in found.seen
    assert "headlong train" in found.remedy


def test_stripped_gguf_is_told_from_one_that_never_had_a_head(tmp_path: Path) -> None:
    """Most converters keep the metadata and drop the tensors; the model then only seems whole."""
    path = write_gguf_with(tmp_path / "stripped.gguf", "llama", {})
    found = check_presence(load_subject(ExamOptions(str(path), backend="numpy")))
    assert found.level is Severity.FAULT
    assert "1 MTP layer" in found.seen
    assert "stripped" in found.seen
    assert found.numbers == {"announced_layers": 1}


def test_stripped_folder_is_found_too(tmp_path: Path) -> None:
    folder = model_files.write_hf_folder(tmp_path / "model", "llama")
    edit_json(folder / "config.json", num_nextn_predict_layers=1)
    assert (
        check_presence(load_subject(ExamOptions(str(folder), backend="numpy"))).level
        is Severity.FAULT
    )


def test_half_stripped_head_inside_a_model_is_a_fault(tmp_path: Path) -> None:
    folder = model_files.write_hf_folder(tmp_path / "plain", "llama")
    config = load_subject(ExamOptions(str(folder), backend="numpy")).backbone
    assert config is not None
    arrays = spell(head_arrays(config.config), DEEPSEEK, model_files.NUM_LAYERS["llama"])
    del arrays[next(name for name in arrays if "q_proj" in name)]
    path = write_folder_with(tmp_path / "half", "llama", arrays)
    found = check_presence(load_subject(ExamOptions(str(path), backend="numpy")))
    assert found.level is Severity.FAULT
    assert "attn_q.weight' is missing" in found.seen


def test_whole_head_inside_a_model_is_found_sound(tmp_path: Path, tiny_subject: Subject) -> None:
    backbone, _ = parts(tiny_subject)
    arrays = spell(head_arrays(backbone.config), GGUF, model_files.NUM_LAYERS["llama"])
    path = write_gguf_with(tmp_path / "native.gguf", "llama", arrays)
    subject = load_subject(ExamOptions(str(path), backend="numpy"))
    found = check_presence(subject)
    assert found.level is Severity.OK
    assert found.numbers["origin"] == "inside the model"
    assert check_numbers(subject).level is Severity.OK


def test_head_that_is_not_there_is_a_fault(default_subject: Subject, tmp_path: Path) -> None:
    found = check_presence(with_head(default_subject, tmp_path / "nowhere"))
    assert found.level is Severity.FAULT
    assert "nowhere" in found.seen


def test_cut_tensor_is_a_fault(default_subject: Subject, tmp_path: Path) -> None:
    def cut(arrays: Arrays) -> None:
        arrays[LM_HEAD] = arrays[LM_HEAD][:-5]

    found = check_presence(with_head(default_subject, copy_shipped(tmp_path / "head", cut)))
    assert found.level is Severity.FAULT
    assert LM_HEAD in found.seen
    assert "[12283, 576], should be [12288, 576]" in found.seen


def test_head_of_another_model_is_a_fault(
    default_subject: Subject, tiny_subject: Subject, tmp_path: Path
) -> None:
    save_head(tmp_path / "head", random_eagle3(parts(tiny_subject)[0].config))
    found = check_presence(with_head(default_subject, tmp_path / "head"))
    assert found.level is Severity.FAULT


def test_nan_is_counted_and_named(default_subject: Subject, tmp_path: Path) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays["fc.weight"] = arrays["fc.weight"].copy()
        arrays["fc.weight"][3, 5:8] = np.nan

    found = check_numbers(with_head(default_subject, copy_shipped(tmp_path / "head", spoil)))
    assert found.level is Severity.FAULT
    assert "fc.weight (3 values)" in found.seen


def test_empty_tensor_is_found(default_subject: Subject, tmp_path: Path) -> None:
    """All zeros load without complaint, and draft the same token for ever."""

    def empty(arrays: Arrays) -> None:
        arrays[LM_HEAD] = np.zeros_like(arrays[LM_HEAD])

    subject = with_head(default_subject, copy_shipped(tmp_path / "head", empty))
    assert check_presence(subject).level is Severity.OK
    found = check_numbers(subject)
    assert found.level is Severity.FAULT
    assert found.numbers["zero"] == [LM_HEAD]


def test_draft_tokens_beyond_the_backbone_are_a_fault(
    default_subject: Subject, tmp_path: Path
) -> None:
    def push_out(arrays: Arrays) -> None:
        del arrays["t2d"]
        arrays["d2t"] = arrays["d2t"].copy()
        arrays["d2t"][-2:] = 60_000

    subject = with_head(default_subject, copy_shipped(tmp_path / "head", push_out))
    found = check_vocabulary(subject)
    assert found.level is Severity.FAULT
    assert found.numbers["beyond"] == 2
    assert check_presence(subject).level is Severity.FAULT


def test_draft_token_mapped_twice_is_a_fault(default_subject: Subject, tmp_path: Path) -> None:
    def double(arrays: Arrays) -> None:
        del arrays["t2d"]
        arrays["d2t"] = arrays["d2t"].copy()
        arrays["d2t"][1] = arrays["d2t"][0] - 1

    subject = with_head(default_subject, copy_shipped(tmp_path / "head", double))
    found = check_vocabulary(subject)
    assert found.level is Severity.FAULT
    assert found.numbers["twice"] == 1


def test_padding_among_draft_tokens_is_a_warning(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, "llama", 7)
        patch.setattr(model_files, "VOCAB_SIZE", len(metadata["tokenizer.ggml.tokens"]) + 6)
        path = model_files.write_gguf(tmp_path / "p.gguf", "llama", extra_metadata=metadata)
    backbone, tokenizer = parts(load_subject(ExamOptions(str(path), backend="numpy")))
    weights = random_eagle3(backbone.config, draft_vocab_size=backbone.config.vocab_size)
    save_head(tmp_path / "head", weights)
    found = check_vocabulary(
        load_subject(ExamOptions(str(path), tmp_path / "head", backend="numpy"))
    )
    assert found.level is Severity.WARNING
    assert found.numbers["unspoken"] == 6
    assert backbone.config.vocab_size == tokenizer.vocab_size + 6


def test_changed_fingerprint_means_a_stale_head(default_subject: Subject, tmp_path: Path) -> None:
    folder = copy_shipped(tmp_path / "head")
    edit_json(folder / "run.json", backbone_fingerprint="0" * 64)
    found = check_stale(with_head(default_subject, folder))
    assert found.level is Severity.WARNING
    assert "0000000000…" in found.seen
    assert "--from-head" in found.remedy


def test_damaged_record_is_said(default_subject: Subject, tmp_path: Path) -> None:
    folder = copy_shipped(tmp_path / "head")
    (folder / "run.json").write_text("{")
    found = check_stale(with_head(default_subject, folder))
    assert found.level is Severity.WARNING
    assert "run.json" in found.seen


def test_fine_tuned_relative_of_a_known_model_is_recognised(
    default_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fine-tuned default model gets no shipped head, and must be told why."""
    monkeypatch.setattr(default_subject, "origin", None)
    found = check_presence(default_subject)
    assert found.level is Severity.WARNING
    assert "same sizes (smollm2-135m-instruct)" in found.seen
    assert "--from-head" in found.remedy
