"""Trainable weights: blocks of the op set whose tensors are torch parameters.

In:  a checkpoint's tensors, each backed by a parameter (`TrainableTensor`).
Out: the specs that the architecture's builder makes of them; `TrainableOps` computes these with
gradients. Where the builder selects rows or transposes blocks of a tensor, the same operation is
applied to the parameter in every step. So parameters keep the layout of the file.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace

import torch
from torch import Tensor, nn

from headlong.arrays import FloatArray, IntArray
from headlong.ops.blocks import Linear, Norm
from headlong.ops.torch.ops import TorchOps
from headlong.ops.torch.weights import TorchMatrix
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.tensors import StoredTensor
from headlong.weights.weight_reader import WeightReader


@dataclass(frozen=True, slots=True)
class TrainableTensor(StoredTensor):
    """A tensor of a checkpoint whose values are those of a parameter."""

    read: Callable[[], Tensor] = field(kw_only=True)
    """Returns the current values, attached to the autograd graph."""

    def to_float32(self) -> FloatArray:
        """Copy the current values."""
        values: FloatArray = self.read().detach().float().cpu().numpy().copy()
        return values

    def cut(self, first: int, stop: int) -> StoredTensor:
        """Return consecutive rows; rows of stacked matrices are numbered through all of them."""
        columns = self.shape[-1]
        shape = (min(stop, self.read().numel() // columns) - first, columns)
        return replace(self, shape=shape, read=lambda: self.read().view(-1, columns)[first:stop])

    def with_rows(self, order: IntArray) -> StoredTensor:
        """Return the rows in `order`."""
        rows = torch.as_tensor(order, device=self.read().device)
        shape = (len(order), *self.shape[1:])
        return replace(self, shape=shape, read=lambda: self.read().index_select(0, rows))

    def with_transposed_blocks(self, num_blocks: int) -> StoredTensor:
        """Return a matrix cut into equal blocks of rows, every block transposed."""
        num_rows, columns = self.shape
        shape = (num_blocks * columns, num_rows // num_blocks)

        def turn() -> Tensor:
            return self.read().view(num_blocks, -1, columns).swapaxes(1, 2).reshape(shape)

        return replace(self, shape=shape, read=turn)


class RecordingReader(WeightReader):
    """A reader that records the arrays a builder has read, by name."""

    def __init__(self, checkpoint: Checkpoint, ops: "TrainableOps", num_layers: int) -> None:
        super().__init__(checkpoint, ops.matrix, num_layers)
        self.arrays: dict[str, FloatArray] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Return numbers that no backend packs."""
        values = super().array(name, shape)
        self.arrays[name] = values
        return values


class TrainableOps(TorchOps):
    """The torch backend over whole batches, with trainable and frozen weights."""

    def __init__(self, frozen: TorchOps) -> None:
        super().__init__(frozen.device, frozen.dtype, frozen.maths, is_exact=False)
        self._matrices: list[tuple[TorchMatrix, TrainableTensor]] = []
        self._vectors: Mapping[int, Tensor] = {}

    @property
    def names(self) -> set[str]:
        """Names of the trainable tensors that became matrices."""
        return {tensor.name for _, tensor in self._matrices}

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> TorchMatrix:
        """Return a matrix: of a parameter, or frozen."""
        if not isinstance(tensor, TrainableTensor):
            return super().matrix(tensor, quant)
        made = TorchMatrix(tensor.read())
        self._matrices.append((made, tensor))
        return made

    def bind_vectors(self, parameters: Mapping[int, Tensor]) -> None:
        """Use parameters in place of the specs' arrays, which are given by `id`."""
        self._vectors = parameters

    def refresh(self) -> None:
        """Derive all matrices from their parameters again; each backward pass needs this."""
        for matrix, tensor in self._matrices:
            matrix.values = tensor.read()

    def vector(self, spec: object, values: FloatArray) -> Tensor:
        """Return the one vector of a norm, a projection or a rope on the device."""
        parameter = self._vectors.get(id(values))
        return super().vector(spec, values) if parameter is None else parameter

    def project_fused(self, x: Tensor, spec: object, *linears: Linear) -> Tensor:
        """Apply a block's projections one by one; fused copies would not be trained."""
        return torch.cat([self.project(x, linear) for linear in linears], -1)


def scales_and_biases(*specs: object) -> Iterator[FloatArray]:
    """Yield the vectors of all norms and projections below some specs."""
    for spec in specs:
        if isinstance(spec, Norm):
            yield spec.weight
        elif isinstance(spec, Linear):
            if spec.bias is not None:
                yield spec.bias
        elif is_dataclass(spec):
            yield from scales_and_biases(*(getattr(spec, one.name) for one in fields(spec)))
        elif isinstance(spec, tuple):
            yield from scales_and_biases(*spec)


def make_trainable(tensor: StoredTensor, parameter: nn.Parameter) -> TrainableTensor:
    """Return the tensor with the parameter's values."""
    plain = {one.name: getattr(tensor, one.name) for one in fields(StoredTensor)}
    return TrainableTensor(**plain, read=lambda: parameter)
