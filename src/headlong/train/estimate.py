"""Estimate: time and memory of every stage, from the recipe and a few steps on this very device.

In:  a teacher, prompts, a recipe, what is done already.
Out: `StagePlan`s. Steps are tried in growing sizes until one takes long enough to be measured, and
scaled up to the recipe's. What is tried is thrown away: neither answers nor weights come of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headlong.doctor.machine import read_machine
from headlong.train.batches import LENGTH_STEP, Batch, make_batch
from headlong.train.evaluation import CUTS
from headlong.train.known import USUAL_SHARE, Known
from headlong.train.plan import StagePlan
from headlong.train.recipe import Recipe
from headlong.train.sampler import Sampler
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead
from headlong.train.trainer import Trainer
from headlong.train.trials import KeptBytes, Trial, clock, try_sizes

_STEPS_TRIED = 2
_JUDGED_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Estimator:
    """Makes the plan of each stage of one run."""

    teacher: Teacher
    recipe: Recipe
    known: Known
    make_sampler: Callable[[int, int], Sampler]
    make_trainer: Callable[[], Trainer]

    def generate(self) -> StagePlan:
        """Plan the answers still to be written."""
        recipe, known = self.recipe, self.known
        answers = recipe.answers
        num_tokens = max(0, answers.tokens_wanted - known.num_tokens)
        length = known.answer_length(recipe)
        num_answers = round(num_tokens / length)
        num_rows = answers.num_rows
        tried = self._try_rows(num_rows, recipe.prompts.max_tokens + answers.max_tokens)
        # Rows that have finished stand still until the next look; an answer takes all its steps.
        steps = num_tokens / num_rows * (1 + answers.refill_every / 2 / length)
        steps = round(max(steps, length)) if num_tokens else 0
        return StagePlan(
            "generate",
            {"answers": num_answers, "tokens": num_tokens, "steps": steps},
            {
                "reading prompts": tried.seconds["reading"] * num_answers / num_rows,
                "writing": tried.seconds["writing"] * steps,
            },
            {"model": model_bytes(self.teacher), "caches": tried.num_bytes},
            ("answers.num_rows", "answers.max_tokens", "prompts.max_tokens"),
        )

    def train(self) -> StagePlan:
        """Plan the steps still to be made."""
        recipe, known = self.recipe, self.known
        settings, trainer = recipe.training, self.make_trainer()
        length = known.prompt_length() + known.answer_length(recipe)
        padded = max(LENGTH_STEP, round(length / LENGTH_STEP) * LENGTH_STEP)
        full = max(1, settings.tokens_per_step // padded)
        tried = try_sizes(
            self.teacher.device, lambda size: self._try_step(trainer, size, padded), full
        )
        step_s = sum(tried.seconds.values())
        left = 1 - known.share_trained
        if settings.steps is None:
            steps = round(settings.seconds * left / step_s)
        else:
            steps = round(settings.steps * left)
        num_weights = sum(one.numel() for one in trainer.head.parameters())
        return StagePlan(
            "train",
            {"tokens": steps * full * padded, "steps": steps},
            {name: one * steps for name, one in tried.seconds.items()},
            {
                "model": model_bytes(self.teacher),
                "head": 4 * num_weights,
                "optimiser": 12 * num_weights,  # gradients, and AdamW's two means
                "activations": tried.num_bytes,
            },
            (
                "training.tokens_per_step",
                "training.num_depths",
                "head.draft_vocab_size",
                "answers.max_tokens",
            ),
        )

    def evaluate(self) -> StagePlan:
        """Plan the answers to be judged by, and the judging."""
        recipe, known = self.recipe, self.known
        settings, num_heats = recipe.evaluation, len(recipe.evaluation.temperatures)
        num_rows = max(1, min(512, recipe.answers.num_rows, known.num_bench))
        capacity = recipe.prompts.max_tokens + settings.max_tokens
        tried = self._try_rows(num_rows, capacity)
        rounds = -(-known.num_bench // num_rows) * num_heats
        num_answers = known.num_bench * num_heats
        tokens = round(known.prompt_length() + USUAL_SHARE * settings.max_tokens)
        head = self.make_trainer().head
        judged = self._try_judging(head, tokens)
        num_cuts = sum(cut < recipe.head.draft_vocab_size for cut in CUTS) + 1
        num_judged = known.num_bench * (num_heats + num_cuts) * (1 + known.judges_twice)
        return StagePlan(
            "evaluate",
            {
                "answers": num_answers,
                "tokens": num_answers * round(USUAL_SHARE * settings.max_tokens),
                "steps": rounds * settings.max_tokens,
            },
            {
                "reading prompts": tried.seconds["reading"] * num_answers / num_rows,
                "writing": tried.seconds["writing"] * rounds * settings.max_tokens,
                "judging": judged.seconds["judging"] * num_judged / _JUDGED_TOGETHER,
            },
            {
                "model": model_bytes(self.teacher),
                "head": 4 * sum(one.numel() for one in head.parameters()),
                "activations": judged.num_bytes,
                "caches": tried.num_bytes,
            },
            ("answers.num_rows", "evaluation.max_tokens", "prompts.max_tokens"),
        )

    def _try_rows(self, num_rows: int, capacity: int) -> Trial:
        jobs = self.known.jobs

        def trial(size: int) -> Trial:
            sampler = self.make_sampler(size, capacity)
            chosen = [jobs[i % len(jobs)] for i in range(size)]
            reading = clock(self.teacher.device, lambda: sampler.load(range(size), chosen))
            sampler.run(1)  # a graph is captured
            writing = clock(self.teacher.device, lambda: sampler.run(_STEPS_TRIED)) / _STEPS_TRIED
            logits = 3 * 4 * size * self.teacher.config.vocab_size
            seconds = {"reading": reading, "writing": writing}
            return Trial(size, seconds, sampler.num_bytes + logits)

        return try_sizes(self.teacher.device, trial, num_rows)

    def _try_step(self, trainer: Trainer, size: int, length: int) -> Trial:
        batch = self._random_batch(size, length)
        ids = torch.from_numpy(batch.ids).to(self.teacher.device)
        forward = clock(self.teacher.device, lambda: self._read(ids, trainer.head))
        with KeptBytes(self.teacher.device) as kept:
            whole = clock(self.teacher.device, lambda: trainer.run_step(batch))
        seconds = {"the model's pass": min(forward, whole)}
        seconds["the head, there and back"] = max(0.0, whole - forward)
        return Trial(size, seconds, kept.num_bytes)

    def _try_judging(self, head: TorchHead, length: int) -> Trial:
        padded = -(-length // LENGTH_STEP) * LENGTH_STEP
        depths = min(self.recipe.evaluation.max_depth, head.max_depth or 99)
        size = 0

        @torch.no_grad()
        def judge(ids: Tensor) -> None:
            nonlocal size
            hidden = self.teacher.forward(ids, head.tap_layers)
            with self.teacher.mixed_precision():
                states = head.rollout(hidden, ids)
                for depth in range(1, depths + 1):
                    size = head.logits(next(states), depth).nbytes

        def trial(num_rows: int) -> Trial:
            ids = torch.from_numpy(self._random_batch(num_rows, padded).ids)
            seconds = clock(self.teacher.device, lambda: judge(ids.to(self.teacher.device)))
            return Trial(num_rows, {"judging": seconds}, 3 * size)

        return try_sizes(self.teacher.device, trial, _JUDGED_TOGETHER)

    @torch.no_grad()
    def _read(self, ids: Tensor, head: TorchHead) -> None:
        self.teacher.forward(ids, head.tap_layers)

    def _random_batch(self, size: int, length: int) -> Batch:
        rng = np.random.default_rng(0)
        ids = rng.integers(0, self.teacher.config.vocab_size, (size, length))
        begun = min(length - 3, round(self.known.prompt_length()))
        return make_batch(list(ids), [begun] * size, np.zeros(size, np.float32), length)


def available_bytes(teacher: Teacher) -> int | None:
    """Return what there is on the device, what the model takes already included."""
    if teacher.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(teacher.device)
        return int(free + torch.cuda.memory_reserved(teacher.device))
    free_here = read_machine().available_bytes
    return None if free_here is None else free_here + model_bytes(teacher)


def model_bytes(teacher: Teacher) -> int:
    """Return the bytes of a backbone's weights on its device."""
    backbone = teacher.backbone
    linears = [linear for layer in backbone.layers for linear in layer.linears]
    matrices = [backbone.embedding, backbone.lm_head.weight, *(one.weight for one in linears)]
    return int(sum({id(matrix): matrix.num_bytes for matrix in matrices}.values()))
