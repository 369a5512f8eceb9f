"""Sampling: the backbone's own pick for a position, and a drafter's guess at that pick.

In:  a row of raw logits. Out: one token. The token at absolute position p of a request is

    argmax_i( processed_logits_i + gumbel(seed, p, i) )

where processed means penalties, bias, grammar mask, temperature, top-k, top-p, min-p, in this
order. At temperature 0 it is the argmax after the mask, without filters and noise. Ties go to the
lowest id. A drafter adds the same noise to its own logits, so both tend to agree.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headlong.arrays import BoolArray, FloatArray, IntArray
from headlong.config import SamplingParams
from headlong.decode.constraint import Constraint
from headlong.decode.logprobs import TokenLogprob, TopLogprob, token_logprob
from headlong.decode.penalties import Penalties
from headlong.drafters.drafter import Guess
from headlong.errors import CheckpointError, HeadError
from headlong.ops.filters import relative_probs
from headlong.ops.host_ops import HostOps, PickRule
from headlong.ops.noise import noise_key
from headlong.ops.numpy.host import NumpyHost

__all__ = ["Pick", "Sampler", "TokenLogprob", "TopLogprob"]


class Pick(NamedTuple):
    """The token the backbone chose for one position."""

    token_id: int
    logprob: TokenLogprob | None
    """Its log-probability; None unless requested."""


def pick_rule(params: SamplingParams) -> PickRule:
    """Return the parameters that pick a token from adjusted logits."""
    if params.top_p == 0:  # greedy, whatever the other parameters
        return PickRule(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=params.seed)
    return PickRule(params.temperature, params.top_k, params.top_p, params.min_p, params.seed)


class Sampler:
    """Picks tokens for one sequence; owns the history that penalties and grammar need."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        constraint: Constraint | None = None,
        host: HostOps | None = None,
        eos_ids: Collection[int] = (),
    ) -> None:
        """Begin behind a prompt; `host` computes picks (None: numpy, the definition).

        `min_tokens` holds back `eos_ids`, unless a constraint says where the text ends.
        """
        self.constraint = constraint
        """The state of the answer's grammar; None if it has none."""
        self._params = params
        self._vocab_size = vocab_size
        self._num_tokens = len(prompt_ids)
        held_ids = () if constraint is not None else eos_ids
        self._penalties = Penalties(params, prompt_ids, vocab_size, held_ids)
        self._host: HostOps = NumpyHost() if host is None else host
        self._rule = pick_rule(params)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far: the absolute position of the next one."""
        return self._num_tokens

    def push(self, token_id: int) -> None:
        """Add `token_id` to the history."""
        self._penalties.push(token_id)
        self._num_tokens += 1
        if self.constraint is not None:
            self.constraint.push(token_id)

    def pick(self, logits: FloatArray) -> Pick:
        """Choose the next token from raw backbone logits (V,).

        A pure function of the logits, the parameters, the position and the history: it changes
        neither the history nor `logits`, and what was drafted has no part in it.
        """
        assert logits.shape == (self._vocab_size,), f"{logits.shape} is not one row of logits"
        token_id = self._pick_id(logits)
        wanted = self._params.logprobs
        logprob = None if wanted is None else token_logprob(logits, token_id, wanted)
        return Pick(token_id, logprob)

    def _pick_id(self, logits: FloatArray) -> int:
        rule = self.rule()
        if rule is not None:
            token_id = self._host.pick(logits, rule, self._num_tokens)
            if token_id is not None:
                return token_id
        return self._pick_in_steps(logits)

    def _pick_in_steps(self, logits: FloatArray) -> int:
        """Return the token that penalties, grammar, filters and noise leave."""
        mask = None if self.constraint is None else self._fit(self.constraint.mask())
        if mask is not None and np.count_nonzero(mask) == 1:
            return int(mask.argmax())
        adjusted = self._penalties.apply(logits)
        if mask is not None:
            adjusted = _masked(adjusted, mask)
        best_column = int(adjusted.argmax())  # NaN counts as largest, so this finds it
        if not math.isfinite(adjusted[best_column]):
            raise CheckpointError(
                f"The model produced {_describe(adjusted)} at position {self._num_tokens}.",
                "The file may be damaged or badly quantised: pull it again or use another one.",
            )
        return self._choose(adjusted, None, best_column, self._num_tokens).column

    def rule(self) -> PickRule | None:
        """Return how a guess follows from bare logits; None when the history has a say in it."""
        if self.constraint is not None or not self._penalties.are_neutral:
            return None
        return self._rule

    def guess(
        self, logits: FloatArray, vocabulary: IntArray | None, drafted: Sequence[int]
    ) -> Guess:
        """Return what `pick` would choose after `drafted` if the backbone's logits were these.

        `vocabulary` maps columns to token ids (None: they are the same). The guess carries the
        drafter's own probability of the token after all processing; at temperature 0, where nothing
        is drawn, that of a softmax at temperature 1. Where the grammar leaves one token, it is that
        one, whatever the logits say.
        """
        adjusted = self._penalties.apply(logits, drafted, vocabulary)
        mask = None if self.constraint is None else self.constraint.mask_after(drafted)
        if mask is not None:
            mask = self._fit(mask)
            allowed = mask if vocabulary is None else mask[vocabulary]
            if np.count_nonzero(mask) == 1 or not allowed.any():
                return Guess(int(mask.argmax()), 1 / np.count_nonzero(mask))
            adjusted = _masked(adjusted, allowed)
        best_column = int(adjusted.argmax())
        if not math.isfinite(adjusted[best_column]):
            raise HeadError(
                f"The drafter produced {_describe(adjusted)}.",
                "Use another head or draft model, or go without one (drafter='none').",
            )
        position = self._num_tokens + len(drafted)
        choice = self._choose(adjusted, vocabulary, best_column, position)
        column = choice.column
        token_id = column if vocabulary is None else int(vocabulary[column])
        return Guess(token_id, self._prob(adjusted, choice, float(adjusted[best_column])))

    def _fit(self, mask: BoolArray) -> BoolArray:
        """Return a mask over the model's own ids: padding behind the tokenizer's is forbidden."""
        num_missing = self._vocab_size - len(mask)
        if num_missing > 0:
            return np.pad(mask, (0, num_missing))
        return mask[: self._vocab_size]

    def _choose(
        self, logits: FloatArray, token_ids: IntArray | None, best_column: int, position: int
    ) -> "_Choice":
        rule, host = self._rule, self._host
        if rule.temperature == 0:
            return _Choice(best_column, None)
        best = float(logits[best_column])
        key = noise_key(rule.seed, position)
        if not rule.filters(len(logits)):
            return _Choice(host.gumbel_argmax(logits, token_ids, best, rule.temperature, key), None)
        columns = host.surviving_columns(logits, best, rule)
        ids = columns if token_ids is None else token_ids[columns]
        winner = host.gumbel_argmax(logits[columns], ids, best, rule.temperature, key)
        return _Choice(int(columns[winner]), columns)

    def _prob(self, logits: FloatArray, choice: "_Choice", best: float) -> float:
        temperature = self._params.temperature or 1.0
        survivors = logits if choice.survivors is None else logits[choice.survivors]
        chosen = logits[choice.column : choice.column + 1]
        # Only a drafter's confidence rests on it, so six digits are enough.
        total = self._host.sum_relative(survivors, best, temperature)
        return float(relative_probs(chosen, best, temperature)[0] / total)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A chosen column and the columns it was chosen from (None: all)."""

    column: int
    survivors: IntArray | None


def _masked(logits: FloatArray, mask: BoolArray) -> FloatArray:
    """Return `logits` with minus infinity where the mask is False."""
    # The smaller of a logit and ±infinity: three times as fast as a choice per element, and a NaN
    # stays one.
    ceiling = mask.astype(np.float32)
    ceiling -= np.float32(0.5)
    ceiling *= np.float32(np.inf)
    return np.minimum(logits, ceiling, out=ceiling)


def _describe(logits: FloatArray) -> str:
    """Say what is wrong with logits that have no finite maximum."""
    num_nan = int(np.isnan(logits).sum())
    if num_nan:
        return f"NaN in {num_nan} of {len(logits)} logits"
    if np.isposinf(logits).any():
        return "infinite logits"
    return "only logits of minus infinity"
