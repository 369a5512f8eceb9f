"""A second, smaller model as drafter: classic speculative decoding.

It shares the backbone's vocabulary and nothing else: it runs the prompt through itself, keeps its
own cache, and drafts token by token. Cheaper ways exist where a head is at hand; this one works for
any pair of models with one tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.arrays import FloatArray
from headlong.cache.kv_cache import KVCache
from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import (
    NO_DRAFT,
    Draft,
    DraftRequest,
    Guess,
    Settled,
    as_draft,
)
from headlong.errors import HeadError
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone

READ_AT = 32
"""Settled tokens that wait unread until the next draft; more than that are read at once."""


@dataclass(slots=True)
class ModelMemory:
    """The draft model's cache of one sequence and the tokens that are in it."""

    cache: KVCache
    fed_ids: list[int] = field(default_factory=list)
    settled_ids: list[int] = field(default_factory=list)
    """What the backbone has settled; `fed_ids` may lag behind it or run ahead with a draft."""


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

    def features(self, hidden: HiddenRows) -> FloatArray:
        """Return nothing: tokens are all it reads."""
        return hidden.nothing

    def observe(self, settled: Sequence[Settled]) -> None:
        """Read prompts along with the backbone; a few new tokens can wait for the next draft."""
        for one in settled:
            memory: ModelMemory = one.state
            memory.settled_ids += one.token_ids.tolist()
            if len(memory.settled_ids) - len(memory.fed_ids) > READ_AT:
                self._read(memory, memory.settled_ids)

    def look_up(self, state: ModelMemory, history: list[int], threshold: Threshold) -> Draft:
        """Draft nothing: every token takes a model."""
        return NO_DRAFT

    def share(self, state: ModelMemory, num_rows: int) -> ModelMemory:
        """Return a memory of the first rows, as far as the model has read them."""
        settled = state.settled_ids[:num_rows]
        # A pass that failed may have left less in the cache than is booked as fed.
        fed = state.fed_ids[: min(state.cache.length, len(settled))]
        kept = 0
        while kept < len(fed) and fed[kept] == settled[kept]:
            kept += 1
        cache = state.cache.copy(kept, self.model.make_cache)
        return ModelMemory(cache, settled[:kept], settled)

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
            # Only the history can disagree with what was fed; the draft then just goes on from it.
            new = (
                self._feed(memory, drafted[-1:]) if drafted else self._read(memory, request.history)
            )
            logits = self.model.logits(new[-1:])[0]  # (V,)
            guesses.append(request.guesser.guess(logits, None, drafted))
            if not request.plan.threshold(self.name).can_extend(guess.prob for guess in guesses):
                break
        return as_draft(guesses, self.name, request.plan.threshold(self.name))

    def _read(self, memory: ModelMemory, token_ids: Sequence[int]) -> FloatArray:
        """Bring the cache to hold exactly `token_ids`; return the hidden rows of the new ones."""
        limit = min(len(memory.fed_ids), len(token_ids) - 1)  # the last row is always wanted anew
        kept = 0
        while kept < limit and memory.fed_ids[kept] == token_ids[kept]:
            kept += 1
        memory.cache.truncate(kept)
        del memory.fed_ids[kept:]
        return self._feed(memory, token_ids[kept:])

    def _feed(self, memory: ModelMemory, token_ids: Sequence[int]) -> FloatArray:
        """Run the model over tokens that follow what is in the cache; return their hidden rows."""
        hidden = self.model.forward([np.array(token_ids)], [memory.cache])
        memory.cache.commit(len(token_ids))
        memory.fed_ids += token_ids
        return hidden.normed
