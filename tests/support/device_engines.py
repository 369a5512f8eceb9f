"""Engines on the device runner, in plain torch on the CPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import model_files
from headlong.decode.device.runner import DeviceDrafters, DeviceRunner
from headlong.decode.device.tensors import DeviceTensors
from headlong.decode.request import Request
from headlong.decode.runner import RunnerBounds
from headlong.drafters.chain import LONG_MATCH
from headlong.drafters.ngram import NgramDrafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadKind
from headlong.heads.layer_head import LayerHead
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.cuda.ops import CudaOps
from headlong.weights.checkpoint import open_checkpoint
from random_heads import random_head

CPU = torch.device("cpu")


_NUM_LAYERS = 4
"""Enough for the three layers that an EAGLE-3 head taps."""


def tiny_on_device(folder: Path, architecture: str) -> Backbone:
    """Make a tiny random model and load it on the CUDA backend's plain blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, architecture, _NUM_LAYERS)
        model_files.write_hf_folder(folder, architecture)
    return load_backbone(open_checkpoint(folder), CudaOps(CPU)).backbone


def device_drafters(
    kind: HeadKind | None, backbone: Backbone, *, looks_up: bool = True
) -> DeviceDrafters:
    """Make a random head of a kind, and n-gram lookup beside it."""
    head = None if kind is None else build_head(random_head(kind, backbone.config), backbone)
    assert head is None or isinstance(head, LayerHead)
    host = backbone.ops.host
    min_match = 2 if head is None else LONG_MATCH
    return DeviceDrafters(head, NgramDrafter(host, min_match) if looks_up else None)


def device_engine(
    backbone: Backbone,
    drafters: DeviceDrafters,
    limits: EngineLimits | None = None,
    *,
    begins_ahead: bool = True,
) -> Engine:
    """Return an engine whose rounds run as a GPU would run them."""
    limits = limits or EngineLimits()
    bounds = RunnerBounds(limits.kv_bytes, limits.prefix_bytes, limits.max_running)
    return Engine(DeviceRunner(backbone, drafters, bounds, begins_ahead=begins_ahead), limits)


def page_bytes(backbone: Backbone, drafters: DeviceDrafters) -> int:
    """Return the bytes of a page in all layers."""
    return DeviceTensors(backbone, drafters.head, 1, 1).page_bytes


def run_all(engine: Engine, requests: Sequence[Request]) -> list[Running]:
    """Run requests together until all have ended."""
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    return running


def token_ids(running: Running) -> list[int]:
    """Return the tokens that a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]
