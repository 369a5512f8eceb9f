"""Safetensors: honest files read as the safetensors library reads them, others refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headlong.errors import CheckpointError, TensorError
from headlong.weights import safetensors_file
from headlong.weights.safetensors_file import read_safetensors


def write(path: Path, header: Any, data: bytes = b"", header_bytes: int | None = None) -> Path:
    """Write a safetensors file with any header, honest or not."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(raw) if header_bytes is None else header_bytes
    path.write_bytes(size.to_bytes(8, "little") + raw + data)
    return path


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_equal_those_of_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    floats: dict[str, NDArray[Any]] = {
        "matrix": rng.normal(size=(3, 5)).astype(np.float32),
        "vector": rng.normal(size=7).astype(np.float16),
        "cube": rng.normal(size=(2, 3, 4)),
        "scalar": np.array(1.5, dtype=np.float32),
    }
    integers: dict[str, NDArray[Any]] = {
        "d2t": rng.integers(-9, 9, 6),
        "small": rng.integers(-9, 9, (2, 2)).astype(np.int32),
        "t2d": rng.integers(0, 2, 9).astype(bool),
    }
    save_file({**floats, **integers}, path, metadata={"made": "by a test"})
    tensors = read_safetensors(path)
    theirs = load_file(path)
    assert tensors.keys() == theirs.keys()
    for name in floats:
        assert np.array_equal(tensors[name].to_float32(), theirs[name].astype(np.float32))
    for name in integers:
        assert np.array_equal(tensors[name].to_int64(), theirs[name].astype(np.int64))
    assert tensors["t2d"].type == GGMLQuantizationType.I8


def test_bfloat16_is_read(tmp_path: Path) -> None:
    values = np.array([1, -2.5, 3e38], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    path = write(tmp_path / "m", {"w": entry([3], 0, 6, "BF16")}, halves.tobytes())
    unpacked = read_safetensors(path)["w"].to_float32()
    assert np.array_equal(unpacked, (halves.astype(np.uint32) << 16).view(np.float32))


def test_tensors_are_mapped_and_read_only(tmp_path: Path) -> None:
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "m")
    tensor = read_safetensors(tmp_path / "m")["w"]
    assert not tensor.data.flags.writeable
    assert not tensor.data.flags.owndata


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"not json", b"", "not valid JSON"),
        (b"[]", b"", "not an object"),
        (b"[" * 100_000, b"", "nested too deeply"),
        (b'{"w": 1, "w": 2}', b"", "occurs twice"),
        ({"w": 1}, b"", "described by 1"),
        ({"w": {"dtype": "F32", "shape": [1]}}, b"", "described by"),
        ({"w": entry([2], 0, 4)}, bytes(4), "takes 8 bytes by its shape [2]"),
        ({"w": entry([2**62, 2**62], 0, 4)}, bytes(4), "by its shape"),
        ({"w": entry([-1], 0, 4)}, bytes(4), "has the shape [-1]"),
        ({"w": entry([True], 0, 4)}, bytes(4), "has the shape [True]"),
        ({"w": entry([0, 2**62], 0, 0)}, b"", "has the shape [0"),
        ({"w": entry([1] * 9, 0, 4)}, bytes(4), "has the shape [1"),
        ({"w": {**entry([1], 0, 4), "shape": "1"}}, bytes(4), "has the shape '1'"),
        ({"w": {**entry([1], 0, 4), "data_offsets": [0]}}, bytes(4), "has the offsets [0]"),
        ({"w": entry([1], 4, 0)}, bytes(4), "lies at 4…0"),
        ({"w": entry([1], 0, 2**70)}, bytes(4), "has the offsets"),
        ({"w": entry([2], 0, 8)}, bytes(4), "outside the 4 data bytes"),
        ({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, bytes(6), "overlaps"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4), "overlaps"),
        ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12), "hole"),
        ({"a": entry([1], 0, 4)}, bytes(8), "take 4 bytes, but 8 are there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_dishonest_file_is_refused(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    path = write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    assert words in caught.value.problem
    assert str(path) in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("dtype", ["F8_E5M2", "U8", "C64", "", ["F32"], None])
def test_unknown_type_names_tensor_and_type(tmp_path: Path, dtype: Any) -> None:
    path = write(tmp_path / "m", {"odd.weight": entry([1], 0, 1, dtype)}, bytes(1))
    with pytest.raises(TensorError) as caught:
        read_safetensors(path)
    assert "odd.weight" in caught.value.problem
    assert repr(dtype) in caught.value.problem
    assert "BF16" in caught.value.remedy


@pytest.mark.parametrize("header_bytes", [100, 2**63, 2**64 - 1])
def test_header_longer_than_the_file_is_refused(tmp_path: Path, header_bytes: int) -> None:
    path = write(tmp_path / "m", {}, header_bytes=header_bytes)
    with pytest.raises(CheckpointError, match=str(header_bytes)):
        read_safetensors(path)


@pytest.mark.parametrize("content", [b"", b"\2\0", b"\2\0\0\0\0\0\0\0"])
def test_stub_of_a_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(CheckpointError):
        read_safetensors(tmp_path / "m")


def test_more_tensors_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "MAX_TENSORS", 1)
    with pytest.raises(CheckpointError, match="2 tensors; 1 is the limit"):
        read_safetensors(write(tmp_path / "m", {"a": entry([1], 0, 4), "b": entry([1], 4, 8)}))


def test_header_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "MAX_HEADER_BYTES", 10)
    with pytest.raises(CheckpointError, match="10 is the limit"):
        read_safetensors(write(tmp_path / "m", {"w": entry([1], 0, 4)}, bytes(4)))
