"""Caches in the engine: prompts that begin alike run once, memory is bounded, nothing leaks."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes import ScriptedDrafter
from headlong.cache.sequence_state import SequenceState
from headlong.config import MtpMode, StopParams
from headlong.decode.memory import ROOM_AHEAD, CacheMemory
from headlong.decode.request import Request
from headlong.decode.step_runner import StepRunner
from headlong.drafters.choose import make_drafter
from headlong.drafters.drafter import Drafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason, Running
from headlong.errors import RequestError
from headlong.heads.head_files import build_head
from headlong.models.transformer import Backbone
from random_heads import random_head

SYSTEM = tuple(20 + i % 60 for i in range(50))


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Llama."""
    return tiny_backbone("llama")


@pytest.fixture
def drafter(backbone: Backbone) -> Drafter:
    """A chain with a random head."""
    head = build_head(random_head("eagle3", backbone.config), backbone)
    drafter = make_drafter("auto", backbone, head, None)
    assert drafter is not None
    return drafter


def ask(
    *tail: int, mtp: MtpMode = 2, max_tokens: int = 6, system: tuple[int, ...] = SYSTEM
) -> Request:
    """Return a request that begins with the system prompt."""
    return Request((*system, *tail), stopping=StopParams(max_tokens=max_tokens), mtp=mtp)


def finish(engine: Engine, *requests: Request) -> list[Running]:
    """Submit requests at once and run them to their ends."""
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    return running


def ids(running: Running) -> list[int]:
    """Return the token ids a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]


def bytes_per_request(backbone: Backbone, drafter: Drafter | None, num_tokens: int) -> int:
    """Return what one request takes."""
    memory = CacheMemory(backbone, drafter, None, 0)
    return memory.bytes_for(num_tokens, drafts=drafter is not None)


def test_shared_system_prompt_runs_once(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter)
    (first,) = finish(engine, ask(1, 2, 3))
    (second,) = finish(engine, ask(4, 5))
    assert first.sequence.num_cached_tokens == 0
    assert second.sequence.num_cached_tokens == len(SYSTEM) - 1, (
        "the head's last row has another next token"
    )
    assert ids(second) == ids(finish(Engine.for_model(backbone), ask(4, 5))[0])
    seen = engine.snapshot()
    assert (seen.prefix_hit_tokens, seen.prefix_lookup_tokens) == (49, 53 + 52)


def test_second_turn_takes_the_first_ones_cache_over(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter)
    (first,) = finish(engine, ask(1, 2, 3))
    history = (*first.request.prompt_ids, *ids(first))
    before = engine.snapshot()
    (second,) = finish(engine, Request((*history, 7, 8, 9), mtp=2))
    assert second.sequence.num_cached_tokens == len(history) - 1
    after = engine.snapshot()
    assert (before.prefix_entries, after.prefix_entries) == (1, 1)


def test_same_prompt_many_times_runs_once(backbone: Backbone, drafter: Drafter) -> None:
    """As `n` in OpenAI's API: they come at the same moment."""
    engine = Engine.for_model(backbone, drafter)
    running = finish(engine, *[ask(1, 2, 3, mtp=mtp) for mtp in (2, "auto", 3, "off")])
    assert [one.sequence.num_cached_tokens for one in running] == [0, 52, 52, 52]
    assert len({tuple(ids(one)) for one in running}) == 1


def test_only_requests_of_one_salt_share_a_prefix(backbone: Backbone, drafter: Drafter) -> None:
    """Among those that run, those that wait for one another, and those that have ended."""
    engine = Engine.for_model(backbone, drafter)
    mine, yours = (replace(ask(1, 2, 3), cache_salt=salt) for salt in ("mine", "yours"))
    together = finish(engine, mine, yours, mine)
    assert [one.sequence.num_cached_tokens for one in together] == [0, 0, 52]
    later = finish(engine, ask(1, 2, 3), yours, mine)
    assert [one.sequence.num_cached_tokens for one in later] == [0, 52, 52]
    assert len({tuple(ids(one)) for one in [*together, *later]}) == 1


def test_plain_request_leaves_nothing_for_those_that_draft(
    backbone: Backbone, drafter: Drafter
) -> None:
    engine = Engine.for_model(backbone, drafter)
    finish(engine, ask(1, 2, 3, mtp="off"))
    assert finish(engine, ask(4, mtp=2))[0].sequence.num_cached_tokens == 0
    assert finish(engine, ask(5, mtp="off"))[0].sequence.num_cached_tokens == len(SYSTEM)


