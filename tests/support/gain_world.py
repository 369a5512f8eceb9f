"""A simulated world of requests: three applications whose answers gain differently from drafts.

One gains 1.6 ×, one loses (0.75 ×), and the prompts of the third (1.1 ×) begin with nothing in
common. Lengths and paces scatter. Known is what each answer would have taken either way.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from headlong.decode.request import Request
from headlong.fleet.gain import Gains, kind_of
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.routing import Router
from headlong.fleet.verdict import Verdict
from headlong.fleet.vllm_dialect import VllmDialect

PLAIN_S = 0.02
WEIGHTS = {"gains": 4, "loses": 4, "mixed": 2}


@dataclass
class Outcome:
    """Seconds of all answers, by who chose."""

    auto_s: float = 0.0
    plain_s: float = 0.0
    drafts_s: float = 0.0
    best_s: float = 0.0
    """Of one who knows what each answer will take."""
    wrong: list[bool] = field(default_factory=list)
    """For each request, whether the other way was faster."""


def simulate(seed: int, num_requests: int, *, scatter: float, changes: bool = False) -> Outcome:
    """Route requests as the front does; `changes` swaps two applications half-way."""
    dice, outcome = random.Random(seed), Outcome()
    router = Router(_replicas(), Gains())
    gain = {"gains": 1.6, "loses": 0.75, "mixed": 1.1}
    for number in range(num_requests):
        if changes and number == num_requests // 2:
            gain["gains"], gain["loses"] = gain["loses"], gain["gains"]
        (name,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        request = Request(_beginning(name, dice.randrange))
        num_tokens = int(dice.lognormvariate(4.5, 0.7)) + 2
        route = router.choose(request, dice.random())
        assert route is not None
        plain_s = PLAIN_S * num_tokens * dice.lognormvariate(0, scatter)
        drafts_s = plain_s / gain[name]
        drafts = route.replica.drafts
        taken_s, best_s = (drafts_s if drafts else plain_s), min(plain_s, drafts_s)
        router.gains.observe(kind_of(request), taken_s, num_tokens, drafts=drafts)
        outcome.auto_s += taken_s
        outcome.plain_s += plain_s
        outcome.drafts_s += drafts_s
        outcome.best_s += best_s
        outcome.wrong.append(taken_s > best_s)
    return outcome


def _beginning(name: str, draw: Callable[[int], int]) -> tuple[int, ...]:
    if name == "mixed":
        return tuple(draw(30_000) for _ in range(40))
    return tuple(range(100, 140) if name == "gains" else range(200, 240))


def _replicas() -> tuple[Replica, Replica]:
    dialect, up = VllmDialect(), ReplicaState.UP
    drafting = Replica("http://b:1", dialect, 4, state=up, verdict=Verdict(0.0))
    return Replica("http://a:1", dialect, state=up), drafting
