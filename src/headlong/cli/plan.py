"""`headlong plan`: workers, cost and memory for an agent workload, with and without MTP.

In:  a workload, and one worker's speed: measured now, from `headlong bench`, or given. Or a load on
     a fleet, and one replica of each pool as `headlong bench load` measured it.
Out: a table, the same in plain words, and with `--json` one document.
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from headlong.cli.bars import BenchBar, ProgressBar
from headlong.cli.model_arguments import add_model_arguments, load_llm
from headlong.cli.output import add_json_argument, make_console, write_json
from headlong.errors import RequestError
from headlong.provenance import read_provenance
from headlong.weights.sources import resolve_model

if TYPE_CHECKING:
    from headlong.bench.capacity import CapacityPlan, SpeedPair
    from headlong.bench.memory import MemoryNeed, ModelSizes


_WORKLOAD = (
    "tasks_per_hour", "steps", "prompt_tokens", "new_tokens", "tool_tokens", "reuse", "utilisation"
)  # fmt: skip
"""Fields of a `Workload` whose options have the same name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    add_model_arguments(parser, "model", "head", "backend")
    _add_workload(parser.add_argument_group("workload"))
    _add_speed(parser.add_argument_group("one worker's speed (default: measured now)"))
    _add_resources(parser.add_argument_group("cost and memory"))
    _add_fleet(parser.add_argument_group("a fleet, in place of a workload"))
    add_json_argument(parser)


def _add_workload(group: argparse._ArgumentGroup) -> None:
    for name, kind, default, text in (
        ("--tasks-per-hour", float, 100.0, "tasks that must be done in an hour"),
        ("--steps", int, 8, "calls of the model in one task"),
        ("--prompt-tokens", int, 1500, "context of the first step"),
        ("--new-tokens", int, 150, "tokens written in every step"),
        ("--tool-tokens", int, 200, "tokens a tool's result adds after a step"),
        ("--tool-seconds", float, 1.0, "how long a tool runs after a step"),
        ("--reuse", float, 0.9, "share of the known context found in the prefix cache"),
        ("--utilisation", float, 0.7, "share of its time a worker shall be busy"),
    ):
        help_text = f"{text} (default: %(default)s)"
        group.add_argument(name, type=kind, default=default, metavar="N", help=help_text)
    group.add_argument(
        "--hold-worker", action="store_true", help="a task keeps its worker while a tool runs"
    )


def _add_speed(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--from", dest="results", type=Path, metavar="FILE", help="results of `headlong bench`"
    )
    for name, text in (
        ("--tokens-per-second", "tokens written a second, without MTP"),
        ("--prefill-tokens-per-second", "prompt tokens read a second"),
        ("--speedup", "how much sooner answers are written with MTP"),
    ):
        group.add_argument(name, type=float, metavar="N", help=text)


def _add_resources(group: argparse._ArgumentGroup) -> None:
    # fmt: off
    for name, kind, metavar, text in (
        ("--cost-per-hour", float, "N", "price of one worker"),
        ("--worker-cores", int, "N", "cores of one worker"),
        ("--context", int, "N", "longest context (default: that of the last step)"),
        ("--concurrency", int, "N",
         "contexts a worker holds at once (default: tasks under way, shared by the workers)"),
        ("--prefix-cache", float, "MB",
         "memory for prefixes that are kept between steps (default: the engine's own limit)"),
    ):
        group.add_argument(name, type=kind, metavar=metavar, help=text)
    # fmt: on


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    # fmt: off
    group.add_argument(
        "--fleet", type=Path, nargs="+", metavar="FILE",
        help="results of `headlong bench load` at one plain replica, then at one that drafts; one "
        "file where both were measured through one address",
    )
    for name, kind, metavar, text in (
        ("--requests-per-second", float, "N", "what the fleet has to carry"),
        ("--latency-p95", float, "S", "seconds in which 95 %% of answers have to be whole"),
        ("--ttft-p95", float, "MS", "the same of first tokens, in milliseconds"),
        ("--gap-p95", float, "MS", "the same of gaps between tokens"),
    ):
        group.add_argument(name, type=kind, metavar=metavar, help=text)
    # fmt: on
    spare = "replicas that may be down at once (default: %(default)s)"
    group.add_argument("--spare", type=int, default=1, metavar="N", help=spare)


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    _refuse_contradictions(args)
    # Imported now: they bring numpy, which --help can do without.
    if args.fleet is not None:
        from headlong.cli.plan_fleet import run_fleet

        return run_fleet(args)
    from headlong.bench.capacity import Workload, plan_capacity
    from headlong.cli.plan_view import PlanView

    named = {name: getattr(args, name) for name in _WORKLOAD}
    workload = Workload(tool_s=args.tool_seconds, holds_worker=args.hold_worker, **named)
    context = args.context or workload.last_context
    sizes = _read_sizes(args)
    if sizes is not None:
        _plan_memory(sizes, context, 1, args)  # refuses before a minute is spent on measuring
    speeds = _find_speeds(args)
    plain = plan_capacity(workload, speeds.plain, args.cost_per_hour)
    mtp = None if speeds.mtp is None else plan_capacity(workload, speeds.mtp, args.cost_per_hour)
    concurrency = args.concurrency or max(_share(plain), 1 if mtp is None else _share(mtp))
    memory = None if sizes is None else _plan_memory(sizes, context, concurrency, args)
    view = PlanView(
        workload, speeds, plain, mtp, memory, context, concurrency, worker_cores=args.worker_cores
    )
    view.print(make_console(stderr=args.json))
    if args.json:
        write_json({**view.to_dict(), "provenance": read_provenance().to_dict()})
    return 0


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """Refuse rates from two places, or half of them."""
    given = {
        "--tokens-per-second": args.tokens_per_second,
        "--prefill-tokens-per-second": args.prefill_tokens_per_second,
        "--speedup": args.speedup,
    }
    named = [name for name, value in given.items() if value is not None]
    if args.fleet is not None and (named or args.results is not None):
        given_too = ", ".join(named) or "--from"
        raise RequestError(f"Both --fleet and {given_too} were given.", "Give one of them.")
    if args.fleet is None and args.requests_per_second is not None:
        problem = "--requests-per-second was given without --fleet."
        raise RequestError(
            problem, "Name what was measured: --fleet FILE, or use --tasks-per-hour."
        )
    if named and args.results is not None:
        raise RequestError(
            f"Both --from {args.results} and {', '.join(named)} were given.", "Give one of them."
        )
    if named and (args.tokens_per_second is None or args.prefill_tokens_per_second is None):
        raise RequestError(
            f"Only {', '.join(named)} was given.",
            "Give --tokens-per-second and --prefill-tokens-per-second together (and --speedup to "
            "compare with MTP), or none of them to measure.",
        )
    for name in ("context", "concurrency", "worker_cores"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}.", "It must be 1 or more.")


