"""What other protocols share on their way to a chat request: bodies, drafts, warnings.

In:  a body of Anthropic's, OpenAI's newer, Ollama's or llama.cpp's API.
Out: a `ChatBody`. Their clients send fields that mean nothing here and change often, so an unknown
     field is no reason to refuse a request: it is named in `warnings`.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from headlong.server.protocol import Body, DraftFields, GenerateBody
from headlong.server.refusal import bad_request

BodyT = TypeVar("BodyT", bound=GenerateBody)


class OpenPart(Body):
    """A record inside such a body; fields that it does not name are left alone."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class OpenBody(DraftFields):
    """A body that takes more than it names; every one can say how to draft."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def draft_fields(self) -> dict[str, Any]:
        """Return what the body says of drafts, as the inner request takes it."""
        names = set(DraftFields.model_fields)
        return self.model_dump(include=names, by_alias=True, exclude_none=True)

    def open_warnings(self) -> list[str]:
        """Say which of the given fields do nothing."""
        return [f"{name} has no effect here." for name in self.model_extra or {}]


def inner_body(kind: type[BodyT], fields: Mapping[str, Any]) -> BodyT:
    """Return the request that another protocol's fields amount to; None means not given."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        message = f"The request means {place}: {first['input']!r}. {first['msg']}."
        raise bad_request(message[:500], place, "invalid_value") from error


def text_of(content: Any, param: str) -> str:
    """Return the text of content that is a text or a list of parts; refuse pictures and files."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for place, part in enumerate(content):
        text = getattr(part, "text", None)
        if not isinstance(text, str):
            kind = getattr(part, "type", "unknown")
            message = f"{param}[{place}] has the type {kind!r}. Only text can be read here."
            raise bad_request(message, f"{param}[{place}]", "invalid_value")
        texts.append(text)
    return "\n".join(texts)
