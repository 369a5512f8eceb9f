"""Rows: what generates answers on this device, many at once.

In:  a teacher, its checkpoint. Out: samplers with a number of rows.
On CUDA torch generates all answers. On a CPU the engine does, with the native kernels; torch only
generates answers to evaluate on, whose noise the simulation draws again.
"""

from dataclasses import dataclass, field
from functools import cached_property

from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import backend_problem, make_ops
from headlong.ops.torch.attention import attention_shape, choose_attention
from headlong.ops.torch.sequences import RowReading
from headlong.train.engine_sampler import MAX_ROWS, EngineSampler
from headlong.train.recipe import AnswerRecipe
from headlong.train.recorder import StateRecorder
from headlong.train.sampler import AnswerRows, Sampler
from headlong.train.teacher import Teacher
from headlong.weights.checkpoint import Checkpoint


@dataclass
class RowMaker:
    """Makes samplers for one model."""

    teacher: Teacher
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    wants_triton: bool
    uses_engine: bool = field(init=False)
    """Whether the engine generates the answers to train on."""

    def __post_init__(self) -> None:
        is_cpu = self.teacher.device.type == "cpu"
        self.uses_engine = is_cpu and backend_problem("native") is None

    def num_rows(self, recipe: AnswerRecipe) -> int:
        """Return how many answers are generated at the same time."""
        return min(recipe.num_rows, MAX_ROWS) if self.uses_engine else recipe.num_rows

    def generator(
        self, num_rows: int, capacity: int, recorded_taps: tuple[int, ...] | None = None
    ) -> AnswerRows:
        """Return rows for the answers to train on.

        `recorded_taps` are the tap layers of a head whose inputs the engine records; None to record
        nothing.
        """
        if not self.uses_engine:
            return self.sampler(num_rows, capacity)
        recorder = None if recorded_taps is None else StateRecorder(recorded_taps)
        # A drafter observes rows at once where a request's fixed K is honoured.
        limits = EngineLimits(max_running=num_rows, honour_k=recorder is not None)
        engine = Engine.for_model(self._packed_backbone, recorder, limits)
        return EngineSampler(engine, num_rows, self.eos_ids, recorder)

    def sampler(self, num_rows: int, capacity: int) -> Sampler:
        """Return rows whose noise is the simulation's."""
        mixers = [layer.mixer for layer in self.teacher.backbone.layers]
        shapes = [attention_shape(mixer) for mixer in mixers if isinstance(mixer, RowReading)]
        attend, note = choose_attention(self.teacher.device, shapes, wants_triton=self.wants_triton)
        return Sampler(self.teacher, num_rows, capacity, self.eos_ids, attend, note)

    @cached_property
    def _packed_backbone(self) -> Backbone:
        """The model as the engine runs it; the teacher's weights are not packed."""
        return load_backbone(self.checkpoint, make_ops("native")).backbone
