"""Fuzzed model files: a clear error in time and in bounded memory, never anything else."""

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from float8_files import write_float8_folder
from headlong.errors import CheckpointError
from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.gguf_file import MAX_HEADER_BYTES, read_gguf
from headlong.weights.safetensors_file import read_safetensors
from model_files import LATENT, write_gguf, write_hf_folder
from raw_gguf import ARRAY, STRING, array, gguf_file, key_value, tensor_info, text, u32, u64

fuzz = settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    # The scratch folder may be shared by examples: each one writes its file anew.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

COUNTS = st.sampled_from([0, 1, 2, 3, 5, 2**16, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FLIPS = st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=6)


def flip(content: bytes, flips: list[tuple[float, int]], end: int) -> bytes:
    """Overwrite bytes at places given as fractions of the first `end` bytes."""
    damaged = bytearray(content)
    for place, value in flips:
        damaged[int(place * end)] = value
    return bytes(damaged)


def refusal(action: Callable[[], Any]) -> CheckpointError | None:
    """Return the error an action ends in; None when it succeeds. Other exceptions fail the test."""
    try:
        action()
    except CheckpointError as error:
        return error
    return None


def open_or_refuse(path: Path) -> bool:
    """Say whether a path opens; all its tensors must then unpack, or be refused by name."""
    error = refusal(lambda: open_checkpoint(path))
    if error is not None:
        assert error.remedy
        assert error.problem.isprintable()
        assert len(error.problem) < 2000
        return False
    for tensor in open_checkpoint(path).tensors.values():
        error = refusal(tensor.to_float32)
        assert error is None or tensor.name in error.problem
    return True


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    words = {"tokenizer.ggml.tokens": ["a", "b", "<unk>"], "tokenizer.ggml.scores": [0.5, 1.5]}
    kind = GGMLQuantizationType.Q8_0
    return write_gguf(path, "llama", matrix_type=kind, extra_metadata=words).read_bytes()


@pytest.fixture(scope="module")
def safetensors_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = write_hf_folder(tmp_path_factory.mktemp("fuzz") / "m", "qwen2")
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def float8_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "fp8"
    write_float8_folder(folder, LATENT, (24, 32))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "m", "qwen2", num_shards=2)


def header_size(content: bytes) -> int:
    """Return where a GGUF file of ours begins its data: after the last tensor's entry."""
    return content.index(text("output.weight")) + 8 + len("output.weight") + 4 + 16 + 4 + 8


