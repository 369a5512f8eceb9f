"""`headlong generate PROMPT…`: answer one prompt.

In:  a prompt as words, or from standard input; options of model, sampling and stopping.
Out: the answer on standard output as it is written, one line of numbers on standard error.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from headlong.cli.answer_view import describe_completion, print_summary, stream_answer
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, read_stdin, write_json
from headlong.cli.sampling_arguments import (
    add_mtp_argument,
    add_sampling_arguments,
    add_thinking_arguments,
    read_generate_options,
)
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.prompt import Prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.usage = "headlong generate [options] [PROMPT ...]"
    parser.add_argument(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="what to answer; - stands for standard input, which is also read when there is no "
        "prompt",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="put this before the prompt as the system message"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it stands, without the model's chat template",
    )
    add_mtp_argument(parser)
    add_thinking_arguments(parser)
    add_json_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer the prompt, then say what it took."""
    options = read_generate_options(args)
    prompt = _read_prompt(args)
    llm = load_llm(args)
    completion = stream_answer(llm.stream(prompt, **options), make_console(stderr=args.json))
    print_summary(completion, make_console(stderr=True))
    if args.json:
        write_json({**describe_setup(llm), "mtp": args.mtp, **describe_completion(completion)})
    return 0


def _read_prompt(args: argparse.Namespace) -> "Prompt":
    """Return the prompt as plain text, or as messages for the chat template."""
    text = _read_text(args.prompt)
    if not text:
        raise RequestError("The prompt is empty.", 'Say something: headlong generate "Hello".')
    if args.raw:
        if args.system is not None:
            raise RequestError(
                "--system was given with --raw, which has no place for it.",
                "Leave one of them out, or put the text into the prompt.",
            )
        return text
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [*system, {"role": "user", "content": text.removesuffix("\n")}]


def _read_text(words: list[str]) -> str:
    """Join the words of the prompt, with standard input in the place of each -."""
    if not words and sys.stdin.isatty():
        raise RequestError(
            "There is no prompt.",
            'Give one, headlong generate "Hello", or pipe one in. `headlong chat` is for talking.',
        )
    words = words or ["-"]
    piped = read_stdin(whole=True) if "-" in words else ""
    return " ".join(piped if word == "-" else word for word in words)
