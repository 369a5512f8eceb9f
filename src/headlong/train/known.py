"""Known: what of a run lies there already, and what its prompts are like.

In:  a work folder, prompts, a recipe, the prompts to judge by. Out: `Known`, for expectations.
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
from headlong.train.sampler import Job
from headlong.train.shards import Answers, read_shards, shard_files

USUAL_SHARE = 0.64
"""Tokens of an answer against the most it may have, as the default head's model wrote them."""

_NUM_JOBS = 64
_BLANK_TOKENS = 128
"""Of a prompt of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before a run."""

    jobs: Sequence[Job]
    """Some of those that will be asked."""
    num_tokens: int = 0
    """Answer tokens written so far."""
    num_answers: int = 0
    share_trained: float = 0.0
    num_bench: int = 0
    """Prompts to judge by."""
    judges_twice: bool = False
    """Whether the head is judged as it was before, too."""

    def answer_length(self, recipe: Recipe) -> float:
        """Return how long an answer is expected to be."""
        if self.num_answers:
            return self.num_tokens / self.num_answers
        return USUAL_SHARE * recipe.answers.max_tokens

    def prompt_length(self) -> float:
        """Return how long a prompt is."""
        return float(np.mean([len(job.prompt_ids) for job in self.jobs]))


def find_known(
    work: Path,
    prompts: Sequence[Prompt],
    bench: Sequence[Prompt],
    tokenizer: Tokenizer,
    recipe: Recipe,
    *,
    judges_twice: bool,
) -> Known:
    """Look at what lies there, and at some of the prompts."""
    folder = work / "answers"
    there = read_shards(folder) if shard_files(folder) else None
    tasks, most = Counter(prompt.task for prompt in bench), recipe.evaluation.prompts_per_task
    return Known(
        _sample_jobs(prompts, tokenizer, recipe, there),
        there.num_answer_tokens if there else 0,
        len(there) if there else 0,
        _share_trained(work),
        sum(min(count, most) for count in tasks.values()),
        judges_twice,
    )


def _sample_jobs(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, recipe: Recipe, there: Answers | None
) -> list[Job]:
    """Return some prompts to answer: of those there are, else of the answers, else a blank one."""
    if prompts:
        step = max(1, len(prompts) // _NUM_JOBS)
        conversations = Conversations(prompts[::step], tokenizer, recipe, 0)
        return [conversations.next_ask().job for _ in range(_NUM_JOBS)]
    if there is not None:
        ids = [there.tokens(i)[: there.prompt_lengths[i]] for i in range(len(there))[:_NUM_JOBS]]
    else:
        ids = [np.zeros(min(_BLANK_TOKENS, recipe.prompts.max_tokens), dtype=np.uint32)]
    most = recipe.answers.max_tokens
    return [Job(one.astype(np.int64), most, 0.0, seed) for seed, one in enumerate(ids)]


def _share_trained(work: Path) -> float:
    """Return how much of the training schedule a saved state has behind it."""
    log = work / "log.jsonl"
    records = read_log(log, "train") if log.is_file() else []
    is_there = (work / "training.pt").is_file() and bool(records)
    return float(records[-1]["share"]) if is_there else 0.0
