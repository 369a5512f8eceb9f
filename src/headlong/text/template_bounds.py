"""How large what a template builds may become.

In:  values on their way into a text, and what is about to be done with them.
Out: nothing, or a `TextError` before the memory is taken.
Sizes are found without building anything. Knows nothing of templates' language.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from jinja2.utils import Namespace

from headlong.errors import TextError

MAX_TEXT = 2**25
"""How long any text a template builds may be, the finished one included, in characters."""

_MAX_REPEATED = 10_000
"""How long a list or tuple may become by `*`; its elements may be large, and are not copied."""

MAX_NUMBER = 2**20
_MAX_BITS = 4096
_ELEMENT = 32
"""What an element of a list counts in addition to its own text, in characters."""

MAX_EXPONENT = 64
_WIDE_PERCENT_FIELD = re.compile(r"%[^a-zA-Z%]*(\*|\d{6,})")
_PERCENT_FIELD = re.compile(r"%[^a-zA-Z%]*")
_NUMBER = re.compile(r"\d+")
BRACE_FIELD = re.compile(r"\{[^{}]*")
WIDE_BRACE_FIELD = re.compile(r"\{[^{}]*(\{|\d{6,})")
_UNBOUNDED_METHODS = ("expandtabs", "translate")
REMEDY = "Do not use this chat template; give the model a plain prompt, or get another copy."


def weigh(value: Any) -> int:
    """Return about how many characters a value has as text; refuse what is too much.

    An element that a list holds a thousand times counts a thousand times, as it would be written.
    """
    weight, pending = 0, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, Namespace):
            one = object.__getattribute__(one, "__dict__")
        if isinstance(one, (str, bytes)):
            weight += len(one)
        elif isinstance(one, Collection) and not isinstance(one, range):
            weight += _ELEMENT * len(one)
            if weight <= MAX_TEXT:
                pending.extend(one)
                pending.extend(one.values() if isinstance(one, Mapping) else ())
        if weight > MAX_TEXT:
            raise too_much()
    return weight


def weighed(value: Any) -> Any:
    """Pass a value on unless its text would be too long."""
    weigh(value)
    return value


def held(value: Any) -> Any:
    """Pass a value on unless it has grown too large to keep."""
    if isinstance(value, (str, list, tuple, dict)) and len(value) > MAX_TEXT:
        raise too_much()
    return value


def with_small_texts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses values whose text would be too long."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            weigh(value)
        return function(*args, **kwargs)

    return checked


def with_small_results(function: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a filter whose results, taken together, stay small; they come one by one."""

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        weight = 0
        for value in function(*args, **kwargs):
            weight += weigh(value)
            if weight > MAX_TEXT:
                raise too_much()
            yield value

    return counted


def with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses large numbers: they are widths and counts."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_numbers(args, kwargs)
        return function(*args, **kwargs)

    return checked


def check_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that are large numbers."""
    if any(isinstance(x, (int, float)) and abs(x) > MAX_NUMBER for x in (*args, *kwargs.values())):
        raise too_much()


def check_fields(wide: re.Pattern[str], field: re.Pattern[str], pattern: str) -> None:
    """Refuse a format whose fields are too wide, one by one or together."""
    if wide.search(pattern):
        raise too_much()
    specs = (match[0] for match in field.finditer(pattern))
    widths = (int(width) for spec in specs for width in _NUMBER.findall(spec))
    if sum(widths) > MAX_TEXT:
        raise too_much()


def check_percent(pattern: str | bytes, values: Any) -> None:
    """Refuse `pattern % values` where the result may be too long."""
    if isinstance(pattern, bytes):
        raise too_much()  # no template needs to format bytes
    # A name in parentheses stands between the sign and the width, so every number counts then.
    field = _NUMBER if "(" in pattern else _PERCENT_FIELD
    check_fields(_WIDE_PERCENT_FIELD, field, pattern)
    # A name may be used in every field, a place only once.
    times = pattern.count("%") if isinstance(values, Mapping) else 1
    check_product(times, weigh(values))


def check_repetition(left: Any, right: Any) -> None:
    """Refuse `left * right` where the result may be too large."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise too_much()
        return
    sizes = [x if isinstance(x, int) else len(x) for x in (left, right)]
    is_text = isinstance(left, str) or isinstance(right, str)
    check_product(*sizes, limit=MAX_TEXT if is_text else _MAX_REPEATED)


def check_product(*sizes: int, limit: int = MAX_TEXT) -> None:
    """Refuse what would grow to the product of two sizes."""
    if sizes[0] * sizes[1] > limit:
        raise too_much()


def check_text_method(text: str, method: str, args: tuple[Any, ...]) -> None:
    """Refuse the calls by which a text can grow to the product of two others."""
    if method in _UNBOUNDED_METHODS:
        raise too_much()
    if method == "join" and args:
        check_product(len(text), len(args[0]))
        weigh(args[0])
    elif method == "replace" and len(args) > 1:
        check_product(len(text), len(args[1]))


def too_much() -> TextError:
    """Return the refusal."""
    problem = f"The model's chat template asks for more than {MAX_TEXT} characters of memory."
    return TextError(problem, REMEDY)
