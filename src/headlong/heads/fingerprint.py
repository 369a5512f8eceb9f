"""The fingerprint of a backbone, by which the head that was trained for it is found.

It is a hash of the final norm. Its weights are stored unquantised in every format, so they are the
same in all quantisations of one model and differ after fine-tuning. A head for other weights would
draft badly without an error.
"""

import hashlib

import numpy as np

from headlong.models.transformer import Backbone


def fingerprint(backbone: Backbone) -> str:
    """Return the fingerprint of a backbone."""
    weight = np.ascontiguousarray(backbone.final_norm.weight, dtype="<f4")
    return hashlib.sha256(weight.tobytes()).hexdigest()
