"""The commands of `headlong`, and the parser of each.

A verb is a module `headlong.cli.VERB` with `add_arguments(parser)` and `run(args)`; one with
`SUB_VERBS` has a module VERB_SUBVERB for each of them. Its examples are in `examples/VERB.txt`.
Only the module of the verb that is asked for is imported.
"""

import argparse
import difflib
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

VERBS = {
    "run": "chat with a model, or answer one prompt",
    "generate": "answer one prompt",
    "serve": "serve OpenAI's API over HTTP, with a web page",
    "ps": "list the servers that run on this machine",
    "logs": "show what a server has logged",
    "chat": "chat with a model; drafted tokens are coloured",
    "inspect": "show what is inside a model file",
    "pull": "download a model",
    "models": "list known and downloaded models",
    "demo": "answer two prompts, plain and with MTP, and compare",
    "bench": "measure what MTP gains on your own prompts",
    "train": "train a head for a model",
    "export": "export a head and its model to another engine",
    "convert": "move a model's MTP layers between GGUF and safetensors",
    "eval-head": "measure the acceptance of a head",
    "doctor": "check that a head works, is exact, and pays",
    "plan": "compute workers, cost and memory for a workload",
    "completion": "write a script for shell completion",
}


class VerbParser(argparse.ArgumentParser):
    """A parser that guesses which option a misspelled one was meant to be."""

    def parse_args(  # type: ignore[override]  # the overloads for other namespaces are not used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and refuse what is left over with a guess."""
        # Options may stand between words: headlong run MODEL --seed 1 PROMPT.
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return parsed

    def _refuse(self, unknown: list[str]) -> NoReturn:
        problem = f"unrecognized arguments: {' '.join(unknown)}"
        for word in unknown:
            near = nearest(word.partition("=")[0], self._option_string_actions)
            if word.startswith("--") and near:
                problem += f"; did you mean {near}?"
                break
        self.error(problem)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return which of the known words this is probably a slip of."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return near[0] if near else None


def make_parser() -> VerbParser:
    """Return the parser of `headlong` itself."""
    parser = VerbParser(
        prog="headlong",
        usage="headlong VERB [options]",
        description="Exact multi-token prediction for local language models: the same text, "
        f"sooner.{_list_verbs(VERBS)}",
        epilog=_read_examples("headlong"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    return parser


def make_verb_parser(verb: str) -> VerbParser:
    """Return the parser of a verb, or of a verb with its sub-verb."""
    name, _, sub_verb = verb.partition(" ")
    about = sub_verbs_of(name)[sub_verb] if sub_verb else VERBS[name]
    sub_verbs = {} if sub_verb else sub_verbs_of(name)
    parser = VerbParser(
        prog=f"headlong {verb}",
        description=f"{about[0].upper()}{about[1:]}.{_list_verbs(sub_verbs)}",
        epilog=_read_examples(verb),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    import_verb(verb).add_arguments(parser)
    return parser


def sub_verbs_of(verb: str) -> dict[str, str]:
    """Return the sub-verbs of a verb and what they do."""
    sub_verbs: dict[str, str] = getattr(import_verb(verb), "SUB_VERBS", {})
    return sub_verbs


def import_verb(verb: str) -> ModuleType:
    """Load the module of a verb, or of a verb with its sub-verb."""
    return importlib.import_module(f"headlong.cli.{verb.replace('-', '_').replace(' ', '_')}")


def _read_examples(verb: str) -> str:
    """Return the examples below the options of a verb, or of a verb with its sub-verb."""
    file = Path(__file__).parent / "examples" / f"{verb.replace(' ', '-')}.txt"
    return file.read_text("utf-8")


def _list_verbs(verbs: dict[str, str]) -> str:
    """Return verbs and what they do, as a paragraph of a help text."""
    if not verbs:
        return ""
    width = max(map(len, verbs))
    lines = [f"  {verb:<{width}}  {about}" for verb, about in verbs.items()]
    return "\n".join(["", "", "verbs:", *lines])


class _ShowVersion(argparse.Action):
    """Looks the version up only when asked: reading package metadata takes a while."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        sys.stdout.write(f"headlong {importlib.import_module('headlong').__version__}\n")
        parser.exit()
