"""The process in which a model's chat templates are rendered; run as a script, never imported.

In:  a JSON object a line on standard input: a template's source, and variables to render it with.
Out: a JSON object a line: its outside names, the text it writes, or what is wrong with it.
A template comes from a stranger. jinja2's sandbox keeps it away from Python's insides; this process
ends itself when one takes too long (exit code 1) or too much memory (exit code 2).
Imports nothing of Headlong, so that it starts quickly.
"""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MEMORY_EXIT_CODE = 2


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: marks what to train on, and prints its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


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


# The dialect of Hugging Face chat templates.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
)
del _ENVIRONMENT.globals["lipsum"]
_ENVIRONMENT.globals["raise_exception"] = _raise_exception
_ENVIRONMENT.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
_ENVIRONMENT.filters["tojson"] = _tojson


@lru_cache(maxsize=16)
def _compile(source: str) -> tuple[Template, list[str]]:
    """Return a template ready to render, and the names it reads from outside."""
    tree = _ENVIRONMENT.parse(source)
    return _ENVIRONMENT.from_string(tree), sorted(meta.find_undeclared_variables(tree))


def _answer(source: str, variables: Mapping[str, Any] | None, max_text: int) -> dict[str, Any]:
    """Return the text of a template, or its outside names where there are no variables."""
    try:
        template, names = _compile(source)
    except Exception as error:
        return _refusal("is not valid", error, "Give the model a plain prompt instead.")
    if variables is None:
        return {"names": names}
    try:
        text = template.render(variables)
    except TemplateError as error:
        remedy = "Write them the way this model was made for."
        return _refusal("refuses these messages", error, remedy)
    except Exception as error:  # any other exception is the template's fault
        remedy = "Check that each message has what this model expects."
        return _refusal(f"failed: {type(error).__name__}", error, remedy)
    if len(text) > max_text:
        raise MemoryError
    return {"text": text}


def _refusal(fault: str, error: Exception, remedy: str) -> dict[str, Any]:
    if isinstance(error, MemoryError):
        raise error
    end = "" if str(error).endswith((".", "!", "?")) else "."
    return {"problem": f"The model's chat template {fault}: {error}{end}", "remedy": remedy}


def _bound_memory(num_bytes: int) -> None:
    """Have the system refuse this process more memory, where it can do that."""
    if sys.platform != "win32":
        import resource

        with suppress(ValueError, OSError):  # a tighter limit is in force, or none can be set
            resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def _serve(max_seconds: float, max_memory: int, max_text: int) -> None:
    """Answer line by line until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the process that asks
        signal.signal(number, signal.SIG_IGN)
    _bound_memory(max_memory)
    _send("ready")
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin.buffer:
            # A thread of its own, outside the interpreter: no template can hold it up.
            faulthandler.dump_traceback_later(max_seconds, exit=True, file=nowhere)
            request = json.loads(line)
            reply = json.dumps(_answer(request["source"], request["variables"], max_text))
            faulthandler.cancel_dump_traceback_later()
            _send(reply)


def _send(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        _serve(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except MemoryError:
        os._exit(_MEMORY_EXIT_CODE)
