"""The document of a measurement: everything there is to say about it, for JSON.

In:  rows, sides, and what was asked where. Out: a plain dictionary, the only thing that tables,
reports and later comparisons are made from, so that no number can differ between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headlong.bench.figures import Group, describe_group, group_blocks, pair_rows
from headlong.bench.rows import Row
from headlong.bench.statistics import CONFIDENCE
from headlong.bench.verdict import Verdict, Wording, judge, read_finding

KIND = "headlong-bench"
FORMAT = 1
"""Raised when fields change their meaning."""

_UNEVEN_CACHE = 0.1


@dataclass(frozen=True, slots=True)
class Context:
    """What was measured, besides the numbers."""

    wording: Wording
    sides: Mapping[str, str]
    """Name and label of every side; the first is the baseline."""
    prompts: Mapping[str, Any]
    settings: Mapping[str, Any]
    setup: Mapping[str, Any]
    conditions: Mapping[str, Any]
    token_counter: str
    num_planned: int
    stopped: str | None = None
    notes: Sequence[str] = field(default=())
    divergence: Mapping[str, Any] | None = None


def group_name(group: Mapping[str, Any], *, with_temperature: bool) -> str:
    """Name a group for people: "code", or "code at 0.7" where not all is greedy."""
    if group["task"] is None:
        return "overall"
    suffix = f" at {group['temperature']:g}" if with_temperature else ""
    return f"{group['task']}{suffix}"


def summarise(rows: Sequence[Row], context: Context) -> dict[str, Any]:
    """Make the document; figures are missing where no question was answered by all sides."""
    names = list(context.sides)
    blocks = pair_rows(rows, names)
    document: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "measures": str(context.wording),
        "verdict": "Nothing was measured.",
        "recommended": None,
        "speedup": None,
        "speedup_interval": None,
        "confidence": CONFIDENCE,
        "p95": None,
        "identical": None,
    }
    groups, overall = [], None
    if blocks:
        groups = [describe_group(group, names) for group in group_blocks(blocks)]
        overall = describe_group(Group(None, None, blocks), names)
        is_greedy = all(group["temperature"] == 0 for group in groups)
        for group in (*groups, overall):
            group["name"] = group_name(group, with_temperature=not is_greedy)
        document |= _conclude(groups, overall, context)
    failures = [row for row in rows if row.error is not None]
    return document | {
        "stopped": context.stopped,
        "num_planned": context.num_planned,
        "num_answered": len(blocks),
        "failures": [{"side": r.side, "prompt": r.prompt, "error": r.error} for r in failures],
        "notes": [*context.notes, *_cache_notes(overall)],
        "sides": [{"name": name, "label": label} for name, label in context.sides.items()],
        "overall": overall,
        "tasks": groups,
        "token_counter": context.token_counter,
        "settings": dict(context.settings),
        "prompts": dict(context.prompts),
        "setup": dict(context.setup),
        "conditions": dict(context.conditions),
        "runs": [row.to_dict() for row in rows],
    }


def _conclude(
    groups: Sequence[dict[str, Any]], overall: dict[str, Any], context: Context
) -> dict[str, Any]:
    """Return the verdict and the few numbers everybody asks for first."""
    baseline, *candidates = context.sides
    p95 = {name: side["latency_p95_s"] for name, side in overall["sides"].items()}
    if not candidates:
        return {"verdict": _say_recorded(overall, baseline), "p95": p95}
    findings = [read_finding(group, c, group["name"]) for group in groups for c in candidates]
    judged = judge(
        [read_finding(overall, c) for c in candidates], findings, baseline, context.wording
    )
    for group in (*groups, overall):
        for name, speedup in group["speedups"].items():
            speedup["outcome"] = str(read_finding(group, name).outcome)
    best = overall["speedups"][judged.candidate]
    identical = _describe_identity(overall, context)
    is_broken = context.wording == Wording.MTP and not identical["all"]
    return {
        "verdict": _warn(judged, identical) if is_broken else judged.words,
        "recommended": None if is_broken else _recommend(judged, context.wording),
        "candidate": judged.candidate,
        "speedup": best["value"],
        "speedup_interval": [best["low"], best["high"]],
        "p95": p95,
        "identical": identical,
    }


def _recommend(judged: Verdict, wording: Wording) -> dict[str, Any]:
    """Return the settings to use; None where it cannot be told."""
    key = "mtp" if wording == Wording.MTP else "side"
    by_task = [{"name": name, key: _typed(side)} for name, side in judged.by_group.items()]
    return {key: _typed(judged.setting), "by_task": by_task}


def _typed(side: str | None) -> str | int | None:
    return int(side) if side is not None and side.isdecimal() else side


def _describe_identity(overall: Mapping[str, Any], context: Context) -> dict[str, Any]:
    compared = sum(one["num_compared"] for one in overall["speedups"].values())
    same = sum(one["num_identical"] for one in overall["speedups"].values())
    return {
        "all": same == compared,
        "num_compared": compared,
        "num_identical": same,
        "first_divergence": context.divergence,
    }


def _warn(judged: Verdict, identical: Mapping[str, Any]) -> str:
    different = identical["num_compared"] - identical["num_identical"]
    return (
        f"Do not enable it: {different} of {identical['num_compared']} texts differ from plain "
        f"decoding, which is a bug of Headlong. Please report it. (Measured: {judged.words})"
    )


def _say_recorded(overall: Mapping[str, Any], baseline: str) -> str:
    figures = overall["sides"][baseline]
    return (
        f"Recorded as a baseline: {figures['tokens_per_second']:.1f} tokens/s over "
        f"{overall['num_prompts']} prompts. Measure again later with the same prompts, then "
        "`headlong bench compare OLD NEW`."
    )


def _cache_notes(overall: Mapping[str, Any] | None) -> list[str]:
    """Say when one side was spared prompt tokens that another had to read."""
    sides = {} if overall is None else overall["sides"]
    shares = {name: side["cached_share"] for name, side in sides.items()}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known or max(known.values()) - min(known.values()) <= _UNEVEN_CACHE:
        return []
    listed = ", ".join(f"{name} {share:.0%}" for name, share in known.items())
    return [
        f"Prompt tokens read from a cache: {listed}. Times to the first token do not compare: turn "
        "the cache off on both sides, or look at the speed-up of decoding alone."
    ]
