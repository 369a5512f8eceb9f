"""Workload: what a run has done so far, and a sample of its prompts.

In:  a work folder, training prompts, evaluation prompts, a recipe. Out: `Workload`, for estimates.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headlong.text.tokenizer import Tokenizer
from headlong.train.conversations import Conversations
from headlong.train.progress import read_log
from headlong.train.prompt_files import Prompt
from headlong.train.recipe import Recipe
from headlong.train.recorded_states import RecordedStates
from headlong.train.sampler import Job
from headlong.train.shards import Answers, read_shards, shard_files

TYPICAL_SHARE = 0.64
"""Mean length of an answer relative to `answers.max_tokens`, measured with the default model."""

_NUM_JOBS = 64
_PLACEHOLDER_TOKENS = 128
"""Assumed length of prompts when there are none to sample."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the estimates of a run depend on."""

    jobs: Sequence[Job]
    """A sample of the prompts."""
    num_tokens: int = 0
    """Answer tokens generated so far."""
    num_answers: int = 0
    share_trained: float = 0.0
    num_bench: int = 0
    """Evaluation prompts."""
    evaluates_before: bool = False
    """Whether the head is also evaluated as it was before training."""

    def answer_length(self, recipe: Recipe) -> float:
        """Return the expected length of an answer."""
        if self.num_answers:
            return self.num_tokens / self.num_answers
        return TYPICAL_SHARE * recipe.answers.max_tokens

    def prompt_length(self) -> float:
        """Return the mean length of a prompt."""
        return float(np.mean([len(job.prompt_ids) for job in self.jobs]))


def recorded_share(folder: Path, hidden_size: int, taps: tuple[int, ...] | None) -> float:
    """Return the share of the answers with recorded states; without answers, of those to come."""
    if taps is None or not shard_files(folder):
        return float(taps is not None)
    answers = read_shards(folder)
    return len(RecordedStates(answers, hidden_size, len(taps))) / len(answers)


def read_workload(
    work: Path,
    prompts: Sequence[Prompt],
    bench: Sequence[Prompt],
    tokenizer: Tokenizer,
    recipe: Recipe,
    *,
    evaluates_before: bool,
) -> Workload:
    """Read the progress from the work folder, and sample the prompts."""
    folder = work / "answers"
    answers = read_shards(folder) if shard_files(folder) else None
    tasks, limit = Counter(prompt.task for prompt in bench), recipe.evaluation.prompts_per_task
    return Workload(
        _sample_jobs(prompts, tokenizer, recipe, answers),
        answers.num_answer_tokens if answers else 0,
        len(answers) if answers else 0,
        _share_trained(work),
        sum(min(count, limit) for count in tasks.values()),
        evaluates_before,
    )


def _sample_jobs(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, recipe: Recipe, answers: Answers | None
) -> list[Job]:
    """Sample prompts: from those given, else those of the answers, else a placeholder."""
    if prompts:
        step = max(1, len(prompts) // _NUM_JOBS)
        conversations = Conversations(prompts[::step], tokenizer, recipe, 0)
        return [conversations.next_turn().job for _ in range(_NUM_JOBS)]
    if answers is not None:
        chosen = range(len(answers))[:_NUM_JOBS]
        ids = [answers.tokens(i)[: answers.prompt_lengths[i]] for i in chosen]
    else:
        ids = [np.zeros(min(_PLACEHOLDER_TOKENS, recipe.prompts.max_tokens), dtype=np.uint32)]
    limit = recipe.answers.max_tokens
    return [Job(one.astype(np.int64), limit, 0.0, seed) for seed, one in enumerate(ids)]


def _share_trained(work: Path) -> float:
    """Return the share of the training schedule that the saved state has completed."""
    log = work / "log.jsonl"
    records = read_log(log, "train") if log.is_file() else []
    has_state = (work / "training.pt").is_file() and bool(records)
    return float(records[-1]["share"]) if has_state else 0.0
