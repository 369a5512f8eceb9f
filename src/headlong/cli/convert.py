"""`headlong convert MODEL OUT`: a model's MTP layers between GGUF and safetensors.

In:  a model, or its MTP layers apart; perhaps a GGUF file of the model without them.
Out: a GGUF file or a folder of the layers alone, or a copy of that GGUF file with them.
"""

import argparse
from pathlib import Path

from headlong.cli.bars import ProgressBar
from headlong.cli.output import (
    add_json_argument,
    format_bytes,
    format_path,
    make_console,
    write_json,
)

_FLOAT_TYPES = ("float16", "float32", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("model", metavar="MODEL", help="the model that has the MTP layers")
    parser.add_argument("out", type=Path, metavar="OUT",
                        help="a GGUF file to write if it ends in .gguf, else a folder")
    parser.add_argument("--into", type=Path, metavar="FILE",
                        help="copy this GGUF file of the model and put the layers into the copy")
    parser.add_argument("--dtype", choices=_FLOAT_TYPES,
                        help="type of the numbers (default: as they are stored)")
    # fmt: on
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Convert, then say what was written."""
    # Imported now: they bring numpy, which --help can do without.
    from headlong.export.mtp_files import MtpRequest, convert_mtp_layers
    from headlong.weights.sources import resolve_model

    with ProgressBar("writing") as progress:
        model = resolve_model(args.model, progress=progress)
        request = MtpRequest(model, args.out, args.into, args.dtype)
        written = convert_mtp_layers(request, progress)
    if written.num_rounded:
        note = f"note: {written.num_rounded:,} numbers were rounded; --dtype float32 keeps them."
        make_console(stderr=True).print(note, style="yellow", soft_wrap=True)
    if written.drops_vocabulary:
        note = (
            "note: the draft vocabulary these layers were tuned for stays behind; "
            f"--head {args.model} drafts with it."
        )
        make_console(stderr=True).print(note, style="yellow", soft_wrap=True)
    if args.json:
        write_json(
            {
                "out": str(args.out),
                "architecture": written.architecture,
                "num_modules": written.num_modules,
                "num_tensors": written.num_tensors,
                "num_bytes": written.num_bytes,
                "num_rounded": written.num_rounded,
                "drops_vocabulary": written.drops_vocabulary,
            }
        )
        return 0
    plural = "" if written.num_modules == 1 else "s"
    console = make_console()
    console.print(format_path(args.out), style="cyan", soft_wrap=True)
    console.print(
        f"{written.num_modules} MTP layer{plural} of {written.architecture}: {written.num_tensors} "
        f"tensors, {format_bytes(written.num_bytes)}",
        soft_wrap=True,
    )
    return 0
