"""Exact multi-token prediction for local language models: the same text, sooner.

In:  a model's name and prompts.
Out: `LLM`; `load`, `generate`, `stream_generate` and their makers of samplers and prompt caches
     for those who come from mlx-lm; `benchmark_inference`, which times any function that answers
     prompts.
Everything is loaded on first touch, so that `import headlong` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlong.bench.inference import benchmark_inference
    from headlong.errors import HeadlongError
    from headlong.llm import LLM
    from headlong.mlx_lm.interface import generate, load, make_prompt_cache, stream_generate
    from headlong.mlx_lm.samplers import make_logits_processors, make_sampler

    __version__: str

__all__ = [
    "LLM",
    "HeadlongError",
    "__version__",
    "benchmark_inference",
    "generate",
    "load",
    "make_logits_processors",
    "make_prompt_cache",
    "make_sampler",
    "stream_generate",
]

_HOMES = {
    "LLM": "headlong.llm",
    "load": "headlong.mlx_lm.interface",
    "generate": "headlong.mlx_lm.interface",
    "stream_generate": "headlong.mlx_lm.interface",
    "make_prompt_cache": "headlong.mlx_lm.interface",
    "make_sampler": "headlong.mlx_lm.samplers",
    "make_logits_processors": "headlong.mlx_lm.samplers",
    "HeadlongError": "headlong.errors",
    "benchmark_inference": "headlong.bench.inference",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("headlong.provenance").own_version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headlong' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
