"""`headlong eval-head`: acceptance of a head, from real decoding.

In:  a model, a head, a prompt file with tasks. Out: acceptance length by task, temperature and K,
acceptance per depth, at each head precision; a table, a plot where asked for, JSON last.
Only the head drafts, packed in the precision that is evaluated.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.table import Table

from headlong.cli.bars import BenchBar
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, write_json
from headlong.cli.sampling_arguments import check_options
from headlong.config import DEFAULT_HEAD_QUANT, MAX_DRAFT_TOKENS, QuantName
from headlong.decode.stats import DecodeStats
from headlong.engine.limits import EngineLimits
from headlong.errors import RequestError
from headlong.provenance import read_provenance

if TYPE_CHECKING:
    from headlong.llm import LLM
    from headlong.train.prompt_files import Prompt

_AT_ONCE = 4
_OTHER_PLACE = "Name a file in a folder that you may write to."


@dataclass(frozen=True, slots=True)
class Setting:
    """One column of the results."""

    precision: str
    temperature: float
    num_draft_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    add_model_arguments(parser, "model", "head", "draft_vocabulary", "backend")
    # fmt: off
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE",
                        help="what is asked: one JSON object a line, plain or gzip")
    parser.add_argument("-k", type=int, action="append", metavar="K", help="default: 1 to 8")
    parser.add_argument("--temperature", type=float, action="append", metavar="T",
                        help="default: 0 and 0.7")
    parser.add_argument("--precision", choices=get_args(QuantName), action="append",
                        help=f"of the head (default: {DEFAULT_HEAD_QUANT})")
    parser.add_argument("--per-task", type=int, default=4, metavar="N",
                        help="ask the first N prompts of each task (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N",
                        help="tokens of each answer at most (default: 256)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw acceptance over K")
    # fmt: on
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Decode every prompt in every setting and report the acceptance."""
    from headlong.bench.local_side import name_head  # brings numpy, which --help can do without

    depths = args.k or list(range(1, 9))
    temperatures = args.temperature or [0.0, 0.7]
    # Refuse bad arguments before minutes of decoding.
    _check(args, depths, temperatures)
    plots = None if args.plot is None else _prepare_plot(args.plot)
    prompts = _choose(args.prompts, args.per_task)
    results: dict[Setting, dict[str, DecodeStats]] = {}
    console = make_console(stderr=args.json)
    for precision in args.precision or [DEFAULT_HEAD_QUANT]:
        # Several answers run at once, and K tokens are drafted even where that does not pay.
        limits = EngineLimits(honour_k=True)
        llm = load_llm(args, head_quant=precision, drafter="head", limits=limits)
        for temperature in temperatures:
            settings = [Setting(precision, temperature, k) for k in depths]
            results |= _decode_all(llm, prompts, settings, args.max_tokens)
            console.print(_make_table(results, precision, temperature))
    setup = {**describe_setup(llm), "head": name_head(llm, args.head)}
    write_json(setup | _describe(args, prompts, results))
    if plots is not None:
        # Last: if drawing fails, the results have been written.
        _draw(plots, results, args.plot)
    return 0


def _check(args: argparse.Namespace, depths: list[int], temperatures: list[float]) -> None:
    """Refuse invalid options."""
    if not all(1 <= k <= MAX_DRAFT_TOKENS for k in depths):
        raise RequestError(f"K is {depths}.", f"It must be from 1 to {MAX_DRAFT_TOKENS}.")
    if args.per_task < 1:
        raise RequestError(f"--per-task is {args.per_task}.", "Ask at least 1 prompt of each task.")
    for temperature in temperatures:
        check_options({"temperature": temperature, "max_tokens": args.max_tokens})


def _choose(file: Path, per_task: int) -> dict[str, list["Prompt"]]:
    """Read the prompts and take the first few of every task."""
    from headlong.train.prompt_files import read_prompts  # brings tokenizers

    chosen: dict[str, list[Prompt]] = {}
    for prompt in read_prompts(file):
        if len(chosen.setdefault(prompt.task, [])) < per_task:
            chosen[prompt.task].append(prompt)
    if not chosen:
        raise RequestError(f"{file} has no prompts.", 'Write {"prompt": "…"} on every line.')
    return chosen


