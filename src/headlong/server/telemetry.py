"""What an answer says of how it was made: our `mtp`, vLLM's `metrics`, llama.cpp's `timings`.

In:  the running requests of one answer (several when `n` > 1), at their end.
Out: plain dictionaries for JSON. Ratios come from `decode/stats.py` and are not defined anew here,
     but for vLLM's mean acceptance length, which leaves out rounds without a draft.
Knows nothing of HTTP or text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from headlong.config import MtpMode
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.request import Running


@dataclass(frozen=True, slots=True)
class Effort:
    """What one answer took, over all its choices."""

    stats: DecodeStats
    timings: Timings
    num_prompt_tokens: int
    """Of all choices, each with its own prompt: what was read or found in the cache."""
    num_cached_tokens: int
    num_completion_tokens: int
    measured_speedup: float | None
    """Against plain decoding at the pass costs of the same moments; None when unknown."""
    off_reason: str | None
    explanation: str


def gather(runnings: Sequence[Running]) -> Effort:
    """Add up what the choices of one answer took; there is at least one."""
    stats, timings = DecodeStats(), Timings()
    for running in runnings:
        stats.merge(running.stats)
        _add(timings, running.timings)
    return Effort(
        stats=stats,
        timings=timings,
        num_prompt_tokens=sum(len(running.request.prompt_ids) for running in runnings),
        num_cached_tokens=sum(running.sequence.num_cached_tokens for running in runnings),
        num_completion_tokens=sum(running.num_emitted for running in runnings),
        measured_speedup=timings.measured_speedup,
        off_reason=_first(_off_reason(running) for running in runnings),
        explanation=runnings[0].policy.explain(),
    )


def mtp_report(runnings: Sequence[Running], mode: MtpMode) -> dict[str, Any]:
    """Return the answer's `mtp` object; `mode` is what was asked for."""
    effort = gather(runnings)
    stats, timings = effort.stats, effort.timings
    return {
        "mode": mode,
        "rounds": stats.rounds,
        "num_drafted": stats.num_drafted,
        "num_accepted": stats.num_accepted,
        "acceptance_length": round(stats.acceptance_length, 4),
        "acceptance_at_depth": [round(share, 4) for share in stats.acceptance_at_depth],
        "by_drafter": {name: asdict(count) for name, count in stats.by_drafter.items()},
        "k_histogram": {str(k): num for k, num in sorted(stats.k_histogram.items())},
        "draft_ms": _ms(timings.draft_s),
        "verify_ms": _ms(timings.verify_s),
        "prefill_ms": _ms(timings.prefill_s),
        "prefill_head_ms": _ms(timings.prefill_head_s),
        # Plain decoding against itself is no measurement.
        "measured_speedup": None if mode == "off" else _rounded(effort.measured_speedup),
        "off_reason": effort.off_reason,
        "explanation": effort.explanation,
    }


def speculative_metrics(runnings: Sequence[Running]) -> dict[str, Any]:
    """Return vLLM's `metrics` object with its `speculative_decoding` fields."""
    stats = gather(runnings).stats
    outcomes = {k: counts for k, counts in sorted(stats.outcomes.items()) if k}
    num_steps = sum(sum(counts) for counts in outcomes.values())
    asked = [one.request.mtp for one in runnings]
    longest = max([*outcomes, *(k for k in asked if isinstance(k, int))], default=0)
    histogram = [0] * (longest + 1)
    for counts in outcomes.values():
        for num_accepted, num in enumerate(counts):
            histogram[num_accepted] += num
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + stats.num_accepted / num_steps if num_steps else 1.0,
            "draft_acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": histogram,
            "acceptance_histogram_by_draft_length": {
                str(k): list(counts) for k, counts in outcomes.items()
            },
            "num_spec_steps": num_steps,
            "num_accepted_draft_tokens": stats.num_accepted,
            "num_draft_tokens": stats.num_drafted,
            "num_spec_tokens": longest,
        }
    }


def llama_timings(runnings: Sequence[Running]) -> dict[str, Any]:
    """Return llama.cpp's `timings` object.

    The first token comes out of the prompt's pass, so speeds count the tokens after it.
    """
    effort = gather(runnings)
    timings = effort.timings
    num_evaluated = max(0, effort.num_prompt_tokens - effort.num_cached_tokens)
    prompt_s = timings.prefill_s + timings.prefill_head_s
    return {
        "cache_n": effort.num_cached_tokens,
        "prompt_n": num_evaluated,
        "prompt_ms": _ms(prompt_s),
        "prompt_per_token_ms": _ms(_ratio(prompt_s, num_evaluated)),
        "prompt_per_second": round(_ratio(num_evaluated, prompt_s), 3),
        "predicted_n": effort.num_completion_tokens,
        "predicted_ms": _ms(timings.decode_s),
        "predicted_per_token_ms": _ms(_ratio(timings.decode_s, timings.num_tokens)),
        "predicted_per_second": round(timings.tokens_per_second, 3),
        "draft_n": effort.stats.num_drafted,
        "draft_n_accepted": effort.stats.num_accepted,
    }


def _add(total: Timings, more: Timings) -> None:
    for clock in fields(Timings):
        setattr(total, clock.name, getattr(total, clock.name) + getattr(more, clock.name))


def _off_reason(running: Running) -> str | None:
    """Say why the sequence does not draft in the end: it cannot, or the policy does not want to."""
    return running.sequence.off_reason or running.policy.off_reason


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
