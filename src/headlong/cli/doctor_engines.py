"""`headlong doctor --speculative-url URL --engine-url URL`: two engines held against each other.

In:  addresses of an engine that drafts and one that does not, and the model that both serve.
Out: one line per aspect as it is judged, and a sentence at the end; with `--json` one document. The
exit status is 1 when something failed.
"""

import argparse

from rich.text import Text

from headlong.cli.bars import ProgressBar
from headlong.cli.finding_view import FindingPrinter, plural
from headlong.cli.output import make_console, write_json
from headlong.errors import RequestError
from headlong.provenance import read_provenance
from headlong.weights.sources import resolve_model

EXIT_FAULT = 1

_QUICK_S, _LONG_S = 60.0, 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of an examination of engines."""
    # fmt: off
    group = parser.add_argument_group("engines in other processes")
    group.add_argument("--speculative-url", metavar="URL", help="examine this engine, which drafts")
    group.add_argument("--engine-url", metavar="URL",
                       help="against this one, which does not and has the same model")
    group.add_argument("--engine", metavar="KIND",
                       help="vllm (the default), llama.cpp, sglang, ollama or openai")
    group.add_argument("--engine-model", metavar="NAME",
                       help="what they call the model, where they have several")
    group.add_argument("--engine-key-file", metavar="FILE",
                       help="file with the API key that they want")
    # fmt: on


def is_asked_for(args: argparse.Namespace) -> bool:
    """Tell whether engines are to be examined."""
    names = ("speculative_url", "engine_url", "engine", "engine_model", "engine_key_file")
    return any(getattr(args, name) is not None for name in names)


def run(args: argparse.Namespace) -> int:
    """Examine the engines and say what was found."""
    from headlong.doctor.engines import EnginePair, examine_engines, finding_of
    from headlong.fleet.probing import ProbeOptions
    from headlong.server.served_fleet import read_key

    if args.speculative_url is None:
        problem = "No engine that drafts was named."
        raise RequestError(problem, "Name the one to be examined: --speculative-url URL.")
    with ProgressBar() as progress:
        path = resolve_model(args.model, progress=progress)
    key, model = read_key(args.engine_key_file), args.engine_model
    urls = args.speculative_url, args.engine_url
    pair = EnginePair(*urls, args.engine or "vllm", path, model, key)
    console = make_console(stderr=args.json)
    view = FindingPrinter(console)
    title = f"{args.speculative_url} against {args.engine_url or 'nothing'}"
    with make_console(stderr=True).status("asking both engines", spinner="dots"):
        options = ProbeOptions(seconds=_QUICK_S if args.quick else _LONG_S)
        verdict = examine_engines(pair, options, lambda finding: view.show(title, finding))
    findings = [finding_of(one) for one in verdict.judgements]
    faults, warnings = len(verdict.failed), sum(one.level == "warning" for one in findings)
    not_checked = sum(one.level == "skipped" for one in findings)
    counts = f"{plural(faults, 'fault')}, {plural(warnings, 'warning')}, {not_checked} not checked"
    style = "bold red" if faults else "bold yellow" if warnings or not_checked else "bold green"
    word = "Not to be trusted as it is" if faults else "No fault found"
    took = f", in {verdict.seconds:.0f} s with {verdict.num_tokens:,} tokens."
    console.print()
    console.print(Text.assemble((f"{word}: {counts}", style), took), soft_wrap=True)
    if args.json:
        told = {
            "trusted": not faults, "num_faults": faults, "num_warnings": warnings,
            "num_not_checked": not_checked, "seconds": verdict.seconds,
            "num_tokens": verdict.num_tokens, "findings": [one.to_dict() for one in findings],
        }  # fmt: skip
        write_json({**told, "provenance": read_provenance().to_dict()})
    return EXIT_FAULT if faults or (args.strict and (warnings or not_checked)) else 0
