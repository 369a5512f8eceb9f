"""Attention of many sequences at once: one new token per row, or whole sequences from their start.

In:  queries (B, heads, D); keys and values (B, kv_heads, T, D) of which row b has `lengths[b]`; the
     block whose scale and window apply.
Out: (B, heads, D). On CUDA a Triton kernel reads exactly the entries a row sees, so that short rows
do not pay for long ones; `attend_plain` is the truth beside it and what the CPU uses.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.arrays import FloatArray
from headlong.ops.blocks import Attending, LatentAttention
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Rows
from headlong.ops.torch.weights import TorchKVLayer

try:
    from headlong.ops.torch.attention_kernel import attend_kernel
except ImportError:  # a CPU build of torch comes without Triton
    attend_kernel = None


class HeadRows(NamedTuple):
    """What attention reads of its rows, cut into heads."""

    query: Tensor  # (N, heads, D), rotated
    key: Tensor  # (N, kv_heads, D), rotated
    value: Tensor  # (N, kv_heads, D)
    gate: Tensor | None  # (N, heads, D)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention must know of a mixer besides its queries, keys and values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    value_scale: float = 1.0
    sinks: FloatArray | None = None


def attention_shape(mixer: Attending | LatentAttention) -> AttentionShape:
    """Return how a mixer attends; heads of latent attention share one key and one value."""
    if isinstance(mixer, LatentAttention):
        key_dim = mixer.rank + mixer.rotary_dim
        return AttentionShape(mixer.num_heads, 1, key_dim, mixer.rank, mixer.scale)
    names = [field.name for field in fields(AttentionShape)]
    return AttentionShape(**{name: getattr(mixer, name) for name in names})


AttendRows: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, AttentionShape], Tensor]

_BLOCK = 64
_BLOCK_WIDE = 32
"""Entries read at once where heads are wider than 128 numbers: a block must fit on the chip."""
_MIN_QUERIES = 16  # the fewest rows a tensor-core product takes
_LOG2_E = 1.4426950408889634


def attend_plain(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, block: AttentionShape
) -> Tensor:
    """Attend with full score rows and a mask."""
    batch, kv_heads, capacity, head_dim = keys.shape
    grouped = query.view(batch, kv_heads, -1, head_dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() * block.scale  # (B, KV, G, T)
    entries = torch.arange(capacity, device=keys.device)[None]
    is_hidden = entries >= lengths[:, None]
    if block.window is not None:
        is_hidden = is_hidden | (entries < lengths[:, None] - block.window)
    probs = soften(scores.masked_fill(is_hidden[:, None, None], float("-inf")), block)
    attended = probs.to(values.dtype) @ values * block.value_scale
    return attended.view(*query.shape[:2], values.shape[-1])


def soften(scores: Tensor, block: Attending | AttentionShape, num_behind: int = 1) -> Tensor:
    """Turn scores into shares, of which sinks take theirs; `num_behind` axes follow the heads'."""
    if block.sinks is None:
        return scores.softmax(-1)
    sinks = torch.as_tensor(block.sinks, device=scores.device)
    sinks = sinks.view(block.num_kv_heads, -1, *[1] * num_behind)
    joined = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
    return joined.softmax(-1)[..., :-1]


def attend_triton(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, block: AttentionShape
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
    query: Tensor, keys: Tensor, values: Tensor, position: int, block: Attending | AttentionShape
) -> Tensor:
    """Attend from one row, (heads, D), over a cache (kv_heads, capacity, D): (heads * D,)."""
    first = 0 if block.window is None else max(0, position + 1 - block.window)
    # Contiguous: the room a cache has must not decide which kernel is taken.
    keys = keys[:, first : position + 1].contiguous()  # (G, L, D)
    values = values[:, first : position + 1].contiguous()  # (G, L, D)
    grouped = query.reshape(block.num_kv_heads, -1, block.head_dim)  # (G, heads / G, D)
    scores = (grouped @ keys.transpose(1, 2)).float() * block.scale  # (G, heads / G, L)
    return (soften(scores, block).to(values.dtype) @ values).view(-1) * block.value_scale


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


def attend_sequences(query: Tensor, keys: Tensor, values: Tensor, block: AttentionShape) -> Tensor:
    """Attend within whole sequences: (B, heads, T, D), keys and values (B, kv_heads, T, D)."""
    length = query.shape[2]
    mask: Tensor | None = None
    if block.window is not None and block.window < length:
        index = torch.arange(length, device=query.device)
        distance = index[:, None] - index[None]
        mask = (distance >= 0) & (distance < block.window)
    if block.sinks is not None:
        return _attend_with_sinks(query, keys, values, mask, block)
    attended = F.scaled_dot_product_attention(
        query, keys, values, mask, is_causal=mask is None, scale=block.scale, enable_gqa=True
    )
    return attended * block.value_scale


def _attend_with_sinks(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, block: AttentionShape
) -> Tensor:
    """Attend within whole sequences; a mask without a window is the causal one."""
    batch, _, length, head_dim = query.shape
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    grouped = query.reshape(batch, block.num_kv_heads, -1, length, head_dim)
    scores = (grouped @ keys[:, :, None].transpose(-1, -2)).float() * block.scale
    scores = scores.masked_fill(~mask, float("-inf"))  # (B, KV, G, T, T)
    attended = soften(scores, block, 2).to(values.dtype) @ values[:, :, None] * block.value_scale
    return attended.reshape(batch, -1, length, values.shape[-1])


def choose_attention(
    device: torch.device, blocks: Iterable[AttentionShape], *, wants_triton: bool
) -> tuple[AttendRows, str]:
    """Return the fastest attention that gives these blocks' right numbers, and a word about it."""
    if device.type != "cuda" or not wants_triton:
        return attend_plain, "plain attention"
    if attend_kernel is None:
        return attend_plain, "plain attention (triton is not installed)"
    blocks = tuple(blocks)
    if any(b.sinks is not None or b.value_dim != b.head_dim for b in blocks):
        return attend_plain, "plain attention (the Triton kernel has no sinks and one head size)"
    kinds = {(b.num_heads, b.num_kv_heads, b.head_dim, b.window): b for b in blocks}
    try:
        difference = max(_compare(device, block) for block in kinds.values())
    except Exception as error:  # any compiler failure: generation must go on, only slower
        return attend_plain, f"plain attention (the Triton kernel failed: {error!r:.300})"
    if not difference < 0.02:
        return attend_plain, f"plain attention (the Triton kernel is off by {difference:.3g})"
    return attend_triton, f"Triton attention (differs by {difference:.1e} from the plain one)"


def _compare(device: torch.device, block: AttentionShape) -> float:
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
