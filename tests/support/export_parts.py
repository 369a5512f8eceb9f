"""A tiny model with a tiny head, as exports are made of."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import model_files
from headlong.heads.head_files import save_head
from headlong.models.model_config import ModelConfig, read_config
from headlong.weights.checkpoint import open_checkpoint
from random_heads import random_eagle3
from talking_model import write_talking_model
from tiny_text import byte_level_metadata

TAPS = (1, 3, 5)
"""Not the usual ones of seven layers, so that a shift by one shows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A model's file and the folder of a head for it."""

    model: Path
    head: Path
    config: ModelConfig


def write_pair(folder: Path) -> Pair:
    """Write a Llama in GGUF, its q/k rows interleaved, and a head for half of its tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, "llama", 7)
        model = write_talking_model(folder / "tiny.gguf")
    config = read_config(open_checkpoint(model))
    weights = random_eagle3(config, draft_vocab_size=config.vocab_size // 2)
    keys = {**weights.config, "eagle_aux_hidden_state_layer_ids": list(TAPS)}
    save_head(folder / "head", replace(weights, config=keys))
    return Pair(model, folder / "head", config)


def write_model(path: Path, architecture: str, **tokenizer_changes: Any) -> Path:
    """Write a tiny model that has tokens as a GGUF file."""
    metadata = byte_level_metadata(**tokenizer_changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "VOCAB_SIZE", len(metadata["tokenizer.ggml.tokens"]))
        return model_files.write_gguf(path, architecture, extra_metadata=metadata)
