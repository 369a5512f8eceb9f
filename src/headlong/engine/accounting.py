"""What a round took and gave: told to the draft policy, and added to every request's timings.

In `Timings` it stands beside what plain decoding would have taken for the same tokens. All counts
that made the round longer: drafts, their rows in the pass, and the work around them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headlong.decode.round import RoundResult
from headlong.engine.draft_policy import DraftPolicy, MeasuredRound, Outcome
from headlong.engine.request import Running


class Round(NamedTuple):
    """A round that is over."""

    batch: Sequence[Running]
    results: Sequence[RoundResult]
    nums_emitted: Sequence[int]
    """Tokens that each request got of it; none behind its end."""
    seconds: float
    """From before it was planned until all tokens were out."""
    num_backlog_rows: int
    """Rows that the drafter had to catch up on first."""

    @property
    def num_rows(self) -> int:
        """Rows of its pass."""
        return sum(len(result.draft.token_ids) + 1 for result in self.results)


def account(policy: DraftPolicy, made: Round) -> None:
    """Let the policy learn from a round, and add it to the timings of its requests."""
    outcomes = [
        Outcome(one.policy, one.sequence.plan, result.draft, result.verdict.num_accepted)
        for one, result in zip(made.batch, made.results, strict=True)
        if result.verdict is not None
    ]
    num_rows, num_requests = made.num_rows, len(made.batch)
    passes_s = {result.verify_s for result in made.results if result.verdict is not None}
    is_whole = len(outcomes) == num_requests
    if is_whole and len(passes_s) == 1:  # a pass that was repeated one by one has no price
        first = made.results[0]
        has_end = any(one.finish_reason is not None for one in made.batch)
        is_typical = not has_end and not made.num_backlog_rows
        times = (first.verify_s, first.draft_s, made.seconds)
        policy.observe(MeasuredRound(outcomes, num_rows, *times, is_typical))
    is_plain = num_rows == num_requests and not any(one.plan.runs_drafter for one in outcomes)
    plain_s = {
        pass_s: made.seconds if is_plain else policy.plain_s(num_requests, num_rows, pass_s)
        for pass_s in passes_s
    }
    for running, result, num in zip(made.batch, made.results, made.nums_emitted, strict=True):
        if result.verdict is None:
            continue
        a_round_s = plain_s[result.verify_s]
        # Tokens behind the end would not have been decoded plainly, either.
        all_s = None if a_round_s is None else num * a_round_s
        running.timings.observe_round(made.seconds, result.draft_s, result.verify_s, all_s)
