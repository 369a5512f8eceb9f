"""Prefill on the device: prompts run chunk by chunk, and the head observes them at once.

In:  chunks of sequences that have slots and pages. Out: first tokens, picked on the host.
The last row of a prompt waits in its slot's ring: rounds begin with the rows that wait, and there
is always at least one.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from headlong.arrays import FloatArray
from headlong.decode.device.head import DeviceHead, capped
from headlong.decode.device.round import run_backbone
from headlong.decode.device.tensors import RING, DeviceTensors
from headlong.decode.page_memory import state_of
from headlong.decode.prefill import (
    PrefillResult,
    PromptChunk,
    pick_first_tokens,
    pool_prompts,
    score_prompts,
)
from headlong.decode.sequence import DecodingSequence
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.cuda.paged_blocks import DeviceRows


class _Piece(NamedTuple):
    """The rows of one chunk."""

    sequence: DecodingSequence
    slot: int
    start: int
    stop: int
    is_end: bool
    """Whether the prompt is through with these rows."""


class DevicePrefill:
    """Passes over prompts."""

    def __init__(self, backbone: Backbone, head: DeviceHead | None, tensors: DeviceTensors) -> None:
        self._backbone = backbone
        self._head = head
        self._tensors = tensors

    def __call__(
        self, chunks: Sequence[PromptChunk], slots: Sequence[int], width: int
    ) -> list[PrefillResult]:
        """Run one pass; rows look at `width` pages of their slots."""
        began_s = time.perf_counter()
        pieces = [_piece(*pair) for pair in zip(chunks, slots, strict=True)]
        rows = self._rows(pieces, width)
        drafts = any(state_of(one.sequence).num_observed is not None for one in pieces)
        head = self._head if drafts else None
        x, features = run_backbone(self._backbone, self._tensors, head, rows)
        normed = self._tensors.ops.paged.norm(x, self._backbone.final_norm)
        hidden = HiddenRows(x, normed, None)
        score = partial(self._logits, x)
        score_prompts(chunks, score)
        pool_prompts(chunks, hidden, self._backbone)
        picks = pick_first_tokens(chunks, score)
        passed_s = time.perf_counter()
        if features is not None:
            self._observe(pieces, rows, features)
        self._commit(pieces)
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)  # how long prompts take is learned from this call
        observed_s = time.perf_counter()
        return [
            PrefillResult(
                pick,
                chunk.num_rows / len(x) * (passed_s - began_s),
                chunk.num_rows / len(x) * (observed_s - passed_s),
            )
            for chunk, pick in zip(chunks, picks, strict=True)
        ]

    def _logits(self, x: Tensor, rows: Sequence[int]) -> FloatArray:
        """Score some rows as rounds do; the plain op set would unpack the whole LM head."""
        backbone, ops = self._backbone, self._tensors.ops
        logits = ops.paged.logits(ops.rows(x, rows), backbone.final_norm, backbone.lm_head)
        return ops.to_host(capped(logits, backbone.logit_cap))

    def _rows(self, pieces: Sequence[_Piece], width: int) -> DeviceRows:
        ids = [i for one in pieces for i in one.sequence.token_ids[one.start : one.stop]]
        positions = [p for one in pieces for p in range(one.start, one.stop)]
        slots = [one.slot for one in pieces for _ in range(one.start, one.stop)]
        table = self._tensors.table[:, :width]
        return DeviceRows(self._sent(ids), self._sent(positions), self._sent(slots), table)

    def _observe(self, pieces: Sequence[_Piece], rows: DeviceRows, features: Tensor) -> None:
        """Let the head observe rows whose next token is known; a prompt's last row waits."""
        assert self._head is not None
        observed: list[int] = []
        next_ids: list[int] = []
        first = 0
        for one in pieces:
            state, num_rows = state_of(one.sequence), one.stop - one.start
            if state.num_observed is not None:
                state.num_observed = one.stop - one.is_end
                observed += range(first, first + num_rows - one.is_end)
                next_ids += one.sequence.token_ids[one.start + 1 : state.num_observed + 1]
                ring = self._tensors.features[one.slot]
                ring[(one.stop - 1) % RING] = features[first + num_rows - 1]
            first += num_rows
        if observed:
            own = self._sent(observed).long()
            places = (rows.positions[own], rows.slots[own], rows.page_table)
            known = DeviceRows(self._sent(next_ids), *places)
            self._head.write(features[own], known, self._tensors.head_pages[0])

    def _commit(self, pieces: Sequence[_Piece]) -> None:
        for one in pieces:
            one.sequence.cache.append(one.stop - one.start, all_or_none=True)
            one.sequence.cache.commit(one.stop - one.start)
            if one.is_end:
                self._tensors.put_tokens(one.slot, one.stop, one.sequence.token_ids[-1:])

    def _sent(self, numbers: Sequence[int]) -> Tensor:
        held = torch.tensor(numbers, dtype=torch.int32)
        return held.to(self._tensors.ops.device, non_blocking=True)


def _piece(chunk: PromptChunk, slot: int) -> _Piece:
    sequence, start = chunk.sequence, chunk.sequence.cache.length
    is_end = sequence.num_rows_left == chunk.num_rows
    return _Piece(sequence, slot, start, start + chunk.num_rows, is_end)
