"""Give a tiny checkpoint an MTP layer under its published names, and record what it drafts.

transformers' own `MtpModel` is the truth: row P of its layer reads the hidden state of position P
and the token at P + 1, and drafts the token at P + 2; every further depth reads the layer's normed
result and the token just drafted. Nothing of Headlong is imported here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

NUM_DEPTHS = 3
FIRST_END = 4
"""Drafts are recorded for every prefix of the input from so many tokens on."""

QWEN_NAMES = {
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "eh_proj": "mtp.fc",
    "post_norm": "mtp.norm",
}


def add_mtp_layer(
    folder: Path, model: Any, style: str, randomise: Callable[[Any], None], token_ids: list[int]
) -> list[dict[str, Any]]:
    """Write an MTP layer of random weights into a folder's safetensors file; return its drafts.

    `style` is "qwen" (`mtp.*`) or "layer" (`model.layers.N.*`, embedding and LM head repeated).
    """
    config = model.config
    config.num_mtp_layers = 1
    if getattr(config, "layer_types", None) is not None:
        config.mtp_layer_types = ["full_attention"]
    if getattr(config, "mlp_layer_types", None) is not None:
        config.mtp_mlp_layer_types = ["sparse"]
    kept = {name: values.clone() for name, values in model.state_dict().items()}
    mtp = MtpModel(model, 1).float().eval()
    randomise(mtp)  # touches the embedding and LM head, which it shares, too
    model.load_state_dict(kept)
    named = split_experts(_published(mtp.state_dict(), style, config.num_hidden_layers))
    if style == "layer":
        prefix = f"model.layers.{config.num_hidden_layers}"
        named[f"{prefix}.embed_tokens.weight"] = model.get_input_embeddings().weight
        named[f"{prefix}.shared_head.head.weight"] = model.lm_head.weight
    file = folder / "model.safetensors"
    tensors = split_experts(load_file(file))
    tensors |= {name: values.detach().clone().contiguous() for name, values in named.items()}
    save_file(tensors, file, metadata={"format": "pt"})

    def read(states: torch.Tensor, ids: list[int]) -> torch.Tensor:
        positions = torch.arange(1, len(ids) + 1)[None]
        inputs = torch.tensor([ids])
        rows: torch.Tensor = mtp.forward_layer(0, states[None], positions, None, input_ids=inputs)
        return rows[0]

    return record_drafts(model, read, token_ids)


def split_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return experts one by one, as most published files hold them; transformers fuses them."""
    split: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        stem, _, part = name.rpartition(".")
        if not stem.endswith(".experts") or values.ndim != 3:
            split[name] = values
            continue
        for index, expert in enumerate(values):
            if part == "gate_up_proj":
                halves = expert.chunk(2)
                split[f"{stem}.{index}.gate_proj.weight"] = halves[0].contiguous()
                split[f"{stem}.{index}.up_proj.weight"] = halves[1].contiguous()
            else:
                split[f"{stem}.{index}.{part}.weight"] = expert.contiguous()
    return split


def _published(
    tensors: dict[str, torch.Tensor], style: str, num_layers: int
) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        if name.startswith(("embed_tokens", "shared_head", "rotary")):
            continue
        rest = name.removeprefix("layers.0.").removeprefix("mtp_block.")
        part, _, kind = rest.partition(".")
        if style == "qwen":
            known = QWEN_NAMES.get(part)
            named[f"{known}.{kind}" if known else f"mtp.layers.0.{rest}"] = values
        else:
            rest = "shared_head.norm.weight" if part == "post_norm" else rest
            named[f"model.layers.{num_layers}.{rest}"] = values
    return named


def record_drafts(
    model: Any, read: Callable[[torch.Tensor, list[int]], torch.Tensor], token_ids: list[int]
) -> list[dict[str, Any]]:
    """Draft after every prefix, as if its last token were the newest of a text.

    `read` runs the layer over hidden states and next tokens; it returns what is carried on.
    """
    drafts = []
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([token_ids]), use_cache=False).last_hidden_state
        for end in range(FIRST_END, len(token_ids)):
            states, ids = hidden[0, :end], token_ids[1 : end + 1]
            margins: list[float] = []
            for _ in range(NUM_DEPTHS):
                carried = read(states, ids)
                best = model.lm_head(carried[-1]).topk(2)
                margins.append(float(best.values[0] - best.values[1]))
                states = torch.cat([states, carried[-1:]])
                ids = [*ids, int(best.indices[0])]
            drafts.append(
                {
                    "newest": end,
                    "token_ids": ids[-NUM_DEPTHS:],
                    "smallest_margin": float(f"{min(margins):.3g}"),
                }
            )
    return drafts
