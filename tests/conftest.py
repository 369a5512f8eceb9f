"""Fixtures shared by all tests: the real default model, and tiny ones of every architecture."""

import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import model_files
import tiny_text
from golden_models import GOLDEN
from headlong.llm import LLM
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.sources import resolve_model
from mlx_files import write_mlx_folder
from talking_model import write_talking_model

# Shared machines stall for seconds at a time; a slow example is not a wrong one.
settings.register_profile("headlong", deadline=None)
settings.load_profile("headlong")

# A shell that starts a job in the background lets it ignore Ctrl-C, and its children inherit that:
# tests that interrupt a command would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

NUM_LAYERS = 7
"""The fewest with which an EAGLE-3 head's usual tap layers 2, N // 2 and N - 3 are three."""


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep commands and servers of tests out of the user's state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLONG_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Undo what a test did to the loggers: a handler would write to a stream that is closed."""
    loggers = [logging.getLogger(name) for name in ("headlong", "uvicorn.error")]
    before = [(one, [*one.handlers], one.propagate, one.level) for one in loggers]
    yield
    for one, handlers, propagate, level in before:
        for added in one.handlers:
            if added not in handlers:
                added.close()  # it may have a file
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, pulled once if it is not here yet."""
    return resolve_model(None)


@pytest.fixture(scope="session")
def default_llm(default_model_path: Path) -> LLM:
    """The default model, loaded once for the whole run."""
    return LLM.load(default_model_path)


def _write_deep_folder(folder: Path, architecture: str) -> None:
    """Write a tiny model of `NUM_LAYERS`; with "mlx-" before its name as mlx-lm converts it."""
    own_name = architecture.removeprefix("mlx-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, own_name, NUM_LAYERS)
        if own_name == architecture:
            model_files.write_hf_folder(folder, architecture)
        else:
            write_mlx_folder(folder, own_name, group_size=64, own={"lm_head": 8})


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    """Tiny random backbones by architecture name, each made once, on the numpy backend.

    "llama@native" is the tiny Llama on the native backend.
    """
    made: dict[str, Backbone] = {}

    def make(name: str) -> Backbone:
        if name not in made:
            architecture, _, backend = name.partition("@")
            if architecture in model_files.FROM_GOLDEN:
                folder = GOLDEN / architecture
            else:
                folder = tmp_path_factory.mktemp(architecture)
                _write_deep_folder(folder, architecture)
            checkpoint = open_checkpoint(folder)
            made[name] = load_backbone(checkpoint, make_ops(backend or "numpy")).backbone
        return made[name]

    return make


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama that speaks bytes, as a GGUF file with tokenizer and chat template."""
    metadata = tiny_text.byte_level_metadata()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, "llama", NUM_LAYERS)
        patch.setattr(model_files, "VOCAB_SIZE", len(metadata["tokenizer.ggml.tokens"]))
        path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
        return model_files.write_gguf(path, "llama", extra_metadata=metadata)


@pytest.fixture(scope="session")
def thinking_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a template that has it reason before it answers."""
    path = tmp_path_factory.mktemp("thinking") / "thinking.gguf"
    return write_talking_model(path, **tiny_text.thinking_changes())


@pytest.fixture
def tiny_llm(tiny_model_path: Path) -> LLM:
    """The tiny model behind the front door, on the oracle backend."""
    return LLM.load(tiny_model_path, backend="numpy")
