"""What mlx-lm passes as functions over logits: samplers and logits processors, as named options.

In:  mlx-lm's arguments.
Out: objects that say what they do, so that drafts are verified with the very same noise. Functions
     of one's own are refused: they could not be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headlong.errors import RequestError


@dataclass(frozen=True, slots=True)
class NamedOptions:
    """Options of a generation that a sampler or a logits processor stands for."""

    options: Mapping[str, Any] = field(default_factory=dict)


def make_sampler(
    temp: float = 0.0,
    top_p: float = 0.0,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    top_k: int = 0,
    xtc_probability: float = 0.0,
    **others: Any,
) -> NamedOptions:
    """Return a sampler for `generate`, with mlx-lm's arguments.

    Filters see probabilities after the temperature; in mlx-lm they see those before it.
    """
    _refuse_others(others, ("xtc_threshold", "xtc_special_tokens"))
    if xtc_probability:
        raise RequestError("xtc_probability is not supported.", "Use top_p, min_p or top_k.")
    if min_tokens_to_keep != 1:
        problem = f"min_tokens_to_keep is {min_tokens_to_keep!r}."
        raise RequestError(problem, "It is always 1: the best token is never filtered out.")
    share = 1.0 if top_p == 0 else top_p  # mlx-lm's 0 keeps all
    return NamedOptions({"temperature": temp, "top_p": share, "min_p": min_p, "top_k": top_k})


def make_logits_processors(
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int | None = None,
    presence_penalty: float | None = None,
    presence_context_size: int | None = None,
    frequency_penalty: float | None = None,
    **others: Any,
) -> list[NamedOptions]:
    """Return logits processors for `generate`, with mlx-lm's arguments.

    Penalties look at the whole text, not at a window of it.
    """
    _refuse_others(others, ("frequency_context_size",))
    penalties = {
        "repetition": (repetition_penalty, repetition_context_size),
        "presence": (presence_penalty, presence_context_size),
        "frequency": (frequency_penalty, others.get("frequency_context_size")),
    }
    options: dict[str, Any] = {"logit_bias": logit_bias} if logit_bias else {}
    for name, (penalty, window) in penalties.items():
        if not penalty:
            continue
        if window is not None:
            problem = f"{name}_context_size is {window!r}; penalties look at the whole text here."
            raise RequestError(problem, "Leave it out.")
        options[f"{name}_penalty"] = penalty
    return [NamedOptions(options)] if options else []


def named_options(sampler: Any, processors: Any) -> dict[str, Any]:
    """Return what a sampler and logits processors stand for; refuse functions."""
    options: dict[str, Any] = {}
    given = [("sampler", sampler, "make_sampler"), *_each(processors)]
    for what, one, maker in given:
        if one is None:
            continue
        if not isinstance(one, NamedOptions):
            raise RequestError(
                f"{what} holds {one!r}, whose work cannot be repeated for drafts.",
                f"Make it with headlong.{maker}, or give temperature, top_p, logit_bias, … "
                "themselves.",
            )
        options |= one.options
    return options


def _each(processors: Any) -> list[tuple[str, Any, str]]:
    listed = processors if isinstance(processors, Sequence) else [processors]
    return [("logits_processors", one, "make_logits_processors") for one in listed]


def _refuse_others(others: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [name for name in others if name not in known]
    if unknown:
        raise RequestError(f"Unknown option {unknown[0]!r}.", "Use the arguments of mlx-lm.")
