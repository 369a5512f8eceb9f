"""Figures of a measurement: per task and overall, for every side, and every speed-up.

In:  rows. Out: plain dictionaries for JSON. Only questions that all sides have answered count, so
that no side is judged by easier ones. Times run from the question to the last token, the prompt
included, since that is what a user waits for; `decode_*` leave out what comes before the first
token. Knows nothing of words or colours.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeAlias

from headlong.bench.measure import Key
from headlong.bench.rows import Row
from headlong.bench.statistics import Pair, Totals, paired_speedup, percentile
from headlong.decode.stats import DecodeStats

DRAFT_FIGURES = (
    "rounds", "num_drafted", "num_accepted", "acceptance_length", "acceptance_rate",
    "acceptance_at_depth",
)  # fmt: skip
"""Figures of drafts from a row's counters, as `DecodeStats` defines them."""

Block: TypeAlias = dict[str, Row]
"""The rows of one question, by side."""


@dataclass(frozen=True, slots=True)
class Group:
    """Questions that are judged together."""

    task: str | None
    """None for all tasks together."""
    temperature: float | None
    """None for all temperatures together."""
    blocks: Sequence[Block]


def pair_rows(rows: Iterable[Row], sides: Sequence[str]) -> list[Block]:
    """Put the rows of each question together; leave out questions not all sides have answered."""
    blocks: dict[Key, Block] = defaultdict(dict)
    for row in rows:
        if row.error is None and row.num_tokens and row.total_s > 0:
            blocks[row.key][row.side] = row
    return [block for block in blocks.values() if all(side in block for side in sides)]


def group_blocks(blocks: Sequence[Block]) -> list[Group]:
    """Return one group for every task at every temperature, by name."""
    groups: dict[tuple[str, float], list[Block]] = defaultdict(list)
    for block in blocks:
        row = next(iter(block.values()))
        groups[row.task, row.temperature].append(block)
    return [Group(*key, groups[key]) for key in sorted(groups)]


def describe_group(group: Group, sides: Sequence[str]) -> dict[str, Any]:
    """Return all figures of a group; the first side is the baseline."""
    baseline, *candidates = sides
    return {
        "task": group.task,
        "temperature": group.temperature,
        "num_prompts": len({block[baseline].prompt_hash for block in group.blocks}),
        "num_questions": len(group.blocks),
        "sides": {side: describe_side([block[side] for block in group.blocks]) for side in sides},
        "speedups": {name: _compare(group.blocks, baseline, name) for name in candidates},
    }


def describe_side(rows: Sequence[Row]) -> dict[str, Any]:
    """Return one side's figures over some answers, of which there is at least one."""
    num_tokens, total_s = sum(row.num_tokens for row in rows), sum(row.total_s for row in rows)
    decoded = [_decode(row) for row in rows]
    decode_s = sum(part.seconds for part in decoded)
    gaps = [row.gap_p95_s for row in rows if row.gap_p95_s is not None]
    ttfts, latencies = [row.ttft_s for row in rows], [row.total_s for row in rows]
    return {
        "num_answers": len(rows),
        "num_tokens": num_tokens,
        "tokens_per_second": num_tokens / total_s,
        "decode_tokens_per_second": (
            sum(part.num_tokens for part in decoded) / decode_s if decode_s > 0 else None
        ),
        "ms_per_token": 1e3 * total_s / num_tokens,
        "ttft_p50_ms": 1e3 * percentile(ttfts, 50),
        "ttft_p95_ms": 1e3 * percentile(ttfts, 95),
        "latency_p50_s": percentile(latencies, 50),
        "latency_p95_s": percentile(latencies, 95),
        "gap_p95_ms": 1e3 * median(gaps) if gaps else None,
        "acceptance": _describe_drafts(rows),
        "prefill_head_share": _head_share(rows),
        "cached_share": _cached_share(rows),
    }


def _describe_drafts(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return what became of drafts over some answers; None where no side tells."""
    known = [row.acceptance for row in rows if row.acceptance is not None]
    total = DecodeStats()
    for stats in known:
        total.merge(stats)
    return {name: getattr(total, name) for name in DRAFT_FIGURES} if known else None


def _compare(blocks: Sequence[Block], baseline: str, candidate: str) -> dict[str, Any]:
    """Return a candidate's speed-ups over the baseline, and whether the texts are the same."""
    whole = _speedup(blocks, baseline, candidate, decode_only=False)
    decode = _speedup(blocks, baseline, candidate, decode_only=True)
    same = [block[baseline].says_the_same(block[candidate]) for block in blocks]
    return {**whole, "decode": decode, "num_identical": sum(same), "num_compared": len(same)}


def count_identical(compared: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up over some comparisons how many texts are the same."""
    found = list(compared)
    total, same = (sum(one[name] for one in found) for name in ("num_compared", "num_identical"))
    return {"all": same == total, "num_compared": total, "num_identical": same}


def _speedup(
    blocks: Sequence[Block], baseline: str, candidate: str, *, decode_only: bool
) -> dict[str, Any]:
    """Return the ratio of total tokens/s; prompts are drawn inside their tasks."""
    strata: dict[str, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in blocks:
        row = block[baseline]
        # One prompt stays one draw, whatever number of runs and temperatures it was asked with.
        strata[row.task][row.prompt_hash].append(block)
    pairs: list[list[Pair]] = []
    for _, by_prompt in sorted(strata.items()):
        both = [
            (_add(own, baseline, decode_only), _add(own, candidate, decode_only))
            for own in by_prompt.values()
        ]
        pairs.append([p for p in both if all(one.num_tokens and one.seconds > 0 for one in p)])
    speedup = paired_speedup([stratum for stratum in pairs if stratum])
    empty = {"value": None, "low": None, "high": None, "num_prompts": 0}
    return empty if speedup is None else asdict(speedup)


def _add(blocks: Sequence[Block], side: str, decode_only: bool) -> Totals:
    rows = [block[side] for block in blocks]
    parts = [_decode(row) if decode_only else Totals(row.num_tokens, row.total_s) for row in rows]
    return Totals(sum(part.num_tokens for part in parts), sum(part.seconds for part in parts))


def _decode(row: Row) -> Totals:
    """Return what came after the first token."""
    return Totals(max(0, row.num_tokens - 1), row.total_s - row.ttft_s)


def _head_share(rows: Sequence[Row]) -> float | None:
    """Return the drafter's share of the time that prompts took."""
    backbone_s = sum(row.prefill_s or 0.0 for row in rows)
    head_s = sum(row.prefill_head_s or 0.0 for row in rows)
    return head_s / (backbone_s + head_s) if backbone_s > 0 else None


def _cached_share(rows: Sequence[Row]) -> float | None:
    """Return the share of prompt tokens read from a cache; None where it is not known."""
    known = [row for row in rows if row.num_cached_tokens is not None and row.num_prompt_tokens]
    if not known:
        return None
    cached = sum(row.num_cached_tokens or 0 for row in known)
    return cached / sum(row.num_prompt_tokens or 0 for row in known)
