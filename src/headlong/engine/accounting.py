"""What a round took and gave: told to the draft policy, and added to every request's timings.

In `Timings` it stands beside what plain decoding would have taken for the same tokens. All counts
that made the round longer: drafts, their rows in the pass, and the work around them.
"""

from collections.abc import Sequence

from headlong.decode.round import RoundResult
from headlong.engine.draft_policy import DraftPolicy, MeasuredRound, Outcome
from headlong.engine.request import Running


def count_rows(done: Sequence[tuple[Running, RoundResult]]) -> int:
    """Return the rows of a round's pass."""
    return sum(len(result.draft.token_ids) + 1 for _, result in done)


def account(
    policy: DraftPolicy,
    done: Sequence[tuple[Running, RoundResult]],
    nums_emitted: Sequence[int],
    round_s: float,
    *,
    is_typical: bool,
    is_whole: bool,
) -> None:
    """Let the policy learn from a round, and add it to the timings of its requests.

    Tokens behind the end of a request are not emitted. A round is whole if none of its requests
    failed; `round_s` is from before it was planned until all tokens were out.
    """
    outcomes = [
        Outcome(one.policy, one.sequence.plan, result.draft, result.verdict.num_accepted)
        for one, result in done
        if result.verdict is not None
    ]
    num_rows, num_requests = count_rows(done), len(done)
    passes_s = {result.verify_s for _, result in done}
    if is_whole and len(passes_s) == 1:  # a pass that was repeated one by one has no price
        first = done[0][1]
        has_end = any(one.finish_reason is not None for one, _ in done)
        times = (first.verify_s, first.draft_s, round_s)
        policy.observe(MeasuredRound(outcomes, num_rows, *times, is_typical and not has_end))
    is_plain = num_rows == num_requests and not any(one.plan.runs_drafter for one in outcomes)
    plain_s = {
        pass_s: round_s if is_plain else policy.plain_s(num_requests, num_rows, pass_s)
        for pass_s in passes_s
    }
    for (running, result), num_emitted in zip(done, nums_emitted, strict=True):
        if result.verdict is None:
            continue
        a_round_s = plain_s[result.verify_s]
        # Tokens behind the end would not have been decoded plainly, either.
        all_s = None if a_round_s is None else num_emitted * a_round_s
        times = (round_s, result.draft_s, result.verify_s)
        running.sequence.timings.observe_round(*times, all_s)
