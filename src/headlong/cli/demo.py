"""`headlong demo`: see that the text is the same and how much sooner it comes.

In:  a model, by default the default one.
Out: a few prompts, each answered plain and with MTP, streamed; then a table. Models made for code
     are asked about code only, others are also asked something else.
Exit status 1 when two texts differ: that would break the promise of exactness.
"""

import argparse
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headlong.cli.answer_view import (
    can_colour,
    describe_completion,
    drafter_label,
    print_summary,
    stream_answer,
)
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, write_json
from headlong.cli.sampling_arguments import check_options
from headlong.decode.divergence import find_divergence
from headlong.provenance import Provenance, read_provenance
from headlong.weights.catalog import DEFAULT_MODEL, find_entry

if TYPE_CHECKING:
    from headlong.config import MtpMode
    from headlong.generation import Completion, Generation
    from headlong.llm import LLM

DEFAULT_MAX_TOKENS = 128
"""Keeps the whole demo under two minutes on two slow cores without compiled kernels."""

_MAX_PAIRS = 7
"""How often a prompt is answered each way for the medians; only the first pair is shown …"""

_MEASURE_S = 8.0
"""… and no new pair is begun after this long, so that a slow machine measures one pair."""

_WARM_UP_TOKENS = 12


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt and how it is sampled."""

    name: str
    text: str
    temperature: float


PROMPTS = (
    DemoPrompt(
        "code",
        "Add a method is_empty to this Python class and show the whole class:\n\n"
        "class Stack:\n"
        "    def __init__(self):\n"
        "        self.items = []\n\n"
        "    def push(self, item):\n"
        "        self.items.append(item)\n\n"
        "    def pop(self):\n"
        "        return self.items.pop()\n",
        temperature=0.0,
    ),
    DemoPrompt("chat", "What should I pack for a weekend hike?", temperature=0.7),
)

_BASKET = """\
```python
class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.items = {}

    def add(self, name, price, count=1):
        if count < 1:
            raise ValueError(f"count is {count}")
        old_price, old_count = self.items.get(name, (price, 0))
        self.items[name] = (price, old_count + count)

    def remove(self, name):
        if name not in self.items:
            raise KeyError(name)
        del self.items[name]

    def total(self):
        return sum(price * count for price, count in self.items.values())
```
"""

CODE_PROMPTS = (
    DemoPrompt(
        "edit",
        "Rename items to lines everywhere in this class. Answer with the whole code only.\n\n"
        + _BASKET,
        temperature=0.0,
    ),
    DemoPrompt(
        "code",
        "Write a Python function that merges overlapping intervals, with a docstring.",
        temperature=0.0,
    ),
    DemoPrompt("tests", "Write pytest tests for this class.\n\n" + _BASKET, temperature=0.7),
)
"""For models made for code."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prompt answered both ways, once or several times in turn."""

    prompt: DemoPrompt
    plain_runs: tuple["Completion", ...]
    mtp_runs: tuple["Completion", ...]

    @property
    def is_same(self) -> bool:
        """Whether all answers agree, token for token and character for character."""
        answers = (*self.plain_runs, *self.mtp_runs)
        return len({(answer.text, answer.token_ids) for answer in answers}) == 1

    @property
    def rates(self) -> tuple[float, float]:
        """Median tokens per second without and with drafts."""
        plain, drafted = (
            median(answer.timings.tokens_per_second for answer in answers)
            for answers in (self.plain_runs, self.mtp_runs)
        )
        return plain, drafted

    @property
    def speedup(self) -> float:
        """Tokens per second with MTP over those without; 0 when there was nothing to measure."""
        plain, drafted = self.rates
        return drafted / plain if plain else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the two answers that were shown and the comparison, for JSON."""
        plain_rate, drafted_rate = self.rates
        return {
            "prompt": self.prompt.name,
            "temperature": self.prompt.temperature,
            "same_text": self.is_same,
            "speedup": self.speedup,
            "num_pairs": len(self.plain_runs),
            "plain_tokens_per_second": plain_rate,
            "mtp_tokens_per_second": drafted_rate,
            "plain": describe_completion(self.plain_runs[0]),
            "mtp": describe_completion(self.mtp_runs[0]),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=DEFAULT_MAX_TOKENS,
        metavar="N",
        help=f"tokens of each answer (default: {DEFAULT_MAX_TOKENS})",
    )
    parser.add_argument(
        "--seed", type=int, default=2, metavar="N", help="names the noise of sampling (default: 2)"
    )
    add_json_argument(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer everything twice and compare."""
    check_options({"max_tokens": args.max_tokens, "seed": args.seed})
    llm = load_llm(args)
    console = make_console(stderr=args.json)
    _warm_up(llm, args.seed)
    entry = find_entry(args.model or DEFAULT_MODEL)
    prompts = CODE_PROMPTS if entry is not None and entry.is_coder else PROMPTS
    comparisons = [_compare(llm, prompt, args, console) for prompt in prompts]
    conditions = read_provenance()
    setup = describe_setup(llm)
    _print_table(comparisons, console)
    _print_conditions(comparisons, setup, conditions, console)
    is_same = all(comparison.is_same for comparison in comparisons)
    if not is_same:
        _print_alarm(comparisons, console)
    if args.json:
        write_json(
            {
                **setup,
                "same_text": is_same,
                "max_tokens": args.max_tokens,
                "seed": args.seed,
                "comparisons": [comparison.to_dict() for comparison in comparisons],
                "provenance": conditions.to_dict(),
            }
        )
    return 0 if is_same else 1


