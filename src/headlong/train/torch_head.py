"""Heads in training: EAGLE-3 format, `nextn`, and Medusa's parallel heads.

In:  the backbone's hidden rows and token ids. Out: one state per row and depth, and logits over
the draft vocabulary. Parameters have their names in head files, so a state dict can be exported
unchanged. The computation is that of `headlong.heads`; a test compares the two.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.decoder_layer import usual_rope
from headlong.heads.eagle3 import default_taps, make_eagle3_config
from headlong.heads.nextn import make_nextn_config
from headlong.heads.nextn_families import NextnSwitches
from headlong.heads.parallel import make_medusa_config
from headlong.models.hidden import HiddenRows
from headlong.models.rope import make_rope
from headlong.train.backbone_init import init_from_backbone
from headlong.train.chain_layer import ChainLayer, Norm
from headlong.train.chains import Chains, StartRows
from headlong.train.pointwise import GROUP
from headlong.train.projection import Projection, enable_qat
from headlong.train.recipe import HeadRecipe
from headlong.train.teacher import Teacher


class TorchHead(nn.Module):
    """Interface of a head for the trainer."""

    tap_layers: tuple[int, ...] = ()
    max_depth: int | None = None
    """Number of depths it can draft; None for any number."""
    reads_raw: bool = False
    """Whether it reads the backbone's rows before the final norm."""

    @property
    def frozen(self) -> list[str]:
        """Names of its tensors that are not trained."""
        return []

    def rollout(
        self, hidden: HiddenRows, token_ids: Tensor, starts: StartRows | None = None
    ) -> Iterator[Tensor]:
        """Yield the states of depth 1, 2, …: (n, H) each, of all rows or of the start rows."""
        raise NotImplementedError

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Return the logits over the draft vocabulary at one depth: (N, H) → (N, V_draft)."""
        raise NotImplementedError

    def export_config(self) -> dict[str, Any]:
        """Return the config.json of the head."""
        raise NotImplementedError

    def scale_logits(self, scale: float) -> None:
        """Multiply the LM head, or all LM heads, by a factor."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.startswith(("lm_head.", "lm_heads.")):
                    parameter.mul_(scale)


class TorchEagle3(TorchHead):
    """A recursive head in EAGLE-3 format."""

    def __init__(self, teacher: Teacher, vocabulary: IntArray, inner: int) -> None:
        super().__init__()
        config = teacher.config
        self._inner = inner
        low, mid, high = default_taps(config.num_layers)
        if not 0 <= low < mid < high < config.num_layers:
            raise HeadError(
                f"A backbone of {config.num_layers} layers is too shallow for an EAGLE-3 head.",
                'Set head.kind = "nextn" in the recipe.',
            )
        self.tap_layers = (low, mid, high)
        self._teacher = teacher
        # As in the head's config.json: without RoPE scaling.
        self._rope = make_rope(config.head_dim, config.rope_theta)
        hidden = config.hidden_size
        self.fc = Projection(3 * hidden, hidden, bias=False)
        self.midlayer = ChainLayer(teacher, inner, with_embedding=True)
        self.norm = Norm(hidden, teacher)
        self.lm_head = Projection(hidden, len(vocabulary), bias=False)
        with torch.no_grad():
            self.fc.weight.zero_()
            self.fc.weight[:, 2 * hidden :].copy_(torch.eye(hidden))
            init_from_backbone(self.midlayer, teacher.backbone.layers)
            self.norm.weight.copy_(torch.from_numpy(teacher.backbone.final_norm.weight))
            self.lm_head.weight.copy_(teacher.lm_rows(torch.from_numpy(vocabulary)))

    def rollout(
        self, hidden: HiddenRows, token_ids: Tensor, starts: StartRows | None = None
    ) -> Iterator[Tensor]:
        """Yield the states of depth 1, 2, …, with the true tokens as input."""
        assert hidden.taps is not None
        state = self.fc(hidden.taps)
        batch, length = token_ids.shape
        teacher = self._teacher
        chains = Chains(batch, length, teacher.ops, teacher.pointwise, self._rope, starts)
        while True:
            embedded = teacher.embed(chains.tokens(token_ids))
            state = self.midlayer(state, chains, embedded)
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Return the logits over the draft vocabulary."""
        return self.lm_head(self.norm(state))

    def export_config(self) -> dict[str, Any]:
        """Return the config.json, which other engines can read."""
        config = replace(self._teacher.config, intermediate_size=self._inner)
        return make_eagle3_config(config, self.lm_head.out_features)


class TorchNextn(TorchHead):
    """A recursive head of one MTP layer, DeepSeek/Qwen-style."""

    def __init__(self, teacher: Teacher, vocabulary: IntArray, inner: int) -> None:
        super().__init__()
        hidden = teacher.config.hidden_size
        self._teacher = teacher
        self._inner = inner
        self._rope = usual_rope(teacher.backbone, teacher.config.head_dim)
        self.pre_fc_norm_embedding = Norm(hidden, teacher)
        self.pre_fc_norm_hidden = Norm(hidden, teacher)
        self.fc = Projection(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([ChainLayer(teacher, inner, with_embedding=False)])
        self.norm = Norm(hidden, teacher)
        self.lm_head = Projection(hidden, len(vocabulary), bias=False)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, hidden:].add_(torch.eye(hidden))
            init_from_backbone(self.layers[0], teacher.backbone.layers)
            self.norm.weight.copy_(torch.from_numpy(teacher.backbone.final_norm.weight))
            self.lm_head.weight.copy_(teacher.lm_rows(torch.from_numpy(vocabulary)))

    def rollout(
        self, hidden: HiddenRows, token_ids: Tensor, starts: StartRows | None = None
    ) -> Iterator[Tensor]:
        """Yield the normed states of depth 1, 2, …, with the true tokens as input."""
        state = hidden.normed
        batch, length = token_ids.shape
        teacher = self._teacher
        chains = Chains(batch, length, teacher.ops, teacher.pointwise, self._rope, starts)
        while True:
            embedded = teacher.embed(chains.tokens(token_ids))
            halves = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(state)]
            state = self.norm(self.layers[0](self.fc(torch.cat(halves, -1)), chains))
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Return the logits; carried states are already normed."""
        return self.lm_head(state)

    def export_config(self) -> dict[str, Any]:
        """Return the config.json."""
        config = replace(self._teacher.config, intermediate_size=self._inner)
        return make_nextn_config(config, NextnSwitches(), self.lm_head.out_features)


