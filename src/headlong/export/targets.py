"""The engines a head can be exported to, and how each one is started.

In:  a name. Out: a `Target`; all that differs between engines and is no code stands here.

    |                  | vLLM            | SGLang            | llama.cpp    | speculators    |
    |------------------|-----------------|-------------------|--------------|----------------|
    | files            | folder          | folder            | GGUF         | folder         |
    | taps             | inputs, on top  | `eagle_config`,   | inputs       | inputs, on top |
    |                  |                 | outputs           |              |                |
    | draft vocabulary | offsets (`d2t`) | offsets           | absolute ids | offsets        |
    | residual         | as said         | never normed      | as said      | normed, unless |
    |                  |                 |                   |              | said           |
    | layer's tensors  | `midlayer.`     | `midlayer.`       | `blk.0.`     | `layers.0.`    |
    | q/k rows         | halves          | halves            | interleaved  | halves         |
    | embedding        | the model's, unless the head is of another width                    |
    | LM head          | own             | own               | own          | own            |
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

TargetName: TypeAlias = Literal["vllm", "sglang", "llama.cpp", "speculators"]


@dataclass(frozen=True, slots=True)
class Target:
    """One engine."""

    title: str
    tried: str
    """Which version really ran an exported head, or was only read, in a whole sentence."""
    command: str
    """Starts it in the exported folder; {backbone}, {dtype} and {k} are filled in."""
    dialects: frozenset[str]
    """Which variants of EAGLE-3 it computes, as config.json names them."""
    caution: str | None = None
    """What its users should know before they start it, in whole sentences."""
    takes_gguf: bool = False

    @property
    def head_name(self) -> str:
        """What the head is called in the exported folder."""
        return "head.gguf" if self.takes_gguf else "head"

    @property
    def backbone_name(self) -> str:
        """What the backbone is called in the exported folder."""
        return "backbone.gguf" if self.takes_gguf else "backbone"


_VLLM = (
    "vllm serve {backbone} --dtype {dtype} \\\n"
    '  --speculative-config \'{{"method": "eagle3", "model": "head", '
    '"num_speculative_tokens": {k}}}\''
)

_VLLM_ON_CPU = (
    "vLLM's CPU build starts with `python -m vllm.entrypoints.openai.api_server --model` in place "
    "of `vllm serve`, and samples wrongly while it drafts: use it for greedy requests only."
)

_BEFORE_RESIDUAL, _BEFORE_FC, _OUTPUT = "norm_before_residual", "norm_before_fc", "norm_output"
_ALL = frozenset({_BEFORE_RESIDUAL, _BEFORE_FC, _OUTPUT})

TARGETS: dict[TargetName, Target] = {
    "vllm": Target(
        "vLLM", "Tried with version 0.32.0 (CPU build).", _VLLM, _ALL, caution=_VLLM_ON_CPU
    ),
    "sglang": Target(
        "SGLang",
        "Written after the source of version 0.5.23; not run.",
        "python -m sglang.launch_server --model-path {backbone} --dtype {dtype} \\\n"
        "  --speculative-algorithm EAGLE3 --speculative-draft-model-path head \\\n"
        "  --speculative-num-steps {k} --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens {rows}",
        frozenset({_BEFORE_FC, _OUTPUT}),
    ),
    "llama.cpp": Target(
        "llama.cpp",
        "Tried with version b11434.",
        "llama-server -m {backbone} -md head.gguf \\\n"
        "  --spec-type draft-eagle3 --spec-draft-n-max {k}",
        frozenset({_BEFORE_RESIDUAL, _BEFORE_FC}),
        takes_gguf=True,
    ),
    "speculators": Target(
        "speculators",
        "Tried with version 0.9.0, and started in vLLM 0.32.0 (CPU build).",
        _VLLM,
        _ALL,
        caution=_VLLM_ON_CPU,
    ),
}
