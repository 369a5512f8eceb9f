"""The registry of backends: look one up by name, or take the fastest one this machine has.

A backend is a module with a function `make_ops(threads) -> Ops` that registers itself with
`@register_backend`. Its module is imported when the backend is asked for, so one that needs a
library which is missing costs nothing and says what to install.
"""

import importlib
import platform
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from headlong.errors import BackendError
from headlong.ops.op_set import Ops
from headlong.weights.tensors import StoredTensor

MakeOps = TypeVar("MakeOps", bound=Callable[[int | None], Ops])


_ROOM = 1.1
"""Bytes that a model needs, as a multiple of its weights: caches and passes take some, too."""


@runtime_checkable
class OnDevice(Protocol):
    """A backend with memory of its own, which may be too small for a model."""

    def free_bytes(self) -> int:
        """Return the bytes that weights and caches can have."""


class BackendModule(NamedTuple):
    """Where a backend lives and what it takes to have it."""

    module: str
    remedy: str
    """What to do where its module cannot be imported."""
    is_default: bool = False
    """Whether "auto" may choose it."""


_IS_APPLE_SILICON = (platform.system(), platform.machine()) == ("Darwin", "arm64")

MODULES: dict[str, BackendModule] = {
    # Not a default yet: it has not run on a card.
    "cuda": BackendModule("headlong.ops.cuda.backend", "Use another backend."),
    "mlx": BackendModule(
        "headlong.ops.mlx.ops",
        "Install MLX: `pip install 'headlong[mlx]'`, on a machine that has an older one with "
        "`--upgrade`.",
        is_default=_IS_APPLE_SILICON,
    ),
    "native": BackendModule(
        "headlong.ops.native.ops",
        "Install Headlong from a wheel, which brings the kernels, or with a C++ compiler at hand "
        "(`pip install .` in its folder); until then everything works, only slower.",
        is_default=True,
    ),
    "numpy": BackendModule("headlong.ops.numpy.ops", "Install numpy.", is_default=True),
    "torch": BackendModule("headlong.ops.torch.ops", "Install torch: `pip install torch`."),
}
"""Every known backend; "auto" tries the default ones in this order."""

_makers: dict[str, Callable[[int | None], Ops]] = {}


def register_backend(name: str) -> Callable[[MakeOps], MakeOps]:
    """Make a function known as the one that makes the `Ops` of a backend."""

    def register(make: MakeOps) -> MakeOps:
        _makers[name] = make
        return make

    return register


def backend_problem(name: str) -> str | None:
    """Return why a backend cannot be had on this machine; None when it can."""
    try:
        importlib.import_module(MODULES[name].module)
    except ImportError as error:
        return f"The {name} backend is not built or installed: {error}."
    return None


def make_ops(name: str = "auto", *, threads: int | None = None) -> Ops:
    """Return the backend of this name; "auto" takes the fastest one this machine has.

    `threads` sets the number of threads; None takes the cores this process may use.
    """
    if name == "auto":
        return _make_default(threads)
    if name not in MODULES:
        known = ", ".join(repr(one) for one in ("auto", *MODULES))
        raise BackendError(f"There is no backend {name!r}.", f"Known are {known}.")
    problem = backend_problem(name)
    if problem is not None:
        raise BackendError(problem, MODULES[name].remedy)
    ops = _makers[name](threads)
    ops.note = ops.note or f"{name} was asked for"
    return ops


def fit_ops(ops: Ops, name: str, weights: Iterable[StoredTensor], quant: str | None = None) -> Ops:
    """Return the backend if the weights fit into its memory; for "auto", else one on the host.

    `name` is what was asked for, `quant` the precision that weights will be packed in.
    """
    if not isinstance(ops, OnDevice):
        return ops
    needed, free = sum(ops.matrix_bytes(one, quant) for one in weights), ops.free_bytes()
    if needed * _ROOM <= free:
        return ops
    problem = (
        f"The {ops.name} backend has {free / 1e9:.1f} GB free; the weights take "
        f"{needed / 1e9:.1f} GB, and caches some more."
    )
    if name != "auto":
        remedy = "Take a smaller model, pack it (quant='q4'), or use backend='auto'."
        raise BackendError(problem, remedy)
    return _make_default(None, too_small=problem)


def first_default() -> str:
    """Return the backend that "auto" takes where nothing keeps it from that."""
    return next(name for name, backend in MODULES.items() if backend.is_default)


def _make_default(threads: int | None, *, too_small: str | None = None) -> Ops:
    """Return the first default backend that can be had; its note says why it is not the first.

    `too_small` says why it must be one that uses the host's memory.
    """
    reasons = [] if too_small is None else [too_small]
    for name, backend in MODULES.items():
        if not backend.is_default:
            continue
        problem = backend_problem(name)
        if problem is not None:
            reasons.append(f"{problem} {backend.remedy}")
            continue
        try:
            ops = _makers[name](threads)
        except BackendError as error:  # installed, but this machine cannot run it
            reasons.append(str(error))
            continue
        if too_small is None or not isinstance(ops, OnDevice):
            ops.note = " ".join([*reasons, ops.note]).strip()
            return ops
    raise BackendError(" ".join(reasons), "Install Headlong again.")
