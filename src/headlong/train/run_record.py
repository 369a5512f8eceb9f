"""run.json: what a head was made from, so that a number can be traced and a run repeated.

In:  recipe, model, prompts, answers, results. Out: one JSON file beside the head.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headlong.provenance import read_provenance
from headlong.train.prompt_files import Prompt
from headlong.train.recipe import Recipe
from headlong.train.shards import Answers
from headlong.train.tool_prompts import COMPOSED_TOOLS

RUN_FILE = "run.json"


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_data(
    answers: Answers, prompts: Sequence[Prompt], prompt_files: Sequence[Path]
) -> dict[str, Any]:
    """Return which sets a head saw, under which licences, and hashes of all data."""
    licences = {prompt.set_name: prompt.licence for prompt in prompts}
    licences[COMPOSED_TOOLS] = "Apache-2.0"
    sets = {
        name: {
            "answers": count,
            # What was made from the prompts of a set has the licence of that set.
            "licence": licences.get(
                name.removesuffix("_passages").removesuffix("_blocks"),
                "written by the model itself",
            ),
        }
        for name, count in sorted(answers.set_counts.items())
    }
    return {
        "sets": sets,
        "prompt_files": {path.name: hash_file(path) for path in prompt_files},
        "answers": len(answers),
        "answer_tokens": answers.num_answer_tokens,
        "answers_sha256": answers.fingerprint,
        "damaged_shards": list(answers.damaged),
    }


def write_run(path: Path, recipe: Recipe, model: Path, details: dict[str, Any]) -> None:
    """Write run.json."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    record = {
        "provenance": read_provenance().to_dict(),
        "torch": torch.__version__,
        "device": name,
        "model": {"file": model.name, "sha256": hash_file(model) if model.is_file() else None},
        "recipe": recipe.to_dict(),
        **details,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def add_to_run(path: Path, details: dict[str, Any]) -> None:
    """Add what was found out later to run.json, where there is one."""
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8")) | details
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
