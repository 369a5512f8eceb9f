"""The options every generating verb shares, read off `headlong.config`.

In:  the fields of `SamplingParams` and `StopParams`: name, type, default, and the docstring under
     each, which is its help text. A field added there is an option here at once.
Out: argparse options, and from parsed arguments the keywords of `LLM.generate`, checked before any
     model is loaded.
"""

import argparse
import ast
import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, cast

from headlong import config
from headlong.cli.verbs import nearest
from headlong.config import MAX_DRAFT_TOKENS, MtpMode, SamplingParams, StopParams, check_mtp
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.llm import GenerateOptions

_METAVARS = {
    "temperature": "T",
    "top_k": "N",
    "top_p": "P",
    "min_p": "P",
    "repetition_penalty": "X",
    "presence_penalty": "X",
    "frequency_penalty": "X",
    "max_tokens": "N",
    "min_tokens": "N",
    "seed": "N",
    "logprobs": "N",
}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one option for every field of `SamplingParams` and `StopParams`."""
    for params, title in ((StopParams, "when to stop"), (SamplingParams, "sampling")):
        group = parser.add_argument_group(title)
        help_texts = read_field_help(params)
        for field in fields(params):
            _add_field(group, field, help_texts[field.name])


def add_mtp_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--mtp auto|off|K` and its short form `-k K`."""
    parser.add_argument(
        "--mtp",
        "-k",
        type=parse_mtp,
        default="auto",
        metavar="auto|off|K",
        help="draft as long as it measurably pays, never, or always K tokens "
        f"(1…{MAX_DRAFT_TOKENS}); the text is the same with all of them (default: auto)",
    )


def add_thinking_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the chat template."""
    parser.add_argument(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="let a model that can reason think before it answers, or not (default: the model's)",
    )
    parser.add_argument(
        "--chat-template-kwargs",
        type=parse_kwargs,
        metavar="JSON",
        help="further variables of the model's chat template, such as "
        """'{"enable_thinking": false}'""",
    )


def parse_kwargs(text: str) -> dict[str, Any]:
    """Read variables of a chat template as typed: a JSON object."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if isinstance(given, dict):
        return given
    problem = f"--chat-template-kwargs is {text!r}."
    raise RequestError(problem, """Give a JSON object: '{"enable_thinking": false}'.""")


def parse_mtp(text: str) -> MtpMode:
    """Read an MTP mode as typed: auto, off or a number."""
    return check_mtp(int(text) if text.lstrip("-").isdecimal() else text)


def read_generate_options(args: argparse.Namespace) -> "GenerateOptions":
    """Return the keywords for `LLM.generate` that the user gave; refuse impossible ones now."""
    given = {
        field.name: getattr(args, field.name)
        for params in (SamplingParams, StopParams)
        for field in fields(params)
        if getattr(args, field.name) is not None
    }
    # A model takes seconds to load; a slip of the finger should be answered before that.
    check_options(given)
    for name in ("mtp", "think", "chat_template_kwargs"):
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    return cast("GenerateOptions", given)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse sampling or stopping values that no generation can have."""
    options = {**options, "stop": tuple(options.get("stop", ()))}
    for params in (SamplingParams, StopParams):
        known = {field.name for field in fields(params)}
        params(**{name: value for name, value in options.items() if name in known})


def setting_names() -> list[str]:
    """Return the names of all options of sampling and stopping."""
    return list(_settings())


def parse_setting(name: str, text: str) -> Any:
    """Read the value of a setting as typed."""
    field = _setting(name)
    if name == "stop":
        return (text.replace("\\n", "\n"),)
    try:
        if name == "logit_bias":
            return dict([_parse_bias(text)])
        if field.type is bool:
            return {"true": True, "on": True, "false": False, "off": False}[text.lower()]
        return float(text) if field.type is float else int(text)
    except (ValueError, KeyError) as error:
        kinds: dict[Any, str] = {float: "a number", bool: "on or off"}
        kind = kinds.get(field.type, "a whole number")
        if name == "logit_bias":
            kind = "a token id and an amount, like 42=-5"
        raise RequestError(f"{name} is {text!r}.", f"Give {kind}, or default.") from error


def describe_settings(options: Mapping[str, Any], *names: str) -> str:
    """List settings and what they are now: those that are named, or all."""
    shown = []
    for name in names or setting_names():
        field = _setting(name)
        shown.append((name, _show(options[name]) if name in options else _show_default(field)))
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in shown)


def _show(value: object) -> str:
    """Write a value the way it is given to /set."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return " ".join(f"{token_id}={amount:g}" for token_id, amount in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(repr, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings() -> dict[str, "Field[Any]"]:
    return {
        field.name: field for params in (StopParams, SamplingParams) for field in fields(params)
    }


def _setting(name: str) -> "Field[Any]":
    """Return a field by its name; refuse a name that no field has."""
    known = _settings()
    if name not in known:
        near = nearest(name, known)
        guess = f"Did you mean {near}? " if near else ""
        raise RequestError(
            f"There is no setting {name!r}.", f"{guess}Known are: {', '.join(known)}."
        )
    return known[name]


def read_field_help(params: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass of `headlong.config`."""
    tree = ast.parse(inspect.getsource(config))
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == params.__name__]
    texts: dict[str, str] = {}
    for node, follower in zip(classes[0].body, classes[0].body[1:], strict=False):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            texts[node.target.id] = str(follower.value.value)
    return texts


def _add_field(group: argparse._ArgumentGroup, field: "Field[Any]", help_text: str) -> None:
    """Add the option of one field; absent options stay None, so that given ones are known."""
    flag = "--" + field.name.replace("_", "-")
    # As argparse's help is written: no capital, no full stop, percent signs doubled.
    text = (help_text[0].lower() + help_text[1:]).rstrip(".").replace("%", "%%")
    if field.type is bool:
        group.add_argument(flag, action="store_true", default=None, help=text)
    elif field.name == "stop":
        text = f"{text}; may be given several times"
        group.add_argument(flag, action="append", metavar="TEXT", help=text)
    elif field.name == "logit_bias":
        text = f"{text}; may be given several times"
        group.add_argument(flag, action=_AddBias, metavar="ID=X", help=text)
    else:
        kind = float if field.type is float else int
        text = f"{text} (default: {_show_default(field)})"
        group.add_argument(flag, type=kind, metavar=_METAVARS.get(field.name), help=text)


def _show_default(field: "Field[Any]") -> str:
    if field.name == "logit_bias":
        return "none"
    assert field.default is not MISSING, f"{field.name} has no plain default to show"
    if field.name == "seed":
        return "a new one each time, reported with the answer"
    if field.default in (None, ()):
        return "none"
    return "off" if field.default is False else f"{field.default:g}"


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, amount = text.partition("=")
    return int(token_id), float(amount)


class _AddBias(argparse.Action):
    """Collects `ID=X` into a mapping."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            bias = dict([_parse_bias(str(values))])
        except ValueError:
            parser.error(f"{option_string} {values!r}: give a token id and an amount, like 42=-5")
        setattr(namespace, self.dest, (getattr(namespace, self.dest) or {}) | bias)
