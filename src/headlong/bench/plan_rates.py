"""Rates for a plan: one worker's speed, measured here, read from a results file, or given.

In:  a loaded model, a `headlong bench` results file, or numbers. Out: `SpeedPair`: the rates
without MTP and with it. Measured and read ones come from answers that both sides gave, counted the
same way; reading a prompt is timed up to the first token, the head's part included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from headlong.bench.ab import STOPPED_BY_USER, Plan, run_ab
from headlong.bench.compare import load_results
from headlong.bench.figures import Block, describe_side, pair_rows
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import Run
from headlong.bench.plan import Rates
from headlong.bench.prompt_sets import BenchPrompt, read_prompt_set
from headlong.bench.rows import make_row, read_row
from headlong.config import MtpMode
from headlong.errors import RequestError
from headlong.llm import LLM

MEASURED_TOKENS = 96
"""Tokens of each measured answer."""

READ_TOKENS = 512
"""Tokens of a prompt whose reading is timed."""

TIME_BUDGET_S = 20.0

_MIN_READ = 8
"""Prompt tokens below which the time to the first token tells nothing of reading."""

_READ_REPEATS = 3
_MEASURE_AGAIN = "Measure with `headlong bench`, or give the rates as numbers."


@dataclass(frozen=True, slots=True)
class SpeedPair:
    """One worker's rates, without MTP and with it."""

    plain: Rates
    mtp: Rates | None
    """None when only one side is known."""
    source: str
    """Where the numbers come from, for people."""

    @property
    def speedup(self) -> float | None:
        """How much sooner answers are written with MTP."""
        if self.mtp is None:
            return None
        return self.mtp.write_tokens_per_second / self.plain.write_tokens_per_second


def give_rates(
    tokens_per_second: float, prefill_tokens_per_second: float, speedup: float | None
) -> SpeedPair:
    """Take rates as given; MTP is taken to leave the reading of prompts as it is."""
    plain = Rates(prefill_tokens_per_second, tokens_per_second)
    if speedup is None:
        return SpeedPair(plain, None, "given")
    if not speedup > 0:
        raise RequestError(f"speedup is {speedup}.", "It must be above 0; 1 means no gain.")
    return SpeedPair(plain, Rates(prefill_tokens_per_second, tokens_per_second * speedup), "given")


def read_rates(path: Path) -> SpeedPair:
    """Read the rates that a `headlong bench` run has measured."""
    document = load_results(path)
    names = [side["name"] for side in document["sides"]]
    rows = [read_row(record, str(path)) for record in document["runs"]]
    blocks = pair_rows(rows, names)
    if not blocks:
        raise RequestError(
            f"{path} holds no question that all sides have answered.", _MEASURE_AGAIN
        )
    candidate = str(document.get("candidate", ""))
    return SpeedPair(
        plain=_rates_of(blocks, names[0], path),
        mtp=_rates_of(blocks, candidate, path) if candidate in names[1:] else None,
        source=f"{path.name}, {candidate or 'one side'}, questions: {len(blocks)}",
    )


def measure_rates(llm: LLM, on_run: Callable[[Run], None] = lambda run: None) -> SpeedPair:
    """Measure one worker in this process: one prompt of every built-in task, both ways in turn."""
    prompts = one_of_each_task()
    plan = Plan(
        prompts, temperatures=(0.0,), max_tokens=MEASURED_TOKENS, time_budget_s=TIME_BUDGET_S
    )
    measured = run_ab([LocalSide(llm, "off"), LocalSide(llm, "auto")], plan, on_run)
    if measured.stopped == STOPPED_BY_USER:
        raise KeyboardInterrupt  # there is no plan from half a measurement
    blocks = pair_rows([make_row(run) for run in measured.runs], ["off", "auto"])
    if not blocks:
        failed = next((run.error for run in measured.runs if run.error), measured.stopped)
        raise RequestError(f"Nothing could be measured: {failed}.", _MEASURE_AGAIN)
    reading = {mode: _reading_rate(llm, mode) for mode in ("off", "auto")}
    writing = {mode: _writing_rate(blocks, mode) for mode in ("off", "auto")}
    return SpeedPair(
        Rates(reading["off"], writing["off"]),
        Rates(reading["auto"], writing["auto"]),
        f"measured here, both ways in turn, greedy, prompts: {len(blocks)}",
    )


def one_of_each_task() -> list[BenchPrompt]:
    """Return the first built-in prompt of every task."""
    first: dict[str, BenchPrompt] = {}
    for prompt in read_prompt_set([], lambda: "").prompts:
        first.setdefault(prompt.task, prompt)
    return list(first.values())


def _reading_rate(llm: LLM, mode: MtpMode) -> float:
    """Time prompts that nobody has seen before, so that no kept prefix helps."""
    rng = np.random.default_rng(1 if mode == "off" else 2)
    config = llm.backbone.config
    num_tokens = min(READ_TOKENS, config.context_length // 2)
    seconds: list[float] = []
    for _ in range(_READ_REPEATS):
        ids = rng.integers(0, config.vocab_size, num_tokens).tolist()
        timings = llm.generate(ids, mtp=mode, max_tokens=1, temperature=0.0).timings
        seconds.append(timings.prefill_s + timings.prefill_head_s)
    return num_tokens / median(seconds)


def _rates_of(blocks: Sequence[Block], side: str, path: Path) -> Rates:
    rows = [block[side] for block in blocks]
    if not any(row.num_prompt_tokens and row.ttft_s > 0 for row in rows):
        raise RequestError(f"{path} does not tell how long prompts of {side} were.", _MEASURE_AGAIN)
    read = [
        ((row.num_prompt_tokens or 0) - (row.num_cached_tokens or 0), row.ttft_s) for row in rows
    ]
    read = [(num_tokens, seconds) for num_tokens, seconds in read if num_tokens >= _MIN_READ]
    if not read:
        raise RequestError(
            f"In {path} nearly all of the prompts of {side} came from a cache, so how fast prompts "
            "are read is not known.",
            _MEASURE_AGAIN,
        )
    reading = sum(num_tokens for num_tokens, _ in read) / sum(seconds for _, seconds in read)
    return Rates(reading, _writing_rate(blocks, side))


def _writing_rate(blocks: Sequence[Block], side: str) -> float:
    figures = describe_side([block[side] for block in blocks])
    rate = figures["decode_tokens_per_second"] or figures["tokens_per_second"]
    return float(rate)
