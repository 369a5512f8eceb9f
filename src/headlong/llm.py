"""The Python front door: load a model, generate text, stream it.

    llm = LLM.load()
    out = llm.generate([{"role": "user", "content": "Hello"}], mtp="auto", temperature=0.7, seed=1)

A string is taken as it stands (plain completion); a list of messages goes through the model's chat
template; a list of ints is taken as token ids. Text above this line, only token ids below.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, cast

import numpy as np

from headlong.config import (
    DrafterName,
    DraftVocabularyName,
    HeadQuant,
    ModelOptions,
    MtpMode,
    QuantName,
    SamplingParams,
    StopParams,
    check_mtp,
)
from headlong.decode.request import Request
from headlong.drafters.choose import make_drafter
from headlong.drafters.drafter import Drafter
from headlong.engine.client import EngineClient
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason
from headlong.errors import HeadError, RequestError
from headlong.generation import Chunk, Completion, Generation
from headlong.heads.choose_head import choose_head
from headlong.heads.head import Head
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.ops.op_set import Ops
from headlong.text.answer_form import read_form
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.text.tool_calls import read_answer
from headlong.text.tools import ToolChoice
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.ledger import LoadReport
from headlong.weights.progress import Progress
from headlong.weights.sources import resolve_model

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
Params = TypeVar("Params", SamplingParams, StopParams)


class GenerateOptions(TypedDict, total=False):
    """Everything a generation can be told; defaults and meanings are in `headlong.config`."""

    mtp: MtpMode
    max_tokens: int
    stop: str | Sequence[str]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    logprobs: int | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    response_format: Mapping[str, Any]


class DraftOptions(TypedDict, total=False):
    """What drafts for a model."""

    head: str | Path | None
    head_quant: HeadQuant
    drafter: DrafterName
    draft_vocabulary: DraftVocabularyName


class LoadOptions(DraftOptions, total=False):
    """How a model is set up: `ModelOptions` as keywords, which has defaults and meanings."""

    quant: QuantName | None
    draft_model: str | Path | None
    backend: str
    limits: EngineLimits | None
    progress: Progress | None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LLM:
    """A loaded model, ready to generate."""

    model_path: Path
    tokenizer: Tokenizer
    backbone: Backbone
    head: Head | None
    drafter: Drafter | None
    report: LoadReport
    """What was found in the model's file: tensors used, left over, belonging to a head."""
    notes: tuple[str, ...]
    """Whole sentences about what loading found and the user should know."""
    engine: EngineClient

    def __repr__(self) -> str:
        drafter, backend = self.drafter and self.drafter.name, self.backbone.ops.name
        return f"LLM({self.model_path.name}, drafter={drafter or 'none'}, backend={backend})"

    @classmethod
    def load(cls, model: str | Path | None = None, **options: Unpack[LoadOptions]) -> "LLM":
        """Load a model by path or name; the default model when none is named.

        Args:
            model: A GGUF file, a Hugging Face folder, a catalogue name, or a hub id.
            options: The fields of `headlong.config.ModelOptions`, which says what each one means;
                `limits`, the bounds of its engine; `progress`, which is told of downloads.
        """
        _refuse_unknown(options, LoadOptions)
        named: dict[str, Any] = dict(options)
        progress, limits = named.pop("progress", None), named.pop("limits", None)
        wanted = ModelOptions(None if model is None else str(model), **named)
        ops = make_ops(wanted.backend)
        path = resolve_model(wanted.model, progress=progress)
        checkpoint = open_checkpoint(path)
        loaded = load_backbone(checkpoint, ops, wanted.quant)
        tokenizer = load_tokenizer(checkpoint)
        name = _resolve_drafter(wanted)
        found = choose_head(checkpoint, loaded.backbone, tokenizer, replace(wanted, drafter=name))
        second = _load_second(wanted, tokenizer, progress)
        drafter = make_drafter(name, loaded.backbone, found.head, second)
        del checkpoint  # its tables are large and not needed any more
        ops.settle()
        return cls(
            model_path=path,
            tokenizer=tokenizer,
            backbone=loaded.backbone,
            head=found.head,
            drafter=drafter,
            report=loaded.report,
            notes=(*_backend_notes(ops, wanted), *found.notes),
            engine=Engine.for_model(loaded.backbone, drafter, limits),
        )

    def with_drafter(self, **options: Unpack[DraftOptions]) -> "LLM":
        """Return the same model with another drafter and an engine of its own; weights are shared.

        The options are those of `load` with the same names.
        """
        _refuse_unknown(options, DraftOptions)
        wanted = ModelOptions(**options)
        name, checkpoint = _resolve_drafter(wanted), open_checkpoint(self.model_path)
        wanted = replace(wanted, drafter=name)
        found = choose_head(checkpoint, self.backbone, self.tokenizer, wanted)
        drafter = make_drafter(name, self.backbone, found.head, None)
        self.backbone.ops.settle()
        engine = Engine.for_model(self.backbone, drafter, self.engine.limits)
        return replace(self, head=found.head, drafter=drafter, notes=found.notes, engine=engine)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Completion:
        """Generate an answer and return it whole, tool calls taken out of its text."""
        completion = self.stream(prompt, **options).complete()
        form = read_form(options)
        if form.tools is None:
            return completion
        stem = f"{completion.seed:x}_{completion.num_prompt_tokens}"
        style = self.tokenizer.tool_style
        is_cut = completion.finish_reason is FinishReason.LENGTH
        parts = read_answer(completion.text, stem, style, form.tool_names, is_cut=is_cut)
        return replace(completion, text=parts.text, tool_calls=parts.tool_calls)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Start an answer; iterate over the result for its chunks."""
        _refuse_unknown(options, GenerateOptions)
        form = read_form(options)
        prompt_ids = self.encode(prompt, form.tools)
        request = make_request(prompt_ids, self.tokenizer.eos_ids, options)
        grammar = form.make_grammar(self.tokenizer)
        stream = self.engine.submit(replace(request, grammar=grammar))
        # An answer to messages begins a text of its own.
        return Generation(self.engine, stream, self.tokenizer, continues_text=not is_chat(prompt))

    def encode(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[int, ...]:
        """Turn a prompt of any kind into token ids."""
        if is_chat(prompt):
            return tuple(self.tokenizer.encode_chat(cast(Sequence[Message], prompt), tools=tools))
        if tools:
            raise RequestError(
                "Tools were given with a prompt that is not a list of messages.",
                "Tools are written by the chat template: put the prompt into a user message.",
            )
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt))
        return tuple(int(token_id) for token_id in cast(Sequence[int], prompt))


def is_chat(prompt: Prompt) -> bool:
    """Tell messages from text and token ids; refuse what is none of them."""
    if isinstance(prompt, str):
        return False
    is_list = isinstance(prompt, Iterable)
    items = list(prompt) if is_list else [prompt]
    if items and all(isinstance(item, Mapping) for item in items):
        return True
    for item in items:
        if not is_list or type(item) is bool or not isinstance(item, Integral):
            raise RequestError(
                f"The prompt holds {item!r}, which is neither a message nor a token id.",
                "Give a string, a list of messages {'role': …, 'content': …}, or token ids.",
            )
    return False


def make_request(
    prompt_ids: tuple[int, ...], eos_ids: frozenset[int], options: GenerateOptions
) -> Request:
    """Check a caller's options and turn them into a request; a seed is drawn when none is given."""
    # Numbers out of numpy arrays are as good as Python's own.
    plain = {name: v.item() if isinstance(v, np.generic) else v for name, v in options.items()}
    given = {name: value for name, value in plain.items() if value is not None}
    if isinstance(stop := given.get("stop", ()), str):
        stop = (stop,)
    given["stop"] = tuple(stop) if isinstance(stop, Iterable) else stop
    given.setdefault("seed", secrets.randbits(63))
    return Request(
        prompt_ids=prompt_ids,
        sampling=_fill(SamplingParams(), given),
        stopping=_fill(StopParams(), given),
        mtp=check_mtp(given.get("mtp", "auto")),
        eos_ids=eos_ids,
    )


