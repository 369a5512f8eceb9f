"""What a round took and gave: told to the planner, and booked for every request of it.

In:  a round that is over, with the clock's word on all of it. Out: prices and chances learned, and
in every request's timings what it took and what plain decoding would have. All counts that made
the round longer: drafts, their rows in the pass, and the work around them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headlong.decode.round import RoundResult
from headlong.drafters.draft_plan import DraftPlan
from headlong.engine.costs import DraftWork
from headlong.engine.planner import Planner
from headlong.engine.request import Running


class Round(NamedTuple):
    """A round that is over."""

    batch: Sequence[Running]
    plans: Sequence[DraftPlan]
    results: Sequence[RoundResult]
    num_emitted: Sequence[int]
    """Tokens that each request got of it; none behind its end."""
    seconds: float
    """From before it was planned until all tokens were out."""
    num_late: int
    """Rows that the drafter had to observe late, before it could draft."""

    @property
    def num_rows(self) -> int:
        """Rows of the pass."""
        return sum(len(result.draft.token_ids) + 1 for result in self.results)

    @property
    def passes_s(self) -> set[float]:
        """Seconds of its passes: one, unless it failed and was repeated for each request alone."""
        return {result.verify_s for result in self.results if result.verdict is not None}

    @property
    def is_one_pass(self) -> bool:
        """Whether all requests shared one pass that did not break off."""
        return (
            len({result.verify_s for result in self.results}) == 1 and self.results[0].verify_s > 0
        )

    @property
    def is_plain(self) -> bool:
        """Whether it neither drafted nor tried to."""
        is_asked = any(plan.runs_drafter for plan in self.plans)
        return not is_asked and self.num_rows == len(self.batch)


def learn(planner: Planner, made: Round) -> None:
    """Tell the planner what the round cost and how far drafts carried."""
    asked = [
        result for result, plan in zip(made.results, made.plans, strict=True) if plan.runs_drafter
    ]
    first = made.results[0]
    planner.costs.observe_pass(made.num_rows, first.verify_s)
    # An end is dear, and has nothing to do with how its last tokens came about.
    has_end = any(one.finish_reason is not None for one in made.batch)
    steps = [result.draft.num_steps for result in asked]
    work = DraftWork(len(asked), max(steps, default=0), sum(steps))
    if made.num_late:  # which takes longer than drafting costs
        look_s = first.draft_s - planner.costs.draft_s(work)
        planner.costs.observe_look(made.num_late, look_s)
    elif not has_end:
        planner.costs.observe_beside(work, made.seconds - first.verify_s)
    for running, plan, result in zip(made.batch, made.plans, made.results, strict=True):
        if result.verdict is not None:
            num_accepted = result.verdict.num_accepted
            planner.learn(running.policy, plan, result.draft, num_accepted, result.draft_s)


def book(planner: Planner, made: Round) -> None:
    """Book for every request what the round took, and what its tokens would have taken plainly."""
    num_sequences, is_plain = len(made.batch), made.is_plain
    plain_s = {  # a round without drafts is its own measure
        pass_s: made.seconds if is_plain else planner.plain_s(num_sequences, made.num_rows, pass_s)
        for pass_s in made.passes_s
    }
    for running, result, num_emitted in zip(
        made.batch, made.results, made.num_emitted, strict=True
    ):
        if result.verdict is None:
            continue
        per_token_s = plain_s[result.verify_s]
        running.timings.observe_round(
            made.seconds,
            result.draft_s,
            result.verify_s,
            # Tokens behind the end would not have been decoded plainly, either.
            None if per_token_s is None else num_emitted * per_token_s,
        )
