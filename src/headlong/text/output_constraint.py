"""The constraint on an answer that a request's JSON and tool options amount to.

In:  OpenAI's `tools`, `tool_choice`, `parallel_tool_calls` and `response_format`.
Out: the tools that the model is shown, and the grammar that its answer must follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.errors import RequestError
from headlong.text.grammar import (
    TokenGrammar,
    compile_user_grammar,
    json_schema_grammar,
    response_schema,
    tool_call_grammar,
)
from headlong.text.reasoning import Reasoning
from headlong.text.tokenizer import Tokenizer
from headlong.text.tools import ToolChoice, check_choice, check_tools
from headlong.text.user_grammar import user_grammar


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """What an answer may be: free text, JSON, tool calls."""

    tools: Sequence[Mapping[str, Any]] | None
    """Tools that may be called; None if none may, also when tools were given."""
    choice: ToolChoice
    parallel: bool
    schema: Mapping[str, Any] | None
    """Schema of an answer without calls; None if it is free."""
    source: str | None = None
    """A grammar given by the caller, for an answer without calls."""

    @property
    def tool_names(self) -> frozenset[str]:
        """Names of the tools that may be called."""
        return frozenset(tool["function"]["name"] for tool in self.tools or ())

    def make_grammar(
        self, tokenizer: Tokenizer, reasoning: Reasoning | None = None
    ) -> TokenGrammar | None:
        """Return the grammar of this constraint; None if the answer is free.

        If the model reasons first, the grammar begins after the reasoning.
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
            return compile_user_grammar(tokenizer, self.source, reasoning)
        if self.schema is None:
            return None
        return json_schema_grammar(tokenizer, self.schema, reasoning)


def read_constraint(options: Mapping[str, Any]) -> OutputConstraint:
    """Check the options about tools and JSON; missing ones and None have their defaults."""
    tools = options.get("tools") or None
    choice = check_choice(options.get("tool_choice"), {} if tools is None else check_tools(tools))
    if tools is None and choice == "required":
        problem = "tool_choice is 'required', but there are no tools."
        raise RequestError(problem, "Give some.", "tool_choice")
    response_format = options.get("response_format")
    schema = response_schema(response_format)
    source = user_grammar(response_format) if isinstance(response_format, Mapping) else None
    if source is not None and tools is not None and choice != "none":
        problem = "A pattern, choice or grammar was given together with tools."
        raise RequestError(problem, "Leave one of them out.", "response_format")
    return OutputConstraint(
        tools=None if choice == "none" else tools,
        choice=choice,
        parallel=options.get("parallel_tool_calls") is not False,
        schema=schema,
        source=source,
    )
