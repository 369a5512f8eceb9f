"""The verdict in plain words: enable it, leave it off, or not enough data to tell.

In:  speed-ups with their intervals, per task and overall.
Out: an outcome for each, one sentence for people, and the setting to use.
A gain or loss is only claimed when the whole interval lies on one side of 1, also after rounding
to the two digits that are shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headlong.bench.statistics import t_quantile

SAME_WITHIN = 0.03
"""An interval this close around 1 says that it makes no difference."""

MIN_PROMPTS = 4
"""Fewer prompts prove nothing: two or three agree by chance too often."""

_MAX_ADVISED_PROMPTS = 2000


class GainKind(StrEnum):
    """What an interval allows to say."""

    GAIN = "gain"
    LOSS = "loss"
    SAME = "same"
    UNKNOWN = "unknown"


class Wording(StrEnum):
    """What is compared, which decides how it is said."""

    MTP = "mtp"
    """MTP modes of one model: enable it or leave it off."""
    SIDES = "sides"
    """Servers, or old and new: which one is faster."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One candidate's speed-up in one group."""

    group: str
    """Task and temperature for people; empty for everything together."""
    candidate: str
    value: float | None
    low: float | None
    high: float | None
    num_prompts: int

    @property
    def outcome(self) -> GainKind:
        """What may be said."""
        if self.low is None or self.high is None or self.num_prompts < MIN_PROMPTS:
            return GainKind.UNKNOWN
        if round(self.low, 2) > 1:
            return GainKind.GAIN
        if round(self.high, 2) < 1:
            return GainKind.LOSS
        is_same = self.low >= 1 - SAME_WITHIN and self.high <= 1 + SAME_WITHIN
        return GainKind.SAME if is_same else GainKind.UNKNOWN

    @property
    def numbers(self) -> str:
        """The speed-up and its interval as they are shown everywhere."""
        return format_speedup(self.value, self.low, self.high)

    @property
    def merit(self) -> float:
        """How sure a gain is: what candidates are ranked by."""
        return self.low if self.low is not None else (self.value or 0.0) / 1e6


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What to do."""

    words: str
    candidate: str
    """The side the verdict is about: the one whose gain is surest."""
    setting: str | None
    """The side to use; None if there is not enough data."""
    by_group: Mapping[str, str | None]
    """The same for every task at every temperature."""


def read_gain(group: Mapping[str, Any], candidate: str, name: str = "") -> Gain:
    """Take a candidate's speed-up out of a group's figures."""
    speedup = group["speedups"][candidate]
    numbers = (speedup[key] for key in ("value", "low", "high", "num_prompts"))
    return Gain(name, candidate, *numbers)


def judge(
    overall: Sequence[Gain], by_group: Sequence[Gain], baseline: str, wording: Wording
) -> Conclusion:
    """Weigh all findings and put them into words; `overall` has one for every candidate."""
    best = max(overall, key=lambda finding: finding.merit)
    groups = dict.fromkeys(finding.group for finding in by_group)
    settings = {
        group: choose_setting([f for f in by_group if f.group == group], baseline)
        for group in groups
    }
    own = [finding for finding in by_group if finding.candidate == best.candidate]
    own = own if len(own) > 1 else []  # a single group is everything there is
    words = _say(best, own, baseline, wording)
    return Conclusion(words, best.candidate, choose_setting(overall, baseline), settings)


def choose_setting(findings: Sequence[Gain], baseline: str) -> str | None:
    """Return the side to use: the most certain gain, else the baseline; None if unknown."""
    gains = [finding for finding in findings if finding.outcome == GainKind.GAIN]
    if gains:
        return max(gains, key=lambda finding: finding.merit).candidate
    is_told = all(finding.outcome in (GainKind.LOSS, GainKind.SAME) for finding in findings)
    return baseline if is_told else None


def format_speedup(value: float | None, low: float | None, high: float | None) -> str:
    """Write a speed-up with its interval: 1.42 × [1.35–1.50]."""
    if value is None:
        return "not measured"
    interval = "1 prompt" if low is None or high is None else f"{low:.2f}–{high:.2f}"
    return f"{value:.2f} × [{interval}]"


def _say(best: Gain, own: Sequence[Gain], baseline: str, wording: Wording) -> str:
    """Speak of enabling MTP, or of one side being faster than another."""
    mode = f"K={best.candidate}" if best.candidate.isdecimal() else best.candidate
    pair = f"{best.candidate} against {baseline}"
    if wording == Wording.MTP:
        openings = {
            GainKind.GAIN: f"Enable it, {mode}: {best.numbers}",
            GainKind.LOSS: f"Leave it off: {mode} runs at {best.numbers}",
            GainKind.SAME: f"It makes no difference: {mode} runs at {best.numbers}",
            GainKind.UNKNOWN: _say_unknown(best),
        }
        exceptions = {GainKind.GAIN: "enable it for", GainKind.LOSS: "leave it off for"}
    else:
        openings = {
            GainKind.GAIN: f"{best.candidate} is faster than {baseline}: {best.numbers}",
            GainKind.LOSS: f"{best.candidate} is slower than {baseline}: {best.numbers}",
            GainKind.SAME: f"No difference: {pair} runs at {best.numbers}",
            GainKind.UNKNOWN: f"{pair}: {_say_unknown(best)}",
        }
        exceptions = {GainKind.GAIN: "faster for", GainKind.LOSS: "slower for"}
    exceptions[GainKind.SAME] = "no difference for"
    return openings[best.outcome] + _say_exceptions(best, own, exceptions) + "."


def _say_exceptions(best: Gain, own: Sequence[Gain], words: Mapping[GainKind, str]) -> str:
    """Name the tasks that differ from the overall result, and those without enough data."""
    parts = []
    for outcome, phrase in words.items():
        others = [f"{f.group} ({f.numbers})" for f in own if f.outcome == outcome]
        if others and outcome != best.outcome:
            parts.append(f"; {phrase} {listed(others)}")
    unknown = [finding.group for finding in own if finding.outcome == GainKind.UNKNOWN]
    if unknown and best.outcome != GainKind.UNKNOWN:
        parts.append(f"; not enough data to tell for {listed(unknown)}")
    return "".join(parts)


def _say_unknown(finding: Gain) -> str:
    prompts = "1 prompt" if finding.num_prompts == 1 else f"{finding.num_prompts} prompts"
    text = f"Not enough data to tell: {finding.numbers} after {prompts}; run more prompts"
    advised = _advise_prompts(finding)
    return text if advised is None else f"{text}, about {advised} should do"


def _advise_prompts(finding: Gain) -> int | None:
    """Return how many prompts should settle it; None when it cannot be estimated."""
    if not finding.value or not finding.low or not finding.high:
        return None
    distance = abs(math.log(finding.value))
    # With more prompts the interval also loses what it was stretched by for being few.
    stretch = t_quantile(max(1, finding.num_prompts - 1)) / t_quantile(math.inf)
    half_width = math.log(finding.high / finding.low) / 2 / stretch
    if distance < math.log(1 + SAME_WITHIN) / 2:
        distance = math.log(1 + SAME_WITHIN)  # then what can be shown is that nothing changes
    needed = math.ceil(1.5 * finding.num_prompts * (half_width / distance) ** 2)
    needed = max(needed, MIN_PROMPTS)
    return needed if finding.num_prompts < needed <= _MAX_ADVISED_PROMPTS else None


def listed(names: Sequence[str]) -> str:
    """Write names as one would say them: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
