"""Grammars: what an answer must look like, compiled for one model's tokens.

In:  "any JSON object", a JSON schema, or tools that may be called.
Out: a `TokenGrammar`, which fits `decode.constraint.Grammar` without knowing it.
llguidance does the parsing. JSON with a schema is written on one line, as Python's `json.dumps`
writes it: no model can lose itself in white space, and commas, quotes and keys are forced, so they
can be drafted for free. After the last bracket only the end of text is allowed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headlong.errors import RequestError
from headlong.text.grammar_rules import (
    HEADER,
    answer_rules,
    behind_reasoning,
    call_head,
    calls_rules,
)
from headlong.text.grammar_state import GrammarState
from headlong.text.json_schemas import (
    ANSWER,
    ANY_OBJECT,
    Owner,
    closed_schema,
    find_fault,
    written_schema,
)
from headlong.text.reasoning import Reasoning
from headlong.text.repeated_calls import RepeatBound
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from headlong.text.tools import ToolChoice, ToolStyle, check_tools, named_tools, parameters_param
from headlong.text.user_grammar import USER_GRAMMAR_KINDS

if TYPE_CHECKING:  # loaded with the first grammar: 50 ms and 4 MB that free text can do without
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_KEPT = 64
"""Compiled grammars kept per tokenizer: schemas come back with every request of an application."""

MAX_CALLS = 16
"""Tool calls in one answer; a model that never stops calling is stopped."""

MAX_STATES = 50_000
"""Of the lexer, some hundred megabytes at most: patterns can be written that never end."""

STEP_FUEL = 20_000_000
"""Of the lexer in one step, more than all states take: a step is dearer where less was read ahead,
so a bound that it came to would let drafts decide where an answer ends."""


@dataclass(frozen=True, slots=True)
class TokenGrammar:
    """A compiled grammar; any number of answers may follow it."""

    _pristine: "LLMatcher"
    _make_matcher: Callable[[], "LLMatcher"]
    _vocab_size: int
    _eos_ids: frozenset[int]
    _bound: RepeatBound | None
    _make_spread: Callable[[], "TokenGrammar"]
    """Compiles a JSON schema with any white space."""
    source: str
    """What it was compiled from: a JSON schema, or llguidance's Lark."""
    warnings: tuple[str, ...] = ()
    """What of its schemas is not followed, in whole sentences."""

    def begin(self) -> GrammarState:
        """Return the state of an answer that has said nothing yet."""
        matchers = (self._pristine.deep_copy(), self._make_matcher)
        return GrammarState(*matchers, self._vocab_size, self._eos_ids, self._bound)

    def begin_spread(self) -> GrammarState:
        """Return the same for JSON that others write, with white space as they like."""
        return (self._make_spread() if self.source.startswith("{") else self).begin()


def prepare_grammars(tokenizer: Tokenizer) -> None:
    """Build the tokenizer's table of tokens ahead of the first grammar, if it can have any."""
    if tokenizer.eos_ids:
        _compiler_of(tokenizer)


def json_schema_grammar(
    tokenizer: Tokenizer, schema: Mapping[str, Any], reasoning: Reasoning | None = None
) -> TokenGrammar:
    """Return the grammar of everything that `schema` describes, or say what it cannot follow."""
    source = written_schema(schema, ANSWER)
    parts = ((ANSWER, source),)
    return _compiler_of(tokenizer).compile(behind_reasoning(source, reasoning), parts)


def compile_user_grammar(
    tokenizer: Tokenizer, source: str, reasoning: Reasoning | None
) -> TokenGrammar:
    """Compile a grammar given by the caller; it applies after the reasoning."""
    return _compiler_of(tokenizer).compile(behind_reasoning(source, reasoning), ())


def response_schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the JSON schema in OpenAI's `response_format`; None for free text."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind in ("text", *USER_GRAMMAR_KINDS):
        return None
    if kind == "json_object":
        return ANY_OBJECT
    named = response_format.get("json_schema") if kind == "json_schema" else None
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(named, Mapping) or not isinstance(schema, Mapping):
        raise RequestError(
            f"response_format is {response_format!r}.",
            "Use {'type': 'text'}, {'type': 'json_object'}, or {'type': 'json_schema', "
            "'json_schema': {'name': …, 'schema': {…}}}.",
            ANSWER.param if kind == "json_schema" else "response_format",
        )
    return closed_schema(schema) if named.get("strict") else schema


def tool_call_grammar(
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice = "auto",
    *,
    parallel: bool = True,
    answer_schema: Mapping[str, Any] | None = None,
    reasoning: Reasoning | None = None,
) -> TokenGrammar:
    """Return the grammar of calls to `tools`.

    Args:
        tokenizer: Whose tokens; its chat template says how the model writes calls.
        tools: Shaped as in OpenAI's API.
        choice: "auto" lets the model answer or call; what begins as a call must then be a valid
            one, as far as its schema can be followed or is strict. "required" and a named function
            leave it no answer.
        parallel: Whether there may be several calls; one that says word for word what an earlier
            one said is then the last.
        answer_schema: What an answer that is no call must look like; None leaves it free.
        reasoning: How the answer reasons first; what it says there is not held to anything.
    """
    style = tokenizer.tool_style
    max_calls = MAX_CALLS if parallel and isinstance(choice, str) else 1
    checked = check_tools(tools)
    owners = {
        name: Owner(
            f"Tool {name!r}",
            parameters_param(place),
            is_lenient=choice == "auto" and not tools[place]["function"].get("strict"),
        )
        for place, name in enumerate(checked)
    }
    schemas = {
        name: written_schema(parameters, owners[name])
        for name, parameters in named_tools(checked, choice).items()
    }
    answer = None if answer_schema is None else written_schema(answer_schema, ANSWER)
    rules = [
        HEADER,
        *calls_rules(style, max_calls),
        *answer_rules(style, answer, choice, reasoning),
        "call: " + " | ".join(f"call_{place}" for place in range(len(schemas))),
        *(
            f'call_{place}: {call_head(name, style)} %json {schema} "}}"'
            for place, (name, schema) in enumerate(schemas.items())
        ),
    ]
    parts = [(owners[name], schema) for name, schema in schemas.items()]
    parts += [] if answer is None else [(ANSWER, answer)]
    tagged = style if style.opening and max_calls > 1 else None
    source = behind_reasoning("\n".join(rules), reasoning)
    return _compiler_of(tokenizer).compile(source, tuple(parts), tagged, reasoning)


