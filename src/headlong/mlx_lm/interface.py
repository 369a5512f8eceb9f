"""Load and generate as with mlx-lm: its names, arguments and responses.

    from headlong import load, generate
    model, tokenizer = load("mlx-community/Qwen3-0.6B-4bit")
    generate(model, tokenizer, prompt="Hello", max_tokens=64, verbose=True)

In:  what a program for mlx-lm passes; `mtp` and the other options of `LLM.stream` as well.
Out: the text, or a `GenerationResponse` for every token. Drafting is on unless `mtp="off"`.
"""

import reprlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.stats import DecodeStats
from headlong.errors import RequestError
from headlong.generation import Chunk
from headlong.llm import LLM
from headlong.mlx_lm.samplers import named_options
from headlong.mlx_lm.tokenizer import MlxTokenizer
from headlong.prompt import is_chat
from headlong.text.tokenizer import Tokenizer

_REFUSED = {
    "adapter_path": "Fuse the adapter into the model with mlx_lm.fuse.",
    "model_config": "Change the folder's config.json.",
    "return_config": "Its sizes are in model.backbone.config.",
    "max_kv_size": "Keys and values of the whole context are kept.",
    "kv_bits": "Leave it out; a backend keeps keys and values in a format of its own.",
    "input_embeddings": "Give text or token ids.",
}
"""Arguments of mlx-lm that nothing here stands for, and what to do."""

_WITHOUT_EFFECT = (
    "lazy",
    "trust_remote_code",  # no code out of a model's folder ever runs
    "prefill_step_size",  # no text depends on it; load(limits=…) has the engine's own
    "kv_group_size",
    "quantized_kv_start",
    "stream",
)


@dataclass(frozen=True, slots=True)
class GenerationResponse:
    """What one token added, and the figures so far."""

    text: str
    token: int
    logprobs: TokenLogprob | None
    """The token's own, with the best alternatives, where `logprobs=n` asked for n of them."""
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    """Of this process or of MLX, whichever is more, in GB."""
    finish_reason: str | None = None
    """"stop" or "length" on the last one."""


@dataclass(slots=True)
class PromptCache:
    """A conversation so far: a prompt given with it holds only what is new."""

    token_ids: list[int] = field(default_factory=list)
    """All of it; the engine finds the rows of what it has run before."""


def make_prompt_cache(model: LLM, max_kv_size: int | None = None) -> PromptCache:
    """Return an empty conversation for `generate(…, prompt_cache=…)`."""
    _drop_unused({"max_kv_size": max_kv_size})
    return PromptCache()


