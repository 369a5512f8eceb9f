"""The doctor checks exactness: equal on a sound backbone, reported in full on an uneven one."""

from dataclasses import fields

import numpy as np
import pytest

from fakes import ScriptedDrafter
from headlong.arrays import FloatArray
from headlong.doctor.exactness import (
    Decoded,
    Decoder,
    check_exactness,
    decode_modes,
    find_wrong_token,
)
from headlong.doctor.finding import Severity
from headlong.doctor.subject import Subject
from headlong.models.transformer import Backbone
from subjects import parts

PROMPT = tuple(range(40, 60))
MAX_TOKENS = 16


class UnevenBackbone(Backbone):
    """Computes other logits when a pass has several rows, as a careless kernel would."""

    def logits(self, normed: FloatArray) -> FloatArray:
        """Lift one token far up in every pass of more than one row."""
        logits = super().logits(normed)
        if len(normed) > 1:
            logits[:, 7] += 100
        return logits


def make_uneven(backbone: Backbone) -> UnevenBackbone:
    """Give a backbone the fault."""
    return UnevenBackbone(**{part.name: getattr(backbone, part.name) for part in fields(backbone)})


def decoder_of(backbone: Backbone) -> Decoder:
    """Draft what hardly ever stands, so that every pass has rows to spare."""
    drafter = ScriptedDrafter([5] * 400, backbone.config.vocab_size)
    return Decoder(backbone, drafter, frozenset(), MAX_TOKENS)


def test_sound_backbone_gives_the_plain_loops_text(tiny_subject: Subject) -> None:
    decoder = decoder_of(parts(tiny_subject)[0])
    runs = list(decode_modes(decoder, [PROMPT, PROMPT[:7]]))
    # 2 temperatures × 2 prompts × 4 modes, alone and in a batch.
    assert len(runs) == 32
    found = check_exactness(decoder, runs)
    assert found.level is Severity.OK
    assert found.numbers["num_tokens"] == 32 * MAX_TOKENS


def test_logits_that_depend_on_the_rows_are_found(tiny_subject: Subject) -> None:
    backbone, _ = parts(tiny_subject)
    decoder = decoder_of(make_uneven(backbone))
    runs = list(decode_modes(decoder, [PROMPT]))
    found = check_exactness(decoder, runs)
    assert found.level is Severity.FAULT
    first = found.numbers["first"]
    truth = next(run.truth for run in runs if run.label == first["run"])
    assert first["got"] == 7
    assert first["expected"] == truth[first["position"]]
    assert f"answer token {first['position']} is 7 instead of {first['expected']}" in found.seen
    by_label = {run.label: find_wrong_token(decoder, run) for run in runs}
    # Plain decoding alone has one row a pass and stays right; the first draft is checked after the
    # first token.
    assert by_label["mtp=off, temperature 0"] is None
    assert by_label["mtp=4, temperature 0"] is not None
    assert by_label["mtp=4, temperature 0"].position == 1


def test_margin_is_that_of_the_plain_loop_at_the_divergence(tiny_subject: Subject) -> None:
    backbone, _ = parts(tiny_subject)
    decoder = decoder_of(backbone)
    run = next(decode_modes(decoder, [PROMPT]))
    changed = Decoded(run.label, PROMPT, run.truth, (*run.truth[:3], run.truth[3] + 1))
    divergence = find_wrong_token(decoder, changed)
    assert divergence is not None
    assert (divergence.position, divergence.expected) == (3, run.truth[3])
    ids = np.array([*PROMPT, *run.truth[:3]])
    hidden = backbone.forward([ids], [backbone.make_cache()])
    best = np.sort(backbone.logits(hidden.normed[-1:])[0])
    assert divergence.top2_margin == pytest.approx(float(best[-1] - best[-2]))


def test_text_cut_short_is_a_divergence_too(tiny_subject: Subject) -> None:
    decoder = decoder_of(parts(tiny_subject)[0])
    run = next(decode_modes(decoder, [PROMPT]))
    short = Decoded(run.label, PROMPT, run.truth, run.truth[:-1])
    divergence = find_wrong_token(decoder, short)
    assert divergence is not None
    assert divergence.got is None
    assert divergence.position == MAX_TOKENS - 1
