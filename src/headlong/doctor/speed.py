"""What passes and drafts cost here, and which K makes the most of it.

In:  a backbone, what drafting took, how often drafts stand. Out: the pass-cost curve, the price of
a draft token, the expected gain of every K, and the best one. All row counts are timed in turn,
round after round, and the best time counts: a busy neighbour only ever adds to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headlong.bench.pass_cost import PassTimer
from headlong.config import SamplingParams
from headlong.decode.stats import DecodeStats
from headlong.doctor.exactness import Decoder, run_requests
from headlong.doctor.finding import Check, Finding, skipped
from headlong.models.transformer import Backbone

MAX_K = 8
WORTH_IT = 1.1
"""The least expected gain worth switching drafts on for."""

_ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 9)
_DRAFT_LENGTHS = (1, 6)
_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds a round spends on drafting: once, and for every token."""

    per_round_s: float
    per_token_s: float

    def seconds(self, num_tokens: int) -> float:
        """Return the cost of a draft of this length; none costs nothing."""
        return self.per_round_s + num_tokens * self.per_token_s if num_tokens else 0.0


def time_passes(
    backbone: Backbone, tap_layers: tuple[int, ...], seconds: float
) -> dict[int, list[float]]:
    """Time passes over every number of rows in turn, logits included, for so many seconds."""
    context = min(_CONTEXT, backbone.config.context_length // 2)
    return PassTimer(backbone, tap_layers, context).time_in_turn(_ROW_COUNTS, seconds)


def undisturbed(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the best of every count; no pass is believed to cost more than one over more rows."""
    curve: dict[int, float] = {}
    ceiling = math.inf
    for count in sorted(times, reverse=True):
        ceiling = min(ceiling, *times[count])
        curve[count] = ceiling
    return dict(sorted(curve.items()))


def pass_s(curve: dict[int, float], num_rows: int) -> float:
    """Read the curve, straight between measured points."""
    counts = sorted(curve)
    return float(np.interp(num_rows, counts, [curve[count] for count in counts]))


def measure_drafts(
    decoder: Decoder, ids: tuple[int, ...], num_repeats: int
) -> tuple[DraftCost | None, DecodeStats]:
    """Decode with short and long drafts in turn; return what drafting costs, and how it fared."""
    counted = DecodeStats()
    seen: dict[int, list[tuple[float, float]]] = {k: [] for k in _DRAFT_LENGTHS}
    for _ in range(num_repeats):
        for k, samples in seen.items():
            (running,) = run_requests(decoder, [(ids, k)], SamplingParams())
            report = running.report()
            stats, timings = report.stats, report.timings
            if stats.num_drafted:
                samples.append((stats.num_drafted / stats.rounds, timings.draft_s / stats.rounds))
            if k == max(_DRAFT_LENGTHS):
                counted.merge(stats)
    return fit_draft_cost([samples for samples in seen.values() if samples]), counted


def fit_draft_cost(groups: Sequence[Sequence[tuple[float, float]]]) -> DraftCost | None:
    """Lay a line through (tokens, seconds) of a round: what comes once, and what every token.

    A group holds repetitions of one setting; the least disturbed of them counts.
    """
    best = sorted(min(group, key=lambda sample: sample[1]) for group in groups)
    if not best:
        return None
    (short, short_s), (long, long_s) = best[0], best[-1]
    if long - short < 0.5:  # all of one length: count it all by token, as the engine does
        return DraftCost(0.0, short_s / short)
    per_token = max(0.0, (long_s - short_s) / (long - short))
    return DraftCost(max(0.0, short_s - per_token * short), per_token)


def expected_gains(
    curve: dict[int, float], draft: DraftCost, length: Callable[[int], float]
) -> dict[int, float]:
    """Return the expected speed of every K against plain decoding."""
    return {
        k: length(k) * pass_s(curve, 1) / (pass_s(curve, k + 1) + draft.seconds(k))
        for k in range(1, MAX_K + 1)
    }


def check_pass_cost(curve: dict[int, float]) -> Finding:
    """Say what checking drafts costs: the rows of a pass, relative to one."""
    base = curve[1]
    relative = {count: seconds / base for count, seconds in curve.items()}
    shown = ", ".join(f"{count}: {relative[count]:.2f}" for count in (2, 3, 5, 7, 9))
    return Check("pass cost").ok(
        f"{base * 1e3:.2f} ms for one row; more rows cost, relative to it, {shown} – the tokens a "
        "round must yield to break even",
        {
            "pass_ms": {str(count): seconds * 1e3 for count, seconds in curve.items()},
            "relative": {str(count): x for count, x in relative.items()},
        },
    )


def check_gain(
    curve: dict[int, float], draft: DraftCost | None, length: Callable[[int], float]
) -> Finding:
    """Say which K is best here, and whether drafting is worth it."""
    if draft is None:
        return skipped("best K", "nothing was drafted")
    gains = expected_gains(curve, draft, length)
    best = max(gains, key=lambda k: gains[k])
    pays = gains[best] > 1
    round_ms, token_ms = draft.per_round_s * 1e3, draft.per_token_s * 1e3
    check = Check(
        "best K",
        {
            "best_k": best if pays else 0,
            "speedup": gains[best] if pays else 1.0,
            "gains": {str(k): gain for k, gain in gains.items()},
            "draft_token_ms": token_ms,
            "draft_round_ms": round_ms,
        },
    )
    shown = ", ".join(f"{k}: {gain:.2f}" for k, gain in gains.items() if k in (1, 2, 3, 4, 6, 8))
    costs = f"a draft costs {round_ms:.2f} ms and {token_ms:.2f} ms a token"
    if gains[best] < WORTH_IT:
        return check.warning(
            f"Drafting hardly pays here: at best {gains[best]:.2f} × with K={best} ({shown}); "
            f"{costs}.",
            "Leave `mtp` at auto, which switches drafts off where they lose; a better head or "
            "faster kernels would change it.",
        )
    return check.ok(
        f"K={best}, {gains[best]:.2f} × expected at temperature 0 (K: gain – {shown}); {costs}"
    )


def length_by_stats(stats: DecodeStats) -> Callable[[int], float]:
    """Return the acceptance length by K that a real decoding suggests, where no probe was made.

    Depths beyond the deepest that was drafted are taken to stand as often as the last one.
    """
    chances = stats.conditional_acceptance or [0.0]

    def length(num_draft_tokens: int) -> float:
        padded = [*chances, *[chances[-1]] * num_draft_tokens][:num_draft_tokens]
        return 1.0 + float(np.cumprod(padded).sum())

    return length
