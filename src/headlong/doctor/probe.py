"""The probe: what the backbone says to a few built-in prompts, and how much of it a head drafts.

In:  a backbone, prompts, a head. Out: `ProbeRows`, the backbone's greedy answers with the hidden
rows of one pass over them, and `AcceptedCounts`: how many draft tokens stand at every position.
No decoding is needed for that: answers are known, so a head is run along them and asked at each
position. Walking the positions as rounds would gives exactly the acceptance of real decoding.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.config import SamplingParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.sampling import Sampler
from headlong.decode.stats import DecodeStats, walk_rounds
from headlong.heads.head import AssistantHead, Head, ParallelHeads, RecursiveHead
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.text.tokenizer import Tokenizer

PROMPTS = {
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "json": "Describe a book as JSON with the fields title, author, year, pages and genres.",
    "question": "Why is the sky blue during the day and red in the evening?",
    "maths": "A train goes 60 km in 45 minutes. How far does it go in 3 hours? Show your steps.",
    "list": "Give me ten tips for a good night's sleep, one line each.",
    "story": "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
}
"""One prompt per kind of task; the first ones matter most when time is short."""

PROMPTS_ID = hashlib.sha256("\0".join(PROMPTS.values()).encode()).hexdigest()[:12]
"""Tells whether two measurements asked the same."""

_MAX_BLIND_PROMPT = 24
"""Length of a prompt for a model whose tokenizer cannot be used."""


@dataclass(frozen=True, slots=True)
class ProbeText:
    """A prompt and the backbone's own greedy answer."""

    task: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbeRows:
    """An answer with the hidden rows of one pass over prompt and answer."""

    text: ProbeText
    hidden: HiddenRows
    tap_layers: tuple[int, ...]
    cache: SequenceState
    """What the backbone keeps of prompt and answer, which assistants read."""
    ops: Ops
    """The backend that the rows belong to."""

    @property
    def token_ids(self) -> IntArray:
        """Prompt and answer."""
        return np.array([*self.text.prompt_ids, *self.text.answer_ids])

    def with_taps(self, tap_layers: tuple[int, ...]) -> HiddenRows:
        """Return the rows with only the taps that one head reads, in its order."""
        if not tap_layers:
            return HiddenRows(self.hidden.raw, self.hidden.normed, None)
        assert self.hidden.taps is not None
        width = self.hidden.raw.shape[1]
        places = [self.tap_layers.index(layer) for layer in tap_layers]
        parts = [self.hidden.taps[:, place * width : (place + 1) * width] for place in places]
        return HiddenRows(self.hidden.raw, self.hidden.normed, self.ops.join(parts, -1))


@dataclass(frozen=True, slots=True)
class AcceptedCounts:
    """How many leading draft tokens stand at each position of some answers."""

    accepted: tuple[IntArray, ...]
    """Per answer, per position a round could begin at; counts are capped by `max_depth`."""
    max_depth: int

    @property
    def mean(self) -> float:
        """Mean count over all positions alike."""
        counts = np.concatenate(self.accepted) if self.accepted else np.zeros(0)
        return float(counts.mean()) if counts.size else 0.0

    @property
    def num_positions(self) -> int:
        """Positions that were probed."""
        return sum(len(counts) for counts in self.accepted)

    def cut(self, lengths: Iterable[int]) -> "AcceptedCounts":
        """Keep the first positions of each answer."""
        pairs = zip(self.accepted, lengths, strict=True)
        return replace(self, accepted=tuple(counts[:length] for counts, length in pairs))

    def length(self, num_draft_tokens: int) -> float:
        """Return the acceptance length of decoding with this many draft tokens a round."""
        return self.stats(num_draft_tokens).acceptance_length

    def stats(self, num_draft_tokens: int) -> DecodeStats:
        """Count the rounds that decoding with this many draft tokens a round would make."""
        stats = DecodeStats()
        for counts in self.accepted:
            for _, num_accepted in walk_rounds(counts.tolist(), num_draft_tokens):
                stats.observe_round(("head",) * num_draft_tokens, num_accepted)
        return stats


