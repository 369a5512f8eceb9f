"""The verdict of a load in plain words: where MTP gains, by level and by traffic class.

In:  the document's numbers. Out: a few sentences. A gain or loss is only claimed when the whole
interval lies on one side of 1, as in `verdict.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headlong.bench.verdict import Outcome, format_speedup, listed


def say_load(document: Mapping[str, Any]) -> str:
    """Put the whole verdict into words."""
    levels = document["levels"]
    if not levels:
        return "Nothing was measured."
    parts = [_say_identity(document["identical"])]
    if len(document["modes"]) > 1:
        parts += [_say_gains(levels, document["modes"]), _say_classes(levels)]
    else:
        parts += [_say_throughput(levels, document["modes"][0])]
    parts += [_say_trouble(levels)]
    return " ".join(part for part in parts if part)


def _say_gains(levels: Sequence[Mapping[str, Any]], modes: Sequence[str]) -> str:
    """Say at which levels answers come sooner."""
    words = {
        Outcome.GAIN: f"MTP {modes[1]} answers faster than {modes[0]} with",
        Outcome.LOSS: "Slower with",
        Outcome.SAME: "No difference with",
        Outcome.UNKNOWN: "Not enough data to tell with",
    }
    sentences = []
    for outcome, opening in words.items():
        own = [level for level in levels if _outcome(level["gain"]) == outcome]
        if own:
            sentences.append(f"{opening} {listed([_say_level(level) for level in own])}.")
    return " ".join(sentences)


def _outcome(gain: Mapping[str, Any] | None) -> str:
    return Outcome.UNKNOWN if gain is None else gain["outcome"]


def _say_level(level: Mapping[str, Any]) -> str:
    gain = level["gain"]
    if gain is None:
        return str(level["name"])
    return f"{level['name']} ({format_speedup(gain['value'], gain['low'], gain['high'])})"


def _say_classes(levels: Sequence[Mapping[str, Any]]) -> str:
    """Say which class gains most and least at the lightest load that has all of them."""
    level = max(levels, key=lambda one: len(one["classes"]))
    ranked = sorted(level["classes"], key=lambda one: -float(one["value"] or 0.0))
    if len(ranked) < 2:
        return ""
    best, worst = ranked[0], ranked[-1]
    verb = "gain" if best["value"] > 1 else "lose"
    first, last = (best, worst) if verb == "gain" else (worst, best)
    return (
        f"With {level['name']}, {first['task']} {verb} most ({first['value']:.2f} ×) and "
        f"{last['task']} least ({last['value']:.2f} ×)."
    )


def _say_throughput(levels: Sequence[Mapping[str, Any]], mode: str) -> str:
    rates = [(level["modes"][mode]["tokens_per_second"] or 0.0, level["name"]) for level in levels]
    most, name = max(rates)
    return f"At most {most:.1f} tokens/s, with {name}."


def _say_trouble(levels: Sequence[Mapping[str, Any]]) -> str:
    """Say how many requests were turned away or failed."""
    figures = [one for level in levels for one in level["modes"].values()]
    total = sum(one["num_requests"] for one in figures)
    parts = []
    if num_busy := sum(one["num_busy"] for one in figures):
        parts.append(f"{num_busy} of {total} requests were turned away as busy")
    if num_failed := sum(one["num_failed"] for one in figures):
        parts.append(f"{num_failed} of {total} failed")
    return f"{listed(parts)}." if parts else ""


def _say_identity(identical: Mapping[str, Any] | None) -> str:
    if identical is None or identical["all"]:
        return ""
    different = identical["num_compared"] - identical["num_identical"]
    return (
        f"{different} of {identical['num_compared']} texts differ between the modes; on a Headlong "
        "server that is a bug, please report it."
    )
