"""`headlong bench load URL [PROMPTS…]`: how does a server behave under load, and what does MTP add?

In:  the address of an OpenAI-compatible server, levels of load, prompts with classes.
Out: throughput, latencies and gains by level and class; with `--out` a report, CSV and JSON; with
     `--json` one JSON document as the last line. What was measured is kept when it is cut short.
"""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from headlong.cli.bars import BenchBar
from headlong.cli.bench import add_outcome_arguments, conclude, parse_duration, read_key
from headlong.cli.bench_view import print_load
from headlong.cli.output import make_console, read_stdin
from headlong.cli.sampling_arguments import parse_mtp
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.bench.http_side import HttpSide
    from headlong.bench.load_run import LoadLog, LoadPlan
    from headlong.bench.prompt_sets import PromptSet

_MAX_CONCURRENCY = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("url", metavar="URL", help="an OpenAI-compatible server")
    parser.add_argument("prompts", nargs="*", metavar="PROMPTS",
                        help="files or folders of prompts, - for stdin; their tasks are the "
                        "classes (default: the built-in load)")
    parser.add_argument("--concurrency", type=parse_numbers, metavar="N,N,…",
                        help="requests open at a time, one level each (default: 1,2,4,8,16,32)")
    parser.add_argument("--rate", type=parse_numbers, metavar="R,R,…",
                        help="requests arriving per second, one level each, instead of "
                        "--concurrency")
    parser.add_argument("--duration", type=parse_duration, default=20.0, metavar="TIME",
                        help="of each level: 20, 20s, 2m (default: 20)")
    parser.add_argument("--mix", type=parse_mix, metavar="CLASS=W,…",
                        help="which classes, and how often each (default: all equally)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of each answer at most "
                        "(default: as the prompt says, else 128)")
    parser.add_argument("--mtp", "-k", type=parse_mtp, default="auto", metavar="auto|K",
                        help="what is compared with off (default: auto)")
    parser.add_argument("--plain", action="store_true",
                        help="send no mtp field: one mode, no comparison")
    parser.add_argument("--model", "-m", metavar="NAME", help="the model's name (default: asked)")
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    parser.add_argument("--timeout", type=parse_duration, default=120.0, metavar="TIME",
                        help="longest silence: 90, 90s, 5m (default: 120)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    # fmt: on
    add_outcome_arguments(parser, "write report.html, requests.csv, results.json there")


def run(args: argparse.Namespace) -> int:
    """Put the load on the server, then say what came out."""
    # Imported now: they bring numpy and httpx, which --help can do without.
    from headlong.bench.load_run import LoadLog
    from headlong.bench.load_summary import list_requests, summarise_load
    from headlong.bench.measure import Context
    from headlong.bench.prompt_sets import LOAD_SET, read_prompt_set
    from headlong.bench.report_folder import LOAD, ReportFolder
    from headlong.provenance import read_provenance

    prompt_set = read_prompt_set(args.prompts, lambda: read_stdin(whole=True), LOAD_SET)
    plan = _make_plan(args, prompt_set)
    folder = None if args.out is None else ReportFolder(args.out, LOAD)
    sides = _make_sides(args, plan)
    log = LoadLog()
    conditions = read_provenance()
    with BenchBar(
        len(plan.levels) * plan.num_pairs * len(plan.modes), noun="slices", is_quiet=args.quiet
    ) as bar:
        _drive(sides, plan, log, bar, args.timeout)
    side = next(iter(sides.values()))
    context = Context(
        setup={"url": side.url, "model": side.model},
        prompts=prompt_set.describe(sum(map(len, plan.prompts.values()))),
        conditions=conditions.to_dict(),
        notes=prompt_set.notes,
    )
    document = summarise_load(log, plan, context)
    requests = list_requests(log)
    if folder is not None and requests:  # with nothing in it, the folder is free for another run
        folder.finish(document, requests)
    console = make_console(stderr=args.json)
    print_load(document, console, is_quiet=args.quiet)
    # Texts of servers may differ, as in `headlong bench`.
    is_failed = bool(document["stopped"] or document["failures"] or not document["levels"])
    return conclude(args, document, console, is_failed=is_failed)


def _drive(
    sides: "dict[str, HttpSide]", plan: "LoadPlan", log: "LoadLog", bar: BenchBar, timeout_s: float
) -> None:
    """Run the load to its end, or until the user stops it."""
    from headlong.bench.load_run import LoadClient, run_load
    from headlong.bench.measure import STOPPED_BY_USER

    async def drive() -> None:
        client = LoadClient(sides, timeout_s)
        try:
            await run_load(client, plan, log, lambda one: bar.tick(one.level.name))
        finally:
            await client.close()

    try:
        asyncio.run(drive())
    except KeyboardInterrupt:
        log.stopped = STOPPED_BY_USER
    finally:
        for side in sides.values():
            side.close()


def parse_numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between, all above 0."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 1,2,4")
    return tuple(dict.fromkeys(numbers))


