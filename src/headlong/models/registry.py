"""From a checkpoint to a backbone: look the architecture up by name and build it."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headlong.errors import ArchitectureError
from headlong.models import (
    deepseek2,
    gemma3,
    gemma4,
    glm4_moe,
    llama,
    mimo2,
    nemotron_h,
    qwen2,
    qwen3,
    qwen3_5,
)
from headlong.models.llama import LayerBuilder
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.weight_reader import LoadReport, WeightReader


class Architecture(Protocol):
    """What the file of an architecture offers."""

    def build(self, config: ModelConfig, weights: WeightReader, ops: Ops, /) -> Backbone:
        """Build the backbone from a checkpoint's tensors."""

    def layer_builder(self, config: ModelConfig, weights: WeightReader, /) -> LayerBuilder:
        """Return what builds one layer, those of the model's own MTP head included."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen35": qwen3_5,
    "qwen35moe": qwen3_5,
    "qwen3next": qwen3_5,
    "glm4moe": glm4_moe,
    "gemma3": gemma3,
    "deepseek2": deepseek2,
    "gemma4": gemma4,
    "mimo": qwen2,
    "mimo2": mimo2,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
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
    architecture = ARCHITECTURES.get(checkpoint.architecture)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ArchitectureError(
            f"{checkpoint.path} holds a model of architecture {checkpoint.architecture!r}.",
            f"Known are {known}. docs/add-a-model.md tells how to add one in one file.",
        )
    config = read_config(checkpoint)
    weights = WeightReader(checkpoint, partial(ops.matrix, quant=quant), config.num_layers)
    backbone = architecture.build(config, weights, ops)
    return LoadedBackbone(backbone, weights.finish())
