"""Parts of an answer that the dialects read alike: log-probabilities, draft counts, the end.

In:  values that an engine sent. Out: ours; what cannot be is refused with `GarbledError`.
"""

from collections.abc import Mapping

from headlong.decode.logprobs import TopLogprob
from headlong.engine.request import FinishReason
from headlong.errors import EngineError
from headlong.fleet.fields import garbled, number

ENGINE = "engine"
"""Source of a draft token that an engine elsewhere accepted: it does not say what proposed it."""

_LEAST_LOGPROB = -9999.0
"""What vLLM writes for a token that cannot be."""


def best(values: Mapping[int, object], num: int) -> tuple[TopLogprob, ...]:
    """Return the likeliest tokens, best first; those that cannot be are left out."""
    tops = [TopLogprob(one, number(value, "logprob")) for one, value in values.items()]
    tops.sort(key=lambda top: (-top.logprob, top.token_id))
    return tuple(top for top in tops[:num] if top.logprob > _LEAST_LOGPROB)


def check_accepted(num_accepted: int, num_drafted: int) -> None:
    """Refuse statistics in which more stands than was drafted."""
    if num_accepted > num_drafted:
        raise garbled("number of accepted tokens", num_accepted, f"at most {num_drafted}")


def finish_reason(told: str | None) -> FinishReason | None:
    """Return OpenAI's reason as ours; an answer that was given up has none."""
    if told is None:
        return None
    if told in ("abort", "error"):
        raise EngineError("The engine gave the answer up.", "See its log.")
    if told not in (FinishReason.STOP, FinishReason.LENGTH):
        raise garbled("finish_reason", told, "stop or length")
    return FinishReason(told)
