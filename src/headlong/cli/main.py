"""`headlong VERB …`: finds the verb, loads only that one, and answers for its errors.

In:  the command line.
Out: the exit code: 0 done, 1 refused (what is wrong and what to do on standard error), 2 not
     understood, 70 a bug of ours, 130 stopped with Ctrl-C, 141 the reader of our output has gone.
Nothing heavy is imported before a verb is chosen.
"""

import contextlib
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from headlong.cli.verbs import (
    VERBS,
    import_verb,
    make_parser,
    make_verb_parser,
    nearest,
    sub_verbs_of,
)
from headlong.errors import HeadlongError

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
    parser = make_parser()
    if not arguments:
        parser.print_help()
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb.startswith("-"):
        parser.parse_args(arguments)  # --help and --version end here, anything else is an error
        parser.error(f"say a verb first: {', '.join(VERBS)}")
    if verb not in VERBS:
        parser.error(f"there is no verb {verb!r}; {_guess(verb)}")
    sub_verbs = sub_verbs_of(verb)
    if rest and rest[0] in sub_verbs:
        verb, rest = f"{verb} {rest[0]}", rest[1:]
    args = make_verb_parser(verb).parse_args(rest)
    return int(import_verb(verb).run(args))


def _guess(word: str) -> str:
    """Say what a word that is no verb was probably meant to be."""
    if near := nearest(word, VERBS):
        return f"did you mean {near!r}?"
    # Only a mistake waits for this import: it brings numpy.
    from headlong.weights.catalog import find_entry, find_near_names

    models = [word] if find_entry(word) or Path(word).exists() else find_near_names(word)
    if models:
        return f"to talk with a model: headlong run {models[0]}"
    return f"verbs are {', '.join(VERBS)}"


def _report_bug(error: Exception, arguments: list[str]) -> int:
    """Report an unexpected error as ours; the traceback only when asked for."""
    if os.environ.get("HEADLONG_DEBUG"):
        raise error
    from headlong.cli.output import print_error

    problem = f"this is a bug in headlong: {type(error).__name__}: {error}"
    command = f"HEADLONG_DEBUG=1 {shlex.join(['headlong', *arguments])}"
    print_error(HeadlongError(problem, f"Get the traceback with `{command}` and report it."))
    return EXIT_BUG
