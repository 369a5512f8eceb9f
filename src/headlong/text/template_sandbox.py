"""A bounded sandbox for templates that come with a model, and so from a stranger.

In:  template source and the variables it may see.
Out: the text it writes, or a `TextError`: about the template, or because it ran past its bounds.
jinja2's sandbox keeps templates away from Python's insides; what is added here keeps them from
looping for ever and from filling memory. Knows nothing of messages or roles.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, meta, nodes, pass_eval_context
from jinja2.ext import Extension
from jinja2.filters import sync_do_join
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headlong.errors import TextError

MAX_STEPS = 300_000
"""How many times loop bodies and macros may run in one rendering."""

MAX_TEXT = 2**25
"""How long any text a template builds may be, the finished one included, in characters."""

_MAX_NUMBER = 2**20
_MAX_EXPONENT = 64
_TICK = "headlong_tick"
_WRITTEN = "headlong_written"
_HELD = "headlong_held"
_WIDE_PERCENT_FIELD = re.compile(r"%[^a-zA-Z%]*(\*|\d{6,})")
_WIDE_BRACE_FIELD = re.compile(r"\{[^{}]*(\{|\d{6,})")
_REMEDY = "Do not use this chat template; give the model a plain prompt, or get another copy."


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
        checks = {_TICK: budget.tick, _WRITTEN: budget.written, _HELD: _held}
        try:
            return self._template.render({**variables, **checks})
        except TextError:
            raise
        except TemplateError as error:
            problem = f"The model's chat template refuses these messages: {_sentence(error)}"
            raise TextError(problem, "Write them the way this model was made for.") from error
        except Exception as error:  # whatever else foreign code raises is about that code
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
            raise TextError(problem, _REMEDY)
        self._spend(num_characters)

    def written(self, value: Any) -> Any:
        """Count a value on its way into the text; containers count when they are turned to text."""
        if isinstance(value, (list, tuple, dict)):
            value = str(value)
        if isinstance(value, str):
            self._spend(len(value))
        return value

    def _spend(self, num_characters: int) -> None:
        self._characters -= num_characters
        if self._characters < 0:
            raise _too_much()


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: marks what to train on, and prints its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the two tags."""
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
        for name in ("center", "indent", "batch", "slice"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        own = {"format": _format, "replace": _replace, "join": _join}
        self.filters |= own | {"tojson": _with_small_numbers(_tojson)}

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something a template names: `"x".ljust(10 ** 9)` must not get its memory."""
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, (str, bytes, int, float)):
            _check_numbers(args, kwargs)
        if isinstance(receiver, str):
            _check_text_method(receiver, obj.__name__, args)
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute; `"{:>1000000000}".format` is refused before it is called."""
        if isinstance(obj, str) and attribute in ("format", "format_map"):
            _check_fields(_WIDE_BRACE_FIELD, obj)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `*`, `**` and `%` when the result is sure to be small."""
        if operator == "%" and isinstance(left, str):
            _check_fields(_WIDE_PERCENT_FIELD, left)
        elif operator == "**" and not (abs(left) <= _MAX_NUMBER and abs(right) <= _MAX_EXPONENT):
            raise _too_much()
        elif operator == "*" and not all(isinstance(x, (int, float)) for x in (left, right)):
            _check_product(*(x if isinstance(x, int) else len(x) for x in (left, right)))
        return super().call_binop(context, operator, left, right)


def _add_checks(tree: nodes.Template) -> None:
    """Count loop passes, macro calls and written text, and weigh what is put into variables."""
    blocks: list[nodes.For | nodes.Macro | nodes.CallBlock] = []
    blocks.extend(tree.find_all(nodes.For))
    blocks.extend(tree.find_all(nodes.Macro))
    blocks.extend(tree.find_all(nodes.CallBlock))
    for output in list(tree.find_all(nodes.Output)):
        output.nodes = [
            part if isinstance(part, nodes.TemplateData) else _call(_WRITTEN, part)
            for part in output.nodes
        ]
    for assignment in tree.find_all(nodes.Assign):
        assignment.node = _call(_HELD, assignment.node)
    for block in blocks:
        fixed = sum(len(data.data) for data in block.find_all(nodes.TemplateData))
        block.body.insert(0, nodes.ExprStmt(_call(_TICK, nodes.Const(fixed))))


def _call(name: str, argument: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), [argument], [], None, None)


def _held(value: Any) -> Any:
    """Pass a value on unless it has grown too large to keep."""
    if isinstance(value, (str, list, tuple, dict)) and len(value) > MAX_TEXT:
        raise _too_much()
    return value


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return function(*args, **kwargs)

    return checked


def _check_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(x, (int, float)) and abs(x) > _MAX_NUMBER for x in (*args, *kwargs.values())):
        raise _too_much()


def _check_fields(wide: re.Pattern[str], pattern: str) -> None:
    if wide.search(pattern):
        raise _too_much()


def _check_product(*sizes: int) -> None:
    if sizes[0] * sizes[1] > MAX_TEXT:
        raise _too_much()


def _check_text_method(text: str, method: str, args: tuple[Any, ...]) -> None:
    """Refuse the calls by which a text can grow to the product of two others."""
    if method == "join" and args and hasattr(args[0], "__len__"):
        _check_product(len(text), len(args[0]))
    elif method == "replace" and len(args) > 1:
        _check_product(len(text), len(args[1]))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    _check_product(len(str(text)), len(new))
    return str(text).replace(old, new, count)


@pass_eval_context
def _join(
    context: EvalContext, values: Iterable[Any], separator: str = "", attribute: str | None = None
) -> str:
    listed = list(values)
    _check_product(len(listed), len(separator))
    return sync_do_join(context, listed, separator, attribute)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _too_much() -> TextError:
    problem = f"The model's chat template asks for more than {MAX_TEXT} characters of memory."
    return TextError(problem, _REMEDY)


def _format(pattern: str, *args: Any, **kwargs: Any) -> str:
    _check_fields(_WIDE_PERCENT_FIELD, pattern)
    return str(pattern) % (kwargs or args)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which a model would read as noise.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
