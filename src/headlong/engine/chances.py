"""How far drafts carry: learned chances per depth, and what a drafter's own confidence is worth.

In:  what was asked, drafted and accepted in every round. Out: expected amounts per depth, and the
chance to stand behind a drafter's probability. Learned per sequence on top of what all requests
of like temperature have shown, so that a new request does not begin from nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from headlong.ops.calibration import EDGES, Calibration, range_of

MAX_AUTO_TOKENS = 8
"""The deepest draft "auto" considers."""

PRIOR_WEIGHT = 6.0
"""How many looks what others have shown counts for in a new sequence."""

HOPE_WEIGHT = 2.0
"""How many looks a hope counts for that nobody has tested."""

OWN_MEMORY = 0.98
"""What a look at a depth keeps of older ones, so that a change of subject is noticed."""

SHARED_MEMORY = 0.998
"""The same for what all requests have shown."""


@dataclass(slots=True)
class Ladder:
    """Per depth: how often it was reached with all before it, and how often it was then climbed."""

    memory: float
    tried: list[float] = field(default_factory=lambda: [0.0] * MAX_AUTO_TOKENS)
    climbed: list[float] = field(default_factory=lambda: [0.0] * MAX_AUTO_TOKENS)

    def observe(self, asked: int, height: int) -> None:
        """Learn from one climb: `asked` rungs were there, the first `height` were climbed."""
        for rung in range(min(asked, height + 1, MAX_AUTO_TOKENS)):
            self.tried[rung] = self.memory * self.tried[rung] + 1
            self.climbed[rung] = self.memory * self.climbed[rung] + (rung < height)

    def chances(self, prior: Sequence[float], weight: float) -> list[float]:
        """Return the chance of every rung, given those before it."""
        found: list[float] = []
        for rung in range(MAX_AUTO_TOKENS):
            # Where this sequence does well or badly, it tends to do so one rung further, too.
            expected = prior[rung] if rung == 0 else 0.5 * (prior[rung] + found[-1])
            looks = self.tried[rung] + weight
            found.append((self.climbed[rung] + weight * expected) / looks)
        return found


class Look(NamedTuple):
    """What one round showed of one sequence."""

    num_asked: int
    num_steps: int
    """How often the drafter's model ran for it."""
    num_drafted: int
    num_accepted: int


@dataclass(slots=True)
class Ladders:
    """What one can ask of a depth: does the model run, is there a token, does it stand."""

    stepped: Ladder
    drafted: Ladder
    stood: Ladder

    def fade(self, memory: float) -> None:
        """Let all that was seen count for less."""
        for ladder in (self.stepped, self.drafted, self.stood):
            ladder.tried = [memory * num for num in ladder.tried]
            ladder.climbed = [memory * num for num in ladder.climbed]

    def observe(self, look: Look) -> None:
        """Learn from one round."""
        self.stepped.observe(look.num_asked, look.num_steps)
        self.drafted.observe(look.num_asked, look.num_drafted)
        self.stood.observe(look.num_asked, look.num_accepted)


def make_ladders(memory: float) -> Ladders:
    """Return ladders nobody has climbed yet."""
    return Ladders(Ladder(memory), Ladder(memory), Ladder(memory))


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected amounts of one sequence at each depth, once it is asked for that many tokens."""

    steps: tuple[float, ...]
    rows: tuple[float, ...]
    tokens: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Priors:
    """The chances that a sequence is given before it has shown its own."""

    stepped: list[float]
    drafted: list[float]
    stood: list[float]


def priors_from(shared: Ladders) -> Priors:
    """Return what all requests have shown, or a hope where they have shown nothing."""

    def read(ladder: Ladder, hope: float) -> list[float]:
        return ladder.chances([hope] * MAX_AUTO_TOKENS, HOPE_WEIGHT)

    return Priors(read(shared.stepped, 0.9), read(shared.drafted, 0.9), read(shared.stood, 0.7))


def expect(own: Ladders, priors: Priors) -> Expected:
    """Return what drafting to any depth is expected to take and to give."""

    def read(ladder: Ladder, prior: list[float]) -> tuple[float, ...]:
        return tuple(accumulate(ladder.chances(prior, PRIOR_WEIGHT), mul))

    return Expected(
        read(own.stepped, priors.stepped),
        read(own.drafted, priors.drafted),
        read(own.stood, priors.stood),
    )


_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True))

HOPE = 0.3
"""Chance that even the least probable token is given before any was seen, so that some are."""


@dataclass(slots=True)
class Confidence:
    """What one drafter's probability of a token is worth, learned from what stood.

    At temperatures above 0 it is not the chance to stand, since drafter and backbone share their
    noise: what noise made both pick stands though neither found it likely. And any head may be too
    sure or too modest.
    """

    seen: list[float] = field(default_factory=lambda: [4.0] * len(_MIDDLES))
    stood: list[float] = field(
        default_factory=lambda: [4.0 * (HOPE + (1 - HOPE) * middle) for middle in _MIDDLES]
    )

    def observe(self, probs: Sequence[float], num_accepted: int) -> None:
        """Learn from the tokens of one draft, up to the first that did not stand."""
        for depth, prob in enumerate(probs[: num_accepted + 1]):
            place = range_of(prob)
            self.seen[place] = SHARED_MEMORY * self.seen[place] + 1
            self.stood[place] = SHARED_MEMORY * self.stood[place] + (depth < num_accepted)

    @property
    def share(self) -> float:
        """The share of all tokens that stood once those before them did."""
        return sum(self.stood) / sum(self.seen)

    def read(self) -> Calibration:
        """Return what was learned; neighbours steady what few tokens have fallen into."""
        seen, stood = _blurred(self.seen), _blurred(self.stood)
        return Calibration(tuple(part / whole for part, whole in zip(stood, seen, strict=True)))


def _blurred(amounts: Sequence[float]) -> list[float]:
    """Return every amount with a quarter of its neighbours'."""
    around = zip([0.0, *amounts[:-1]], amounts, [*amounts[1:], 0.0], strict=True)
    return [0.25 * below + here + 0.25 * above for below, here, above in around]
