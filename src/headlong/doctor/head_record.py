"""run.json beside a head: what it was trained for, and how well it drafted then.

In:  a head's folder. Out: its `HeadRecord`, whatever state the file is in; and, with `write_probe`,
what the doctor measured as the value to compare with later. Two sources of acceptance are read:

    "probe"       measured by `headlong doctor --record`, on the doctor's own prompts
    "acceptance"  simulated at the end of training, on other prompts, so compared more loosely
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlong.errors import CheckpointError, HeadError
from headlong.weights.mapped_file import read_json_object

RUN_FILE = "run.json"
MAX_RECORD_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class HeadRecord:
    """What run.json tells."""

    fingerprint: str | None = None
    """Of the backbone the head was trained for."""
    probe: Mapping[str, Any] = field(default_factory=dict)
    """What the doctor measured when the head was well; empty when it never did."""
    acceptance: Mapping[str, Any] = field(default_factory=dict)
    """Acceptance lengths for K = 1, 2, … by temperature and task."""
    problem: str = ""
    """Why the file cannot be read, if it is there."""


def read_record(folder: Path) -> HeadRecord:
    """Read a head's record; an absent file is an empty record, a damaged one says so."""
    path = _run_file(folder)
    if not path.is_file():
        return HeadRecord()
    try:
        found = read_json_object(path, MAX_RECORD_BYTES)
    except CheckpointError as error:
        return HeadRecord(problem=error.problem)
    given = found.get("backbone_fingerprint")
    return HeadRecord(
        fingerprint=given if isinstance(given, str) else None,
        probe=_mapping(found.get("probe")),
        acceptance=_mapping(found.get("acceptance")),
    )


def write_probe(folder: Path, fingerprint: str, probe: Mapping[str, Any]) -> Path:
    """Keep what was measured in run.json; everything else in it stays. Return the file."""
    path = _run_file(folder)
    try:
        found = read_json_object(path, MAX_RECORD_BYTES) if path.is_file() else {}
        # A head that has no record yet is taken to be made for the model it was measured on.
        kept = {"backbone_fingerprint": fingerprint} | dict(found) | {"probe": dict(probe)}
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        os.replace(part, path)
    except (OSError, CheckpointError) as error:
        problem = f"{path} cannot be written: {error}."
        raise HeadError(problem, "Check the file and your rights.") from error
    return path


def expected_length(acceptance: Mapping[str, Any], num_draft_tokens: int) -> float | None:
    """Return the mean over tasks of the greedy acceptance length that training wrote down."""
    by_task = _mapping(acceptance.get("temperature_0"))
    lengths = [
        float(by_k[num_draft_tokens - 1])
        for by_k in by_task.values()
        if isinstance(by_k, list) and len(by_k) >= num_draft_tokens
    ]
    return sum(lengths) / len(lengths) if lengths else None


def _run_file(folder: Path) -> Path:
    return (folder if folder.is_dir() else folder.parent) / RUN_FILE


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
