"""One measurement from beginning to end, and its document; two measurements compared.

In:  sides, prompts, a plan, and a `BenchSetup`; or two documents. Out: a plain
dictionary, the only thing that tables, reports and later comparisons are made from; with a folder
also the files. Two measurements of different prompts or settings are refused; they were not
interleaved, so whatever else changed between them is in the result, and is named.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from headlong.bench.conclusion import Conclusion, Wording, judge, read_gain
from headlong.bench.figures import (
    Group,
    count_identical,
    describe_group,
    group_blocks,
    pair_rows,
)
from headlong.bench.measure import FORMAT, Context, QuestionPlan, Run, Side, make_questions, run_ab
from headlong.bench.prompt_sets import PromptSet
from headlong.bench.report_folder import RESULTS, ReportFolder
from headlong.bench.rows import Row, first_divergence, make_row, read_row, settle_tokens
from headlong.bench.statistics import CONFIDENCE
from headlong.errors import RequestError
from headlong.provenance import read_provenance

KIND = "headlong-bench"
_UNEVEN_CACHE = 0.1

OLD, NEW = "old", "new"
_NEEDED = (
    ("format", int), ("sides", list), ("runs", list), ("prompts", dict), ("settings", dict),
    ("setup", dict), ("conditions", dict), ("token_counter", str),
)  # fmt: skip
_TOLD = ("cpu", "num_cores", "platform", "python", "versions", "commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext(Context):
    """What was compared, and how it ended."""

    wording: Wording
    sides: Mapping[str, str]
    """Name and label of every side; the first is the baseline."""
    token_counter: str
    stopped: str | None = None
    divergence: Mapping[str, Any] | None = None


def group_name(group: Mapping[str, Any], *, with_temperature: bool) -> str:
    """Name a group for people: "code", or "code at 0.7" where not all is greedy."""
    if group["task"] is None:
        return "overall"
    suffix = f" at {group['temperature']:g}" if with_temperature else ""
    return f"{group['task']}{suffix}"


def summarise(rows: Sequence[Row], context: BenchContext) -> dict[str, Any]:
    """Make the document; figures are missing where no question was answered by all sides."""
    names = list(context.sides)
    blocks = pair_rows(rows, names)
    first: dict[str, Any] = dict.fromkeys(
        ("recommended", "speedup", "speedup_interval", "p95", "identical")
    )
    groups, overall = [], None
    if blocks:
        groups = [describe_group(group, names) for group in group_blocks(blocks)]
        overall = describe_group(Group(None, None, blocks), names)
        is_greedy = all(group["temperature"] == 0 for group in groups)
        for group in (*groups, overall):
            group["name"] = group_name(group, with_temperature=not is_greedy)
        first |= _conclude(groups, overall, context)
    failures = [row for row in rows if row.error is not None]
    return context.frame(
        KIND,
        {
            "measures": str(context.wording),
            "verdict": "Nothing was measured.",
            "confidence": CONFIDENCE,
            **first,
            "stopped": context.stopped,
            "num_answered": len(blocks),
            "failures": [{"side": r.side, "prompt": r.prompt, "error": r.error} for r in failures],
            "notes": [*context.notes, *_cache_notes(overall)],
            "sides": [{"name": name, "label": label} for name, label in context.sides.items()],
            "overall": overall,
            "tasks": groups,
            "token_counter": context.token_counter,
            "runs": [row.to_dict() for row in rows],
        },
    )


def _conclude(
    groups: Sequence[dict[str, Any]], overall: dict[str, Any], context: BenchContext
) -> dict[str, Any]:
    """Return the verdict and the few numbers that matter first."""
    baseline, *candidates = context.sides
    p95 = {name: side["latency_p95_s"] for name, side in overall["sides"].items()}
    if not candidates:
        return {"verdict": _say_recorded(overall, baseline), "p95": p95}
    findings = [read_gain(group, c, group["name"]) for group in groups for c in candidates]
    judged = judge([read_gain(overall, c) for c in candidates], findings, baseline, context.wording)
    for group in (*groups, overall):
        for name, speedup in group["speedups"].items():
            speedup["outcome"] = str(read_gain(group, name).outcome)
    best = overall["speedups"][judged.candidate]
    identical = count_identical(overall["speedups"].values())
    identical["first_divergence"] = context.divergence
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


def _recommend(judged: Conclusion, wording: Wording) -> dict[str, Any]:
    """Return the settings to use; None if there is not enough data."""
    key = "mtp" if wording == Wording.MTP else "side"
    by_task = [{"name": name, key: _typed(side)} for name, side in judged.by_group.items()]
    return {key: _typed(judged.setting), "by_task": by_task}


def _typed(side: str | None) -> str | int | None:
    return int(side) if side is not None and side.isdecimal() else side


def _warn(judged: Conclusion, identical: Mapping[str, Any]) -> str:
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


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """Model or servers, prompts and output of one measurement."""

    wording: Wording
    setup: Mapping[str, Any]
    """Model, drafter, backend, or what is known of a server."""
    prompt_set: PromptSet
    notes: Sequence[str] = ()
    """Whole sentences that the user should know before trusting a number."""
    skipped: Sequence[str] = ()
    """Prompts that are not asked, each with the reason."""
    count: Callable[[str], int] | None = None
    """Counts the tokens of a text, where servers' own counts are not to be used."""
    folder: ReportFolder | None = None


