"""Faults: only the request they belong to is lost; the others go on, bit for bit."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fakes import ScriptedDrafter, make_sequence, run_rows
from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.config import SamplingParams, StopParams
from headlong.decode.draft_backlog import catch_up
from headlong.decode.recovery import restore, save
from headlong.decode.request import Request
from headlong.decode.sampling import Pick, Sampler
from headlong.drafters.choose import make_drafter
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft, Drafter, DraftRequest, Guess, ObservedRows
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason, Running
from headlong.errors import CheckpointError, EngineError, HeadError
from headlong.heads.head_files import build_head
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array
from model_files import HYBRIDS
from random_heads import random_head

PROMPTS = [tuple(range(start, start + 12)) for start in (5, 20, 35, 50)]


@pytest.fixture(params=["qwen3", *HYBRIDS])
def backbone(tiny_backbone: Callable[[str], Backbone], request: pytest.FixtureRequest) -> Backbone:
    """A tiny model whose layers attend, and one most of whose layers are recurrent."""
    return tiny_backbone(request.param)


@pytest.fixture
def drafter(backbone: Backbone) -> Drafter:
    """A chain with a random head."""
    head = build_head(random_head("nextn", backbone.config), backbone)
    drafter = make_drafter("auto", backbone, head, None)
    assert drafter is not None
    return drafter


def requests() -> list[Request]:
    """Return four requests whose samplers have histories and noise."""
    sampling = SamplingParams(temperature=0.8, seed=3, repetition_penalty=1.2)
    return [Request(p, sampling, StopParams(max_tokens=25), mtp=3) for p in PROMPTS]


def ids(running: Running) -> list[int]:
    """Return the token ids a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]


def run(engine: Engine, running: Sequence[Running]) -> None:
    """Run until all have ended."""
    while any(one.finish_reason is None for one in running):
        engine.step()


def alone(backbone: Backbone, request: Request) -> list[int]:
    """Return what a request gets when nothing goes wrong."""
    engine = Engine.for_model(backbone)
    running = engine.submit(request)
    run(engine, [running])
    return ids(running)


@pytest.mark.parametrize("was_observed", [False, True])
def test_rows_that_waited_wait_again(was_observed: bool) -> None:
    """Guards a drafter that sees rows of a failed pass twice, or never sees those before it."""
    drafter = ScriptedDrafter([], 96)
    sequence = make_sequence(range(9), SequenceState(()), "memory")
    sequence.plan = DraftPlan(is_idle=True)
    run_rows(drafter, sequence, 5)
    before = save(sequence)
    if was_observed:
        catch_up(drafter, [sequence])
    run_rows(drafter, sequence, 2, commits=False)
    restore(sequence, before, drafter, lambda one: Sampler(SamplingParams(), [1], 96))
    assert sequence.cache.length == sequence.backlog.num_rows == 5
    np.testing.assert_allclose(sequence.backlog.rows.read()[:, 0], np.arange(5), rtol=1e-6)


