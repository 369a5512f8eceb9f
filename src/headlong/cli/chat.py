"""`headlong chat`: chat with a model.

In:  turns from a terminal, or piped in; each one a message or a command.
Out: answers as they are written, one line of numbers after each; with --json one document at the
     end. Ctrl-C stops an answer, never the conversation.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headlong.cli.chat_commands import ChatCommands, complete_command, help_text
from headlong.cli.chat_input import TurnReader
from headlong.cli.conversation import Conversation
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, print_error, write_json
from headlong.cli.sampling_arguments import (
    add_mtp_argument,
    add_sampling_arguments,
    add_thinking_arguments,
    read_generate_options,
)
from headlong.cli.sessions import LAST, Session, load_session
from headlong.errors import HeadlongError
from headlong.weights.catalog import DEFAULT_MODEL, find_entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.usage = "headlong chat [options]"
    add_chat_arguments(parser)
    add_mtp_argument(parser)
    add_thinking_arguments(parser)
    add_json_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of conversations."""
    parser.epilog = (parser.epilog or "").replace("{commands}", help_text())
    parser.add_argument("--system", metavar="TEXT", help="begin with this system message")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=LAST,
        metavar="NAME",
        help="go on with the conversation that /save kept as NAME, or with the last one",
    )


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    options = read_generate_options(args)
    session = None if args.resume is None else load_session(args.resume)
    if session is not None and args.model is None:
        args.model = session.model
    llm = load_llm(args)
    console = make_console(stderr=args.json)
    conversation = Conversation(llm, console, options, args.system)
    commands = ChatCommands(conversation, console, _name_for_later(args.model))
    setup = describe_setup(llm)
    reader = TurnReader(console, complete_command)
    if reader.is_typed:
        commands.session_name = LAST
        _welcome(console, setup)
    if session is not None:
        commands.resume(args.resume, _with_system(session, args.system))
    while _take_turn(reader, conversation, commands):
        pass
    if args.json:
        write_json({**setup, **conversation.to_dict()})
    return 0


def _take_turn(reader: TurnReader, conversation: Conversation, commands: ChatCommands) -> bool:
    """Do what the user says next; return whether to go on."""
    # What one turn fails at is said; the conversation outlives it.
    try:
        turn = reader.read()
        if turn is None:
            return False
        if turn.is_command:
            return commands.carry_out(turn.text)
        if turn.text:
            conversation.answer(turn.text)
            commands.keep()
    except HeadlongError as error:
        print_error(error)
    return True


def _name_for_later(model: str | None) -> str:
    """Return what names a model from any folder."""
    if model is None:
        return DEFAULT_MODEL
    path, entry = Path(model).expanduser(), find_entry(model)
    return str(path.absolute()) if path.exists() else entry.name if entry else model


def _with_system(session: Session, system: str | None) -> Session:
    """Return the conversation with the system message that was asked for, if one was."""
    return session if system is None else Session(session.model, system, session.messages)


def _welcome(console: Console, setup: dict[str, str]) -> None:
    facts = f"  drafter {setup['drafter']} · backend {setup['backend']} ({setup['backend_note']})"
    console.print(
        Text.assemble((setup["model"], "bold"), (facts, "dim")), soft_wrap=not console.is_terminal
    )
    console.print("Say something, or /help. Ctrl-C stops an answer, Ctrl-D leaves.", style="dim")
