"""MiMo-7B from a folder as it is published, held against the model written out once more.

No engine at hand runs it: neither transformers nor llama.cpp knows the model. What it computes is
read from the code of vLLM and SGLang: Qwen2's layers; the head reads [norm(hidden row),
norm(embedding)], with the embedding at position 0 zeroed, and carries its normed result on.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.config import StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.drafters.choose import make_drafter
from headlong.engine.engine import Engine
from headlong.heads.head_files import find_native_head
from headlong.heads.nextn import NextnHead
from headlong.models.model_config import ModelConfig
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint
from mimo_files import (
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    THETA,
    VOCAB_SIZE,
    make_tensors,
    write_mimo,
)
from plain_maths import Float64Array, PlainLayer, rms

PROMPT = [1, 17, 42, 42, 5, 63, 30, 8, 17, 42, 0, 59, 22, 11]
TOLERANCE = {"numpy": 1e-4, "native": 5e-2}
SIZES = ModelConfig(
    "mimo", 2, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB_SIZE, 256, EPS, THETA
)
"""What the plain layers read of a config, written out."""


def plain_hidden(tensors: Mapping[str, FloatArray], ids: list[int]) -> Float64Array:
    """Compute the backbone's hidden rows, final norm included."""
    x = tensors["model.embed_tokens.weight"][ids].astype(np.float64)
    for index in range(2):
        x = PlainLayer(tensors, f"model.layers.{index}.", SIZES, THETA).run(x)
    return rms(x, tensors["model.norm.weight"], EPS)


def plain_carried(
    tensors: Mapping[str, FloatArray], hidden: Float64Array, next_ids: list[int]
) -> Float64Array:
    """Compute what the head carries on after every row of [hidden row, next token]."""
    prefix = "model.mtp_layers.0."
    embedded = tensors["model.embed_tokens.weight"][next_ids].astype(np.float64)
    embedded[0] = 0
    halves = [
        rms(hidden, tensors[f"{prefix}hidden_layernorm.weight"], EPS),
        rms(embedded, tensors[f"{prefix}token_layernorm.weight"], EPS),
    ]
    x = np.concatenate(halves, axis=1) @ tensors[f"{prefix}input_proj.weight"].T
    y = PlainLayer(tensors, prefix, SIZES, THETA).run(x)
    return rms(y, tensors[f"{prefix}final_layernorm.weight"], EPS)


def load(folder: Path, backend: str) -> tuple[Backbone, NextnHead]:
    """Write the tiny model, and load its backbone and its own head."""
    checkpoint = open_checkpoint(write_mimo(folder))
    backbone = load_backbone(checkpoint, make_ops(backend)).backbone
    head = find_native_head(checkpoint, backbone)
    assert isinstance(head, NextnHead)
    assert head.report.notes == ()
    return backbone, head


@pytest.mark.parametrize("backend", TOLERANCE)
def test_logits_are_those_of_the_model_written_out(tmp_path: Path, backend: str) -> None:
    backbone, _ = load(tmp_path, backend)
    hidden = backbone.forward([np.array(PROMPT)], [backbone.make_cache()])
    tensors = make_tensors()
    expected = plain_hidden(tensors, PROMPT) @ tensors["lm_head.weight"].T
    logits = backbone.logits(hidden.normed)
    difference = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert difference < TOLERANCE[backend]


def test_drafts_are_those_of_the_head_written_out(tmp_path: Path) -> None:
    """Three depths from every length of the prompt."""
    backbone, head = load(tmp_path, "numpy")
    tensors = make_tensors()
    drafted, expected = [], []
    for length in range(2, len(PROMPT)):
        next_ids = PROMPT[1:length]
        read, ids = plain_hidden(tensors, PROMPT[: length - 1]), list(next_ids)
        hidden = backbone.forward([np.array(PROMPT[: length - 1])], [backbone.make_cache()])
        cache = head.make_cache()
        state = head.follow(head.features(hidden), [np.array(next_ids)], [cache])
        for _ in range(3):
            carried = plain_carried(tensors, read, ids)[-1:]
            expected.append(int((carried @ tensors["lm_head.weight"].T).argmax()))
            drafted.append(int(head.logits(state).argmax()))
            read, ids = np.concatenate([read, carried]), [*ids, expected[-1]]
            state = head.step(state, [np.array([drafted[-1]])], [cache])
    assert drafted == expected
    assert len(set(drafted)) > 8, "drafts that are all alike would show nothing"


@pytest.mark.parametrize("backend", TOLERANCE)
def test_its_own_head_leaves_the_text_alone(tmp_path: Path, backend: str) -> None:
    backbone, head = load(tmp_path, backend)
    drafter = make_drafter("head", backbone, head, None)
    for length in (1, 4, len(PROMPT)):
        request = Request(tuple(PROMPT[:length]), stopping=StopParams(max_tokens=24), mtp=3)
        plain = generate_plain(
            backbone, request.prompt_ids, Sampler(request.sampling, request.prompt_ids, VOCAB_SIZE)
        )
        expected = [next(plain).token_id for _ in range(24)]
        engine = Engine.for_model(backbone, drafter)
        running = engine.submit(request)
        while running.finish_reason is None:
            engine.step()
        assert [one.pick.token_id for one in running.outbox] == expected
        assert running.stats.num_drafted > 20
