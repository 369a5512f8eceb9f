"""The weight reader: gives a model its tensors and records which ones it used.

In:  a checkpoint, and the requests of a model under construction.
Out: packed matrices and float32 vectors; at the end a `LoadReport`, or one error that lists
     everything that is missing, mis-shaped or broken.
Nothing is dropped silently: tensors that were not requested are listed, MTP heads separately.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import FloatArray, IntArray
from headlong.errors import TensorError
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.mapped_file import shown
from headlong.weights.tensor_names import expert_name, fused_name
from headlong.weights.tensors import StoredTensor

_MAX_LISTED = 40

_HEAD = re.compile(r"\.nextn\.|(?:^|[._])mtp(?:[._]|$)|eh_proj|medusa|extra_heads\.")
_BLOCK = re.compile(r"(?:blk|(?:language_model\.)?(?:model\.)?layers)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The tensors of a checkpoint that a model used, by name, in the file's order."""

    used: tuple[str, ...]
    left_over: tuple[str, ...]
    """Never requested, heads included."""
    head_tensors: tuple[str, ...]
    """Those of the left-over ones that look like an MTP head."""


class WeightReader:
    """Hands out a checkpoint's tensors to a model under construction and records what was used.

    A tensor that is missing or broken is noted and replaced by a placeholder (None, or NaN), so
    that `finish` can name all of them at once. Nothing may be computed before `finish` has passed.
    """

    def __init__(self, checkpoint: Checkpoint, pack: Callable[..., Any], num_layers: int) -> None:
        self._checkpoint = checkpoint
        self._pack = pack
        self._num_layers = num_layers
        self._asked: set[str] = set()
        self._problems: dict[str, str] = {}

    def has(self, name: str) -> bool:
        """Say whether the checkpoint holds a tensor; this does not count as using it."""
        return name in self._checkpoint.tensors

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """Return a matrix (outputs, inputs), packed by the backend."""
        tensor = self._take(name, shape)
        return None if tensor is None else self._pack(tensor)

    def table(self, name: str, shape: tuple[int, int]) -> Any:
        """Return a tensor that stays in its file, for single rows to be read from there."""
        tensor = self._take(name, shape)
        if tensor is not None:
            tensor.with_rows(np.zeros(1, dtype=np.int64)).to_float32()  # refuses what cannot be
        return tensor

    def precise_matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """Return a matrix packed without loss, in floats, whatever format others are packed in."""
        tensor = self._take(name, shape)
        if tensor is None:
            return None
        is_short = tensor.type in (GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
        return self._pack(tensor, quant=tensor.type.name.lower() if is_short else "f32")

    def experts(self, name: str, shape: tuple[int, int, int]) -> list[Any]:
        """Return a matrix of each expert, packed separately, from any of the three layouts.

        The file has them stacked (experts, outputs, inputs) under their name, with gate above up in
        one stack, or one by one (`expert_name`).
        """
        num_experts, num_rows, num_columns = shape
        singles = [expert_name(name, number) for number in range(num_experts)]
        if any(self.has(single) for single in singles):
            return [self.matrix(single, (num_rows, num_columns)) for single in singles]
        first, step, fused = 0, num_rows, fused_name(name)
        if fused is not None and self.has(fused):
            first, step = (num_rows if "_up_" in name else 0), 2 * num_rows
            name, shape = fused, (num_experts, step, num_columns)
        stack = self._take(name, shape)
        if stack is None:
            return [None] * num_experts
        starts = range(first, num_experts * step, step)
        return [self._pack(stack.cut(start, start + num_rows)) for start in starts]

    def matrices(self, name: str, shape: tuple[int, int], orders: Sequence[IntArray]) -> list[Any]:
        """Split a matrix of several projections by rows; pack each part separately."""
        tensor = self._take(name, shape)
        return [None if tensor is None else self._pack(tensor.with_rows(rows)) for rows in orders]

    def block_transposed_matrix(self, name: str, shape: tuple[int, int], blocks: IntArray) -> Any:
        """Return some rows of a matrix, (blocks, rows of a block), every block transposed."""
        tensor = self._take(name, shape)
        if tensor is None:
            return None
        return self._pack(tensor.with_rows(blocks.reshape(-1)).with_transposed_blocks(len(blocks)))

    def vector(self, name: str, size: int) -> FloatArray:
        """Return a vector in float32."""
        return self.array(name, (size,))

    def array(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Return an unpacked array in float32."""
        tensor = self._take(name, shape)
        if tensor is None:
            return np.full(shape, np.nan, dtype=np.float32)
        # A copy: a view would keep the whole mapped file in memory beside the packed weights.
        values = tensor.to_float32().copy()
        num_broken = values.size - int(np.isfinite(values).sum())
        if num_broken:
            self._problems[name] = f"holds {num_broken} values that are NaN or infinite"
        return values

    def optional_vector(self, name: str, size: int) -> FloatArray | None:
        """Return a vector in float32, or None where the checkpoint has none."""
        return self.vector(name, size) if self.has(name) else None

    def finish(self) -> LoadReport:
        """List what was used and left over, or refuse with all problems."""
        if self._problems:
            faults = [f"{shown(name)} {fault}" for name, fault in self._problems.items()]
            if len(faults) > _MAX_LISTED:
                faults[_MAX_LISTED:] = [f"and {len(faults) - _MAX_LISTED} more"]
            raise TensorError(
                f"{self._checkpoint.path}: {len(self._problems)} tensors do not fit a"
                f" {self._checkpoint.architecture} model: {'; '.join(faults)}.",
                "The file is incomplete or of another model; download it again.",
            )
        names = self._checkpoint.tensors
        left_over = tuple(name for name in names if name not in self._asked)
        return LoadReport(
            used=tuple(name for name in names if name in self._asked),
            left_over=left_over,
            head_tensors=tuple(name for name in left_over if self._is_of_head(name)),
        )

    def _take(self, name: str, shape: tuple[int, ...]) -> StoredTensor | None:
        self._asked.add(name)
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            self._problems[name] = "is missing"
        elif tensor.shape != shape:
            self._problems[name] = f"has the shape {tensor.shape} instead of {shape}"
            tensor = None
        return tensor

    def _is_of_head(self, name: str) -> bool:
        # Native MTP layers are stored as blocks after the backbone's last one.
        block = _BLOCK.match(name)
        return bool(_HEAD.search(name)) or (block is not None and int(block[1]) >= self._num_layers)
