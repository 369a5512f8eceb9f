"""The round on the device: observe, draft, verify, pick, accept, all without asking the host.

In:  a line of numbers for every lane (`LaneNumbers`), tensors of all sequences. Out: a line of
     results for every lane, and what the tensors then say.
A lane is a sequence's place in a round. Shapes are fixed by `RoundShape` alone, so that the round
can be captured once and replayed. Rows beyond a lane's own draft, and lanes beyond the batch, fill
up and write nothing that is ever read. Drafts are as long as asked for: rows that a threshold cut
would be computed all the same.
"""

from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.config import MAX_DRAFT_TOKENS
from headlong.decode.device.head import DeviceHead, capped
from headlong.decode.device.tensors import RING, DeviceTensors
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.cuda.paged_blocks import DeviceRows
from headlong.ops.cuda.pick import Draw, PickRows, pick_columns, probs_of


class RoundShape(NamedTuple):
    """What is fixed about a round, and so about its graph."""

    lanes: int
    depth: int
    """Draft tokens that are verified at most."""
    behind: int
    """Rows that the head observes at most, of every lane; 0 leaves the head out."""
    drafts: bool
    """Whether the head drafts; otherwise all draft tokens are given."""
    keeps: bool
    """Whether rows are kept for the head to observe later."""
    width: int
    """Pages of a slot that are looked at."""
    draw: Draw
    shown: int
    """Lanes whose logits the host asks for: the first ones."""


class Column(IntEnum):
    """What a line of numbers says about a lane; the last columns are given draft tokens."""

    SLOT = 0
    LENGTH = auto()
    """Rows that have run; -1 where the device knows better."""
    OBSERVED = auto()
    """Rows that the head has observed; -1 likewise."""
    OBSERVES = auto()
    """Whether the head observes this lane's rows now."""
    NUM_DRAFTED = auto()
    """Draft tokens to verify, given ones included."""
    NUM_GIVEN = auto()
    STREAM = auto()
    TOP_K = auto()
    TEMPERATURE = auto()
    """This and the next two are float64 in the same bits."""
    TOP_P = auto()
    MIN_P = auto()
    GIVEN = auto()


NUM_COLUMNS = Column.GIVEN + MAX_DRAFT_TOKENS


class RoundResults(NamedTuple):
    """What a round returns; lanes as they were given."""

    numbers: Tensor
    """(lanes, 3 * depth + 3) int64: tokens accepted, whether all picks are sound, depth + 1 picks,
    the draft, and the drafted tokens' probabilities as bits of float64."""
    logits: Tensor | None
    """(shown lanes, depth + 1, V), where the host asked for them."""


class _Lanes(NamedTuple):
    """The numbers of all lanes, as they are read."""

    numbers: Tensor
    slots: Tensor
    is_live: Tensor
    lengths: Tensor
    observed: Tensor
    table: Tensor

    def column(self, column: Column) -> Tensor:
        """Return one number of each lane."""
        return self.numbers[:, column]

    def rows(self, token_ids: Tensor, positions: Tensor, is_real: Tensor) -> DeviceRows:
        """Return rows of all lanes, (lanes, n) each; those that are not real fill up."""
        slots = torch.where(is_real & self.is_live[:, None], self.slots[:, None], -1)
        ids, places, owners = (part.int().reshape(-1) for part in (token_ids, positions, slots))
        return DeviceRows(ids, places, owners, self.table)