def test_gguf_cut_anywhere_is_refused(tmp_path: Path, gguf_bytes: bytes) -> None:
    path = tmp_path / "m.gguf"
    end = header_size(gguf_bytes)
    # Close together in the header, then some places in the data and the last byte.
    for size in [*range(0, end + 64, 3), *range(end, len(gguf_bytes), 7919), len(gguf_bytes) - 1]:
        path.write_bytes(gguf_bytes[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


def test_safetensors_cut_anywhere_is_refused(tmp_path: Path, safetensors_bytes: bytes) -> None:
    path = tmp_path / "model.safetensors"
    end = 8 + int.from_bytes(safetensors_bytes[:8], "little")
    for size in [*range(0, end + 16, 3), *range(end, len(safetensors_bytes), 7919)]:
        path.write_bytes(safetensors_bytes[:size])
        with pytest.raises(CheckpointError):
            read_safetensors(path)


@fuzz
@given(flips=FLIPS)
def test_flipped_bytes_in_a_gguf_header(
    tmp_path: Path, gguf_bytes: bytes, flips: list[tuple[float, int]]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(flip(gguf_bytes, flips, header_size(gguf_bytes)))
    open_or_refuse(path)


@fuzz
@given(flips=FLIPS)
def test_flipped_bytes_in_a_safetensors_header(
    tmp_path: Path, safetensors_bytes: bytes, flips: list[tuple[float, int]]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    end = 8 + int.from_bytes(safetensors_bytes[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(flip(safetensors_bytes, flips, end))
    open_or_refuse(tmp_path)


@fuzz
@given(flips=FLIPS, block=st.lists(COUNTS, max_size=3) | st.just([24, 32]) | JSON)
def test_flipped_bytes_of_fp8_weights_and_any_block_size(
    tmp_path: Path, float8_folder: Path, flips: list[tuple[float, int]], block: Any
) -> None:
    """Names, types, shapes and places of scales and matrices, whatever they become."""
    content = (float8_folder / "model.safetensors").read_bytes()
    config = json.loads((float8_folder / "config.json").read_text())
    config["quantization_config"] = {"weight_block_size": block}
    (tmp_path / "config.json").write_text(json.dumps(config))
    end = 8 + int.from_bytes(content[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(flip(content, flips, end))
    if open_or_refuse(tmp_path):
        refusal(lambda: load_backbone(open_checkpoint(tmp_path), NumpyOps()))


@fuzz
@given(
    rest=st.binary(max_size=200),
    architecture=st.sampled_from(["llama", "gemma3"]),
    counts=st.tuples(COUNTS, COUNTS),
)
def test_random_bytes_after_a_true_beginning(
    tmp_path: Path, rest: bytes, architecture: str, counts: tuple[int, int]
) -> None:
    first = key_value("general.architecture", STRING, text(architecture))
    (tmp_path / "m.gguf").write_bytes(gguf_file([first], counts=counts) + rest)
    open_or_refuse(tmp_path / "m.gguf")


@st.composite
def gguf_values(draw: st.DrawFn) -> bytes:
    """Draw a key/value whose type, counts and bytes need not agree."""
    payload = draw(st.binary(max_size=40))
    value_type = draw(st.integers(0, 14))
    depth = draw(st.integers(0, 6))
    nest = array(ARRAY, 1) * depth + array(draw(st.integers(0, 14)), draw(COUNTS))
    return key_value(draw(st.text(max_size=5)), value_type, nest * (value_type == ARRAY) + payload)


@st.composite
def gguf_infos(draw: st.DrawFn) -> bytes:
    """Draw a tensor's entry with any shape, type and place."""
    name = draw(st.sampled_from(["a", "b", "blk.0.attn_q.weight", "blk.0.attn_k.bias", ""]))
    dims = draw(st.lists(COUNTS | st.just(32), max_size=6))
    return tensor_info(name, dims, draw(st.integers(0, 45)), draw(COUNTS | st.just(32)))


@fuzz
@given(
    key_values=st.lists(gguf_values(), max_size=4),
    infos=st.lists(gguf_infos(), max_size=4),
    heads=COUNTS,
)
def test_gguf_made_of_nonsense(
    tmp_path: Path, key_values: list[bytes], infos: list[bytes], heads: int
) -> None:
    first = key_value("general.architecture", STRING, text("llama"))
    second = key_value("llama.attention.head_count", 10, u64(heads))
    content = gguf_file([first, second, *key_values], infos, bytes(256))
    (tmp_path / "m.gguf").write_bytes(content)
    open_or_refuse(tmp_path / "m.gguf")


@fuzz
@given(header=st.dictionaries(st.text(max_size=8), JSON, max_size=4), data=st.binary(max_size=16))
def test_safetensors_header_of_any_json(
    tmp_path: Path, header: dict[str, Any], data: bytes
) -> None:
    raw = json.dumps(header).encode()
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    (tmp_path / "model.safetensors").write_bytes(u64(len(raw)) + raw + data)
    open_or_refuse(tmp_path)


@fuzz
@given(
    dtype=st.sampled_from(["F32", "BF16", "I64", "BOOL", "F8_E4M3"]) | JSON,
    shape=st.lists(COUNTS, max_size=9) | JSON,
    offsets=st.lists(COUNTS, max_size=3) | JSON,
)
def test_safetensors_entry_of_any_numbers(
    tmp_path: Path, dtype: Any, shape: Any, offsets: Any
) -> None:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    raw = json.dumps({"model.norm.weight": entry}).encode()
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    (tmp_path / "model.safetensors").write_bytes(u64(len(raw)) + raw + bytes(16))
    open_or_refuse(tmp_path)


@fuzz
@given(name=st.sampled_from(["config.json", "model.safetensors.index.json"]), value=JSON)
def test_json_files_of_any_json(folder: Path, name: str, value: Any) -> None:
    original = (folder / name).read_text()
    (folder / name).write_text(json.dumps(value))
    open_or_refuse(folder)
    (folder / name).write_text(json.dumps({"model_type": value, "weight_map": value}))
    open_or_refuse(folder)
    (folder / name).write_text(original)
    assert open_or_refuse(folder)


def sparse(path: Path, begin: bytes, size: int) -> Path:
    """Write a file that is large, but takes no room: zeros after its beginning."""
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(size)
    return path


HUGE = 2 * MAX_HEADER_BYTES
HOSTILE = {
    "giant string": key_value("k", STRING, u64(HUGE - 2**20)),
    "bytes without end": key_value("k", ARRAY, array(0, 2**28)),
    "strings without end": key_value("k", ARRAY, array(STRING, 2**24)),
    "many strings": key_value("k", ARRAY, array(STRING, 2**19)),
    "arrays without end": key_value("k", ARRAY, array(ARRAY, 2**24)),
    "many arrays": key_value("k", ARRAY, array(ARRAY, 2**14)),
    "many keys": b"".join(key_value(f"{index}", ARRAY, array(0, 0)) for index in range(2**13)),
    "arrays in arrays": key_value("k", ARRAY, array(ARRAY, 1) * 10**6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_gguf_costs_little_time_and_memory(tmp_path: Path, name: str) -> None:
    head = b"GGUF" + u32(3) + u64(2**16) + u64(2**16)
    path = sparse(tmp_path / "m.gguf", head + HOSTILE[name], HUGE)
    assert_cheap_refusal(read_gguf, path)


@pytest.mark.parametrize("size", [2**21, 2**21 + 1, 2**28])
def test_hostile_safetensors_costs_little_time_and_memory(tmp_path: Path, size: int) -> None:
    lists = b'{"a": [' + b"[]," * (2**21 // 3)  # the JSON that takes most memory per byte
    path = sparse(tmp_path / "model.safetensors", u64(size) + lists, HUGE)
    assert_cheap_refusal(read_safetensors, path)


def assert_cheap_refusal(read: Callable[[Path], Any], path: Path) -> None:
    began = time.process_time()
    with pytest.raises(CheckpointError):
        read(path)
    assert time.process_time() - began < 1
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28, f"{peak / 2**20:.0f} MiB"
