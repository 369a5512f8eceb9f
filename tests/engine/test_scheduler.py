"""The scheduler: in order, in turns, within measured time; a full queue says when to come back."""

import pytest

from fakes import make_sequence
from headlong.cache.sequence_state import SequenceState
from headlong.decode.request import Request
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.engine.request_policy import RequestPolicy
from headlong.engine.scheduler import MIN_CHUNK, PREFILL_SHARE, Scheduler
from headlong.errors import BusyError


def reading(num_tokens: int) -> Running:
    """Return a request with a prompt of so many tokens, none of which has run."""
    prompt = (1,) * num_tokens
    sequence = make_sequence(prompt, SequenceState(()), vocab_size=8)
    return Running(Request(prompt), sequence, RequestPolicy("off"))


def decoding() -> Running:
    """Return a request whose prompt has run."""
    running = reading(4)
    advance(running, 4)
    running.sequence.token_ids.append(2)
    running.sequence.has_begun = True
    return running


def advance(running: Running, num_rows: int) -> None:
    """Run rows of a prompt."""
    running.sequence.cache.append(num_rows)
    running.sequence.cache.commit(num_rows)


def begun(scheduler: Scheduler, *requests: Running) -> None:
    """Let requests run."""
    for one in requests:
        scheduler.enqueue(one)
        scheduler.begin(one)


def test_alone_a_prompt_gets_the_whole_step() -> None:
    scheduler = Scheduler(EngineLimits(prefill_rows_per_step=100))
    one = reading(250)
    begun(scheduler, one)
    sizes = []
    while chunks := scheduler.next_chunks():
        ((_, num_rows),) = chunks
        sizes.append(num_rows)
        advance(one, num_rows)
    assert sizes == [100, 100, 50]


def test_prompts_take_turns() -> None:
    scheduler = Scheduler(EngineLimits(prefill_rows_per_step=64))
    long, short = reading(1000), reading(40)
    begun(scheduler, long, short)
    for _ in range(2):
        for one, num_rows in scheduler.next_chunks():
            advance(one, num_rows)
    assert short.sequence.num_rows_left == 0, "it need not wait for the long one"
    assert long.sequence.num_rows_left < 1000


def test_more_prompts_than_rows_are_all_served() -> None:
    scheduler = Scheduler(EngineLimits(prefill_rows_per_step=2 * MIN_CHUNK))
    requests = [reading(100) for _ in range(7)]
    begun(scheduler, *requests)
    for _ in range(7):
        chunks = scheduler.next_chunks()
        assert sum(num_rows for _, num_rows in chunks) <= 2 * MIN_CHUNK
        for one, num_rows in chunks:
            advance(one, num_rows)
    assert all(one.sequence.num_rows_left < 100 for one in requests)


def test_beside_streams_a_prompt_takes_as_long_as_a_few_rounds() -> None:
    scheduler = Scheduler(EngineLimits(prefill_rows_per_step=1000))
    begun(scheduler, decoding(), reading(5000))
    for _ in range(20):
        scheduler.observe_prefill(100, 0.100)  # 1 ms a row
        scheduler.observe_round(0.025)
    ((_, num_rows),) = scheduler.next_chunks()
    assert num_rows == pytest.approx(PREFILL_SHARE * 25, abs=1)


def test_slow_prompts_still_move_on() -> None:
    scheduler = Scheduler(EngineLimits())
    begun(scheduler, decoding(), reading(5000))
    scheduler.observe_prefill(1, 1.0)
    scheduler.observe_round(0.001)
    ((_, num_rows),) = scheduler.next_chunks()
    assert num_rows == MIN_CHUNK


def test_one_stall_does_not_starve_prompts() -> None:
    scheduler = Scheduler(EngineLimits(prefill_rows_per_step=1000))
    begun(scheduler, decoding(), reading(5000))
    for _ in range(20):
        scheduler.observe_prefill(100, 0.100)
        scheduler.observe_round(0.050)
    scheduler.observe_prefill(100, 60.0)
    ((_, num_rows),) = scheduler.next_chunks()
    assert num_rows > 60


def test_preempted_request_is_first_again() -> None:
    scheduler = Scheduler(EngineLimits())
    first, second = reading(5), reading(5)
    begun(scheduler, first)
    scheduler.enqueue(second)
    scheduler.preempt(first)
    assert list(scheduler.waiting) == [first, second]


def test_full_queue_refuses_one_more() -> None:
    scheduler = Scheduler(EngineLimits(max_running=1, max_waiting=2))
    for _ in range(3):
        scheduler.enqueue(reading(5))
    with pytest.raises(BusyError, match=r"3 requests .* 1 that run and 2 that wait"):
        scheduler.enqueue(reading(5))
