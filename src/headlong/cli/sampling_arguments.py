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
    """Add what the chat template is told besides the messages."""
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
    assert field.default is not MISSING, f"{field.name} has no plain default to show"
    if field.name == "seed":
        return "a new one each time, reported with the answer"
    return "none" if field.default is None else f"{field.default:g}"


class _AddBias(argparse.Action):
    """Collects `ID=X` into a mapping."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        token_id, _, amount = str(values).partition("=")
        try:
            bias = {int(token_id): float(amount)}
        except ValueError:
            parser.error(f"{option_string} {values!r}: give a token id and an amount, like 42=-5")
        setattr(namespace, self.dest, (getattr(namespace, self.dest) or {}) | bias)
