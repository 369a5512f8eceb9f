"""Prefill: the prompt runs once, however cut; the drafter sees each row with its next token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fakes import make_sequence
from headlong.decode.logprobs import token_logprob
from headlong.decode.prefill import PromptChunk, prefill
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array

PROMPT = list(range(20, 37))


@dataclass
class Listener:
    """A drafter that only listens."""

    name: str = "listener"
    tap_layers: tuple[int, ...] = (1, 3)
    heard: list[ObservedRows] = field(default_factory=list)

    def begin(self) -> str:
        """Remember nothing."""
        return "nothing"

    def features(self, hidden: HiddenRows) -> Array:
        """Read what the tapped layers read."""
        assert hidden.taps is not None
        return hidden.taps

    def observe(self, settled: Sequence[ObservedRows]) -> None:
        """Keep what was said."""
        self.heard += settled

    def look_up(self, state: str, history: list[int], threshold: Threshold) -> Draft:
        """Copy nothing."""
        return Draft()

    def share(self, state: str, num_rows: int) -> str:
        """Remember nothing again."""
        return state

    def num_bytes(self, state: str, num_rows: int = 0) -> int:
        """Take no memory."""
        return 0

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Say nothing."""
        return [Draft() for _ in asks]


def run(backbone: Backbone, chunk_size: int) -> tuple[Listener, DecodingSequence]:
    """Prefill the prompt with a listening drafter."""
    vocab_size = backbone.config.vocab_size
    sequence = make_sequence(PROMPT, backbone.make_cache(), "nothing", vocab_size)
    listener = Listener()
    while not sequence.has_begun:
        num_rows = min(chunk_size, sequence.num_rows_left)
        prefill([PromptChunk(sequence, num_rows)], backbone, listener)
    return listener, sequence


@pytest.mark.parametrize("chunk_size", [1, 4, 16, 17, 100])
def test_drafter_sees_every_row_with_its_next_token(
    tiny_backbone: Callable[[str], Backbone], chunk_size: int
) -> None:
    listener, sequence = run(tiny_backbone("llama"), chunk_size)
    next_ids = np.concatenate([one.next_ids for one in listener.heard])
    assert next_ids.tolist() == sequence.token_ids[1:]
    assert sum(len(part) for one in listener.heard for part in one.features) == len(PROMPT)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_cutting_changes_no_bit_of_what_heads_read(
    tiny_backbone: Callable[[str], Backbone], architecture: str
) -> None:
    backbone = tiny_backbone(architecture)

    def taps(chunk_size: int) -> bytes:
        listener, _ = run(backbone, chunk_size)
        return np.concatenate([part for one in listener.heard for part in one.features]).tobytes()

    assert taps(1) == taps(5) == taps(100)


def test_first_token_joins_the_sequence(tiny_backbone: Callable[[str], Backbone]) -> None:
    _, sequence = run(tiny_backbone("llama"), 6)
    assert len(sequence.token_ids) == len(PROMPT) + 1
    assert sequence.cache.length == len(PROMPT)
    assert sequence.sampler.num_tokens == len(PROMPT) + 1


@pytest.mark.parametrize("chunk_size", [1, 4, 16, 100])
def test_prompt_tokens_are_scored_however_they_are_cut(
    tiny_backbone: Callable[[str], Backbone], chunk_size: int
) -> None:
    backbone = tiny_backbone("llama")
    cache = backbone.make_cache()
    hidden = backbone.forward([np.array(PROMPT)], [cache], ())
    rows = backbone.logits(hidden.normed)
    expected = {p + 1: token_logprob(rows[p], PROMPT[p + 1], 2) for p in range(len(PROMPT) - 1)}
    sequence = make_sequence(PROMPT, backbone.make_cache(), None, backbone.config.vocab_size)
    sequence.request = replace(sequence.request, prompt_logprobs=2)
    while not sequence.has_begun:
        num_rows = min(chunk_size, sequence.num_rows_left)
        prefill([PromptChunk(sequence, num_rows)], backbone, None)
    assert sequence.prompt_logprobs == expected
