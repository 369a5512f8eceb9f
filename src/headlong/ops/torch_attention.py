"""Attention of many sequences at once: one new token per row, or whole sequences from their start.

In:  queries (B, heads, D); keys and values (B, kv_heads, T, D) of which row b has `lengths[b]`; the
     block whose scale and window apply.
Out: (B, heads, D). On CUDA a Triton kernel reads exactly the entries a row sees, so that short rows
do not pay for long ones; `attend_plain` is the truth beside it and what the CPU uses.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import Attending, Attention
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Rows
from headlong.ops.torch_weights import TorchKVLayer

try:
    from headlong.ops.torch_attention_kernel import attend_kernel
except ImportError:  # a CPU build of torch comes without Triton
    attend_kernel = None


class HeadRows(NamedTuple):
    """What attention reads of its rows, cut into heads."""

    query: Tensor  # (N, heads, D), rotated
    key: Tensor  # (N, kv_heads, D), rotated
    value: Tensor  # (N, kv_heads, D)
    gate: Tensor | None  # (N, heads, D)


class KeepKeys(Protocol):
    """Receives the keys and values that a pass over whole sequences computes."""

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Take one layer's keys and values: (B, kv_heads, T, D) each."""


AttendRows: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Attention], Tensor]

_BLOCK = 64
_BLOCK_WIDE = 32
"""Entries read at once where heads are wider than 128 numbers: a block must fit on the chip."""
_MIN_QUERIES = 16  # the fewest rows a tensor-core product takes
_LOG2_E = 1.4426950408889634


def attend_plain(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, block: Attention
) -> Tensor:
    """Attend with full score rows and a mask."""
    batch, kv_heads, capacity, head_dim = keys.shape
    grouped = query.view(batch, kv_heads, -1, head_dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() * block.scale  # (B, KV, G, T)
    entries = torch.arange(capacity, device=keys.device)[None]
    is_hidden = entries >= lengths[:, None]
    if block.window is not None:
        is_hidden = is_hidden | (entries < lengths[:, None] - block.window)
    probs = scores.masked_fill(is_hidden[:, None, None], float("-inf")).softmax(-1)
    return (probs.to(values.dtype) @ values).view(query.shape)


def attend_triton(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, block: Attention
) -> Tensor:
    """Attend with one program per row and key head."""
    batch, kv_heads, capacity, head_dim = keys.shape
    group = query.shape[1] // kv_heads
    out = torch.empty_like(query)
    attend_kernel[(batch, kv_heads)](
        query,
        keys,
        values,
        out,
        lengths,
        capacity,
        capacity if block.window is None else block.window,
        block.scale * _LOG2_E,  # exp2 is what the hardware has
        KV_HEADS=kv_heads,
        GROUP=group,
        QUERIES=max(_MIN_QUERIES, 1 << (group - 1).bit_length()),
        HEAD_DIM=head_dim,
        BLOCK=_BLOCK if head_dim <= 128 else _BLOCK_WIDE,
        num_warps=2,
        num_stages=3,
    )
    return out


def attend_row(
    query: Tensor, keys: Tensor, values: Tensor, position: int, block: Attending
) -> Tensor:
    """Attend from one row, (heads, D), over a cache (kv_heads, capacity, D): (heads * D,)."""
    first = 0 if block.window is None else max(0, position + 1 - block.window)
    # Contiguous: the room a cache has must not decide which kernel is taken.
    keys = keys[:, first : position + 1].contiguous()  # (G, L, D)
    values = values[:, first : position + 1].contiguous()  # (G, L, D)
    grouped = query.reshape(block.num_kv_heads, -1, block.head_dim)  # (G, heads / G, D)
    scores = (grouped @ keys.transpose(1, 2)).float() * block.scale  # (G, heads / G, L)
    return (scores.softmax(-1).to(values.dtype) @ values).view(-1)


def write_rows(heads: HeadRows, states: Sequence[LayerState | None], rows: Rows) -> None:
    """Write keys and values of all rows of a pass to their caches."""
    for span, layer in zip(rows.spans, states, strict=True):
        assert isinstance(layer, TorchKVLayer)
        own = slice(span.first_row, span.first_row + span.num_rows)
        layer.write(span.first_position, heads.key[own], heads.value[own])


def attend_rows(
    query: Tensor, states: Sequence[LayerState | None], rows: Rows, block: Attending
) -> Tensor:
    """Attend from all rows of a pass, (N, heads, D), each over its own cache: (N, heads * D)."""
    attended: list[Tensor] = []
    for span, layer in zip(rows.spans, states, strict=True):
        assert isinstance(layer, TorchKVLayer)
        own = query[span.first_row : span.first_row + span.num_rows]
        for position, row in enumerate(own, span.first_position):
            attended.append(attend_row(row, layer.keys, layer.values, position, block))
    return torch.stack(attended)


def attend_sequences(query: Tensor, keys: Tensor, values: Tensor, block: Attention) -> Tensor:
    """Attend within whole sequences: (B, heads, T, D), keys and values (B, kv_heads, T, D)."""
    length = query.shape[2]
    mask: Tensor | None = None
    if block.window is not None and block.window < length:
        index = torch.arange(length, device=query.device)
        distance = index[:, None] - index[None]
        mask = (distance >= 0) & (distance < block.window)
    return F.scaled_dot_product_attention(
        query, keys, values, mask, is_causal=mask is None, scale=block.scale, enable_gqa=True
    )


def choose_attention(
    device: torch.device, blocks: Iterable[Attention], *, wants_triton: bool
) -> tuple[AttendRows, str]:
    """Return the fastest attention that gives these blocks' right numbers, and a word about it."""
    if device.type != "cuda" or not wants_triton:
        return attend_plain, "plain attention"
    if attend_kernel is None:
        return attend_plain, "plain attention (triton is not installed)"
    kinds = {(b.num_heads, b.num_kv_heads, b.head_dim, b.window): b for b in blocks}
    try:
        difference = max(_compare(device, block) for block in kinds.values())
    except Exception as error:  # any compiler failure: generation must go on, only slower
        return attend_plain, f"plain attention (the Triton kernel failed: {error!r:.300})"
    if not difference < 0.02:
        return attend_plain, f"plain attention (the Triton kernel is off by {difference:.3g})"
    return attend_triton, f"Triton attention (differs by {difference:.1e} from the plain one)"


def _compare(device: torch.device, block: Attention) -> float:
    """Return the largest difference between the kernel and the plain attention of a block."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    query = normal(8, block.num_heads, block.head_dim)
    keys, values = normal(2, 8, block.num_kv_heads, 300, block.head_dim)
    lengths = torch.tensor([1, 2, 63, 64, 65, 150, 299, 300], device=device, dtype=torch.int32)
    fast = attend_triton(query, keys, values, lengths, block)
    slow = attend_plain(query.float(), keys.float(), values.float(), lengths, block)
    return float((fast.float() - slow).abs().max())
