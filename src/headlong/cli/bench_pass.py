"""`headlong bench pass`: measure what passes cost on this machine.

In:  a model, row counts, a context length.
Out: a table for people, and one JSON document as the last line.
"""

import argparse
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from headlong.cli.bars import ProgressBar
from headlong.cli.model_arguments import add_model_arguments
from headlong.cli.output import add_json_argument, format_bytes, make_console, write_json
from headlong.errors import RequestError
from headlong.weights.sources import resolve_model

if TYPE_CHECKING:
    from headlong.bench.memory import Footprint
    from headlong.bench.pass_cost import PassCost, PassPlan
    from headlong.decode.runner import Runner
    from headlong.heads.layer_head import LayerHead
    from headlong.models.model_config import ModelConfig
    from headlong.models.transformer import Backbone
    from headlong.text.tokenizer import Tokenizer
    from headlong.weights.checkpoint import Checkpoint

_MAX_THREADS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    add_model_arguments(parser, "model", "backend")
    # fmt: off
    parser.add_argument("--rows", default="1,2,3,4,5,6,8,12,16", metavar="N,N,…",
                        help="row counts to measure (default: %(default)s)")
    for name, default, text in (("--context", 256, "positions before them"),
                                ("--prefill", 512, "rows of the prefill"),
                                ("--rounds", 30, "repetitions")):
        parser.add_argument(name, type=int, default=default, metavar="N",
                            help=f"{text} (default: {default})")
    parser.add_argument("--threads", type=int, metavar="N",
                        help="threads of the native backend (default: all cores)")
    # fmt: on
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    counts = _read_counts(args)
    # Imported now: they bring numpy, which --help can do without.
    from headlong.bench.memory import measure_footprint, resident_bytes
    from headlong.bench.pass_cost import PassPlan, make_stand_in_head, measure_pass
    from headlong.decode.choose_runner import choose_runner
    from headlong.decode.runner import RunnerBounds
    from headlong.decode.step_runner import StepRunner
    from headlong.drafters.head_drafter import RecursiveDrafter
    from headlong.models.model_config import read_config
    from headlong.models.registry import load_backbone
    from headlong.ops.backends import fit_ops, make_ops
    from headlong.text.tokenizer import load_tokenizer
    from headlong.weights.checkpoint import open_checkpoint

    plan = PassPlan(counts, args.context, args.prefill, args.rounds)
    ops = make_ops(args.backend, threads=args.threads)
    with ProgressBar() as progress:
        path = resolve_model(args.model, progress=progress)
    program_bytes = resident_bytes()
    start = time.perf_counter()
    checkpoint = open_checkpoint(path)
    ops = fit_ops(ops, args.backend, checkpoint.tensors.values())
    _refuse_too_long(args, counts[-1], read_config(checkpoint))
    backbone = load_backbone(checkpoint, ops).backbone
    tokenizer = load_tokenizer(checkpoint)  # a user's process has one in memory
    load_s = time.perf_counter() - start
    head = _native_head(checkpoint, backbone, tokenizer) or make_stand_in_head(backbone)
    del checkpoint
    ops.finish_loading()
    runner = choose_runner(backbone, RecursiveDrafter(head), RunnerBounds(max_running=3))
    if not isinstance(runner, StepRunner):
        return _run_rounds(runner, plan, {"model": path.name, "load_s": load_s}, as_json=args.json)
    footprint = measure_footprint(backbone, head, program_bytes)
    cost = measure_pass(backbone, head, plan)
    setting = {
        "backend": ops.name,
        "note": ops.note,
        "model": path.name,
        "context": plan.context,
        "load_s": load_s,
        "resident_bytes": footprint.resident_bytes,
        "memory": footprint.to_dict(),
    }
    _print(cost, footprint, setting, make_console(stderr=args.json))
    write_json(cost.to_dict() | setting)
    return 0


def _run_rounds(runner: "Runner", plan: "PassPlan", known: dict[str, Any], *, as_json: bool) -> int:
    """Measure whole rounds, where a device makes them, and print."""
    from headlong.bench.round_cost import measure_rounds
    from headlong.decode.device.runner import DeviceRunner

    assert isinstance(runner, DeviceRunner)
    cost = measure_rounds(runner, plan)
    setting = {"backend": runner.backbone.ops.name, "note": runner.backend, **known}
    setting["context"] = plan.context
    console = make_console(stderr=as_json)
    console.print(f"{known['model']}, {runner.backend}", soft_wrap=True)
    table = Table(title=f"one round at context {plan.context}", title_justify="left")
    for column in ("rows", "ms", "behind others, ms", "relative"):
        table.add_column(column, justify="right")
    base = cost.rows_in_a_row[min(cost.rows)]
    for count, ms in cost.rows_in_a_row.items():
        table.add_row(str(count), f"{cost.rows[count]:.3f}", f"{ms:.3f}", f"{ms / base:.2f}")
    console.print(table)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    step_ms = cost.draft_step_ms
    for label, value in (
        ("weights read per pass", format_bytes(cost.bytes_per_pass)),
        ("copy bandwidth", f"{cost.bandwidth_gb_s:.1f} GB/s"),
        ("share of it, one row", f"{cost.bandwidth_share:.0%}"),
        ("draft step", "no head" if step_ms is None else _tell_step(step_ms, base)),
        ("sampled pick", f"{cost.pick_ms:.3f} ms more than a greedy one"),
        ("prefill", f"{cost.prefill_tokens_per_s:.0f} tokens/s"),
        ("host's share of a round", f"{cost.host_share:.1%}, where the next one waits for it"),
        ("load", f"{known['load_s']:.2f} s"),
    ):
        facts.add_row(label, value)
    console.print(facts)
    write_json(cost.to_dict() | setting)
    return 0


