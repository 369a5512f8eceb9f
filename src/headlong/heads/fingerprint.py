"""How a model is known to be the one a head was trained for.

A backbone is recognised by its final norm: those numbers are stored unquantised in every format, so
all quantisations of one model share them, and no fine-tuned relative does. A head for other weights
would draft badly in silence.
"""

import hashlib

import numpy as np

from headlong.models.transformer import Backbone


def fingerprint(backbone: Backbone) -> str:
    """Return what tells this backbone's training from any other."""
    weight = np.ascontiguousarray(backbone.final_norm.weight, dtype="<f4")
    return hashlib.sha256(weight.tobytes()).hexdigest()
