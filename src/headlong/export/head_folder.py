"""An EAGLE-3 head as the folder that vLLM, SGLang or speculators load.

In:  a `HeadSource`. Out: config.json and model.safetensors.
vLLM and SGLang get the same folder: each reads its own key for the taps. That of speculators nests
the layer's sizes and names the model it was trained on.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from headlong.export.conversion import Conversion
from headlong.export.head_source import HeadSource
from headlong.heads.head_files import save_head
from headlong.heads.head_weights import QUANT_KEY, HeadWeights
from headlong.weights.tensors import StoredTensor

_TAPS = "eagle_aux_hidden_state_layer_ids"
_OUTSIDE_THE_LAYER = (
    *("architectures", "target_hidden_size", "draft_vocab_size", QUANT_KEY),
    *("norm_before_residual", "norm_before_fc", "norm_output", "vocab_size"),
)
USUAL_K = 4
"""Drafted tokens that launch commands ask for."""


def write_engine_folder(
    folder: Path, source: HeadSource, conversion: Conversion
) -> dict[str, StoredTensor]:
    """Write a head for vLLM and SGLang; return its tensors."""
    weights = _converted(source.weights, conversion)
    # vLLM reads the first, the layers whose inputs are tapped; SGLang the second, and adds 1.
    taps = {
        _TAPS: list(source.tap_layers),
        "eagle_config": {
            _TAPS: [tap - 1 for tap in source.tap_layers],
            "use_aux_hidden_state": True,
        },
    }
    save_head(folder, replace(weights, config={**weights.config, **taps}))
    return dict(weights.tensors)


def write_speculators_folder(
    folder: Path, source: HeadSource, conversion: Conversion, verifier: tuple[str, str]
) -> dict[str, StoredTensor]:
    """Write a head in the speculators format; `verifier` is the model's name and class."""
    weights = _converted(source.weights, conversion)
    tensors = {
        re.sub(r"^midlayer\.", "layers.0.", name): one for name, one in weights.tensors.items()
    }
    config = _speculators_config(source, verifier)
    config["transformer_layer_config"]["torch_dtype"] = conversion.float_type
    save_head(folder, replace(weights, config=config, tensors=tensors))
    return dict(weights.tensors)


def _speculators_config(source: HeadSource, verifier: tuple[str, str]) -> dict[str, Any]:
    own = dict(source.weights.config)
    layer = {name: own[name] for name in own if name not in _OUTSIDE_THE_LAYER}
    layer["vocab_size"] = own["vocab_size"]
    outside = {name: own[name] for name in _OUTSIDE_THE_LAYER if name in own}
    return {
        **outside,
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        _TAPS: list(source.tap_layers),
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": USUAL_K}],
            "verifier": {"name_or_path": verifier[0], "architectures": [verifier[1]]},
        },
    }


def _converted(weights: HeadWeights, conversion: Conversion) -> HeadWeights:
    tensors = {
        name: conversion.apply(replace(tensor, name=name))
        for name, tensor in weights.tensors.items()
    }
    return replace(weights, tensors=tensors)
