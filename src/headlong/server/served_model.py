"""The served model: everything a server needs of whatever answers, a loaded LLM or a fleet.

In:  a loaded LLM, or the files of a model and the fleet that runs it.
Out: one record. Routes, page and banner read it and never ask which of the two it is.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headlong.engine.client import EngineClient
from headlong.fleet.answer_parts import ENGINE
from headlong.fleet.client import FleetEngine
from headlong.fleet.replica import Replica
from headlong.heads.head import Head
from headlong.llm import LLM
from headlong.models.model_config import ModelConfig, read_config
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import open_checkpoint

_HEAD_NAMES = {"eagle3": "EAGLE-3", "nextn": "nextn", "medusa": "Medusa", "meta": "parallel"}
_DRAFTER_NAMES = {
    "chain": "n-grams, then head",
    "ngram": "n-grams",
    "head": "head",
    "draft-model": "draft model",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready to be asked."""

    path: Path
    """Where its files are; its name is what clients call it unless the settings say otherwise."""
    tokenizer: Tokenizer
    engine: EngineClient
    architecture: str
    """What kind of model it is: "llama", "qwen3"."""
    drafter: str | None
    """Who drafts, in one word; None where nothing does."""
    drafter_words: str
    """The same for people."""
    head_words: str
    describe_weights: Callable[[], str]
    """Say in which format they are and how many; reads the tables of its files."""
    replicas: Sequence[Replica] = ()
    """Engines in other processes that compute; none for an engine in this one."""

    @classmethod
    def of_llm(cls, llm: LLM, quant: str | None = None) -> "ServedModel":
        """Serve a loaded model, whose weights were packed as `quant` where that is given."""
        drafter = None if llm.drafter is None else llm.drafter.name
        return cls(
            path=llm.model_path,
            tokenizer=llm.tokenizer,
            engine=llm.engine,
            architecture=llm.architecture,
            drafter=drafter,
            drafter_words=_DRAFTER_NAMES.get(drafter or "none", drafter or "none"),
            head_words=_describe_head(llm.head),
            describe_weights=partial(_describe_weights, llm.model_path, llm.report.used, quant),
        )

    @classmethod
    def of_fleet(cls, files: "ModelFiles", engine: FleetEngine) -> "ServedModel":
        """Serve what engines in other processes run; the files say how to talk to it."""
        depths = sorted({one.num_draft_tokens for one in engine.replicas if one.drafts})
        drafts = f"the engines, K={' and '.join(map(str, depths))}" if depths else "none"
        return cls(
            path=files.path,
            tokenizer=files.tokenizer,
            engine=engine,
            architecture=files.config.architecture,
            drafter=ENGINE if depths else None,
            drafter_words=drafts,
            head_words="the engines' own" if depths else "none",
            describe_weights=lambda: "the engines' own",
            replicas=engine.replicas,
        )


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a front needs of a model that others run: its tokens, its template, its sizes."""

    path: Path
    tokenizer: Tokenizer
    config: ModelConfig

    @classmethod
    def open(cls, path: Path) -> "ModelFiles":
        """Read them; weights are not loaded."""
        checkpoint = open_checkpoint(path)
        return cls(path, load_tokenizer(checkpoint), read_config(checkpoint))


def _describe_weights(path: Path, used: Collection[str], quant: str | None) -> str:
    """Name the format most bytes are in, and the number of parameters."""
    tensors = open_checkpoint(path).tensors
    found = [tensors[name] for name in used if name in tensors]
    num_bytes: Counter[str] = Counter()
    for tensor in found:
        num_bytes[tensor.type.name] += tensor.num_bytes
    num_parameters = sum(math.prod(tensor.shape) for tensor in found)
    formats = [name for name, _ in num_bytes.most_common(1)]
    if quant is not None:
        formats.append(f"as {quant}")
    return f"{' '.join(formats)}, {_in_words(num_parameters)} parameters"


def _describe_head(head: Head | None) -> str:
    if head is None:
        return "none"
    parts = [_HEAD_NAMES.get(head.kind, head.kind), head.report.quant or "as stored"]
    if head.vocabulary is not None:
        parts.append(f"{len(head.vocabulary):,} tokens")
    return ", ".join(parts)


def _in_words(number: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
