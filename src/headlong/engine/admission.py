"""Admission: refuse requests that could never run, with both numbers."""

from headlong.decode.request import Request, check_prompt
from headlong.decode.runner import Runner
from headlong.errors import RequestError


def check_request(request: Request, runner: Runner) -> None:
    """Refuse a request that is empty, too long, of unknown tokens, or larger than the memory."""
    length, context = len(request.prompt_ids), runner.config.context_length
    check_prompt(request.prompt_ids, context, runner.config.vocab_size)
    num_tokens = min(length + request.stopping.max_tokens, context)
    most = runner.max_sequence_tokens
    if num_tokens > most:
        raise RequestError(
            f"The prompt of {length} tokens and an answer of up to {num_tokens - length} take more "
            f"cache memory than there is: it holds {most} tokens.",
            f"Shorten the prompt, ask for at most {max(most - length, 0)} tokens, or give the "
            "engine more memory.",
        )
