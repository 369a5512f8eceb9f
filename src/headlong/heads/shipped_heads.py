"""Heads that come with Headlong, and how a model is known to be the one they were trained for.

A backbone is recognised by its final norm: those numbers are stored unquantised in every format, so
all quantisations of one model share them, and no fine-tuned relative does. A head for other weights
would draft badly in silence.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from headlong.models.transformer import Backbone

FOLDER = Path(__file__).parent / "shipped"


def fingerprint(backbone: Backbone) -> str:
    """Return what tells this backbone's training from any other."""
    weight = np.ascontiguousarray(backbone.final_norm.weight, dtype="<f4")
    return hashlib.sha256(weight.tobytes()).hexdigest()


def find_shipped_head(backbone: Backbone) -> Path | None:
    """Return the folder of the head that was trained for this very backbone, if we ship one."""
    own = fingerprint(backbone)
    for record in sorted(FOLDER.glob("*/run.json")):
        if json.loads(record.read_text())["backbone_fingerprint"] == own:
            return record.parent
    return None
