"""Evaluation after training: simulated acceptance on held-out prompts.

In:  bench prompts, a sampler, a head. Out: `DecodeStats` by task, temperature and draft length K,
and the acceptance with smaller draft vocabularies.
The backbone answers the prompts. Then decoding is simulated along its answers: a draft token is
accepted if it equals the answer's token, which was picked with the same noise. The chains get the
true tokens as input. That makes no difference: a draft ends at its first wrong token.
`headlong eval-head` measures acceptance with real decoding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.arrays import IntArray
from headlong.decode.stats import DecodeStats, walk_rounds
from headlong.text.tokenizer import Tokenizer
from headlong.train.batches import LENGTH_STEP, Batch, make_batch
from headlong.train.chains import place_starts
from headlong.train.draft_vocabulary import DraftVocabulary
from headlong.train.generate import answer_all
from headlong.train.pointwise import noise
from headlong.train.progress import Report
from headlong.train.prompt_files import Prompt, read_frame
from headlong.train.recipe import Recipe
from headlong.train.rows import RowMaker
from headlong.train.sampler import AnswerRows, Job
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

CUTS = (4096, 6144, 8192, 10240)
"""Smaller draft vocabularies that are also evaluated."""
_ROWS_PER_BATCH = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer and the job that generated it."""

    job: Job
    ids: IntArray
    """Prompt and answer."""


Samples: TypeAlias = dict[float, dict[str, list[Sample]]]
"""By temperature, then by task."""


