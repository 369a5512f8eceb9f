"""What a capture forbids, watched without a card: tensors on `meta` have places and no numbers.

Work runs twice there, as for a graph: once to compile and to make what is kept, once captured. In
the second run nothing may wait for the device, read it, or come from the host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from compiled_blocks import META
from headlong.decode.device.head import DeviceHead
from headlong.decode.device.round import DeviceRound, RoundResults, RoundShape
from headlong.decode.device.tensors import DeviceTensors
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadKind
from headlong.heads.layer_head import LayerHead
from headlong.models.registry import load_backbone
from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.triton_paged_blocks import TritonPagedBlocks
from headlong.weights.checkpoint import open_checkpoint
from random_heads import random_head

_READS = ("_local_scalar_dense", "nonzero", "item", "unique", "masked_select", "is_nonzero")


class CaptureLaws(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Refuses what a stream that is captured refuses."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and look where its tensors are."""
        assert not any(name in str(func) for name in _READS), f"{func} waits for the device"
        if str(func).startswith("aten.index"):  # of places that are true, the host asks how many
            kinds = {one.dtype for one in tree_leaves(args[1]) if _is_tensor(one)}
            assert torch.bool not in kinds, f"{func} waits for the device"
        result = func(*args, **(kwargs or {}))
        touched = [one for one in tree_leaves((args, kwargs, result)) if _is_tensor(one)]
        places = {one.device.type for one in touched}
        assert places <= {META.type}, f"{func} takes part on the host: {places}"
        return result


@dataclass
class NotingLauncher:
    """Launches nothing; notes what a kernel is compiled for, as Triton tells calls apart."""

    seen: set[Any] = field(default_factory=set)
    is_capturing: bool = False

    def __call__(
        self,
        kernel: JITFunction,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        **options: int,
    ) -> None:
        """Look at one launch."""
        assert all(0 < size < 65536 for size in grid[1:]), grid
        assert 0 < grid[0] < 2**31, grid
        names = kernel.arg_names[: len(arguments)]
        assert {*names, *constants, "PDL"} == set(kernel.arg_names), kernel.__name__
        apart = {one.name for one in kernel.params if not one.do_not_specialize}
        kinds = tuple(
            _kind(one) for name, one in zip(names, arguments, strict=True) if name in apart
        )
        key = (kernel.__name__, kinds, str(sorted(constants.items())), str(sorted(options.items())))
        assert key in self.seen or not self.is_capturing, f"{key} is compiled while captured"
        self.seen.add(key)


class DeviceOfNothing:
    """A model, a head and their rounds on kernels that are not launched."""

    def __init__(self, folder: Path, kind: HeadKind | None, max_running: int = 8) -> None:
        self.launcher = NotingLauncher()
        ops = CudaOps(META, torch.bfloat16)
        ops.paged = TritonPagedBlocks(ops, launch=self.launcher)
        backbone = load_backbone(open_checkpoint(folder), ops).backbone
        head = None if kind is None else build_head(random_head(kind, backbone.config), backbone)
        assert head is None or isinstance(head, LayerHead)
        self.backbone, self.ops = backbone, ops
        self.tensors = DeviceTensors(backbone, head, max_running, 20)
        self.tensors.make_pages(max_running * 20)
        self.head = None if head is None else DeviceHead(head, ops.paged)
        self.round = DeviceRound(backbone, self.head, self.tensors)

    def capture(self, shape: RoundShape) -> RoundResults:
        """Make a round twice, the second time under the laws of a capture."""
        numbers = torch.from_numpy(self.round.idle_numbers(shape.lanes)).to(META)
        self.round(shape, numbers)
        with self.capturing():
            return self.round(shape, numbers)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Watch what is done."""
        self.launcher.is_capturing = True
        try:
            with CaptureLaws():
                yield
        finally:
            self.launcher.is_capturing = False


def _is_tensor(one: object) -> bool:
    return isinstance(one, torch.Tensor)


def _kind(argument: Any) -> Any:
    """Return what Triton specialises a kernel for."""
    if isinstance(argument, torch.Tensor):
        assert argument.device == META, "a kernel gets a tensor of the host"
        return (argument.dtype, argument.storage_offset() * argument.itemsize % 16 == 0)
    assert type(argument) in (int, float), f"Triton takes no {type(argument)}"
    if type(argument) is int:
        assert abs(argument) < 2**31, "a number of 64 bits makes another kernel"
        return ("int", argument % 16 == 0, argument == 1)
    assert np.isfinite(argument)
    return "float"
