"""Stats: counters of rounds and clocks of phases, and every ratio made from them.

In:  what each round drafted and how much of it stood; seconds. Out: the ratios of the glossary,
defined here and nowhere else, and plain dictionaries for JSON. Depths count from 1 in words and
from 0 in the lists. Knows nothing of models, text or requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest


@dataclass(slots=True)
class DrafterCount:
    """Numbers of drafted and accepted tokens of one drafter."""

    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(slots=True)
class DecodeStats:
    """What the rounds of one or many sequences drafted and accepted."""

    rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    by_drafter: dict[str, DrafterCount] = field(default_factory=dict)
    drafted_at_depth: list[int] = field(default_factory=list)
    """Rounds that had a draft token at each depth."""
    reached_at_depth: list[int] = field(default_factory=list)
    """Rounds with a draft token there in which all depths before it were accepted."""
    accepted_at_depth: list[int] = field(default_factory=list)
    """Rounds in which the draft token at each depth was accepted."""
    k_histogram: dict[int, int] = field(default_factory=dict)
    """Number of rounds for each draft length."""
    outcomes: dict[int, list[int]] = field(default_factory=dict)
    """For each draft length: rounds in which 0, 1, … of its tokens were accepted."""

    def observe_round(self, sources: Sequence[str], num_accepted: int) -> None:
        """Count one round; `sources` names the drafter of each draft token, maybe none."""
        num_drafted = len(sources)
        assert 0 <= num_accepted <= num_drafted, f"{num_accepted} of {num_drafted} accepted"
        self.rounds += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.k_histogram[num_drafted] = self.k_histogram.get(num_drafted, 0) + 1
        self.outcomes.setdefault(num_drafted, [0] * (num_drafted + 1))[num_accepted] += 1
        deeper = [0] * (num_drafted - len(self.drafted_at_depth))
        for counts in (self.drafted_at_depth, self.reached_at_depth, self.accepted_at_depth):
            counts.extend(deeper)
        for depth, source in enumerate(sources):
            stood = depth < num_accepted
            self.drafted_at_depth[depth] += 1
            self.reached_at_depth[depth] += depth <= num_accepted
            self.accepted_at_depth[depth] += stood
            count = self.by_drafter.setdefault(source, DrafterCount())
            count.num_drafted += 1
            count.num_accepted += stood

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a round emits, the next token included, before any stop cuts it."""
        return 1 + self.num_accepted / self.rounds if self.rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Share of draft tokens that were accepted."""
        return _share(self.num_accepted, self.num_drafted)

    @property
    def acceptance_at_depth(self) -> list[float]:
        """Share of all rounds that accepted each depth; 1 + their sum is the acceptance length."""
        return [_share(accepted, self.rounds) for accepted in self.accepted_at_depth]

    @property
    def conditional_acceptance(self) -> list[float]:
        """Share of the rounds that reached each depth in which it was accepted.

        A round reaches a depth when it has a draft token there and all depths before it stood, so
        short drafts do not count against the depths they never had.
        """
        pairs = zip(self.accepted_at_depth, self.reached_at_depth, strict=True)
        return [_share(accepted, reached) for accepted, reached in pairs]

    def merge(self, other: "DecodeStats") -> None:
        """Add the counters of `other` to these."""
        self.rounds += other.rounds
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        self.drafted_at_depth = _added(self.drafted_at_depth, other.drafted_at_depth)
        self.reached_at_depth = _added(self.reached_at_depth, other.reached_at_depth)
        self.accepted_at_depth = _added(self.accepted_at_depth, other.accepted_at_depth)
        for length, num_rounds in other.k_histogram.items():
            self.k_histogram[length] = self.k_histogram.get(length, 0) + num_rounds
        for length, counts in other.outcomes.items():
            self.outcomes[length] = _added(self.outcomes.get(length, []), counts)
        for name, theirs in other.by_drafter.items():
            count = self.by_drafter.setdefault(name, DrafterCount())
            count.num_drafted += theirs.num_drafted
            count.num_accepted += theirs.num_accepted

    def to_dict(self) -> dict[str, object]:
        """Return counters and ratios for JSON."""
        return {
            "rounds": self.rounds,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_at_depth": self.acceptance_at_depth,
            "conditional_acceptance": self.conditional_acceptance,
            "drafted_at_depth": list(self.drafted_at_depth),
            "reached_at_depth": list(self.reached_at_depth),
            "accepted_at_depth": list(self.accepted_at_depth),
            "by_drafter": {name: asdict(count) for name, count in self.by_drafter.items()},
            # JSON has no integer keys.
            "k_histogram": {str(k): num for k, num in sorted(self.k_histogram.items())},
        }


@dataclass(slots=True)
class Timings:
    """Where the seconds of one generation went."""

    prefill_s: float = 0.0
    """The prompt through the backbone, until the first token."""
    prefill_head_s: float = 0.0
    """The prompt through the drafter, on hidden states the backbone had just produced."""
    decode_s: float = 0.0
    """Everything after the first token."""
    draft_s: float = 0.0
    """Of that, spent drafting."""
    verify_s: float = 0.0
    """Of that, spent in backbone passes."""
    num_tokens: int = 0
    """New tokens produced in the decode phase: all but the first."""
    plain_s: float = 0.0
    """What plain decoding would have taken, where its cost was known at that moment."""
    compared_s: float = 0.0
    """Seconds of the rounds that `plain_s` is compared with."""

    def observe_round(
        self, seconds: float, draft_s: float, verify_s: float, plain_s: float | None
    ) -> None:
        """Book one round; `plain_s` is what its tokens would take without drafts, if known."""
        self.draft_s += draft_s
        self.verify_s += verify_s
        self.decode_s += seconds
        if plain_s is not None:
            self.plain_s += plain_s
            self.compared_s += seconds

    @property
    def measured_speedup(self) -> float | None:
        """Speed of the rounds against plain decoding at the same moments; None when unknown."""
        return self.plain_s / self.compared_s if self.compared_s > 0 else None

    def at_most(self, speedup: float) -> "Timings":
        """Return these timings with a measured speed-up of at most so much: the acceptance length.

        No pass with drafts is shorter than a plain one, so what goes beyond is no gain: rounds
        stalled in which many tokens stood.
        """
        return replace(self, plain_s=min(self.plain_s, speedup * self.compared_s))

    @property
    def tokens_per_second(self) -> float:
        """Decode-phase tokens per second of decode phase; 0 before there are any."""
        return self.num_tokens / self.decode_s if self.decode_s > 0 else 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Return seconds, count and speeds for JSON."""
        speeds = {
            "tokens_per_second": self.tokens_per_second,
            "measured_speedup": self.measured_speedup,
        }
        return {**asdict(self), **speeds}


def walk_rounds(standing: Sequence[int], num_draft_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the rounds that decoding makes along a known answer: position, accepted tokens.

    `standing` says for every position how many leading draft tokens would stand there. A round
    emits its accepted tokens and one more; the next one begins behind them.
    """
    position = 0
    while position < len(standing):
        num_accepted = min(standing[position], num_draft_tokens)
        yield position, num_accepted
        position += num_accepted + 1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _added(ours: list[int], theirs: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(ours, theirs, fillvalue=0)]