def measure(
    sides: Sequence[Side],
    plan: QuestionPlan,
    bench: BenchSetup,
    on_run: Callable[[Run], None],
) -> dict[str, Any]:
    """Put all questions to all sides; return the document, partial where it was stopped."""
    conditions = read_provenance()
    folder = bench.folder

    def note(run: Run) -> None:
        if folder is not None:
            folder.add(make_row(run).to_cells())
        on_run(run)

    measured = run_ab(sides, plan, note)
    runs, counter = settle_tokens(measured.runs, bench.count)
    rows = [make_row(run) for run in runs]
    divergence = first_divergence(runs, sides[0].name)
    context = BenchContext(
        wording=bench.wording,
        sides={side.name: side.label for side in sides},
        prompts=bench.prompt_set.describe(len(plan.prompts), bench.skipped),
        settings=_describe_plan(plan),
        setup=bench.setup,
        conditions=conditions.to_dict(),
        token_counter=counter,
        num_planned=measured.num_planned,
        stopped=measured.stopped,
        notes=bench.notes,
        divergence=None if divergence is None else asdict(divergence),
    )
    document = summarise(rows, context)
    if folder is not None and rows:  # with nothing in it, the folder is free for another run
        folder.finish(document, (row.to_cells() for row in rows))
    return document


def _describe_plan(plan: QuestionPlan) -> dict[str, Any]:
    """Return what was asked how often; limits that prompts bring along are those in use."""
    questions = make_questions(plan)
    return {
        "temperatures": sorted({question.temperature for question in questions}),
        "max_tokens": sorted({question.max_tokens for question in questions}),
        "num_runs": plan.num_runs,
        "seed": plan.seed,
        "time_budget_s": plan.time_budget_s,
    }


def load_results(path: Path) -> dict[str, Any]:
    """Read a results.json, or the one in a folder, or the line that --json wrote."""
    path = path / RESULTS if path.is_dir() else path
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        problem = f"The results {path} cannot be read: {error}."
        raise RequestError(problem, "Name a results.json of headlong bench.") from error
    is_ours = isinstance(document, dict) and document.get("kind") == KIND
    is_whole = is_ours and all(isinstance(document.get(name), kind) for name, kind in _NEEDED)
    if not is_whole or document["format"] != FORMAT:
        problem = f"{path} holds no results of headlong bench in format {FORMAT}."
        raise RequestError(problem, "Name a results.json that this version wrote.")
    return cast(dict[str, Any], document)


