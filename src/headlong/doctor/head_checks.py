"""Is the head there, whole and sound, as far as its files tell?

In:  a subject. Out: findings about a head that is missing, stripped, mis-shaped, broken in its
numbers, made for other tokens or for other weights. Whether its drafts stand is for `draft_checks`.
The head's run.json is read into a `HeadRecord` whatever state it is in: "probe" was measured by
`headlong doctor --record`, "acceptance" was simulated at the end of training, on other prompts.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headlong.doctor.finding import Check, Finding, refused, skipped
from headlong.doctor.subject import Subject
from headlong.errors import CheckpointError, HeadError
from headlong.heads.fingerprint import fingerprint
from headlong.heads.head_files import CONFIG_FILE
from headlong.heads.head_weights import HeadWeights, list_names
from headlong.heads.native_nextn import announced_modules, find_stripped
from headlong.weights.head_folders import MAX_RUN_BYTES, RUN_FILE, SHIPPED
from headlong.weights.mapped_file import read_json_object
from headlong.weights.tensors import StoredTensor

GO_WITHOUT = "Draft with n-grams (`--drafter ngram`) until then."
TRAIN_ONE = "Train one with `headlong train`, or name one with --head DIR."
EXPORT_AGAIN = f"Export the head again in full, or get an undamaged copy. {GO_WITHOUT}"

"""How GGUF metadata and config.json say that a model comes with MTP layers."""


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
        found = read_json_object(path, MAX_RUN_BYTES)
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
        found = read_json_object(path, MAX_RUN_BYTES) if path.is_file() else {}
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


def check_presence(subject: Subject) -> Finding:
    """Is there a head, and is it the whole of it?"""
    if subject.options.draft_model is not None and subject.origin is None:
        return skipped("head", "a draft model drafts instead")
    if "head files" in subject.refusals:
        return refused("head", subject.refusals["head files"])
    if subject.origin is None:
        return _check_missing(subject)
    if "head" in subject.refusals:
        return refused("head", subject.refusals["head"])
    if subject.head is None:
        return skipped("head", "whether it fits is unknown, since the model cannot be put together")
    head, where = subject.head, subject.origin
    num_drafted = None if head.vocabulary is None else len(head.vocabulary)
    check = Check("head", {"kind": head.kind, "origin": where, "num_bytes": head.num_bytes})
    drafts = "all tokens" if num_drafted is None else f"{num_drafted:,} tokens"
    seen = f"{head.kind}, {where}, fits; drafts from {drafts}"
    unused = head.report.unused_tensors
    if unused:
        return check.warning(
            f"{seen}; nothing reads {list_names(list(unused))}.",
            "If they belong to the head's maths, it is of another dialect: see whether its drafts "
            "stand, below.",
            {"unused_tensors": list(unused)},
        )
    return check.ok(seen)


def _check_missing(subject: Subject) -> Finding:
    """Tell a model that never had a head from one that lost it."""
    check = Check("head")
    checkpoint = subject.checkpoint
    if checkpoint is None or subject.backbone is None:
        return skipped("head", "the model could not be read")
    stripped = find_stripped(checkpoint)
    if stripped is not None:
        numbers = {"announced_layers": announced_modules(checkpoint)}
        return check.fault(stripped.problem, f"{stripped.remedy} {GO_WITHOUT}", numbers)
    relative = _shipped_for_relative(subject)
    if relative is not None:
        return check.warning(
            f"There is none. One ships for a model of the same sizes ({relative}), but these "
            "weights are others: fine-tuned, or another model.",
            f"Go on from it: `headlong train --from-head {SHIPPED / relative} …`, or try it "
            f"with --head. {GO_WITHOUT}",
        )
    return check.warning(
        "There is none: no MTP layers in the file, and none is shipped for this model. N-grams "
        "draft alone.",
        TRAIN_ONE,
    )


def _shipped_for_relative(subject: Subject) -> str | None:
    """Return the name of a shipped head whose sizes are this model's."""
    assert subject.backbone is not None
    config = subject.backbone.config
    ours = (config.hidden_size, config.vocab_size, config.num_heads)
    for file in sorted(SHIPPED.glob(f"*/{CONFIG_FILE}")):
        theirs = json.loads(file.read_text())
        if ours == tuple(theirs[k] for k in ("hidden_size", "vocab_size", "num_attention_heads")):
            return file.parent.name
    return None


