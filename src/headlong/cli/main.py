"""`headlong VERB …`: finds the verb, loads only that one, and answers for its errors.

In:  the command line.
Out: the exit code: 0 done, 1 refused (what is wrong and what to do on standard error), 2 not
     understood, 70 a bug of ours, 130 stopped with Ctrl-C, 141 the reader of our output has gone.
A verb is a module `headlong.cli.VERB` with `add_arguments(parser)` and `run(args)`; one with
`SUB_VERBS` has a module VERB_SUBVERB for each of them. Its examples are in `examples/VERB.txt`.
Nothing heavy is imported before a verb is chosen.
"""

import argparse
import contextlib
import difflib
import errno
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headlong.errors import HeadlongError

VERBS = {
    "generate": "answer one prompt",
    "serve": "answer OpenAI's API over HTTP, with a page to try it",
    "chat": "talk with a model; drafted tokens are coloured",
    "inspect": "show what is inside a model file",
    "pull": "bring a model to this machine",
    "models": "list known models and those that are here",
    "demo": "answer two prompts, plain and with MTP, and compare",
    "bench": "measure what MTP gains on your own prompts",
    "train": "make a head for a model",
    "eval-head": "measure how much of a head's drafts stands",
    "doctor": "check that the head is alive, exact and worth it",
    "plan": "workers, cost and memory for an agent workload",
}

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EBADF)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    try:
        code = _dispatch(arguments)
        # Flushed here, so that a reader who has left is noticed while we can still be quiet.
        sys.stdout.flush()
        return code
    except HeadlongError as error:
        from headlong.cli.output import print_error

        print_error(error)
        return EXIT_REFUSED
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"\n{stop}\n" if str(stop) else "\nStopped.\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
            return _refuse_output(error)
        return _report_bug(error, arguments)


def _prepare_streams() -> None:
    """Make the streams fit to write to: letters they lack become "?", closed ones are refused."""
    # Python has None for a stream that was closed before it began.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # for the whole run
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the whole run
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class _ClosedOutput(io.StringIO):
    """Stands for a standard output that was closed before the program began."""

    def write(self, text: str, /) -> int:
        """Refuse as the system would."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _refuse_output(error: OSError) -> int:
    from headlong.cli.output import print_error

    _discard_output()
    problem = f"The output cannot be written: {error.strerror}."
    print_error(HeadlongError(problem, "Send it somewhere that is open and has room."))
    return EXIT_REFUSED


def _discard_output() -> None:
    """Drop what is still buffered: the interpreter would complain about it at exit."""
    with contextlib.suppress(OSError):  # a stream that is no file has no number, and no such end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    try:
        return _run_verb(arguments)
    except SystemExit as stop:  # argparse ends this way, for --help as for mistakes
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE


def _run_verb(arguments: list[str]) -> int:
    parser = _make_parser()
    if not arguments:
        parser.print_help()
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb.startswith("-"):
        parser.parse_args(arguments)  # --help and --version end here, anything else is an error
        parser.error(f"say a verb first: {', '.join(VERBS)}")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"verbs are {', '.join(VERBS)}"
        parser.error(f"there is no verb {verb!r}; {hint}")
    module, about = _import_verb(verb), VERBS[verb]
    sub_verbs: dict[str, str] = getattr(module, "SUB_VERBS", {})
    if rest and rest[0] in sub_verbs:
        verb, about, rest = f"{verb} {rest[0]}", sub_verbs[rest[0]], rest[1:]
        module, sub_verbs = _import_verb(verb), {}
    verb_parser = argparse.ArgumentParser(
        prog=f"headlong {verb}",
        description=f"{about[0].upper()}{about[1:]}.{_list_verbs(sub_verbs)}",
        epilog=_read_examples(verb),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(verb_parser)
    return int(module.run(verb_parser.parse_args(rest)))


def _import_verb(verb: str) -> ModuleType:
    """Load the module of a verb, or of a verb with its sub-verb."""
    return importlib.import_module(f"headlong.cli.{verb.replace('-', '_').replace(' ', '_')}")


def _read_examples(verb: str) -> str:
    """Return what stands below the options of a verb, or of a verb with its sub-verb."""
    file = Path(__file__).parent / "examples" / f"{verb.replace(' ', '-')}.txt"
    return file.read_text("utf-8")


def _list_verbs(verbs: dict[str, str]) -> str:
    """Return verbs and what they do, as a paragraph of a help text."""
    if not verbs:
        return ""
    width = max(map(len, verbs))
    lines = [f"  {verb:<{width}}  {about}" for verb, about in verbs.items()]
    return "\n".join(["", "", "verbs:", *lines])


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headlong",
        usage="headlong VERB [options]",
        description="Exact multi-token prediction for local language models: the same text, "
        f"sooner.{_list_verbs(VERBS)}",
        epilog=_read_examples("headlong"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    return parser


class _ShowVersion(argparse.Action):
    """Looks the version up only when asked: reading package metadata takes a while."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        sys.stdout.write(f"headlong {importlib.import_module('headlong').__version__}\n")
        parser.exit()


def _report_bug(error: Exception, arguments: list[str]) -> int:
    """Report an unexpected error as ours; the traceback only when asked for."""
    if os.environ.get("HEADLONG_DEBUG"):
        raise error
    from headlong.cli.output import print_error

    problem = f"this is a bug in headlong: {type(error).__name__}: {error}"
    command = f"HEADLONG_DEBUG=1 {shlex.join(['headlong', *arguments])}"
    print_error(HeadlongError(problem, f"Get the traceback with `{command}` and report it."))
    return EXIT_BUG
