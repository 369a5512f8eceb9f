"""Options of a model and of one generation, declared and checked once.

Everything here is frozen: "auto" is resolved into new objects further down, never patched in.
Nothing here knows models, text or devices.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from headlong.errors import RequestError

MAX_DRAFT_TOKENS = 16
"""The largest K a request may ask for."""

MAX_TOP_LOGPROBS = 20
"""How many alternatives `logprobs` can list per token."""

MAX_TEMPERATURE = 2
"""As OpenAI's: above, an answer is noise."""

MtpMode: TypeAlias = Literal["auto", "off"] | int
"""How a request drafts: measured gain decides, never, or always K tokens."""


QuantName: TypeAlias = Literal["q4", "q5", "q6", "q8", "f16", "bf16", "f32"]
"""A format weights can be packed in: 4 to 8 bits with scales for groups, or floats."""

HeadQuant: TypeAlias = QuantName | Literal["auto", "stored"]
"""A head's format: "auto" is the one it was made for, "stored" that of its file."""

HEAD_QUANTS: tuple[HeadQuant, ...] = ("auto", *get_args(QuantName), "stored")

DEFAULT_HEAD_QUANT: QuantName = "q8"
"""For heads that name none. A head is read once per draft token, so its bytes are its time."""

DrafterName: TypeAlias = Literal["auto", "head", "ngram", "draft-model", "none"]
"""How drafts are made; "auto" chains n-grams with the head, or takes n-grams alone."""


DraftVocabularyName: TypeAlias = Literal["auto", "pruned", "full"]
"""Which tokens a native MTP layer drafts from; "auto" goes by the tokens of each text."""


def _about(text: str, metavar: str | None = None, *choices: str) -> dict[str, Any]:
    return {"about": text, "metavar": metavar, "choices": choices}


_MODEL = _about(
    "a GGUF file, a Hugging Face folder, a hub id (org/name), or a name that `headlong models` "
    "lists (default: the small default model)",
    "MODEL",
)
_HEAD = _about(
    "folder of a trained head, or a file with the model's own MTP layers (default: the one inside "
    "the model, or one that comes with Headlong for it)",
    "PATH",
)
_QUANT = _about(
    "pack the model's weights in another format than the file's", None, *get_args(QuantName)
)
_HEAD_QUANT = _about(
    "pack the head's weights in this format; auto takes the one the head was made for, else "
    f"{DEFAULT_HEAD_QUANT}",
    None,
    *HEAD_QUANTS,
)
_DRAFTER = _about(
    "who drafts: auto chains n-grams with the head, or takes n-grams where there is no head",
    None,
    *get_args(DrafterName),
)
_DRAFT_MODEL = _about("a smaller model that drafts (drafter draft-model)", "MODEL")
_DRAFT_VOCABULARY = _about(
    "tokens that a model's own MTP layer drafts from: the frequent ones, all, or (auto) whichever "
    "suits the text",
    None,
    *get_args(DraftVocabularyName),
)
_BACKEND = _about("what computes: auto takes the fastest this machine has", "NAME")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model runs and how it drafts: Python keywords, command line and server settings."""

    model: str | None = field(default=None, metadata=_MODEL)
    head: str | Path | None = field(default=None, metadata=_HEAD)
    quant: QuantName | None = field(default=None, metadata=_QUANT)
    head_quant: HeadQuant = field(default="auto", metadata=_HEAD_QUANT)
    drafter: DrafterName = field(default="auto", metadata=_DRAFTER)
    draft_model: str | Path | None = field(default=None, metadata=_DRAFT_MODEL)
    draft_vocabulary: DraftVocabularyName = field(default="auto", metadata=_DRAFT_VOCABULARY)
    backend: str = field(default="auto", metadata=_BACKEND)


MODEL_OPTIONS: Mapping[str, Field[Any]] = {one.name: one for one in fields(ModelOptions)}
"""Every option of a model by its name, with its default, help, metavar and choices."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is picked from the backbone's logits."""

    temperature: float = 0.0
    """0 picks the most likely token; higher values, up to 2, draw more freely."""
    top_k: int = 0
    """Keep only the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens that together reach this probability; 1 keeps all, 0 the best."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the best one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divide the logits of tokens seen in prompt or answer by this; 1 does nothing."""
    presence_penalty: float = 0.0
    """Subtract this from the logits of tokens already in the answer."""
    frequency_penalty: float = 0.0
    """Subtract this times the count of a token in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Add these amounts to the logits of these token ids."""
    min_tokens: int = 0
    """Let the model not end its text before this many new tokens; a grammar still can."""
    seed: int = 0
    """Names the noise that sampling uses: same seed, same text."""
    logprobs: int | None = None
    """Report log-probabilities with this many alternatives per token; None reports nothing."""

    def __post_init__(self) -> None:
        for name in ("top_k", "min_tokens", "seed"):
            _require_whole(name, getattr(self, name))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _require_number(name, getattr(self, name))
        allowed = f"from 0 to {MAX_TEMPERATURE}"
        is_allowed = 0 <= self.temperature <= MAX_TEMPERATURE
        _require(is_allowed, "temperature", self.temperature, allowed)
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 <= self.top_p <= 1, "top_p", self.top_p, "from 0 to 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _require(
            0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "from 0.01 to 100",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require_number(name, value)
            _require(-100 <= value <= 100, name, value, "from -100 to 100")
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "a mapping")
        for token_id, bias in self.logit_bias.items():
            _require_whole("logit_bias key", token_id)
            _require_number(f"logit_bias[{token_id}]", bias)
            _require(token_id >= 0, "logit_bias key", token_id, "a token id, 0 or more")
            _require(-100 <= bias <= 100, f"logit_bias[{token_id}]", bias, "from -100 to 100")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "from 0 to 2**64 - 1")
        if self.logprobs is not None:
            _require_whole("logprobs", self.logprobs)
            allowed = f"from 0 to {MAX_TOP_LOGPROBS}, or None"
            _require(0 <= self.logprobs <= MAX_TOP_LOGPROBS, "logprobs", self.logprobs, allowed)


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends."""

    max_tokens: int = 256
    """Stop after this many new tokens."""
    stop: tuple[str, ...] = ()
    """Stop when the answer contains one of these strings; it is cut off before the match."""
    ignore_eos: bool = False
    """Go on past the model's own end-of-text token (for measurements)."""

    def __post_init__(self) -> None:
        _require_whole("max_tokens", self.max_tokens)
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        are_strings = isinstance(self.stop, tuple) and all(isinstance(s, str) for s in self.stop)
        _require(are_strings, "stop", self.stop, "a tuple of strings")
        _require(len(self.stop) <= 16, "number of stop strings", len(self.stop), "at most 16")
        _require(all(self.stop), "stop", "''", "a string with at least one character")


def check_mtp(mtp: object) -> MtpMode:
    """Return `mtp` as a valid mode, or refuse it."""
    if mtp == "auto":
        return "auto"
    if mtp == "off":
        return "off"
    if isinstance(mtp, int) and not isinstance(mtp, bool) and 1 <= mtp <= MAX_DRAFT_TOKENS:
        return mtp
    raise RequestError(
        f"mtp is {mtp!r}.", f"Use 'auto', 'off', or a number of draft tokens 1…{MAX_DRAFT_TOKENS}."
    )


def _require_whole(name: str, value: object) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    _require(is_whole, name, value, "a whole number")


def _require_number(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(is_number, name, value, "a number")


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value!r}.", f"It must be {allowed}.")