def load(
    path_or_hf_repo: str | Path | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[LLM, MlxTokenizer]:
    """Load a model and its tokenizer; options are mlx-lm's and those of `LLM.load`."""
    options = _drop_unused(options)
    settings = dict(tokenizer_config or {})
    settings.pop("trust_remote_code", None)
    eos_token = settings.pop("eos_token", None)
    if settings:
        problem = f"tokenizer_config holds {next(iter(settings))!r}."
        raise RequestError(problem, "Known is eos_token; change the folder's files for others.")
    revision = options.pop("revision", None)
    name = path_or_hf_repo if revision is None else f"{path_or_hf_repo}@{revision}"
    model = LLM.load(name, **options)
    tokenizer = MlxTokenizer(model.tokenizer)
    if eos_token is not None:
        tokenizer.add_eos_token(eos_token)
    return model, tokenizer


def generate(
    model: LLM,
    tokenizer: MlxTokenizer | Tokenizer,
    prompt: Any,
    verbose: bool = False,
    **options: Any,
) -> str:
    """Generate an answer and return its text; `verbose` prints it and the figures.

    `prompt` is text, messages, or ids in a list or an array.
    """
    responses = stream_generate(model, tokenizer, prompt, **options)
    if not verbose:
        return "".join(response.text for response in responses)
    texts = []
    _show("=" * 10)
    for response in responses:
        texts.append(response.text)
        _show(response.text, end="")
    _show(f"\n{'=' * 10}")
    stats = responses.stats
    _show(f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec")
    _show(
        f"Generation: {response.generation_tokens} tokens, "
        f"{response.generation_tps:.3f} tokens-per-sec"
    )
    _show(
        f"MTP: {stats.acceptance_length:.2f} tokens a round, "
        f"{stats.num_accepted} of {stats.num_drafted} draft tokens accepted"
    )
    _show(f"Peak memory: {response.peak_memory:.3f} GB")
    return "".join(texts)


def stream_generate(
    model: LLM,
    tokenizer: MlxTokenizer | Tokenizer,
    prompt: Any,
    max_tokens: int = 256,
    draft_model: LLM | None = None,
    **options: Any,
) -> "Responses":
    """Generate an answer token by token; options are mlx-lm's and those of `LLM.stream`."""
    _check_loaded(model, tokenizer, draft_model)
    own = _drop_unused(options)
    own = named_options(own.pop("sampler", None), own.pop("logits_processors", None)) | own
    if not isinstance(tokenizer, MlxTokenizer):  # `LLM.tokenizer`, as it is
        tokenizer = MlxTokenizer(tokenizer)
    num_draft_tokens = own.pop("num_draft_tokens", None)
    if draft_model is not None:
        model = _with_draft_model(model, draft_model)
        own.setdefault("mtp", "auto" if num_draft_tokens is None else num_draft_tokens)
    cache = own.pop("prompt_cache", None) or PromptCache()
    if not isinstance(cache, PromptCache):
        raise RequestError(f"prompt_cache is {cache!r}.", "Make it with make_prompt_cache(model).")
    progress = own.pop("prompt_progress_callback", None)
    new_ids = _token_ids(tokenizer, prompt)
    ids = [*cache.token_ids, *new_ids]
    if max_tokens == -1:
        max_tokens = max(1, model.engine.max_sequence_tokens - len(ids))
    chunks = replace(model, tokenizer=tokenizer.own).stream(ids, max_tokens=max_tokens, **own)
    cache.token_ids[:] = ids
    return Responses(chunks, cache, len(new_ids), progress)


class Responses(Iterator[GenerationResponse]):
    """An answer in the making; dropping it half-way ends it."""

    def __init__(self, chunks: Any, cache: PromptCache, num_new: int, progress: Any) -> None:
        self._chunks = chunks
        self._cache = cache
        self._num_new = num_new
        self._progress = progress
        self._num_tokens = 0
        self._began = time.perf_counter()
        self._prompt_s = 0.0
        if progress is not None:
            progress(0, num_new)

    @property
    def stats(self) -> DecodeStats:
        """Rounds, drafted and accepted tokens so far."""
        stats: DecodeStats = self._chunks.stats
        return stats

    def __next__(self) -> GenerationResponse:
        chunk: Chunk = next(self._chunks)
        now = time.perf_counter()
        if self._num_tokens == 0:
            self._prompt_s, self._began = now - self._began, now
            if self._progress is not None:
                self._progress(self._num_new, self._num_new)
        self._num_tokens += len(chunk.token_ids)
        self._cache.token_ids += chunk.token_ids
        seconds = now - self._began
        return GenerationResponse(
            text=chunk.text,
            token=chunk.token_ids[0],
            logprobs=chunk.logprob,
            from_draft=chunk.from_draft,
            prompt_tokens=self._num_new,
            prompt_tps=self._num_new / max(self._prompt_s, 1e-9),
            generation_tokens=self._num_tokens,
            # As mlx-lm counts: all tokens over the time since the first; with one, none passed.
            generation_tps=self._num_tokens / seconds if seconds > 0 else 0.0,
            peak_memory=_peak_bytes() / 1e9,
            finish_reason=None if chunk.finish_reason is None else chunk.finish_reason.value,
        )


def _check_loaded(model: Any, tokenizer: Any, draft_model: Any) -> None:
    """Refuse what `load` has not returned, such as mlx-lm's own models and tokenizers."""
    for what, one, kind, place in (
        ("model", model, LLM, 0),
        ("tokenizer", tokenizer, MlxTokenizer | Tokenizer, 1),
        ("draft_model", draft_model, LLM | None, 0),
    ):
        if not isinstance(one, kind):
            remedy = f"Give headlong.load(…)[{place}]."
            raise RequestError(f"{what} is {reprlib.repr(one)}.", remedy)


def _token_ids(tokenizer: MlxTokenizer, prompt: Any) -> list[int]:
    """Return the ids of a prompt: text, messages, ids or an array of them."""
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        return tokenizer.encode(prompt, bos is None or not prompt.startswith(bos))
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if is_chat(listed):
        ids: list[int] = tokenizer.apply_chat_template(listed, add_generation_prompt=True)
        return ids
    return [int(one) for one in listed]


def _drop_unused(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that mean something here; refuse those that cannot be met."""
    for name, remedy in _REFUSED.items():
        value = options.get(name)
        is_empty = isinstance(value, bool | Mapping | None) and not value
        if not is_empty:
            raise RequestError(f"{name} is not supported.", remedy)
    dropped = (*_REFUSED, *_WITHOUT_EFFECT)
    return {name: value for name, value in options.items() if name not in dropped}


@lru_cache(maxsize=1)
def _with_draft_model(model: LLM, draft_model: LLM) -> LLM:
    """Return both together; kept, since an engine finds its prompts of before."""
    return model.with_draft_model(draft_model)


def _peak_bytes() -> int:
    """Return the most memory this process has had; 0 where the system does not tell.

    What MLX holds for a Mac's GPU need not count as the process's, so its own figure is asked too.
    """
    mlx = sys.modules.get("mlx.core")
    of_mlx = 0 if mlx is None else int(mlx.get_peak_memory())
    if sys.platform == "win32":
        return of_mlx
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(of_mlx, peak if sys.platform == "darwin" else peak * 1024)


def _show(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
