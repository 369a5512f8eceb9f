"""A backbone's numbers as the config.json that transformers reads, and its tensors' names there.

In:  a checkpoint in GGUF. Out: config.json's contents, and the Hugging Face name of every tensor;
or a refusal of what that class of transformers has no place for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headlong.errors import ArchitectureError, TensorError, TextError
from headlong.heads.head_weights import FloatType, list_names
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.rope import divide_rope, make_rope
from headlong.models.rope_scaling import RopeScaling
from headlong.text.vocabulary import Vocabulary
from headlong.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Family:
    """A class of transformers, and what its layers have beyond Llama's."""

    class_name: str
    extra_parts: tuple[str, ...] = ()
    cutting: str | None = None
    """The only rule to cut text by that transformers has for it, whatever tokenizer.json says."""


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM", ("attn_q.bias", "attn_k.bias", "attn_v.bias"), "qwen2"),
    "qwen3": _Family("Qwen3ForCausalLM", ("attn_q_norm.weight", "attn_k_norm.weight")),
}
_FRAME = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXTRA = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_DIVISORS = "rope_freqs.weight"


def hugging_face_class(checkpoint: Checkpoint) -> str:
    """Return the class of transformers that runs a model; a folder says it itself."""
    stated = checkpoint.metadata.get("architectures")
    if checkpoint.format == "safetensors" and isinstance(stated, list) and stated:
        return str(stated[0])
    return _family(checkpoint).class_name


def hugging_face_names(checkpoint: Checkpoint, num_layers: int) -> dict[str, str]:
    """Return what transformers calls every tensor of a GGUF file; refuse ones it has no place for.

    Divisors of rotary frequencies are left out: they become part of the config.
    """
    family = _family(checkpoint)
    names = dict(_FRAME)
    for part in (*(f"{name}.weight" for name in _LAYER), *family.extra_parts):
        module, _, kind = part.rpartition(".")
        hf_module = (_LAYER | _EXTRA)[module]
        for index in range(num_layers):
            names[f"blk.{index}.{part}"] = f"model.layers.{index}.{hf_module}.{kind}"
    strange = sorted(checkpoint.tensors.keys() - names.keys() - {_DIVISORS})
    if strange:
        raise TensorError(
            f"{checkpoint.path.name} has tensors that transformers' {family.class_name} has no "
            f"place for: {list_names(strange)}.",
            "Take the Hugging Face folder that the model was converted from.",
        )
    return {name: names[name] for name in checkpoint.tensors if name != _DIVISORS}


def hugging_face_config(
    checkpoint: Checkpoint, vocabulary: Vocabulary, float_type: FloatType
) -> dict[str, Any]:
    """Return the config.json of a GGUF file's backbone."""
    config, rule = read_config(checkpoint), checkpoint.metadata.get("tokenizer.ggml.pre")
    if _family(checkpoint).cutting not in (None, rule):
        raise TextError(
            f"{checkpoint.path.name} cuts text by the rule {rule!r}; transformers reads every "
            f"{checkpoint.architecture} folder by its own.",
            "Take the Hugging Face folder that the model was converted from.",
        )
    ends = sorted(vocabulary.eos_ids)
    scaling = _rope_scaling(checkpoint, config)
    return {
        "architectures": [hugging_face_class(checkpoint)],
        "model_type": checkpoint.architecture,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        **({} if scaling is None else {"rope_scaling": _scaling_record(scaling)}),
        "max_position_embeddings": config.context_length,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        **({} if vocabulary.bos_id is None else {"bos_token_id": vocabulary.bos_id}),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "torch_dtype": float_type,
    }


def _family(checkpoint: Checkpoint) -> _Family:
    family = _FAMILIES.get(checkpoint.architecture)
    if family is None:
        raise ArchitectureError(
            f"{checkpoint.path.name} is of architecture {checkpoint.architecture!r}, whose GGUF "
            "files are not turned into Hugging Face folders here.",
            f"That is done for {', '.join(_FAMILIES)}; take the folder that the model was "
            "converted from, and export from it.",
        )
    return family


def _rope_scaling(checkpoint: Checkpoint, config: ModelConfig) -> RopeScaling | None:
    """Return how frequencies are stretched; divisors in the file must be Llama 3's rule."""
    tensor = checkpoint.tensors.get(_DIVISORS)
    if tensor is None:
        return config.rope_scaling
    divisors = tensor.to_float32()
    guess = RopeScaling("llama3", round(float(divisors.max()), 4))
    stated = divide_rope(make_rope(config.head_dim, config.rope_theta), divisors).frequencies
    guessed = make_rope(config.head_dim, config.rope_theta, guess).frequencies
    if not np.allclose(stated, guessed, rtol=1e-4, atol=0):
        raise ArchitectureError(
            f"{checkpoint.path.name} divides rotary frequencies by {divisors.min():g}…"
            f"{divisors.max():g}, not as Llama 3 does from a context of "
            f"{guess.original_context_length:,}.",
            "Take the Hugging Face folder that the model was converted from.",
        )
    return guess


def _scaling_record(scaling: RopeScaling) -> dict[str, Any]:
    record: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    original = {"original_max_position_embeddings": scaling.original_context_length}
    if scaling.kind == "llama3":
        return {**record, **original, "low_freq_factor": low, "high_freq_factor": high}
    if scaling.kind == "yarn":
        factor = {"attention_factor": scaling.amplitude}
        return {**record, **original, "beta_slow": low, "beta_fast": high, **factor}
    return record
