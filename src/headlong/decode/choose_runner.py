"""Which runner a model gets: whole rounds on a device where all of it can, else step by step.

The device runner needs torch, so its module is imported only for a backend that has paged blocks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headlong.decode.runner import Runner, RunnerBounds
from headlong.decode.step_runner import StepRunner
from headlong.drafters.chain import ChainDrafter
from headlong.drafters.drafter import Drafter
from headlong.drafters.head_drafter import HeadDrafter
from headlong.drafters.ngram import NgramDrafter
from headlong.errors import EngineError
from headlong.heads.layer_head import LayerHead
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops

if TYPE_CHECKING:
    from headlong.ops.cuda.paged_blocks import PagedBlocks


_SLOW = "step by step, many times slower than whole rounds, as "


def choose_runner(backbone: Backbone, drafter: Drafter | None, bounds: RunnerBounds) -> Runner:
    """Return a runner for a model and its drafter."""
    paged: PagedBlocks | None = getattr(backbone.ops, "paged", None)
    if paged is None:
        return StepRunner(backbone, drafter, bounds.kv_bytes, bounds.prefix_bytes)
    reason = _why_not(backbone, drafter, paged)
    if reason is not None:
        note = f"{_SLOW}{reason}"
        faults = import_module("headlong.decode.device.faults").DeviceFaults()
        return StepRunner(backbone, drafter, bounds.kv_bytes, bounds.prefix_bytes, note, faults)
    module = import_module("headlong.decode.device.runner")
    ops: Any = backbone.ops
    runner: Runner = module.DeviceRunner(
        backbone,
        module.DeviceDrafters(_head_of(drafter), _ngram_of(drafter)),
        bounds,
        begins_ahead=ops.device.type == "cuda",  # elsewhere a round that is never read takes time
    )
    return runner


def slow_note(backbone: Backbone, ops: Ops) -> str:
    """Say why a model runs slower on a backend than others do; empty where it does not."""
    reason = _why_not_by_layers(backbone) if hasattr(ops, "paged") else None
    return "" if reason is None else f"{_SLOW}{reason}"


def _why_not_by_layers(backbone: Backbone) -> str | None:
    if backbone.per_layer is not None:
        return "its tokens bring an input along for every layer"
    blocks = import_module("headlong.ops.cuda.paged_blocks")
    reason: str | None = blocks.why_not_fast(backbone.layers)
    return reason


def _why_not(backbone: Backbone, drafter: Drafter | None, paged: "PagedBlocks") -> str | None:
    """Return why a model cannot run by whole rounds; None where it can."""
    ops: Any = backbone.ops
    reason = _why_not_by_layers(backbone)
    if reason is not None:
        return reason
    head = _head_of(drafter)
    if drafter is not None and head is None and _ngram_of(drafter) is None:
        return f"its drafter is a {type(drafter).__name__}"
    if isinstance(drafter, ChainDrafter) and head is None:
        return f"its drafter is a chain with a {type(drafter.head).__name__}"
    blocks = import_module("headlong.ops.cuda.paged_blocks")
    reason = None if head is None else blocks.why_not_fast([head.layer])
    if reason is not None:
        return f"its head's {reason}"
    if ops.device.type == "cuda" and not paged.replays:
        return "Triton is not installed (pip install 'headlong[cuda]')"
    return _why_not_trusted(backbone, head, paged)


def _why_not_trusted(
    backbone: Backbone, head: LayerHead | None, paged: "PagedBlocks"
) -> str | None:
    """Return why kernels are not to be used on this machine; None where they are."""
    check = import_module("headlong.ops.cuda.paged_check")
    faults = import_module("headlong.decode.device.faults").DeviceFaults()
    for layer in (backbone.layers[0], *([] if head is None else [head.layer])):
        try:
            with faults.guard():
                reason: str | None = check.why_not_trusted(backbone.ops, paged, layer)
        except EngineError:  # no memory, or a device that is lost
            raise
        except Exception as error:  # as where there is no C compiler, which Triton needs
            said = (str(error).splitlines() or [""])[0].rstrip(".")
            return f"its kernels do not start ({type(error).__name__}: {said})"
        if reason is not None:
            return reason
    return None


def _head_of(drafter: Drafter | None) -> LayerHead | None:
    link = drafter.head if isinstance(drafter, ChainDrafter) else drafter
    head = link.head if isinstance(link, HeadDrafter) else None
    return head if isinstance(head, LayerHead) else None


def _ngram_of(drafter: Drafter | None) -> NgramDrafter | None:
    if isinstance(drafter, ChainDrafter):
        return drafter.ngram
    return drafter if isinstance(drafter, NgramDrafter) else None
