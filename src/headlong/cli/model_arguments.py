"""The options of `ModelOptions` on the command line.

In:  the command line.
Out: a loaded `LLM`; a model that is not here yet comes with a progress bar.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headlong
from headlong.cli.bars import ProgressBar
from headlong.cli.output import make_console
from headlong.config import MODEL_OPTIONS, ModelOptions

if TYPE_CHECKING:
    from headlong.llm import LLM


def add_model_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of a model: those that are named, or all."""
    group = parser.add_argument_group("model")
    for name in names or MODEL_OPTIONS:
        option = MODEL_OPTIONS[name]
        about, flag = option.metadata["about"], f"--{name.replace('_', '-')}"
        kind: dict[str, Any] = {"type": Path} if name == "head" else {}
        group.add_argument(
            *([flag, "-m"] if name == "model" else [flag]),
            default=option.default,
            metavar=option.metadata["metavar"],
            choices=option.metadata["choices"] or None,
            help=about if option.default is None else f"{about} (default: {option.default})",
            **kind,
        )


def load_llm(args: argparse.Namespace | ModelOptions, **changes: Any) -> "LLM":
    """Load what the options name, or `changes` instead; its notes go to standard error."""
    named = {name: getattr(args, name) for name in MODEL_OPTIONS if hasattr(args, name)}
    with ProgressBar() as progress:
        llm = headlong.LLM.load(**named | changes, progress=progress)
    for note in llm.notes:
        make_console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)
    return llm


def describe_setup(llm: "LLM") -> dict[str, str]:
    """Return which model, drafter and backend answer, for JSON and for people."""
    return {
        "model": llm.model_path.name,
        "drafter": "none" if llm.drafter is None else llm.drafter.name,
        "backend": llm.backbone.ops.name,
        "backend_note": llm.backbone.ops.note,
    }
