"""A second, smaller model as drafter: classic speculative decoding.

It shares the backbone's vocabulary and nothing else: it runs the prompt through itself, keeps its
own cache, and drafts token by token. Cheaper ways exist where a head is at hand; this one works for
any pair of models with one tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.cache.kv_cache import KVCache
from headlong.drafters.drafter import Draft, DraftAsk, Guess, Settled
from headlong.errors import HeadError
from headlong.models.transformer import Backbone


@dataclass(slots=True)
class ModelMemory:
    """The draft model's cache of one sequence and the tokens that are in it."""

    cache: KVCache
    fed_ids: list[int] = field(default_factory=list)


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

    def observe(self, settled: Sequence[Settled]) -> None:
        """Need nothing from the backbone: the model reads the history itself."""

    def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
        """Draft token by token for every ask."""
        return [self._draft_one(ask) for ask in asks]

    def _draft_one(self, ask: DraftAsk) -> Draft:
        memory: ModelMemory = ask.state
        room = self.model.config.context_length - len(ask.history)
        guesses: list[Guess] = []
        _forget_refused(memory, ask.history)
        unread = list(ask.history[len(memory.fed_ids) :])
        for _ in range(min(ask.num_tokens, room)):
            hidden = self.model.forward([np.array(unread)], [memory.cache])
            memory.cache.commit(len(unread))
            memory.fed_ids += unread
            logits = self.model.logits(hidden.normed[-1:])[0]  # (V,)
            drafted = [guess.token_id for guess in guesses]
            guesses.append(ask.guesser.guess(logits, None, drafted))
            unread = [guesses[-1].token_id]
        return Draft(
            tuple(guess.token_id for guess in guesses),
            tuple(guess.prob for guess in guesses),
            (self.name,) * len(guesses),
        )


def _forget_refused(memory: ModelMemory, history: Sequence[int]) -> None:
    """Keep of the cache what agrees with the history, but leave at least one token to read."""
    limit = min(len(memory.fed_ids), len(history) - 1)
    kept = 0
    while kept < limit and memory.fed_ids[kept] == history[kept]:
        kept += 1
    memory.cache.truncate(kept)
    del memory.fed_ids[kept:]
