"""What real engines answered, as `tools/record_engine_answers.py` wrote it down."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headlong.decode.logprobs import TokenLogprob
from headlong.fleet.dialect import AnswerReader, Delta

FOLDER = Path(__file__).parent / "engine_answers"


class Recorded:
    """One exchange: what was asked and what came."""

    def __init__(self, engine: str, name: str) -> None:
        lines = (FOLDER / f"{engine}.jsonl").read_text().splitlines()
        found = [one for one in map(json.loads, lines) if one["name"] == name]
        assert len(found) == 1, f"{len(found)} of {name!r}"
        self.asked: dict[str, Any] = found[0]["asked"]
        self.status: int = found[0]["status"]
        self.body: str = found[0]["body"]

    @property
    def events(self) -> list[str]:
        """The texts behind `data:`, or the whole body."""
        lines = self.body.splitlines()
        told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return told or [self.body]


def read_all(reader: AnswerReader, events: Sequence[str]) -> Delta:
    """Return all that events bring as one delta, with the last of what is told once."""
    deltas = [reader.read(event) for event in events]

    def last(name: str) -> Any:
        told = [getattr(delta, name) for delta in deltas if getattr(delta, name) is not None]
        return told[-1] if told else None

    logprobs: tuple[TokenLogprob, ...] = sum((delta.logprobs for delta in deltas), ())
    return Delta(
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs,
        last("finish_reason"),
        last("stats"),
        last("num_cached_tokens"),
        last("prompt_logprobs"),
        deltas[-1].is_end,
    )
