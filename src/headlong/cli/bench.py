"""`headlong bench [PROMPTS…]`: what does MTP gain on these prompts, on this machine?

In:  prompts, by default the built-in task set; a model, or one or two servers.
Out: a verdict and a table; with `--out` a report, CSV and JSON; with `--json` one JSON document as
     the last line. Exit status 1 when something failed or texts differ; what was measured is kept.
"""

import argparse
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlong.cli.bars import BenchBar
from headlong.cli.bench_view import print_results
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, read_stdin, write_json
from headlong.cli.sampling_arguments import check_options, parse_mtp
from headlong.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from headlong.bench.measure import QuestionPlan, Side
    from headlong.bench.prompt_sets import PromptSet
    from headlong.bench.summary import BenchSetup

SUB_VERBS = {
    "pass": "measure what passes cost on this machine",
    "compare": "compare two measurements of the same prompts",
    "grid": "measure what decides the gain: task, temperature, precision, K, drafter",
    "load": "measure a running server under a mixed load, with MTP and without",
}

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.usage = "headlong bench [options] [PROMPTS ...]\n       headlong bench VERB --help"
    # fmt: off
    parser.add_argument("prompts", nargs="*", metavar="PROMPTS",
                        help="files or folders of prompts, - for stdin")
    parser.add_argument("--mtp", "-k", type=parse_mtp, action="append", metavar="auto|K",
                        help="what is compared with plain decoding; may be given several times "
                        "(default: auto)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of each answer at most "
                        "(default: as the prompt says, else 128)")
    parser.add_argument("--temperature", type=float, action="append", metavar="T",
                        help="may be given several times (default: as the prompt says, else 0)")
    parser.add_argument("--runs", type=int, default=1, metavar="N",
                        help="times every prompt is asked (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of sampling and of the order (default: 0)")
    parser.add_argument("--time-budget", type=parse_duration, metavar="TIME",
                        help="begin no new prompt after this long: 90, 90s, 5m, 1h")
    parser.add_argument("--raw", action="store_true", help="use no chat template")
    # fmt: on
    add_outcome_arguments(parser, "write report.html, runs.csv, results.json there")
    _add_server_arguments(parser.add_argument_group("servers instead of a model in this process"))
    add_model_arguments(parser)


def _add_server_arguments(group: argparse._ArgumentGroup) -> None:
    # fmt: off
    group.add_argument("--url", action="append", metavar="URL",
                       help="an OpenAI-compatible server; give two to compare A with B; --model "
                       "names its model")
    for side in ("a", "b"):
        group.add_argument(f"--body-{side}", type=parse_body, metavar="JSON",
                           help=f"more fields for the requests to {side.upper()}; null takes one "
                           "out")
    group.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    group.add_argument("--timeout", type=parse_duration, default=300.0, metavar="TIME",
                       help="longest silence: 90, 90s, 5m (default: 300)")
    group.add_argument("--tokenizer", metavar="MODEL",
                       help="count tokens with this model's tokenizer, not by the servers' usage")
    # fmt: on


def run(args: argparse.Namespace) -> int:
    """Measure, then say what came out."""
    _check(args)
    # Imported now: they bring numpy, which --help can do without.
    from headlong.bench.measure import make_questions
    from headlong.bench.prompt_sets import read_prompt_set
    from headlong.bench.summary import measure

    prompt_set = read_prompt_set(args.prompts, lambda: read_stdin(whole=True))
    console = make_console(stderr=args.json)
    with ExitStack() as closing:
        if args.url:
            sides, plan, bench = _prepare_servers(args, prompt_set, closing)
        else:
            sides, plan, bench = _prepare_local(args, prompt_set)
        if not args.quiet:
            for line in (*bench.notes, *(f"skipped: {line}" for line in bench.skipped)):
                make_console(stderr=True).print(line, style="yellow", soft_wrap=True)
        total = len(make_questions(plan)) * len(sides)
        with BenchBar(total, plan.time_budget_s, is_quiet=args.quiet) as bar:
            document = measure(sides, plan, bench, bar.advance)
    print_results(document, console, is_quiet=args.quiet)
    identical = document["identical"]
    # Between servers texts may differ; in one process MTP must not change a letter.
    is_broken = document["measures"] == "mtp" and identical is not None and not identical["all"]
    is_failed = bool(document["failures"]) or document["overall"] is None
    return conclude(args, document, console, is_failed=is_failed or is_broken)


def add_outcome_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add what every verb of this family has: where results go, and how much is said."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress, verdict only")
    add_json_argument(parser)


def conclude(
    args: argparse.Namespace, document: dict[str, Any], console: "Console", *, is_failed: bool
) -> int:
    """Say where the report is, write the JSON line, and return what a script should see."""
    from headlong.bench.measure import STOPPED_BY_USER
    from headlong.bench.report_folder import REPORT

    if args.out is not None and not args.quiet and (args.out / REPORT).exists():
        console.print(f"Report: {args.out / REPORT}", soft_wrap=True)
    if args.json:
        write_json(document)
    if document["stopped"] == STOPPED_BY_USER:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if is_failed else 0


def parse_duration(text: str) -> float:
    """Read a time as typed: seconds, or with s, m or h."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90, 90s, 5m or 1h")
    return seconds


def parse_body(text: str) -> dict[str, Any]:
    """Read extra fields of a request as typed."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return body