def _refusal(parts: Sequence[tuple[Owner, str]], problem: str) -> RequestError:
    """Return why a grammar cannot be compiled, with the part and the place at fault."""
    from llguidance import LLMatcher

    for owner, schema in parts:
        grammar = LLMatcher.grammar_from_json_schema(schema)
        is_error, found = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
        if is_error:
            where = find_fault(json.loads(schema), found[0])
            place = f" at {where}" if where else ""
            return RequestError(
                f"{owner.whose} cannot be followed{place}: {_short(found[0])}",
                "Leave it out or write it another way; docs/structured-output.md lists what works.",
                owner.param,
            )
    problem = f"The grammar cannot be compiled: {_short(problem)}"
    return RequestError(problem, "Use simpler schemas.", _only_param(parts))


def _warnings(parts: Sequence[tuple[Owner, str]]) -> Iterator[str]:
    """Yield what is not followed of the schemas that may be followed in part."""
    from llguidance import LLMatcher

    for owner, schema in parts:
        if not owner.is_lenient:
            continue
        grammar = LLMatcher.grammar_from_json_schema(schema)
        for problem in LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())[1]:
            where = find_fault(json.loads(schema), problem)
            place = f" at {where}" if where else ""
            yield f"{owner.whose} is followed only in part{place}: {_short(problem)}"


def _only_param(parts: Sequence[tuple[Owner, str]]) -> str | None:
    """Return the field at fault where there is but one."""
    return parts[0][0].param if len(parts) == 1 else None


class _Compiler:
    """Compiles grammars for one tokenizer and keeps the last ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._table: LLTokenizer = make_token_table(tokenizer)
        self._eos_ids = tokenizer.eos_ids
        self.compile = lru_cache(MAX_KEPT)(self._compile)

    def _compile(
        self,
        source: str,
        parts: tuple[tuple[Owner, str], ...],
        repeated: ToolStyle | None = None,
        reasoning: Reasoning | None = None,
    ) -> TokenGrammar:
        """Return the grammar written in `source`, a JSON schema or llguidance's Lark.

        One that cannot even begin is refused here, not in the engine. `parts` are the schemas in it
        with their owners; `repeated` is how calls are written that may follow one another, after
        `reasoning`.
        """
        from llguidance import LLMatcher

        is_schema = source.startswith("{")
        grammar = LLMatcher.grammar_from_json_schema(source) if is_schema else source

        def make_matcher() -> LLMatcher:
            return LLMatcher(self._table, grammar, log_level=0, limits=_limits())

        matcher = make_matcher()
        if matcher.is_error():
            raise _refusal(parts, matcher.get_error())
        bound = None
        if repeated is not None:
            opening, closing = f"{repeated.opening}\n", f"\n{repeated.closing}"
            spell = self._table.decode_bytes
            bound = RepeatBound(opening.encode(), closing.encode(), spell, reasoning)
        warnings = tuple(_warnings(parts))
        vocab_size = self._table.vocab_size
        make_spread = partial(self._compile_spread, source, parts)
        compiled = TokenGrammar(
            matcher, make_matcher, vocab_size, self._eos_ids, bound, make_spread, source, warnings
        )
        state = compiled.begin()
        try:
            state.forced()
            state.mask()
        except RequestError as error:
            raise RequestError(error.problem, error.remedy, _only_param(parts)) from error
        return compiled

    def _compile_spread(self, source: str, parts: tuple[tuple[Owner, str], ...]) -> TokenGrammar:
        """Return the grammar of a JSON schema whose answers may have any white space."""
        schema = json.loads(source)
        schema["x-guidance"] = {"lenient": schema["x-guidance"].get("lenient", False)}
        rules = ["start: SPACE json SPACE", f"json: %json {json.dumps(schema)}"]
        return self.compile("\n".join([HEADER, *rules, r"SPACE: /[ \t\r\n]*/"]), parts)


_compilers: WeakKeyDictionary[Tokenizer, _Compiler] = WeakKeyDictionary()
_compilers_lock = Lock()


def _compiler_of(tokenizer: Tokenizer) -> _Compiler:
    """Return the tokenizer's compiler; its table of tokens takes a moment to build, once."""
    with _compilers_lock:
        if tokenizer not in _compilers:
            _compilers[tokenizer] = _Compiler(tokenizer)
        return _compilers[tokenizer]


def _limits() -> "LLParserLimits":
    """Return bounds on time and memory; errors are not to quote the whole schema."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=MAX_STATES, step_lexer_fuel=STEP_FUEL, verbose_errors=False
    )


def _short(problem: str) -> str:
    """Return a complaint of the parser as the end of a sentence."""
    line = " ".join(problem.replace("<non-verbose/>", "").split())
    return f"{line.rstrip('.')}." if len(line) <= 300 else line[:299] + "…"
