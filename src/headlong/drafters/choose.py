"""Choose the drafter of a model: head, n-gram lookup, draft model, a chain of them, or none."""

from typing import get_args

from headlong.config import DrafterName
from headlong.drafters.assistant_drafter import AssistantDrafter
from headlong.drafters.chain import ChainDrafter
from headlong.drafters.draft_model import DraftModelDrafter
from headlong.drafters.drafter import Drafter
from headlong.drafters.head_drafter import ParallelDrafter, RecursiveDrafter
from headlong.drafters.ngram import NgramDrafter
from headlong.errors import RequestError
from headlong.heads.head import AssistantHead, Head, ParallelHeads
from headlong.models.transformer import Backbone


def make_drafter(
    name: DrafterName, backbone: Backbone, head: Head | None, draft_model: Backbone | None
) -> Drafter | None:
    """Return the drafter of this name, or refuse with what is missing for it."""
    if name == "none":
        return None
    host = backbone.ops.host
    if name == "ngram":
        return NgramDrafter(host)
    if name == "auto":
        return NgramDrafter(host) if head is None else ChainDrafter(_head_drafter(head), host)
    if name == "head":
        if head is None:
            raise RequestError(
                "The drafter is 'head', but the model came without a head and none was given.",
                "Name one with --head DIR (head=… in Python), or draft without one: "
                "--drafter ngram (drafter='ngram' in Python).",
            )
        return _head_drafter(head)
    if name == "draft-model":
        if draft_model is None:
            raise RequestError(
                "The drafter is 'draft-model', but no draft model was given.",
                "Name one with --draft-model MODEL (draft_model=… in Python).",
            )
        return DraftModelDrafter(draft_model, backbone)
    raise RequestError(f"drafter is {name!r}.", f"Use one of {', '.join(get_args(DrafterName))}.")


def _head_drafter(head: Head) -> Drafter:
    if isinstance(head, ParallelHeads):
        return ParallelDrafter(head)
    if isinstance(head, AssistantHead):
        return AssistantDrafter(head)
    return RecursiveDrafter(head)
