"""A request as the engine gets it: token ids and parameters, no text."""

from dataclasses import dataclass, field

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.constraint import Grammar
from headlong.decode.pooling import Pooling


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
