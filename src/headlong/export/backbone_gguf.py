"""The backbone a head was trained on, as the GGUF file that llama.cpp loads.

In:  a model's checkpoint. Out: the file itself, copied and read again.
"""

from pathlib import Path
from typing import Any

from headlong.errors import ArchitectureError
from headlong.export.backbone_folder import copy_file, counter
from headlong.export.conversion import Conversion
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.progress import Progress


def write_backbone_gguf(
    path: Path, checkpoint: Checkpoint, conversion: Conversion, progress: Progress
) -> None:
    """Copy a model's file; it stays as it is quantised, whatever type is asked for."""
    del conversion
    _refuse_folder(checkpoint)
    copy_file(checkpoint.path, path, counter(progress, checkpoint.path.stat().st_size))


def tokenizer_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a GGUF file says of the model's tokens; a head's file must say the same."""
    _refuse_folder(checkpoint)
    metadata = checkpoint.metadata
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}


def _refuse_folder(checkpoint: Checkpoint) -> None:
    if checkpoint.format != "gguf":
        raise ArchitectureError(
            f"{checkpoint.path} is a Hugging Face folder; llama.cpp needs its tokens as GGUF.",
            "Convert the model with llama.cpp's convert_hf_to_gguf.py, and name that file with "
            "--model.",
        )