def parse_mix(text: str) -> dict[str, float]:
    """Read weights of classes: agents=3,chat=1; a name alone weighs 1."""
    weights = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            weights[name.strip()] = float(weight or 1)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{part!r} is no class=weight") from error
    if not all(0 < weight < float("inf") for weight in weights.values()):
        raise argparse.ArgumentTypeError(f"{text!r} has weights that are not above 0")
    return weights


def _make_plan(args: argparse.Namespace, prompt_set: "PromptSet") -> "LoadPlan":
    """Return what to ask, how heavily; refuse what makes no sense before anything is asked."""
    from headlong.bench.load_run import LoadLevel, LoadPlan

    if args.concurrency is not None and args.rate is not None:
        raise RequestError("--concurrency and --rate were both given.", "Give one of them.")
    if args.max_tokens is not None and args.max_tokens < 1:
        raise RequestError(f"--max-tokens is {args.max_tokens}.", "Give 1 or more.")
    if args.mtp == "off":
        raise RequestError("--mtp off is the baseline anyway.", "Name what to compare it with.")
    concurrency = args.concurrency or (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    for number in concurrency:
        if number != int(number) or number > _MAX_CONCURRENCY:
            raise RequestError(
                f"--concurrency has {number:g}.",
                f"Give whole numbers from 1 to {_MAX_CONCURRENCY}.",
            )
    classes: dict[str, list[Any]] = {}
    for prompt in prompt_set.prompts:
        classes.setdefault(prompt.task, []).append(prompt)
    weights = args.mix or dict.fromkeys(classes, 1.0)
    for name in weights:
        if name not in classes:
            raise RequestError(f"There is no class {name!r}.", f"Classes: {', '.join(classes)}.")
    levels = args.rate or concurrency
    return LoadPlan(
        levels=[LoadLevel(value, args.rate is not None) for value in levels],
        modes=["plain"] if args.plain else ["off", str(args.mtp)],
        prompts={name: classes[name] for name in weights},
        weights=weights,
        duration_s=args.duration,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )


def _make_sides(args: argparse.Namespace, plan: "LoadPlan") -> "dict[str, HttpSide]":
    """Return how each mode asks; an address without a server is found out here."""
    from headlong.bench.http_side import HttpSide, clean_url, find_model

    url, key = clean_url(args.url), read_key(args.api_key_env)
    model = args.model or find_model(url, key)
    sides = {}
    for mode in plan.modes:
        sent: dict[str, Any] = {}
        if not args.plain:
            # Both modes are asked the same questions: neither shall find the other's in the cache.
            sent = {"mtp": int(mode) if mode.isdecimal() else mode, "cache_salt": mode}
        sides[mode] = HttpSide(mode, url, model, sent, key, timeout_s=args.timeout)
    return sides
