"""The document of a grid: cells, maps of two factors, what decides the gain, for JSON.

In:  records of cells, and what was measured where. Out: a plain dictionary, the only thing that
tables and reports are made from. A map's number is the geometric mean of its cells' speed-ups.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from headlong.bench.conclusion import listed
from headlong.bench.figures import count_identical
from headlong.bench.grid_cells import FACTOR_WORDS, FACTORS, describe_levels
from headlong.bench.grid_effects import Effects, explain
from headlong.bench.grid_run import GridMeasured, Record
from headlong.bench.measure import Context

KIND = "headlong-grid"

_ORDER = ("auto", "off", "chain", "head", "ngram", "f32", "f16", "bf16", "q8", "q6", "q5", "q4")
"""Levels that are words, as maps list them; numbers come before, by size, tasks by name."""

DECIDES = 0.10
"""From this share on a factor is said to decide."""

MATTERS = 0.03
"""Below this share a factor is said hardly to matter."""

_MIN_CONTROLS = 3
"""Fewer comparisons of plain decoding with itself do not show what noise can do."""


def _has_head(record: Record) -> bool:
    return record["head_quant"] is not None


def _is_auto_head(record: Record) -> bool:
    return record["mtp"] == "auto" and _has_head(record)


@dataclass(frozen=True, slots=True)
class _MapPlan:
    title: str
    rows: str
    columns: str
    belongs: Callable[[Record], bool] = lambda record: True


_MAPS = (
    _MapPlan("Auto, by task and temperature", "task", "temperature", _is_auto_head),
    _MapPlan("Task and K, with a head", "task", "mtp", _has_head),
    _MapPlan("Task and drafter", "task", "drafter"),
    _MapPlan("Drafter and K", "drafter", "mtp"),
    _MapPlan("Temperature and K, with a head", "temperature", "mtp", _has_head),
    _MapPlan("Precision of backbone and head", "quant", "head_quant", _has_head),
)
"""N-grams are kept apart: few cells a square would else differ by how many of them are n-grams'."""


def summarise_grid(measured: GridMeasured, context: Context) -> dict[str, Any]:
    """Make the document, also of a grid that is not whole or empty."""
    records = measured.records
    good = [record for record in records if record["error"] is None]
    drafted = [record for record in good if record["mtp"] != "off"]
    effects = explain(
        [{name: record[name] for name in FACTORS} for record in drafted],
        [math.log(record["speedup"]) for record in drafted],
    )
    failed = [record for record in records if record["error"] is not None]
    parted = [record["divergence"] for record in good if record["divergence"]]
    document = context.frame(
        KIND,
        {
            "finding": "",
            "stopped": measured.stopped,
            "num_measured": len(good),
            "num_drafted_cells": len(drafted),
            "speedup": _mean_speedup(drafted),
            "best": _extreme(drafted, max),
            "worst": _extreme(drafted, min),
            "auto": _describe_auto(drafted),
            "noise": _describe_noise(good),
            "identical": count_identical(good)
            | {"first_divergence": parted[0] if parted else None},
            "effects": None if effects is None else _plain(effects),
            "maps": [found for plan in _MAPS if (found := _make_map(plan, drafted)) is not None],
            "precisions": _describe_precisions(good),
            "failures": [
                {"side": str(r["mtp"]), "prompt": describe_levels(r), "error": r["error"]}
                for r in failed
            ],
            "notes": [*context.notes, *_commit_notes(good)],
            "cells": list(records),
        },
    )
    return document | {"finding": say_finding(document)}


def sort_levels(levels: Sequence[Any]) -> list[Any]:
    """Return levels as a person would list them: numbers by size, then words."""

    def place(level: Any) -> tuple[int, float, str]:
        if isinstance(level, int | float):
            return 0, level, ""
        return 1, _ORDER.index(level) if level in _ORDER else -1, str(level)

    return sorted(dict.fromkeys(levels), key=place)


def _word(level: Any) -> str:
    return f"{level:g}" if isinstance(level, float) else str(level)


def _mean_speedup(records: Sequence[Record]) -> float | None:
    return math.exp(fmean(math.log(r["speedup"]) for r in records)) if records else None


