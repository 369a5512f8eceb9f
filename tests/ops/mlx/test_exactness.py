"""Exactness on the MLX backend: drafts, batches, chunks and kept prefixes change no token.

The oracle is the plain loop on the same backend, as in `test_exactness.py`.
"""

import random
from functools import partial
from pathlib import Path

import pytest

from assistant_files import assistant_maker
from golden_models import GOLDEN, WITH_MTP, load_with_head
from headlong.config import SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.drafters.choose import make_drafter
from headlong.drafters.drafter import Drafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.heads.nextn import NextnHead
from headlong.llm import LLM
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint
from mimo_files import write_mimo
from model_files import FROM_GOLDEN, GEMMA4, HYBRID, LATENT, MIXTURE, write_hf_folder
from random_drafters import drafter_named

pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")


def make_backbone(architecture: str, folder: Path) -> Backbone:
    """Load a tiny model on MLX."""
    is_golden = architecture in FROM_GOLDEN
    path = GOLDEN / architecture if is_golden else write_hf_folder(folder, architecture)
    return load_backbone(open_checkpoint(path), make_ops("mlx")).backbone


def draw_requests(rng: random.Random, vocab_size: int, count: int) -> list[Request]:
    """Draw requests that have most of a prompt in common, greedy and sampled, of every K."""
    common = [rng.randrange(vocab_size) for _ in range(rng.choice([3, 60]))]
    return [
        Request(
            (*common, *(rng.randrange(vocab_size) for _ in range(rng.randint(1, 9)))),
            SamplingParams(
                temperature=rng.choice([0.0, 0.4, 1.0]),
                top_k=rng.choice([0, 0, 20]),
                top_p=rng.choice([1.0, 1.0, 0.9]),
                min_p=rng.choice([0.0, 0.05]),
                repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]),
                seed=rng.randrange(2**64),
            ),
            StopParams(max_tokens=rng.randint(4, 14), ignore_eos=True),
            mtp=rng.choice([1, 2, 3, 4, 5, 6, 7, 8, "auto"]),
        )
        for _ in range(count)
    ]


def assert_exact(backbone: Backbone, drafter: Drafter, rng: random.Random) -> int:
    """Run requests together, then each alone on kept prefixes; return how much was drafted."""
    limits = EngineLimits(prefill_rows_per_step=rng.choice([3, 64]), honour_k=True)
    engine = Engine.for_model(backbone, drafter, limits)
    requests = draw_requests(rng, backbone.config.vocab_size, 3)
    rounds = [requests, *([one] for one in requests)]
    num_drafted = 0
    for together in rounds:
        running = [engine.submit(request) for request in together]
        while any(one.finish_reason is None for one in running):
            engine.step()
        for request, one in zip(together, running, strict=True):
            sampler = Sampler(request.sampling, request.prompt_ids, backbone.config.vocab_size)
            plain = generate_plain(backbone, request.prompt_ids, sampler)
            assert [e.pick for e in one.outbox] == [next(plain) for _ in one.outbox], request
            assert len(one.outbox) == request.stopping.max_tokens
            num_drafted += one.stats.num_drafted
    assert engine.runner.usage.prefix_hit_tokens > 0
    return num_drafted


DRAFTED = [("llama", name) for name in ("chain-eagle3", "nextn", "meta", "medusa")]
DRAFTED += [("gemma3", "eagle3"), ("qwen3", "nextn"), ("qwen2", "draft-model")]
DRAFTED += [(HYBRID, "chain-nextn"), (GEMMA4, "nextn"), (GEMMA4, "assistant")]
DRAFTED += [(LATENT, "nextn"), (MIXTURE, "nextn"), *((name, "nextn") for name in FROM_GOLDEN)]


@pytest.mark.parametrize(("architecture", "name"), DRAFTED)
def test_drafts_leave_the_text_alone(architecture: str, name: str, tmp_path: Path) -> None:
    backbone = make_backbone(architecture, tmp_path / "model")
    rng = random.Random(f"{architecture} {name}")
    is_assistant = name == "assistant"
    make = assistant_maker(tmp_path) if is_assistant else partial(drafter_named, name)
    assert assert_exact(backbone, make(backbone), rng) > 20


@pytest.mark.parametrize("name", [*WITH_MTP, "mimo"])
def test_native_mtp_layers_leave_the_text_alone(name: str, tmp_path: Path) -> None:
    head = load_with_head(str(write_mimo(tmp_path)) if name == "mimo" else name, "mlx")
    assert isinstance(head, NextnHead)
    drafter = make_drafter("head", head.backbone, head, None)
    assert drafter is not None
    assert assert_exact(head.backbone, drafter, random.Random(name)) > 20


def test_the_default_model_writes_the_same_with_mtp() -> None:
    """Few tokens: on a CPU, MLX takes a tenth of a second for a row."""
    llm = LLM.load(None, backend="mlx")
    greedy, sampled = (
        [
            llm.generate("red, green, red,", max_tokens=5, temperature=temperature, seed=3, mtp=mtp)
            for mtp in ("off", 3)
        ]
        for temperature in (0.0, 1.0)
    )
    assert greedy[0].token_ids == greedy[1].token_ids
    assert sampled[0].token_ids == sampled[1].token_ids != greedy[0].token_ids
    assert greedy[1].stats.num_accepted > 0
