"""One token counter for all sides.

In:  runs whose tokens were counted by whoever answered. Out: the same runs, all counted the same
way, and how, in words. Servers may count, chunk and tokenise differently; a speed-up between two
counts would mean nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headlong.bench.measure import Run

BY_ENGINE = "the engine's own tokens, the same for all sides"
BY_USAGE = "`usage` of the servers' answers"
BY_TOKENIZER = "the answers' texts, through one tokenizer"
BY_PIECES = "streamed pieces, since not every answer came with `usage`"


def settle_tokens(
    runs: Sequence[Run], count: Callable[[str], int] | None = None
) -> tuple[list[Run], str]:
    """Return the runs with tokens counted one way; `count` counts the tokens of a text."""
    answers = [run.answer for run in runs if run.answer is not None]
    if count is not None:
        return [_recounted(run, count) for run in runs], BY_TOKENIZER
    if all(answer.token_ids is not None for answer in answers):
        return list(runs), BY_ENGINE
    if all(answer.is_counted_by_server for answer in answers):
        return list(runs), BY_USAGE
    return [_recounted(run, None) for run in runs], BY_PIECES


def _recounted(run: Run, count: Callable[[str], int] | None) -> Run:
    if run.answer is None:
        return run
    num_tokens = run.answer.pace.num_pieces if count is None else count(run.answer.text)
    return replace(run, answer=replace(run.answer, num_tokens=max(1, num_tokens)))
