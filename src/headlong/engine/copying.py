"""What sequences at rest copy, and what that must be worth.

In:  the chance that pays for a row; copies of rounds that are over. Out: bars for copies, from what
was learned of them. Where the drafter's model does not pay, a token that stood behind the same
tokens before may still be worth its row: finding it takes next to nothing.
"""

from collections.abc import Sequence

from headlong.drafters.drafter import NGRAM, Bar, Draft
from headlong.engine.policy import Policy


def copy_bars(policies: Sequence[Policy], keep: float) -> dict[int, dict[str, Bar]]:
    """Return bars for copies, whose chance must be `keep`, by id of what is known of a request."""
    kinds = {id(one.experience): one.experience for one in policies}
    return {
        key: {NGRAM: Bar(keep, keep, shown.confidence(NGRAM).read())}
        for key, shown in kinds.items()
    }


def learn_copy(policy: Policy, draft: Draft, num_accepted: int) -> None:
    """Learn from what a sequence at rest copied in one round."""
    policy.experience.confidence(NGRAM).observe(draft.probs, num_accepted)