class TorchMedusa(TorchHead):
    """Parallel heads: residual blocks and an LM head for every depth."""

    def __init__(
        self, teacher: Teacher, vocabulary: IntArray, num_depths: int, num_blocks: int
    ) -> None:
        super().__init__()
        hidden = teacher.config.hidden_size
        self._teacher = teacher
        self.max_depth = num_depths
        self.blocks = nn.ModuleList([_MedusaBlocks(hidden, num_blocks) for _ in range(num_depths)])
        self.lm_heads = nn.ModuleList(
            [Projection(hidden, len(vocabulary), bias=False) for _ in range(num_depths)]
        )
        with torch.no_grad():
            rows = teacher.lm_rows(torch.from_numpy(vocabulary))
            for lm_head in self.lm_heads:
                lm_head.weight.copy_(rows)

    def rollout(
        self, hidden: HiddenRows, token_ids: Tensor, starts: StartRows | None = None
    ) -> Iterator[Tensor]:
        """Yield the states of every depth; none of them depends on drafted tokens."""
        rows = hidden.normed if starts is None else hidden.normed[starts.rows]
        for blocks in self.blocks:
            yield blocks(rows)

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Return the logits of the LM head of `depth`."""
        return self.lm_heads[depth - 1](state)

    def export_config(self) -> dict[str, Any]:
        """Return the config.json, as vLLM reads it."""
        config, size = self._teacher.config, self.lm_heads[0].out_features
        return make_medusa_config(config, len(self.blocks), len(self.blocks[0].layers), size)


class _MedusaBlocks(nn.Module):
    """x + silu(Wx + b), repeated; W and b start at zero, so that the output is x."""

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
    recipe: HeadRecipe, teacher: Teacher, vocabulary: IntArray, num_depths: int
) -> TorchHead:
    """Build a head, initialised from the backbone's last layer and LM head."""
    inner = _share_of(teacher.config.intermediate_size, recipe.mlp_share)
    if recipe.kind == "eagle3":
        head: TorchHead = TorchEagle3(teacher, vocabulary, inner)
    elif recipe.kind == "nextn":
        head = TorchNextn(teacher, vocabulary, inner)
    else:
        head = TorchMedusa(teacher, vocabulary, num_depths, recipe.num_blocks)
    head.to(teacher.device)
    if recipe.packed == "q4":
        enable_qat(head, teacher.pointwise)
    return head


def recorded_taps(recipe: HeadRecipe, num_layers: int) -> tuple[int, ...]:
    """Return the tap layers of a recipe's head, whose inputs can be recorded."""
    return default_taps(num_layers) if recipe.kind == "eagle3" else ()


def _share_of(inner: int, share: float) -> int:
    """Return a share of an MLP's width, rounded to whole groups of packed weights."""
    return inner if share == 1 else max(GROUP, round(inner * share / GROUP) * GROUP)
