"""What a round holds under some plan: rows, tokens and drafting, as amounts one may expect.

In:  what sequences promise at each depth. Out: seconds and tokens of a round in which they draft so
far. The planner compares such rounds; a fraction of a row is a row that comes now and then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headlong.engine.chances import MAX_AUTO_TOKENS, Expected
from headlong.engine.costs import CostModel, DraftWork
from headlong.engine.policy import Policy, Prospect


@dataclass(slots=True)
class Load:
    """What a round holds under some plan; amounts are expected ones."""

    num_sequences: int
    rows: float = 0.0
    tokens: float = 0.0
    num_asks: int = 0
    active: list[float] = field(default_factory=lambda: [0.0] * MAX_AUTO_TOKENS)
    """Sequences for which the drafter's model runs at each depth."""

    def seconds(self, costs: CostModel) -> float:
        """Predict how long the round takes."""
        return costs.pass_s(self.rows) + costs.beside_s(self.work)

    @property
    def work(self) -> DraftWork:
        """The drafting of the round."""
        num_depths = sum(min(1.0, num) for num in self.active)
        return DraftWork(self.num_asks, num_depths, sum(self.active))

    def copy(self) -> "Load":
        """Return a load of its own with the same amounts."""
        return Load(self.num_sequences, self.rows, self.tokens, self.num_asks, list(self.active))

    def drafting(self, expected: Sequence[Expected], lengths: Sequence[int]) -> "Load":
        """Return the same round once sequences draft these lengths as well."""
        load = self.copy()
        for promise, length in zip(expected, lengths, strict=True):
            load.add(promise, 0, length)
        return load

    def remove(self, expected: Expected, num_tokens: int) -> None:
        """Take a sequence's draft out again."""
        self.num_asks -= num_tokens > 0
        for depth in range(num_tokens):
            self.rows -= expected.rows[depth]
            self.tokens -= expected.tokens[depth]
            self.active[depth] -= expected.steps[depth]

    def add(self, expected: Expected, first: int, stop: int) -> None:
        """Let one sequence draft depths `first` (from 0) up to, not including, `stop`."""
        self.num_asks += first == 0 and stop > 0
        for depth in range(first, stop):
            self.rows += expected.rows[depth]
            self.tokens += expected.tokens[depth]
            self.active[depth] += expected.steps[depth]


def fixed_load(policies: Sequence[Policy]) -> Load:
    """Return what a round holds before anything is decided: newest tokens and fixed drafts."""
    load = Load(len(policies), rows=len(policies), tokens=len(policies))
    for policy in policies:
        if not policy.is_auto and policy.mtp != "off":
            load.add(policy.expected(), 0, min(int(policy.mtp), MAX_AUTO_TOKENS))
    return load


def prospect_of(expected: Expected, length: int, load: Load, costs: CostModel) -> Prospect:
    """Return what one sequence's own draft of some length adds to a round that holds `load`.

    A length of 0, which is none, gives the draft that would come nearest to paying.
    """
    drafting = load.copy()
    drafting.remove(expected, length)
    plain_tokens, plain_s = drafting.tokens, drafting.seconds(costs)
    found: list[Prospect] = []
    for num_tokens in range(1, (length or MAX_AUTO_TOKENS) + 1):
        drafting.add(expected, num_tokens - 1, num_tokens)
        if num_tokens >= length:
            round_s = drafting.seconds(costs)
            gain = (drafting.tokens / round_s) / (plain_tokens / plain_s)
            own_tokens = 1 + drafting.tokens - plain_tokens
            found.append(Prospect(num_tokens, own_tokens, round_s, plain_s, gain))
    return max(found, key=lambda prospect: prospect.gain)
