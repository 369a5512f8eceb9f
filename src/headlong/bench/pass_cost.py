"""What one pass costs: the numbers that decide whether speculation can pay on this machine.

In:  a backbone, perhaps its head, row counts and a context length. Out: `PassCost`: medians in
milliseconds, memory bandwidth measured in the same run, and the share of it that a pass over one
row reaches. A model without a head is measured with a random one of the right sizes.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.config import SamplingParams
from headlong.decode.sampling import Sampler
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import DraftRequest, ObservedRows
from headlong.drafters.head_drafter import RecursiveDrafter
from headlong.heads.eagle3 import Eagle3Head, build_eagle3, make_eagle3_config
from headlong.heads.head import RecursiveHead
from headlong.heads.head_weights import HeadWeights
from headlong.models.hidden import HiddenRows
from headlong.models.traffic import pass_bytes
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.weights.tensors import StoredTensor

DRAFT_VOCAB_SIZE = 16_384

DRAFT_LENGTH = 4


def make_stand_in_head(backbone: Backbone) -> Eagle3Head:
    """Build an EAGLE-3-format head with random weights and the backbone's sizes."""
    config = backbone.config
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    num_drafted = min(DRAFT_VOCAB_SIZE, config.vocab_size)
    matrices = {
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (num_drafted, hidden),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in matrices.items():
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        tensors[f"{name}.weight"] = _store(f"{name}.weight", values)
    for name in ("norm", *(f"midlayer.{norm}" for norm in norms)):
        ones: FloatArray = np.ones(hidden, dtype=np.float32)
        data = ones.view(np.uint8).reshape(1, -1)
        tensors[f"{name}.weight"] = StoredTensor(name, (hidden,), GGMLQuantizationType.F32, data)
    vocabulary = np.linspace(0, config.vocab_size - 1, num_drafted).astype(np.int64)
    head_config = make_eagle3_config(config, num_drafted)
    weights = HeadWeights("eagle3", head_config, tensors, vocabulary, "The stand-in head")
    return build_eagle3(weights, backbone)


def _store(name: str, values: FloatArray) -> StoredTensor:
    # Rows that are no whole groups of 32 cannot be 8-bit; tiny test models have such.
    is_whole = values.shape[1] % 32 == 0
    kind = GGMLQuantizationType.Q8_0 if is_whole else GGMLQuantizationType.F32
    data = np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(len(values), -1)
    return StoredTensor(name, values.shape, kind, data)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What to measure, and how often."""

    row_counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 12, 16)
    context: int = 256
    prefill: int = 512
    num_rounds: int = 30


@dataclass(frozen=True, slots=True)
class PassCost:
    """Medians of one run; times in milliseconds."""

    bandwidth_gb_s: float
    bytes_per_pass: int
    rows: dict[int, float]
    draft_step_ms: float
    """Of the model's own MTP layer over its whole vocabulary, or of a random head."""
    pick_ms: float
    pick_greedy_ms: float
    prefill_tokens_per_s: float
    prefill_head_share: float
    python_share: float | None
    """None on a backend that does not tell how long its kernels took."""
    core_distance_ns: float | None = None
    """From one of two cores to the other; some 60 on one die, 200 and more on two."""
    pruned_step_ms: float | None = None
    """A draft step from fewer tokens; None where the head has no smaller vocabulary."""
    threads_in_use: float | None = None
    """On average; one worked alone whenever other processes made the team slower than that."""
    bytes_by_rows: dict[int, int] = field(default_factory=dict)
    """Weights that a pass is expected to read; in a model with experts, more rows read more."""

    @property
    def bandwidth_share(self) -> float:
        """The share of the measured bandwidth that a pass over one row reaches."""
        seconds = self.rows[min(self.rows)] / 1e3
        return self.bytes_per_pass / seconds / 1e9 / self.bandwidth_gb_s

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers under the names of the JSON line."""
        rows = {str(count): ms for count, ms in self.rows.items()}
        num_bytes = {str(count): size for count, size in self.bytes_by_rows.items()}
        extra = {"bandwidth_share": self.bandwidth_share, "rows": rows, "bytes_by_rows": num_bytes}
        return asdict(self) | extra


class PassTimer:
    """Times passes of a backbone whose cache holds a context."""

    def __init__(self, backbone: Backbone, tap_layers: tuple[int, ...], context: int) -> None:
        self.backbone, self._tap_layers = backbone, tap_layers
        self._rng = np.random.default_rng(0)
        self.cache = backbone.make_cache()
        self.context_rows = self.forward(context, self.cache)
        self.cache.commit(context)

    def ids(self, count: int) -> IntArray:
        """Return random tokens; what they are does not change what they cost."""
        return self._rng.integers(0, self.backbone.config.vocab_size, count)

    def forward(self, count: int, cache: SequenceState) -> HiddenRows:
        """Run a pass with everything a head reads of it."""
        return self.backbone.forward([self.ids(count)], [cache], self._tap_layers)

    def pass_s(self, count: int) -> float:
        """Time one pass over `count` rows, logits included."""
        start = time.perf_counter()
        self.backbone.logits(self.forward(count, self.cache).normed)
        elapsed = time.perf_counter() - start
        self.cache.commit(0)
        return elapsed

    def time_in_turn(self, row_counts: Sequence[int], seconds: float) -> dict[int, list[float]]:
        """Time passes over every number of rows, round after round, for so many seconds."""
        times: dict[int, list[float]] = {count: [] for count in row_counts}
        self.pass_s(max(row_counts))  # grows scratch memory, once
        deadline = time.perf_counter() + seconds
        while not times[row_counts[0]] or time.perf_counter() < deadline:
            for count, seen in times.items():
                seen.append(self.pass_s(count))
        return times


class _Stage(PassTimer):
    """The same with a head that has seen the rows of the context."""

    def __init__(self, backbone: Backbone, head: RecursiveHead, plan: PassPlan) -> None:
        super().__init__(backbone, head.tap_layers, plan.context)
        self.head, self.plan = head, plan
        self.drafter = RecursiveDrafter(head)
        self.memory = self.drafter.begin()
        ids, next_ids = self.ids(plan.context), self.ids(plan.context)
        features = head.features(self.context_rows)
        self.drafter.observe([ObservedRows(self.memory, ids, (features,), next_ids)])

    def draft_step_s(self, share: float) -> float:
        """Time a draft after a pass, as in a round; return the mean of its steps.

        `share` of the text's tokens are taken to be in the head's smaller vocabulary, if any.
        """
        self.memory.share = share
        hidden = self.forward(1, self.cache)
        self.backbone.logits(hidden.normed)
        self.cache.commit(0)
        self.memory.state = self.head.enter(self.head.features(hidden))[0]
        history = [0] * (self.plan.context + 1)
        guesser = Sampler(SamplingParams(), history, self.backbone.config.vocab_size)
        start = time.perf_counter()
        self.drafter.draft([DraftRequest(self.memory, history, DraftPlan(DRAFT_LENGTH), guesser)])
        return (time.perf_counter() - start) / DRAFT_LENGTH

    def prefill_s(self) -> tuple[float, float]:
        """Time a prefill: the backbone's part and the head's.

        A part ends when its last row is on the host: some backends have only begun before.
        """
        ops, num_rows = self.backbone.ops, self.plan.prefill
        cache, head_cache = self.backbone.make_cache(), self.head.make_cache()
        start = time.perf_counter()
        hidden = self.forward(num_rows, cache)
        ops.to_host(hidden.normed[-1:])
        middle = time.perf_counter()
        features = self.head.features(hidden)
        ops.to_host(self.head.follow(features, [self.ids(num_rows)], [head_cache]))
        return middle - start, time.perf_counter() - middle


def measure_pass(backbone: Backbone, head: RecursiveHead | None, plan: PassPlan) -> PassCost:
    """Measure what passes cost; a model without a head is measured with a random one."""
    stage = _Stage(backbone, head or make_stand_in_head(backbone), plan)
    bytes_per_pass, engine = pass_bytes(backbone), native_engine(backbone.ops)
    passes: dict[int, list[float]] = {count: [] for count in plan.row_counts}
    bandwidths, python_shares, distances, threads = [], [], [], []
    stage.pass_s(max(plan.row_counts))  # grows scratch memory, once
    for _ in range(plan.num_rounds):
        bandwidths.append(read_gb_per_s(backbone, bytes_per_pass))
        distances.append(float(getattr(engine, "core_distance_ns", 0.0)))
        stage.pass_s(1)  # what was just read pushed everything else out of the caches
        for count, times in passes.items():
            kernels_before = getattr(engine, "kernel_s", 0.0)
            threads.append(int(getattr(engine, "num_threads_in_use", 0)))
            times.append(stage.pass_s(count))
            if engine is not None and count == min(plan.row_counts):
                in_kernels = float(engine.kernel_s) - kernels_before
                python_shares.append(1 - in_kernels / times[-1])
    # In use one round follows another; what is left of a head in the caches is part of its price.
    steps = [[stage.draft_step_s(share) for share in (0, 1)] for _ in range(plan.num_rounds)]
    full_ms, pruned_ms = (statistics.median(times) * 1e3 for times in zip(*steps, strict=True))
    prefills = [stage.prefill_s() for _ in range(max(1, plan.num_rounds // 6))]
    backbone_s = statistics.median(part for part, _ in prefills)
    head_s = statistics.median(part for _, part in prefills)
    return PassCost(
        bandwidth_gb_s=statistics.median(bandwidths),
        bytes_per_pass=bytes_per_pass,
        rows={count: statistics.median(times) * 1e3 for count, times in passes.items()},
        draft_step_ms=full_ms,
        pick_ms=_pick_ms(stage, SamplingParams(temperature=0.8)),
        pick_greedy_ms=_pick_ms(stage, SamplingParams()),
        prefill_tokens_per_s=plan.prefill / backbone_s,
        prefill_head_share=head_s / (backbone_s + head_s),
        python_share=statistics.median(python_shares) if python_shares else None,
        core_distance_ns=statistics.median(distances) or None,
        pruned_step_ms=None if stage.head.fewer_tokens is None else pruned_ms,
        threads_in_use=statistics.mean(threads) or None,
        bytes_by_rows={count: pass_bytes(backbone, count) for count in plan.row_counts},
    )


def read_gb_per_s(backbone: Backbone, num_bytes: int) -> float:
    """Read so many bytes once, as the backend's threads would, and return the bandwidth."""
    num_bytes = max(num_bytes, 1 << 20)
    engine = native_engine(backbone.ops)
    if engine is not None:
        return float(engine.read_gb_per_s(num_bytes))
    numbers = np.ones(num_bytes // 4, dtype=np.float32)
    start = time.perf_counter()
    numbers.max()
    return numbers.nbytes / (time.perf_counter() - start) / 1e9


def native_engine(ops: Ops) -> Any:
    """Return the native backend's engine, None for another backend; it need not be built here."""
    return getattr(ops, "engine", None)


def _pick_ms(stage: _Stage, params: SamplingParams) -> float:
    sampler = Sampler(params, [0], stage.backbone.config.vocab_size)
    logits = stage.backbone.logits(stage.forward(1, stage.cache).normed)[0]
    stage.cache.commit(0)
    times = []
    for _ in range(stage.plan.num_rounds):
        start = time.perf_counter()
        sampler.pick(logits)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
