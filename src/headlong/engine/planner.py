"""The plan of a step: how many draft tokens every running sequence is worth, chosen together.

In:  the policies of the sequences in the next round. Out: a wish for each of them.
Rows are added in order of what they give for what they cost, while tokens per second rise; 0 is a
valid answer. What a row and a draft step cost comes from `costs.py`, what they give from
`chances.py`. The same prices say how sure a drafter must be for one more token to pay.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from headlong.config import MtpMode
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.drafters.drafter import GRAMMAR, NGRAM, Draft
from headlong.engine.chances import MAX_AUTO_TOKENS, Expected, Look
from headlong.engine.costs import CostModel, DraftWork
from headlong.engine.load import Load, fixed_load, prospect_of
from headlong.engine.policy import PROBE_TOKENS, Decision, Experience, Policy, within
from headlong.engine.rest import Rest, prospect_at_rest

MAX_PLAN_ROUNDS = 8
"""Rounds a plan is kept for while the same sequences run; doubles up to this from one."""

MAX_REST_ROUNDS = 64
"""The same while nobody drafts: but for the prices, only tries that stand are news, and end it."""

KEEP_MARGIN = 1.02
"""A new plan must promise this much more than the old one; stops hopping back and forth."""

PAYS = 1.03
"""What a plan must promise against plain decoding to be begun: promises err by as much."""

BEGIN_ROUNDS = 48
"""Rounds within which drafts must pay for what the drafter has to look at before the first one."""

PLAIN_SAMPLES = 4
"""Plain rounds that are measured before a comparison with them is trusted."""

PLAIN_INTERVAL = 128
"""Rounds between looks at what a plain pass costs while one sequence drafts; with many, gains are
small and must be known better, so that they share it."""

MIN_PLAIN_INTERVAL = 16
"""The fewest such rounds, however many sequences run."""

CLEAR_GAIN = 2.0
"""From such a promise on there is no hurry: no price can be as wrong as that."""

MAX_LEAP = 1.4
"""How far, against the largest measured pass, a plan may reach: what lies there is only guessed."""

HOPELESS = 0.8
"""Where tokens per second have fallen to this share of the best, more rows are not looked at."""

PROBE_SPACING = 8
"""Rounds between tries of any two sequences that do not draft; doubles while none of them begins
to, until each of them tries about as rarely as it would alone."""

TRY_SHARE = 0.003
"""Share of all time that tries may lose where many share them: behind a long prompt that waited for
the head, one costs as much as a round."""

BAR_SPEED = 0.25
"""How far the chance that one more token must have moves with every plan."""

MAX_BAR = 0.9
"""Where drafting pays at all, a token as sure as this is always worth its row."""

_ALWAYS = (1.0,) * MAX_AUTO_TOKENS

PERFECT = Expected(_ALWAYS, _ALWAYS, _ALWAYS)
"""What a sequence promises whose drafts always stand."""


@dataclass(slots=True)
class Planner:
    """Plans the drafts of an engine and learns from its rounds."""

    costs: CostModel = field(default_factory=CostModel)
    experiences: dict[int, Experience] = field(default_factory=dict)
    _planned_for: list[Policy] = field(default_factory=list)
    _rest: Rest | None = None
    _rounds: int = 0
    _plan_rounds: int = 1
    _plan_rounds_left: int = 0
    _next_probe: int = 0
    _probe_spacing: int = PROBE_SPACING
    _gain: float = 1.0
    _keep: float = 0.0
    _with_step: float = 0.0

    def make_policy(self, mtp: MtpMode, temperature: float) -> Policy:
        """Return the policy of a new sequence, with what like requests have shown."""
        level = 0 if temperature == 0 else 1 + (temperature > 0.5) + (temperature > 0.9)
        return Policy(mtp, self.experiences.setdefault(level, Experience()))

    @property
    def rests(self) -> bool:
        """Whether drafts do not pay now for anybody who would leave that to us."""
        return self._rest is not None

    def plan(
        self, policies: Sequence[Policy], max_rows: int, reading: float = 0.0
    ) -> list[DraftPlan]:
        """Return what each sequence of the next round is to draft.

        `reading` is what its pass reads of caches, against the weights.
        """
        self._rounds += 1
        self.costs.reading = reading
        autos = [policy for policy in policies if policy.is_auto]
        is_new = autos != self._planned_for
        if autos and self._measures_plain(policies):
            wishes = [policy.plain_wish() for policy in policies]
            return within(wishes, max_rows)
        self._plan_rounds_left -= 1
        has_news = is_new or self._plan_rounds_left <= 0 or self._rounds >= self._next_probe
        if self.rests and not has_news and len(autos) == len(policies):
            return [policy.rest() for policy in policies]  # most rounds of many streams end here
        if is_new and self._rest is not None and self._rest.covers(autos):
            self._let_rest(autos, self._rest)
        elif autos and (is_new or self._plan_rounds_left <= 0):
            self._decide(policies, autos, is_new)
            most = MAX_REST_ROUNDS if self.rests else MAX_PLAN_ROUNDS
            if is_new:
                self._plan_rounds = MAX_PLAN_ROUNDS if self.rests else 1
            else:
                self._plan_rounds = min(2 * self._plan_rounds, most)
            self._plan_rounds_left = self._plan_rounds
            if not self.rests:
                self._probe_spacing = PROBE_SPACING
        self._planned_for = autos
        return within(self._wishes(policies), max_rows)

    def learn(
        self, policy: Policy, wish: DraftPlan, draft: Draft, num_accepted: int, seconds: float = 0.0
    ) -> None:
        """Learn how far a draft has carried one sequence; its round drafted for `seconds`.

        Of a copy that took no model only its chance is learned.
        """
        if wish.runs_drafter:
            num_drafted = len(draft.token_ids)
            if policy.is_auto and not policy.current:
                self._judge_try(seconds, num_drafted, num_accepted)
            policy.observe(Look(wish.num_tokens, draft.num_steps, num_drafted, num_accepted))
        if draft.sources and draft.sources[0] != GRAMMAR:
            policy.experience.confidence(draft.sources[0]).observe(draft.probs, num_accepted)

    def _judge_try(self, draft_s: float, num_drafted: int, num_accepted: int) -> None:
        """Plan anew if a try stood; let the next of anybody wait longer, unless drafting begins.

        That it stood is no reason to hurry: with many streams even that may not pay. What it lost
        is its draft and its rows, less what the tokens that stood would have taken.
        """
        if num_accepted:
            self._plan_rounds_left = 0
        num_sharing = len(self._planned_for)
        self._probe_spacing = min(2 * self._probe_spacing, PROBE_SPACING * num_sharing)
        num_rounds = self._probe_spacing
        if num_sharing > 1:
            plain_s = self.costs.pass_s(num_sharing)
            spent_s = draft_s + self.costs.pass_s(num_sharing + num_drafted) - plain_s
            lost = spent_s / plain_s - num_accepted / num_sharing
            num_rounds = max(num_rounds, round(lost / TRY_SHARE))
        self._next_probe = self._rounds + num_rounds

    def plain_s(self, num_sequences: int, num_rows: int, verify_s: float) -> float | None:
        """Return how long a round without drafts would have taken instead of one with such a pass.

        What slowed the pass down would have slowed that one down as well, so only the ratio of
        their prices counts. None while nobody knows what a plain pass costs.
        """
        if not self.costs.is_known(num_sequences):
            return None
        share = self.costs.pass_s(num_sequences) / self.costs.pass_s(num_rows)
        return share * verify_s + self.costs.beside_s(DraftWork())

    def _measures_plain(self, policies: Sequence[Policy]) -> bool:
        """Tell whether this round should show what plain decoding costs."""
        fixed = [policy.wish() for policy in policies if not policy.is_auto]
        num_rows = len(policies) + sum(wish.num_tokens for wish in fixed)
        price = self.costs.passes.get(num_rows)
        if price is None:
            return not self.costs.is_known(num_rows)
        is_young = price.num_seen < PLAIN_SAMPLES
        num_sharing = 1 if self._gain > CLEAR_GAIN else len(policies)
        usual = max(MIN_PLAIN_INTERVAL, PLAIN_INTERVAL // num_sharing)
        return self._rounds % (4 if is_young else usual) == 0

    def _let_rest(self, policies: Sequence[Policy], rest: Rest) -> None:
        """Let those who have joined since rest like the others."""
        for policy in policies:
            if not policy.is_decided:
                prospect = partial(prospect_at_rest, policy, rest)
                thresholds = rest.thresholds[id(policy.experience)]
                policy.decide(Decision(0, thresholds, rest.is_hopeless, prospect))

    def _decide(self, policies: Sequence[Policy], autos: Sequence[Policy], is_new: bool) -> None:
        """Choose draft lengths and thresholds for all sequences that leave it to us."""
        self.costs.refresh()
        expected = [one.expected() for one in autos]
        base = fixed_load(policies)
        lengths = self._best_lengths(base, expected)
        rate = self._rate(base, expected, lengths, self._begin_s(autos, lengths))
        kept = [policy.current for policy in autos]
        kept_rate = self._rate(base, expected, kept)
        if not is_new and rate < KEEP_MARGIN * kept_rate:
            lengths, rate = kept, kept_rate
        plain = [0] * len(autos)
        plain_rate = self._rate(base, expected, plain)
        if rate < (PAYS if is_new or not any(kept) else 1.0) * plain_rate:
            lengths, rate = plain, plain_rate
        self._gain = rate / plain_rate
        load = base.drafting(expected, lengths)
        is_hopeless = self._is_hopeless(load, rate)
        self._move_bars(load, rate)
        drafting = [one.experience for one, length in zip(autos, lengths, strict=True) if length]
        kinds = {id(shown): shown for shown in drafting}
        thresholds = {key: self._bars(shown) for key, shown in kinds.items()}
        row_s = self._row_s(base.rows, 1.25 * base.rows + 1)
        resting_bars = _copy_bars(autos, PAYS * rate * row_s)
        prices = self.costs.frozen()
        self._rest = None
        if not any(lengths):
            self._rest = Rest(load, prices, is_hopeless, len(autos), resting_bars)
        for policy, promise, length in zip(autos, expected, lengths, strict=True):
            prospect = partial(prospect_of, promise, length, load, prices)
            own_bars = (thresholds if length else resting_bars)[id(policy.experience)]
            policy.decide(Decision(length, own_bars, is_hopeless, prospect))

    def _begin_s(self, policies: Sequence[Policy], lengths: Sequence[int]) -> float:
        """Return how much longer rounds are at first for those who begin to draft, a share each."""
        beginners = [one for one, k in zip(policies, lengths, strict=True) if k and not one.current]
        num_rows = sum(one.num_waiting for one in beginners)
        return self.costs.look_s(num_rows) / BEGIN_ROUNDS

    def _best_lengths(self, base: Load, expected: Sequence[Expected]) -> list[int]:
        """Add rows in order of merit; return the lengths at which tokens per second are highest."""
        load = base.copy()
        row_s = self._row_s(0.75 * load.rows, 1.25 * load.rows + 1)
        step_s = self._step_s(load)
        most_rows = MAX_LEAP * max(self.costs.passes) + 1

        def merit(sequence: int, depth: int) -> float:
            promise = expected[sequence]
            cost = row_s * promise.rows[depth] + step_s * promise.steps[depth]
            return promise.tokens[depth] / max(cost, 1e-9)

        heap = [(-merit(sequence, 0), sequence, 0) for sequence in range(len(expected))]
        heapq.heapify(heap)
        added: list[int] = []
        num_best, best_rate = 0, load.tokens / load.seconds(self.costs)
        while heap:
            _, sequence, depth = heapq.heappop(heap)
            load.add(expected[sequence], depth, depth + 1)
            if load.rows > most_rows:
                break
            added.append(sequence)
            rate = load.tokens / load.seconds(self.costs)
            if rate > best_rate:
                num_best, best_rate = len(added), rate
            if rate < HOPELESS * best_rate:
                break
            if depth + 1 < MAX_AUTO_TOKENS:
                heapq.heappush(heap, (-merit(sequence, depth + 1), sequence, depth + 1))
        chosen = added[:num_best]
        return [chosen.count(sequence) for sequence in range(len(expected))]

    def _rate(
        self,
        base: Load,
        expected: Sequence[Expected],
        lengths: Sequence[int],
        begin_s: float = 0.0,
    ) -> float:
        load = base.drafting(expected, lengths)
        return load.tokens / (load.seconds(self.costs) + begin_s)

    def _row_s(self, low: float, high: float) -> float:
        """Return what a row costs between two passes: single prices are noisy, and may jump."""
        low = max(low, 1.0)
        return (self.costs.pass_s(high) - self.costs.pass_s(low)) / (high - low)

    def _step_s(self, load: Load) -> float:
        """Return what running the drafter's model for one more sequence costs, depths shared."""
        num_sharing = max(1, load.num_sequences)
        return self.costs.draft_s(DraftWork(0, 1 / num_sharing, 1))

    def _move_bars(self, load: Load, rate: float) -> None:
        """Work out which chance one more token must have to pay at these prices.

        What counts is what its row would spare if left out, for the plan ends where rows get dear.
        All sequences follow one threshold; if it jumped, so would all their drafts, and it too.
        """
        low = max(float(load.num_sequences), 0.75 * load.rows - 0.5)
        keep = rate * self._row_s(low, load.rows + 0.5)
        with_step = keep + rate * self._step_s(load)
        self._keep += BAR_SPEED * (keep - self._keep)
        self._with_step += BAR_SPEED * (with_step - self._with_step)

    def _bars(self, experience: Experience) -> dict[str, Threshold]:
        """Return which chances drafts of each drafter must have, and what its words are worth."""
        thresholds: dict[str, Threshold] = {}
        for source, confidence in experience.confidences.items():
            worth = confidence.read()
            most = worth(MAX_BAR)
            extend = self._with_step / confidence.share  # one more token keeps so much of a chance
            thresholds[source] = Threshold(min(self._keep, most), min(extend, most), worth)
        return thresholds

    def _wishes(self, policies: Sequence[Policy]) -> list[DraftPlan]:
        """Return everybody's wish, but let only one sequence at a time try what does not pay.

        However many run, they share what such tries cost and show; and what rows cost just beyond
        the usual is seen best this way.
        """
        chosen: Policy | None = None
        if self._rounds >= self._next_probe:
            due = (one for one in policies if one.is_try_due)
            chosen = min(due, key=lambda one: one.num_waiting, default=None)
        if chosen is not None:
            self._next_probe = self._rounds + self._probe_spacing
        is_alone = len(policies) == 1
        return [policy.wish(can_probe=policy is chosen, is_alone=is_alone) for policy in policies]

    def _is_hopeless(self, load: Load, rate: float) -> bool:
        """Tell whether rows are known to be so dear that not even a perfect draft would pay."""
        stop = load.rows + PROBE_TOKENS
        is_measured = any(load.rows < num_rows <= stop for num_rows in self.costs.passes)
        return is_measured and self._rate(load, [PERFECT], [PROBE_TOKENS]) < rate


def _copy_bars(policies: Sequence[Policy], keep: float) -> dict[int, dict[str, Threshold]]:
    """Return thresholds for copies, whose chance must be `keep`, by id of experience.

    Where the drafter's model does not pay, a token that stood behind the same tokens before may
    still be worth its row: finding it takes next to nothing.
    """
    kinds = {id(one.experience): one.experience for one in policies}
    return {
        key: {NGRAM: Threshold(keep, keep, shown.confidence(NGRAM).read())}
        for key, shown in kinds.items()
    }
