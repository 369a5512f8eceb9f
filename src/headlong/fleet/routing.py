"""Routing: which replica runs a request, and what its client is told about that.

In:  a request, the replicas as they are now, measured gains, a random number.
Out: a `Route`; None where nobody can take it now. What a request asks of drafts comes first, then
     what replicas can do, then gain and load. Pure: the records are read and not changed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headlong.decode.request import Request
from headlong.errors import RequestError
from headlong.fleet.gain import BEGINNING, Forecast, Gains, kind_of
from headlong.fleet.replica import Replica, ReplicaState

TRY_SHARE = 1 / 24
"""Share of the requests that may draft which go the other way, so that a change is noticed."""

FIRST_TRY_SHARE = 1 / 4
"""The same until both ways were measured."""

HALF_SPEED = 8
"""Requests in flight beside which an engine runs each at about half its speed."""

SLACK = 4
"""Requests that a replica may be ahead of the least busy one and still get those that begin alike:
it has their prefix in its cache."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request runs, and why."""

    replica: Replica
    explanation: str
    off_reason: str | None = None
    bound_reason: str | None = None
    plain_s: float | None = None
    """Seconds a token of such requests takes without drafts, as measured."""


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses among the replicas of one fleet."""

    replicas: Sequence[Replica]
    gains: Gains

    def check(self, request: Request) -> None:
        """Refuse a request that no replica could run, up or down."""
        lacks = [replica.missing(request) for replica in self.replicas]
        if lacks and all(lacks):
            names = sorted({replica.dialect.name for replica in self.replicas})
            raise RequestError(
                f"The request needs {lacks[0]}, which no engine behind this server has "
                f"({', '.join(names)}).",
                "Leave it out.",
            )

    def choose(
        self, request: Request, draw: float, without: Collection[Replica] = ()
    ) -> Route | None:
        """Return where a request goes now; `draw` is a random number from 0 to 1."""
        able = [one for one in self.replicas if one not in without and _can_run(one, request)]
        able = [one for one in able if one.state is ReplicaState.UP] or able
        plain = [one for one in able if not one.drafts]
        drafting = [one for one in able if one.drafts]
        if not able:
            return None
        if request.mtp == "off":
            return _route_off(request, plain, drafting)
        if not drafting:
            reason = self._why_no_drafts(request)
            return Route(_pick(plain, request), f"No drafts: {reason}", off_reason=reason)
        if request.mtp != "auto":
            plain_s = self.gains.forecast(kind_of(request)).plain_s
            return _route_fixed(request, request.mtp, drafting, plain_s)
        return self._route_auto(request, draw, plain, drafting)

    def _route_auto(
        self, request: Request, draw: float, plain: list[Replica], drafting: list[Replica]
    ) -> Route:
        """Go where an answer is expected soonest: by measured gain, and by load."""
        seen = self.gains.forecast(kind_of(request))
        if not plain:
            text = f"Drafts: no replica without drafts is up. {_numbers(seen)}"
            return Route(_pick(drafting, request), text, plain_s=seen.plain_s)
        waits = [_busyness(plain), _busyness(drafting) / seen.gain]
        drafts = waits[1] <= waits[0]
        if draw < (TRY_SHARE if seen.is_measured else FIRST_TRY_SHARE):
            replica = _pick(plain if drafts else drafting, request)
            way = "without" if drafts else "with"
            text = f"One of the few that are run {way} drafts to measure it. {_numbers(seen)}"
            off_reason = text if drafts else None
            return Route(replica, text, off_reason, plain_s=seen.plain_s)
        if drafts:
            text = f"Drafts. {_numbers(seen)}"
            return Route(_pick(drafting, request), text, plain_s=seen.plain_s)
        pays = seen.gain > 1
        why = "replicas that draft are busier" if pays else "drafting does not pay here"
        text = f"No drafts: {why}. {_numbers(seen)}"
        return Route(_pick(plain, request), text, off_reason=text)

    def _why_no_drafts(self, request: Request) -> str:
        """Say why a request that might draft does not, in a whole sentence."""
        drafting = [one for one in self.replicas if one.drafts]
        if not drafting:
            return "No replica of this server drafts."
        refused = [one.verdict.blocks(request) for one in drafting if one.verdict is not None]
        problem = next((one for one in refused if one is not None), None)
        if problem is not None:
            return problem
        lacks = [one.missing(request) for one in drafting]
        if all(lacks):
            return f"The replicas that draft lack {lacks[0]} while drafting."
        if all(one.verdict is None for one in drafting):
            return "No replica that drafts has been probed yet."
        if all(one.is_isolated for one in drafting):
            return "The replicas that draft are being probed again."
        return "No replica that drafts can take it now."


def _route_off(request: Request, plain: list[Replica], drafting: list[Replica]) -> Route:
    if plain:
        return Route(_pick(plain, request), "No drafts: the request asked for none.")
    text = "Drafts, though the request asked for none: no replica without drafts is up."
    return Route(_pick(drafting, request), text)


def _route_fixed(
    request: Request, num_wanted: int, drafting: list[Replica], plain_s: float | None
) -> Route:
    """Go to the replica whose K is nearest, and say so where it is another."""
    far = min(abs(one.num_draft_tokens - num_wanted) for one in drafting)
    near = [one for one in drafting if abs(one.num_draft_tokens - num_wanted) == far]
    replica = _pick(near, request)
    num = replica.num_draft_tokens
    bound = f"K={num_wanted} was asked for; the nearest that a replica here drafts is K={num}."
    return Route(
        replica,
        f"Drafts K={num}: the request asked for K={num_wanted}.",
        bound_reason=bound if far else None,
        plain_s=plain_s,
    )


def _can_run(replica: Replica, request: Request) -> bool:
    is_blocked = replica.verdict is not None and replica.verdict.blocks(request) is not None
    is_able = replica.has_room(request) and replica.missing(request) is None
    return replica.is_usable and is_able and not is_blocked


def _busyness(pool: Sequence[Replica]) -> float:
    """Return how slow the least busy replica of a pool is, as a share of its speed alone."""
    return min(one.num_in_flight for one in pool) + HALF_SPEED


def _pick(pool: Sequence[Replica], request: Request) -> Replica:
    """Return the replica that has seen such a beginning before, unless it is busier than others."""
    key = (request.cache_salt, request.prompt_ids[:BEGINNING])
    at_home = max(pool, key=lambda one: hash((key, one.url)))
    least = min(pool, key=lambda one: one.num_in_flight)
    return at_home if at_home.num_in_flight <= least.num_in_flight + SLACK else least


def _numbers(seen: Forecast) -> str:
    if seen.plain_s is None or seen.draft_s is None:
        return "What drafts gain for such requests is still being measured."
    return (
        f"Such requests run at {seen.gain:.2f} × with drafts: {1000 * seen.draft_s:.1f} ms a token "
        f"against {1000 * seen.plain_s:.1f} ms."
    )
