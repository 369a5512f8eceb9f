"""`headlong bench grid [PROMPTS…]`: what decides the gain on this machine?

In:  a model, prompts with tasks, levels of temperature, precisions, K and drafters.
Out: maps and the finding in words; with `--out` a folder that the same command goes on with, a
     report, CSV and JSON; with `--json` one JSON document as the last line.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from headlong.cli.bars import BenchBar
from headlong.cli.bench import add_outcome_arguments, conclude, parse_duration
from headlong.cli.bench_view import print_grid
from headlong.cli.model_arguments import add_model_arguments, load_llm
from headlong.cli.output import make_console, read_stdin
from headlong.cli.sampling_arguments import check_options, parse_mtp
from headlong.config import QuantName
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.bench.grid_cells import Axes, Cell
    from headlong.bench.grid_run import GridModels, GridPlan, Record
    from headlong.bench.measure import Context
    from headlong.bench.prompt_sets import BenchPrompt, PromptSet
    from headlong.llm import LLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("prompts", nargs="*", metavar="PROMPTS",
                        help="files or folders of prompts, - for stdin")
    levels = parser.add_argument_group("levels, each may be given several times")
    levels.add_argument("--task", action="append", metavar="NAME", help="(default: all tasks)")
    levels.add_argument("--temperature", type=float, action="append", metavar="T",
                        help="(default: 0, 0.3, 0.7, 1)")
    levels.add_argument("--quant", choices=get_args(QuantName), action="append",
                        help="(default: q4, q8, f16)")
    levels.add_argument("--head-quant", choices=get_args(QuantName), action="append",
                        help="(default: q8, q4, f16)")
    levels.add_argument("--mtp", "-k", type=parse_mtp, action="append", metavar="auto|off|K",
                        help="off is plain decoding against itself (default: auto, off, 1…6)")
    levels.add_argument("--drafter", choices=("chain", "head", "ngram"), action="append",
                        help="(default: chain, head, ngram)")
    parser.add_argument("--time-budget", type=parse_duration, metavar="TIME",
                        help="begin no new cell after this long: 90, 90s, 20m, 1h")
    parser.add_argument("--max-cells", type=int, metavar="N",
                        help="only the N most informative cells")
    parser.add_argument("--prompts-per-task", type=int, default=3, metavar="N",
                        help="prompts every cell asks (default: 3)")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N",
                        help="of each answer (default: 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of sampling and of the order (default: 0)")
    parser.add_argument("--raw", action="store_true", help="use no chat template")
    # fmt: on
    add_outcome_arguments(
        parser,
        "keep every cell there, go on with those that are there already, and write report.html, "
        "grid.svg, cells.csv, results.json",
    )
    add_model_arguments(parser, "model", "head", "backend")


def run(args: argparse.Namespace) -> int:
    """Measure, then say what came out."""
    _check(args)
    # Imported now: they bring numpy, which --help can do without.
    from headlong.bench.grid_cells import order_cells
    from headlong.bench.grid_run import run_grid
    from headlong.bench.grid_summary import summarise_grid
    from headlong.bench.prompt_sets import read_prompt_set
    from headlong.bench.report_folder import GRID, ReportFolder

    prompt_set = read_prompt_set(args.prompts, lambda: read_stdin(whole=True))
    axes = _make_axes(args, prompt_set)
    folder = None if args.out is None else ReportFolder(args.out, GRID)
    models = _make_models(args)
    drafted = models.model(axes.quants[0]).with_drafter(head=args.head)
    if drafted.head is None and args.drafter is None:
        axes, prompt_set = _drop_headless(axes, prompt_set)
    if drafted.head is not None and args.head_quant is None:
        axes = axes.led_by(drafted.head.report.quant)
    setup = _describe_setup(args, drafted)
    cells = order_cells(axes, args.seed)[: args.max_cells]
    plan, context = _prepare(args, axes, cells, prompt_set, models, setup)
    for note in context.notes if not args.quiet else ():
        make_console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)
    known = {} if folder is None else folder.known()
    num_left = sum(plan.key(cell) not in known for cell in cells)
    with BenchBar(num_left, args.time_budget, noun="cells", is_quiet=args.quiet) as bar:

        def note_cell(cell: "Cell", record: "Record") -> None:
            if folder is not None:
                folder.add(record)
            error = record["error"]
            bar.tick(cell.task[:14], None if error is None else f"{cell.name}: {error}")

        measured = run_grid(models, plan, known, note_cell)
    document = summarise_grid(measured, context)
    if folder is not None:
        folder.finish(document, document["cells"])
    console = make_console(stderr=args.json)
    print_grid(document, console, is_quiet=args.quiet)
    is_failed = bool(document["failures"]) or not document["num_measured"]
    return conclude(
        args, document, console, is_failed=is_failed or not document["identical"]["all"]
    )


def _check(args: argparse.Namespace) -> None:
    """Refuse impossible numbers before anything is loaded."""
    for temperature in args.temperature or [0.0]:
        check_options(
            {"temperature": temperature, "max_tokens": args.max_tokens, "seed": args.seed}
        )
    for option in ("max_cells", "prompts_per_task"):
        value = getattr(args, option)
        if value is not None and value < 1:
            flag = f"--{option.replace('_', '-')}"
            raise RequestError(f"{flag} is {value}.", "Give 1 or more.")
    if args.mtp is not None and set(args.mtp) == {"off"}:
        raise RequestError(
            "--mtp off alone compares plain decoding with itself.", "Name auto or a number too."
        )


def _make_axes(args: argparse.Namespace, prompt_set: "PromptSet") -> "Axes":
    """Return the levels that were asked for."""
    from headlong.bench.grid_cells import Axes

    tasks = tuple(dict.fromkeys(prompt.task for prompt in prompt_set.prompts))
    for task in args.task or ():
        if task not in tasks:
            raise RequestError(f"There is no task {task!r}.", f"Tasks are {', '.join(tasks)}.")
    chosen = {
        "temperatures": args.temperature,
        "quants": args.quant,
        "head_quants": args.head_quant,
        "modes": args.mtp,
        "drafters": args.drafter,
    }
    given = {name: _unique(levels) for name, levels in chosen.items() if levels is not None}
    return Axes(tasks=_unique(args.task or tasks), **given)


def _unique(levels: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(levels))


def _make_models(args: argparse.Namespace) -> "GridModels":
    """Return what loads the model in each precision."""
    from headlong.bench.grid_run import GridModels

    def load(quant: QuantName) -> "LLM":
        return load_llm(args, quant=quant, drafter="none", head=None, head_quant="auto")

    return GridModels(load, args.head, args.raw)


def _describe_setup(args: argparse.Namespace, llm: "LLM") -> dict[str, str]:
    """Return what answers in every cell."""
    from headlong.bench.local_side import name_head

    return {
        "model": llm.model_path.name,
        "head": name_head(llm, args.head),
        "backend": llm.backbone.ops.name,
        "backend_note": llm.backbone.ops.note,
    }


def _drop_headless(axes: "Axes", prompt_set: "PromptSet") -> "tuple[Axes, PromptSet]":
    """Leave drafters out that need a head, for a model that has none, and note it."""
    note = "The model has no head, so only n-grams are measured; name one with --head DIR."
    return (
        replace(axes, drafters=("ngram",)),
        replace(prompt_set, notes=(*prompt_set.notes, note)),
    )


def _prepare(
    args: argparse.Namespace,
    axes: "Axes",
    cells: "Sequence[Cell]",
    prompt_set: "PromptSet",
    models: "GridModels",
    setup: dict[str, str],
) -> "tuple[GridPlan, Context]":
    """Return the plan of the run, and what its document says besides the numbers."""
    from headlong.bench.grid_run import GridPlan
    from headlong.bench.measure import Context
    from headlong.provenance import read_provenance

    prompts, skipped = _choose_prompts(args, axes, prompt_set, models)
    conditions = read_provenance()
    # What a cell's result depends on besides the cell; anything else measures the same again.
    place = [*setup.values(), conditions.cpu, args.raw]
    plan = GridPlan(
        cells, prompts, args.max_tokens, args.seed, args.time_budget, repr(place), conditions.commit
    )
    asked = [prompt for own in prompts.values() for prompt in own]
    context = Context(
        setup=setup,
        settings={
            "temperatures": list(axes.temperatures),
            "prompts_per_task": args.prompts_per_task,
            "max_tokens": args.max_tokens,
            "seed": args.seed,
            "time_budget_s": args.time_budget,
        },
        prompts=replace(prompt_set, prompts=tuple(asked)).describe(len(asked), skipped),
        conditions=conditions.to_dict(),
        num_planned=len(cells),
        notes=prompt_set.notes,
    )
    return plan, context


def _choose_prompts(
    args: argparse.Namespace, axes: "Axes", prompt_set: "PromptSet", models: "GridModels"
) -> "tuple[dict[str, list[BenchPrompt]], list[str]]":
    """Return the first prompts of every task that the model has room for."""
    from headlong.bench.local_side import split_by_context

    llm = models.model(axes.quants[0])
    own = [prompt for prompt in prompt_set.prompts if prompt.task in axes.tasks]
    fitting, skipped = split_by_context(llm, own, is_raw=args.raw)
    prompts = {
        task: [prompt for prompt in fitting if prompt.task == task][: args.prompts_per_task]
        for task in axes.tasks
    }
    empty = [task for task, found in prompts.items() if not found]
    if empty:
        raise RequestError(
            f"No prompt of task {empty[0]} fits into the model's context.",
            "Name other tasks with --task, or give shorter prompts.",
        )
    return prompts, skipped
