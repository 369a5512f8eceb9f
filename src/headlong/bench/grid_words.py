"""The finding of a grid in plain words: what decides the gain here.

In:  the document's numbers. Out: a few sentences. Nothing is claimed of a share that is too small
to matter, or of a grid that is too small to tell.
"""

from collections.abc import Mapping
from typing import Any

from headlong.bench.grid_cells import FACTOR_WORDS
from headlong.bench.verdict import listed

DECIDES = 0.10
"""From this share on a factor is said to decide."""

MATTERS = 0.03
"""Below this share a factor is said hardly to matter."""

_MIN_CONTROLS = 3
"""Fewer comparisons of plain decoding with itself do not show what noise can do."""


def say_finding(document: Mapping[str, Any]) -> str:
    """Put the whole finding into words."""
    if not document["num_drafted_cells"]:
        return "Nothing was measured."
    parts = [
        _say_identity(document["identical"]),
        _say_effects(document["effects"]),
        _say_auto(document["auto"]),
        _say_range(document),
        _say_noise(document["noise"]),
    ]
    return " ".join(part for part in parts if part)


def _say_identity(identical: Mapping[str, Any]) -> str:
    """Shout when texts differ; all sentences after it are worth nothing then."""
    if identical["all"]:
        return ""
    different = identical["num_compared"] - identical["num_identical"]
    return (
        f"{different} of {identical['num_compared']} texts differ from plain decoding, which is a "
        f"bug of Headlong. Please report it: {identical['first_divergence']}"
    )


def _say_effects(effects: Mapping[str, Any] | None) -> str:
    if effects is None:
        return "Too few cells to tell what decides the gain; let it run longer."
    decide = [f for f in effects["factors"] if f["share"] >= DECIDES]
    little = [f for f in effects["factors"] if MATTERS <= f["share"] < DECIDES]
    hardly = [f for f in effects["factors"] if f["share"] < MATTERS]
    untold = [FACTOR_WORDS[name] for name in effects["untold"]]
    if decide:
        sentences = [f"What decides the gain here: {listed([_say_factor(f) for f in decide])}."]
    else:
        sentences = ["No single thing decides the gain here."]
    if little:
        sentences.append(f"Less: {listed([_say_factor(f) for f in little])}.")
    if hardly:
        names = listed([FACTOR_WORDS[f["factor"]] for f in hardly])
        verb = "matter" if len(hardly) > 1 else "matters"
        sentences.append(f"{names[0].upper()}{names[1:]} hardly {verb}.")
    if untold:
        sentences.append(f"Too few cells to tell about {listed(untold)}; let it run longer.")
    sentences.append(_say_rest(effects))
    return " ".join(sentences)


def _say_factor(factor: Mapping[str, Any]) -> str:
    ordered = sorted(factor["levels"], key=lambda level: float(level["speedup"]))
    low, high = ordered[0], ordered[-1]
    return (
        f"{FACTOR_WORDS[factor['factor']]} ({_percent(factor['share'])} of the differences; "
        f"{low['speedup']:.2f} × for {low['level']} to {high['speedup']:.2f} × for "
        f"{high['level']})"
    )


def _say_rest(effects: Mapping[str, Any]) -> str:
    rest = f"{_percent(effects['unexplained'])} is left to interplay and noise"
    pair = effects["interplay"]
    if pair is None or pair["share"] < MATTERS:
        return f"{rest}."
    one, other = (FACTOR_WORDS[name] for name in pair["factors"])
    return f"{rest}; {_percent(pair['share'])} because {one} and {other} depend on each other."


def _say_auto(auto: Mapping[str, Any] | None) -> str:
    if auto is None:
        return ""
    return (
        f"Auto was faster in {auto['num_faster']} of {auto['num_cells']} cells, "
        f"{auto['speedup']:.2f} × on the whole; its slowest cell ran at {auto['slowest']:.2f} × "
        f"({auto['slowest_cell']})."
    )


def _say_range(document: Mapping[str, Any]) -> str:
    best, worst = document["best"], document["worst"]
    if best == worst:
        return ""
    return (
        f"Single cells go from {worst['speedup']:.2f} × ({worst['cell']}) to "
        f"{best['speedup']:.2f} × ({best['cell']})."
    )


def _say_noise(noise: Mapping[str, Any] | None) -> str:
    if noise is None or noise["num_cells"] < _MIN_CONTROLS:
        return ""
    return (
        f"Plain decoding against itself came out between {noise['slowest']:.2f} × and "
        f"{noise['fastest']:.2f} ×: smaller differences between single cells are noise."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