def choose_side(document: Mapping[str, Any], name: str | None, where: str) -> str:
    """Return which side of a measurement is meant: the one named, the only one, or the best."""
    names = [str(side["name"]) for side in document["sides"]]
    if name is None:
        return names[0] if len(names) == 1 else str(document.get("candidate", names[-1]))
    if name not in names:
        problem = f"{where} has no side {name!r}."
        raise RequestError(problem, f"It has {', '.join(names)}: name one with --side.")
    return name


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], side: str | None = None
) -> tuple[dict[str, Any], list[Row]]:
    """Return the document of a comparison, and its rows."""
    _refuse_different(old, new)
    sides = {OLD: choose_side(old, side, OLD), NEW: choose_side(new, side, NEW)}
    documents = {OLD: old, NEW: new}
    taken = {name: _take(documents[name], sides[name], name) for name in sides}
    rows = [row for own, _ in taken.values() for row in own]
    keys = {name: {row.key for row in rows if row.side == name} for name in sides}
    context = BenchContext(
        wording=Wording.SIDES,
        sides={name: label for name, (_, label) in taken.items()},
        prompts={**new["prompts"], "skipped": []},
        settings=new["settings"],
        setup=new["setup"],
        conditions=read_provenance().to_dict(),
        token_counter=str(new["token_counter"]),
        num_planned=len(keys[OLD] | keys[NEW]),
        notes=_notes(old, new, keys),
    )
    return summarise(rows, context), rows


def _take(document: Mapping[str, Any], side: str, name: str) -> tuple[list[Row], str]:
    """Return the rows of one side under another name, and what it is called for people."""
    rows = [read_row(record, name) for record in document["runs"]]
    label = next(one["label"] for one in document["sides"] if one["name"] == side)
    own = [replace(row, side=name) for row in rows if row.side == side]
    return own, f"{label}, measured {document['conditions']['measured_at']}"


def _refuse_different(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse two measurements that did not ask the same."""
    if old["prompts"]["hash"] != new["prompts"]["hash"]:
        hashes = [{run["prompt_hash"] for run in document["runs"]} for document in (old, new)]
        only_old, only_new = len(hashes[0] - hashes[1]), len(hashes[1] - hashes[0])
        raise RequestError(
            "The two measurements did not ask the same prompts: "
            f"{only_old} were only asked in the old one, {only_new} only in the new one "
            f"(prompt hashes {old['prompts']['hash']} and {new['prompts']['hash']}).",
            f"Measure again with the old prompts: {old['prompts']['source']}.",
        )
    for name in ("max_tokens", "temperatures", "seed"):
        if old["settings"].get(name) != new["settings"].get(name):
            raise RequestError(
                f"The two measurements differ in {name}: {old['settings'].get(name)} and "
                f"{new['settings'].get(name)}.",
                "Measure again with the old settings.",
            )
    if old["token_counter"] != new["token_counter"]:
        raise RequestError(
            f"Tokens were counted differently: by {old['token_counter']}, and by "
            f"{new['token_counter']}.",
            "Measure again, with the same --tokenizer for both.",
        )


def _notes(
    old: Mapping[str, Any], new: Mapping[str, Any], keys: Mapping[str, set[Any]]
) -> Sequence[str]:
    """Say what else is different: it is part of the speed-up, and in no interval."""
    notes = [
        f"Measured at different times ({old['conditions']['measured_at']} and "
        f"{new['conditions']['measured_at']}): a busier or warmer machine is in the ratio."
    ]
    if common := keys[OLD] & keys[NEW]:
        missing = len(keys[OLD] | keys[NEW]) - len(common)
        if missing:
            notes.append(f"{missing} questions were only answered once and are left out.")
    for part, names in (("conditions", _TOLD), ("setup", sorted({*old["setup"], *new["setup"]}))):
        for name in names:
            before, after = old[part].get(name), new[part].get(name)
            if before != after:
                notes.append(f"{name} was {before} and is {after}.")
    return notes
