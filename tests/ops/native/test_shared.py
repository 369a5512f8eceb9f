"""Gemma 4's parts on compiled kernels: threads, dies, cuts and formats change no bit."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from assistant_files import write_assistant_folder
from headlong.heads.assistant import Gemma4Assistant
from headlong.heads.head_files import load_head
from headlong.models.registry import load_backbone
from headlong.ops.native.ops import NativeOps
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from model_files import GEMMA4, write_gguf
from native_parts import INSTRUCTION_SETS, native_ops

IDS = np.random.default_rng(0).integers(3, 90, 70)  # beyond one chunk of attention


def run(ops: NativeOps, checkpoint: Checkpoint, head: Path, cuts: list[int]) -> tuple[bytes, bytes]:
    """Return the bits of all logits of a text run in passes, and of an assistant's behind it."""
    backbone = load_backbone(checkpoint, ops).backbone
    cache, logits, start = backbone.make_cache(), [], 0
    for size in cuts:
        normed = backbone.forward([IDS[start : start + size]], [cache]).normed
        cache.commit(size)
        logits.append(backbone.logits(normed))
        start += size
    assistant = load_head(head, backbone)
    assert isinstance(assistant, Gemma4Assistant)
    result = assistant.step(normed[-1:], IDS[:1], [cache], [start - 1])
    return np.concatenate(logits).tobytes(), assistant.logits(result).tobytes()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_threads_dies_and_cuts_change_no_bit(
    tmp_path: Path, instruction_set: str, kind: str
) -> None:
    packed = GGMLQuantizationType[kind]
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", GEMMA4, matrix_type=packed))
    head = write_assistant_folder(tmp_path / "head")
    expected = run(native_ops(instruction_set, 1), checkpoint, head, [70])
    for threads, is_far in ((2, False), (3, False), (2, True), (3, True)):
        ops = native_ops(instruction_set, threads)
        ops.engine.set_far_apart(is_far)
        for cuts in ([70], [1] * 70, [17, 50, 3]):
            assert run(ops, checkpoint, head, cuts) == expected, (threads, is_far, cuts[0])
