"""How much memory of a device goes to pages."""

import torch

from headlong.decode.device.tensors import DeviceTensors
from headlong.decode.page_memory import ROOM_ROWS
from headlong.decode.runner import RunnerBounds
from headlong.errors import BackendError
from headlong.ops.cuda.paged_blocks import PAGE_SIZE

_SHARE = 0.85
"""Of the memory that is free once weights are loaded; passes and graphs take from the rest."""

_HOST_BYTES = 1 << 30
"""For pages where the device is the host, which others live on, too."""

_FEWEST_PAGES = 1 + -(-ROOM_ROWS // PAGE_SIZE)


def count_pages(bounds: RunnerBounds, tensors: DeviceTensors) -> int:
    """Return how many pages the caches may have: no more than all sequences can fill."""
    num_bytes = _free_bytes(tensors.ops.device) if bounds.kv_bytes is None else bounds.kv_bytes
    most = bounds.max_running * tensors.table.shape[1]
    num_pages = min(num_bytes // tensors.page_bytes, most)
    if num_pages < _FEWEST_PAGES:
        raise BackendError(
            f"There are {num_bytes} bytes for caches; {_FEWEST_PAGES} pages of "
            f"{tensors.page_bytes} bytes are the fewest that are of use.",
            "Give the engine more memory (limits.kv_bytes), take a smaller model, or end what else "
            "uses the GPU.",
        )
    return int(num_pages)


def empty_device_cache(device: torch.device) -> None:
    """Give memory back that nothing uses any more."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _HOST_BYTES
    empty_device_cache(device)  # what torch holds in reserve counts as used
    free, _ = torch.cuda.mem_get_info(device)
    return int(_SHARE * free)
