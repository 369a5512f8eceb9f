"""`headlong export OUT --to ENGINE`: a head, and its backbone, for another engine.

In:  a model, perhaps a head, an engine's name.
Out: a folder with the head, the backbone where asked for, and a README with the launch command.
"""

import argparse
from pathlib import Path

from headlong.cli.bars import ProgressBar
from headlong.cli.model_arguments import add_model_arguments
from headlong.cli.output import add_json_argument, format_path, make_console, write_json
from headlong.export.targets import TARGETS
from headlong.weights.sources import resolve_model

_FLOAT_TYPES = ("float16", "float32", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument("--to", choices=tuple(TARGETS), required=True,
                        help="which engine shall run it")
    parser.add_argument("--backbone", action="store_true",
                        help="also write the model the head drafts for, as the engine reads it")
    parser.add_argument("--dtype", choices=_FLOAT_TYPES,
                        help="type of the numbers (default: the head's own, float16 as a rule)")
    # fmt: on
    add_model_arguments(parser, "model", "head")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Export, then say how to start the engine."""
    # Imported now: they bring numpy, which --help can do without.
    from headlong.export.exporter import ExportRequest, export

    request = ExportRequest(
        args.to, args.out, args.model, args.head, has_backbone=args.backbone, float_type=args.dtype
    )
    with ProgressBar() as progress:
        resolve_model(args.model, progress=progress)
    with ProgressBar("writing") as progress:
        exported = export(request, progress)
    console = make_console(stderr=args.json)
    for note in exported.notes:
        make_console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)
    console.print(format_path(args.out), style="cyan", soft_wrap=True)
    console.print(exported.command, soft_wrap=True)
    if args.json:
        write_json(
            {
                "out": str(args.out),
                "engine": args.to,
                "command": exported.command,
                "files": dict(exported.hashes),
                "float_type": exported.float_type,
                "shares_changed": dict(exported.shares_changed),
                "notes": list(exported.notes),
            }
        )
    return 0
