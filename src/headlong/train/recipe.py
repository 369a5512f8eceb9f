"""Recipe: all settings of a training run.

In:  a TOML file, or nothing for the defaults.
Out: a frozen `Recipe`, complete and validated; unknown keys are refused.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from headlong.errors import RequestError

HeadShape: TypeAlias = Literal["eagle3", "nextn", "medusa"]
LossName: TypeAlias = Literal["kl", "lk"]
OptimiserName: TypeAlias = Literal["adamw", "muon"]
PackedName: TypeAlias = Literal["full", "q4"]

MAX_DEPTHS = 8


@dataclass(frozen=True, slots=True)
class PromptRecipe:
    """Which prompts the backbone answers."""

    max_tokens: int = 768
    """Longest prompt; longer ones are left out."""
    tasks: tuple[str, ...] = ()
    """Tasks of the files' prompts that are used; empty for all."""
    self_written_share: float = 0.45
    """Share of prompts that the backbone writes itself, given only its chat prefix."""
    second_turn_share: float = 0.1
    """Share of finished answers after which the conversation continues."""
    passage_share: float = 0.08
    """Share of prompts that ask for a summary or translation of a passage of another prompt."""
    tool_share: float = 0.12
    """Share of prompts that ask for a function call; they are composed."""
    code_share: float = 0.06
    """Share of prompts that ask to complete a function of the coding prompts."""
    work_share: float = 0.0
    """Share of prompts about code of Python's standard library: explain, change, test, port."""
    chat_share: float = 0.0
    """Share of composed chat prompts: texts to write, things to explain and to plan."""
    code_turn_share: float = 0.0
    """Share of finished answers with code after which the user asks to change or explain it."""
    template_tools_share: float = 0.0
    """Share of the composed tool prompts whose functions are listed by the chat template."""


@dataclass(frozen=True, slots=True)
class AnswerRecipe:
    """How the backbone answers."""

    num_rows: int = 2048
    """Answers generated at the same time."""
    max_tokens: int = 320
    """Longest answer."""
    refill_every: int = 24
    """Steps after which finished rows get new prompts."""
    greedy_share: float = 0.4
    """Share of answers at temperature 0."""
    temperatures: tuple[float, ...] = (0.3, 0.7, 1.0)
    """Temperatures of the other answers, chosen at random."""
    tokens_wanted: int = 150_000_000
    """Number of answer tokens to generate."""


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Which head is trained."""

    kind: HeadShape = "eagle3"
    draft_vocab_size: int = 12_288
    """Size of the draft vocabulary: the most frequent tokens of the backbone's answers."""
    num_blocks: int = 1
    """Residual blocks per depth, for medusa."""
    mlp_share: float = 1.0
    """Width of the head's MLP, as a share of the backbone's; it may be wider."""
    packed: PackedName = "full"
    """q4 turns on quantisation-aware training: weights are rounded as packing to 4 bits will."""


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """How the head is trained."""

    num_depths: int = 7
    """Number of depths in the loss."""
    depth_decay: float = 0.8
    """Weight of each depth relative to the depth before it."""
    loss: LossName = "lk"
    """kl: divergence from the backbone's probabilities; lk: adds the expected acceptance."""
    on_path_share: float = 0.7
    """Final weight of survival in the loss: deeper depths count where all before are accepted."""
    refusal_share: float = 0.5
    """Final weight of refusals in the loss: a row counts if a round is likely to begin there."""
    least_temperature: float = 0.5
    """Lower bound of the loss temperature, which else is the answer's sampling temperature."""
    optimiser: OptimiserName = "adamw"
    """muon: Muon for the matrices of the layer, for short runs on a CPU; adamw for all."""
    tokens_per_step: int = 16_384
    learning_rate: float = 1e-3
    warmup_steps: int = 150
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seconds: float = 1000.0
    """Length of the learning-rate schedule in seconds of training, over all calls together."""
    steps: int | None = None
    """Length in steps instead, for small runs; reproducible when resumed."""
    save_every_s: float = 45.0


@dataclass(frozen=True, slots=True)
class EvaluationRecipe:
    """How acceptance is evaluated after training."""

    max_depth: int = MAX_DEPTHS
    max_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.7)
    prompts_per_task: int = 60