def load(
    path_or_name: str | Path | None = None, **options: Unpack[LoadOptions]
) -> tuple[LLM, Tokenizer]:
    """Load a model and its tokenizer, the way mlx-lm users know it."""
    llm = LLM.load(path_or_name, **options)
    return llm, llm.tokenizer


def generate(
    model: LLM, tokenizer: Tokenizer, prompt: Prompt, **options: Unpack[GenerateOptions]
) -> str:
    """Generate an answer and return its text."""
    return replace(model, tokenizer=tokenizer).generate(prompt, **options).text


def stream_generate(
    model: LLM, tokenizer: Tokenizer, prompt: Prompt, **options: Unpack[GenerateOptions]
) -> Iterator[Chunk]:
    """Generate an answer chunk by chunk."""
    return replace(model, tokenizer=tokenizer).stream(prompt, **options)


def _backend_notes(ops: Ops, options: ModelOptions) -> tuple[str, ...]:
    """Say why the slow backend computes though it was not asked for."""
    is_fallback = options.backend == "auto" and ops.name == "numpy"
    return (ops.note,) if is_fallback else ()


def _resolve_drafter(options: ModelOptions) -> DrafterName:
    """Return which drafter is meant; refuse parts that it would leave unused."""
    name = options.drafter
    if name == "auto" and options.draft_model is not None:
        name = "draft-model"
    users: dict[str, tuple[str, ...]] = {"head": ("auto", "head"), "draft_model": ("draft-model",)}
    for part, drafters in users.items():
        given = getattr(options, part)
        if given is not None and name not in drafters:
            raise RequestError(
                f"A {part} was given ({given}), but drafter {name!r} does not use it.",
                f"Leave it out, or use drafter={drafters[-1]!r}.",
            )
    return name


def _load_second(
    options: ModelOptions, tokenizer: Tokenizer, progress: Progress | None
) -> Backbone | None:
    """Load the backbone of the draft model, if one is named; refuse one with other tokens."""
    if options.draft_model is None:
        return None
    name = str(options.draft_model)
    checkpoint = open_checkpoint(resolve_model(name, progress=progress))
    if not load_tokenizer(checkpoint).has_same_tokens(tokenizer):
        raise HeadError(
            f"The draft model {name} does not have the tokens of the model.",
            "Both must come with one tokenizer; take a smaller model of the same family.",
        )
    # Its own backend object, since one belongs to one model.
    return load_backbone(checkpoint, make_ops(options.backend)).backbone


def _fill(defaults: Params, given: Mapping[str, Any]) -> Params:
    """Return `defaults` with the values given for its fields."""
    known = {field.name for field in fields(defaults)}
    return replace(defaults, **{name: value for name, value in given.items() if name in known})


def _refuse_unknown(options: Mapping[str, Any], known: type) -> None:
    unknown = [name for name in options if name not in known.__annotations__]
    if unknown:
        names = ", ".join(sorted(known.__annotations__))
        raise RequestError(f"Unknown option {unknown[0]!r}.", f"Known are: {names}.")
