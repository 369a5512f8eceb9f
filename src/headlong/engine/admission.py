"""The door of the engine: refuse what could never be run, with both numbers."""

from headlong.engine.memory import CacheMemory
from headlong.engine.request import Request
from headlong.errors import RequestError
from headlong.models.model_config import ModelConfig


def check_request(request: Request, config: ModelConfig, memory: CacheMemory) -> None:
    """Refuse a request that is empty, too long, of unknown tokens, or larger than the memory."""
    length, context = len(request.prompt_ids), config.context_length
    if not request.prompt_ids:
        raise RequestError("The prompt is empty.", "Give at least one token.")
    if length >= context:
        raise RequestError(
            f"The prompt has {length} tokens; the model's context holds {context}.",
            f"Shorten it to at most {context - 1} tokens.",
        )
    unknown = [t for t in request.prompt_ids if not 0 <= t < config.vocab_size]
    if unknown:
        raise RequestError(
            f"Token id {unknown[0]} is not in the vocabulary.",
            f"Ids go from 0 to {config.vocab_size - 1}.",
        )
    num_tokens = min(length + request.stopping.max_tokens, context)
    most = max_sequence_tokens(memory, context)
    if num_tokens > most:
        raise RequestError(
            f"The prompt of {length} tokens and an answer of up to {num_tokens - length} take more "
            f"cache memory than there is: it holds {most} tokens.",
            f"Shorten the prompt, ask for at most {max(most - length, 0)} tokens, or give the "
            "engine more memory.",
        )


def max_sequence_tokens(memory: CacheMemory, context_length: int) -> int:
    """Return how many tokens, prompt and answer, a request alone can have."""
    limit = memory.limits.kv_bytes
    if limit is None or memory.bytes_for(context_length, drafts=True) <= limit:
        return context_length
    fits, too_many = 0, context_length
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if memory.bytes_for(middle, drafts=True) <= limit:
            fits = middle
        else:
            too_many = middle
    return fits
