"""The shipped head with one thing broken, as a folder: what exporters and disks do to heads."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headlong.heads.head_files import CONFIG_FILE, WEIGHTS_FILE, read_head_weights
from headlong.weights import head_folders

SHIPPED = head_folders.SHIPPED / "smollm2-135m-instruct"
Arrays: TypeAlias = dict[str, NDArray[Any]]


def copy_shipped(folder: Path, change: Callable[[Arrays], None] | None = None) -> Path:
    """Write the shipped head to a folder, its tensors, as floats, changed in place by `change`."""
    shutil.copytree(SHIPPED, folder)
    if change is not None:
        stored = read_head_weights(SHIPPED).tensors.items()
        arrays: Arrays = {name: tensor.to_float32() for name, tensor in stored}
        others = load_file(folder / WEIGHTS_FILE)
        arrays |= {name: others[name] for name in ("d2t", "t2d")}
        edit_json(folder / CONFIG_FILE, quantization=None)
        change(arrays)
        # Slices are views, and the library writes what lies in memory, not what is seen.
        whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        save_file(whole, folder / WEIGHTS_FILE)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes one out."""
    kept = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))
