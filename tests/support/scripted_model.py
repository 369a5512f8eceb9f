"""A model for scripted engines: a few likely words after every beginning, from a checksum.

Whoever knows the prompt can reckon the answer, so an answer that was mixed up, cut or given twice
shows. It is a true distribution: what was sampled can be scored, and a wrong sampler found.
"""

import math
import random
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

SHARES = (0.6, 0.25, 0.1)
"""Chances of the three likely words; all others share what is left."""


@dataclass(frozen=True)
class ScriptedModel:
    """What is likely after which beginning."""

    words: Sequence[int] = tuple(range(3, 259))
    """The token ids that answers are made of."""
    eos_id: int = 2
    vocab_size: int = 266
    eos_every: int = 0
    """An answer ends about every so many tokens; 0 lets it go on to its limit."""
    secret: int = 0
    """Models of other secrets say other things."""

    def state(self, token_ids: Sequence[int]) -> int:
        """Return the checksum of a beginning."""
        state = self.secret
        for token_id in token_ids:
            state = self.after(state, token_id)
        return state

    def after(self, state: int, token_id: int) -> int:
        """Return the checksum of a beginning with one more token."""
        return zlib.crc32(token_id.to_bytes(4, "little"), state)

    def likely(self, state: int, *, can_end: bool = True) -> list[int]:
        """Return the three likely tokens, best first."""
        if can_end and self.eos_every and state % self.eos_every == 0:
            return [self.eos_id, *self._words(state, 2)]
        return self._words(state, 3)

    def logprob(self, state: int, token_id: int) -> float:
        """Return how likely a token is."""
        likely = self.likely(state)
        if token_id in likely:
            return math.log(SHARES[likely.index(token_id)])
        rest = (1 - sum(SHARES)) / (self.vocab_size - len(SHARES))
        return math.log(rest)

    def top(self, state: int, token_id: int, num_top: int) -> Mapping[int, float]:
        """Return the likeliest tokens and `token_id` with their log-probabilities."""
        likely = [*self.likely(state), *self.words[: num_top + len(SHARES)]]
        ids = [token_id, *list(dict.fromkeys(likely))[:num_top]]
        return {one: self.logprob(state, one) for one in dict.fromkeys(ids)}

    def tokens(
        self,
        prompt_ids: Sequence[int],
        *,
        temperature: float = 0,
        seed: int = 0,
        held: int = 0,
    ) -> Iterator[tuple[int, int]]:
        """Yield the tokens of an answer with the state before each; EOS only behind `held`."""
        state = self.state(prompt_ids)
        dice = random.Random(seed)
        number = 0
        while True:
            likely = self.likely(state, can_end=number >= held)
            token_id = likely[0] if temperature == 0 else self._draw(likely, dice)
            yield token_id, state
            state = self.after(state, token_id)
            number += 1

    def answer(
        self, prompt_ids: Sequence[int], max_tokens: int, eos_ids: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the greedy answer, its end included."""
        said: list[int] = []
        for token_id, _ in self.tokens(prompt_ids):
            said.append(token_id)
            if token_id in eos_ids or len(said) == max_tokens:
                break
        return tuple(said)

    def _draw(self, likely: Sequence[int], dice: random.Random) -> int:
        chance = dice.random()
        for token_id, share in zip(likely, SHARES, strict=True):
            if chance < share:
                return token_id
            chance -= share
        return dice.choice(self.words)

    def _words(self, state: int, num: int) -> list[int]:
        first = state // 7
        return [self.words[(first + place) % len(self.words)] for place in range(num)]
