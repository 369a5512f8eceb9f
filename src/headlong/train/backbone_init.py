"""Initialises the layer of a new head from its backbone.

In:  a layer in training, the backbone's layers. Out: the layer. Attention and MLP are each copied
from the last backbone layer with a part of the same kind and size. Where there is none (latent
attention, recurrences, experts only), the part's output projection starts at zero.
"""

from collections.abc import Sequence

import torch

from headlong.ops.blocks import Attention, GatedMlp, Layer
from headlong.train.chain_layer import ChainLayer, SelfAttention


@torch.no_grad()
def init_from_backbone(layer: ChainLayer, sources: Sequence[Layer]) -> None:
    """Initialise a layer from the last backbone layers that fit it."""
    mixers = [source.mixer for source in reversed(sources)]
    channels = [source.channel for source in reversed(sources)]
    attention = next((m for m in mixers if _is_same_attention(m, layer.self_attn)), None)
    if isinstance(attention, Attention):
        _copy_attention(layer, attention)
    else:
        layer.self_attn.o_proj.weight.zero_()
    mlps = (channel for channel in channels if isinstance(channel, GatedMlp))
    mlp = next((mlp for mlp in mlps if mlp.gate is not None), None)
    layer.mlp.down_proj.weight.zero_()
    if mlp is not None:
        _copy_mlp(layer, mlp)


def _is_same_attention(mixer: object, own: SelfAttention) -> bool:
    """Return whether a mixer is attention with the same number and size of heads."""
    if not isinstance(mixer, Attention):
        return False
    ours = [proj.out_features for proj in (own.q_proj, own.k_proj, own.v_proj)]
    theirs = [linear.weight.num_outputs for linear in (mixer.query, mixer.key, mixer.value)]
    return ours == theirs and mixer.output.weight.num_inputs == own.o_proj.in_features


def _copy_attention(layer: ChainLayer, attention: Attention) -> None:
    """Copy attention; for a doubled input, each half gets the backbone's weights."""
    for projection, linear in (
        (layer.self_attn.q_proj, attention.query),
        (layer.self_attn.k_proj, attention.key),
        (layer.self_attn.v_proj, attention.value),
        (layer.self_attn.o_proj, attention.output),
    ):
        weight = linear.weight.values
        projection.weight.copy_(weight.repeat(1, projection.in_features // weight.shape[1]))
    layer.input_layernorm.weight.copy_(torch.from_numpy(attention.norm.weight))
    if hasattr(layer, "hidden_norm"):
        layer.hidden_norm.weight.copy_(torch.from_numpy(attention.norm.weight))


def _copy_mlp(layer: ChainLayer, mlp: GatedMlp) -> None:
    """Copy an MLP.

    A narrower MLP takes the inner units with the largest weights. In a wider one, the output
    weights of the additional units start at zero.
    """
    assert mlp.gate is not None
    up, down = mlp.up.weight.values, mlp.down.weight.values
    sizes = up.float().norm(dim=1) * down.float().norm(dim=0)  # (I,)
    num_kept = min(layer.mlp.up_proj.out_features, len(sizes))
    kept = sizes.topk(num_kept).indices.sort().values
    layer.mlp.gate_proj.weight[:num_kept] = mlp.gate.weight.values[kept]
    layer.mlp.up_proj.weight[:num_kept] = up[kept]
    layer.mlp.down_proj.weight[:, :num_kept] = down[:, kept]
    layer.post_attention_layernorm.weight.copy_(torch.from_numpy(mlp.norm.weight))
