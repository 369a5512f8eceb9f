"""A request as the engine gets it: token ids and parameters, no text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.constraint import Grammar
from headlong.decode.pooling import Pooling
from headlong.errors import RequestError


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, as asked for."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stopping: StopParams = field(default_factory=StopParams)
    mtp: MtpMode = "auto"
    eos_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    """What the answer must look like; None leaves it free."""
    prompt_logprobs: int | None = None
    """Report how likely each prompt token was, with so many alternatives; None reports nothing."""
    pooling: Pooling | None = None
    """Report one vector for the whole prompt; None reports nothing."""
    cache_salt: str = ""
    """Only requests with the same salt share what they have run."""

    @property
    def reads_all_rows(self) -> bool:
        """Whether every row of the prompt has to run, also those that others have run."""
        return self.prompt_logprobs is not None or self.pooling is not None


def check_prompt(prompt_ids: Sequence[int], context_length: int, vocab_size: int) -> None:
    """Refuse a prompt that is empty, too long, or of unknown tokens."""
    length = len(prompt_ids)
    if not length:
        raise RequestError("The prompt is empty.", "Give at least one token.")
    if length >= context_length:
        raise RequestError(
            f"The prompt has {length} tokens; the model's context holds {context_length}.",
            f"Shorten it to at most {context_length - 1} tokens.",
        )
    unknown = [t for t in prompt_ids if not 0 <= t < vocab_size]
    if unknown:
        raise RequestError(
            f"Token id {unknown[0]} is not in the vocabulary.",
            f"Ids go from 0 to {vocab_size - 1}.",
        )