@dataclass(frozen=True, slots=True)
class Simulator:
    """Simulates decoding with a head, optionally with a part of its draft vocabulary."""

    teacher: Teacher
    head: TorchHead
    vocabulary: DraftVocabulary
    max_depth: int
    vocabulary_cut: int | None = None
    """Draft only from this many of the most frequent tokens."""

    @torch.no_grad()
    def run(self, samples: Sequence[Sample]) -> dict[int, DecodeStats]:
        """Return the stats of decoding with K = 1 … max_depth."""
        deepest = min(self.max_depth, self.head.max_depth or self.max_depth)
        counted = {k: DecodeStats() for k in range(1, deepest + 1)}
        useful = [s for s in samples if len(s.ids) >= len(s.job.prompt_ids) + 2]
        useful.sort(key=lambda sample: len(sample.ids))
        for first in range(0, len(useful), _ROWS_PER_BATCH):
            chunk = useful[first : first + _ROWS_PER_BATCH]
            length = -(-len(chunk[-1].ids) // LENGTH_STEP) * LENGTH_STEP
            temperatures = np.array([s.job.temperature for s in chunk], dtype=np.float32)
            prompt_lengths = [len(s.job.prompt_ids) for s in chunk]
            batch = make_batch([s.ids for s in chunk], prompt_lengths, temperatures, length)
            accepted = self._find_accepted(batch, chunk, deepest)
            for line in range(len(chunk)):
                _count(accepted[:, batch.sequences == line], counted)
        return counted

    def _find_accepted(
        self, batch: Batch, samples: Sequence[Sample], deepest: int
    ) -> NDArray[np.bool_]:
        """Return for every depth and start row whether the draft token is accepted: (K, N)."""
        device = self.teacher.device
        ids = torch.from_numpy(batch.ids).to(device)
        starts = place_starts(batch.starts, batch.sequences, len(batch.ids), device)
        owners = torch.from_numpy(batch.sequences).to(device).clamp(min=0)
        seeds = torch.tensor([s.job.seed for s in samples], device=device)[owners]
        temperatures = torch.tensor([s.job.temperature for s in samples], device=device)[owners]
        vocabulary = torch.from_numpy(self.vocabulary.ids).to(device)
        hidden = self.teacher.forward(ids, self.head.tap_layers)
        flat = ids.reshape(-1)
        matches: list[Tensor] = []
        with self.teacher.mixed_precision():
            states = self.head.rollout(hidden, ids, starts)
            for depth in range(1, deepest + 1):
                logits = self._cut(self.head.logits(next(states), depth)).float()
                targets = starts.rows + 1 + depth  # index of the token that is predicted
                gumbel = noise(seeds, targets % batch.ids.shape[1], vocabulary)
                drafted = vocabulary[(logits + temperatures[:, None] * gumbel).argmax(-1)]
                matches.append(drafted == flat[targets.clamp(max=len(flat) - 1)])
        accepted: NDArray[np.bool_] = torch.stack(matches).cpu().numpy()
        return accepted

    def _cut(self, logits: Tensor) -> Tensor:
        if self.vocabulary_cut is None:
            return logits
        ranks = torch.from_numpy(self.vocabulary.ranks).to(logits.device)
        return logits.masked_fill(ranks >= self.vocabulary_cut, float("-inf"))


def sample_bench(
    rows: RowMaker, tokenizer: Tokenizer, prompts: Sequence[Prompt], recipe: Recipe
) -> Samples:
    """Generate the backbone's answers to bench prompts at every temperature of the recipe."""
    settings = recipe.evaluation
    frame = read_frame(tokenizer)
    jobs: list[Job] = []
    tasks: list[str] = []
    for number, prompt in enumerate(prompts):
        text = frame.frame(prompt.turns[0])
        ids = np.array(tokenizer.encode(text, add_special=False), dtype=np.int64)
        fits = len(ids) <= recipe.prompts.max_tokens
        if not fits or tasks.count(prompt.task) >= settings.prompts_per_task:
            continue
        jobs.append(Job(ids, settings.max_tokens, 0.0, seed=number))
        tasks.append(prompt.task)
    capacity = recipe.prompts.max_tokens + settings.max_tokens
    num_rows = min(512, recipe.answers.num_rows)

    @cache
    def make_rows(by_engine: bool) -> AnswerRows:
        make = rows.generator if by_engine else rows.sampler
        return make(num_rows, capacity)

    samples: Samples = {}
    for temperature in settings.temperatures:
        jobs = [replace(job, temperature=temperature) for job in jobs]
        # Greedy answers are those of any rows; others must have the noise of the simulation.
        sampler = make_rows(rows.uses_engine and not temperature)
        answers = answer_all(sampler, jobs, recipe.answers.refill_every)
        by_task: dict[str, list[Sample]] = {}
        for task, job, ids in zip(tasks, jobs, answers, strict=True):
            by_task.setdefault(task, []).append(Sample(job, ids))
        samples[temperature] = by_task
    return samples


def evaluate_head(
    teacher: Teacher,
    head: TorchHead,
    vocabulary: DraftVocabulary,
    samples: Samples,
    recipe: Recipe,
    report: Report,
) -> dict[str, Any]:
    """Simulate decoding; report acceptance as tables and return it."""
    simulator = Simulator(teacher, head, vocabulary, recipe.evaluation.max_depth)
    evaluation: dict[str, Any] = {"by_depth": {}}
    for temperature, by_task in samples.items():
        results = {task: simulator.run(items) for task, items in sorted(by_task.items())}
        report.say(f"temperature {temperature:g}\n{_table(results)}")
        evaluation[f"temperature_{temperature:g}"] = {
            task: {str(k): stats.to_dict() for k, stats in by_k.items()}
            for task, by_k in results.items()
        }
        evaluation["by_depth"][f"temperature_{temperature:g}"] = _at_depths(results.values())
    first = next(iter(samples.values()), {})
    cuts: dict[str, dict[int, DecodeStats]] = {}
    for cut in (*(size for size in CUTS if size < len(vocabulary.ids)), len(vocabulary.ids)):
        narrowed = replace(simulator, vocabulary_cut=cut)
        cuts[f"{cut} draft tokens"] = narrowed.run([s for items in first.values() for s in items])
    report.say(f"all tasks, smaller draft vocabularies\n{_table(cuts)}")
    evaluation["vocabulary_cuts"] = {
        name: {str(k): stats.acceptance_length for k, stats in by_k.items()}
        for name, by_k in cuts.items()
    }
    return evaluation


def shorten(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return acceptance lengths for K = 1, 2, … by temperature and task, and acceptance by depth.

    If the head was also evaluated before training, `before` has the same results of that.
    """
    short: dict[str, Any] = {
        name: {
            task: [round(stats["acceptance_length"], 3) for stats in by_k.values()]
            for task, by_k in by_task.items()
        }
        for name, by_task in results.items()
        if name.startswith("temperature_")
    }
    short["by_depth"] = results["by_depth"]
    if "before" in results:
        short["before"] = shorten(results["before"])
    return short


def compare_depths(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return a table of the acceptance at each depth, before and after training."""
    lines: list[str] = []
    for name in after["by_depth"]:
        shares = {"before": before["by_depth"][name], "after": after["by_depth"][name]}
        heading = f"accepted at depth, {name.replace('_', ' ')}"
        depths = range(1, len(shares["after"]) + 1)
        lines.append(f"{heading:<34}" + "".join(f"{d:6d}" for d in depths) + "  length")
        for label, values in shares.items():
            cells = "".join(f"{share:6.0%}" for share in values)
            lines.append(f"{label:<34}{cells}{1 + sum(values):8.2f}")
    return "\n".join(lines)


def _at_depths(results: Iterable[Mapping[int, DecodeStats]]) -> list[float]:
    """Return the share of all rounds in which each depth was accepted, at the largest K."""
    total = DecodeStats()
    for by_k in results:
        total.merge(by_k[max(by_k)])
    return [round(share, 4) for share in total.acceptance_at_depth]


def _table(results: Mapping[str, Mapping[int, DecodeStats]]) -> str:
    """Return a table of acceptance lengths by task and K."""
    depths = sorted({k for stats in results.values() for k in stats})
    lines = [f"{'acceptance length':<22}" + "".join(f"   K={k}" for k in depths)]
    for name, stats in results.items():
        cells = "".join(f"{stats[k].acceptance_length:6.2f}" for k in depths)
        lines.append(f"{name:<22}{cells}")
    return "\n".join(lines)


def _count(accepted: NDArray[np.bool_], counted: Mapping[int, DecodeStats]) -> None:
    """Count the rounds along one answer for every K; `accepted`: (depths, rows of the answer)."""
    num_depths, num_rows = accepted.shape
    num_left = num_rows - np.arange(num_rows)
    num_leading = np.where(accepted.all(axis=0), num_depths, accepted.argmin(axis=0))
    counts = np.minimum(num_leading, num_left).tolist()
    for k, stats in counted.items():
        for row, num_accepted in walk_rounds(counts, k):
            stats.observe_round(("head",) * min(k, num_rows - row), num_accepted)
