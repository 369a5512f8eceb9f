"""How many tokens to draft for each running request, decided for all of them together.

In:  the requests of the next round, then its duration and results. Out: a draft plan for each.
Draft tokens are added in order of merit while the expected tokens per second rise; no draft is a
valid plan. The same costs give the thresholds: how likely a token must be to pay for its row, and
for one more draft step. No plan can change text.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from headlong.config import MtpMode
from headlong.decode.round import RoundResult
from headlong.drafters.draft_plan import DraftPlan
from headlong.engine.cost_model import CostModel
from headlong.engine.request_policy import (
    INTERVAL,
    PROBE_TOKENS,
    Forecast,
    RequestPolicy,
    SharedRecord,
)
from headlong.engine.survival import Expected

MARGIN = 1.03
"""Factor by which another plan must be better than the present one: estimates err by as much."""

PAYBACK_ROUNDS = 48
"""Rounds within which drafts must pay for the rows that the drafter has to catch up on first."""

EXPENSIVE_ROW_ROUNDS = 32
"""Rounds between two passes with one row more than decided, if even a token that is certain to be
accepted would not pay for that row: kernels work in tiles, so it may cost half a pass."""

PROBE_SHARE = 0.005
"""Share of the time that probes may cost, and that plain rounds may."""


class Candidate(NamedTuple):
    """A request of the next round."""

    policy: RequestPolicy
    num_backlog_rows: int = 0
    """Rows that the drafter has to catch up on before it can draft."""
    has_drafter: bool = True


class _Round(NamedTuple):
    """Expected amounts of a round under some plan."""

    num_requests: int
    tokens: float
    drafted: float = 0.0
    """Draft tokens; each takes a draft step and a row of the pass."""
    pass_s: float | None = None
    """What its pass takes on average; None where it goes by the mean number of rows."""

    @property
    def rows(self) -> float:
        """Rows of the pass."""
        return self.num_requests + self.drafted

    def drafting(
        self,
        expected: Iterable[Expected],
        lengths: Iterable[int],
        costs: Sequence[float] = (),
    ) -> "_Round":
        """Return the round in which requests draft these lengths as well.

        `costs`, where one request drafts alone, are of passes with 0, 1, … of its tokens.
        """
        pairs = list(zip(expected, lengths, strict=True))
        tokens = sum(sum(one.tokens[:num]) for one, num in pairs)
        drafted = sum(sum(one.rows[:num]) for one, num in pairs)
        made = _Round(self.num_requests, self.tokens + tokens, self.drafted + drafted)
        if not costs:
            return made
        [(one, num)] = pairs
        rises = (high - low for low, high in pairwise(costs[: num + 1]))
        return made._replace(pass_s=costs[0] + sum(map(mul, one.rows, rises)))


@dataclass(slots=True)
class DraftPolicy:
    """Plans the drafts of an engine and learns from its rounds."""

    costs: CostModel = field(default_factory=CostModel)
    _records: dict[int, SharedRecord] = field(default_factory=dict)
    _planned: list[RequestPolicy] = field(default_factory=list)
    _round: int = 0
    _next_plan: int = 0
    _next_probe: int = 0
    _next_plain: int = 0
    _plain_rows: int = 0
    _gain: float = 1.0
    _is_next_row_expensive: bool = False
    _next_longer: int = 0
    _cache_share: float = 0.0

    def new_request(
        self, mtp: MtpMode, temperature: float, *, honours_k: bool = False
    ) -> RequestPolicy:
        """Return the record of a new request; it begins with what like requests have shown.

        Beside others a fixed K is an upper bound, unless it is to be honoured.
        """
        level = math.ceil(2 * temperature)  # greedy, up to 0.5, up to 1, and so on
        shared = self._records.setdefault(level, SharedRecord())
        return RequestPolicy(mtp, shared, honours_k=honours_k)

    def plan(
        self, candidates: Sequence[Candidate], max_rows: int, cache_share: float = 0.0
    ) -> list[DraftPlan]:
        """Return what to draft for each request in the next round.

        `cache_share` is what its pass reads of caches, relative to the weights.
        """
        self._round += 1
        self._cache_share = cache_share
        for one in candidates:
            one.policy.enter_round(len(candidates))
        autos = [one for one in candidates if one.policy.is_auto and one.has_drafter]
        is_plain = bool(autos) and self._measures_plain(candidates)
        planned = [one.policy for one in autos]
        is_new = planned != self._planned and not _join_idle(planned)
        if autos and not is_plain and (is_new or self._round >= self._next_plan):
            self._decide(candidates, autos, is_new)
            self._planned, self._next_plan = planned, self._round + self._plan_rounds(planned)
        elif not is_new and planned != self._planned:  # all of them idle, without a decision
            self._next_plan = min(self._next_plan, self._round + self._plan_rounds(planned))
            self._planned = planned
        probing = None if is_plain else self._next_to_probe(autos)
        drafting = [one for one in autos if one.policy.num_tokens]
        longer = drafting[self._round % len(drafting)] if drafting else None
        if self._is_next_row_expensive and not is_plain:
            longer = longer if self._round >= self._next_longer else None
            if longer is not None:
                self._next_longer = self._round + EXPENSIVE_ROW_ROUNDS
        plans = [
            one.policy.plan(is_plain=is_plain, is_probe=one in (probing, longer))
            if one.has_drafter
            else DraftPlan(is_idle=True)
            for one in candidates
        ]
        return limit_rows(plans, max_rows)

    def observe(
        self,
        requests: Sequence[RequestPolicy],
        plans: Sequence[DraftPlan],
        results: Sequence[RoundResult],
        seconds: float,
        is_representative: bool = True,
    ) -> float | None:
        """Learn from a round that took so long, from before its plan until all tokens were out.

        It is representative if no request ended and the drafter had no backlog, since both take
        long. Returns how long a round without drafts would have taken; None if that is not known.
        """
        verdicts = [one.verdict for one in results if one.verdict is not None]
        if len(verdicts) < len(results) or len({one.verify_s for one in results}) > 1:
            return None  # a pass that was repeated one by one has no cost
        if not all(one.is_representative for one in results):
            return None
        drafts = [one.draft for one in results]
        num_requests, pass_s = len(results), results[0].verify_s
        num_rows = num_requests + sum(len(draft.token_ids) for draft in drafts)
        self.costs.observe_pass(num_rows, pass_s, self._cache_share)
        if is_representative:
            num_steps = sum(draft.num_steps for draft in drafts)
            self.costs.observe_beside(num_steps, seconds - pass_s)
        for policy, plan, draft, verdict in zip(requests, plans, drafts, verdicts, strict=True):
            policy.observe(plan, draft, verdict.num_accepted)
        if num_rows == self._plain_rows:
            self._next_plain = self._round + _interval(self._gain - 1)
        if num_rows == num_requests and not any(plan.runs_drafter for plan in plans):
            return seconds
        plain_s = self.plain_s(num_requests, num_rows, pass_s)
        if plain_s is not None:  # costs are estimates; without drafts no round takes longer
            plain_s = min(plain_s, seconds)
        for plan, verdict in zip(plans, verdicts, strict=True):
            if plain_s and plan.is_idle and plan.runs_drafter:  # a probe
                lost = seconds / plain_s - 1 - verdict.num_accepted / num_requests
                self._next_probe = self._round + _interval(lost)
                if verdict.num_accepted:
                    self._next_plan = 0
        return plain_s

    def plain_s(self, num_requests: int, num_rows: int, pass_s: float) -> float | None:
        """Return how long a round without drafts would have taken instead of one with this pass.

        What slowed the pass down would have slowed that one down as well, so only the ratio of
        their costs counts. None while the cost of a plain pass is not known.
        """
        if not self.costs.is_known(num_requests):
            return None
        share = self._pass_s(num_requests) / self._pass_s(num_rows)
        return share * pass_s + self.costs.beside_s(0)

    def _pass_s(self, num_rows: float) -> float:
        return self.costs.pass_s(num_rows) + self.costs.cache_s(self._cache_share)

    def _seconds(self, made: _Round) -> float:
        pass_s = self._pass_s(made.rows) if made.pass_s is None else made.pass_s
        return pass_s + self.costs.beside_s(made.drafted)

    def _rate(self, made: _Round) -> float:
        return made.tokens / self._seconds(made)

    def _measures_plain(self, candidates: Sequence[Candidate]) -> bool:
        """Tell whether this round should run without drafts to measure its cost."""
        num_rows = len(candidates) + sum(one.policy.num_fixed for one in candidates)
        if num_rows != self._plain_rows:
            self._plain_rows = num_rows
            self._next_plain = min(self._next_plain, self._round + INTERVAL)
        return not self.costs.is_known(num_rows) or self._round >= self._next_plain

    def _next_to_probe(self, autos: Sequence[Candidate]) -> Candidate | None:
        """Return the idle request, if any, that should draft a probe in this round."""
        idle = [one for one in autos if not one.policy.num_tokens]
        if not idle or self._round < self._next_probe:
            return None
        self._next_probe = self._round + INTERVAL
        return min(idle, key=lambda one: one.num_backlog_rows)

    def _plan_rounds(self, policies: Sequence[RequestPolicy]) -> int:
        """Return for how many rounds a decision holds; idle requests share the cost of the next."""
        return INTERVAL * (1 if any(one.num_tokens for one in policies) else len(policies))

    def _decide(
        self, candidates: Sequence[Candidate], autos: Sequence[Candidate], is_new: bool
    ) -> None:
        """Choose draft lengths and thresholds of all requests with `mtp="auto"`."""
        policies = [one.policy for one in autos]
        expected = [one.expected() for one in policies]
        fixed = [one.policy for one in candidates if one.policy.num_fixed]
        plain = _Round(len(candidates), len(candidates)).drafting(
            [one.expected() for one in fixed], [one.num_fixed for one in fixed]
        )
        plain_rate = self._rate(plain)
        costs = self._costs_of_one(plain, expected)
        found = self._best_lengths(plain, expected, costs)
        best = plain.drafting(expected, found, costs)
        backlogs = [one.num_backlog_rows for one, num in zip(autos, found, strict=True) if num]
        catch_up_s = self.costs.backlog_s(sum(backlogs)) / PAYBACK_ROUNDS
        lengths = [0 if is_new else one.num_tokens for one in policies]
        chosen = plain.drafting(expected, lengths, costs)
        if self._rate(chosen) < MARGIN * plain_rate:
            lengths, chosen = [0] * len(autos), plain
        if best.tokens / (self._seconds(best) + catch_up_s) >= MARGIN * self._rate(chosen):
            lengths, chosen = found, best
        rate = self._rate(chosen)
        self._gain = rate / plain_rate
        most_rows = plain.rows + sum(lengths)
        next_row_s = self._pass_s(most_rows + 1) - self._pass_s(most_rows)
        self._is_next_row_expensive = rate * next_row_s > 1
        rows_s = self._pass_s(chosen.rows + 1) - self._pass_s(len(candidates))
        keep = rate * rows_s / (chosen.drafted + 1)
        extend = keep + rate * self.costs.step_s()
        shown = chosen if any(lengths) else best
        numbers = (self._seconds(shown), self._seconds(plain), self._rate(shown) / plain_rate)
        for policy, one, length, longest in zip(policies, expected, lengths, found, strict=True):
            num_tokens = length or max(1, longest)
            forecast = Forecast(num_tokens, 1 + sum(one.tokens[:num_tokens]), *numbers)
            policy.decide(length, policy.shared.thresholds(keep, extend), forecast)

    def _costs_of_one(self, plain: _Round, expected: Sequence[Expected]) -> list[float]:
        """Return costs of passes with 0, 1, … draft tokens of a request that drafts alone.

        A ninth row may cost as much as the eight before it, so that the cost of the mean number of
        rows is not the mean cost. Where many draft, the numbers of their tokens even out.
        """
        if len(expected) > 1 or plain.drafted:
            return []
        num_tokens = len(expected[0].rows)
        return [self._pass_s(plain.num_requests + num) for num in range(num_tokens + 1)]

    def _best_lengths(
        self, plain: _Round, expected: Sequence[Expected], costs: Sequence[float]
    ) -> list[int]:
        """Add draft tokens in order of merit; return the lengths with most tokens per second.

        At least one token is added: if it does not pay, its forecast says so. Passes grow by a few
        rows at a time beyond the largest one measured.
        """
        order: list[tuple[float, int, int]] = []
        for i, one in enumerate(expected):
            merits = (token / row for token, row in zip(one.tokens, one.rows, strict=True))
            order += [(-merit, depth, i) for depth, merit in enumerate(accumulate(merits, min))]
        growing, best_rate, num_best = plain, 0.0, 0
        if costs:
            growing = growing._replace(pass_s=costs[0])
        most_rows = self.costs.most_rows + PROBE_TOKENS * len(expected)
        added: list[int] = []
        for _, depth, i in sorted(order):
            tokens = growing.tokens + expected[i].tokens[depth]
            chance, pass_s = expected[i].rows[depth], growing.pass_s
            if pass_s is not None:
                pass_s += chance * (costs[depth + 1] - costs[depth])
            growing = _Round(plain.num_requests, tokens, growing.drafted + chance, pass_s)
            if added and growing.rows > most_rows:
                break
            added.append(i)
            rate = self._rate(growing)
            if rate > best_rate:
                num_best, best_rate = len(added), rate
        return [added[:num_best].count(i) for i in range(len(expected))]


def _join_idle(policies: Sequence[RequestPolicy]) -> bool:
    """Let requests that join idle ones of their kind be idle too; return whether all are now."""
    decided = [one for one in policies if one.forecast is not None]
    if any(one.num_tokens for one in decided):
        return False
    for one in policies:
        peer = next((peer for peer in decided if peer.shared is one.shared), None)
        if peer is None or peer.forecast is None:
            return False
        if one.forecast is None:
            one.decide(0, peer.thresholds, peer.forecast)
    return bool(policies)


def _interval(num_lost: float) -> int:
    """Return after how many rounds a probe may be repeated that cost the time of `num_lost`."""
    return max(INTERVAL, round(num_lost / PROBE_SHARE))


def limit_rows(plans: Sequence[DraftPlan], max_rows: int) -> list[DraftPlan]:
    """Shorten the longest drafts until the rows of the round are within the budget."""
    lengths = [plan.num_tokens for plan in plans]
    num_over = len(plans) + sum(lengths) - max_rows
    while num_over > 0 and max(lengths) > 0:
        lengths[lengths.index(max(lengths))] -= 1
        num_over -= 1
    return [plan.at_most(length) for plan, length in zip(plans, lengths, strict=True)]
