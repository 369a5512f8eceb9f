"""A tiny random model that can be talked to: byte-level vocabulary, chat template, loads at once.

What it says is nonsense, but the same nonsense every time. STUTTER makes it say one letter over and
over, which n-grams guess.
"""

from pathlib import Path
from typing import Any

import pytest

import model_files
from tiny_text import byte_level_metadata

STUTTER = ("--logit-bias", "66=100")
"""Options that leave the model no choice."""


def write_talking_model(
    path: Path, *, context_length: int = model_files.CONTEXT_LENGTH, **tokenizer_changes: Any
) -> Path:
    """Write the model as a GGUF file; `tokenizer_changes` as `byte_level_metadata` takes them."""
    metadata = byte_level_metadata(**tokenizer_changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "VOCAB_SIZE", len(metadata["tokenizer.ggml.tokens"]))
        patch.setattr(model_files, "CONTEXT_LENGTH", context_length)
        return model_files.write_gguf(path, "llama", extra_metadata=metadata)
