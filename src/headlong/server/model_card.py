"""The served model on a card: what it is, what drafts for it, what computes it.

In:  the service. Out: a plain dictionary for JSON, in words for people.
Only the headers of the model's file are read again, never its weights.
"""

import math
from collections import Counter
from importlib.metadata import version
from typing import Any

from headlong.server.service import Service
from headlong.weights.checkpoint import open_checkpoint

_HEAD_NAMES = {"eagle3": "EAGLE-3", "nextn": "nextn", "medusa": "Medusa", "meta": "parallel"}
_DRAFTER_NAMES = {
    "chain": "n-grams, then head",
    "ngram": "n-grams",
    "head": "head",
    "draft-model": "draft model",
}


def make_card(service: Service) -> dict[str, Any]:
    """Describe the model that a server has."""
    llm = service.llm
    drafter = llm.drafter
    return {
        "id": service.model_id,
        "name": service.model_id,
        "weights": _describe_weights(service),
        "head": _describe_head(service),
        "drafter": "none" if drafter is None else _DRAFTER_NAMES.get(drafter.name, drafter.name),
        "context_length": service.context_length,
        "backend": f"{llm.backbone.ops.name}, {llm.backbone.ops.note}",
        "version": version("headlong"),
    }


def _describe_weights(service: Service) -> str:
    """Name the format most bytes are in, and the number of parameters."""
    tensors = open_checkpoint(service.llm.model_path).tensors
    used = [tensors[name] for name in service.llm.report.used if name in tensors]
    num_bytes: Counter[str] = Counter()
    for tensor in used:
        num_bytes[tensor.type.name] += tensor.num_bytes
    num_parameters = sum(math.prod(tensor.shape) for tensor in used)
    formats = [name for name, _ in num_bytes.most_common(1)]
    if service.settings.quant is not None:
        formats.append(f"as {service.settings.quant}")
    return f"{' '.join(formats)}, {_in_words(num_parameters)} parameters"


def _describe_head(service: Service) -> str:
    head = service.llm.head
    if head is None:
        return "none"
    parts = [_HEAD_NAMES.get(head.kind, head.kind), head.report.quant or "as stored"]
    if head.vocabulary is not None:
        parts.append(f"{len(head.vocabulary):,} tokens")
    return ", ".join(parts)


def _in_words(number: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
