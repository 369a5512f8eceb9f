"""Generate: the backbone answers prompts until there is enough, or until time is up.

In:  a sampler, conversations, a place to keep answers.
Out: shards on disk, and how fast it went. Nothing of a row that was not finished is kept.
"""

import time
from dataclasses import dataclass

from headlong.arrays import IntArray
from headlong.train.conversations import Ask, Conversations
from headlong.train.progress import Report
from headlong.train.sampler import Job, Sampler
from headlong.train.shards import Answer, ShardWriter

_REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """How long to go on."""

    tokens_wanted: int
    """Answer tokens that shall lie on disk in the end."""
    tokens_there: int
    """Answer tokens that lie there already."""
    time_limit_s: float
    refill_every: int


@dataclass(slots=True)
class GenerationCount:
    """What one call of `generate_answers` brought."""

    num_answers: int = 0
    num_tokens: int = 0
    """Answer tokens."""
    num_written: int = 0
    """All tokens written, user turns included."""
    seconds: float = 0.0


def generate_answers(
    sampler: Sampler,
    conversations: Conversations,
    writer: ShardWriter,
    plan: GenerationPlan,
    report: Report,
) -> GenerationCount:
    """Keep all rows busy until enough answers are there or time is up."""
    count = GenerationCount()
    rows: dict[int, Ask] = {}
    started = last_report = time.monotonic()
    while True:
        count.seconds = time.monotonic() - started
        num_there = plan.tokens_there + count.num_tokens
        if num_there >= plan.tokens_wanted or count.seconds >= plan.time_limit_s:
            break
        _refill(sampler, conversations, rows)
        sampler.run(plan.refill_every)
        for row, ids in sampler.finished(list(rows)).items():
            ask = rows.pop(row)
            num_new = len(ids) - len(ask.job.prompt_ids)
            count.num_written += num_new
            if conversations.settle(ask, ids):
                answer = Answer(ids, len(ask.job.prompt_ids), ask.job.temperature, ask.set_name)
                writer.add(answer, conversations.num_asked)
                count.num_answers += 1
                count.num_tokens += num_new
        if time.monotonic() - last_report >= _REPORT_EVERY_S:
            last_report = time.monotonic()
            _say(report, plan, count, last_report - started)
    writer.close(conversations.num_asked)
    _say(report, plan, count, max(count.seconds, 1e-9))
    return count


def answer_all(sampler: Sampler, jobs: list[Job], refill_every: int) -> list[IntArray]:
    """Answer a list of prompts to the end, in order; more prompts than rows are fine."""
    answers: list[IntArray | None] = [None] * len(jobs)
    waiting = list(reversed(range(len(jobs))))
    rows: dict[int, int] = {}
    while waiting or rows:
        free = [row for row in range(sampler.num_rows) if row not in rows][: len(waiting)]
        given = {row: waiting.pop() for row in free}
        if given:
            sampler.load(list(given), [jobs[i] for i in given.values()])
        rows |= given
        sampler.run(refill_every)
        for row, ids in sampler.finished(list(rows)).items():
            answers[rows.pop(row)] = ids
    return [ids for ids in answers if ids is not None]


def _refill(sampler: Sampler, conversations: Conversations, rows: dict[int, Ask]) -> None:
    free = [row for row in range(sampler.num_rows) if row not in rows]
    if free:
        asks = [conversations.next_ask() for _ in free]
        sampler.load(free, [ask.job for ask in asks])
        rows.update(zip(free, asks, strict=True))


def _say(report: Report, plan: GenerationPlan, count: GenerationCount, seconds: float) -> None:
    num_there = plan.tokens_there + count.num_tokens
    by_tokens = num_there / plan.tokens_wanted
    by_time = seconds / plan.time_limit_s
    report.progress(
        "generate",
        min(1.0, max(by_tokens, by_time)),
        {
            "answers": count.num_answers,
            "answer_tokens": num_there,
            "tokens_per_s": round(count.num_written / max(seconds, 1e-9)),
            "time_left_s": round(max(0.0, plan.time_limit_s - seconds)),
        },
    )
