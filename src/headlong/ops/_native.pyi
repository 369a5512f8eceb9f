"""Types of the compiled kernels (csrc/module*.cpp)."""

from collections.abc import Sequence

from headlong.arrays import ByteArray, FloatArray, IntArray

class Matrix:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...

class TeamChoice:
    def __init__(self) -> None: ...
    @property
    def is_alone(self) -> bool: ...
    def settle(self, now_s: float, took_s: float, useful_s: float) -> None: ...

class MixerState: ...

class KVLayer(MixerState):
    def reserve(self, capacity: int, others: Sequence[KVLayer] = ()) -> None: ...
    def copy_from(self, other: KVLayer, num_positions: int) -> None: ...
    @property
    def bytes_per_position(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

class Norm:
    def __init__(self, weight: FloatArray, eps: float) -> None: ...

class Linear:
    def __init__(self, weight: Matrix, bias: FloatArray | None) -> None: ...

class Rope:
    def __init__(self, frequencies: FloatArray, amplitude: float) -> None: ...

class Mixer:
    def check(self) -> None: ...

class LatentAttention(Mixer):
    norm: Norm
    query_down: Linear | None
    query_norm: Norm | None
    query: Linear
    latent: Linear
    latent_norm: Norm
    key_up: Linear
    value_up: Linear
    output: Linear
    num_heads: int
    plain_dim: int
    value_dim: int
    scale: float
    rope: Rope

class Attention(Mixer):
    norm: Norm
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    value_scale: float
    window: int
    ahead: int
    rope: Rope
    query_norm: Norm | None
    key_norm: Norm | None
    value_norm: Norm | None
    beside_norm: Norm | None
    adds_to_normed: bool
    output_norm: Norm | None
    gate: Linear | None
    def set_sinks(self, sinks: FloatArray) -> None: ...

class RecurrentMixer(Mixer):
    norm: Norm
    mixed: Linear
    gate: Linear
    decay: Linear
    output: Linear
    def __init__(
        self,
        engine: Engine,
        sizes: tuple[int, int, int, int],
        convolution: FloatArray,
        decay_rate: FloatArray,
        decay_bias: FloatArray,
    ) -> None: ...

class GatedDeltaNet(RecurrentMixer):
    tiles_output: bool
    update: Linear
    head_norm: Norm
    def settle(self) -> None: ...

class Mamba2(RecurrentMixer):
    group_norm: Norm
    def set_steps(
        self, convolution_bias: FloatArray, skip: FloatArray, limits: tuple[float, float]
    ) -> None: ...

class RecurrentState(MixerState):
    def append(self, num_rows: int, *, all_or_none: bool, snapshots: Sequence[int]) -> None: ...
    def commit(self, num_rows: int) -> None: ...
    def rollback(self) -> None: ...
    def copy_from(self, other: RecurrentState, snapshot: int | None) -> None: ...
    def forget_snapshot(self, snapshot: int) -> None: ...
    @property
    def num_bytes(self) -> int: ...

class Channel:
    def check(self) -> None: ...

MlpParts = tuple[Linear | None, Linear, Linear]
"""Gate, up, down."""

class GatedMlp(Channel):
    def __init__(
        self, norm: Norm, parts: MlpParts, activation: str, output_norm: Norm | None
    ) -> None: ...

class Router:
    num_chosen: int
    num_groups: int
    num_chosen_groups: int
    is_renormalised: bool
    def __init__(
        self,
        linear: Linear,
        scoring: str,
        scales: FloatArray | None,
        choice_bias: FloatArray | None,
        norm: Norm | None,
    ) -> None: ...

class Experts(Channel):
    shared: GatedMlp | None
    shares_norm: bool
    shared_gate: Linear | None
    reduce: Linear | None
    expand: Linear | None
    sum_norm: Norm | None
    output_norm: Norm | None
    def __init__(
        self, norm: Norm, router: Router, experts: Sequence[MlpParts], activation: str
    ) -> None: ...

class PerLayerInput(Channel):
    def __init__(self, gate: Linear, projection: Linear, norm: Norm, first: int) -> None: ...

class Stack:
    def __init__(
        self, blocks: list[tuple[Mixer | None, Channel | None, Channel | None, float]]
    ) -> None: ...

class Fusion:
    def __init__(
        self, embedding_norm: Norm, state_norm: Norm, fc: Linear, is_state_first: bool
    ) -> None: ...

class DraftHead:
    def __init__(
        self,
        embedding: Matrix,
        embedding_scale: float,
        mixer: Mixer | None,
        channel: Channel | None,
        fusion: Fusion | None,
        norm: Norm,
        lm_head: Linear,
        carries_normed: bool,
        logit_cap: float,
        vocabulary: IntArray | None,
    ) -> None: ...

class PickRule:
    def __init__(
        self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
    ) -> None: ...

class Calibration:
    def __init__(self, edges: Sequence[float], chances: Sequence[float]) -> None: ...

class Engine:
    def __init__(self, instruction_set: str, num_threads: int) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def kernel_s(self) -> float: ...
    @property
    def core_distance_ns(self) -> float: ...
    @property
    def num_threads_in_use(self) -> int: ...
    def set_far_apart(self, is_far: bool) -> None: ...
    def set_alone(self, is_alone: bool) -> None: ...
    def make_matrix(
        self, format: str, scales: str, outputs: int, inputs: int, unit: float = 1.0
    ) -> Matrix: ...
    def pack_rows(self, matrix: Matrix, source: str, first_row: int, data: ByteArray) -> None: ...
    def pack_affine(
        self,
        matrix: Matrix,
        bits: int,
        first_row: int,
        levels: ByteArray,
        scales: ByteArray,
        minima: ByteArray,
    ) -> None: ...
    def settle(self) -> None: ...
    def make_kv_layer(self, num_kv_heads: int, key_dim: int, value_dim: int) -> KVLayer: ...
    def make_recurrent_state(
        self, sizes: tuple[int, int, int, int], conv_width: int
    ) -> RecurrentState: ...
    def embed(self, matrix: Matrix, ids: IntArray, out: FloatArray) -> None: ...
    def project(self, x: FloatArray, linear: Linear, y: FloatArray) -> None: ...
    def norm(self, x: FloatArray, norm: Norm, y: FloatArray) -> None: ...
    def residual_silu(self, x: FloatArray, linear: Linear, y: FloatArray) -> None: ...
    def make_rows(self, num_rows: int, num_columns: int) -> FloatArray: ...
    def draft(
        self,
        head: DraftHead,
        states: FloatArray,
        requests: Sequence[tuple[MixerState, int, int, float, Calibration | None, PickRule, int]],
    ) -> list[tuple[list[int], list[float], bool]]: ...
    def read_gb_per_s(self, num_bytes: int) -> float: ...
    def run(
        self,
        stack: Stack,
        x: FloatArray,
        spans: Sequence[tuple[int, int, int]],
        caches: Sequence[Sequence[MixerState | None]],
        tap_layers: Sequence[int],
        taps: FloatArray | None,
        beside: FloatArray | None,
    ) -> None: ...
    def run_last(
        self,
        stack: Stack,
        x: FloatArray,
        spans: Sequence[tuple[int, int, int]],
        caches: Sequence[Sequence[MixerState | None]],
        beside: FloatArray | None,
        y: FloatArray,
    ) -> None: ...

def race(
    logits: FloatArray, token_ids: IntArray | None, best: float, temperature: float, key: int
) -> int: ...
def sum_relative(logits: FloatArray, best: float, temperature: float) -> float: ...
def pick(logits: FloatArray, rule: PickRule, position: int) -> int: ...
def surviving_columns(logits: FloatArray, best: float, rule: PickRule) -> IntArray: ...

class TokenIndex:
    def __init__(self) -> None: ...
    def find(
        self, history: list[int], min_length: int, assumed: Sequence[int]
    ) -> tuple[int, int] | None: ...

class PackedRows:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def bytes_for(self, num_rows: int) -> int: ...
    def truncate(self, num_rows: int) -> None: ...
    def first_rows(self, num_rows: int) -> PackedRows: ...
    def read(self) -> FloatArray: ...

def pack_rows(rows: FloatArray, parts: Sequence[tuple[PackedRows, int, int]]) -> None: ...
