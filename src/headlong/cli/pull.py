"""`headlong pull [NAME]`: download a model.

In:  a name; none means the default model.
Out: where the model lies, with its size and sha256.
"""

import argparse
from pathlib import Path

from rich.text import Text

from headlong.cli.bars import ProgressBar
from headlong.cli.output import (
    add_json_argument,
    format_bytes,
    format_path,
    make_console,
    write_json,
)
from headlong.errors import SourceError
from headlong.weights.catalog import DEFAULT_MODEL, THIRD_PARTY
from headlong.weights.sources import PullResult, pull_model

_MAGIC = b"GGUF"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"which model (default: {DEFAULT_MODEL})"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="hash the files that are here again, and pull damaged ones anew",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Pull, then say what is where."""
    with ProgressBar() as progress:
        result = pull_model(args.name, verify=args.verify, progress=progress)
    if result.model.source == "local":
        _refuse_other_files(result.model.path)
    _print_summary(result, verified=args.verify, to_stderr=args.json)
    if args.json:
        model = result.model
        write_json(
            {
                "name": model.name,
                "path": str(model.path),
                "bytes": model.num_bytes,
                "sha256": model.sha256,
                "seconds": round(result.elapsed_s, 3),
                "already_here": result.already_here,
                "source": model.source,
                "licence": model.licence,
                "uploader": model.uploader,
                "files": [
                    {"path": str(f.path), "bytes": f.num_bytes, "sha256": f.sha256 or None}
                    for f in model.files
                ],
            }
        )
    return 0


def _refuse_other_files(path: Path) -> None:
    """Refuse a local file that is no model at all; whether it can run is for inspect to say."""
    if path.is_dir() or path.suffix == ".safetensors":
        return
    with path.open("rb") as file:
        is_gguf = file.read(len(_MAGIC)) == _MAGIC
    if not is_gguf:
        raise SourceError(
            f"{path} is not a GGUF file: it does not begin with {_MAGIC.decode()}.",
            "Name a GGUF file, or a folder with config.json and safetensors.",
        )


def _print_summary(result: PullResult, *, verified: bool, to_stderr: bool) -> None:
    model = result.model
    console = make_console(stderr=to_stderr)
    facts = [format_bytes(model.num_bytes)]
    if model.source != "local":
        facts.append(f"licence: {model.licence}")
    if model.sha256:
        facts.append(f"sha256 {model.sha256[:12]}…" + ("" if result.already_here else " checked"))
    if model.source == "local":
        facts.append("local file; nothing to compare with")
    elif result.already_here:
        facts.append("already here" + (", every byte checked" if verified else ""))
    else:
        facts.append(f"pulled in {result.elapsed_s:.1f} s")
    console.print(Text.assemble((model.name, "bold"), "  " + " · ".join(facts)), soft_wrap=True)
    if model.uploader == THIRD_PARTY:
        note = "Uploaded by a third party; its content is the one Headlong has pinned."
        console.print(note, style="yellow", soft_wrap=True)
    console.print(format_path(model.path), style="cyan", soft_wrap=True)
