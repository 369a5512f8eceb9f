"""From a checkpoint to a backbone: look the architecture up by name and build it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headlong.errors import ArchitectureError
from headlong.models import gemma3, llama, qwen2, qwen3, qwen3_5
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.ledger import LoadReport, WeightReader

ARCHITECTURES: dict[str, Callable[[ModelConfig, WeightReader, Ops], Backbone]] = {
    "llama": llama.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen35": qwen3_5.build,
    "gemma3": gemma3.build,
}


@dataclass(frozen=True, slots=True)
class LoadedBackbone:
    """A backbone, and which tensors of the checkpoint it used."""

    backbone: Backbone
    report: LoadReport


def load_backbone(checkpoint: Checkpoint, ops: Ops, quant: str | None = None) -> LoadedBackbone:
    """Build the backbone a checkpoint holds; refuse unknown architectures and missing tensors.

    `quant` packs all matrices in another format than their own: q4, q5, q6, q8, f16, bf16 or f32.
    """
    build = ARCHITECTURES.get(checkpoint.architecture)
    if build is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ArchitectureError(
            f"{checkpoint.path} holds a model of architecture {checkpoint.architecture!r}.",
            f"Known are {known}. docs/add-a-model.md tells how to add one in one file.",
        )
    config = read_config(checkpoint)
    weights = WeightReader(checkpoint, partial(ops.matrix, quant=quant), config.num_layers)
    backbone = build(config, weights, ops)
    return LoadedBackbone(backbone, weights.finish())
