"""Trainer: the training loop of a head, resumable after a kill.

In:  a teacher, a head, answers, a recipe, a file for the training state.
Out: a trained head. The schedule is a function of the spent share of the budget, so a run may be
divided into several calls. A kill loses the steps since the last save, by default at most 45 s.
"""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.doctor.machine import read_machine
from headlong.errors import RequestError
from headlong.models.hidden import HiddenRows
from headlong.train.batches import Batch, plan_epoch, read_batches
from headlong.train.chains import place_starts
from headlong.train.forward_cache import ForwardCache
from headlong.train.loss import Targets, depth_weights, draft_loss, make_targets
from headlong.train.optimiser import Optimiser
from headlong.train.progress import Report
from headlong.train.projection import round_once
from headlong.train.recipe import Recipe
from headlong.train.recorded_states import RecordedStates
from headlong.train.shards import Answers
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

_WARM_UP_STEPS = 8
"""First steps of each call, which include compilation and do not count against the budget."""
_REPORT_EVERY_S = 5.0
_FINAL_RATE = 0.02
"""Learning rate at the end of the schedule, relative to the maximum."""


@dataclass(slots=True)
class TrainState:
    """Position in the training run."""

    step: int = 0
    seconds: float = 0.0
    """Training time so far, without warm-up."""
    epoch: int = 0
    place: int = 0
    """Number of batches of the epoch already trained on."""
    fingerprint: str = ""
    """Of the answers the epoch was planned for."""


