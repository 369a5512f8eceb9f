"""The Python API: load a model, generate text, stream it.

    llm = LLM.load()
    out = llm.generate([{"role": "user", "content": "Hello"}], mtp="auto", temperature=0.7, seed=1)

A string is taken as it stands (plain completion); a list of messages goes through the model's chat
template; a list of ints is taken as token ids. Text above this line, only token ids below.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

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
from headlong.generation import Completion, Generation
from headlong.heads.choose_head import choose_head
from headlong.heads.head import Head
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import first_default, fit_ops, make_ops
from headlong.ops.op_set import Ops
from headlong.prompt import Prompt, prepare_prompt
from headlong.text.chat_template import ChatOptions
from headlong.text.output_constraint import read_constraint
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.text.tool_calls import read_answer
from headlong.text.tools import ToolChoice
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.progress import Progress
from headlong.weights.sources import resolve_model
from headlong.weights.weight_reader import LoadReport

Params = TypeVar("Params", SamplingParams, StopParams)


class GenerateOptions(TypedDict, total=False):
    """All options of a generation; defaults and meanings are in `headlong.config`.

    The options of the chat template are those of `text.chat_template.ChatOptions`.
    """

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
    min_tokens: int
    seed: int | None
    logprobs: int | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    response_format: Mapping[str, Any]
    think: bool | None
    chat_template_kwargs: Mapping[str, Any]
    continue_final_message: bool


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

    @property
    def architecture(self) -> str:
        """What kind of model it is: "llama", "qwen3"."""
        return self.backbone.config.architecture

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
        weights = checkpoint.tensors.values()
        ops = fit_ops(ops, wanted.backend, weights, wanted.quant)
        loaded = load_backbone(checkpoint, ops, wanted.quant)
        tokenizer = load_tokenizer(checkpoint)
        name = _resolve_drafter(wanted)
        found = choose_head(checkpoint, loaded.backbone, tokenizer, replace(wanted, drafter=name))
        draft_model = _load_draft_model(wanted, ops, tokenizer, progress)
        drafter = make_drafter(name, loaded.backbone, found.head, draft_model)
        del checkpoint  # its tables are large and not needed any more
        ops.finish_loading()
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
        self.backbone.ops.finish_loading()
        engine = Engine.for_model(self.backbone, drafter, self.engine.limits)
        return replace(self, head=found.head, drafter=drafter, notes=found.notes, engine=engine)

    def with_draft_model(self, other: "LLM") -> "LLM":
        """Return the same model with a loaded one that drafts for it, and an engine of its own."""
        _check_same_tokens(str(other), other.tokenizer, self.tokenizer)
        drafter = make_drafter("draft-model", self.backbone, None, other.backbone)
        engine = Engine.for_model(self.backbone, drafter, self.engine.limits)
        return replace(self, head=None, drafter=drafter, notes=(), engine=engine)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Completion:
        """Generate an answer and return it whole, tool calls taken out of its text."""
        completion = self.stream(prompt, **options).complete()
        form = read_constraint(options)
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
        form = read_constraint(options)
        template = ChatOptions(
            form.tools,
            continue_final_message=bool(options.get("continue_final_message")),
            think=options.get("think"),
            kwargs=options.get("chat_template_kwargs") or {},
        )
        prepared = prepare_prompt(self.tokenizer, prompt, template)
        request = make_request(prepared.token_ids, self.tokenizer.eos_ids, options)
        grammar = form.make_grammar(self.tokenizer, prepared.reasoning)
        stream = self.engine.submit(replace(request, grammar=grammar))
        return Generation(self.engine, stream, self.tokenizer, prepared)

    def encode(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[int, ...]:
        """Turn a prompt of any kind into token ids."""
        return prepare_prompt(self.tokenizer, prompt, ChatOptions(tools)).token_ids


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


def _backend_notes(ops: Ops, options: ModelOptions) -> tuple[str, ...]:
    """Say why another backend computes than the fastest that Headlong has for this machine."""
    is_second_choice = options.backend == "auto" and ops.name != first_default()
    return (ops.note,) if is_second_choice else ()


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


def _load_draft_model(
    options: ModelOptions, ops: Ops, tokenizer: Tokenizer, progress: Progress | None
) -> Backbone | None:
    """Load the backbone of the draft model, if one is named; refuse one with other tokens."""
    if options.draft_model is None:
        return None
    name = str(options.draft_model)
    checkpoint = open_checkpoint(resolve_model(name, progress=progress))
    _check_same_tokens(name, load_tokenizer(checkpoint), tokenizer)
    # Its own backend object, since one belongs to one model.
    return load_backbone(checkpoint, make_ops(ops.name)).backbone


def _check_same_tokens(name: str, own: Tokenizer, tokenizer: Tokenizer) -> None:
    if not own.has_same_tokens(tokenizer):
        raise HeadError(
            f"The draft model {name} does not have the tokens of the model.",
            "Both must come with one tokenizer; take a smaller model of the same family.",
        )


def _fill(defaults: Params, given: Mapping[str, Any]) -> Params:
    """Return `defaults` with the values given for its fields."""
    known = {field.name for field in fields(defaults)}
    return replace(defaults, **{name: value for name, value in given.items() if name in known})


def _refuse_unknown(options: Mapping[str, Any], known: type) -> None:
    unknown = [name for name in options if name not in known.__annotations__]
    if unknown:
        names = ", ".join(sorted(known.__annotations__))
        raise RequestError(f"Unknown option {unknown[0]!r}.", f"Known are: {names}.")