def test_plain_request_does_not_take_the_heads_memory_away(
    backbone: Backbone, drafter: Drafter
) -> None:
    engine = Engine.for_model(backbone, drafter)
    finish(engine, ask(1, 2, 3))
    finish(engine, ask(1, 2, 3, mtp="off", max_tokens=30))
    assert finish(engine, ask(1, 2, 3))[0].sequence.num_cached_tokens == len(SYSTEM) + 2


def test_prefixes_can_be_left_out(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone, limits=EngineLimits(prefix_bytes=0))
    finish(engine, ask(1))
    assert finish(engine, ask(1))[0].sequence.num_cached_tokens == 0
    assert engine.snapshot().kv_bytes == 0


def test_forgotten_prefixes_are_read_anew(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    finish(engine, ask(1))
    engine.clear_prefixes()
    assert finish(engine, ask(1))[0].sequence.num_cached_tokens == 0


def test_cancelled_request_frees_its_cache_at_once(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter, EngineLimits(prefix_bytes=0))
    running = engine.submit(ask(1, max_tokens=100))
    engine.step()
    assert engine.snapshot().kv_bytes > 0
    engine.cancel(running)
    assert engine.snapshot().kv_bytes == 0
    assert (running.sequence.cache.num_bytes, running.sequence.draft_state) == (0, None)


def test_request_cancelled_in_the_middle_of_its_prompt_leaves_what_ran(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone, limits=EngineLimits(prefill_rows_per_step=20))
    running = engine.submit(ask(1))
    engine.step()
    engine.cancel(running)
    assert finish(engine, ask(2))[0].sequence.num_cached_tokens == 20


def test_short_memory_sets_the_newest_back(backbone: Backbone, drafter: Drafter) -> None:
    """Everybody gets what it gets alone, and the oldest is never disturbed."""
    num_tokens = ROOM_AHEAD + 120  # more than they get room for when they begin
    one_bytes = bytes_per_request(backbone, drafter, 53 + num_tokens)
    limits = EngineLimits(kv_bytes=2 * one_bytes)
    engine = Engine.for_model(backbone, drafter, limits)
    requests = [ask(i, i + 1, i + 2, max_tokens=num_tokens, mtp=i % 3 or "auto") for i in range(5)]
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
        assert engine.snapshot().kv_bytes <= 2 * one_bytes
        assert running[0] not in engine._scheduler.waiting
    assert engine.snapshot().num_preemptions > 0
    for request, one in zip(requests, running, strict=True):
        assert ids(one) == ids(finish(Engine.for_model(backbone), request)[0])


def test_kept_prefixes_go_before_a_request_is_preempted(backbone: Backbone) -> None:
    one_bytes = bytes_per_request(backbone, None, 51 + 100)
    engine = Engine.for_model(backbone, limits=EngineLimits(kv_bytes=2 * one_bytes + 1))
    for start in (1, 2, 3):
        finish(engine, ask(1, system=tuple(start + i % 50 for i in range(50)), max_tokens=30))
    assert engine.snapshot().prefix_entries > 0
    finish(engine, ask(1, max_tokens=100), ask(2, system=tuple(range(5, 55)), max_tokens=100))
    assert engine.snapshot().num_preemptions == 0


def test_prefixes_stay_where_letting_go_would_not_help(backbone: Backbone) -> None:
    """Guards forgetting everything, step by step, for a request that has to wait anyway."""
    one_bytes = bytes_per_request(backbone, None, 51 + 150)
    engine = Engine.for_model(backbone, limits=EngineLimits(kv_bytes=one_bytes + one_bytes // 2))
    other = tuple(3 + i % 50 for i in range(50))
    finish(engine, ask(1, system=other, max_tokens=5))
    long = engine.submit(ask(1, max_tokens=150))
    while long.num_emitted < 120:
        engine.step()
    waiting = engine.submit(ask(2, system=tuple(range(5, 95)), max_tokens=30))
    engine.step()
    assert (engine.num_waiting, waiting.num_emitted) == (1, 0), "there is no room for it"
    assert engine.snapshot().prefix_entries == 1
    while waiting.finish_reason is None:
        engine.step()
    assert engine.snapshot().num_failed == 0


def test_request_larger_than_the_memory_is_refused_with_both_numbers(backbone: Backbone) -> None:
    engine = Engine.for_model(
        backbone, limits=EngineLimits(kv_bytes=bytes_per_request(backbone, None, 200))
    )
    most = engine.max_sequence_tokens
    assert 200 <= most < 300
    with pytest.raises(RequestError, match=rf"up to 250 .* it holds {most} tokens"):
        engine.submit(ask(1, max_tokens=250))
    (running,) = finish(engine, ask(1, max_tokens=most - 51))
    assert running.finish_reason is FinishReason.LENGTH
    assert len(running.outbox) == most - 51


def test_ended_requests_leave_no_bytes_behind(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter, EngineLimits(prefix_bytes=0))
    for _ in range(3):
        finish(engine, *[ask(i, max_tokens=10 + i) for i in range(6)])
        seen = engine.snapshot()
        assert (seen.kv_bytes, seen.num_running, seen.num_waiting) == (0, 0, 0)
    assert engine.snapshot().num_finished == 18


def test_resting_requests_lend_all_they_ran(backbone: Backbone) -> None:
    """The head looks at waiting rows once somebody wants them: it is one layer, they are thirty."""
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter)
    (first,) = finish(engine, ask(1, mtp="auto", max_tokens=40))
    history = (*first.request.prompt_ids, *ids(first))
    (second,) = finish(engine, Request((*history, 3), mtp=2, stopping=StopParams(max_tokens=2)))
    assert first.stats.num_drafted == 0
    assert second.sequence.num_cached_tokens == len(history) - 1
    # Every row once, whoever ran it.
    num_rows = len(second.sequence.token_ids) - 1
    assert sum(drafter.num_settled) == num_rows


def test_resting_request_takes_waiting_rows_along(backbone: Backbone) -> None:
    """Guards a head that looks at a whole answer because somebody shares its system prompt."""
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter)
    finish(engine, ask(1, mtp="auto", max_tokens=40))
    num_settled = sum(drafter.num_settled)
    engine.submit(Request((90, 91), mtp="off", stopping=StopParams(max_tokens=60)))
    engine.step()
    resting = engine.submit(ask(2, 3, mtp="auto", max_tokens=2))
    while resting.num_emitted == 0:
        engine.step()
    sequence = resting.sequence
    assert resting.sequence.num_cached_tokens == len(SYSTEM) - 1
    assert sum(drafter.num_settled) == num_settled, "the head has looked at nothing more"
    assert sequence.num_observed + sequence.backlog.num_rows == sequence.cache.length


def test_rows_that_wait_count_as_kept(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone, ScriptedDrafter([], backbone.config.vocab_size))
    engine.submit(ask(1, mtp="off", max_tokens=60))
    engine.step()
    finish(engine, ask(1, 2, mtp="auto", max_tokens=1))
    assert isinstance(engine.runner, StepRunner)
    (kept,) = engine.runner.memory.prefixes
    assert kept.backlog.num_rows > 0
    cache_bytes = kept.cache.bytes_for(kept.cache.length)
    assert kept.num_bytes == cache_bytes + kept.backlog.bytes_for(0)


def test_drafts_are_the_same_however_rows_came(backbone: Backbone, drafter: Drafter) -> None:
    """A head that sees shared rows late drafts what it would have drafted anyway."""
    alone = Engine.for_model(backbone, drafter)
    (expected,) = finish(alone, ask(2, 3, mtp=2, max_tokens=20))
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    engine.submit(ask(1, mtp="off", max_tokens=60))
    engine.step()
    finish(engine, ask(1, mtp="auto", max_tokens=1))
    resting = engine.submit(ask(2, 3, mtp="auto", max_tokens=20))
    while resting.num_emitted == 0:
        engine.step()
    assert resting.sequence.num_cached_tokens == len(SYSTEM), (
        "the last row waits for another next token"
    )
    assert resting.sequence.backlog.num_rows >= len(SYSTEM)
    resting.policy.mtp = 2
    while resting.finish_reason is None:
        engine.step()
    assert resting.stats.num_drafted == expected.stats.num_drafted
    assert resting.stats.num_accepted == expected.stats.num_accepted
    assert ids(resting) == ids(expected)


def test_short_answers_make_no_room_twice(
    backbone: Backbone, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards growing, which copies and takes fresh memory: it had been a twentieth of all time."""
    rooms: list[int] = []
    original = SequenceState.reserve

    def reserve(self: SequenceState, length: int) -> None:
        before = self.num_bytes
        original(self, length)
        if self.num_bytes > before and len(self.layers) > 1:
            rooms.append(self.num_bytes)

    monkeypatch.setattr(SequenceState, "reserve", reserve)
    engine = Engine.for_model(backbone, drafter)
    finish(engine, ask(1, 2, max_tokens=40), ask(3, max_tokens=ROOM_AHEAD))
    assert len(rooms) == 2, "one begins anew, one with a copy of the other's system prompt"
