"""Make the sequence of a request, before it has any caches."""

from headlong.cache.sequence_state import SequenceState
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.models.model_config import ModelConfig
from headlong.ops.host_ops import HostOps


def make_sequence(
    request: Request, config: ModelConfig, host: HostOps, *, has_drafter: bool
) -> DecodingSequence:
    """Return a sequence that waits to begin; refuse parameters that can never work."""
    asks_for_drafts = request.mtp != "off"
    is_without = asks_for_drafts and not has_drafter
    return DecodingSequence(
        request,
        list(request.prompt_ids),
        no_cache(),
        make_sampler(request, config, host),
        Backlog(host),
        wants_drafts=asks_for_drafts and not is_without,
        off_reason="The model was loaded without a drafter." if is_without else None,
    )


def make_sampler(request: Request, config: ModelConfig, host: HostOps) -> Sampler:
    """Return what picks the tokens of a request, at the beginning of its answer."""
    constraint = None if request.grammar is None else request.grammar.begin()
    eos_ids, sampling = request.eos_ids, request.sampling
    return Sampler(sampling, request.prompt_ids, config.vocab_size, constraint, host, eos_ids)


def no_cache() -> SequenceState:
    """Return what a sequence has instead of a cache before it begins and after it ended."""
    return SequenceState(())
