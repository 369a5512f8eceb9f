"""Recorder: keeps the hidden rows of answers while the engine generates them.

In:  the rows of every pass, as a drafter observes them. Out: the rows of one answer, by its tokens.
Training a head on them then needs no forward pass. They are the rows that the head reads when it
drafts: of the packed model, not of the unpacked one. As a drafter it never drafts anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import NO_DRAFT, Draft, DraftRequest, ObservedRows
from headlong.models.hidden import HiddenRows
from headlong.ops.op_set import Array


@dataclass(slots=True, eq=False)
class Recording:
    """The rows of one sequence so far."""

    token_ids: list[int] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)  # (n, F) each
    is_listed: bool = False
    """Whether the recorder lists it; the engine makes states that never observe a row, too."""

    def read(self) -> Tensor:
        """Return all rows: (N, F)."""
        return torch.cat(self.parts)


class StateRecorder:
    """Records what a head learns from: rows after the final norm and, beside them, the taps."""

    name = "recorder"

    def __init__(self, tap_layers: tuple[int, ...]) -> None:
        self.tap_layers = tap_layers
        self._recordings: list[Recording] = []

    def take(self, token_ids: IntArray) -> Tensor | None:
        """Return the rows of an answer without its last token, which no pass has run: (N - 1, F).

        None if they were not recorded to the end.
        """
        expected = token_ids[:-1].tolist()
        for index, recording in enumerate(self._recordings):
            if recording.token_ids == expected:
                return self._recordings.pop(index).read()
        return None

    def begin(self) -> Recording:
        """Return the recording of a new sequence."""
        return Recording()

    def features(self, hidden: HiddenRows) -> Array:
        """Return what is recorded of a pass: (N, H + T * H)."""
        if hidden.taps is None:
            return hidden.normed
        return np.concatenate([hidden.normed, hidden.taps], axis=1)

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Record rows in bfloat16, which has the range of the largest activations."""
        for one in observed:
            recording: Recording = one.state
            if not recording.is_listed:
                recording.is_listed = True
                self._recordings.append(recording)
            recording.token_ids += one.token_ids.tolist()
            recording.parts += [torch.from_numpy(part).bfloat16() for part in one.features]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft nothing."""
        return [NO_DRAFT] * len(requests)

    def look_up(self, state: Recording, history: list[int], threshold: Threshold) -> Draft:
        """Draft nothing."""
        return NO_DRAFT

    def share(self, state: Recording, num_rows: int) -> Recording:
        """Return a recording of the first rows, for a sequence that begins with the same prompt."""
        parts, num_left = [], num_rows
        for part in state.parts:
            if num_left:
                parts.append(part[:num_left].clone())  # a view would keep all of the other's rows
                num_left -= len(parts[-1])
        return Recording(state.token_ids[:num_rows], parts)

    def num_bytes(self, state: Recording, num_rows: int = 0) -> int:
        """Return the bytes recorded; more rows grow what is kept beside the caches."""
        return sum(part.nbytes for part in state.parts)
