"""Admission: refuse requests that could never run, with both numbers."""

from headlong.decode.request import Request
from headlong.decode.runner import Runner
from headlong.errors import RequestError


def check_request(request: Request, runner: Runner) -> None:
    """Refuse a request that is empty, too long, of unknown tokens, or larger than the memory."""
    config = runner.config
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
    most = runner.max_sequence_tokens
    if num_tokens > most:
        raise RequestError(
            f"The prompt of {length} tokens and an answer of up to {num_tokens - length} take more "
            f"cache memory than there is: it holds {most} tokens.",
            f"Shorten the prompt, ask for at most {max(most - length, 0)} tokens, or give the "
            "engine more memory.",
        )