def _find_speeds(args: argparse.Namespace) -> "SpeedPair":
    """Return one worker's rates: given, read, or measured now."""
    from headlong.bench.capacity import give_rates, measure_rates, one_of_each_task, read_rates
    from headlong.doctor.machine import check_load, read_machine

    if args.tokens_per_second is not None:
        return give_rates(args.tokens_per_second, args.prefill_tokens_per_second, args.speedup)
    if args.results is not None:
        return read_rates(args.results)
    llm = load_llm(args)
    load = check_load(read_machine())
    if load.remedy:
        text = f"note: {load.seen} {load.remedy}"
        make_console(stderr=True).print(text, style="yellow", soft_wrap=True)
    with BenchBar(2 * len(one_of_each_task())) as bar:
        return measure_rates(llm, bar.advance)


def _read_sizes(args: argparse.Namespace) -> "ModelSizes | None":
    """Weigh the model without unpacking it; None where no model is meant."""
    if args.model is None and (args.tokens_per_second is not None or args.results is not None):
        return None
    from headlong.bench.memory import ModelSizes, resident_bytes
    from headlong.cli.model_description import describe_model
    from headlong.ops.backends import make_ops
    from headlong.text.tokenizer import load_tokenizer
    from headlong.weights.checkpoint import open_checkpoint

    with ProgressBar() as progress:
        path = resolve_model(args.model, progress=progress)
    _tokenizer = load_tokenizer(open_checkpoint(path))  # a worker has one in memory
    process_bytes = resident_bytes()
    model = describe_model(path, make_ops(args.backend), args.head)
    if model.problem or model.weights_bytes is None or model.kv_bytes_per_token is None:
        raise RequestError(
            f"{path.name} cannot run here: {model.problem}", "Plan with a model that does."
        )
    heads = [head for head in model.heads if not head.problem]
    return ModelSizes(
        weights_bytes=model.weights_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        state_bytes_per_sequence=model.state_bytes_per_sequence,
        head_bytes=heads[-1].memory_bytes if heads else 0,
        head_kv_bytes_per_token=heads[-1].kv_bytes_per_token if heads else 0,
        context_length=None if model.config is None else model.config.context_length,
        process_bytes=process_bytes,
    )


def _plan_memory(
    sizes: "ModelSizes", context: int, concurrency: int, args: argparse.Namespace
) -> "MemoryNeed":
    from headlong.bench.memory import plan_memory
    from headlong.engine.limits import EngineLimits

    given = args.prefix_cache
    kept = EngineLimits().prefix_bytes if given is None else int(given * 10**6)
    return plan_memory(sizes, context, concurrency, kept)


def _share(capacity: "CapacityPlan") -> int:
    """Return the tasks under way at one worker."""
    return max(1, math.ceil(capacity.tasks_in_flight / capacity.workers))
