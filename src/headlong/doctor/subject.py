"""The subject: a model and its drafter, loaded part by part as far as they can be.

In:  which model, head and draft model are meant.
Out: a `Subject` with every part that loads, and the refusal of every part that does not. Nothing
here raises because a file is bad; the checks read the refusals and go on with the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from headlong.config import DrafterName, HeadQuant
from headlong.drafters.choose import make_drafter
from headlong.drafters.drafter import Drafter
from headlong.errors import HeadError, HeadlongError
from headlong.heads.head import Head
from headlong.heads.head_files import build_head, read_head_weights, read_native_head
from headlong.heads.head_weights import HeadWeights
from headlong.heads.native_nextn import prune_vocabulary
from headlong.heads.nextn import NextnHead
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.model_config import read_config
from headlong.models.registry import LoadedBackbone, load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import fit_ops, make_ops
from headlong.ops.op_set import Ops
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.progress import Progress
from headlong.weights.sources import resolve_model

Part: TypeAlias = Literal["model", "tokenizer", "head files", "head", "draft model"]
HeadOrigin: TypeAlias = Literal["given", "inside the model", "shipped with Headlong"]
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class ExamOptions:
    """What is examined, and how thoroughly."""

    model: str | None = None
    head: Path | None = None
    draft_model: str | None = None
    head_quant: HeadQuant = "auto"
    backend: str = "auto"
    is_quick: bool = False
    """Use fewer prompts and tokens."""
    is_thorough: bool = False
    """Use all of them, however long that takes here."""


@dataclass(slots=True)
class Subject:
    """Everything that could be loaded; a part that could not is None and has a refusal."""

    options: ExamOptions
    ops: Ops
    path: Path | None = None
    checkpoint: Checkpoint | None = None
    loaded: LoadedBackbone | None = None
    tokenizer: Tokenizer | None = None
    origin: HeadOrigin | None = None
    """Where the head comes from; None when there is none."""
    head_folder: Path | None = None
    """The folder of a head that is not inside the model."""
    weights: HeadWeights | None = None
    """The head's tensors as stored; None when they cannot even be read."""
    head: Head | None = None
    draft_model: Backbone | None = None
    """The draft model."""
    refusals: dict[Part, HeadlongError] = field(default_factory=dict)

    @property
    def backbone(self) -> Backbone | None:
        """The backbone, if it could be loaded."""
        return None if self.loaded is None else self.loaded.backbone

    def build_head(self, quant: HeadQuant) -> Head:
        """Build the head once more, packed in another format."""
        assert self.backbone is not None
        assert self.weights is not None
        weights = self.weights.packed(quant)
        head = build_head(weights, self.backbone)
        if isinstance(head, NextnHead) and weights.checkpoint and weights.vocabulary is not None:
            assert self.checkpoint is not None
            return prune_vocabulary(head, weights, self.checkpoint, "auto", ())
        return head

    def make_drafter(self, name: DrafterName) -> Drafter:
        """Return a drafter of the subject's parts; a draft model, where there is one, drafts."""
        assert self.backbone is not None
        chosen = name if self.draft_model is None else "draft-model"
        drafter = make_drafter(chosen, self.backbone, self.head, self.draft_model)
        assert drafter is not None
        return drafter


def load_subject(options: ExamOptions, progress: Progress | None = None) -> Subject:
    """Load what can be loaded; refuse only a backend that does not exist."""
    subject = Subject(options, make_ops(options.backend))
    _try(subject, "model", lambda: _load_model(subject, progress))
    if subject.checkpoint is not None:
        checkpoint = subject.checkpoint
        subject.tokenizer = _try(subject, "tokenizer", lambda: load_tokenizer(checkpoint))
    if options.head is not None:
        subject.origin, subject.head_folder = "given", options.head
    if options.draft_model is not None:
        _try(subject, "draft model", lambda: _load_draft_model(subject, progress))
    elif subject.origin is None:
        _try(subject, "head", lambda: _find_head(subject))
    if subject.head_folder is not None:
        folder = subject.head_folder
        subject.weights = _try(subject, "head files", lambda: read_head_weights(folder))
    if subject.weights is not None and subject.backbone is not None:
        subject.head = _try(subject, "head", lambda: subject.build_head(options.head_quant))
    return subject


def _try(subject: Subject, part: Part, load: Callable[[], Loaded]) -> Loaded | None:
    """Load a part, or keep why it could not be."""
    try:
        return load()
    except HeadlongError as error:
        subject.refusals[part] = error
        return None


def _load_model(subject: Subject, progress: Progress | None) -> None:
    subject.path = resolve_model(subject.options.model, progress=progress)
    subject.checkpoint = open_checkpoint(subject.path)
    weights = subject.checkpoint.tensors.values()
    subject.ops = fit_ops(subject.ops, subject.options.backend, weights)
    subject.loaded = load_backbone(subject.checkpoint, subject.ops)


def _find_head(subject: Subject) -> None:
    """Find the head inside the model, else the one we ship for it."""
    if subject.checkpoint is None:
        return
    native = _native_head(subject.checkpoint)
    if native is not None:
        subject.origin, subject.weights = "inside the model", native
    elif subject.backbone is not None:
        subject.head_folder = find_shipped_head(subject.backbone)
        subject.origin = None if subject.head_folder is None else "shipped with Headlong"


def _native_head(checkpoint: Checkpoint) -> HeadWeights | None:
    """Return the head inside a checkpoint as it is stored."""
    try:
        num_layers = read_config(checkpoint).num_layers
    except HeadlongError:
        return None  # the model itself is refused, with this very reason
    return read_native_head(checkpoint, num_layers)


def _load_draft_model(subject: Subject, progress: Progress | None) -> None:
    """Load the draft model; refuse one that speaks in other tokens."""
    name = str(subject.options.draft_model)
    checkpoint = open_checkpoint(resolve_model(name, progress=progress))
    theirs, ours = load_tokenizer(checkpoint), subject.tokenizer
    if ours is not None and not theirs.has_same_tokens(ours):
        raise HeadError(
            f"The draft model {name} has {theirs.vocab_size:,} tokens that are not those of the "
            f"model ({ours.vocab_size:,}).",
            "Both must come with one tokenizer; take a smaller model of the same family.",
        )
    # Its own backend object, since one belongs to one model.
    draft_model = load_backbone(checkpoint, make_ops(subject.ops.name)).backbone
    if subject.backbone is not None:
        make_drafter("draft-model", subject.backbone, None, draft_model)  # refuses other sizes
    subject.draft_model = draft_model
