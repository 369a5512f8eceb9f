"""A second, smaller model as drafter: classic speculative decoding.

It shares only the vocabulary with the backbone: it runs the prompt itself, keeps its own state,
and drafts token by token. Rows of a draft stay pending until the next one begins; then the accepted
ones are committed. Works for any pair of models with the same tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.cache.sequence_state import SequenceState
from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import (
    NO_DRAFT,
    Draft,
    DraftRequest,
    Guess,
    ObservedRows,
    as_draft,
)
from headlong.errors import HeadError
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array

READ_AT = 32
"""Observed tokens that may wait until the next draft; more than that are run at once."""


@dataclass(slots=True)
class ModelMemory:
    """The draft model's state of one sequence.

    Its committed rows are the first tokens of the sequence, possibly not all that were observed.
    """

    cache: SequenceState
    observed_ids: list[int] = field(default_factory=list)
    """Token ids observed so far."""
    drafted_ids: list[int] = field(default_factory=list)
    """The tokens of the pending rows: the last draft, as far as it was run."""
    newest: Array | None = None
    """(1, H) the hidden row of the newest committed row; None before there is any."""


class DraftModelDrafter:
    """Drafts with a second backbone."""

    name = "draft-model"
    tap_layers: tuple[int, ...] = ()

    def __init__(self, model: Backbone, backbone: Backbone) -> None:
        if model.config.vocab_size != backbone.config.vocab_size:
            raise HeadError(
                f"The draft model knows {model.config.vocab_size} tokens, the backbone "
                f"{backbone.config.vocab_size}.",
                "Both must come with the same tokenizer; take a smaller model of the same family.",
            )
        self.model = model

    def begin(self) -> ModelMemory:
        """Return the memory for a new sequence."""
        return ModelMemory(self.model.make_cache())

    def features(self, hidden: HiddenRows) -> Array:
        """Return nothing: tokens are all it reads."""
        return hidden.nothing

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Read prompts along with the backbone; a few new tokens can wait for the next draft."""
        for one in observed:
            memory: ModelMemory = one.state
            memory.observed_ids += one.token_ids.tolist()
            if len(memory.observed_ids) - memory.cache.length > READ_AT:
                self._read(memory, memory.observed_ids)

    def look_up(self, state: ModelMemory, history: list[int], threshold: Threshold) -> Draft:
        """Draft nothing: every token takes a model."""
        return NO_DRAFT

    def share(self, state: ModelMemory, num_rows: int) -> ModelMemory:
        """Return a memory of the first rows, as far as the model has read them."""
        num_read = state.cache.shareable_length(num_rows)
        cache = state.cache.fork(num_read, self.model.make_cache)
        return ModelMemory(cache, state.observed_ids[:num_rows])

    def num_bytes(self, state: ModelMemory, num_rows: int = 0) -> int:
        """Return the bytes of the model's cache of this sequence."""
        return state.cache.bytes_for(num_rows)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft token by token for every request."""
        return [self._draft_one(request) for request in requests]

    def _draft_one(self, request: DraftRequest) -> Draft:
        memory: ModelMemory = request.state
        room = self.model.config.context_length - len(request.history)
        guesses: list[Guess] = []
        for _ in range(min(request.num_tokens, room)):
            drafted = [guess.token_id for guess in guesses]
            if drafted:
                newest = self._run(memory, drafted[-1:])
                memory.drafted_ids += drafted[-1:]
            else:
                newest = self._read(memory, request.history)
            logits = self.model.logits(newest)[0]  # (V,)
            guesses.append(request.guesser.guess(logits, None, drafted))
            if not request.plan.threshold(self.name).can_extend(guess.prob for guess in guesses):
                break
        return as_draft(guesses, self.name, request.plan.threshold(self.name))

    def _read(self, memory: ModelMemory, token_ids: Sequence[int]) -> Array:
        """Commit rows for all of `token_ids`; return the hidden row of the last one: (1, H).

        Of the last draft those rows are kept that agree with them.
        """
        start = memory.cache.length
        num_stood = 0
        for drafted, true in zip(memory.drafted_ids, token_ids[start:-1], strict=False):
            if drafted != true:
                break
            num_stood += 1
        memory.cache.commit(num_stood)
        memory.drafted_ids = []
        new = token_ids[start + num_stood :]
        if new:
            newest = self._run(memory, new, all_or_none=True)
            memory.cache.commit(len(new))
            memory.newest = newest
        assert memory.newest is not None, "a shared state is shorter than its sequence"
        return memory.newest

    def _run(
        self, memory: ModelMemory, token_ids: Sequence[int], *, all_or_none: bool = False
    ) -> Array:
        """Run the model over tokens that follow; return the hidden row of the last: (1, H)."""
        ids = [np.array(token_ids)]
        hidden = self.model.forward(ids, [memory.cache], all_or_none=all_or_none)
        return hidden.normed[-1:]