def _make_map(plan: _MapPlan, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the mean of every pair of levels; None when there is only one."""
    own = [record for record in records if plan.belongs(record)]
    rows = sort_levels([record[plan.rows] for record in own])
    columns = sort_levels([record[plan.columns] for record in own])
    if len(rows) * len(columns) < 2:
        return None
    squares: dict[tuple[Any, Any], list[Record]] = defaultdict(list)
    for record in own:
        squares[record[plan.rows], record[plan.columns]].append(record)
    return {
        "title": plan.title,
        "row_factor": plan.rows,
        "column_factor": plan.columns,
        "rows": [_word(row) for row in rows],
        "columns": [_word(column) for column in columns],
        "cells": [[_describe_mean(squares[row, column]) for column in columns] for row in rows],
    }


def _describe_mean(records: Sequence[Record]) -> dict[str, Any] | None:
    if not records:
        return None
    lengths = [r["acceptance_length"] for r in records if r["acceptance_length"] is not None]
    return {
        "speedup": _mean_speedup(records),
        "acceptance_length": fmean(lengths) if lengths else None,
        "num_cells": len(records),
    }


def _extreme(records: Sequence[Record], pick: Any) -> dict[str, Any] | None:
    if not records:
        return None
    record = pick(records, key=lambda one: one["speedup"])
    return {"cell": describe_levels(record), "speedup": record["speedup"]}


def _describe_auto(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return how auto did, with a head where there is one, over all tasks and temperatures."""
    own = [record for record in records if record["mtp"] == "auto"]
    if not own:
        return None
    slowest = min(own, key=lambda record: record["speedup"])
    return {
        "num_cells": len(own),
        "num_faster": sum(record["speedup"] > 1 for record in own),
        "speedup": _mean_speedup(own),
        "slowest": slowest["speedup"],
        "slowest_cell": describe_levels(slowest),
    }


def _describe_noise(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return how far plain decoding differs from itself."""
    logs = [math.log(record["speedup"]) for record in records if record["mtp"] == "off"]
    if not logs:
        return None
    return {
        "num_cells": len(logs),
        "spread": math.sqrt(fmean(value**2 for value in logs)),
        "slowest": math.exp(min(logs)),
        "fastest": math.exp(max(logs)),
    }


def _describe_precisions(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return tokens/s of every precision, plain and with auto: ratios do not show them."""
    found = []
    for quant in sort_levels([record["quant"] for record in records]):
        own = [record for record in records if record["quant"] == quant]
        autos = [r["tokens_per_second"] for r in own if _is_auto_head(r)]
        plain = fmean(record["plain_tokens_per_second"] for record in own)
        auto = fmean(autos) if autos else None
        rates = {"plain_tokens_per_second": plain, "auto_tokens_per_second": auto}
        found.append({"quant": quant, **rates, "num_cells": len(own)})
    return found


def _commit_notes(records: Sequence[Record]) -> list[str]:
    commits = sorted({record["commit"] for record in records if record["commit"]})
    if len(commits) < 2:
        return []
    listed = ", ".join(commit[:10] for commit in commits)
    return [f"The cells were measured at different commits: {listed}."]


def _plain(effects: Effects) -> dict[str, Any]:
    """Return effects for JSON, levels in the order of maps."""
    document = asdict(effects) | {"unexplained": effects.unexplained}
    for factor in document["factors"]:
        ordered = sort_levels([level["level"] for level in factor["levels"]])
        by_level = {level["level"]: level for level in factor["levels"]}
        factor["levels"] = [by_level[level] | {"level": _word(level)} for level in ordered]
    plain: dict[str, Any] = json.loads(json.dumps(document))  # lists for tuples
    return plain


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
    """Say first that texts differ: every other sentence is void then."""
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
    factors = effects["factors"]
    decide = [_say_factor(f) for f in factors if f["share"] >= DECIDES]
    little = [_say_factor(f) for f in factors if MATTERS <= f["share"] < DECIDES]
    hardly = [FACTOR_WORDS[f["factor"]] for f in factors if f["share"] < MATTERS]
    untold = [FACTOR_WORDS[name] for name in effects["untold"]]
    sentences = ["No single thing decides the gain here."]
    if decide:
        sentences = [f"What decides the gain here: {listed(decide)}."]
    if little:
        sentences.append(f"Less: {listed(little)}.")
    if hardly:
        names = listed(hardly)
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
