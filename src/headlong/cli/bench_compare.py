"""`headlong bench compare OLD NEW`: has it become faster?

In:  two measurements of the same prompts, as files or folders of `headlong bench`.
Out: the speed-up with its interval, per task and overall, in the forms of `headlong bench`.
"""

import argparse
from pathlib import Path

from headlong.cli.bench import add_outcome_arguments, conclude
from headlong.cli.bench_view import print_results
from headlong.cli.output import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument("old", type=Path, metavar="OLD", help="the baseline's results")
    parser.add_argument("new", type=Path, metavar="NEW", help="the later results")
    parser.add_argument(
        "--side", metavar="NAME", help="which side of both (default: the only or the best one)"
    )
    add_outcome_arguments(parser, "write report.html, runs.csv, results.json there")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    # Imported now: they bring numpy, which --help can do without.
    from headlong.bench.report_folder import ReportFolder
    from headlong.bench.summary import compare, load_results

    document, rows = compare(load_results(args.old), load_results(args.new), args.side)
    if args.out is not None:
        ReportFolder(args.out).finish(document, (row.to_cells() for row in rows))
    console = make_console(stderr=args.json)
    print_results(document, console, is_quiet=args.quiet)
    return conclude(args, document, console, is_failed=document["overall"] is None)