class DeviceRound:
    """Rounds of one backbone and, maybe, its head."""

    def __init__(self, backbone: Backbone, head: DeviceHead | None, tensors: DeviceTensors) -> None:
        self._backbone = backbone
        self._head = head
        self._tensors = tensors
        ids = None if head is None else head.head.vocabulary
        self._vocabulary = None if ids is None else torch.from_numpy(ids).to(tensors.ops.device)

    @property
    def has_head(self) -> bool:
        """Whether there is a head that can draft."""
        return self._head is not None

    def idle_numbers(self, lanes: int) -> IntArray:
        """Return lines of lanes that do nothing."""
        numbers: IntArray = np.zeros((lanes, NUM_COLUMNS), np.int64)
        numbers[:, Column.SLOT] = self._tensors.nobody
        return numbers

    def __call__(self, shape: RoundShape, numbers: Tensor) -> RoundResults:
        """Make one round."""
        lanes = self._read(shape, numbers)
        rule = _rule(numbers)
        state = self._observe(lanes, shape.behind) if shape.behind else None
        drafted, probs = self._draft(lanes, shape, rule, state)
        logits = self._verify(lanes, shape, drafted)
        picked = pick_columns(
            logits,
            rule.repeated(shape.depth + 1),
            (_places(lanes.lengths, shape.depth + 1) + 1).reshape(-1),
            shape.draw,
            make_noise=self._tensors.ops.paged.noise,
        )
        picks = picked.columns.view(shape.lanes, -1)
        places = torch.arange(shape.depth, device=picks.device)
        is_asked = places < lanes.column(Column.NUM_DRAFTED)[:, None]
        stands = (picks[:, :-1] == drafted) & is_asked
        num_accepted = stands.long().cumprod(1).sum(1)
        is_sound = picked.is_finite.view(shape.lanes, -1)
        is_used = torch.arange(shape.depth + 1, device=picks.device) <= num_accepted[:, None]
        self._commit(lanes, picks, num_accepted)
        results = [num_accepted[:, None], (is_sound | ~is_used).all(1)[:, None].long(), picks]
        results += [drafted, probs.double().view(torch.long)]
        shown = logits.view(shape.lanes, shape.depth + 1, -1)[: shape.shown]
        return RoundResults(torch.cat(results, 1), shown if shape.shown else None)

    def _read(self, shape: RoundShape, numbers: Tensor) -> _Lanes:
        tensors = self._tensors
        slots = numbers[:, Column.SLOT]
        lengths, observed = numbers[:, Column.LENGTH], numbers[:, Column.OBSERVED]
        return _Lanes(
            numbers,
            slots,
            slots != tensors.nobody,
            torch.where(lengths < 0, tensors.lengths[slots], lengths),
            torch.where(observed < 0, tensors.observed[slots], observed),
            tensors.table[:, : shape.width],
        )

    def _observe(self, lanes: _Lanes, most: int) -> Tensor:
        """Let the head observe the rows that wait; return the states drafts begin with: (B, H)."""
        assert self._head is not None
        tensors, slots = self._tensors, lanes.slots[:, None]
        positions = _places(lanes.observed, most)
        next_ids = tensors.tokens[slots, (positions + 1) % RING]
        is_due = positions < lanes.lengths[:, None]
        is_due = is_due & (lanes.column(Column.OBSERVES)[:, None] > 0)
        features = tensors.features[slots, positions % RING].flatten(0, 1)
        num_waiting = (lanes.lengths - lanes.observed).clamp(1, most)
        last = torch.arange(len(slots), device=slots.device) * most + num_waiting - 1
        rows = lanes.rows(next_ids, positions, is_due)
        return self._head.follow(features, rows, tensors.head_pages[0], last)

    def _draft(
        self, lanes: _Lanes, shape: RoundShape, rule: PickRows, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return every lane's draft and probabilities, given tokens first: (B, depth) each."""
        given = lanes.numbers[:, Column.GIVEN : Column.GIVEN + shape.depth]
        if not shape.drafts:
            return given, torch.ones_like(given, dtype=torch.float32)
        assert self._head is not None
        assert state is not None
        # What all depths have in common is made once: launches cost as much as a step's kernels.
        places = torch.arange(shape.depth, device=given.device)
        is_given = places < lanes.column(Column.NUM_GIVEN)[:, None]
        is_real = places < lanes.column(Column.NUM_DRAFTED)[:, None]
        is_real = is_real & (lanes.column(Column.OBSERVES) > 0)[:, None]
        positions, noise = _places(lanes.lengths, shape.depth + 1), self._tensors.ops.paged.noise
        ids: list[Tensor] = []
        scores: list[Tensor] = []
        picks: list[Tensor] = []
        for depth in range(shape.depth):
            if depth:
                before, now = slice(depth - 1, depth), slice(depth, depth + 1)
                rows = lanes.rows(ids[-1][:, None], positions[:, before], is_real[:, now])
                state = self._head.step(state, rows, self._tensors.head_pages[0])
            logits, after = self._head.logits(state), positions[:, depth + 1]
            columns = pick_columns(logits, rule, after, shape.draw, self._vocabulary, noise).columns
            token_ids = columns if self._vocabulary is None else self._vocabulary[columns]
            ids.append(torch.where(is_given[:, depth], given[:, depth], token_ids))
            scores.append(logits)
            picks.append(columns)
        all_scores, all_picks = torch.stack(scores, 1).flatten(0, 1), torch.stack(picks, 1)
        probs = probs_of(all_scores, all_picks.reshape(-1), rule.repeated(shape.depth))
        return torch.stack(ids, 1), torch.where(is_given, 1.0, probs.view_as(is_given))

    def _verify(self, lanes: _Lanes, shape: RoundShape, drafted: Tensor) -> Tensor:
        """Run the backbone over newest tokens and drafts; return logits: (B * (depth + 1), V)."""
        tensors, backbone, paged = self._tensors, self._backbone, self._tensors.ops.paged
        positions = _places(lanes.lengths, shape.depth + 1)
        newest = tensors.tokens[lanes.slots, lanes.lengths % RING]
        place = torch.arange(shape.depth + 1, device=positions.device)
        is_real = place <= lanes.column(Column.NUM_DRAFTED)[:, None]
        rows = lanes.rows(torch.cat([newest[:, None], drafted], 1), positions, is_real)
        x, features = run_backbone(backbone, tensors, self._head if shape.keeps else None, rows)
        if features is not None:
            own = features.view(*positions.shape, -1)
            tensors.features[lanes.slots[:, None], positions % RING] = own
        return capped(paged.logits(x, backbone.final_norm, backbone.lm_head), backbone.logit_cap)

    def _commit(self, lanes: _Lanes, picks: Tensor, num_accepted: Tensor) -> None:
        """Note the new tokens and counts; picks behind the accepted ones are overwritten later."""
        tensors, slots = self._tensors, lanes.slots
        places = (_places(lanes.lengths, picks.shape[1]) + 1) % RING
        tensors.tokens[slots[:, None], places] = picks
        tensors.lengths[slots] = lanes.lengths + num_accepted + 1
        is_observed = lanes.column(Column.OBSERVES) > 0
        tensors.observed[slots] = torch.where(is_observed, lanes.lengths, lanes.observed)


def run_backbone(
    backbone: Backbone, tensors: DeviceTensors, head: DeviceHead | None, rows: DeviceRows
) -> tuple[Tensor, Tensor | None]:
    """Run all layers over rows; return them, and what the head reads of them: (N, F)."""
    paged = tensors.ops.paged
    embedded = paged.embed(backbone.embedding, rows.token_ids, backbone.embedding_scale)
    taps = () if head is None else head.head.tap_layers
    x, tapped = paged.run_layers(embedded, backbone.layers, tensors.pages, rows, taps)
    if head is None:
        return x, None
    normed = paged.norm(x, backbone.final_norm) if tapped is None else x
    return x, head.head.features(HiddenRows(x, normed, tapped))


def _places(first: Tensor, count: int) -> Tensor:
    """Return so many numbers from each first one on: (B, count)."""
    return first[:, None] + torch.arange(count, device=first.device)


def _rule(numbers: Tensor) -> PickRows:
    floats = numbers.view(torch.float64)
    return PickRows(
        temperature=floats[:, Column.TEMPERATURE],
        top_k=numbers[:, Column.TOP_K],
        top_p=floats[:, Column.TOP_P],
        min_p=floats[:, Column.MIN_P],
        stream=numbers[:, Column.STREAM],
    )
