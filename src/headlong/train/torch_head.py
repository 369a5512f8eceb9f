"""Heads in training: EAGLE-3 format, `nextn`, and Medusa's parallel heads.

In:  the backbone's hidden batch and token ids. Out: one state per row and depth, and logits over
the draft vocabulary. Parameters carry the names that head files use, so that a state dict is
already the export. The maths is that of `headlong.heads`, which a test holds against it.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.eagle3 import default_taps, make_eagle3_config
from headlong.heads.nextn import make_nextn_config
from headlong.heads.nextn_families import NextnSwitches
from headlong.heads.parallel import make_medusa_config
from headlong.models.rope import make_rope
from headlong.train.chain_layer import ChainLayer, Chains, Norm
from headlong.train.projection import Projection, learn_packed
from headlong.train.recipe import HeadRecipe
from headlong.train.torch_backbone import HiddenBatch, TorchBackbone, TorchLayer


class TorchHead(nn.Module):
    """What the trainer knows of a head."""

    tap_layers: tuple[int, ...] = ()
    max_depth: int | None = None
    """Depths it can draft; None for any number."""

    def rollout(self, hidden: HiddenBatch, token_ids: Tensor) -> Iterator[Tensor]:
        """Yield the states of depth 1, 2, …: each (B * T, H). Ask for as many as needed."""
        raise NotImplementedError

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Score the draft vocabulary from states of one depth: (N, H) → (N, V_draft)."""
        raise NotImplementedError

    def export_config(self) -> dict[str, Any]:
        """Return the config.json of the head."""
        raise NotImplementedError


class TorchEagle3(TorchHead):
    """A recursive head in EAGLE-3 format."""

    def __init__(self, backbone: TorchBackbone, vocabulary: IntArray) -> None:
        super().__init__()
        config = backbone.config
        low, mid, high = default_taps(config.num_layers)
        if not 0 <= low < mid < high < config.num_layers:
            raise HeadError(
                f"A backbone of {config.num_layers} layers is too shallow for an EAGLE-3 head.",
                'Set head.kind = "nextn" in the recipe.',
            )
        self.tap_layers = (low, mid, high)
        self._backbone = backbone
        self._rope = _own_rope(backbone)
        hidden = config.hidden_size
        self.fc = Projection(3 * hidden, hidden, bias=False)
        self.midlayer = ChainLayer(config, backbone.pointwise, beside=True)
        self.norm = Norm(hidden, config.norm_eps, backbone.pointwise)
        self.lm_head = Projection(hidden, len(vocabulary), bias=False)
        with torch.no_grad():
            self.fc.weight.zero_()
            self.fc.weight[:, 2 * hidden :].copy_(torch.eye(hidden))
            _start_from(self.midlayer, backbone.layers[-1], backbone)
            self.norm.weight.copy_(backbone.final_norm)
            self.lm_head.weight.copy_(backbone.lm_head[torch.from_numpy(vocabulary)])

    def rollout(self, hidden: HiddenBatch, token_ids: Tensor) -> Iterator[Tensor]:
        """Yield the states of depth 1, 2, …, chains fed with the true tokens."""
        assert hidden.taps is not None
        state = self.fc(hidden.taps)
        chains = Chains(token_ids.shape[0], token_ids.shape[1], self._rope)
        while True:
            embedded = _embed_ahead(self._backbone, token_ids, len(chains.keys) + 1)
            state = self.midlayer(state, chains, embedded)
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Score the draft vocabulary."""
        return self.lm_head(self.norm(state))

    def export_config(self) -> dict[str, Any]:
        """Return the config.json other engines read too."""
        return make_eagle3_config(self._backbone.config, self.lm_head.out_features)


class TorchNextn(TorchHead):
    """A recursive head of one MTP layer, DeepSeek/Qwen-style."""

    def __init__(self, backbone: TorchBackbone, vocabulary: IntArray) -> None:
        super().__init__()
        config, pointwise = backbone.config, backbone.pointwise
        hidden, eps = config.hidden_size, config.norm_eps
        self._backbone = backbone
        self.pre_fc_norm_embedding = Norm(hidden, eps, pointwise)
        self.pre_fc_norm_hidden = Norm(hidden, eps, pointwise)
        self.fc = Projection(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([ChainLayer(config, pointwise, beside=False)])
        self.norm = Norm(hidden, eps, pointwise)
        self.lm_head = Projection(hidden, len(vocabulary), bias=False)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, hidden:].add_(torch.eye(hidden))
            _start_from(self.layers[0], backbone.layers[-1], backbone)
            self.norm.weight.copy_(backbone.final_norm)
            self.lm_head.weight.copy_(backbone.lm_head[torch.from_numpy(vocabulary)])

    def rollout(self, hidden: HiddenBatch, token_ids: Tensor) -> Iterator[Tensor]:
        """Yield the normed states of depth 1, 2, …, chains fed with the true tokens."""
        state = hidden.normed
        batch, length = token_ids.shape
        chains = Chains(batch, length, self._backbone.frequencies)
        while True:
            embedded = _embed_ahead(self._backbone, token_ids, len(chains.keys) + 1)
            halves = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(state)]
            state = self.norm(self.layers[0](self.fc(torch.cat(halves, -1)), chains))
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Score the draft vocabulary; carried states are normed already."""
        return self.lm_head(state)

    def export_config(self) -> dict[str, Any]:
        """Return the config.json."""
        size = self.lm_head.out_features
        return make_nextn_config(self._backbone.config, NextnSwitches(), size)


