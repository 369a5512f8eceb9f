"""The dialects by the names that `--engine` takes."""

from collections.abc import Callable, Mapping

from headlong.errors import RequestError
from headlong.fleet.dialect import Dialect
from headlong.fleet.llama_cpp_dialect import LlamaCppDialect
from headlong.fleet.ollama_dialect import OllamaDialect
from headlong.fleet.openai_dialect import OpenAIDialect
from headlong.fleet.sglang_dialect import SglangDialect
from headlong.fleet.vllm_dialect import VllmDialect
from headlong.text.tokenizer import Tokenizer

DIALECTS: Mapping[str, Callable[[Tokenizer], Dialect]] = {
    "vllm": lambda _: VllmDialect(),
    "sglang": lambda _: SglangDialect(),
    "llama.cpp": LlamaCppDialect,
    "ollama": OllamaDialect,
    "openai": OpenAIDialect,
}
"""The tokenizer stands in where an engine gives text instead of token ids."""


def make_dialect(name: str, tokenizer: Tokenizer) -> Dialect:
    """Return the dialect that `--engine` names."""
    if name not in DIALECTS:
        raise RequestError(f"There is no engine {name!r}.", f"Use one of {', '.join(DIALECTS)}.")
    return DIALECTS[name](tokenizer)
