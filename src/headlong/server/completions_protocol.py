"""What `/v1/completions` takes: one or many prompts, as text or token ids.

In:  the parsed JSON of a body. Out: a checked `CompletionBody`.
"""

from typing import Annotated

from pydantic import Field

from headlong.server.protocol import GenerateBody, TokenId

MAX_LOGPROBS = 20
MAX_PROMPTS = 64

TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenIdLists = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionBody(GenerateBody):
    """A plain completion request: the text goes on where the prompt ends."""

    prompt: str | TokenIds | Texts | TokenIdLists
    max_tokens: int | None = Field(None, ge=1, description="New tokens at most. Default: 16.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Give each token's log-probability, with so many alternatives.",
    )
    echo: bool | None = Field(
        None, description="Begin the text with the prompt; not together with logprobs."
    )
    best_of: int | None = Field(
        None, ge=1, description="Only as many as `n`: all that is generated is returned."
    )
    suffix: None = Field(None, description="Not supported: the model cannot fill in the middle.")

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if all(isinstance(item, int) for item in given):
            return [[item for item in given if isinstance(item, int)]]
        return [item for item in given if not isinstance(item, int)]
