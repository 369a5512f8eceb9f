"""`benchmark_inference`: time any function that answers prompts.

In:  `model_fn(prompt) -> (text, num_tokens)`, prompts, a number of runs.
Out: every single result, the mean tokens/s and the p95 latency. Works for whatever a function can
     call; knows nothing of models, MTP or servers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, TypeAlias

from headlong.bench.statistics import percentile
from headlong.errors import RequestError

ModelFn: TypeAlias = Callable[[str], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """One answer."""

    prompt: str
    run: int
    text: str
    num_tokens: int
    latency_s: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer per second of waiting for it."""
        return self.num_tokens / self.latency_s

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True, slots=True)
class InferenceBenchmark:
    """All answers of a benchmark, and what they come to."""

    results: tuple[InferenceResult, ...]

    @property
    def mean_tokens_per_second(self) -> float:
        """The mean of all answers' tokens per second."""
        return fmean(result.tokens_per_second for result in self.results)

    @property
    def total_tokens_per_second(self) -> float:
        """All tokens over all seconds: long answers count for more."""
        seconds = sum(result.latency_s for result in self.results)
        return sum(result.num_tokens for result in self.results) / seconds

    @property
    def p50_latency_s(self) -> float:
        """Half of the answers took no longer."""
        return percentile([result.latency_s for result in self.results], 50)

    @property
    def p95_latency_s(self) -> float:
        """Nineteen of twenty answers took no longer."""
        return percentile([result.latency_s for result in self.results], 95)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        rates = ("mean_tokens_per_second", "total_tokens_per_second")
        return {
            **{name: getattr(self, name) for name in (*rates, "p50_latency_s", "p95_latency_s")},
            "num_results": len(self.results),
            "results": [result.to_dict() for result in self.results],
        }


def benchmark_inference(
    model_fn: ModelFn, prompts: Sequence[str], runs: int = 3
) -> InferenceBenchmark:
    """Answer every prompt `runs` times and time each answer.

    Prompts are asked in turn, all of them in each run. An exception of `model_fn` is passed on.
    The first answer of a model is often the slowest: call `model_fn` once before.

    Args:
        model_fn: Takes a prompt; returns the text and how many tokens it has.
        prompts: What to ask, one string each.
        runs: How often every prompt is asked.
    """
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not prompts:
        raise RequestError("There are no prompts.", "Give at least one.")
    if runs < 1:
        raise RequestError(f"runs is {runs}.", "Ask every prompt at least once.")
    results = [_ask(model_fn, prompt, run) for run in range(runs) for prompt in prompts]
    return InferenceBenchmark(tuple(results))


def _ask(model_fn: ModelFn, prompt: str, run: int) -> InferenceResult:
    began_s = time.perf_counter()
    answer = model_fn(prompt)
    latency_s = time.perf_counter() - began_s
    try:
        text, num_tokens = answer
        is_count = int(num_tokens) == num_tokens and num_tokens >= 0
    except (TypeError, ValueError):
        is_count = False
    if not is_count:
        problem = f"model_fn returned {answer!r}, which is not (text, number of tokens)."
        raise RequestError(problem, 'Return a pair, like ("Hello.", 2).')
    # A clock can stand still for an answer that took no time at all.
    return InferenceResult(prompt, run, str(text), int(num_tokens), max(latency_s, 1e-9))
