"""A plan in which nobody drafts, and for whom it stays right.

In:  the policies of the next round. Out: whether they can take the plan over as it is. With many
streams somebody comes or goes every few rounds; where drafts do not pay, that is seldom news.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headlong.drafters.draft_plan import Threshold
from headlong.engine.costs import CostModel
from headlong.engine.load import Load, prospect_of
from headlong.engine.policy import Policy, Prospect

STILL_THERE = 0.75
"""As long as this share of those a plan was made for is still there, it holds for all."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What was found when drafts did not pay."""

    load: Load
    prices: CostModel
    """As they were then."""
    is_hopeless: bool
    num_policies: int
    thresholds: Mapping[int, Mapping[str, Threshold]]
    """What copies must be worth, by id of what is known of the kind of request it was made for."""

    def covers(self, policies: Sequence[Policy]) -> bool:
        """Tell whether these need no plan of their own: nearly the same, and of the same kinds."""
        num_left = sum(one.is_decided for one in policies)
        has_changed = num_left < STILL_THERE * self.num_policies
        kinds = (id(one.experience) for one in policies)
        return not has_changed and all(kind in self.thresholds for kind in kinds)


def prospect_at_rest(policy: Policy, rest: Rest) -> Prospect:
    """Return what a sequence that rests with others could have added to their round."""
    return prospect_of(policy.expected(), 0, rest.load, rest.prices)
