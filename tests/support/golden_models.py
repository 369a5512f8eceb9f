"""The tiny checkpoints of tests/golden, and which of them bring an MTP layer along."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headlong.config import DraftVocabularyName
from headlong.heads.draft_vocabulary import make_draft_vocabulary
from headlong.heads.head import Head
from headlong.heads.head_files import find_native_head
from headlong.heads.nextn import NextnHead
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.ops.blocks import Linear
from headlong.weights.checkpoint import open_checkpoint

GOLDEN = Path(__file__).parent.parent / "golden"

NUM_FREQUENT = 24
"""Tokens of the smaller vocabulary; the tiny models have 64 or 96."""

WITH_MTP = (
    "tiny-qwen3_5",
    "tiny-qwen3_5_moe",
    "tiny-qwen3_next",
    "tiny-glm4_moe",
    "tiny-deepseek_v3",
    "tiny-glm4_moe_lite",
    "tiny-mimo_v2_flash",
    "tiny-nemotron_h",
)

CONVERTED = tuple(
    sorted(
        file.parent.name
        for file in GOLDEN.glob("tiny-*/converted.gguf")
        if not file.parent.name.endswith("-assistant")
    )
)
"""The backbones that llama.cpp's converter has written as GGUF."""


def read_golden(name: str) -> dict[str, Any]:
    """Return the golden numbers of a folder."""
    golden: dict[str, Any] = json.loads((GOLDEN / name / "golden.json").read_text())
    return golden


def load_with_head(name: str, backend: str, file: str = "") -> Head:
    """Load a golden checkpoint and the MTP head inside it; the head knows its backbone."""
    checkpoint = open_checkpoint(GOLDEN / name / file)
    backbone = load_backbone(checkpoint, make_ops(backend)).backbone
    head = find_native_head(checkpoint, backbone)
    assert head is not None
    return head


def with_fewer_tokens(head: NextnHead, name: str, rule: DraftVocabularyName) -> NextnHead:
    """Return the head of a golden checkpoint with a smaller vocabulary beside its own."""
    ids = np.array([*range(NUM_FREQUENT), 63])
    tensors = open_checkpoint(GOLDEN / name).tensors
    stored = tensors.get("output.weight", tensors["token_embd.weight"])
    lm_head = Linear(head.ops.matrix(stored.with_rows(ids)))
    fewer = make_draft_vocabulary(rule, ids, lm_head, head.backbone, head.layer)
    return replace(head, fewer_tokens=fewer)
