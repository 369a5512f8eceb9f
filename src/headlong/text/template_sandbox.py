"""A bounded sandbox for templates that come with a model, and so from a stranger.

In:  template source and the variables it may see.
Out: the text it writes, or a `TextError`: about the template, or because it ran past its bounds.
jinja2's sandbox keeps templates away from Python's insides; what is added here keeps them from
looping for ever and from filling memory. Knows nothing of messages or roles.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes, pass_eval_context
from jinja2.ext import Extension
from jinja2.filters import do_indent, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headlong.errors import TextError
from headlong.text.template_bounds import (
    BRACE_FIELD,
    MAX_EXPONENT,
    MAX_NUMBER,
    MAX_TEXT,
    REMEDY,
    WIDE_BRACE_FIELD,
    check_fields,
    check_numbers,
    check_percent,
    check_product,
    check_repetition,
    check_text_method,
    held,
    too_much,
    weigh,
    weighed,
    with_small_numbers,
    with_small_results,
    with_small_texts,
)

MAX_STEPS = 300_000
"""How many times loop bodies and macros may run in one rendering."""

_MAX_JSON_INDENT = 16
_TICK = "headlong_tick"
_WRITTEN = "headlong_written"
_HELD = "headlong_held"
_WEIGHED = "headlong_weighed"
_TEXT_FILTERS = (
    *("string", "upper", "lower", "capitalize", "title", "trim", "escape", "e", "forceescape"),
    *("safe", "striptags", "urlencode", "center", "truncate", "wordcount", "sum", "filesizeformat"),
)
_UNBOUNDED_FILTERS = ("wordwrap", "urlize", "xmlattr", "pprint")


class BoundedTemplate:
    """One compiled template; every rendering has its own budget."""

    def __init__(self, source: str) -> None:
        environment = _BoundedEnvironment()
        try:
            tree = environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            """The names the template reads from outside."""
            _add_checks(tree)
            self._template = environment.from_string(tree)
        except (TemplateError, RecursionError) as error:
            problem = f"The model's chat template is not valid: {_sentence(error)}"
            raise TextError(problem, "Give the model a plain prompt instead.") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Fill in the template, or say what it objected to."""
        budget = _Budget()
        checks = {_TICK: budget.tick, _WRITTEN: budget.written, _HELD: held, _WEIGHED: weighed}
        try:
            return self._template.render({**variables, **checks})
        except TextError:
            raise
        except TemplateError as error:
            problem = f"The model's chat template refuses these messages: {_sentence(error)}"
            raise TextError(problem, "Write them the way this model was made for.") from error
        except Exception as error:  # any other exception is the template's fault
            problem = f"The model's chat template failed: {type(error).__name__}: "
            remedy = "Check that each message has what this model expects."
            raise TextError(problem + _sentence(error), remedy) from error


class _Budget:
    """What one rendering has left."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._characters = MAX_TEXT

    def tick(self, num_characters: int) -> None:
        """Count one run of a block that writes this many fixed characters."""
        self._steps -= 1
        if self._steps < 0:
            problem = f"The model's chat template took more than {MAX_STEPS} steps."
            raise TextError(problem, REMEDY)
        self._spend(num_characters)

    def written(self, value: Any) -> Any:
        """Count a value on its way into the text; containers count when they are turned to text."""
        weight = weigh(value)
        if isinstance(value, (list, tuple, dict)):
            value = str(value)
            weight = len(value)
        self._spend(weight)
        return value

    def _spend(self, num_characters: int) -> None:
        self._characters -= num_characters
        if self._characters < 0:
            raise too_much()


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: marks what to train on, and prints its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The dialect of Hugging Face chat templates, with numbers and sizes kept small."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        for name in _TEXT_FILTERS:
            self.filters[name] = with_small_texts(self.filters[name])
        self.filters["map"] = with_small_results(self.filters["map"])
        for name in ("center", "batch", "slice"):
            self.filters[name] = with_small_numbers(self.filters[name])
        own = {"format": _format, "replace": _replace, "join": _join, "indent": _indent}
        self.filters |= own | {"tojson": _tojson}

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something a template names: `"x".ljust(10 ** 9)` must not get its memory."""
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, (str, int, float)):
            check_numbers(args, kwargs)
        if isinstance(receiver, bytes):
            raise too_much()  # no template needs their methods, and each could grow them
        if isinstance(receiver, str):
            if obj.__name__ == "join" and args and not isinstance(args[0], Collection):
                args = (list(args[0]),)  # a generator could not be weighed and then still be read
            check_text_method(receiver, obj.__name__, args)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a `str.format` that refuses `"{:>1000000000}"` and the like, or None."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        inner, pattern = wrapped, str(value.__self__)

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_fields(WIDE_BRACE_FIELD, BRACE_FIELD, pattern)
            check_product(pattern.count("{"), weigh([args, kwargs]))
            return inner(*args, **kwargs)

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `*`, `**` and `%` when the result is sure to be small."""
        if operator == "%" and isinstance(left, (str, bytes)):
            check_percent(left, right)
        elif operator == "**" and not (abs(left) <= MAX_NUMBER and abs(right) <= MAX_EXPONENT):
            raise too_much()
        elif operator == "*" and not isinstance(left, float) and not isinstance(right, float):
            check_repetition(left, right)
        return super().call_binop(context, operator, left, right)


def _add_checks(tree: nodes.Template) -> None:
    """Count loop passes, macro calls and written text, and measure what is put into variables."""
    blocks: list[nodes.For | nodes.Macro | nodes.CallBlock] = []
    blocks.extend(tree.find_all(nodes.For))
    blocks.extend(tree.find_all(nodes.Macro))
    blocks.extend(tree.find_all(nodes.CallBlock))
    for output in list(tree.find_all(nodes.Output)):
        output.nodes = [
            part if isinstance(part, nodes.TemplateData) else _call(_WRITTEN, part)
            for part in output.nodes
        ]
    for joined in tree.find_all(nodes.Concat):
        joined.nodes = [_call(_WEIGHED, part) for part in joined.nodes]
    for assignment in tree.find_all(nodes.Assign):
        assignment.node = _call(_HELD, assignment.node)
    for block in blocks:
        fixed = sum(len(data.data) for data in block.find_all(nodes.TemplateData))
        block.body.insert(0, nodes.ExprStmt(_call(_TICK, nodes.Const(fixed))))


def _call(name: str, argument: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), [argument], [], None, None)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    weigh(text)
    check_product(len(str(text)), len(new))
    return str(text).replace(old, new, count)


@pass_eval_context
def _join(
    context: EvalContext, values: Iterable[Any], separator: str = "", attribute: str | None = None
) -> str:
    listed = list(values)
    check_product(len(listed), weigh(separator))
    weigh(listed)
    return sync_do_join(context, listed, separator, attribute)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _format(pattern: str, *args: Any, **kwargs: Any) -> str:
    check_percent(str(weighed(pattern)), kwargs or args)
    return str(pattern) % (kwargs or args)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    weigh(text)
    check_product(str(text).count("\n") + 1, len(width) if isinstance(width, str) else width)
    return do_indent(text, width, first, blank)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    weigh(value)
    if isinstance(indent, str) or (indent or 0) > _MAX_JSON_INDENT or weigh(separators) > 99:
        raise too_much()
    # jinja2's own filter escapes <, > and & for HTML, which a model would read as noise.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
