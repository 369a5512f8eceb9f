"""MTP layers cut and joined as a format stores them.

    | part                 | GGUF                            | safetensors                |
    |----------------------|---------------------------------|----------------------------|
    | experts              | stacked, gate and up apart      | one by one                 |
    | keys and values of   | `attn_k_b` (heads, rank, …),    | `attn_kv_b`, head by head  |
    | latent attention     | every head turned; `attn_v_b`   |                            |

In:  tensors under canonical names, in any of these forms.
Out: pieces in the form of one format, each made when it is its turn.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import IntArray
from headlong.errors import TensorError
from headlong.weights.gguf_writer import GgufEntry
from headlong.weights.mapped_file import DOWNLOAD_AGAIN
from headlong.weights.tensor_names import expert_name
from headlong.weights.tensors import StoredTensor, block_sizes

_SINGLE = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down)_exps\.)(\d+)\.weight")
_STACK = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down)_exps\.weight")
_FUSED = "ffn_gate_up_exps."
_HALVES = ("ffn_gate_exps.", "ffn_up_exps.")
_BOTH, _KEYS, _VALUES = "attn_kv_b.", "attn_k_b.", "attn_v_b."


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """What matrices of latent attention are cut by."""

    num_heads: int
    plain_dim: int
    """Rows of a head in `attn_kv_b` that make its keys; the others make its values."""


def gguf_pieces(entries: Iterable[GgufEntry], sizes: HeadSizes | None) -> Iterator[GgufEntry]:
    """Yield the layers as GGUF files have them."""
    singles: dict[str, dict[int, GgufEntry]] = defaultdict(dict)
    for entry in entries:
        name = entry.name
        single = _SINGLE.fullmatch(name)
        if single is not None:
            singles[f"{single[1]}weight"][int(single[2])] = entry
        elif _FUSED in name:
            each = _rows_each(entry, 2 * entry.shape[0])
            rows = np.arange(2 * entry.shape[0] * each).reshape(-1, 2, each)
            for i, half in enumerate(_HALVES):
                shape = (entry.shape[0], each, entry.shape[-1])
                yield _rows(entry, name.replace(_FUSED, half), rows[:, i], shape)
        elif sizes is not None and _BOTH in name:
            yield from _keys_and_values(entry, sizes)
        elif sizes is not None and (_KEYS in name or _VALUES in name):
            each = _rows_each(entry, sizes.num_heads)
            yield replace(entry, shape=(sizes.num_heads, each, entry.shape[-1]))
        else:
            yield entry
    for name, members in singles.items():
        yield _stacked(name, members)


def folder_pieces(entries: Iterable[GgufEntry], sizes: HeadSizes | None) -> Iterator[GgufEntry]:
    """Yield the layers as safetensors files have them."""
    by_name = {entry.name: entry for entry in entries}
    for name, entry in by_name.items():
        if _STACK.fullmatch(name):
            yield from _one_by_one(entry, name)
        elif _FUSED in name:
            for i, half in enumerate(_HALVES):
                yield from _one_by_one(entry, name.replace(_FUSED, half), first=i, parts=2)
        elif sizes is not None and _KEYS in name:
            values = by_name.get(name.replace(_KEYS, _VALUES))
            if values is None:
                raise TensorError(f"{name} is there without its {_VALUES}", DOWNLOAD_AGAIN)
            yield _joined(entry, values, sizes)
        elif sizes is None or _VALUES not in name:
            yield entry


def _rows_each(entry: GgufEntry, num_parts: int) -> int:
    """Return how many rows each of equal parts has; refuse a matrix without such parts."""
    num_rows = prod(entry.shape[:-1])
    if len(entry.shape) < 2 or num_parts < 1 or num_rows % num_parts:
        raise TensorError(
            f"Tensor {entry.name} of shape {list(entry.shape)} has no {num_parts} equal parts.",
            DOWNLOAD_AGAIN,
        )
    return num_rows // num_parts


def _rows(entry: GgufEntry, name: str, order: IntArray, shape: tuple[int, ...]) -> GgufEntry:
    """Take some rows, counted throughout a stack."""

    def make() -> StoredTensor:
        tensor = entry.make()
        flat = replace(tensor, shape=(len(tensor.data), tensor.shape[-1]))
        return replace(flat.with_rows(order.reshape(-1)), name=name, shape=shape)

    return GgufEntry(name, shape, entry.type, make)


def _one_by_one(entry: GgufEntry, name: str, first: int = 0, parts: int = 1) -> Iterator[GgufEntry]:
    each = _rows_each(entry, parts * entry.shape[0])
    rows = np.arange(parts * entry.shape[0] * each).reshape(-1, parts, each)
    for number, order in enumerate(rows[:, first]):
        yield _rows(entry, expert_name(name, number), order, (each, entry.shape[-1]))


def _stacked(name: str, members: Mapping[int, GgufEntry]) -> GgufEntry:
    kinds = {(entry.shape, entry.type) for entry in members.values()}
    if sorted(members) != list(range(len(members))) or len(kinds) != 1:
        raise TensorError(
            f"The {len(members)} experts of {name} are not numbered from 0 on, or differ in shape "
            "or type.",
            DOWNLOAD_AGAIN,
        )
    [(shape, stored_type)] = kinds

    def make() -> StoredTensor:
        data = np.concatenate([members[number].make().data for number in range(len(members))])
        return StoredTensor(name, (len(members), *shape), stored_type, data)

    return GgufEntry(name, (len(members), *shape), stored_type, make)


def _keys_and_values(entry: GgufEntry, sizes: HeadSizes) -> Iterator[GgufEntry]:
    heads, plain_dim, rank = sizes.num_heads, sizes.plain_dim, entry.shape[-1]
    each = _rows_each(entry, heads)
    if not 0 < plain_dim < each:
        raise TensorError(
            f"Tensor {entry.name} has {each} rows for each head, of which {plain_dim} make keys.",
            DOWNLOAD_AGAIN,
        )
    rows = np.arange(heads * each).reshape(heads, each)
    name = entry.name.replace(_BOTH, _KEYS)
    keys = _rows(entry, name, rows[:, :plain_dim], (heads * plain_dim, rank))
    yield _turned(keys, heads, (heads, rank, plain_dim))
    value_rows = rows[:, plain_dim:]
    shape = (heads, value_rows.shape[1], rank)
    yield _rows(entry, entry.name.replace(_BOTH, _VALUES), value_rows, shape)


def _turned(entry: GgufEntry, num_heads: int, shape: tuple[int, ...]) -> GgufEntry:
    make = partial(_turn, entry, num_heads, shape)
    return GgufEntry(entry.name, shape, _turned_type(entry.type), make)


def _turn(entry: GgufEntry, num_heads: int, shape: tuple[int, ...]) -> StoredTensor:
    return replace(entry.make().with_transposed_blocks(num_heads), shape=shape)


def _turned_type(stored_type: GGMLQuantizationType) -> GGMLQuantizationType:
    """Return the type of turned rows: numbers that are packed together come apart."""
    return stored_type if block_sizes(stored_type)[0] == 1 else GGMLQuantizationType.F32


def _joined(keys: GgufEntry, values: GgufEntry, sizes: HeadSizes) -> GgufEntry:
    """Put the keys and values of latent attention into one matrix again."""
    heads, rank = sizes.num_heads, values.shape[-1]
    _rows_each(keys, heads)
    num_rows = heads * (keys.shape[-1] + _rows_each(values, heads))
    name = keys.name.replace(_KEYS, _BOTH)
    is_same = keys.type == values.type == _turned_type(keys.type)

    def make() -> StoredTensor:
        both = [keys.make().with_transposed_blocks(heads), values.make()]
        parts = [
            (one.data if is_same else one.to_float32().view(np.uint8)).reshape(
                heads, len(one.data) // heads, -1
            )
            for one in both
        ]
        data = np.concatenate(parts, axis=1).reshape(num_rows, -1)
        return StoredTensor(name, (num_rows, rank), joined_type, data)

    joined_type = keys.type if is_same else GGMLQuantizationType.F32
    return GgufEntry(name, (num_rows, rank), joined_type, make)
