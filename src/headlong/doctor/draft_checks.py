"""Do the head's drafts stand, as often as they could and as they once did?

In:  a head, the backbone's own answers with their hidden rows, the head's record.
Out: findings about a dead or weak head, one that lost by packing, one that is read the wrong way
round, one whose vocabulary misses what the model says, and one that has fallen behind its record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlong.arrays import IntArray
from headlong.doctor.alternatives import Alternative
from headlong.doctor.finding import Check, Finding, Severity, skipped
from headlong.doctor.head_checks import GO_WITHOUT, HeadRecord, expected_length
from headlong.doctor.probe import PROMPTS_ID, AcceptedCounts, ProbeRows, measure_acceptance
from headlong.heads.head import Head

PROBE_DEPTH = 4
"""Draft tokens a round at which heads are compared with their record."""

DEAD_LENGTH, WEAK_LENGTH = 1.15, 1.5
"""Acceptance lengths under which a head is of no use, and of little."""

MIN_COVERAGE = 0.8
"""Share of the model's own words that a draft vocabulary should have."""

MIN_GAIN = 0.15
"""Tokens a round that another reading of a head must bring to be called better."""

_READING_DEPTH = 3
_RECOGNISED, _CLEARLY = 0.95, 0.1
"""Share of positions at which a reading must meet the record, and how much more than as it is."""
_SIGMAS = 3.0
_TRAIN_ON = "Train it longer or on more of what you ask: `headlong train --from-head …`"
_RETRAIN = (
    "If the model was fine-tuned since, go on training the head on it: `headlong train --from-head "
    "…`. If not, the head's file has changed: get it again."
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A head and how its drafts fared on the probe."""

    head: Head
    acceptance: AcceptedCounts
    probed: Sequence[ProbeRows]

    def by_task(self, num_draft_tokens: int) -> dict[str, float]:
        """Return the acceptance length of every task."""
        return {
            one.text.task: AcceptedCounts((accepted,), self.acceptance.max_depth).length(
                num_draft_tokens
            )
            for one, accepted in zip(self.probed, self.acceptance.accepted, strict=True)
            if len(accepted)
        }


def describe_probe(judged: Judged, backend: str) -> dict[str, Any]:
    """Return what `--record` keeps of a measurement."""
    return {
        "prompts": PROMPTS_ID,
        "num_draft_tokens": PROBE_DEPTH,
        "acceptance_length": round(judged.acceptance.length(PROBE_DEPTH), 4),
        "by_task": {task: round(x, 4) for task, x in judged.by_task(PROBE_DEPTH).items()},
        # One digit per position, so that a shorter probe can be compared at the same positions.
        "stood": {
            one.text.task: "".join(map(str, accepted.tolist()))
            for one, accepted in zip(judged.probed, judged.acceptance.accepted, strict=True)
        },
        "backend": backend,
    }


def check_alive(judged: Judged) -> Finding:
    """Do drafts stand at all?"""
    acceptance = judged.acceptance
    if not acceptance.num_positions:
        return skipped("drafts", "the model's answers were too short to judge by")
    numbers = {"num_positions": acceptance.num_positions, "by_task": judged.by_task(PROBE_DEPTH)}
    return judge_lengths(acceptance.stats(PROBE_DEPTH).acceptance_at_depth, "head", numbers)


def judge_lengths(at_depth: Sequence[float], drafter: str, numbers: Mapping[str, Any]) -> Finding:
    """Judge a drafter by its acceptance at each depth."""
    length, depth = 1 + sum(at_depth), len(at_depth)
    numbers = {
        "acceptance_length": length,
        "acceptance_at_depth": list(at_depth),
        "num_draft_tokens": depth,
        **numbers,
    }
    check = Check("drafts", numbers)
    shares = ", ".join(f"{share:.0%}" for share in at_depth)
    seen = (
        f"{length:.2f} tokens a round with K={depth}, the next token included; depths 1 to {depth} "
        f"stand in {shares} of rounds"
    )
    if length < DEAD_LENGTH:
        return check.fault(
            f"The {drafter} is dead: {seen}.",
            "If a check above or below names the cause, mend that; else it is untrained or made "
            f"for another model. {GO_WITHOUT}",
        )
    if length < WEAK_LENGTH:
        return check.warning(f"The {drafter} is weak: {seen}.", f"{_TRAIN_ON}.")
    return check.ok(seen)


def check_coverage(judged: Judged) -> Finding:
    """Can the head say what the model says?"""
    vocabulary = judged.head.vocabulary
    said = [token_id for one in judged.probed for token_id in one.text.answer_ids]
    if vocabulary is None or not said:
        return skipped("coverage", "the head drafts from the backbone's whole vocabulary")
    share = float(np.isin(said, vocabulary).mean())
    check = Check("coverage", {"coverage": share, "num_tokens": len(said)})
    if share < MIN_COVERAGE:
        return check.warning(
            f"Only {share:.1%} of the model's own words are in the draft vocabulary.",
            "Train the head with a larger vocabulary, or one counted on this model's answers.",
        )
    return check.ok(f"the draft vocabulary has {share:.1%} of the model's own words")


def check_precision(judged: Judged, as_stored: Head, quant: str | None) -> Finding:
    """Does packing the head cost drafts?"""
    if quant is None:
        return skipped("precision", "the head runs as it is stored")
    depth = judged.acceptance.max_depth
    stored = measure_acceptance(as_stored, judged.probed, depth)
    packed_mean, stored_mean = judged.acceptance.mean, stored.mean
    numbers = {
        "quant": quant,
        "packed_length": judged.acceptance.length(PROBE_DEPTH),
        "stored_length": stored.length(PROBE_DEPTH),
    }
    check = Check("precision", numbers)
    seen = (
        f"{numbers['packed_length']:.2f} tokens a round at {quant}, "
        f"{numbers['stored_length']:.2f} as stored"
    )
    if not _is_better(stored, judged.acceptance, at_least=0.1 * stored_mean):
        return check.ok(seen)
    level = Severity.FAULT if packed_mean < 0.6 * stored_mean else Severity.WARNING
    remedy = "Keep the head as it is stored: --head-quant stored (head_quant='stored' in Python)."
    return Finding("precision", level, f"Packing costs drafts: {seen}.", remedy, numbers)


def check_reading(
    judged: Judged, alternatives: Sequence[Alternative], record: HeadRecord | None = None
) -> Finding:
    """Would the head draft better, or as its record says it did, if it were read another way?"""
    if not alternatives:
        return skipped("reading", f"heads of kind {judged.head.kind} can be read in one way only")
    depth = _READING_DEPTH
    current = AcceptedCounts(tuple(np.minimum(s, depth) for s in judged.acceptance.accepted), depth)
    found = [
        (measure_acceptance(other.head, [other.read(one) for one in judged.probed], depth), other)
        for other in alternatives
    ]
    # Shallower drafts need less truth ahead, so they can be asked at more positions.
    found = [(acceptance.cut(map(len, current.accepted)), other) for acceptance, other in found]
    best, other = max(found, key=lambda pair: pair[0].mean)
    as_is = current.length(depth)
    check = Check(
        "reading", {"as_is": as_is} | {o.name: acceptance.length(depth) for acceptance, o in found}
    )
    recorded = _recorded(judged, {} if record is None else record.probe)
    by_agreement = [(_agreement(acceptance, recorded), o) for acceptance, o in found]
    met, recognised = max(by_agreement, key=lambda pair: pair[0])
    # Some mistakes cost so few drafts that counting settles nothing, but they move which ones
    # stand: the reading that a head was recorded with is met again position by position.
    if met >= _RECOGNISED and met - _agreement(current, recorded) >= _CLEARLY:
        return check.fault(
            f"With {recognised.name} its drafts stand where its record says they stood, at "
            f"{met:.0%} of positions; as it is, at {_agreement(current, recorded):.0%}.",
            recognised.remedy,
        )
    if _is_better(best, current, at_least=max(MIN_GAIN, 0.3 * current.mean)):
        return check.fault(
            f"It drafts better with {other.name}: {best.length(depth):.2f} tokens a round instead "
            f"of {as_is:.2f} (K={depth}).",
            other.remedy,
        )
    return check.ok(
        f"order and norms are right: none of {len(found)} other readings drafts clearly better "
        f"(as it is {as_is:.2f} tokens a round with K={depth}, the best other "
        f"{best.length(depth):.2f})"
    )


def check_record(judged: Judged, record: HeadRecord) -> Finding:
    """Do drafts stand as often as they did when the head was made?"""
    then = AcceptedCounts(tuple(_recorded(judged, record.probe)), judged.acceptance.max_depth)
    now = judged.acceptance.cut(map(len, then.accepted))
    then = then.cut(map(len, judged.acceptance.accepted))  # the positions both have
    if now.num_positions:
        return _against(now, then.length(PROBE_DEPTH), _SAME_PROMPTS)
    expected = expected_length(record.acceptance, PROBE_DEPTH)
    if expected is None or not judged.acceptance.num_positions:
        return skipped(
            "record",
            "the head has no recorded acceptance to compare with; `headlong doctor --record` "
            "keeps today's",
        )
    return _against(judged.acceptance, expected, _OTHER_PROMPTS)


def _recorded(judged: Judged, probe: Mapping[str, Any]) -> list[IntArray]:
    """Return how many draft tokens were accepted at each position, as far as it is recorded."""
    found = probe.get("stood") if probe.get("prompts") == PROMPTS_ID else None
    digits = [
        str(found.get(one.text.task, "")) if isinstance(found, dict) else ""
        for one in judged.probed
    ]
    return [
        np.array([int(digit) for digit in own] if own.isdecimal() else [], dtype=np.int64)
        for own in digits
    ]


def _agreement(acceptance: AcceptedCounts, recorded: Sequence[IntArray]) -> float:
    """Return the share of positions at which as many draft tokens stand as are recorded."""
    pairs = list(zip(acceptance.accepted, recorded, strict=True))
    now = np.concatenate([accepted[: len(then)] for accepted, then in pairs])
    then = np.concatenate([then[: len(accepted)] for accepted, then in pairs])
    depth = min(acceptance.max_depth, PROBE_DEPTH)
    return float((np.minimum(now, depth) == np.minimum(then, depth)).mean()) if len(now) else 0.0


@dataclass(frozen=True, slots=True)
class _Limits:
    """Shares of the record, in tokens beyond the next one, under which a head is ill or unwell."""

    fault: float
    warning: float
    where: str


_SAME_PROMPTS = _Limits(0.6, 0.85, "on these very prompts")
_OTHER_PROMPTS = _Limits(0.4, 0.6, "on the prompts of its evaluation")


def _against(acceptance: AcceptedCounts, then: float, limits: _Limits) -> Finding:
    """Judge the accepted tokens, without the next token of each round."""
    now = acceptance.length(PROBE_DEPTH)
    gained = (now - 1) / max(then - 1, 1e-9)
    # A short probe must not cry wolf: what chance can do is granted.
    counts = np.minimum(np.concatenate(acceptance.accepted), PROBE_DEPTH)
    error = float(counts.std()) / math.sqrt(max(1, len(counts)))
    most = (now - 1 + 2 * error) / max(then - 1, 1e-9)
    check = Check("record", {"acceptance_length": now, "recorded": then, "share": gained})
    seen = f"{now:.2f} tokens a round; {then:.2f} are recorded {limits.where}"
    if most < limits.fault:
        return check.fault(f"Far under its record: {seen}.", _RETRAIN)
    if most < limits.warning:
        return check.warning(f"Under its record: {seen}.", _RETRAIN)
    return check.ok(seen)


def _is_better(better: AcceptedCounts, worse: AcceptedCounts, at_least: float) -> bool:
    """Tell whether a difference is both large and beyond chance, position against position."""
    if not worse.num_positions:
        return False
    difference = np.concatenate(better.accepted) - np.concatenate(worse.accepted)
    mean = float(difference.mean())
    error = float(difference.std()) / math.sqrt(len(difference))
    return mean > max(at_least, _SIGMAS * error)