class TorchMedusa(TorchHead):
    """Parallel heads: residual blocks and an LM head for every depth."""

    def __init__(
        self, backbone: TorchBackbone, vocabulary: IntArray, num_depths: int, num_blocks: int
    ) -> None:
        super().__init__()
        hidden = backbone.config.hidden_size
        self._backbone = backbone
        self.max_depth = num_depths
        self.blocks = nn.ModuleList([_MedusaBlocks(hidden, num_blocks) for _ in range(num_depths)])
        self.lm_heads = nn.ModuleList(
            [Projection(hidden, len(vocabulary), bias=False) for _ in range(num_depths)]
        )
        with torch.no_grad():
            rows = backbone.lm_head[torch.from_numpy(vocabulary)]
            for lm_head in self.lm_heads:
                lm_head.weight.copy_(rows)

    def rollout(self, hidden: HiddenBatch, token_ids: Tensor) -> Iterator[Tensor]:
        """Yield the states of every depth; none of them sees drafted tokens."""
        for blocks in self.blocks:
            yield blocks(hidden.normed)

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Score the draft vocabulary with the LM head of `depth`."""
        return self.lm_heads[depth - 1](state)

    def export_config(self) -> dict[str, Any]:
        """Return the config.json, as vLLM reads it."""
        config, size = self._backbone.config, self.lm_heads[0].out_features
        return make_medusa_config(config, len(self.blocks), len(self.blocks[0].layers), size)


class _MedusaBlocks(nn.Module):
    """x + silu(Wx + b), a few times; W starts at zero, so that x passes unchanged."""

    def __init__(self, hidden: int, num_blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Projection(hidden, hidden) for _ in range(num_blocks)])
        for layer in self.layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks: (N, H)."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


def make_head(
    recipe: HeadRecipe, backbone: TorchBackbone, vocabulary: IntArray, num_depths: int
) -> TorchHead:
    """Build a head that starts from the backbone's own last layer and LM head."""
    if recipe.kind == "eagle3":
        head: TorchHead = TorchEagle3(backbone, vocabulary)
    elif recipe.kind == "nextn":
        head = TorchNextn(backbone, vocabulary)
    else:
        head = TorchMedusa(backbone, vocabulary, num_depths, recipe.num_blocks)
    head.to(backbone.device)
    if recipe.packed == "q4":
        learn_packed(head, backbone.pointwise)
    return head


def _own_rope(backbone: TorchBackbone) -> Tensor:
    """Return the frequencies that the head's config.json will announce: no stretching."""
    rope = make_rope(backbone.config.head_dim, backbone.config.rope_theta)
    return torch.from_numpy(rope.frequencies).to(backbone.device)


def _embed_ahead(backbone: TorchBackbone, token_ids: Tensor, shift: int) -> Tensor:
    """Return the embedding of the token `shift` places on; the end wraps and is never judged."""
    return backbone.embedding[token_ids.roll(-shift, 1).reshape(-1)]


def _start_from(layer: ChainLayer, source: TorchLayer, backbone: TorchBackbone) -> None:
    """Copy a backbone layer; a doubled input reads both halves the way the layer read one."""
    config, attention, mlp = backbone.config, layer.self_attn, layer.mlp
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = source.qkv.float().split([queries, keys, keys])
    names = (attention.q_proj, attention.k_proj, attention.v_proj)
    for projection, part in zip(names, parts, strict=True):
        projection.weight.copy_(part.repeat(1, projection.in_features // config.hidden_size))
    attention.o_proj.weight.copy_(source.output)
    gate, up = source.gate_up.chunk(2)
    mlp.gate_proj.weight.copy_(gate)
    mlp.up_proj.weight.copy_(up)
    mlp.down_proj.weight.copy_(source.down)
    layer.input_layernorm.weight.copy_(source.attention_norm)
    if hasattr(layer, "hidden_norm"):
        layer.hidden_norm.weight.copy_(source.attention_norm)
    layer.post_attention_layernorm.weight.copy_(source.mlp_norm)
