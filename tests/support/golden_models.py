"""The tiny checkpoints of tests/golden, and which of them bring an MTP layer along."""

from pathlib import Path

from headlong.heads.head import Head
from headlong.heads.head_files import find_native_head
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint

GOLDEN = Path(__file__).parent.parent / "golden"

WITH_MTP = ("tiny-qwen3_5", "tiny-qwen3_5_moe", "tiny-qwen3_next", "tiny-glm4_moe")


def load_with_head(name: str, backend: str, file: str = "") -> Head:
    """Load a golden checkpoint and the MTP head inside it; the head knows its backbone."""
    checkpoint = open_checkpoint(GOLDEN / name / file)
    backbone = load_backbone(checkpoint, make_ops(backend)).backbone
    head = find_native_head(checkpoint, backbone)
    assert head is not None
    return head
