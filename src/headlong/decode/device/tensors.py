"""What lies on the device of all sequences, in tensors whose places never change.

In:  sequences by slot. Out: tensors that passes read and write.
Keys and values of backbone and head lie in the same pages. Rows that the head has not observed yet
wait in a ring of each slot, with the tokens of their places; so an idle sequence costs no pass of
the head. One slot more than can be used belongs to nobody: lanes that only fill up write there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headlong.heads.layer_head import LayerHead
from headlong.models.transformer import Backbone
from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, PagedKeys
from headlong.ops.cuda.plain_paged_blocks import bytes_per_position

RING = 128
"""Rows of a slot that may wait for the head, those of the newest pass included."""


class DeviceTensors:
    """The tensors of one runner."""

    def __init__(
        self, backbone: Backbone, head: LayerHead | None, num_slots: int, table_pages: int
    ) -> None:
        assert isinstance(backbone.ops, CudaOps)
        self.ops = backbone.ops
        self.num_slots = num_slots
        self.nobody = num_slots
        self._layers = backbone.layers
        self._head_layers = () if head is None else (head.layer,)
        self.pages: tuple[PagedKeys, ...] = ()
        self.head_pages: tuple[PagedKeys, ...] = ()
        device, shape = self.ops.device, (num_slots + 1,)
        self.table = torch.zeros(*shape, table_pages, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.long, device=device)
        self.observed = torch.zeros(shape, dtype=torch.long, device=device)
        self.tokens = torch.zeros(*shape, RING, dtype=torch.long, device=device)
        width = 0
        if head is not None:
            width = backbone.config.hidden_size * max(1, len(head.tap_layers))
        self.features = torch.zeros(*shape, RING, width, dtype=self.ops.dtype, device=device)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        layers = (*self._layers, *self._head_layers)
        return PAGE_SIZE * sum(bytes_per_position(one, self.ops.dtype) for one in layers)

    def make_pages(self, num_pages: int) -> None:
        """Take the memory of all pages, and of one that belongs to nobody."""
        paged = self.ops.paged
        self.pages = paged.make_pages(self._layers, num_pages + 1)
        self.head_pages = paged.make_pages(self._head_layers, num_pages + 1)

    def copy_page(self, source: int, target: int) -> None:
        """Copy what is in a page to another one."""
        for layer in (*self.pages, *self.head_pages):
            for part in layer:
                part[target] = part[source]

    def put_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Say in which pages a slot's rows lie."""
        self.table[slot, : len(pages)] = self._sent(pages, torch.int32)

    def put_tokens(self, slot: int, first_position: int, token_ids: Sequence[int]) -> None:
        """Say which tokens stand at the newest places of a slot."""
        places = [(first_position + i) % RING for i in range(len(token_ids))]
        self.tokens[slot, self._sent(places, torch.long)] = self._sent(token_ids, torch.long)

    def _sent(self, numbers: Sequence[int], kind: torch.dtype) -> Tensor:
        # From memory that is not pinned: it was read once the call returns, so that it may change.
        numbers_here = torch.tensor(numbers, dtype=kind)
        return numbers_here.to(self.ops.device, non_blocking=True)
