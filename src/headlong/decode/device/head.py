"""A recursive head over pages: the same layer, norms and projections as `LayerHead` runs.

In:  features or states, the tokens behind their rows, the rows. Out: states and draft logits.
Its keys and values lie in the backbone's pages, in a layer of their own.
"""

from torch import Tensor, cat, where

from headlong.heads.layer_head import LayerHead
from headlong.ops.cuda.paged_blocks import DeviceRows, PagedBlocks, PagedKeys
from headlong.ops.cuda.pick import by_row


class DeviceHead:
    """The passes of one head."""

    def __init__(self, head: LayerHead, paged: PagedBlocks) -> None:
        # Drafts are as long as they are asked for, so a smaller LM head is worth its misses.
        self.head = head.with_fewer_tokens() or head
        self._blocks = self.head.draft_blocks()
        self._paged = paged

    def write(self, features: Tensor, rows: DeviceRows, pages: PagedKeys) -> None:
        """Observe rows of which no draft begins: only their keys and values are kept."""
        self._attend(self.head.enter(features, self._paged), rows, pages)

    def follow(self, features: Tensor, rows: DeviceRows, pages: PagedKeys, last: Tensor) -> Tensor:
        """Observe rows; return the states at the rows `last`, where drafts begin: (B, H)."""
        residual, attended = self._attend(self.head.enter(features, self._paged), rows, pages)
        return self._finish(residual[last], attended[last])

    def step(self, state: Tensor, rows: DeviceRows, pages: PagedKeys) -> Tensor:
        """Run the layer over one row of every draft; return the states to carry on: (B, H)."""
        return self._finish(*self._attend(state, rows, pages))

    def logits(self, state: Tensor) -> Tensor:
        """Score the draft vocabulary: (B, H) → (B, V_draft) float32."""
        blocks = self._blocks
        norm = None if blocks.carries_normed else blocks.norm
        return capped(self._paged.logits(state, norm, blocks.lm_head), blocks.logit_cap)

    def _attend(self, state: Tensor, rows: DeviceRows, pages: PagedKeys) -> tuple[Tensor, Tensor]:
        """Return what the layer adds to, and what its attention found; keys go to their pages."""
        paged, block = self._paged, self._blocks.layer.attention
        x, beside = self._layer_input(state, rows)
        attended = paged.attend(paged.qkv(x, block, beside), block, pages, rows)
        return (paged.norm(x, block.norm) if block.adds_to_normed else x), attended

    def _layer_input(self, state: Tensor, rows: DeviceRows) -> tuple[Tensor, Tensor | None]:
        """Return what the layer reads, and what it reads beside that."""
        paged, blocks, fusion = self._paged, self._blocks, self._blocks.fusion
        embedded = paged.embed(blocks.embedding, rows.token_ids, blocks.embedding_scale)
        if self.head.zeroes_first_embedding:
            embedded = where(rows.positions[:, None] == 0, 0.0, embedded).to(embedded.dtype)
        if fusion is None:
            return state, embedded
        halves = [paged.norm(embedded, fusion.embedding_norm), paged.norm(state, fusion.state_norm)]
        if fusion.is_state_first:
            halves.reverse()
        return paged.project(cat(halves, 1), fusion.fc), None

    def _finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        paged, blocks = self._paged, self._blocks
        x = paged.mlp(paged.output(attended, blocks.layer.attention, residual), blocks.layer.mlp)
        return paged.norm(x, blocks.norm) if blocks.carries_normed else x


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(logit / cap), number by number; the logits themselves without a cap."""
    return logits if cap is None else by_row(lambda row: (row / cap).tanh() * cap, logits)