def test_only_the_culprit_of_a_failed_pass_is_lost(
    backbone: Backbone, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    running = [engine.submit(request) for request in requests()]
    for _ in range(3):
        engine.step()
    poisoned = running[1].sequence.cache

    def forward(
        self: Backbone,
        token_ids: Sequence[IntArray],
        caches: Sequence[SequenceState],
        taps: tuple[int, ...] = (),
        *,
        all_or_none: bool = False,
        drafts: Sequence[tuple[int, Array]] = (),
    ) -> object:
        if poisoned in caches:
            for cache in caches:
                cache.append(4)  # a pass that breaks off has begun to write
            raise RuntimeError("the kernel tripped")
        return original(self, token_ids, caches, taps, all_or_none=all_or_none, drafts=drafts)

    original = Backbone.forward
    monkeypatch.setattr(Backbone, "forward", forward)
    run(engine, running)
    assert [one.finish_reason for one in running].count(FinishReason.ERROR) == 1
    assert isinstance(running[1].error, EngineError)
    assert "RuntimeError: the kernel tripped" in str(running[1].error)
    monkeypatch.undo()
    for request, one in zip(requests(), running, strict=True):
        whole = alone(backbone, request)
        assert ids(one) == (whole if one.error is None else whole[: len(ids(one))])
    assert engine.snapshot().num_failed == 1


def test_failure_after_the_picks_repeats_no_token(backbone: Backbone) -> None:
    """Guards samplers and histories that keep what a broken round had already pushed."""

    class Stumbling(ScriptedDrafter):
        """Fails once, after the backbone has picked and the sequences have moved on."""

        num_observed = 0

        def observe(self, settled: Sequence[ObservedRows]) -> None:
            """Fail on the first round of the whole batch."""
            self.num_observed += 1
            if len(settled) == len(PROMPTS) and self.num_observed > 2:
                raise RuntimeError("the head tripped")

    engine = Engine.for_model(backbone, Stumbling([], backbone.config.vocab_size))
    running = [engine.submit(request) for request in requests()]
    run(engine, running)
    assert [one.error for one in running] == [None] * len(running)
    for request, one in zip(requests(), running, strict=True):
        assert ids(one) == alone(backbone, request)


def test_broken_logits_name_the_model_and_spare_the_others(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    running = [engine.submit(request) for request in requests()]
    engine.step()

    def fail(logits: FloatArray) -> Pick:
        raise CheckpointError("The model produced NaN.", "Pull it again.")

    running[2].sequence.sampler.pick = fail  # type: ignore[method-assign]
    run(engine, running)
    assert isinstance(running[2].error, CheckpointError)
    for index in (0, 1, 3):
        assert ids(running[index]) == alone(backbone, requests()[index])


def test_one_failing_head_leaves_the_others_drafting(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    running = [engine.submit(request) for request in requests()]
    engine.step()

    def fail(logits: FloatArray, vocabulary: object, drafted: Sequence[int]) -> Guess:
        raise HeadError("The drafter produced NaN.", "Use another head.")

    running[0].sequence.sampler.guess = fail  # type: ignore[method-assign]
    run(engine, running)
    assert "NaN" in str(running[0].sequence.off_reason)
    assert [one.sequence.off_reason for one in running[1:]] == [None] * 3
    assert all(one.stats.num_drafted > 20 for one in running[1:])
    for request, one in zip(requests(), running, strict=True):
        assert ids(one) == alone(backbone, request)


def test_drafter_that_cannot_be_taken_back_is_done_without(backbone: Backbone) -> None:
    class Forgetful(ScriptedDrafter):
        """Fails in a batch, and has lost its memory afterwards."""

        def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
            """Fail for more than one."""
            if len(asks) > 1:
                raise RuntimeError("too many")
            return super().draft(asks)

        def share(self, state: str, num_rows: int) -> str:
            """Refuse."""
            raise RuntimeError("the memory is gone")

    engine = Engine.for_model(backbone, Forgetful([], backbone.config.vocab_size))
    running = [engine.submit(request) for request in requests()]
    run(engine, running)
    for request, one in zip(requests(), running, strict=True):
        assert "the memory is gone" in str(one.sequence.off_reason)
        assert ids(one) == alone(backbone, request)


def test_drafter_that_cannot_observe_costs_speed_not_the_answer(backbone: Backbone) -> None:
    class Deaf(ScriptedDrafter):
        """Fails on everything settled behind the prompts."""

        def observe(self, settled: Sequence[ObservedRows]) -> None:
            """Fail on short parts."""
            if any(len(one.next_ids) < len(PROMPTS[0]) for one in settled):
                raise RuntimeError("it hears nothing")

    engine = Engine.for_model(backbone, Deaf([], backbone.config.vocab_size))
    running = [engine.submit(request) for request in requests()]
    run(engine, running)
    for request, one in zip(requests(), running, strict=True):
        assert "it hears nothing" in str(one.sequence.off_reason)
        assert ids(one) == alone(backbone, request)


def test_request_that_cannot_begin_is_lost_alone(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.for_model(backbone)
    first, *_, last = requests()
    expected = alone(backbone, first)
    running = engine.submit(first)
    engine.step()
    original = SequenceState.reserve

    def reserve(self: SequenceState, length: int) -> None:
        if not self._capacity and length > len(PROMPTS[0]):
            raise MemoryError("no room")
        original(self, length)

    monkeypatch.setattr(SequenceState, "reserve", reserve)
    unlucky = engine.submit(last)
    run(engine, [running, unlucky])
    assert isinstance(unlucky.error, EngineError)
    assert ids(running) == expected
    assert engine.snapshot().num_failed == 1


def test_interrupted_step_ends_all_that_ran(backbone: Backbone) -> None:
    """Guards going on with caches and histories that no longer agree, which would change text."""
    engine = Engine.for_model(backbone)
    running = [engine.submit(request) for request in requests()]
    engine.step()

    def interrupt(logits: FloatArray) -> Pick:
        raise KeyboardInterrupt

    running[1].sequence.sampler.pick = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert {one.finish_reason for one in running} == {FinishReason.ERROR}
    seen = engine.snapshot()
    assert (seen.num_running, seen.kv_bytes) == (0, 0)


def test_failed_prefix_is_not_kept(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    bad = engine.submit(requests()[0])
    bad.sequence.sampler = None  # type: ignore[assignment]
    engine.step()
    assert bad.finish_reason is FinishReason.ERROR
    assert engine.snapshot().prefix_entries == 0


def test_stream_dropped_in_the_middle_of_a_step_ends_after_it(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a cache taken away while a pass writes to it: streams may be collected any time."""
    engine = Engine.for_model(backbone)
    running = [engine.submit(request) for request in requests()]
    engine.step()
    original = Backbone.logits

    def logits(self: Backbone, normed: FloatArray) -> FloatArray:
        engine.cancel(running[0])
        return original(self, normed)

    monkeypatch.setattr(Backbone, "logits", logits)
    engine.step()
    monkeypatch.undo()
    assert running[0].finish_reason is FinishReason.CANCELLED
    assert not running[0].outbox
    run(engine, running)
    for index in (1, 2, 3):
        assert np.array_equal(ids(running[index]), alone(backbone, requests()[index]))
