"""Whether this machine can run the CUDA backend, and what is missing where it cannot.

Asked before anything of `cuda_ops` is imported: torch takes seconds, and machines without an NVIDIA
driver need not wait for it.
"""

import ctypes
import platform
from importlib import import_module
from importlib.util import find_spec

from headlong.errors import BackendError
from headlong.ops.backends import register_backend
from headlong.ops.op_set import Ops

_OLDEST = (8, 0)
"""Compute capability from which on cards multiply bfloat16: Ampere."""

_INSTALL = "Install what it needs: `pip install 'headlong[cuda]'`."
_OTHERWISE = "Without a GPU, use another backend; backend='auto' takes the fastest there is."


def why_not_here() -> BackendError | None:
    """Return what keeps the backend from running on this machine; None where nothing does."""
    if not has_driver():
        problem = "There is no NVIDIA driver on this machine."
        return BackendError(problem, f"Install it if there is an NVIDIA card. {_OTHERWISE}")
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            return BackendError(f"The cuda backend needs {package}.", _INSTALL)
    return _why_not_with_torch()


def has_driver() -> bool:
    """Tell whether the driver's library can be loaded."""
    name = "nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _why_not_with_torch() -> BackendError | None:
    import torch

    if torch.version.cuda is None:
        problem = f"torch {torch.__version__} was built without CUDA."
        return BackendError(problem, f"Install torch's CUDA build. {_OTHERWISE}")
    try:
        torch.cuda.init()
        capability = torch.cuda.get_device_capability()
        card = torch.cuda.get_device_name()
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().split("\n")[0].rstrip(".")
        problem = f"CUDA {torch.version.cuda} does not start: {said}."
        return BackendError(problem, f"`nvidia-smi` shows card and driver. {_OTHERWISE}")
    if capability < _OLDEST:
        found, wanted = (".".join(map(str, one)) for one in (capability, _OLDEST))
        problem = f"{card} has compute capability {found}; {wanted} or newer is needed."
        return BackendError(problem, f"Use a card of the Ampere generation or later. {_OTHERWISE}")
    return None


@register_backend("cuda")
def make_ops(threads: int | None = None) -> Ops:
    """Return the backend on the GPU, or refuse."""
    problem = why_not_here()
    if problem is not None:
        raise problem
    made: Ops = import_module("headlong.ops.cuda.ops").CudaOps()
    return made
