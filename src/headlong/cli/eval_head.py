"""`headlong eval-head`: how many tokens of a head stand, from real decoding.

In:  a model, a head, a prompt file with tasks. Out: acceptance length by task, temperature and K,
acceptance per depth, at each head precision; a table, a plot where asked for, JSON last.
Drafts come from the head alone, packed in the precision that is judged.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from headlong.cli.model_arguments import add_backend_argument
from headlong.cli.output import make_console, write_json
from headlong.cli.progress_bar import ProgressBar
from headlong.config import DEFAULT_HEAD_QUANT, MAX_DRAFT_TOKENS, QuantName
from headlong.decode.stats import DecodeStats
from headlong.errors import RequestError
from headlong.llm import LLM
from headlong.provenance import read_provenance
from headlong.train.prompt_files import Prompt, read_prompts

_AT_ONCE = 4
_EXAMPLES = """\
examples:
  headlong eval-head --prompts bench.jsonl                     the model's own head
  headlong eval-head --head my-head --prompts bench.jsonl -k 5 --temperature 0 --temperature 0.7
  headlong eval-head --prompts bench.jsonl --precision f16 --precision q8 --precision q4

Acceptance length is the mean number of tokens a round emits, the backbone's own token included.
A prompt file has one JSON object a line with "prompt" or "turns", and maybe "task".
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One column of the results."""

    precision: str
    temperature: float
    num_draft_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument("--model", "-m", metavar="MODEL", help="default: the default model")
    parser.add_argument(
        "--head", type=Path, metavar="DIR", help="default: the model's own or shipped head"
    )
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE")
    parser.add_argument("-k", type=int, action="append", metavar="K", help="default: 1 to 8")
    parser.add_argument(
        "--temperature", type=float, action="append", metavar="T", help="default: 0 and 0.7"
    )
    parser.add_argument(
        "--precision",
        choices=get_args(QuantName),
        action="append",
        help=f"of the head (default: {DEFAULT_HEAD_QUANT})",
    )
    parser.add_argument("--per-task", type=int, default=4, metavar="N", help="prompts of each task")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw acceptance over K")
    add_backend_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Decode every prompt in every setting and report what stood."""
    prompts = _choose(read_prompts(args.prompts), args.per_task)
    depths = args.k or list(range(1, 9))
    if not all(1 <= k <= MAX_DRAFT_TOKENS for k in depths):
        raise RequestError(f"K is {depths}.", f"It must be from 1 to {MAX_DRAFT_TOKENS}.")
    precisions = args.precision or [DEFAULT_HEAD_QUANT]
    temperatures = args.temperature or [0.0, 0.7]
    results: dict[Setting, dict[str, DecodeStats]] = {}
    console = make_console()
    for precision in precisions:
        llm = _load(args, precision)
        for temperature in temperatures:
            for k in depths:
                setting = Setting(precision, temperature, k)
                results[setting] = _decode(llm, prompts, setting, args.max_tokens)
            console.print(_make_table(results, precision, temperature))
    if args.plot is not None:
        _draw(results, args.plot)
    write_json(_describe(args, prompts, results))
    return 0


def _load(args: argparse.Namespace, precision: QuantName) -> LLM:
    with ProgressBar() as progress:
        return LLM.load(
            args.model,
            head=args.head,
            head_quant=precision,
            drafter="head",
            backend=args.backend,
            progress=progress,
        )


def _choose(prompts: Sequence[Prompt], per_task: int) -> dict[str, list[Prompt]]:
    """Take the first prompts of every task."""
    chosen: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        if len(chosen.setdefault(prompt.task, [])) < per_task:
            chosen[prompt.task].append(prompt)
    return chosen


def _decode(
    llm: LLM, prompts: Mapping[str, Sequence[Prompt]], setting: Setting, max_tokens: int
) -> dict[str, DecodeStats]:
    """Answer all prompts, a few at a time, with drafts of the head alone."""
    counted: dict[str, DecodeStats] = {}
    for task, asked in prompts.items():
        stats = counted.setdefault(task, DecodeStats())
        for first in range(0, len(asked), _AT_ONCE):
            group = asked[first : first + _AT_ONCE]
            streams = [
                llm.stream(
                    [{"role": "user", "content": prompt.turns[0]}],
                    mtp=setting.num_draft_tokens,
                    temperature=setting.temperature,
                    max_tokens=max_tokens,
                    seed=number,
                )
                for number, prompt in enumerate(group, first)
            ]
            for stream in streams:
                stats.merge(stream.complete().stats)
    return counted


def _make_table(
    results: Mapping[Setting, Mapping[str, DecodeStats]], precision: str, temperature: float
) -> Table:
    """Lay out acceptance lengths by K, then the deepest K's acceptance at every depth."""
    chosen = {
        setting.num_draft_tokens: by_task
        for setting, by_task in results.items()
        if (setting.precision, setting.temperature) == (precision, temperature)
    }
    deepest = max(chosen)
    table = Table(title=f"acceptance length, head at {precision}, temperature {temperature:g}")
    table.add_column("task")
    for k in chosen:
        table.add_column(f"K={k}", justify="right")
    table.add_column(f"stood at depth 1…{deepest}")
    for task, stats in chosen[deepest].items():
        lengths = [f"{by_task[task].acceptance_length:.2f}" for by_task in chosen.values()]
        table.add_row(task, *lengths, " ".join(f"{d:.2f}" for d in stats.acceptance_at_depth))
    return table


def _describe(
    args: argparse.Namespace,
    prompts: Mapping[str, Sequence[Prompt]],
    results: Mapping[Setting, Mapping[str, DecodeStats]],
) -> dict[str, Any]:
    return {
        "head": None if args.head is None else str(args.head),
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


def _draw(results: Mapping[Setting, Mapping[str, DecodeStats]], path: Path) -> None:
    """Draw the first precision and temperature over K."""
    try:
        plots = importlib.import_module("headlong.cli.train_plot")
    except ImportError as error:
        raise RequestError(
            "--plot needs matplotlib, which is not installed.", "pip install 'headlong[train]'"
        ) from error
    first = next(iter(results))
    kept = {
        s.num_draft_tokens: by_task
        for s, by_task in results.items()
        if (s.precision, s.temperature) == (first.precision, first.temperature)
    }
    tasks = next(iter(kept.values()))
    lengths = {task: [kept[k][task].acceptance_length for k in kept] for task in tasks}
    plots.draw_acceptance(lengths, list(kept), path)
    sys.stderr.write(f"plot: {path}\n")