def check_numbers(subject: Subject) -> Finding:
    """Are all weights finite, and is none of them just zeros?"""
    if subject.weights is None:
        return skipped("head weights", "there is no head to look into")
    broken: list[str] = []
    zero: list[str] = []
    for name, tensor in subject.weights.tensors.items():
        num_broken, is_zero = _look_through(tensor)
        if num_broken:
            broken.append(f"{name} ({num_broken:,} values)")
        elif is_zero and name.endswith("weight"):
            zero.append(name)
    numbers = {"broken": broken, "zero": zero, "num_tensors": len(subject.weights.tensors)}
    check = Check("head weights", numbers)
    if broken:
        return check.fault(
            f"NaN or infinite numbers in {list_names(broken)}.",
            f"Its training diverged, or the file is damaged. {EXPORT_AGAIN}",
        )
    if zero:
        return check.fault(
            f"Nothing but zeros in {list_names(zero)}.",
            f"The export left them unfilled. {EXPORT_AGAIN}",
        )
    return check.ok(f"{numbers['num_tensors']} tensors, all finite, none empty")


def _look_through(tensor: StoredTensor) -> tuple[int, bool]:
    """Return how many values are not finite, and whether all are zero."""
    num_broken, is_zero = 0, True
    for block in tensor.row_blocks():
        part = block.to_float32()
        num_broken += int(part.size - np.isfinite(part).sum())
        is_zero = is_zero and not part.any()
    return num_broken, is_zero


def check_vocabulary(subject: Subject) -> Finding:
    """Does every draft token exist, once, in the backbone and in the tokenizer?"""
    check = Check("draft vocabulary")
    weights, backbone = subject.weights, subject.backbone
    if weights is None or backbone is None:
        return skipped("draft vocabulary", "there is no head to look into")
    vocabulary = weights.vocabulary
    if vocabulary is None:
        return check.ok("the backbone's own")
    return next(_vocabulary_faults(weights, subject), None) or check.ok(
        f"{len(vocabulary):,} tokens, all of them the backbone's",
        {"draft_vocab_size": len(vocabulary)},
    )


def _vocabulary_faults(weights: HeadWeights, subject: Subject) -> Iterator[Finding]:
    assert weights.vocabulary is not None
    assert subject.backbone is not None
    vocabulary, rows = weights.vocabulary, subject.backbone.config.vocab_size
    check = Check("draft vocabulary", {"draft_vocab_size": len(vocabulary), "vocab_size": rows})
    beyond = int(((vocabulary < 0) | (vocabulary >= rows)).sum())
    if beyond:
        yield check.fault(
            f"{beyond:,} of {len(vocabulary):,} draft tokens map to ids outside 0…{rows - 1} (up "
            f"to {int(vocabulary.max())}).",
            f"The head was made for another tokenizer, or d2t is damaged. {EXPORT_AGAIN}",
            {"beyond": beyond},
        )
    num_twice = len(vocabulary) - len(np.unique(vocabulary))
    if num_twice:
        yield check.fault(
            f"{num_twice:,} draft tokens map to an id that another one has already.",
            f"Its d2t or token_map is damaged. {EXPORT_AGAIN}",
            {"twice": num_twice},
        )
    size = rows if subject.tokenizer is None else subject.tokenizer.vocab_size
    unspoken = int((vocabulary >= size).sum())
    if unspoken:
        yield check.warning(
            f"{unspoken:,} draft tokens are padding: the tokenizer has only {size:,}.",
            "Harmless but useless; train the head with a vocabulary from real answers.",
            {"unspoken": unspoken},
        )


def check_stale(subject: Subject) -> Finding:
    """Was the head trained for these very weights?"""
    if subject.head_folder is None:
        reason = "there is no head" if subject.origin is None else "it came with the weights"
        return skipped("trained for", reason)
    if subject.backbone is None:
        return skipped("trained for", "the model could not be read")
    record = read_record(subject.head_folder)
    if record.problem:
        return Check("trained for").warning(record.problem, "Restore run.json from where it came.")
    if record.fingerprint is None:
        return skipped("trained for", "the head has no run.json that names its backbone")
    own = fingerprint(subject.backbone)
    check = Check("trained for", {"backbone": own, "trained_for": record.fingerprint})
    if own != record.fingerprint:
        return check.warning(
            f"Other weights than these: its backbone was {record.fingerprint[:10]}…, this one is "
            f"{own[:10]}…. After fine-tuning a head goes stale.",
            f"Go on training it on this model: `headlong train --from-head {subject.head_folder} "
            "…`; whether it still drafts well is said below.",
        )
    return check.ok(f"this very backbone ({own[:10]}…)")