def prompt_ids(tokenizer: Tokenizer | None, prompt: str, backbone: Backbone) -> tuple[int, ...]:
    """Write a prompt as ids: as a chat if the model can, else as text, else blindly."""
    config = backbone.config
    if tokenizer is None:
        rng = np.random.default_rng(len(prompt))
        return tuple(rng.integers(0, config.vocab_size, _MAX_BLIND_PROMPT).tolist())
    if tokenizer.chat_template is None:
        ids = tokenizer.encode(prompt)
    else:
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
    # Ids the embedding lacks are a finding of their own; here they would stop everything else.
    fitting = [token_id for token_id in ids if token_id < config.vocab_size] or [0]
    return tuple(fitting[-(config.context_length // 2) :])


def write_answer(
    backbone: Backbone,
    ids: tuple[int, ...],
    eos_ids: frozenset[int],
    max_tokens: int,
    sampling: SamplingParams,
) -> tuple[int, ...]:
    """Return the plain loop's answer, its end-of-turn token included."""
    sampler = Sampler(sampling, ids, backbone.config.vocab_size)
    room = min(max_tokens, backbone.config.context_length - len(ids))
    answer: list[int] = []
    for pick in islice(generate_plain(backbone, ids, sampler), room):
        answer.append(pick.token_id)
        if pick.token_id in eos_ids:
            break
    return tuple(answer)


def read_rows(backbone: Backbone, text: ProbeText, tap_layers: tuple[int, ...]) -> ProbeRows:
    """Run one pass over prompt and answer and keep what heads read of it."""
    ids = np.array([*text.prompt_ids, *text.answer_ids])
    cache = backbone.make_cache()
    hidden = backbone.forward([ids], [cache], tap_layers)
    return ProbeRows(text, hidden, tap_layers, cache, backbone.ops)


def measure_acceptance(head: Head, probed: Sequence[ProbeRows], max_depth: int) -> AcceptedCounts:
    """Ask a head at every position of the answers; count the leading tokens that stand."""
    if isinstance(head, ParallelHeads):
        depth = min(max_depth, head.num_depths)
        return AcceptedCounts(tuple(_ask_parallel(head, one, depth) for one in probed), max_depth)
    if isinstance(head, AssistantHead):
        asked = tuple(_ask_assistant(head, one, max_depth) for one in probed)
        return AcceptedCounts(asked, max_depth)
    return AcceptedCounts(tuple(_ask_recursive(head, one, max_depth) for one in probed), max_depth)


def _ask_recursive(head: RecursiveHead, probed: ProbeRows, max_depth: int) -> IntArray:
    ids = probed.token_ids
    hidden = probed.with_taps(head.tap_layers).rows(0, len(ids) - 1)
    cache = head.make_cache()
    carried = head.step(head.enter(head.features(hidden)), [ids[1:]], [cache])
    cache.commit(len(ids) - 1)
    first, stop = _span(probed, max_depth)
    accepted: IntArray = np.zeros(max(0, stop - first), dtype=np.int64)
    if not len(accepted):
        return accepted
    guesses = _guess(head.logits(carried[first:stop]), head.vocabulary)
    for row in np.flatnonzero(guesses == ids[first + 2 : stop + 2]):
        position = first + int(row)
        drafting = cache.fork(position + 1, head.make_cache)
        truth = ids[position + 2 : position + 2 + max_depth]
        state, depth = carried[position : position + 1], 1
        while depth < max_depth:
            state = head.step(state, [truth[depth - 1 : depth]], [drafting])
            if _guess(head.logits(state), head.vocabulary)[0] != truth[depth]:
                break
            depth += 1
        accepted[row] = depth
    return accepted


def _ask_assistant(head: AssistantHead, probed: ProbeRows, max_depth: int) -> IntArray:
    ids, states = probed.token_ids, head.features(probed.with_taps(()))
    first, stop = _span(probed, max_depth)
    accepted: IntArray = np.zeros(max(0, stop - first), dtype=np.int64)
    for row, position in enumerate(range(first, stop)):
        state, depth = states[position : position + 1], 0
        while depth < max_depth:
            newest = ids[position + 1 + depth : position + 2 + depth]
            result = head.step(state, newest, [probed.cache], [position])
            if _guess(head.logits(result), head.vocabulary)[0] != ids[position + 2 + depth]:
                break
            state, depth = head.carry(result), depth + 1
        accepted[row] = depth
    return accepted


def _ask_parallel(heads: ParallelHeads, probed: ProbeRows, max_depth: int) -> IntArray:
    ids = probed.token_ids
    hidden = probed.with_taps(heads.tap_layers)
    cache = heads.make_cache()
    states = heads.states(heads.features(hidden), [cache], [len(ids)])  # (depths, N, H)
    first, stop = _span(probed, max_depth)
    accepted: IntArray = np.zeros(max(0, stop - first), dtype=np.int64)
    still = np.ones(len(accepted), dtype=np.bool_)
    for depth in range(1, max_depth + 1 if len(accepted) else 1):
        guesses = _guess(heads.logits(states[depth - 1, first:stop], depth), heads.vocabulary)
        still &= guesses == ids[first + 1 + depth : stop + 1 + depth]
        accepted += still
    return accepted


def _span(probed: ProbeRows, max_depth: int) -> tuple[int, int]:
    """Return the rows a round can begin at: from the prompt's last, while truth lies ahead."""
    num_prompt, num_tokens = len(probed.text.prompt_ids), len(probed.token_ids)
    return num_prompt - 1, num_tokens - 1 - max_depth


def _guess(logits: FloatArray, vocabulary: IntArray | None) -> IntArray:
    columns: IntArray = logits.argmax(axis=-1)
    return columns if vocabulary is None else vocabulary[columns]
