"""Telemetry of an answer: our `mtp`, vLLM's `metrics`, llama.cpp's `timings`.

In:  the reports of one answer's requests (several when `n` > 1), added up.
Out: plain dictionaries for JSON. Ratios come from `decode/stats.py` and are not defined anew here,
     but for vLLM's mean acceptance length, which leaves out rounds without a draft.
Knows nothing of HTTP or text.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, Field

from headlong.config import MtpMode
from headlong.decode.stats import DecodeStats, DrafterCount, Timings
from headlong.engine.request import RequestReport


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from."""

    cached_tokens: int = Field(description="Found in the prefix cache.")


class CompletionTokensDetails(BaseModel):
    """What completion tokens were for."""

    reasoning_tokens: int = Field(description="Thought before the answer, tags included.")


class Usage(BaseModel):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int = Field(description="The token that ended the answer included.")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class MtpReport(BaseModel):
    """What multi-token prediction did for this answer."""

    mode: MtpMode
    rounds: int
    num_drafted: int
    num_accepted: int
    acceptance_length: float = Field(description="Tokens per round, the next token included.")
    acceptance_at_depth: list[float]
    by_drafter: dict[str, DrafterCount]
    k_histogram: dict[str, int]
    draft_ms: float
    verify_ms: float
    prefill_ms: float
    prefill_head_ms: float
    measured_speedup: float | None
    off_reason: str | None
    bound_reason: str | None = Field(
        description="Why a fixed K was an upper bound beside other requests, if it was."
    )
    explanation: str


def add_up(reports: Sequence[RequestReport]) -> RequestReport:
    """Add up what the choices of one answer took, each with its own prompt; there is at least one.

    The decision is explained for the first choice.
    """
    stats, timings = DecodeStats(), [report.timings for report in reports]
    for report in reports:
        stats.merge(report.stats)
    clocks = {one.name: sum(getattr(own, one.name) for own in timings) for one in fields(Timings)}
    return RequestReport(
        stats=stats,
        timings=Timings(**clocks).at_most(stats.acceptance_length),
        num_prompt_tokens=sum(report.num_prompt_tokens for report in reports),
        num_cached_tokens=sum(report.num_cached_tokens for report in reports),
        num_completion_tokens=sum(report.num_completion_tokens for report in reports),
        off_reason=next((report.off_reason for report in reports if report.off_reason), None),
        bound_reason=next((one.bound_reason for one in reports if one.bound_reason), None),
        explanation=reports[0].explanation,
    )


def count_usage(
    firsts: Sequence[RequestReport], num_tokens: int, num_reasoning_tokens: int = 0
) -> Usage:
    """Return OpenAI's `usage` from one report per prompt: choices share their prompt."""
    num_prompt_tokens = sum(report.num_prompt_tokens for report in firsts)
    num_cached_tokens = sum(report.num_cached_tokens for report in firsts)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_tokens,
        total_tokens=num_prompt_tokens + num_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens),
    )


def mtp_report(total: RequestReport, mode: MtpMode) -> dict[str, Any]:
    """Return the answer's `mtp` object; `mode` is what was asked for."""
    stats, timings = total.stats, total.timings
    # Plain decoding against itself is no measurement.
    speedup = None if mode == "off" else total.measured_speedup
    report = MtpReport(
        mode=mode,
        rounds=stats.rounds,
        num_drafted=stats.num_drafted,
        num_accepted=stats.num_accepted,
        acceptance_length=round(stats.acceptance_length, 4),
        acceptance_at_depth=[round(share, 4) for share in stats.acceptance_at_depth],
        by_drafter=stats.by_drafter,
        k_histogram={str(k): num for k, num in sorted(stats.k_histogram.items())},
        draft_ms=_ms(timings.draft_s),
        verify_ms=_ms(timings.verify_s),
        prefill_ms=_ms(timings.prefill_s),
        prefill_head_ms=_ms(timings.prefill_head_s),
        measured_speedup=None if speedup is None else round(speedup, 4),
        off_reason=total.off_reason,
        bound_reason=total.bound_reason,
        explanation=total.explanation,
    )
    return report.model_dump()


def speculative_metrics(total: RequestReport, mode: MtpMode) -> dict[str, Any]:
    """Return vLLM's `metrics` object with its `speculative_decoding` fields."""
    stats = total.stats
    outcomes = {k: counts for k, counts in sorted(stats.outcomes.items()) if k}
    num_steps = sum(sum(counts) for counts in outcomes.values())
    longest = max([*outcomes, mode if isinstance(mode, int) else 0])
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


def llama_timings(total: RequestReport) -> dict[str, Any]:
    """Return llama.cpp's `timings` object.

    The first token comes out of the prompt's pass, so speeds count the tokens after it.
    """
    timings = total.timings
    num_evaluated = max(0, total.num_prompt_tokens - total.num_cached_tokens)
    prompt_s = timings.prefill_s + timings.prefill_head_s
    return {
        "cache_n": total.num_cached_tokens,
        "prompt_n": num_evaluated,
        "prompt_ms": _ms(prompt_s),
        "prompt_per_token_ms": _ms(_ratio(prompt_s, num_evaluated)),
        "prompt_per_second": round(_ratio(num_evaluated, prompt_s), 3),
        "predicted_n": total.num_completion_tokens,
        "predicted_ms": _ms(timings.decode_s),
        "predicted_per_token_ms": _ms(_ratio(timings.decode_s, timings.num_tokens)),
        "predicted_per_second": round(timings.tokens_per_second, 3),
        "draft_n": total.stats.num_drafted,
        "draft_n_accepted": total.stats.num_accepted,
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
