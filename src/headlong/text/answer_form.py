"""The form of an answer: what a request says about JSON and tools, checked, as one thing.

In:  OpenAI's `tools`, `tool_choice`, `parallel_tool_calls` and `response_format`.
Out: the tools the model gets to see, and the grammar its answer has to follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.errors import RequestError
from headlong.text.given_grammar import given_grammar
from headlong.text.grammar import (
    TokenGrammar,
    given_form,
    json_schema_grammar,
    response_schema,
    tool_call_grammar,
)
from headlong.text.reasoning import Reasoning
from headlong.text.tokenizer import Tokenizer
from headlong.text.tools import ToolChoice, check_choice, check_tools


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer may be: free text, JSON, tool calls."""

    tools: Sequence[Mapping[str, Any]] | None
    """What may be called; None when nothing may, even if there were tools."""
    choice: ToolChoice
    parallel: bool
    schema: Mapping[str, Any] | None
    """Of an answer that is no call; None leaves it free."""
    source: str | None = None
    """A grammar that the caller wrote, of an answer where nothing may be called."""

    @property
    def tool_names(self) -> frozenset[str]:
        """What may be called, by name."""
        return frozenset(tool["function"]["name"] for tool in self.tools or ())

    def make_grammar(
        self, tokenizer: Tokenizer, reasoning: Reasoning | None = None
    ) -> TokenGrammar | None:
        """Return the grammar that holds the answer to this form; None when it is free.

        Where the model reasons first, the grammar begins behind that.
        """
        if self.tools is not None:
            return tool_call_grammar(
                tokenizer,
                self.tools,
                self.choice,
                parallel=self.parallel,
                answer_schema=self.schema,
                reasoning=reasoning,
            )
        if self.source is not None:
            return given_form(tokenizer, self.source, reasoning)
        if self.schema is None:
            return None
        return json_schema_grammar(tokenizer, self.schema, reasoning)


def read_form(options: Mapping[str, Any]) -> AnswerForm:
    """Check what `options` say about tools and JSON; what is missing or None has its default."""
    tools = options.get("tools") or None
    choice = check_choice(options.get("tool_choice"), {} if tools is None else check_tools(tools))
    if tools is None and choice == "required":
        problem = "tool_choice is 'required', but there are no tools."
        raise RequestError(problem, "Give some.", "tool_choice")
    response_format = options.get("response_format")
    schema = response_schema(response_format)
    source = given_grammar(response_format) if isinstance(response_format, Mapping) else None
    if source is not None and tools is not None and choice != "none":
        problem = "A pattern, choice or grammar was given together with tools."
        raise RequestError(problem, "Leave one of them out.", "response_format")
    return AnswerForm(
        tools=None if choice == "none" else tools,
        choice=choice,
        parallel=options.get("parallel_tool_calls") is not False,
        schema=schema,
        source=source,
    )
