"""What a round took and gave: told to the planner, and booked for every request of it.

In:  a round that is over, with the clock's word on all of it. Out: prices and chances learned, and
in every request's timings what it took and what plain decoding would have. All counts that made
the round longer: drafts, their rows in the pass, and the work around them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headlong.decode.round import RoundResult
from headlong.drafters.draft_plan import DraftPlan
from headlong.engine.costs import DraftWork
from headlong.engine.planner import Planner
from headlong.engine.request import Running


class Round(NamedTuple):
    """A round that is over."""

    done: Sequence[tuple[Running, RoundResult]]
    num_emitted: Sequence[int]
    """Tokens that each request got of it; none behind its end."""
    wishes: Mapping[int, DraftPlan]
    """What was asked for, by id of the request."""
    num_rows: int
    """Rows of the pass."""
    seconds: float
    """From before it was planned until all tokens were out."""
    num_looked: int
    """Rows that had waited, and that the drafter had to look at before it could draft."""

    @property
    def passes_s(self) -> set[float]:
        """Seconds of its passes: one, unless it failed and was repeated for each request alone."""
        return {result.verify_s for _, result in self.done}

    @property
    def is_plain(self) -> bool:
        """Whether it neither drafted nor tried to."""
        is_asked = any(self.wishes[id(one)].runs_drafter for one, _ in self.done)
        return not is_asked and self.num_rows == len(self.done)


def learn(planner: Planner, made: Round) -> None:
    """Tell the planner what the round cost and how far drafts carried."""
    asked = [(one, result) for one, result in made.done if made.wishes[id(one)].runs_drafter]
    first = made.done[0][1]
    planner.costs.observe_pass(made.num_rows, first.verify_s)
    # An end is dear, and has nothing to do with how its last tokens came about.
    has_end = any(one.finish_reason is not None for one, _ in made.done)
    steps = [result.draft.num_steps for _, result in asked]
    work = DraftWork(len(asked), max(steps, default=0), sum(steps))
    if made.num_looked:  # which takes longer than drafting costs
        look_s = first.draft_s - planner.costs.draft_s(work)
        planner.costs.observe_look(made.num_looked, look_s)
    elif not has_end:
        planner.costs.observe_beside(work, made.seconds - first.verify_s)
    for running, result in made.done:
        if result.verdict is not None:
            wish, num_accepted = made.wishes[id(running)], result.verdict.num_accepted
            planner.learn(running.policy, wish, result.draft, num_accepted, result.draft_s)


def book(planner: Planner, made: Round) -> None:
    """Book for every request what the round took, and what its tokens would have taken plainly."""
    num_sequences, is_plain = len(made.done), made.is_plain
    plain_s = {  # a round without drafts is its own measure
        pass_s: made.seconds if is_plain else planner.plain_s(num_sequences, made.num_rows, pass_s)
        for pass_s in made.passes_s
    }
    for (running, result), num_emitted in zip(made.done, made.num_emitted, strict=True):
        if result.verdict is None:
            continue
        per_token_s = plain_s[result.verify_s]
        running.sequence.timings.observe_round(
            made.seconds,
            result.draft_s,
            result.verify_s,
            # Tokens behind the end would not have been decoded plainly, either.
            None if per_token_s is None else num_emitted * per_token_s,
        )
