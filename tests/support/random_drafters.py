"""Drafters of every kind, with random weights: their drafts are bad, their bookkeeping is real."""

from headlong.drafters.choose import make_drafter
from headlong.drafters.draft_model import DraftModelDrafter
from headlong.drafters.drafter import Drafter
from headlong.drafters.ngram import NgramDrafter
from headlong.heads.head_files import build_head
from headlong.models.transformer import Backbone
from random_heads import HEAD_KINDS, random_head


def drafter_named(name: str, backbone: Backbone) -> Drafter:
    """Make a drafter of any kind with random weights."""
    if name == "ngram":
        return NgramDrafter(backbone.ops.host)
    if name == "draft-model":
        return DraftModelDrafter(backbone, backbone)
    kind = next(kind for kind in HEAD_KINDS if name.endswith(kind))
    head = build_head(random_head(kind, backbone.config), backbone)
    drafter = make_drafter("auto" if name.startswith("chain-") else "head", backbone, head, None)
    assert drafter is not None
    return drafter
