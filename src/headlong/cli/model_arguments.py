"""The options that say which model runs, and how it drafts.

In:  the command line.
Out: a loaded `LLM`; a model that is not here yet comes with a progress bar.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import headlong
from headlong.cli.output import make_console
from headlong.cli.progress_bar import ProgressBar
from headlong.config import HEAD_QUANTS, DrafterName, QuantName

if TYPE_CHECKING:
    from headlong.engine.limits import EngineLimits
    from headlong.llm import LLM


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `LLM.load`."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        "-m",
        metavar="MODEL",
        help="a GGUF file, a Hugging Face folder, a hub id (org/name), or a name that "
        "`headlong models` lists (default: the small default model)",
    )
    group.add_argument(
        "--head",
        type=Path,
        metavar="DIR",
        help="folder of a trained head (default: the one inside the model, or one that comes with "
        "Headlong for it)",
    )
    group.add_argument(
        "--quant",
        choices=get_args(QuantName),
        help="pack the model's weights in another format than the file's",
    )
    group.add_argument(
        "--head-quant",
        choices=HEAD_QUANTS,
        default="auto",
        help="pack the head's weights in this format; auto takes the one the head was made for, "
        "else q8 (default: auto)",
    )
    group.add_argument(
        "--drafter",
        choices=get_args(DrafterName),
        default="auto",
        help="who drafts: auto chains n-grams with the head, or takes n-grams where there is no "
        "head (default: auto)",
    )
    group.add_argument(
        "--draft-model", metavar="MODEL", help="a smaller model, for --drafter draft-model"
    )
    add_backend_argument(group)


def add_backend_argument(group: argparse._ActionsContainer) -> None:
    """Add `--backend`."""
    group.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help="what computes: auto takes the fastest this machine has (default: auto)",
    )


def load_llm(args: argparse.Namespace, limits: "EngineLimits | None" = None) -> "LLM":
    """Load what the model options name; what the user should know of it goes to standard error."""
    with ProgressBar() as progress:
        llm = headlong.LLM.load(
            args.model,
            head=args.head,
            drafter=args.drafter,
            quant=args.quant,
            head_quant=args.head_quant,
            draft_model=args.draft_model,
            backend=args.backend,
            limits=limits,
            progress=progress,
        )
    for note in llm.notes:
        make_console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)
    return llm


def describe_setup(llm: "LLM") -> dict[str, str]:
    """Return which model, drafter and backend answer, for JSON and for people."""
    drafter = llm.drafter
    return {
        "model": llm.model_path.name,
        "drafter": "none" if drafter is None else drafter.name,
        "backend": llm.backbone.ops.name,
        "backend_note": llm.backbone.ops.note,
    }
