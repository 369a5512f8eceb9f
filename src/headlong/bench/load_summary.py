"""The document of a load: every level, every mode, every traffic class, for JSON.

In:  the slices of a load. Out: a plain dictionary, the only thing that tables, plots and reports
are made from. Throughput counts the tokens that came within a slice; latencies are those of all
requests begun in it. Gains compare the same questions in both modes and have intervals.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from headlong.bench.conclusion import GainKind, format_speedup, listed, read_gain
from headlong.bench.figures import (
    Block,
    Group,
    count_identical,
    describe_group,
    describe_side,
    pair_rows,
)
from headlong.bench.load_run import Ending, LoadLevel, LoadLog, LoadPlan, RequestRecord, Slice
from headlong.bench.measure import Context, TimedAnswer
from headlong.bench.rows import COLUMNS, Row, make_row, settle_tokens
from headlong.bench.statistics import CONFIDENCE, Totals, paired_speedup, percentile

KIND = "headlong-load"
REQUEST_COLUMNS = ("level", "pair", "ending", "began_s", *COLUMNS)


def summarise_load(log: LoadLog, plan: LoadPlan, context: Context) -> dict[str, Any]:
    """Make the document, also of a load that was stopped."""
    slices, counter = _settle(log.slices)
    levels = [
        _describe_level(level, own, plan)
        for level in plan.levels
        if (own := [one for one in slices if one.level == level])
    ]
    levels = [level for level in levels if level["num_done"]]
    gains = [level["gain"] for level in levels if level["gain"] is not None]
    failed = [a.run for one in slices for a in one.asked if a.ending == Ending.FAILED]
    document = context.frame(
        KIND,
        {
            "verdict": "",
            "confidence": CONFIDENCE,
            "stopped": log.stopped,
            "num_planned": len(plan.levels),
            "num_levels": len(levels),
            "modes": list(plan.modes),
            "classes": sorted(plan.prompts),
            "levels": levels,
            "identical": count_identical(gains) if gains else None,
            "failures": [
                {"side": run.side, "prompt": run.question.prompt.name, "error": run.error}
                # One of each kind: a dead server fails hundreds of times the same way.
                for run in list({run.error: run for run in reversed(failed)}.values())[::-1]
            ],
            "token_counter": counter,
        },
    )
    document["settings"] |= {
        "duration_s": plan.duration_s,
        "slice_s": plan.slice_s,
        "slices_per_mode": plan.num_pairs,
        "max_tokens": plan.max_tokens,
        "mix": dict(plan.weights),
        "seed": plan.seed,
    }
    return document | {"verdict": say_load(document)}


def list_requests(log: LoadLog) -> list[dict[str, str]]:
    """Return one row per request, for CSV."""
    slices, _ = _settle(log.slices)
    return [
        {
            "level": one.level.name,
            "pair": str(one.pair),
            "ending": str(asked.ending),
            "began_s": f"{asked.began_s - one.began_s:.6f}",
            **make_row(asked.run).to_cells(),
        }
        for one in slices
        for asked in one.asked
    ]


def _settle(slices: Sequence[Slice]) -> tuple[list[Slice], str]:
    """Count all tokens one way; return the slices anew, and how."""
    runs, counter = settle_tokens([asked.run for one in slices for asked in one.asked])
    left = iter(runs)
    settled = [
        replace(one, asked=[replace(asked, run=next(left)) for asked in one.asked])
        for one in slices
    ]
    return settled, counter


def _describe_level(level: LoadLevel, slices: Sequence[Slice], plan: LoadPlan) -> dict[str, Any]:
    by_mode = {mode: [one for one in slices if one.mode == mode] for mode in plan.modes}
    document: dict[str, Any] = {
        "name": level.name,
        "value": level.value,
        "is_open_loop": level.is_open_loop,
        "num_done": sum(a.ending == Ending.DONE for one in slices for a in one.asked),
        "modes": {mode: _describe_mode(own) for mode, own in by_mode.items() if own},
        "throughput_gain": None,
        "gain": None,
        "classes": [],
    }
    if len(plan.modes) < 2:
        return document
    baseline, candidate = plan.modes
    rows = [make_row(asked.run) for one in slices for asked in one.asked]
    blocks = pair_rows(rows, plan.modes)
    document["throughput_gain"] = _compare_throughput(by_mode[baseline], by_mode[candidate])
    if not blocks:
        return document
    # By class alone: one class may be asked at several temperatures.
    classes: dict[str, list[Block]] = {}
    for block in blocks:
        classes.setdefault(block[baseline].task, []).append(block)
    groups = [
        Group(None, None, blocks),
        *(Group(one, None, classes[one]) for one in sorted(classes)),
    ]
    described = [_describe_gain(group, plan.modes) for group in groups]
    return document | {"gain": described[0], "classes": described[1:]}


def _describe_gain(group: Group, modes: Sequence[str]) -> dict[str, Any]:
    """Return how much faster single answers came in one class, and whether texts are the same."""
    found = describe_group(group, modes)
    speedup = found["speedups"][modes[1]]
    speedup["outcome"] = str(read_gain(found, modes[1]).outcome)
    sides = {
        mode: {
            name: found["sides"][mode][name]
            for name in ("tokens_per_second", "ttft_p50_ms", "latency_p50_s", "latency_p95_s")
        }
        for mode in modes
    }
    return {"task": group.task, "num_questions": found["num_questions"], "modes": sides, **speedup}


def _compare_throughput(plain: Sequence[Slice], own: Sequence[Slice]) -> dict[str, Any] | None:
    """Return the ratio of tokens/s over pairs of slices."""
    pairs = {one.pair: _totals(one) for one in plain}
    both = [(pairs[one.pair], _totals(one)) for one in own if one.pair in pairs]
    both = [pair for pair in both if all(side.num_tokens and side.seconds for side in pair)]
    speedup = paired_speedup([both]) if both else None
    return None if speedup is None else asdict(speedup)


def _totals(one: Slice) -> Totals:
    return Totals(round(_tokens_within(one)), one.seconds)


def _tokens_within(one: Slice) -> float:
    """Return the tokens that came while the slice lasted; a piece may hold several."""
    return sum(share * answer.num_tokens for share, answer in _answers_within(one))


def _answers_within(one: Slice) -> Iterator[tuple[float, TimedAnswer]]:
    """Yield every answer with the share of it that came while the slice lasted."""
    ends_s = one.began_s + one.seconds
    for asked in one.asked:
        if asked.run.answer is not None and asked.times_s:
            num_in_time = sum(moment <= ends_s for moment in asked.times_s)
            yield num_in_time / len(asked.times_s), asked.run.answer


def _describe_mode(slices: Sequence[Slice]) -> dict[str, Any]:
    """Return what users of one mode saw at one level."""
    asked = [one for part in slices for one in part.asked]
    done = [one for one in asked if one.ending == Ending.DONE]
    seconds = sum(part.seconds for part in slices)
    rows = [make_row(one.run) for one in done]
    figures: dict[str, Any] = {
        "seconds": seconds,
        "num_requests": len(asked),
        "num_done": len(done),
        "num_busy": sum(one.ending == Ending.BUSY for one in asked),
        "num_empty": sum(one.ending == Ending.EMPTY for one in asked),
        "num_failed": sum(one.ending == Ending.FAILED for one in asked),
        "tokens_per_second": (
            sum(_tokens_within(part) for part in slices) / seconds if seconds > 0 else None
        ),
        # By shares, like tokens: with many open, what ends after a slice would count for much.
        "requests_per_second": (
            sum(share for part in slices for share, _ in _answers_within(part)) / seconds
            if seconds > 0
            else None
        ),
    }
    return figures | _percentiles(done) | _describe_drafts(rows)


def _percentiles(done: Sequence[RequestRecord]) -> dict[str, float | None]:
    answers = [one.run.answer for one in done if one.run.answer is not None]
    gaps = [later - earlier for one in done for earlier, later in pairwise(one.times_s)]
    measures: dict[str, tuple[list[float], float]] = {
        "ttft_{}_ms": ([answer.ttft_s for answer in answers], 1e3),
        "gap_{}_ms": (gaps, 1e3),
        "latency_{}_s": ([answer.total_s for answer in answers], 1.0),
    }
    return {
        name.format(f"p{share}"): scale * percentile(values, share) if values else None
        for name, (values, scale) in measures.items()
        for share in (50, 95, 99)
    }


def _describe_drafts(rows: Sequence[Row]) -> dict[str, Any]:
    figures = describe_side(rows) if rows else {}
    accepted = figures.get("acceptance")
    return {
        "acceptance_length": None if accepted is None else accepted["acceptance_length"],
        "cached_share": figures.get("cached_share"),
    }


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
        GainKind.GAIN: f"MTP {modes[1]} answers faster than {modes[0]} with",
        GainKind.LOSS: "Slower with",
        GainKind.SAME: "No difference with",
        GainKind.UNKNOWN: "Not enough data to tell with",
    }
    sentences = []
    for outcome, opening in words.items():
        unknown = {"outcome": GainKind.UNKNOWN}
        own = [level for level in levels if (level["gain"] or unknown)["outcome"] == outcome]
        if own:
            sentences.append(f"{opening} {listed([_say_level(level) for level in own])}.")
    return " ".join(sentences)


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