def _check(args: argparse.Namespace) -> None:
    """Refuse impossible numbers and options that do not go together, before anything is loaded."""
    for temperature in args.temperature or [0.0]:
        check_options(
            {"temperature": temperature, "max_tokens": args.max_tokens or 1, "seed": args.seed}
        )
    if args.max_tokens is not None and args.max_tokens < 1:
        raise RequestError(f"--max-tokens is {args.max_tokens}.", "Give 1 or more.")
    if args.runs < 1:
        raise RequestError(f"--runs is {args.runs}.", "Ask every prompt at least once.")
    if "off" in (args.mtp or []):
        raise RequestError("--mtp off is the baseline anyway.", "Name what to compare it with.")
    if args.url:
        if args.mtp:
            raise RequestError(
                "--mtp was given with --url, but what a server does is up to the server.",
                """For a Headlong server: --body-a '{"mtp": "off"}' --body-b '{"mtp": "auto"}'.""",
            )
        if len(args.url) > 2:
            raise RequestError(f"--url was given {len(args.url)} times.", "Give one or two.")
    elif args.body_a or args.body_b or args.tokenizer or args.api_key_env:
        raise RequestError("Options for servers were given without --url.", "Name a server.")


def _make_plan(args: argparse.Namespace, prompts: Any) -> "QuestionPlan":
    from headlong.bench.measure import QuestionPlan

    temperatures = None if args.temperature is None else tuple(dict.fromkeys(args.temperature))
    return QuestionPlan(
        prompts, temperatures, args.max_tokens, args.runs, args.seed, args.time_budget
    )


def _prepare_local(
    args: argparse.Namespace, prompt_set: "PromptSet"
) -> tuple[list["Side"], "QuestionPlan", "BenchSetup"]:
    """Load the model; its sides are plain decoding and every mode asked for."""
    from headlong.bench.conclusion import Wording
    from headlong.bench.local_side import LocalSide, name_head, split_by_context
    from headlong.bench.report_folder import ReportFolder
    from headlong.bench.summary import BenchSetup

    folder = None if args.out is None else ReportFolder(args.out)
    llm = load_llm(args)
    if llm.drafter is None:
        raise RequestError(
            "The model was loaded without a drafter, so there is nothing to compare.",
            "Leave --drafter out, or name a head with --head.",
        )
    fitting, skipped = split_by_context(llm, prompt_set.prompts, is_raw=args.raw)
    if not fitting:
        raise RequestError(
            f"All prompts are too long for the model: {skipped[0]}",
            "Give shorter prompts, or a model with a longer context.",
        )
    modes = dict.fromkeys(["off", *(args.mtp or ["auto"])])
    sides: list[Side] = [LocalSide(llm, mode, args.raw) for mode in modes]
    bench = BenchSetup(
        Wording.MTP,
        describe_setup(llm) | {"head": name_head(llm, args.head)},
        prompt_set,
        notes=prompt_set.notes,
        skipped=skipped,
        folder=folder,
    )
    return sides, _make_plan(args, fitting), bench


def _prepare_servers(
    args: argparse.Namespace, prompt_set: "PromptSet", closing: ExitStack
) -> tuple[list["Side"], "QuestionPlan", "BenchSetup"]:
    """Find out about the servers; B is A with another body when there is one address only."""
    from headlong.bench.conclusion import Wording
    from headlong.bench.http_side import READ_AHEAD, HttpSide, clean_url, find_model
    from headlong.bench.report_folder import ReportFolder
    from headlong.bench.summary import BenchSetup

    folder = None if args.out is None else ReportFolder(args.out)
    urls = [clean_url(url) for url in args.url]
    if len(urls) == 1 and args.body_b is not None:
        urls *= 2
    bodies = [args.body_a or {}, args.body_b or {}]
    key = read_key(args.api_key_env)
    is_shared = len(set(urls)) < len(urls)
    sides: list[Side] = []
    models = []
    for name, url, body in zip("AB", urls, bodies, strict=False):
        model = str(body.get("model") or args.model or find_model(url, key))
        models.append(model)
        side = HttpSide(name, url, model, body, key, args.raw, args.timeout, is_shared)
        closing.callback(side.close)
        sides.append(side)
    count = None if args.tokenizer is None else _make_counter(args.tokenizer)
    setup = {"model": ", ".join(dict.fromkeys(models))}
    if args.tokenizer is not None:
        setup["tokenizer"] = args.tokenizer
    notes = (*prompt_set.notes, *([READ_AHEAD] if is_shared else []))
    bench = BenchSetup(Wording.SIDES, setup, prompt_set, notes=notes, count=count, folder=folder)
    return sides, _make_plan(args, prompt_set.prompts), bench


def read_key(variable: str | None) -> str | None:
    """Return the API key that a variable holds."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise RequestError(f"The variable {variable} is not set.", f"export {variable}=…")
    return key


def _make_counter(model: str) -> Any:
    """Return a function that counts the tokens of a text."""
    from headlong.text.tokenizer import load_tokenizer
    from headlong.weights.checkpoint import open_checkpoint
    from headlong.weights.sources import resolve_model

    tokenizer = load_tokenizer(open_checkpoint(resolve_model(model)))
    return lambda text: len(tokenizer.encode(text, add_special=False))
