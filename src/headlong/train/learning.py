"""Learning: blocks of the op set over weights that are still moving.

In:  a checkpoint's tensors, each with a parameter in its place (`LearningTensor`).
Out: what an architecture's own file builds of them, as specs that `LearningOps` computes with
gradients. Whatever a builder makes of a tensor (some of its rows, blocks turned over) is made again
of the parameter, so parameters stay what the file holds and are ready to be written.
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
class LearningTensor(StoredTensor):
    """A tensor of a checkpoint whose numbers a parameter holds."""

    read: Callable[[], Tensor] = field(kw_only=True)
    """Returns them as they are now, with their history."""

    def to_float32(self) -> FloatArray:
        """Copy the numbers of the moment."""
        values: FloatArray = self.read().detach().float().cpu().numpy().copy()
        return values

    def cut(self, first: int, stop: int) -> StoredTensor:
        """Return some consecutive rows; those of a stack of matrices are counted throughout."""
        columns = self.shape[-1]
        shape = (min(stop, self.read().numel() // columns) - first, columns)
        return replace(self, shape=shape, read=lambda: self.read().view(-1, columns)[first:stop])

    def with_rows(self, order: IntArray) -> StoredTensor:
        """Return some rows in some order."""
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


class LearningReader(WeightReader):
    """Remembers under which name a builder got each vector."""

    def __init__(self, checkpoint: Checkpoint, ops: "LearningOps", num_layers: int) -> None:
        super().__init__(checkpoint, ops.matrix, num_layers)
        self.arrays: dict[str, FloatArray] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Return numbers that no backend packs."""
        values = super().array(name, shape)
        self.arrays[name] = values
        return values


class LearningOps(TorchOps):
    """The torch backend, all rows together, over weights that learn beside frozen ones."""

    def __init__(self, frozen: TorchOps) -> None:
        super().__init__(frozen.device, frozen.dtype, frozen.maths, is_exact=False)
        self._matrices: list[tuple[TorchMatrix, LearningTensor]] = []
        self._vectors: Mapping[int, Tensor] = {}

    @property
    def names(self) -> set[str]:
        """The tensors of which matrices were made."""
        return {tensor.name for _, tensor in self._matrices}

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> TorchMatrix:
        """Return a matrix that follows its parameter, or a frozen one."""
        if not isinstance(tensor, LearningTensor):
            return super().matrix(tensor, quant)
        made = TorchMatrix(tensor.read())
        self._matrices.append((made, tensor))
        return made

    def learn_vectors(self, parameters: Mapping[int, Tensor]) -> None:
        """Let parameters stand for arrays that specs hold, given by their identity."""
        self._vectors = parameters

    def refresh(self) -> None:
        """Make all matrices anew of their parameters; each backward pass needs its own."""
        for matrix, tensor in self._matrices:
            matrix.values = tensor.read()

    def vector(self, spec: object, values: FloatArray) -> Tensor:
        """Return the one vector of a norm, a projection or a rope on the device."""
        learned = self._vectors.get(id(values))
        return super().vector(spec, values) if learned is None else learned

    def project_fused(self, x: Tensor, spec: object, *linears: Linear) -> Tensor:
        """Apply a block's projections one by one: fused, they would not follow."""
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


def as_learning(tensor: StoredTensor, parameter: nn.Parameter) -> LearningTensor:
    """Return a tensor with a parameter in the place of its numbers."""
    plain = {one.name: getattr(tensor, one.name) for one in fields(StoredTensor)}
    return LearningTensor(**plain, read=lambda: parameter)
