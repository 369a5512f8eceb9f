"""Gain: how fast answers come with drafts against without, by kind of request, as measured.

In:  ended answers: their kind, whether drafts were made, tokens and seconds.
Out: a forecast for the next request of a kind. What little is known of an application is completed
     by all requests that are picked and formed alike. The kinds seen longest ago are forgotten.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from headlong.decode.request import Request
from headlong.fleet.needs import is_greedy

MAX_KINDS = 512

BEGINNING = 32
"""Prompt tokens that tell one application from another."""

ASSUMED_GAIN = 1.2
"""Until both ways were measured: drafts are tried first."""

MEMORY = 0.9
"""What an answer leaves of the weight of earlier ones."""

FAMILY_TOKENS = 50.0
"""An application's own tokens that weigh as much as what is known of all like it."""


class Kind(NamedTuple):
    """What requests have in common that gain alike."""

    is_greedy: bool
    has_grammar: bool
    beginning: tuple[int, ...] = ()
    """The first tokens of the prompt; none for all applications together."""

    @property
    def family(self) -> "Kind":
        """The same kind over all applications."""
        return self._replace(beginning=())


def kind_of(request: Request) -> Kind:
    """Return a request's kind."""
    return Kind(is_greedy(request), request.grammar is not None, request.prompt_ids[:BEGINNING])


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a request with drafts and without."""

    plain_s: float | None
    """Seconds a token; None where it was never measured."""
    draft_s: float | None

    @property
    def gain(self) -> float:
        """Speed with drafts against without: measured, or assumed."""
        if self.plain_s is None or not self.draft_s:
            return ASSUMED_GAIN
        return self.plain_s / self.draft_s

    @property
    def is_measured(self) -> bool:
        """Whether both ways are known."""
        return self.plain_s is not None and self.draft_s is not None


@dataclass(slots=True)
class _Pace:
    """Seconds and tokens of answers, the newest weighing most."""

    seconds: float = 0.0
    num_tokens: float = 0.0

    def observe(self, seconds: float, num_tokens: int) -> None:
        """Add an answer."""
        self.seconds = MEMORY * self.seconds + seconds
        self.num_tokens = MEMORY * self.num_tokens + num_tokens

    def token_s(self, family: "_Pace") -> float | None:
        """Return seconds a token, completed by what is known of the family."""
        if not family.num_tokens:
            return None
        known_s = family.seconds / family.num_tokens
        return (self.seconds + FAMILY_TOKENS * known_s) / (self.num_tokens + FAMILY_TOKENS)


@dataclass(slots=True)
class _Paces:
    plain: _Pace = field(default_factory=_Pace)
    drafts: _Pace = field(default_factory=_Pace)


class Gains:
    """Measured paces of all kinds of requests."""

    def __init__(self) -> None:
        self._paces: OrderedDict[Kind, _Paces] = OrderedDict()

    def observe(self, kind: Kind, seconds: float, num_tokens: int, *, drafts: bool) -> None:
        """Learn how long the tokens behind the first took in one answer."""
        for one in (kind, kind.family):
            paces = self._paces.setdefault(one, _Paces())
            self._paces.move_to_end(one)
            (paces.drafts if drafts else paces.plain).observe(seconds, num_tokens)
        while len(self._paces) > MAX_KINDS:
            self._paces.popitem(last=False)

    def forecast(self, kind: Kind) -> Forecast:
        """Return what to expect of a request."""
        family = self._paces.get(kind.family, _Paces())
        own = self._paces.get(kind, _Paces())
        return Forecast(own.plain.token_s(family.plain), own.drafts.token_s(family.drafts))
