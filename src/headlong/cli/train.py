"""`headlong train`: train a head for a model, from prompts alone.

In:  a model, prompt files, a recipe. Out: a head folder that `--head` takes, with run.json.
Stages exchange data through the work folder; each can be run alone and continues where it stopped.
This file imports neither rich nor the model store, so that it also runs on minimal GPU machines.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from headlong.errors import RequestError

STAGES = ("generate", "train", "evaluate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    # fmt: off
    parser.add_argument("--model", "-m", metavar="MODEL", help="the backbone, by path or name")
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="a TOML recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="overrule the recipe, like training.seconds=600; may be repeated")
    parser.add_argument("--prompts", type=Path, action="append", default=[], metavar="FILE",
                        help="what the model is asked, to learn from its answers; the stage "
                        "generate needs it; may be repeated")
    parser.add_argument("--bench", type=Path, metavar="FILE",
                        help="prompts to evaluate on; training prompts that share text "
                        "with them are left out, so give it to the stage generate too")
    parser.add_argument("--work", type=Path, default=Path("work"), help="default: work")
    parser.add_argument("--out", type=Path, default=Path("head"), help="default: head")
    parser.add_argument("--stage", action="append", choices=STAGES,
                        help="run only this stage; may be repeated (default: all)")
    parser.add_argument("--time-limit", type=float, default=86400.0, metavar="S",
                        help="seconds for this call")
    parser.add_argument("--from-head", type=Path, metavar="DIR",
                        help="continue from a trained head, which may have fewer draft tokens "
                        "or a narrower MLP, or from MTP layers in a separate file")
    parser.add_argument("--from-native", action="store_true",
                        help="tune the model's own MTP layer to draft deeper, and compare "
                        "acceptance before and after on the prompts of --bench")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"),
                        help="where to compute; auto takes the GPU where there is one "
                        "(default: auto)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"),
                        help="what the model and the head's steps compute in; auto takes bfloat16 "
                        "where the device has instructions for it (default: auto)")
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile")
    parser.add_argument("--no-triton", action="store_true", help="do without the Triton kernel")
    parser.add_argument("--split", action="store_true",
                        help="write the weights in parts of 14 MiB as well")
    parser.add_argument("--plan-only", action="store_true",
                        help="print what the stages would take in time and memory, and end")
    parser.add_argument("--no-plot", action="store_true", help="draw no training curve")
    parser.add_argument("--json", action="store_true", help="standard output gets one JSON "
                        "document only; progress goes to standard error")
    # fmt: on


def run(args: argparse.Namespace) -> int:
    """Run the stages, then print the results as JSON."""
    stages = args.stage or [stage for stage in STAGES if stage != "evaluate" or args.bench]
    recipe = importlib.import_module("headlong.train.recipe").read_recipe(args.recipe, args.set)
    # A model that writes all its prompts itself needs no file.
    needs_prompts = "generate" in stages and recipe.prompts.self_written_share < 1
    _check_files("--prompts", args.prompts, is_needed=needs_prompts)
    _check_files("--bench", [args.bench] if args.bench else [], is_needed="evaluate" in stages)
    pipeline_module = _load_training()
    options = pipeline_module.RunOptions(
        model=_find_model(args.model),
        work=args.work,
        out=args.out,
        prompt_files=tuple(args.prompts),
        bench_file=args.bench,
        from_head=args.from_head,
        from_native=args.from_native,
        device=args.device,
        time_limit_s=args.time_limit,
        dtype=args.dtype,
        compile=not args.no_compile,
        triton=not args.no_triton,
        split=args.split,
    )
    with _make_report(sys.stderr if args.json else sys.stdout) as report:
        pipeline = pipeline_module.Pipeline(recipe, options, report)
        plan = pipeline.plan(stages)
        report.say(plan.table())
        results = {} if args.plan_only else pipeline.run(stages)
        if not args.plan_only and not args.no_plot and "train" in stages:
            _draw(args, report)
    document = {"stages": stages, "out": str(args.out), "plan": plan.to_dict()}
    sys.stdout.write(json.dumps(document | results) + "\n")
    return 0


def _check_files(option: str, files: Sequence[Path], *, is_needed: bool) -> None:
    """Refuse missing prompt files before torch and the model are loaded."""
    if is_needed and not files:
        raise RequestError(
            f"There are no prompts: {option} was not given.",
            f'Name a file with {option}; it has one JSON object per line, like {{"prompt": "…"}}.',
        )
    for file in files:
        if not file.is_file():
            raise RequestError(f"There is no prompt file {file}.", f"Check {option}.")


class PlainReport:
    """Writes progress as lines, for logs and for machines without rich."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> "PlainReport":
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.flush()

    def say(self, text: str) -> None:
        """Write one line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Write the current figures."""
        shown = "  ".join(f"{name} {_shown(value)}" for name, value in numbers.items())
        self.say(f"{stage} {share:5.1%}  {shown}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(f"{item:.2f}" for item in value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if value is not None else "–"


def _make_report(stream: TextIO) -> Any:
    """Return a progress bar if there is a terminal and rich, else plain lines."""
    if stream.isatty():
        try:
            return importlib.import_module("headlong.cli.bars").TrainBar(
                stderr=stream is sys.stderr
            )
        except ImportError:
            pass
    return PlainReport(stream)


def _load_training() -> Any:
    try:
        return importlib.import_module("headlong.train.pipeline")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "headlong":
            raise
        raise RequestError(
            f"Training needs the package {error.name}, which is not installed.",
            "Install it with: pip install 'headlong[train]'",
        ) from error


def _find_model(name: str | None) -> Path:
    """Return a path unchanged; a name is resolved and pulled as for other commands."""
    if name is not None and Path(name).exists():
        return Path(name)
    resolved: Path = importlib.import_module("headlong.weights.sources").resolve_model(name)
    return resolved


def _draw(args: argparse.Namespace, report: Any) -> None:
    """Draw the training curve, if matplotlib is installed."""
    try:
        curves = importlib.import_module("headlong.cli.train_plot")
    except ImportError:
        report.say("matplotlib is not installed; the curve can be drawn later from log.jsonl")
        return
    report.say(f"training curve: {curves.draw_training(args.work / 'log.jsonl', args.out)}")
