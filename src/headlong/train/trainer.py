"""Trainer: the loop that fits a head to its frozen backbone, resumable after a kill.

In:  a teacher, a head, answers, a recipe, a file to keep the state in.
Out: a trained head. The schedule is a function of how much of the budget is spent, so that a run
cut into several calls learns as one would. Between two saves, at most a minute is lost.
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

from headlong.errors import RequestError
from headlong.train.batches import Batch, plan_epoch, read_batches
from headlong.train.loss import Targets, depth_weights, draft_loss, make_targets
from headlong.train.progress import Report
from headlong.train.projection import round_once
from headlong.train.recipe import Recipe
from headlong.train.shards import Answers
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

_WARM_STEPS = 8
"""Steps of each call that do not count against the budget: compilers work then."""
_REPORT_EVERY_S = 5.0
_LEAST_RATE = 0.02


@dataclass(slots=True)
class TrainState:
    """Where training stands."""

    step: int = 0
    seconds: float = 0.0
    """Time trained so far, without warm-up."""
    epoch: int = 0
    place: int = 0
    """Batches of the epoch already seen."""
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
        settings = recipe.training
        self._depth_weights = depth_weights(settings.num_depths, settings.depth_decay)
        matrices = [p for p in head.parameters() if p.ndim > 1]
        vectors = [p for p in head.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        is_cuda = teacher.device.type == "cuda"
        self._optimiser = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=is_cuda
        )

    @property
    def share_done(self) -> float:
        """How much of the budget is spent, 0…1."""
        settings = self.recipe.training
        if settings.steps is not None:
            return min(1.0, self.state.step / settings.steps)
        return min(1.0, self.state.seconds / settings.seconds)

    def learning_rate(self) -> float:
        """Return the rate of the coming step: warm-up, then a cosine over the budget."""
        settings = self.recipe.training
        warm = min(1.0, (self.state.step + 1) / max(1, settings.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * self.share_done))
        return settings.learning_rate * warm * (_LEAST_RATE + (1 - _LEAST_RATE) * cosine)

    def train(self, answers: Answers, path: Path, time_limit_s: float, report: Report) -> None:
        """Train until the budget or this call's time is spent; the state lies at `path`."""
        self._begin(answers, report)
        started = last_save = last_report = tick = measured_from = time.monotonic()
        num_tokens = 0
        for num_steps, batch in enumerate(self._batches(answers), 1):
            loss, overlaps = self.run_step(batch)
            num_tokens += batch.ids.size
            if num_steps <= _WARM_STEPS:
                loss.item()  # waits for the device, so that warm-up ends where it should
                num_tokens, measured_from = 0, time.monotonic()
            now = time.monotonic()
            if num_steps > _WARM_STEPS:
                self.state.seconds += now - tick
            tick = now
            is_over = self.share_done >= 1 or now - started >= time_limit_s
            if is_over or now - last_report >= _REPORT_EVERY_S:
                self._say(report, loss, overlaps, num_tokens / max(now - measured_from, 1e-9))
                last_report = now
            if is_over:
                break
            if now - last_save >= self.recipe.training.save_every_s:
                self.save(path)
                last_save = now
        self.save(path)

    def run_step(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Learn from one batch; return the loss and the mean overlap of every depth."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.learning_rate()
        device = self.teacher.device
        ids, starts, sequences, temperatures = (
            torch.from_numpy(array).to(device, non_blocking=True)
            for array in (batch.ids, batch.starts, batch.sequences, batch.temperatures)
        )
        least = self.recipe.training.least_temperature
        # Padding rows have no weight, so their temperature does not matter.
        sharpness = 1 / temperatures.clamp(min=least)[sequences.clamp(min=0)]
        depths = self.recipe.training.num_depths
        with torch.no_grad():
            hidden = self.teacher.forward(ids, self.head.tap_layers)
            targets = make_targets(hidden.normed, self._score, starts, sequences, depths)
        with self.teacher.mixed_precision(), round_once(self.head):
            states = self.head.rollout(hidden, ids)
            total, overlaps = self._sum_depths(states, starts, targets, sharpness)
        self._optimiser.zero_grad(set_to_none=True)
        total.backward()
        limit = self.recipe.training.max_grad_norm
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), limit)
        self._optimiser.step()
        self.state.step += 1
        self.state.place += 1
        return total.detach(), overlaps

    def _sum_depths(
        self, states: Iterator[Tensor], starts: Tensor, targets: Targets, sharpness: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Add up the losses of all depths; return them with every depth's mean overlap."""
        settings = self.recipe.training
        on_path = settings.on_path_share * self.share_done
        total = torch.zeros((), device=starts.device)
        begins = survival = torch.ones(len(starts), device=starts.device)
        overlaps: list[Tensor] = []
        for depth, weight in enumerate(self._depth_weights, 1):
            # index_select, since the gradient of plain indexing sorts.
            rows = torch.index_select(next(states), 0, starts)
            losses, overlap = draft_loss(
                self.head.logits(rows, depth),
                targets.at_depth(depth),
                sharpness,
                self.teacher.pointwise,
                settings.loss,
            )
            if depth == 1:
                begins = begin_shares(overlap, settings.refusal_share * self.share_done)
            is_valid = targets.is_valid(depth).float()
            shares = is_valid * begins * (1 - on_path + on_path * survival)
            total = total + (losses * shares).sum() * (weight / shares.sum().clamp(min=1e-6))
            survival = survival * overlap
            overlaps.append((overlap * is_valid).sum() / is_valid.sum().clamp(min=1))
        return total, overlaps

    def save(self, path: Path) -> None:
        """Write weights, optimiser and position; a kill meanwhile leaves the last state whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        stored = {
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "position": asdict(self.state),
        }
        torch.save(stored, part)
        os.replace(part, path)

    def restore(self, path: Path) -> None:
        """Go on from a saved state."""
        stored: dict[str, Any] = torch.load(
            path, map_location=self.teacher.device, weights_only=True
        )
        try:
            self.head.load_state_dict(stored["head"])
        except RuntimeError as error:
            raise RequestError(
                f"{path} is the state of another head than this run trains.",
                "Give another --work folder, or the recipe and options it was begun with.",
            ) from error
        self._optimiser.load_state_dict(stored["optimiser"])
        self.state = TrainState(**stored["position"])

    def _begin(self, answers: Answers, report: Report) -> None:
        """Keep the place in the epoch only while the answers are the same."""
        state = self.state
        if state.fingerprint not in ("", answers.fingerprint):
            report.say("The answers have changed since the last call; a new epoch begins.")
            state.epoch, state.place = state.epoch + 1, 0
        state.fingerprint = answers.fingerprint

    def _batches(self, answers: Answers) -> Iterator[Batch]:
        state = self.state
        while True:
            seed = (self.recipe.seed, 11, state.epoch)
            plan = plan_epoch(answers, self.recipe.training.tokens_per_step, seed)
            yield from read_batches(answers, plan[state.place :])
            state.epoch, state.place = state.epoch + 1, 0

    def _say(self, report: Report, loss: Tensor, overlaps: list[Tensor], rate: float) -> None:
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


def begin_shares(first_overlap: Tensor, refusal_share: float) -> Tensor:
    """Return how much a draft from each start row counts: (N,).

    A round begins behind a token that no draft got right, or behind a whole draft. The row before
    spoke about that token at depth 1, so its overlap says how likely that was.
    """
    refused = 1 - F.pad(first_overlap[:-1], (1, 0))
    return 1 - refusal_share + refusal_share * refused
