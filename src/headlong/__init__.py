"""Exact multi-token prediction for local language models: the same text, sooner.

In:  a model's name and prompts.
Out: `LLM`; `load`, `generate`, `stream_generate` for those who come from mlx-lm; and
     `benchmark_inference`, which times any function that answers prompts.
Everything is loaded on first touch, so that `import headlong` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlong.bench.inference import benchmark_inference
    from headlong.errors import HeadlongError
    from headlong.llm import LLM, generate, load, stream_generate

    __version__: str

__all__ = [
    "LLM",
    "HeadlongError",
    "__version__",
    "benchmark_inference",
    "generate",
    "load",
    "stream_generate",
]

_HOMES = {
    "LLM": "headlong.llm",
    "load": "headlong.llm",
    "generate": "headlong.llm",
    "stream_generate": "headlong.llm",
    "HeadlongError": "headlong.errors",
    "benchmark_inference": "headlong.bench.inference",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _find_version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headlong' has no attribute {name!r}")


def _find_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headlong")
    except PackageNotFoundError:
        return "unknown (not installed)"


def __dir__() -> list[str]:
    return sorted(__all__)
