"""Graphs without a card: the operations of a function, done again on the same tensors.

What Python decided while they were recorded stays decided, and a result lies where it lay before,
so that the next replay overwrites it: as on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from headlong.ops.blocks import Attention
from headlong.ops.cuda.graph_replay import Captured
from headlong.ops.cuda.paged_blocks import DeviceRows, PagedKeys
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks


@dataclass
class Recording(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Records what is done."""

    steps: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do one operation and note it; views need not be made again."""
        named = kwargs or {}
        result = func(*args, **named)
        places = {_place(one) for one in tree_leaves((args, named)) if isinstance(one, Tensor)}
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        if func._schema.is_mutable:
            self.steps.append(lambda: func(*args, **named))
        elif any(_place(one) not in places for one in made):
            self.note(lambda: func(*args, **named), made)
        return result

    def note(self, work: Callable[[], object], made: list[Tensor]) -> None:
        """Note work whose results are to be found in certain tensors."""

        def again() -> None:
            for one, new in zip(made, tree_leaves(work()), strict=True):
                one.copy_(new)

        self.steps.append(again)

    def replay(self) -> None:
        """Do everything again."""
        for step in self.steps:
            step()


class RecordedBlocks(PlainPagedBlocks):
    """Plain blocks whose attention, which reads the device, is one step as a kernel would be."""

    recording: Recording | None = None

    def attend(self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows) -> Tensor:
        """Attend, and note it."""
        recording = self.recording
        if recording is None:
            return super().attend(qkv, block, pages, rows)
        with _disable_current_modes():
            out = super().attend(qkv, block, pages, rows)
        recording.note(lambda: PlainPagedBlocks.attend(self, qkv, block, pages, rows), [out])
        return out

    def capture(self, work: Callable[[], object], pool: Any) -> Captured:
        """Record work, in place of `graph_replay.capture`."""
        with Recording() as recording:
            self.recording = recording
            try:
                result = work()
            finally:
                self.recording = None
        return Captured(recording.replay, result, "a pool")


def _place(one: torch.Tensor) -> int:
    return int(one.untyped_storage()._cdata)
