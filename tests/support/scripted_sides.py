"""Both sides of a probe without sockets: a scripted model that answers, and lies where it is told.

It speaks a true distribution, follows grammars, and scores what others wrote, so each lie is the
only thing that is wrong.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headlong.decode.logprobs import TokenLogprob, TopLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats
from headlong.engine.request import FinishReason
from headlong.errors import EngineError
from headlong.fleet.dialect import Delta, Feature
from headlong.fleet.exchange import UnreachableError
from headlong.fleet.probe_sides import Budget, Side
from scripted_model import SHARES, ScriptedModel
from tiny_text import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size
MODEL = ScriptedModel(words=tuple(range(256)), eos_id=min(TOKENIZER.eos_ids), vocab_size=VOCAB_SIZE)


@dataclass
class ScriptedSide:
    """An engine; its lies are the names of what it does wrong."""

    lies: frozenset[str] = frozenset()
    lacks: frozenset[Feature] = frozenset()
    drafts: bool = False
    requests: list[Request] = field(default_factory=list)
    num_sampled: int = 0
    """Requests under way that are sampled."""

    async def ask(self, request: Request) -> Delta:
        """Answer as an engine would."""
        self.requests.append(request)
        number = len(self.requests)
        is_sampled = request.sampling.temperature > 0
        self.num_sampled += is_sampled
        await asyncio.sleep(30 if "stall" in self.lies else 0)
        is_mixed = self.num_sampled > 0 and not is_sampled
        self.num_sampled -= is_sampled
        if "gone" in self.lies:
            raise UnreachableError("Nobody listens there.", "Start it.")
        if "fail" in self.lies or ("moody" in self.lies and number % 3 == 0):
            raise EngineError("The engine has no power.", "Wait.")
        words = list(self._words(request, is_wrong=is_mixed and "mixed" in self.lies))
        token_ids = tuple(token_id for token_id, _ in words)
        ended = token_ids[-1] in request.eos_ids
        delta = Delta(
            token_ids,
            self._logprobs(request, words),
            FinishReason.STOP if ended else FinishReason.LENGTH,
            self._stats(len(words)),
            is_end=True,
        )
        if request.prompt_logprobs is None:
            return delta
        ids = request.prompt_ids
        states = [MODEL.state(ids[:place]) for place in range(len(ids))]
        places = range(1, len(ids))
        return replace(
            delta,
            prompt_logprobs={
                at: scored(states[at], ids[at], request.prompt_logprobs) for at in places
            },
        )

    def missing(self, request: Request) -> Feature | None:
        """Tell what it lacks."""
        asked = {
            Feature.PROMPT_LOGPROBS: request.prompt_logprobs is not None,
            Feature.LOGPROBS: request.sampling.logprobs is not None,
            Feature.GRAMMAR: request.grammar is not None,
        }
        return next((one for one, wanted in asked.items() if wanted and one in self.lacks), None)

    def side(self, budget: Budget, *, is_plain: bool) -> Side:
        """Return it as a side of a probe."""
        return Side(self.ask, self.missing, budget, VOCAB_SIZE, is_plain)

    def _words(self, request: Request, *, is_wrong: bool) -> Iterator[tuple[int, int]]:
        """Yield the tokens of an answer, each with the state before it."""
        sampling, most = request.sampling, request.stopping.max_tokens + 2 * ("long" in self.lies)
        temperature = 0.0 if "greedy" in self.lies else sampling.temperature
        # Another seed for every request; a seed by chance would make the probe fail now and then.
        seed = len(self.requests) if "seedless" in self.lies else sampling.seed
        dice = random.Random(f"{seed} {self.drafts and 'other noise' in self.lies}")
        constraint = None if request.grammar is None else request.grammar.begin()
        state = MODEL.state(request.prompt_ids)
        for number in range(most):
            if constraint is not None and "unformed" not in self.lies:
                allowed = constraint.mask().nonzero()[0].tolist()
                token_id = dice.choice(allowed) if temperature else allowed[-1]
                constraint.push(token_id)
            elif temperature:
                token_id = self._draw(state, dice, temperature)
            else:
                is_slip = is_wrong or ("wrong" in self.lies and number % 16 == 9)
                token_id = MODEL.likely(state)[is_slip]
            yield token_id, state
            state = MODEL.after(state, token_id)
            if token_id in request.eos_ids and "deaf" not in self.lies:
                return

    def _draw(self, state: int, dice: random.Random, temperature: float) -> int:
        if "uniform" in self.lies:
            return dice.choice(MODEL.words)
        rest = (1 - sum(SHARES)) / (VOCAB_SIZE - len(SHARES))
        likely = MODEL.likely(state)
        others = [word for word in MODEL.words if word not in likely]
        weights = [share ** (1 / temperature) for share in SHARES]
        weights += [rest ** (1 / temperature)] * len(others)
        return dice.choices([*likely, *others], weights)[0]

    def _logprobs(self, request: Request, words: list[tuple[int, int]]) -> tuple[TokenLogprob, ...]:
        num_top = request.sampling.logprobs
        if num_top is None:
            return ()
        shift = -1.0 if "wrong logprobs" in self.lies else -0.05 if "rounds" in self.lies else 0.0
        told = [scored(state, token_id, num_top) for token_id, state in words]
        return tuple(replace(one, logprob=one.logprob + shift) for one in told)

    def _stats(self, num_tokens: int) -> DecodeStats | None:
        if not self.drafts or "silent" in self.lies:
            return None
        stats = DecodeStats()
        for _ in range(0, num_tokens, 2):
            stats.observe_round(() if "no drafts" in self.lies else ("draft", "draft"), 0)
        return stats


def scored(state: int, token_id: int, num_top: int) -> TokenLogprob:
    """Return a token's score with the best alternatives."""
    best = MODEL.top(state, MODEL.likely(state)[0], num_top)
    top = tuple(TopLogprob(*one) for one in best.items())
    return TokenLogprob(token_id, MODEL.logprob(state, token_id), top)


def liar(*lies: str) -> ScriptedSide:
    """Return an engine that drafts, and does these things wrong."""
    return ScriptedSide(frozenset(lies), drafts=True)
