"""Generate: the backbone answers prompts until there are enough answers, or time is up.

In:  a sampler, conversations, a shard writer.
Out: shards on disk, and counts. Unfinished answers are dropped.
"""

import time
from dataclasses import dataclass

from headlong.arrays import IntArray
from headlong.train.conversations import Conversations, Turn
from headlong.train.progress import Report
from headlong.train.sampler import AnswerRows, Job
from headlong.train.shards import Answer, ShardWriter

_REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """When to stop."""

    tokens_wanted: int
    """Total number of answer tokens on disk at which generation stops."""
    tokens_on_disk: int
    """Answer tokens that earlier calls have generated."""
    time_limit_s: float
    refill_every: int


@dataclass(slots=True)
class GenerationCount:
    """What one call of `generate_answers` generated."""

    num_answers: int = 0
    num_tokens: int = 0
    """Answer tokens."""
    num_written: int = 0
    """All generated tokens, user turns included."""
    seconds: float = 0.0


def generate_answers(
    sampler: AnswerRows,
    conversations: Conversations,
    writer: ShardWriter,
    plan: GenerationPlan,
    report: Report,
) -> GenerationCount:
    """Keep all rows busy until there are enough answers or time is up."""
    count = GenerationCount()
    rows: dict[int, Turn] = {}
    started = last_report = time.monotonic()
    while True:
        count.seconds = time.monotonic() - started
        num_tokens = plan.tokens_on_disk + count.num_tokens
        if num_tokens >= plan.tokens_wanted or count.seconds >= plan.time_limit_s:
            break
        _refill(sampler, conversations, rows)
        sampler.run(plan.refill_every)
        for row, (ids, states) in sampler.finished(list(rows)).items():
            turn = rows.pop(row)
            num_new = len(ids) - len(turn.job.prompt_ids)
            count.num_written += num_new
            if conversations.finish(turn, ids):
                answer = Answer(
                    ids, len(turn.job.prompt_ids), turn.job.temperature, turn.set_name, states
                )
                writer.add(answer, conversations.next_prompt)
                count.num_answers += 1
                count.num_tokens += num_new
        if time.monotonic() - last_report >= _REPORT_EVERY_S:
            last_report = time.monotonic()
            _report(report, plan, count, last_report - started)
    writer.close(conversations.next_prompt)
    _report(report, plan, count, max(count.seconds, 1e-9))
    return count


def answer_all(sampler: AnswerRows, jobs: list[Job], refill_every: int) -> list[IntArray]:
    """Answer all prompts; there may be more prompts than rows. Answers keep their order."""
    answers: list[IntArray | None] = [None] * len(jobs)
    waiting = list(reversed(range(len(jobs))))
    rows: dict[int, int] = {}
    while waiting or rows:
        free = [row for row in range(sampler.num_rows) if row not in rows][: len(waiting)]
        loaded = {row: waiting.pop() for row in free}
        if loaded:
            sampler.load(list(loaded), [jobs[i] for i in loaded.values()])
        rows |= loaded
        sampler.run(refill_every)
        for row, done in sampler.finished(list(rows)).items():
            answers[rows.pop(row)] = done.ids
    return [ids for ids in answers if ids is not None]


def _refill(sampler: AnswerRows, conversations: Conversations, rows: dict[int, Turn]) -> None:
    free = [row for row in range(sampler.num_rows) if row not in rows]
    if free:
        turns = [conversations.next_turn() for _ in free]
        sampler.load(free, [turn.job for turn in turns])
        rows.update(zip(free, turns, strict=True))


def _report(report: Report, plan: GenerationPlan, count: GenerationCount, seconds: float) -> None:
    num_tokens = plan.tokens_on_disk + count.num_tokens
    by_tokens = num_tokens / plan.tokens_wanted
    by_time = seconds / plan.time_limit_s
    report.progress(
        "generate",
        min(1.0, max(by_tokens, by_time)),
        {
            "answers": count.num_answers,
            "answer_tokens": num_tokens,
            "tokens_per_s": round(count.num_written / max(seconds, 1e-9)),
            "time_left_s": round(max(0.0, plan.time_limit_s - seconds)),
        },
    )
