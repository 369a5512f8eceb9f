"""Penalties: what a sequence's own tokens do to its logits, and the bias that was asked for.

In:  a row of raw logits. Out: the row with penalties and bias, float32; the same array if there
are none. For every token id in the history, in float64 and rounded once:

    repetition   positive logits are divided by it, others multiplied (the CTRL rule, as in
                 Hugging Face and vLLM), for tokens of prompt and answer, once per token id;
    presence     subtracted once, and
    frequency    subtracted times the count, for tokens of the answer only (as OpenAI and vLLM do).

The bias is added last; before `min_tokens`, what ends a text is ruled out. Touches only the columns
concerned; knows nothing of temperature or noise.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.config import SamplingParams
from headlong.errors import RequestError


class Penalties:
    """Adjusts logits for one sequence; remembers which tokens it has and how often."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        eos_ids: Collection[int] = (),
    ) -> None:
        largest = max(params.logit_bias, default=0)
        if largest >= vocab_size:
            raise RequestError(
                f"logit_bias names token {largest}, but the model has {vocab_size} tokens.",
                f"Use token ids from 0 to {vocab_size - 1}.",
            )
        self._params = params
        self._end_ids = np.array(sorted(eos_ids), dtype=np.int64)
        self._num_held = params.min_tokens if eos_ids else 0
        """How many more tokens the answer must have before it may end."""
        self._vocab_size = vocab_size
        self._bias_ids = np.array([*params.logit_bias.keys()], dtype=np.int64)
        self._bias = np.array([*params.logit_bias.values()], dtype=np.float64)
        self._has_penalties = (
            params.repetition_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )
        # Distinct token ids in order of appearance, with their counts in the answer; both arrays
        # have room to grow, so that a pick gathers them without converting a list.
        self._num_seen = 0
        self._seen_ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float64)
        self._slots: dict[int, int] = {}
        # The last draft vocabulary met and where each token id stands in it.
        self._columns: tuple[IntArray, IntArray] | None = None
        if self._has_penalties:
            for token_id in prompt_ids:
                self._slot(int(token_id))

    @property
    def are_neutral(self) -> bool:
        """Whether `apply` changes nothing, now and later."""
        return not self._has_penalties and not self._bias_ids.size and self._num_held <= 0

    def push(self, token_id: int) -> None:
        """Count one more token of the answer."""
        self._num_held -= 1
        if self._has_penalties:
            slot = self._slot(token_id)  # first: it may replace the array of counts
            self._counts[slot] += 1

    def apply(
        self,
        logits: FloatArray,
        drafted: Sequence[int] = (),
        vocabulary: IntArray | None = None,
    ) -> FloatArray:
        """Return `logits` adjusted as if `drafted` had been pushed; `logits` itself stays as it is.

        `vocabulary` gives the token id of each column; None means column = token id.
        """
        if self.are_neutral:
            return logits
        adjusted = logits.copy()
        if self._has_penalties:
            ids, counts = self._history(drafted)
            columns, present = self._find(ids, vocabulary)
            adjusted[columns] = self._penalised(adjusted[columns], counts[present])
        columns, present = self._find(self._bias_ids, vocabulary)
        adjusted[columns] = adjusted[columns] + self._bias[present]
        if self._num_held > len(drafted):
            columns, _ = self._find(self._end_ids, vocabulary)
            adjusted[columns] = -np.inf
        return adjusted

    def _penalised(self, logits: FloatArray, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        params = self._params
        exact = logits.astype(np.float64)
        factor = params.repetition_penalty
        penalised: NDArray[np.float64] = np.where(exact > 0, exact / factor, exact * factor)
        penalised -= params.presence_penalty * (counts > 0)
        penalised -= params.frequency_penalty * counts
        return penalised

    def _history(self, drafted: Sequence[int]) -> tuple[IntArray, NDArray[np.float64]]:
        """Return the distinct token ids and their counts, `drafted` counted in."""
        ids, counts = self._seen_ids[: self._num_seen], self._counts[: self._num_seen]
        if not drafted:
            return ids, counts
        counts = counts.copy()
        fresh: dict[int, int] = {}
        for token_id in drafted:
            slot = self._slots.get(token_id)
            if slot is None:
                fresh[token_id] = fresh.get(token_id, 0) + 1
            else:
                counts[slot] += 1
        fresh_ids = np.array([*fresh.keys()], dtype=np.int64)
        fresh_counts = np.array([*fresh.values()], dtype=np.float64)
        return np.concatenate([ids, fresh_ids]), np.concatenate([counts, fresh_counts])

    def _find(
        self, token_ids: IntArray, vocabulary: IntArray | None
    ) -> tuple[IntArray, IntArray | slice]:
        """Return the columns of `token_ids` and which of them have one."""
        if vocabulary is None:
            return token_ids, slice(None)
        if self._columns is None or self._columns[0] is not vocabulary:
            column_of = np.full(self._vocab_size, self._vocab_size, dtype=np.int64)
            column_of[vocabulary] = np.arange(len(vocabulary))
            self._columns = (vocabulary, column_of)
        columns = self._columns[1][token_ids]
        present = np.flatnonzero(columns < self._vocab_size)
        return columns[present], present

    def _slot(self, token_id: int) -> int:
        slot = self._slots.get(token_id)
        if slot is not None:
            return slot
        slot = self._num_seen
        if slot == len(self._seen_ids):
            self._seen_ids = np.concatenate([self._seen_ids, np.zeros_like(self._seen_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._seen_ids[slot] = token_id
        self._slots[token_id] = slot
        self._num_seen += 1
        return slot
