"""Estimate: time and memory of every stage, from the recipe and a few steps on this device.

In:  a teacher, a recipe, the workload.
Out: `StagePlan`s. Trial steps of growing sizes run until one takes long enough to be measured; the
result is scaled up to the size in the recipe. Their answers and weights are discarded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headlong.doctor.machine import read_machine
from headlong.train.batches import LENGTH_STEP, Batch, make_batch
from headlong.train.chains import place_starts
from headlong.train.evaluation import CUTS
from headlong.train.plan import StagePlan
from headlong.train.recipe import Recipe
from headlong.train.rows import RowMaker
from headlong.train.sampler import AnswerRows
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead
from headlong.train.trainer import Trainer
from headlong.train.trials import ActivationMemory, Trial, extrapolate, time_call
from headlong.train.workload import TYPICAL_SHARE, Workload

_FORWARD = "the model's forward pass"
_TRIAL_STEPS = 2
_EVALUATION_ROWS = 16


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates each stage of one run."""

    teacher: Teacher
    recipe: Recipe
    workload: Workload
    rows: RowMaker
    make_trainer: Callable[[], Trainer]
    recorded_taps: tuple[int, ...] | None = None
    """Tap layers whose inputs are recorded with the answers; None where nothing is recorded."""
    recorded_share: float = 0.0
    """Share of the answers whose hidden states are or will be on disk."""

    def generate(self) -> StagePlan:
        """Estimate the answers still to be generated."""
        recipe, workload = self.recipe, self.workload
        answers = recipe.answers
        num_tokens = max(0, answers.tokens_wanted - workload.num_tokens)
        length = workload.answer_length(recipe)
        num_answers = round(num_tokens / length)
        num_rows = answers.num_rows
        capacity = recipe.prompts.max_tokens + answers.max_tokens
        make_rows = partial(self.rows.generator, recorded_taps=self.recorded_taps)
        trial = self._try_rows(make_rows, num_rows, capacity)
        # A finished row idles until the next refill; one answer needs a step for each token.
        steps = num_tokens / num_rows * (1 + answers.refill_every / 2 / length)
        steps = round(max(steps, length)) if num_tokens else 0
        return StagePlan(
            "generate",
            {"answers": num_answers, "tokens": num_tokens, "steps": steps},
            {
                "prefill": trial.seconds["prefill"] * num_answers / num_rows,
                "decoding": trial.seconds["decoding"] * steps,
            },
            {"model": model_bytes(self.teacher), "caches": trial.num_bytes},
            ("answers.num_rows", "answers.max_tokens", "prompts.max_tokens"),
            round(num_answers * (workload.prompt_length() + length) * self._state_bytes),
        )

    @property
    def _state_bytes(self) -> int:
        """Bytes of the recorded hidden states of one token."""
        if self.recorded_taps is None:
            return 0
        return 2 * self.teacher.config.hidden_size * (1 + len(self.recorded_taps))

    def train(self) -> StagePlan:
        """Estimate the training steps still to be run."""
        recipe, workload = self.recipe, self.workload
        settings, trainer = recipe.training, self.make_trainer()
        length = workload.prompt_length() + workload.answer_length(recipe)
        padded = max(LENGTH_STEP, round(length / LENGTH_STEP) * LENGTH_STEP)
        full = max(1, settings.tokens_per_step // padded)
        trial = self._extrapolate(lambda size: self._try_step(trainer, size, padded), full)
        seconds = {**trial.seconds, **trial.fixed_seconds}
        seconds[_FORWARD] *= 1 - self.recorded_share
        step_s = sum(seconds.values())
        left = 1 - workload.share_trained
        if settings.steps is None:
            steps = round(settings.seconds * left / step_s)
        else:
            steps = round(settings.steps * left)
        num_weights = sum(one.numel() for one in trainer.head.parameters())
        return StagePlan(
            "train",
            {"tokens": steps * full * padded, "steps": steps},
            {name: one * steps for name, one in seconds.items()},
            {
                "model": model_bytes(self.teacher),
                "head": 4 * num_weights,
                "optimiser": 12 * num_weights,  # gradients, and AdamW's two moments
                "activations": trial.num_bytes,
            },
            (
                "training.tokens_per_step",
                "training.num_depths",
                "head.draft_vocab_size",
                "answers.max_tokens",
            ),
        )

    def evaluate(self) -> StagePlan:
        """Estimate the answers to the evaluation prompts, and the simulated decoding."""
        recipe, workload = self.recipe, self.workload
        settings, num_temperatures = recipe.evaluation, len(recipe.evaluation.temperatures)
        num_rows = max(1, min(512, recipe.answers.num_rows, workload.num_bench))
        capacity = recipe.prompts.max_tokens + settings.max_tokens
        is_greedy = not any(settings.temperatures)
        make_rows = self.rows.generator if is_greedy else self.rows.sampler
        answered = self._try_rows(make_rows, num_rows, capacity)
        rounds = -(-workload.num_bench // num_rows) * num_temperatures
        num_answers = workload.num_bench * num_temperatures
        tokens = round(workload.prompt_length() + TYPICAL_SHARE * settings.max_tokens)
        head = self.make_trainer().head
        evaluated = self._try_evaluation(head, tokens)
        num_cuts = sum(cut < recipe.head.draft_vocab_size for cut in CUTS) + 1
        num_heads = 1 + workload.evaluates_before
        num_evaluated = workload.num_bench * (num_temperatures + num_cuts) * num_heads
        return StagePlan(
            "evaluate",
            {
                "answers": num_answers,
                "tokens": num_answers * round(TYPICAL_SHARE * settings.max_tokens),
                "steps": rounds * settings.max_tokens,
            },
            {
                "prefill": answered.seconds["prefill"] * num_answers / num_rows,
                "decoding": answered.seconds["decoding"] * rounds * settings.max_tokens,
                "evaluation": evaluated.seconds["evaluation"] * num_evaluated / _EVALUATION_ROWS,
            },
            {
                "model": model_bytes(self.teacher),
                "head": 4 * sum(one.numel() for one in head.parameters()),
                "activations": evaluated.num_bytes,
                "caches": answered.num_bytes,
            },
            ("answers.num_rows", "evaluation.max_tokens", "prompts.max_tokens"),
        )

    def _try_rows(
        self, make_rows: Callable[[int, int], AnswerRows], num_rows: int, capacity: int
    ) -> Trial:
        jobs = self.workload.jobs

        def trial(size: int) -> Trial:
            sampler = make_rows(size, capacity)
            chosen = [jobs[i % len(jobs)] for i in range(size)]
            prefill_s = time_call(self.teacher.device, lambda: sampler.load(range(size), chosen))
            sampler.run(1)  # captures the CUDA graph
            steps_s = time_call(self.teacher.device, lambda: sampler.run(_TRIAL_STEPS))
            logits = 3 * 4 * size * self.teacher.config.vocab_size
            seconds = {"prefill": prefill_s, "decoding": steps_s / _TRIAL_STEPS}
            return Trial(size, seconds, sampler.num_bytes + logits)

        return self._extrapolate(trial, num_rows)

    def _extrapolate(self, run: Callable[[int], Trial], full: int) -> Trial:
        return extrapolate(run, full, compiles=self.teacher.is_compiled)

    def _try_step(self, trainer: Trainer, size: int, length: int) -> Trial:
        batch = self._random_batch(size, length)
        ids = torch.from_numpy(batch.ids).to(self.teacher.device)
        forward = time_call(self.teacher.device, lambda: self._forward(ids, trainer.head))
        with ActivationMemory(self.teacher.device) as memory:
            whole = time_call(self.teacher.device, lambda: trainer.run_step(batch))
        update = time_call(self.teacher.device, lambda: trainer.optimiser.step(0.0))
        seconds = {_FORWARD: min(forward, whole)}
        seconds["the head's forward and backward pass"] = max(0.0, whole - forward - update)
        return Trial(size, seconds, memory.num_bytes, {"the optimiser": min(update, whole)})

    def _try_evaluation(self, head: TorchHead, length: int) -> Trial:
        padded = -(-length // LENGTH_STEP) * LENGTH_STEP
        depths = min(self.recipe.evaluation.max_depth, head.max_depth or 99)
        size = 0

        @torch.no_grad()
        def evaluate_rows(batch: Batch) -> None:
            nonlocal size
            device = self.teacher.device
            ids = torch.from_numpy(batch.ids).to(device)
            hidden = self.teacher.forward(ids, head.tap_layers)
            with self.teacher.mixed_precision():
                starts = place_starts(batch.starts, batch.sequences, len(batch.ids), device)
                states = head.rollout(hidden, ids, starts)
                for depth in range(1, depths + 1):
                    size = head.logits(next(states), depth).nbytes

        def trial(num_rows: int) -> Trial:
            batch = self._random_batch(num_rows, padded)
            seconds = time_call(self.teacher.device, lambda: evaluate_rows(batch))
            return Trial(num_rows, {"evaluation": seconds}, 3 * size)

        return self._extrapolate(trial, _EVALUATION_ROWS)

    @torch.no_grad()
    def _forward(self, ids: Tensor, head: TorchHead) -> None:
        self.teacher.forward(ids, head.tap_layers)

    def _random_batch(self, size: int, length: int) -> Batch:
        rng = np.random.default_rng()  # new ids each time: the trainer may keep rows of old ones
        ids = rng.integers(0, self.teacher.config.vocab_size, (size, length))
        prompt_length = min(length - 3, round(self.workload.prompt_length()))
        return make_batch(list(ids), [prompt_length] * size, np.zeros(size, np.float32), length)


def available_bytes(teacher: Teacher) -> int | None:
    """Return the free memory of the device plus the memory that the model already uses."""
    if teacher.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(teacher.device)
        return int(free + torch.cuda.memory_reserved(teacher.device))
    host_free = read_machine().available_bytes
    return None if host_free is None else host_free + model_bytes(teacher)


def model_bytes(teacher: Teacher) -> int:
    """Return the bytes of a backbone's weights on its device."""
    backbone = teacher.backbone
    linears = [linear for layer in backbone.layers for linear in layer.linears]
    matrices = [backbone.embedding, backbone.lm_head.weight, *(one.weight for one in linears)]
    return int(sum({id(matrix): matrix.num_bytes for matrix in matrices}.values()))
