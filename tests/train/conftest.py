"""Fixtures for training: a tiny Llama with a byte-level tokenizer and chat template, as GGUF."""

from pathlib import Path

import pytest
import torch

import model_files
from golden_models import GOLDEN
from headlong.train.recipe import Recipe, make_recipe
from headlong.train.teacher import Teacher, load_teacher
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from quiet_report import QuietReport
from tiny_text import byte_level_metadata

# Threads that spin for each other collapse when a shared machine takes a core away.
torch.set_num_threads(1)

OTHER_ARCHITECTURES = (
    model_files.HYBRID,
    model_files.GEMMA4,
    model_files.MIXTURE,
    model_files.LATENT,
)
OF_GEMMA4 = ("tiny-gemma4-shared", "tiny-gemma4-experts")

NUM_LAYERS = 7
"""The fewest with which an EAGLE-3 head's usual taps are three."""


@pytest.fixture
def quiet() -> QuietReport:
    """A report that only remembers."""
    return QuietReport()


def write_tiny_gguf(folder: Path, architecture: str) -> Path:
    """Write a random model of seven layers that knows 266 byte-level tokens and ChatML."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, architecture, NUM_LAYERS)
        patch.setattr(model_files, "VOCAB_SIZE", 266)
        metadata = byte_level_metadata()
        return model_files.write_gguf(folder / "tiny.gguf", architecture, extra_metadata=metadata)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama on disk."""
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_gguf: Path) -> Checkpoint:
    """The same, opened."""
    return open_checkpoint(tiny_gguf)


@pytest.fixture(scope="session")
def tiny_teacher(tiny_checkpoint: Checkpoint) -> Teacher:
    """The same in torch, on the CPU."""
    return load_teacher(tiny_checkpoint, torch.device("cpu"), compile=False)


@pytest.fixture(scope="session", params=model_files.ARCHITECTURES)
def any_checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """A tiny model of every architecture in turn."""
    return open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="session")
def any_teacher(any_checkpoint: Checkpoint) -> Teacher:
    """The same in torch, on the CPU."""
    return load_teacher(any_checkpoint, torch.device("cpu"), compile=False)


@pytest.fixture(
    scope="session",
    params=[*model_files.ARCHITECTURES, *OTHER_ARCHITECTURES, *model_files.FROM_GOLDEN, *OF_GEMMA4],
)
def every_checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """A tiny model of every architecture there is, some without a tokenizer."""
    name: str = request.param
    if name.startswith("tiny-"):
        return open_checkpoint(GOLDEN / name)
    return open_checkpoint(model_files.write_hf_folder(tmp_path_factory.mktemp(name), name))


@pytest.fixture(scope="session")
def every_teacher(every_checkpoint: Checkpoint) -> Teacher:
    """The same in torch, on the CPU."""
    return load_teacher(every_checkpoint, torch.device("cpu"), compile=False)


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    """A run of seconds."""
    return make_recipe(
        {
            "prompts": {"max_tokens": 96, "second_turn_share": 0.3, "passage_share": 0.0},
            "answers": {
                "num_rows": 8,
                "max_tokens": 24,
                "refill_every": 4,
                "greedy_share": 1.0,
                "tokens_wanted": 600,
            },
            "head": {"draft_vocab_size": 128},
            "training": {
                "num_depths": 3,
                "steps": 60,
                "warmup_steps": 5,
                "tokens_per_step": 512,
                "learning_rate": 3e-3,
            },
            "evaluation": {"max_depth": 4, "max_tokens": 24, "prompts_per_task": 4},
        }
    )
