from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assistant_files import assistant_maker
from headlong.config import MtpMode, SamplingParams
from headlong.doctor.exactness import Decoder, run_requests
from headlong.doctor.probe import (
    PROMPTS,
    AcceptedCounts,
    ProbeRows,
    ProbeText,
    measure_acceptance,
    prompt_ids,
    read_rows,
)
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from headlong.heads.head_files import save_head
from headlong.heads.head_weights import HeadKind
from headlong.models.transformer import Backbone
from headlong.ops.backends import backend_problem
from model_files import GEMMA4
from random_heads import random_head
from subjects import MAX_DEPTH, parts, probe_answers


def test_acceptance_is_that_of_real_decoding(
    default_subject: Subject, default_heard: list[ProbeRows]
) -> None:
    """The probe decodes nothing; walking its positions must still give the rounds of decoding."""
    backbone, tokenizer = parts(default_subject)
    assert default_subject.head is not None
    probed = default_heard[0]
    found = measure_acceptance(default_subject.head, [probed], MAX_DEPTH)
    drafter = default_subject.make_drafter("head")
    decoder = Decoder(backbone, drafter, tokenizer.eos_ids, len(probed.text.answer_ids))
    asked: list[tuple[tuple[int, ...], MtpMode]] = [(probed.text.prompt_ids, k) for k in (1, 3, 5)]
    for k, running in zip((1, 3, 5), run_requests(decoder, asked, SamplingParams()), strict=True):
        depths = [one.depth for one in running.take()][1:]
        rounds = _rounds(found, k)
        # The last walked round ends short of the answer's end, so decoding has it in full too.
        assert rounds == _rounds_of(depths)[: len(rounds)]
        assert len(rounds) > 4


def _rounds(acceptance: AcceptedCounts, num_draft_tokens: int) -> list[int]:
    """Walk the positions as rounds do."""
    (accepted,) = acceptance.accepted
    rounds, position = [], 0
    while position < len(accepted):
        rounds.append(min(int(accepted[position]), num_draft_tokens))
        position += rounds[-1] + 1
    return rounds


def _rounds_of(depths: list[int]) -> list[int]:
    """Count the accepted tokens of every round: a round ends with a token nobody drafted."""
    rounds, accepted = [], 0
    for depth in depths:
        if depth:
            accepted += 1
        else:
            rounds.append(accepted)
            accepted = 0
    return rounds


def test_lengths_follow_from_counts() -> None:
    """Rounds begin at positions 0, 3, 4 and 6 with K=2: 2, 0, 1 and 1 tokens stand."""
    acceptance = AcceptedCounts((np.array([3, 9, 9, 0, 1, 9, 1]),), max_depth=9)
    assert acceptance.stats(2).acceptance_at_depth == [0.75, 0.25]
    assert acceptance.length(2) == 2.0
    assert acceptance.num_positions == 7
    # With K=1: positions 0, 2, 4, 6.
    assert acceptance.length(1) == 2.0


def test_answers_do_not_run_into_each_other() -> None:
    acceptance = AcceptedCounts((np.array([2]), np.array([0, 0])), max_depth=4)
    assert acceptance.stats(2).acceptance_at_depth == [1 / 3, 1 / 3]


def test_no_positions_are_no_acceptance() -> None:
    acceptance = AcceptedCounts((np.array([], dtype=np.int64),), max_depth=4)
    assert acceptance.length(4) == 1.0
    assert acceptance.mean == 0.0


@pytest.mark.parametrize("kind", ["eagle3", "nextn", "medusa", "meta"])
def test_every_kind_of_head_can_be_asked(
    kind: HeadKind, tiny_subject: Subject, tiny_model_path: Path, tmp_path: Path
) -> None:
    backbone, _ = parts(tiny_subject)
    save_head(tmp_path / "head", random_head(kind, backbone.config))
    subject = load_subject(ExamOptions(str(tiny_model_path), tmp_path / "head", backend="numpy"))
    assert subject.head is not None
    from_own = backbone.config.num_layers - 1
    probed = probe_answers(subject, tuple(sorted({*subject.head.tap_layers, from_own})), 1)
    found = measure_acceptance(subject.head, probed, 4)
    assert found.num_positions > 10
    assert 1.0 <= found.length(4) < 2.0


@pytest.mark.parametrize("backend", ["native", "torch", "mlx"])
def test_a_head_is_asked_where_its_model_computes(
    backend: str, tiny_subject: Subject, tiny_model_path: Path, tmp_path: Path
) -> None:
    """Rows with more taps than the head reads belong to the backend, too."""
    if backend_problem(backend) is not None:
        pytest.skip(f"{backend} is not installed")
    backbone, _ = parts(tiny_subject)
    save_head(tmp_path / "head", random_head("eagle3", backbone.config))
    subject = load_subject(ExamOptions(str(tiny_model_path), tmp_path / "head", backend=backend))
    assert subject.head is not None
    every_layer = tuple(range(backbone.config.num_layers))
    assert len(subject.head.tap_layers) < len(every_layer)
    probed = probe_answers(subject, every_layer, 1)
    assert measure_acceptance(subject.head, probed, 4).num_positions > 10


@pytest.mark.parametrize("architecture", [GEMMA4, f"{GEMMA4}@native"])
def test_an_assistant_is_asked_over_the_backbones_keys(
    tiny_backbone: Callable[[str], Backbone], tmp_path: Path, architecture: str
) -> None:
    """An answer that goes on for three tokens as drafted behind its first one, and no further."""
    backbone = tiny_backbone(architecture)
    head = assistant_maker(tmp_path)(backbone).head
    prompt, answer, cache = tuple(range(3, 17)), [40], backbone.make_cache()
    state = head.features(backbone.forward([np.array(prompt)], [cache]))[-1:]
    for _ in range(4):
        result = head.step(state, np.array(answer[-1:]), [cache], [len(prompt) - 1])
        answer.append(int(head.logits(result)[0].argmax()))
        state = head.carry(result)
    answer[-1] ^= 1
    text = ProbeText("made up", prompt, (*answer, 1, 2, 3))
    counts = measure_acceptance(head, [read_rows(backbone, text, ())], 4)
    assert counts.accepted[0][0] == 3


def test_model_without_tokenizer_is_asked_blindly(tiny_subject: Subject) -> None:
    backbone, tokenizer = parts(tiny_subject)
    blind = prompt_ids(None, PROMPTS["code"], backbone)
    assert blind == prompt_ids(None, PROMPTS["code"], backbone)
    assert max(blind) < backbone.config.vocab_size
    written = prompt_ids(tokenizer, PROMPTS["code"], backbone)
    assert tokenizer.decode(written, skip_special=False).startswith("<|im_start|>user")
