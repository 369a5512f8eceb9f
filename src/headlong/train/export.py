"""Export: writes a trained head as a head folder.

In:  a head in torch; recipe, model, prompts, answers, results. Out: `HeadWeights` in float16, or in
4 bits after quantisation-aware training, written with `save_head`; optionally the weights in small
parts, which `cat` joins; run.json, which documents the run so that it can be repeated.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headlong.arrays import IntArray
from headlong.export.mtp_folder import save_mtp_layers
from headlong.heads.head_files import WEIGHTS_FILE, save_head
from headlong.heads.head_weights import QUANT_KEY, FloatType, HeadWeights, store_arrays
from headlong.provenance import read_provenance
from headlong.train.library_code import LIBRARY, LIBRARY_LICENCE
from headlong.train.native_head import TorchNative
from headlong.train.projection import effective_parameters
from headlong.train.prompt_files import Prompt
from headlong.train.questions import COMPOSED_CHAT
from headlong.train.recipe import HeadRecipe, Recipe
from headlong.train.shards import Answers
from headlong.train.tool_prompts import COMPOSED_TOOLS
from headlong.train.torch_head import TorchHead
from headlong.weights.mlx_groups import can_pack, pack_matrix

ASKED_FILE = "asked.jsonl"
"""In the work folder: a line about the prompts of every call that generated answers."""
RUN_FILE = "run.json"
PART_BYTES = 14 * 2**20


def head_weights(
    head: TorchHead, recipe: HeadRecipe, vocabulary: IntArray, float_type: FloatType = "float16"
) -> HeadWeights:
    """Return the weights of a trained head; its parameters have their names in head files."""
    if isinstance(head, TorchNative):
        return head.as_weights(vocabulary, float_type)
    arrays = {name: p.float().cpu().numpy() for name, p in effective_parameters(head)}
    tensors = store_arrays(arrays, float_type)
    config = head.export_config()
    if recipe.packed != "full":
        config[QUANT_KEY] = recipe.packed
        exact = store_arrays(arrays)  # float16 would change some scales
        tensors |= {name: pack_matrix(one) for name, one in exact.items() if can_pack(one)}
    return HeadWeights(recipe.kind, config, tensors, vocabulary)


def export_head(folder: Path, weights: HeadWeights) -> int:
    """Write a head folder; return the size of its weights file."""
    if weights.checkpoint is None:
        save_head(folder, weights)
    else:
        save_mtp_layers(folder, weights)
    return (folder / WEIGHTS_FILE).stat().st_size


def split_weights(folder: Path) -> list[Path]:
    """Also write a head's weights in parts of at most 14 MiB, which `cat` joins."""
    data = (folder / WEIGHTS_FILE).read_bytes()
    parts: list[Path] = []
    for number, first in enumerate(range(0, len(data), PART_BYTES)):
        part = folder / f"{WEIGHTS_FILE}.part{number}"
        part.write_bytes(data[first : first + PART_BYTES])
        parts.append(part)
    return parts


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_data(
    answers: Answers, prompts: Sequence[Prompt], prompt_files: Sequence[Path]
) -> dict[str, Any]:
    """Return the prompt sets of the training data, their licences, and hashes of all data."""
    licences = {prompt.set_name: prompt.licence for prompt in prompts}
    licences |= dict.fromkeys((COMPOSED_TOOLS, COMPOSED_CHAT), "Apache-2.0")
    licences[LIBRARY] = LIBRARY_LICENCE
    sets = {
        name: {
            "answers": count,
            # Prompts composed from those of a set have the licence of the set.
            "licence": licences.get(
                name.replace("_turns", "").removesuffix("_passages").removesuffix("_blocks"),
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


def read_prompt_records(work: Path) -> list[dict[str, Any]]:
    """Return the records of the prompts of all calls, without duplicates."""
    path = work / ASKED_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in dict.fromkeys(lines)]


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
    """Add details to run.json, if it exists."""
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8")) | details
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