class Trainer:
    """A head in training."""

    def __init__(
        self, teacher: Teacher, head: TorchHead, vocabulary: Tensor, recipe: Recipe
    ) -> None:
        self.teacher = teacher
        self.head = head
        self.recipe = recipe
        self.state = TrainState()
        self._score = teacher.scorer(vocabulary)
        is_cuda = teacher.device.type == "cuda"
        free_bytes = read_machine().available_bytes or 0
        self._cache = (
            None
            if is_cuda
            else ForwardCache(teacher, head.tap_layers, free_bytes // 2, head.reads_raw)
        )
        settings = recipe.training
        self._depth_weights = depth_weights(settings.num_depths, settings.depth_decay)
        self.optimiser = Optimiser(head, settings)

    @property
    def share_done(self) -> float:
        """Spent share of the budget, 0…1."""
        settings = self.recipe.training
        if settings.steps is not None:
            return min(1.0, self.state.step / settings.steps)
        return min(1.0, self.state.seconds / settings.seconds)

    def learning_rate(self) -> float:
        """Return the rate of the next step: linear warm-up and a cosine over the budget."""
        settings = self.recipe.training
        warm_up = min(1.0, (self.state.step + 1) / max(1, settings.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * self.share_done))
        return settings.learning_rate * warm_up * (_FINAL_RATE + (1 - _FINAL_RATE) * cosine)

    def train(self, answers: Answers, path: Path, time_limit_s: float, report: Report) -> None:
        """Train until the budget or the time limit is spent; save the state to `path`."""
        self._begin(answers, report)
        started = last_save = last_report = tick = measured_from = time.monotonic()
        num_tokens = 0
        for num_steps, batch in enumerate(self._batches(answers), 1):
            loss, overlaps = self.run_step(batch)
            num_tokens += batch.ids.size
            if num_steps <= _WARM_UP_STEPS:
                loss.item()  # synchronises with the device
                num_tokens, measured_from = 0, time.monotonic()
            now = time.monotonic()
            if num_steps > _WARM_UP_STEPS:
                self.state.seconds += now - tick
            tick = now
            is_over = self.share_done >= 1 or now - started >= time_limit_s
            if is_over or now - last_report >= _REPORT_EVERY_S:
                self._report(report, loss, overlaps, num_tokens / max(now - measured_from, 1e-9))
                last_report = now
            if is_over:
                break
            if now - last_save >= self.recipe.training.save_every_s:
                self.save(path)
                last_save = now
        self.save(path)

    def use_recorded(self, answers: Answers) -> int:
        """Use the hidden rows that were recorded with the answers; return of how many answers."""
        if self._cache is None or self.head.reads_raw:
            return 0
        hidden_size, num_taps = self.teacher.config.hidden_size, len(self.head.tap_layers)
        self._cache.recorded = RecordedStates(answers, hidden_size, num_taps)
        return len(self._cache.recorded)

    def hidden_rows(self, batch: Batch, ids: Tensor) -> HiddenRows:
        """Return the backbone's rows of a batch, whose `ids` are on the device."""
        if self._cache is None:
            return self.teacher.forward(ids, self.head.tap_layers)
        return self._cache.forward(batch)

    def run_step(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Train on one batch; return the loss and the mean overlap of every depth."""
        device = self.teacher.device
        ids, sequences, temperatures = (
            torch.from_numpy(array).to(device, non_blocking=True)
            for array in (batch.ids, batch.sequences, batch.temperatures)
        )
        starts = place_starts(batch.starts, batch.sequences, len(batch.ids), device)
        lower_bound = self.recipe.training.least_temperature
        # Padding rows have no weight, so their temperature does not matter.
        logit_scales = 1 / temperatures.clamp(min=lower_bound)[sequences.clamp(min=0)]
        depths = self.recipe.training.num_depths
        with torch.no_grad():
            hidden = self.hidden_rows(batch, ids)
            targets = make_targets(hidden.normed, self._score, starts.rows, sequences, depths)
        with self.teacher.mixed_precision(), round_once(self.head):
            states = self.head.rollout(hidden, ids, starts)
            total, overlaps = self._sum_depths(states, targets, logit_scales)
        self.optimiser.zero_grad()
        total.backward()
        limit = self.recipe.training.max_grad_norm
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), limit)
        self.optimiser.step(self.learning_rate())
        self.state.step += 1
        self.state.place += 1
        return total.detach(), overlaps

    def _sum_depths(
        self,
        states: Iterator[Tensor],
        targets: Targets,
        logit_scales: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the weighted sum of the losses of all depths, and each depth's mean overlap."""
        settings = self.recipe.training
        on_path = settings.on_path_share * self.share_done
        total = torch.zeros((), device=logit_scales.device)
        begin_weights = survival = torch.ones_like(logit_scales)
        overlaps: list[Tensor] = []
        for depth, weight in enumerate(self._depth_weights, 1):
            losses, overlap = draft_loss(
                self.head.logits(next(states), depth),
                targets.at_depth(depth),
                logit_scales,
                self.teacher.pointwise,
                settings.loss,
            )
            if depth == 1:
                refusal_share = settings.refusal_share * self.share_done
                begin_weights = round_begin_weights(overlap, refusal_share)
            is_valid = targets.is_valid(depth).float()
            row_weights = is_valid * begin_weights * (1 - on_path + on_path * survival)
            row_sum = row_weights.sum().clamp(min=1e-6)
            total = total + (losses * row_weights).sum() * (weight / row_sum)
            survival = survival * overlap
            overlaps.append((overlap * is_valid).sum() / is_valid.sum().clamp(min=1))
        return total, overlaps

    def save(self, path: Path) -> None:
        """Save weights, optimiser and position atomically: a kill leaves the last saved state."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        stored = {
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "position": asdict(self.state),
        }
        torch.save(stored, part)
        os.replace(part, path)

    def restore(self, path: Path) -> None:
        """Load a saved state."""
        stored: dict[str, Any] = torch.load(
            path, map_location=self.teacher.device, weights_only=True
        )
        try:
            self.head.load_state_dict(stored["head"])
            self.optimiser.load_state_dict(stored["optimiser"])
        except (RuntimeError, ValueError) as error:
            raise RequestError(
                f"{path} is the state of another head or optimiser than this run trains.",
                "Give another --work folder, or the recipe and options of the first call.",
            ) from error
        self.state = TrainState(**stored["position"])

    def _begin(self, answers: Answers, report: Report) -> None:
        """Start a new epoch if the answers have changed."""
        state = self.state
        if state.fingerprint not in ("", answers.fingerprint):
            report.say("The answers have changed since the last call; starting a new epoch.")
            state.epoch, state.place = state.epoch + 1, 0
        state.fingerprint = answers.fingerprint

    def _batches(self, answers: Answers) -> Iterator[Batch]:
        state = self.state
        while True:
            seed = (self.recipe.seed, 11, state.epoch)
            plan = plan_epoch(answers, self.recipe.training.tokens_per_step, seed)
            yield from read_batches(answers, plan[state.place :])
            state.epoch, state.place = state.epoch + 1, 0

    def _report(self, report: Report, loss: Tensor, overlaps: list[Tensor], rate: float) -> None:
        settings, state = self.recipe.training, self.state
        left = (1 - self.share_done) * settings.seconds if settings.steps is None else None
        report.progress(
            "train",
            self.share_done,
            {
                "step": state.step,
                "epoch": state.epoch,
                "loss": round(float(loss), 4),
                "overlap": [round(float(overlap), 3) for overlap in overlaps],
                "learning_rate": self.learning_rate(),
                "tokens_per_s": round(rate),
                "time_left_s": None if left is None else round(left),
            },
        )


def round_begin_weights(first_overlap: Tensor, refusal_share: float) -> Tensor:
    """Return the loss weight of each start row, by the chance that a round begins there: (N,).

    A round begins after a refused draft token, or after a draft that was accepted as a whole; the
    latter is ignored here. The previous row predicted the token at depth 1, so the chance that it
    was refused is 1 minus the overlap of the previous row.
    """
    refused = 1 - F.pad(first_overlap[:-1], (1, 0))
    return 1 - refusal_share + refusal_share * refused
