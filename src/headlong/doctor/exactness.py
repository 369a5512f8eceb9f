"""Is the text the same with MTP on and off? Checked on the spot, token by token.

In:  a backbone, a drafter, prompts. Out: what decoding in every mode gave against the plain loop,
and for the first difference its place, both tokens and the backbone's own margin between its two
best tokens there: a tiny margin points to arithmetic that depends on the batch, a large one to a
bug in the bookkeeping.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.divergence import find_divergence
from headlong.decode.request import Request
from headlong.doctor.finding import Check, Finding
from headlong.doctor.probe import write_answer
from headlong.drafters.drafter import Drafter
from headlong.engine.client import TokenStream
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.models.transformer import Backbone

MODES: tuple[MtpMode, ...] = ("off", 1, 4, "auto")
TEMPERATURES = (0.0, 0.7)
SEED = 7

_TIGHT_MARGIN = 1e-3
_REPORT = (
    "This breaks Headlong's promise of exactness; please report it with this output. "
    "Until it is mended, `--mtp off` gives the text of the plain loop"
)


@dataclass(frozen=True, slots=True)
class Decoder:
    """What is held against the plain loop."""

    backbone: Backbone
    drafter: Drafter | None
    eos_ids: frozenset[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoding by the engine, and the text it must equal."""

    label: str
    prompt_ids: tuple[int, ...]
    truth: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WrongToken:
    """Where a decoding left the plain loop's text for the first time."""

    run: str
    position: int
    """Place in the answer, from 0."""
    expected: int | None
    got: int | None
    top2_margin: float
    """How far apart the backbone's two best logits are there."""


def decode_modes(decoder: Decoder, prompts: Sequence[tuple[int, ...]]) -> Iterator[Decoded]:
    """Decode every prompt in every mode at every temperature, alone and then in one batch."""
    for temperature in TEMPERATURES:
        sampling = SamplingParams(temperature=temperature, seed=SEED)
        rules = (decoder.eos_ids, decoder.max_tokens, sampling)
        truths = [write_answer(decoder.backbone, ids, *rules) for ids in prompts]
        for mode in MODES:
            for ids, truth in zip(prompts, truths, strict=True):
                label = f"mtp={mode}, temperature {temperature:g}"
                (running,) = run_requests(decoder, [(ids, mode)], sampling)
                yield _decoded(label, running, truth)
        mixed = [(ids, mode) for mode in MODES for ids in prompts]
        label = f"batch of {len(mixed)}, temperature {temperature:g}"
        batch = run_requests(decoder, mixed, sampling)
        for running, truth in zip(batch, truths * len(MODES), strict=True):
            yield _decoded(label, running, truth)


def run_requests(
    decoder: Decoder, asked: Sequence[tuple[tuple[int, ...], MtpMode]], sampling: SamplingParams
) -> list[TokenStream]:
    """Decode some requests together, to their ends."""
    limits = EngineLimits(honour_k=True)  # each K is to be seen in a batch, whether it pays or not
    engine = Engine.for_model(decoder.backbone, decoder.drafter, limits)
    stopping = StopParams(max_tokens=decoder.max_tokens)
    running: list[TokenStream] = [
        engine.submit(Request(ids, sampling, stopping, mode, decoder.eos_ids))
        for ids, mode in asked
    ]
    while any(one.finish_reason is None for one in running):
        engine.step()
    for one in running:
        if one.error is not None:
            raise one.error
    return running


def find_wrong_token(decoder: Decoder, decoded: Decoded) -> WrongToken | None:
    """Return the first token in which a decoding differs from its truth, if any does."""
    truth, got = decoded.truth, decoded.token_ids
    place = find_divergence(truth, got)
    if place is None:
        return None
    return WrongToken(
        run=decoded.label,
        position=place,
        expected=truth[place] if place < len(truth) else None,
        got=got[place] if place < len(got) else None,
        top2_margin=_margin(decoder.backbone, (*decoded.prompt_ids, *truth[:place])),
    )


def check_exactness(decoder: Decoder, runs: Sequence[Decoded]) -> Finding:
    """Hold all decodings against the plain loop."""
    found = [find_wrong_token(decoder, decoded) for decoded in runs]
    divergences = [divergence for divergence in found if divergence is not None]
    num_tokens = sum(len(decoded.token_ids) for decoded in runs)
    check = Check(
        "exactness",
        {"num_runs": len(runs), "num_tokens": num_tokens, "num_diverged": len(divergences)},
    )
    if not divergences:
        modes = "off, K=1, K=4, auto; temperature 0 and 0.7; alone and in a batch"
        seen = f"{num_tokens:,} tokens in {len(runs)} decodings equal the plain loop's ({modes})"
        return check.ok(seen)
    first = min(divergences, key=lambda divergence: divergence.position)
    cause = (
        "so close a call that the arithmetic must depend on the rows of a pass"
        if first.top2_margin < _TIGHT_MARGIN
        else "no close call, so the rows themselves were not the plain loop's"
    )
    return check.fault(
        f"{len(divergences)} of {len(runs)} decodings differ. First: {first.run}, answer token "
        f"{first.position} is {first.got} instead of {first.expected}; the backbone's two best "
        f"logits are {first.top2_margin:.6f} apart there, {cause}.",
        f"{_REPORT}.",
        {"first": asdict(first)},
    )


def _decoded(label: str, running: TokenStream, truth: tuple[int, ...]) -> Decoded:
    ids = tuple(emitted.pick.token_id for emitted in running.take())
    return Decoded(label, running.request.prompt_ids, truth, ids)


def _margin(backbone: Backbone, ids: tuple[int, ...]) -> float:
    """Return how far apart the two best logits are after `ids`, in a pass of its own."""
    hidden = backbone.forward([np.array(ids)], [backbone.make_cache()])
    logits = backbone.logits(hidden.normed[-1:])[0]
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)
