"""The README of an exported folder: how to start the engine, what to expect, what it was made of.

In:  what was exported. Out: Markdown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlong.export.head_folder import USUAL_K
from headlong.export.head_source import HeadSource
from headlong.export.targets import Target
from headlong.heads.head_weights import FloatType
from headlong.provenance import read_provenance
from headlong.weights.store import hash_file

_DEPTHS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export made."""

    target: Target
    source: HeadSource
    model_path: Path
    float_type: FloatType
    hashes: Mapping[str, str]
    """sha256 by file of the folder."""
    has_backbone: bool
    shares_changed: Mapping[str, float] = field(default_factory=dict)
    """Of the numbers of "head" and "backbone", which share the type of float changed."""

    @property
    def command(self) -> str:
        """What starts the engine in the folder."""
        backbone = self.target.backbone_name if self.has_backbone else "MODEL"
        return self.target.command.format(
            backbone=backbone, dtype=self.float_type, k=USUAL_K, rows=USUAL_K + 1
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Whole sentences on what may make it draft worse than here."""
        notes = []
        for part, share in self.shares_changed.items():
            if share:
                notes.append(
                    f"{self.float_type} changed {share:.1%} of the {part}'s numbers; float32 "
                    "keeps all of them."
                )
        if self.float_type == "bfloat16":
            notes.append(
                "bfloat16 has 8 bits of fraction; heads and backbones on a 4-bit grid need more. "
                "Prefer float16."
            )
        if self.source.is_of_this_model is False:
            notes.append(
                f"The head was trained on another model than {self.model_path.name}; its drafts "
                "may stand less often than its record says."
            )
        if not self.has_backbone:
            notes.append(
                "The backbone was not exported: MODEL is the one the head was trained on. The head "
                "drafts well only for its very weights: --backbone writes them."
            )
        return tuple(notes)


def write_readme(folder: Path, exported: Exported) -> None:
    """Write README.md."""
    target = exported.target
    parts = [
        f"# A head for {exported.model_path.name}, to be run by {target.title}",
        "An EAGLE-3 head in the format that the engine reads"
        + (", and the backbone it drafts for." if exported.has_backbone else "."),
        "## Start",
        f"In this folder. {target.tried}",
        f"```sh\n{exported.command}\n```",
        *_list((*exported.notes, *([] if target.caution is None else [target.caution]))),
        "## Expected acceptance",
        *_acceptance(exported.source.record.acceptance),
        "Engines count differently at the end of a text: compare rounds on the same prompts.",
        "## Files",
        _table(("file", "sha256"), [(f"`{n}`", f"`{h}`") for n, h in exported.hashes.items()]),
        f"Made by Headlong {_version()} from `{exported.model_path.name}`"
        f"{_hash_of(exported.model_path)}. The head reads the inputs of layers "
        f"{', '.join(map(str, exported.source.tap_layers))}.",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _acceptance(acceptance: Mapping[str, Any]) -> list[str]:
    tables = []
    for key, by_task in acceptance.items():
        temperature = key.removeprefix("temperature_")
        lists = by_task.items() if isinstance(by_task, dict) else ()
        rows = [
            (task, *(f"{lengths[k - 1]:.2f}" for k in _DEPTHS))
            for task, lengths in lists
            if isinstance(lengths, list) and len(lengths) >= _DEPTHS[-1]
        ]
        if rows:
            tables.append(f"Temperature {temperature}:")
            tables.append(_table(("task", *(f"K = {k}" for k in _DEPTHS)), rows))
    if not tables:
        return [
            "Not on record. Measure it with `headlong eval-head --model MODEL --head HEAD "
            "--prompts FILE`."
        ]
    about = "Mean tokens of a round, the model's own included, as measured after training."
    return [about, *tables]


def _version() -> str:
    return read_provenance().versions["headlong"]


def _hash_of(model: Path) -> str:
    return f", sha256 `{hash_file(model)}`" if model.is_file() else ""


def _list(sentences: tuple[str, ...]) -> list[str]:
    return ["\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
