"""Compare two measurements: the same prompts then and now, or here and there.

In:  two documents that `headlong bench` wrote. Out: a third one, made the same way, in which the
old measurement is the baseline. Different prompts or settings are refused. The two were not
interleaved, so whatever else changed between them is in the result, and is named.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headlong.bench.conclusion import Wording
from headlong.bench.measure import FORMAT
from headlong.bench.report_folder import RESULTS
from headlong.bench.rows import Row, read_row
from headlong.bench.summary import KIND, BenchContext, summarise
from headlong.errors import RequestError
from headlong.provenance import read_provenance

OLD, NEW = "old", "new"
_NEEDED = (
    ("format", int), ("sides", list), ("runs", list), ("prompts", dict), ("settings", dict),
    ("setup", dict), ("conditions", dict), ("token_counter", str),
)  # fmt: skip
_TOLD = ("cpu", "num_cores", "platform", "python", "versions", "commit")


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
        raise RequestError(
            f"{path} holds no results of headlong bench in format {FORMAT}.",
            "Name a results.json that this version wrote.",
        )
    return cast(dict[str, Any], document)


def choose_side(document: Mapping[str, Any], name: str | None, where: str) -> str:
    """Return which side of a measurement is meant: the one named, the only one, or the best."""
    names = [str(side["name"]) for side in document["sides"]]
    if name is None:
        return names[0] if len(names) == 1 else str(document.get("candidate", names[-1]))
    if name not in names:
        raise RequestError(
            f"{where} has no side {name!r}.", f"It has {', '.join(names)}: name one with --side."
        )
    return name


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], side: str | None = None
) -> tuple[dict[str, Any], list[Row]]:
    """Return the document of a comparison, and its rows."""
    _refuse_different(old, new)
    sides = {OLD: choose_side(old, side, OLD), NEW: choose_side(new, side, NEW)}
    documents = {OLD: old, NEW: new}
    rows = [row for name in sides for row in _rows(documents[name], sides[name], name)]
    keys = {name: {row.key for row in rows if row.side == name} for name in sides}
    labels = {name: _label(documents[name], sides[name]) for name in sides}
    context = BenchContext(
        wording=Wording.SIDES,
        sides=labels,
        prompts={**new["prompts"], "skipped": []},
        settings=new["settings"],
        setup=new["setup"],
        conditions=read_provenance().to_dict(),
        token_counter=str(new["token_counter"]),
        num_planned=len(keys[OLD] | keys[NEW]),
        notes=_notes(old, new, keys),
    )
    return summarise(rows, context), rows


def _rows(document: Mapping[str, Any], side: str, name: str) -> list[Row]:
    rows = [read_row(record, name) for record in document["runs"]]
    return [replace(row, side=name) for row in rows if row.side == side]


def _label(document: Mapping[str, Any], side: str) -> str:
    label = next(one["label"] for one in document["sides"] if one["name"] == side)
    return f"{label}, measured {document['conditions']['measured_at']}"


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
    for part, names in (
        ("conditions", _TOLD),
        ("setup", sorted({*old["setup"], *new["setup"]})),
    ):
        for name in names:
            before, after = old[part].get(name), new[part].get(name)
            if before != after:
                notes.append(f"{name} was {before} and is {after}.")
    return notes