def _warm_up(llm: "LLM", seed: int) -> None:
    """Touch every weight and every path once, so that the first answer is not the slowest."""
    modes: tuple[MtpMode, ...] = ("off", "auto")
    for mtp in modes:
        llm.generate("1, 2, 3, 1, 2, 3, 1, 2", mtp=mtp, max_tokens=_WARM_UP_TOKENS, seed=seed)


def _compare(
    llm: "LLM", prompt: DemoPrompt, args: argparse.Namespace, console: Console
) -> Comparison:
    """Answer one prompt plain, then with MTP, streaming both."""
    console.print(Rule(Text(f"{prompt.name}: the prompt", style="bold"), align="left", style="dim"))
    console.print(prompt.text.rstrip(), soft_wrap=True)
    began_s = time.monotonic()
    plain_runs = [_show(_stream(llm, prompt, "off", args), f"{prompt.name}: plain", console)]
    mtp_runs = [_show(_stream(llm, prompt, "auto", args), f"{prompt.name}: with MTP", console)]
    while len(plain_runs) < _MAX_PAIRS and time.monotonic() - began_s < _MEASURE_S:
        plain_runs.append(_stream(llm, prompt, "off", args).complete())
        mtp_runs.append(_stream(llm, prompt, "auto", args).complete())
    return Comparison(prompt, tuple(plain_runs), tuple(mtp_runs))


def _stream(
    llm: "LLM", prompt: DemoPrompt, mtp: "MtpMode", args: argparse.Namespace
) -> "Generation":
    can_chat = llm.tokenizer.chat_template is not None
    return llm.stream(
        [{"role": "user", "content": prompt.text}] if can_chat else prompt.text,
        mtp=mtp,
        max_tokens=args.max_tokens,
        temperature=prompt.temperature,
        seed=args.seed,
    )


def _show(generation: "Generation", title: str, console: Console) -> "Completion":
    console.print(Rule(Text(title, style="bold"), align="left", style="dim"))
    completion = stream_answer(generation, console)
    print_summary(completion, console)
    return completion


def _print_table(comparisons: list[Comparison], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\nprompt", no_wrap=True)
    # Short lines: the table must stay whole in a window of 70 columns.
    titles = ("same\ntext", "\ntokens", "\nrounds", "accept.\nlength", "tok/s\nplain", "tok/s\nMTP")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("\nratio", justify="right", style="bold", no_wrap=True)
    for one in comparisons:
        temperature, drafted = one.prompt.temperature, one.mtp_runs[0]
        table.add_row(
            f"{one.prompt.name}, {f'T = {temperature:g}' if temperature else 'greedy'}",
            Text("yes", style="green") if one.is_same else Text("NO", style="bold red"),
            str(len(drafted.token_ids)),
            str(drafted.stats.rounds),
            f"{drafted.stats.acceptance_length:.2f}",
            *map(_format_rate, one.rates),
            f"{one.speedup:.2f} ×",
        )
    console.print(table)


def _format_rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 1000 else f"{tokens_per_s:.0f}"


def _print_conditions(
    comparisons: list[Comparison], setup: dict[str, str], conditions: Provenance, console: Console
) -> None:
    """Say what the numbers mean, what the colours mean, and where it all was measured."""
    names = dict.fromkeys(name for one in comparisons for name in one.mtp_runs[0].stats.by_drafter)
    pairs = " and ".join(f"{len(one.plain_runs)} pairs of {one.prompt.name}" for one in comparisons)
    legend = Text(
        "Acceptance length: mean tokens a round emits, the backbone's own included. Tokens/s: "
        f"medians of {pairs} answers in turn."
    )
    if names and can_colour(console):
        labels = Text(", ").join([drafter_label(name) for name in names])
        legend = Text.assemble(legend, " Coloured tokens were drafted: ", labels, ".")
    console.print(legend)
    backend = f"{setup['backend']} ({setup['backend_note']})"
    facts = f"{setup['model']} · drafter {setup['drafter']} · backend {backend}"
    console.print(f"{facts} · {conditions.summary}", style="dim")


def _print_alarm(comparisons: list[Comparison], console: Console) -> None:
    for one in comparisons:
        if one.is_same:
            continue
        first = find_divergence(one.plain_runs[0].token_ids, one.mtp_runs[0].token_ids) or 0
        console.print(
            f"THE TEXTS OF {one.prompt.name.upper()} DIFFER from token {first + 1} on. MTP must "
            "never change a text: this is a bug. Please report it with the output of --json.",
            style="bold red",
        )