def _native_head(
    checkpoint: "Checkpoint", backbone: "Backbone", tokenizer: "Tokenizer"
) -> "LayerHead | None":
    """Return the model's own MTP layer, with whatever it may draft from."""
    from headlong.config import ModelOptions
    from headlong.heads.choose_head import choose_head
    from headlong.heads.layer_head import LayerHead

    head = choose_head(checkpoint, backbone, tokenizer, ModelOptions(drafter="auto")).head
    return head if isinstance(head, LayerHead) else None


def _read_counts(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the row counts; refuse numbers that cannot be measured on any model."""
    if args.threads is not None and not 1 <= args.threads <= _MAX_THREADS:
        raise RequestError(
            f"--threads is {args.threads}.",
            f"Give a number from 1 to {_MAX_THREADS}, or leave it out to use all cores.",
        )
    try:
        counts = tuple(sorted({int(count) for count in args.rows.split(",")}))
    except ValueError:
        counts = ()
    numbers = (args.context, args.prefill, args.rounds)
    if not counts or counts[0] < 1 or min(numbers) < 1:
        raise RequestError(
            f"--rows {args.rows} --context {args.context} --prefill {args.prefill} --rounds "
            f"{args.rounds} cannot be measured.",
            "Give numbers of at least 1; --rows takes several, with commas between.",
        )
    return counts


def _refuse_too_long(args: argparse.Namespace, most_rows: int, config: "ModelConfig") -> None:
    """Refuse positions beyond the model's context."""
    limit = config.context_length
    for option, num_positions in (
        (f"--context {args.context} with {most_rows} rows", args.context + most_rows),
        (f"--prefill {args.prefill}", args.prefill),
    ):
        if num_positions > limit:
            raise RequestError(
                f"{option} takes {num_positions:,} positions, but the model's context has "
                f"{limit:,}.",
                "Give a smaller number, or measure a model with a longer context.",
            )


def _print(
    cost: "PassCost", footprint: "Footprint", setting: dict[str, Any], console: Console
) -> None:
    console.print(f"{setting['model']}, {setting['backend']} ({setting['note']})", soft_wrap=True)
    base = cost.rows[min(cost.rows)]
    table = Table(title=f"one pass at context {setting['context']}", title_justify="left")
    sizes = cost.bytes_by_rows
    has_experts = len(set(sizes.values())) > 1
    for column in ("rows", "ms", "relative", "ms per row", *(["weights read"] * has_experts)):
        table.add_column(column, justify="right")
    for count, ms in cost.rows.items():
        read = [format_bytes(sizes[count])] if has_experts else []
        table.add_row(str(count), f"{ms:.2f}", f"{ms / base:.2f}", f"{ms / count:.2f}", *read)
    console.print(table)
    pruned = cost.pruned_step_ms
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    for label, value in (
        ("weights read per pass", format_bytes(cost.bytes_per_pass)),
        ("memory bandwidth", f"{cost.bandwidth_gb_s:.1f} GB/s"),
        ("share of it, one row", f"{cost.bandwidth_share:.0%}"),
        *_tell_distance(cost.core_distance_ns),
        *_tell_threads(cost.threads_in_use),
        ("draft step", _tell_step(cost.draft_step_ms, base)),
        *([] if pruned is None else [("from fewer tokens", _tell_step(pruned, base))]),
        ("pick", f"{cost.pick_ms:.3f} ms sampled, {cost.pick_greedy_ms:.3f} ms greedy"),
        ("prefill", f"{cost.prefill_tokens_per_s:.0f} tokens/s"),
        ("head's share of the prefill", f"{cost.prefill_head_share:.1%}"),
        *_tell_python(cost.python_share),
        ("load", f"{setting['load_s']:.2f} s"),
        (f"memory at {footprint.num_positions:,}", _describe(footprint)),
    ):
        facts.add_row(label, value)
    console.print(facts)


def _tell_step(step_ms: float, pass_ms: float) -> str:
    return f"{step_ms:.3f} ms ({step_ms / pass_ms:.3f} of a pass)"


def _tell_python(share: float | None) -> list[tuple[str, str]]:
    """Say what of a pass is not spent in kernels, where a backend counts their time."""
    return [] if share is None else [("Python's share of a pass", f"{share:.1%}")]


def _tell_distance(core_distance_ns: float | None) -> list[tuple[str, str]]:
    """Say how far apart two cores are: rows are dearer between dies."""
    if core_distance_ns is None:
        return []
    return [("from core to core", f"{core_distance_ns:.0f} ns (one die: 30–100, two: 200–350)")]


def _tell_threads(threads_in_use: float | None) -> list[tuple[str, str]]:
    """Say how many threads ran passes: one alone, where other processes take cores away."""
    if threads_in_use is None:
        return []
    return [("threads in use", f"{threads_in_use:.3g} on average")]


def _describe(footprint: "Footprint") -> str:
    """Write memory as a sum; unknown parts are left out."""
    parts = [
        f"weights {format_bytes(footprint.weights_bytes)}",
        f"head {format_bytes(footprint.head_bytes)}",
        f"keys and values {format_bytes(footprint.kv_bytes)}",
    ]
    if not footprint.resident_bytes:
        return ", ".join(parts)
    parts += [
        f"Python and libraries {format_bytes(footprint.program_bytes)}",
        f"tokenizer and the rest {format_bytes(footprint.other_bytes)}",
    ]
    total = f"{format_bytes(footprint.resident_bytes)} ({footprint.share_of_weights:.2f} × weights)"
    return f"{total}: {', '.join(parts)}"
