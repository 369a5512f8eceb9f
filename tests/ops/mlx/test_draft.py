"""Whole drafts on MLX: the guesses of the host's own way, and how often a round waits for them."""

from collections.abc import Sequence

import numpy as np
import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.drafters.choose import make_drafter
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows, PendingDraft
from headlong.drafters.head_drafter import HeadMemory, RecursiveDrafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.errors import HeadError
from headlong.heads.head import RecursiveHead
from headlong.heads.head_files import build_head
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.ops.noise import gumbel, noise_key
from headlong.weights.checkpoint import open_checkpoint
from model_files import write_hf_folder
from random_heads import random_head

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import draft as mlx_draft  # noqa: E402  # needs MLX

TEXTS = ([5, 9, 12, 60, 7], [30, 31, 32], [8, 8, 9, 8, 8, 9, 8, 8])

RULES = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.2, top_k=9, seed=4),
    SamplingParams(temperature=1.0, top_p=0.7, seed=5),
    SamplingParams(temperature=1.0, min_p=0.2, top_k=30, top_p=0.95, seed=6),
)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A tiny Llama on MLX."""
    folder = write_hf_folder(tmp_path_factory.mktemp("mlx"), "llama")
    return load_backbone(open_checkpoint(folder), make_ops("mlx")).backbone


def drafter_of(kind: str, backbone: Backbone) -> RecursiveDrafter:
    """Return a drafter with a random head."""
    head = build_head(random_head(kind, backbone.config, 1), backbone)  # type: ignore[arg-type]
    assert isinstance(head, RecursiveHead)
    return RecursiveDrafter(head)


def begin(drafter: RecursiveDrafter, backbone: Backbone, text: list[int]) -> HeadMemory:
    """Let a drafter observe all but the newest token of a text."""
    memory, ids = drafter.begin(), np.array(text)
    hidden = backbone.forward([ids[:-1]], [backbone.make_cache()], drafter.tap_layers)
    drafter.observe([ObservedRows(memory, ids[:-1], (drafter.features(hidden),), ids[1:])])
    return memory


def make_asks(
    drafter: RecursiveDrafter, backbone: Backbone, params: SamplingParams
) -> list[DraftRequest]:
    """Ask for drafts of several lengths."""
    return [
        DraftRequest(
            begin(drafter, backbone, text),
            text,
            DraftPlan(num_tokens),
            Sampler(params, text, backbone.config.vocab_size),
        )
        for text, num_tokens in zip(TEXTS, (7, 1, 4), strict=True)
    ]


def begun(drafter: RecursiveDrafter, asks: Sequence[DraftRequest]) -> list[Draft]:
    """Begin drafts and read them."""
    drafts = drafter.begin_draft(asks)
    assert drafts is not None
    pending = [one for one in drafts if isinstance(one, PendingDraft)]
    assert [one.num_tokens for one in pending] == [ask.num_tokens for ask in asks]
    ops = drafter._lazy_ops
    assert ops is not None
    found = ops.collect([one.begun for one in pending])
    return [one.resolve(*read) for one, read in zip(pending, found, strict=True)]


@pytest.mark.parametrize("kind", ["eagle3", "nextn"])
@pytest.mark.parametrize("params", RULES)
def test_begun_drafts_are_the_guesses_of_the_host(
    backbone: Backbone, kind: str, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_of(kind, backbone)
    asks = make_asks(drafter, backbone, params)
    read = drafter.draft(asks)
    assert begun(drafter, asks) == read
    monkeypatch.setattr(drafter, "_lazy_ops", None)
    for draft, expected in zip(read, drafter.draft(asks), strict=True):
        assert draft.token_ids == expected.token_ids
        assert draft.num_steps == expected.num_steps
        np.testing.assert_allclose(draft.probs, expected.probs, rtol=1e-3)
    for ask in asks:
        assert (ask.state.cache.length, ask.state.cache.num_pending) == (len(ask.history) - 1, 0)


def test_noise_is_that_of_the_host() -> None:
    ids = np.arange(50_000)
    found = np.array(mlx_draft.gumbel(noise_key(7, 99), mlx_draft.noise_multiples(ids)))
    np.testing.assert_allclose(found, gumbel(7, 99, ids), rtol=1e-5, atol=1e-5)


def test_penalties_are_left_to_the_host(backbone: Backbone) -> None:
    drafter = drafter_of("eagle3", backbone)
    asks = make_asks(drafter, backbone, SamplingParams(repetition_penalty=1.3))
    assert drafter.begin_draft(asks) is None


def test_a_broken_state_is_told_from_a_draft(backbone: Backbone) -> None:
    drafter = drafter_of("eagle3", backbone)
    for params in RULES:
        asks = make_asks(drafter, backbone, params)
        asks[0].state.state = asks[0].state.state * float("nan")
        with pytest.raises(HeadError, match="not finite"):
            begun(drafter, asks)
        assert len(begun(drafter, asks[1:])[1].token_ids) == 4


def test_a_head_that_breaks_in_a_round_costs_its_drafts_only(backbone: Backbone) -> None:
    head = build_head(random_head("eagle3", backbone.config, 1), backbone)
    drafter = make_drafter("head", backbone, head, None)
    assert isinstance(drafter, RecursiveDrafter)
    engine = Engine.for_model(backbone, drafter)
    request = Request((5, 9, 12), stopping=StopParams(max_tokens=12, ignore_eos=True), mtp=3)
    running = engine.submit(request)
    while len(running.outbox) < 4:
        engine.step()
    memory = running.sequence.draft_state
    assert memory is not None
    memory.state = memory.state * float("nan")
    while running.finish_reason is None:
        engine.step()
    assert "not finite" in (running.sequence.off_reason or "")
    plain = generate_plain(backbone, request.prompt_ids, Sampler(SamplingParams(), [5, 9, 12], 96))
    assert [e.pick for e in running.outbox] == [next(plain) for _ in range(12)]


class Count:
    """Counts how often a function of MLX is called."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.calls = 0
        self._function = getattr(mx, name)
        patch.setattr(mx, name, self)

    def __call__(self, *arrays: object) -> None:
        self.calls += 1
        self._function(*arrays)


@pytest.mark.parametrize("num_streams", [1, 3])
def test_a_round_waits_once(
    backbone: Backbone, num_streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft, pass and picks are one wait; draft and head begin earlier, without waiting."""
    drafter = drafter_of("eagle3", backbone)
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    running = [
        engine.submit(
            Request(
                (5, 9, stream),
                SamplingParams(temperature=0.7 * stream, seed=stream),
                StopParams(max_tokens=60, ignore_eos=True),
                mtp=4,
            )
        )
        for stream in range(num_streams)
    ]
    while any(one.stats.rounds < 2 for one in running):
        engine.step()
    waits, starts = Count(monkeypatch, "eval"), Count(monkeypatch, "async_eval")
    before = running[0].stats.rounds
    for _ in range(5):
        engine.step()
    assert running[0].stats.rounds == before + 5
    assert all(one.stats.num_drafted >= 4 * 5 for one in running)
    assert (waits.calls, starts.calls) == (5, 10)
