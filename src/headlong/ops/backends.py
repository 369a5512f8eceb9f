"""Choose a backend by name; where the fast one is not to be had, say why and how to get it."""

from importlib import import_module

from headlong.errors import BackendError
from headlong.ops.numpy_ops import NumpyOps
from headlong.ops.op_set import Ops

try:
    from headlong.ops.native_ops import NativeOps
except ImportError as error:
    NATIVE_PROBLEM: str | None = str(error)
else:
    NATIVE_PROBLEM = None

HOW_TO_BUILD = (
    "Install Headlong with a C++ compiler and CMake at hand (`pip install .` in its folder); "
    "until then everything works, only slower."
)


def make_ops(name: str = "auto", *, threads: int | None = None) -> Ops:
    """Return the backend of this name; "auto" takes the fastest one this machine has.

    `threads` sets the native backend's team; None takes the cores this process may use.
    """
    if name == "numpy":
        return NumpyOps("numpy was asked for")
    if name == "torch":
        return _make_torch_ops()
    if name not in ("auto", "native"):
        problem = f"There is no backend {name!r}."
        raise BackendError(problem, "Known are 'auto', 'native', 'numpy' and 'torch'.")
    if NATIVE_PROBLEM is None:
        return NativeOps(threads)
    problem = f"The native backend is not built: {NATIVE_PROBLEM}."
    if name == "native":
        raise BackendError(problem, HOW_TO_BUILD)
    return NumpyOps(f"{problem} {HOW_TO_BUILD}")


def _make_torch_ops() -> Ops:
    """Return the torch backend; importing torch takes seconds, so only here."""
    try:
        module = import_module("headlong.ops.torch_ops")
    except ImportError as error:
        raise BackendError(
            f"The torch backend cannot start: {error}.", "Install torch: `pip install torch`."
        ) from error
    ops: Ops = module.TorchOps()
    return ops
