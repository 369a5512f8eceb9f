"""Which head a model gets: the one that was named, else its own, else one we ship for it."""

from dataclasses import dataclass
from pathlib import Path

from headlong.config import DrafterName, ModelOptions
from headlong.errors import HeadError
from headlong.heads.head import Head
from headlong.heads.head_files import find_native_head, load_head
from headlong.heads.native_nextn import find_stripped
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.transformer import Backbone
from headlong.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ChosenHead:
    """The head a model was given or came with, and what there is to say about it."""

    head: Head | None
    problem: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Whole sentences for the user."""
        if self.problem is not None:
            return (self.problem,)
        return self.head.report.notes if self.head is not None else ()


def choose_head(
    checkpoint: Checkpoint, backbone: Backbone, drafter: DrafterName, options: ModelOptions
) -> ChosenHead:
    """Load the head that was named, else the model's own or a shipped one if it would be used."""
    if options.head is not None:
        return ChosenHead(load_head(Path(options.head), backbone, options.head_quant))
    if drafter not in ("auto", "head"):
        return ChosenHead(None)
    try:
        head = find_native_head(checkpoint, backbone, options.head_quant)
        if head is None and (shipped := find_shipped_head(backbone)) is not None:
            head = load_head(shipped, backbone, options.head_quant)
    except HeadError as error:
        if drafter == "head":
            raise
        return ChosenHead(None, f"The model's own head is not used: {error}")
    stripped = find_stripped(checkpoint) if head is None else None
    return ChosenHead(head, None if stripped is None else str(stripped))
