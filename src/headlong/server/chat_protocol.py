"""The body of `/v1/chat/completions`: messages, tools, response format.

In:  the parsed JSON of a body. Out: a checked `ChatBody`. How messages and tools are written for
the model is known in `text/`; here only their shape is checked.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from headlong.config import MAX_TOP_LOGPROBS
from headlong.server.protocol import Body, GenerateBody
from headlong.text.chat_template import ChatOptions

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,64}$")]


class TextPart(Body):
    """A piece of a message; text is the only kind these models read."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """The function an earlier answer called."""

    name: str
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(Body):
    """A call an earlier answer made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="No effect here; clients send it back.")


Content: TypeAlias = str | Annotated[list[TextPart], Field(min_length=1)]


class _Message(Body):
    """What all messages may carry; many clients send every field, with null for nothing."""

    role: str
    content: Content | None
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, description="Of assistant messages.")
    tool_call_id: str | None = Field(None, description="Of tool messages.")
    refusal: str | None = Field(None, description="No effect here; clients send it back.")
    annotations: list[Any] | None = Field(None, description="No effect here.")
    audio: dict[str, Any] | None = Field(None, description="No effect here.")
    function_call: None = Field(None, description="OpenAI's old form: give tool_calls instead.")

    def to_template(self) -> dict[str, Any]:
        """Return the message as the chat template takes it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if isinstance(self.content, list):
            message["content"] = [part.model_dump() for part in self.content]
        if self.content is None and not self.tool_calls:
            message["content"] = ""
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude={"index"}) for call in self.tool_calls]
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message


class SaidMessage(_Message):
    """A message to the model."""

    role: Literal["system", "developer", "user", "tool"]
    content: Content


class AssistantMessage(_Message):
    """An earlier answer, in words or calls."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = Field(
        None, description="What was thought before it; the chat template keeps or drops it."
    )
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")

    def to_template(self) -> dict[str, Any]:
        """Return the message as the chat template takes it."""
        thought = self.reasoning_content or self.reasoning
        return super().to_template() | ({"reasoning_content": thought} if thought else {})


ChatMessage = Annotated[SaidMessage | AssistantMessage, Field(discriminator="role")]


class FunctionSpec(Body):
    """A function the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema.")
    strict: bool | None = Field(
        None, description="Allow only named properties; refuse what cannot be followed whole."
    )


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Body):
    """Names a function."""

    name: FunctionName


class NamedTool(Body):
    """Demands a call of one function."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    """The schema an answer must follow."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Allow no properties but the named ones.")


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


_FORM = {"tools", "tool_choice", "parallel_tool_calls", "response_format"}


class ChatBody(GenerateBody):
    """A chat request."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(
        None, ge=1, description="New tokens at most. Default: what the context has left."
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="Newer name of max_tokens.")
    logprobs: bool | None = Field(None, description="Give each token's log-probability.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="Alternatives per token; needs logprobs."
    )
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        None, description="Default: auto where there are tools."
    )
    parallel_tool_calls: bool | None = Field(None, description="Default: true.")
    response_format: ResponseFormat | None = None
    audio: dict[str, Any] | None = Field(None, description="No effect here.")
    metadata: dict[str, Any] | None = Field(None, description="No effect here.")
    modalities: list[str] | None = Field(None, description="No effect here: answers are text.")
    prediction: dict[str, Any] | None = Field(None, description="No effect here.")
    moderation: dict[str, Any] | None = Field(None, description="No effect here.")
    prompt_cache_key: str | None = Field(None, description="No effect here.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="No effect here.")
    prompt_cache_retention: str | None = Field(None, description="No effect here.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        Field(
            None,
            description="none: answer at once; else reason first, as far as the chat template reads"
            " it. Only of models that reason.",
        )
    )
    enable_thinking: bool | None = Field(
        None, description="Reason before the answer, or not. Default: the chat template's."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the chat template, such as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(
        None, description="End the prompt with the words after which the model answers: true."
    )
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message, an assistant's, instead of answering it."
    )
    include_reasoning: bool | None = Field(
        None, description="Give what the model thinks before it answers. Default: true."
    )
    reasoning_format: Literal["auto", "deepseek", "none"] | None = Field(
        None, description="none leaves reasoning in the content, tags included. Default: auto."
    )
    safety_identifier: str | None = Field(None, description="No effect here.")
    service_tier: str | None = Field(None, description="No effect here.")
    store: bool | None = Field(None, description="No effect here.")
    verbosity: str | None = Field(None, description="No effect here.")
    web_search_options: dict[str, Any] | None = Field(None, description="No effect here.")

    functions: None = Field(None, description="OpenAI's old form: give tools instead.")
    function_call: None = Field(None, description="OpenAI's old form: give tool_choice instead.")

    def form_options(self) -> dict[str, Any]:
        """Return what `text.output_constraint` reads: tools and the form of the answer."""
        return self.model_dump(include=_FORM, by_alias=True, exclude_none=True)

    def template_options(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatOptions:
        """Return how the messages are to be written for the model."""
        effort, think = self.reasoning_effort, self.enable_thinking
        if think is None and effort is not None:
            think = effort != "none"
        named = {} if effort in (None, "none") else {"reasoning_effort": effort}
        return ChatOptions(
            tools,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            think=think,
            kwargs=named | (self.chat_template_kwargs or {}),
        )

    def warnings(self) -> list[str]:
        """Say which of the given fields do nothing."""
        idle = () if self.tools else ("tool_choice", "parallel_tool_calls")
        given = [name for name in idle if getattr(self, name) is not None]
        return super().warnings() + [f"{name} has no effect without tools." for name in given]