@dataclass(frozen=True, slots=True)
class Recipe:
    """All settings of one run."""

    seed: int = 1
    prompts: PromptRecipe = field(default_factory=PromptRecipe)
    answers: AnswerRecipe = field(default_factory=AnswerRecipe)
    head: HeadRecipe = field(default_factory=HeadRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)

    def __post_init__(self) -> None:
        answers, training = self.answers, self.training
        prompts = self.prompts
        shares = prompts.self_written_share + prompts.passage_share + prompts.tool_share
        shares += prompts.code_share + prompts.work_share + prompts.chat_share
        _require(0 <= shares <= 1, "prompts: all shares together", round(shares, 3), "0…1")
        _require(
            0 <= answers.greedy_share <= 1, "answers.greedy_share", answers.greedy_share, "0…1"
        )
        _require(answers.num_rows >= 1, "answers.num_rows", answers.num_rows, "1 or more")
        _require(answers.max_tokens >= 4, "answers.max_tokens", answers.max_tokens, "4 or more")
        _require(bool(answers.temperatures), "answers.temperatures", (), "at least one number")
        kinds = get_args(HeadShape)
        _require(self.head.kind in kinds, "head.kind", self.head.kind, f"one of {kinds}")
        mlp_share = self.head.mlp_share
        _require(0 < mlp_share <= 8, "head.mlp_share", mlp_share, "above 0, at most 8")
        formats = get_args(PackedName)
        _require(self.head.packed in formats, "head.packed", self.head.packed, f"one of {formats}")
        losses = get_args(LossName)
        _require(training.loss in losses, "training.loss", training.loss, f"one of {losses}")
        names, name = get_args(OptimiserName), training.optimiser
        _require(name in names, "training.optimiser", name, f"one of {names}")
        on_path = training.on_path_share
        _require(0 <= on_path <= 1, "training.on_path_share", on_path, "0…1")
        refusal = training.refusal_share
        _require(0 <= refusal <= 1, "training.refusal_share", refusal, "0…1")
        least = training.least_temperature
        _require(least > 0, "training.least_temperature", least, "above 0")
        depths = training.num_depths
        _require(1 <= depths <= MAX_DEPTHS, "training.num_depths", depths, f"1…{MAX_DEPTHS}")
        deepest = self.evaluation.max_depth
        _require(1 <= deepest <= MAX_DEPTHS, "evaluation.max_depth", deepest, f"1…{MAX_DEPTHS}")
        _require(training.seconds > 0, "training.seconds", training.seconds, "above 0")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return asdict(self)


def read_recipe(path: Path | None, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe; missing keys have their defaults.

    Args:
        path: A TOML file; None for the defaults.
        changes: Lines of TOML that override the file, like "training.seconds = 60".
    """
    try:
        values = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"The recipe {path} cannot be read: {error}.", "Check it.") from error
    for change in changes:
        try:
            overruled = tomllib.loads(change)
        except tomllib.TOMLDecodeError as error:
            problem = f"The change {change!r} is not TOML: {error}."
            raise RequestError(problem, "Write it like training.seconds=60.") from error
        for name, value in overruled.items():
            both = isinstance(value, dict) and isinstance(values.get(name), dict)
            values[name] = {**values[name], **value} if both else value
    return make_recipe(values)


def make_recipe(values: Mapping[str, Any]) -> Recipe:
    """Make a recipe of nested dictionaries."""
    defaults = Recipe()
    sections = {f.name: getattr(defaults, f.name) for f in fields(Recipe) if f.name != "seed"}
    filled: dict[str, Any] = {}
    for name, value in values.items():
        if name == "seed" and isinstance(value, int):
            filled[name] = value
        elif name in sections and isinstance(value, Mapping):
            filled[name] = _fill(sections[name], value, name)
        else:
            known = ", ".join(["seed", *sections])
            raise RequestError(f"The recipe has {name} = {value!r}.", f"Known are: {known}.")
    return replace(defaults, **filled)


Section = TypeVar(
    "Section", PromptRecipe, AnswerRecipe, HeadRecipe, TrainingRecipe, EvaluationRecipe
)


def _fill(defaults: Section, values: Mapping[str, Any], section: str) -> Section:
    known = {f.name for f in fields(defaults)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise RequestError(
            f"The recipe's section [{section}] has the unknown key {unknown[0]!r}.",
            f"Known are: {', '.join(sorted(known))}.",
        )
    plain: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in values.items()
    }
    for key, value in plain.items():
        default = getattr(defaults, key)
        accepted = (int, float) if isinstance(default, float) or key == "steps" else type(default)
        _require(isinstance(value, accepted), f"{section}.{key}", value, f"like {default!r}")
    return replace(defaults, **plain)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"The recipe has {name} = {value!r}.", f"It must be {allowed}.")