def _decode_all(
    llm: "LLM",
    prompts: Mapping[str, Sequence["Prompt"]],
    settings: Sequence[Setting],
    max_tokens: int,
) -> dict[Setting, dict[str, DecodeStats]]:
    """Decode in each setting, one after the other, with a progress bar."""
    total = sum(len(asked) for asked in prompts.values())
    results: dict[Setting, dict[str, DecodeStats]] = {}
    for setting in settings:
        label = (
            f"{setting.precision} head, temperature {setting.temperature:g}, "
            f"K={setting.num_draft_tokens}"
        )
        with BenchBar(total, noun=f"prompts, {label}") as bar:
            results[setting] = _decode(llm, prompts, setting, max_tokens, partial(bar.tick, label))
    return results


def _decode(
    llm: "LLM",
    prompts: Mapping[str, Sequence["Prompt"]],
    setting: Setting,
    max_tokens: int,
    on_answer: Callable[[], None],
) -> dict[str, DecodeStats]:
    """Answer all prompts, a few at a time; only the head drafts."""
    counted = {task: DecodeStats() for task in prompts}
    for task, asked in prompts.items():
        for first in range(0, len(asked), _AT_ONCE):
            streams = [
                llm.stream(
                    [{"role": "user", "content": prompt.turns[0]}],
                    mtp=setting.num_draft_tokens,
                    temperature=setting.temperature,
                    max_tokens=max_tokens,
                    seed=number,
                )
                for number, prompt in enumerate(asked[first : first + _AT_ONCE], first)
            ]
            for stream in streams:
                counted[task].merge(stream.complete().stats)
                on_answer()
    return counted


def _by_depth(
    results: Mapping[Setting, Mapping[str, DecodeStats]], precision: str, temperature: float
) -> dict[int, Mapping[str, DecodeStats]]:
    """Return the results of one precision and temperature by K."""
    return {
        setting.num_draft_tokens: by_task
        for setting, by_task in results.items()
        if (setting.precision, setting.temperature) == (precision, temperature)
    }


def _make_table(
    results: Mapping[Setting, Mapping[str, DecodeStats]], precision: str, temperature: float
) -> Table:
    """Return a table of acceptance lengths by K, and acceptance by depth at the largest K."""
    chosen = _by_depth(results, precision, temperature)
    deepest = max(chosen)
    table = Table(title=f"acceptance length, head at {precision}, temperature {temperature:g}")
    table.add_column("task")
    for k in chosen:
        table.add_column(f"K={k}", justify="right")
    table.add_column(f"accepted at depth 1…{deepest}")
    for task, stats in chosen[deepest].items():
        lengths = [f"{by_task[task].acceptance_length:.2f}" for by_task in chosen.values()]
        table.add_row(task, *lengths, " ".join(f"{d:.2f}" for d in stats.acceptance_at_depth))
    return table


def _describe(
    args: argparse.Namespace,
    prompts: Mapping[str, Sequence["Prompt"]],
    results: Mapping[Setting, Mapping[str, DecodeStats]],
) -> dict[str, Any]:
    return {
        "prompts": {task: len(asked) for task, asked in prompts.items()},
        "max_tokens": args.max_tokens,
        "results": [
            {
                "precision": setting.precision,
                "temperature": setting.temperature,
                "k": setting.num_draft_tokens,
                "tasks": {task: stats.to_dict() for task, stats in by_task.items()},
            }
            for setting, by_task in results.items()
        ],
        "provenance": read_provenance().to_dict(),
    }


def _prepare_plot(path: Path) -> Any:
    """Return the drawing module; refuse a plot that cannot be drawn or written."""
    try:
        plots = importlib.import_module("headlong.cli.train_plot")
    except ImportError as error:
        raise RequestError(
            "--plot needs matplotlib, which is not installed.", "pip install 'headlong[train]'"
        ) from error
    kinds = plots.list_kinds()
    if path.suffix.lower().removeprefix(".") not in kinds:
        problem = f"--plot {path} does not have the suffix of a supported image format."
        raise RequestError(problem, f"Use one of .{', .'.join(kinds)}.")
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise RequestError(f"--plot {path} cannot be written.", _OTHER_PLACE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"--plot {path} cannot be written: {error}.", _OTHER_PLACE) from error
    return plots


def _draw(plots: Any, results: Mapping[Setting, Mapping[str, DecodeStats]], path: Path) -> None:
    """Draw the first precision and temperature over K."""
    first = next(iter(results))
    kept = _by_depth(results, first.precision, first.temperature)
    tasks = next(iter(kept.values()))
    lengths = {task: [kept[k][task].acceptance_length for k in kept] for task in tasks}
    try:
        plots.draw_acceptance(lengths, list(kept), path)
    except (OSError, ValueError) as error:
        raise RequestError(f"--plot {path} cannot be drawn: {error}.", _OTHER_PLACE) from error
    sys.stderr.write(f"plot: {path}\n")
