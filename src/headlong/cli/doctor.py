"""`headlong doctor [MODEL]`: does the head work, and does it pay?

In:  a model, perhaps a head folder or a draft model.
Out: one green, yellow or red line per check with its remedy, as they come; a sentence at the end;
with `--json` one document. The exit status is 1 when something is broken.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from headlong.cli import doctor_engines
from headlong.cli.bars import ProgressBar
from headlong.cli.finding_view import FindingPrinter, plural
from headlong.cli.model_arguments import add_model_arguments
from headlong.cli.output import add_json_argument, format_path, make_console, write_json
from headlong.errors import RequestError
from headlong.provenance import read_provenance

if TYPE_CHECKING:
    from headlong.doctor.examination import Examination

EXIT_FAULT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("model", nargs="?", metavar="MODEL",
                        help="which model (default: the default model)")
    add_model_arguments(parser, "head", "head_quant", "draft_model", "backend")
    parser.add_argument("--quick", action="store_true", help="fewer prompts and tokens")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings too")
    parser.add_argument("--record", action="store_true",
                        help="keep the measured acceptance in the head's run.json, to compare with "
                        "later")
    # fmt: on
    doctor_engines.add_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Examine the model and say what was found."""
    if doctor_engines.is_asked_for(args):
        return doctor_engines.run(args)
    if args.head is not None and args.draft_model is not None:
        raise RequestError(
            f"Both --head {args.head} and --draft-model {args.draft_model} were given.",
            "Only one of them can draft; examine them one after the other.",
        )
    # Imported now: they bring numpy, which --help can do without.
    from headlong.doctor.examination import examine
    from headlong.doctor.subject import ExamOptions, load_subject

    options = ExamOptions(
        model=args.model,
        head=args.head,
        draft_model=args.draft_model,
        head_quant=args.head_quant,
        backend=args.backend,
        is_quick=args.quick,
        is_thorough=args.record,
    )
    console = make_console(stderr=args.json)
    with ProgressBar() as progress:
        subject = load_subject(options, progress)
    view = FindingPrinter(console)
    with make_console(stderr=True).status("looking", spinner="dots") as status:
        examination = examine(subject, view.show, lambda what: status.update(f"looking at {what}"))
    recorded = _record(examination) if args.record else None
    _print_end(examination, console, recorded)
    if args.json:
        write_json({**examination.to_dict(), "provenance": read_provenance().to_dict()})
    has_fault = examination.num_faults > 0
    return EXIT_FAULT if has_fault or (args.strict and examination.num_warnings) else 0


def _record(examination: "Examination") -> Path:
    """Keep the acceptance in the head's run.json."""
    from headlong.doctor.draft_checks import describe_probe
    from headlong.doctor.head_checks import write_probe
    from headlong.heads.fingerprint import fingerprint

    subject, judged = examination.subject, examination.judged
    if judged is None or subject.head_folder is None or subject.backbone is None:
        raise RequestError(
            "There is no head folder whose acceptance could be recorded.",
            "Name one with --head DIR; heads inside a model have no place for it.",
        )
    probe = describe_probe(judged, subject.ops.name)
    return write_probe(subject.head_folder, fingerprint(subject.backbone), probe)


def _print_end(examination: "Examination", console: Console, recorded: Path | None) -> None:
    faults, warnings = examination.num_faults, examination.num_warnings
    counts = f"{plural(faults, 'fault')}, {plural(warnings, 'warning')}"
    style = "bold red" if faults else "bold yellow" if warnings else "bold green"
    word = "Not healthy" if faults else "Healthy"
    console.print()
    line = Text.assemble((f"{word}: {counts}", style), f", in {examination.seconds:.0f} s.")
    document = examination.to_dict()
    if document["best_k"] == 0:
        line.append(" Best here: no drafts.")
    elif document["best_k"] is not None:
        line.append(
            f" Best K here: {document['best_k']}, "
            f"{document['expected_speedup']:.2f} × plain decoding expected."
        )
    console.print(line, soft_wrap=True)
    if recorded is not None:
        console.print(f"Recorded in {format_path(recorded)}.", style="dim", soft_wrap=True)
