"""GGUF: honest files read as the gguf library reads them, dishonest ones refused in time."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from headlong.errors import CheckpointError, TensorError
from headlong.weights import gguf_file as reader
from headlong.weights.gguf_file import read_gguf
from model_files import write_gguf
from raw_gguf import (
    ARRAY,
    F16,
    F32,
    FLOAT32,
    Q4_0,
    STRING,
    UINT32,
    array,
    gguf_file,
    key_value,
    tensor_info,
    text,
    u32,
    u64,
)


def refusal(tmp_path: Path, content: bytes) -> CheckpointError:
    """Return the error a file gives, after checking that it names the file and a remedy."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    assert str(path) in caught.value.problem
    assert caught.value.remedy
    return caught.value


def test_metadata_comes_as_plain_python_values(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    values = {"a.text": "häuser", "a.yes": True, "a.list": ["x", "", "ÿ"], "a.floats": [0.5, -1.0]}
    writer.add_string("a.text", "häuser")
    writer.add_bool("a.yes", True)
    writer.add_array("a.list", ["x", "", "ÿ"])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.add_int8("a.int8", -3)
    writer.add_uint64("a.uint64", 2**63)
    writer.add_float64("a.float64", 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values |= {"a.int8": -3, "a.uint64": 2**63, "a.float64": 0.1, "general.architecture": "llama"}
    metadata = read_gguf(path).metadata
    assert metadata == values
    assert type(metadata["a.yes"]) is bool
    assert type(metadata["a.int8"]) is int


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1", "Q8_0"])
def test_tensors_equal_those_of_the_gguf_library(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen2", matrix_type=GGMLQuantizationType[kind])
    tensors = read_gguf(path).tensors
    theirs = GGUFReader(path).tensors
    assert list(tensors) == [tensor.name for tensor in theirs]
    for their in theirs:
        ours = tensors[their.name]
        assert ours.type == their.tensor_type
        assert ours.shape == tuple(reversed(their.shape.tolist()))
        assert ours.data.tobytes() == their.data.tobytes()


def test_tensors_are_mapped_and_read_only(tmp_path: Path) -> None:
    tensors = read_gguf(write_gguf(tmp_path / "m.gguf", "qwen3")).tensors
    assert not any(tensor.data.flags.writeable for tensor in tensors.values())
    assert not any(tensor.data.flags.owndata for tensor in tensors.values())


def test_version_two_and_three_dimensions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = np.arange(24, dtype=np.float32)
    info = tensor_info("experts", (4, 3, 2))
    path.write_bytes(gguf_file([], [info], values.tobytes(), version=2))
    tensor = read_gguf(path).tensors["experts"]
    assert tensor.data.shape == (6, 16)
    assert np.array_equal(tensor.to_float32(), values.reshape(2, 3, 4))


def test_custom_alignment_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    head = gguf_file([key_value("general.alignment", UINT32, u32(256))], [tensor_info("t", (2,))])
    content = head + bytes(-len(head) % 256) + np.array([3, 4], np.float32).tobytes()
    path.write_bytes(content)
    assert read_gguf(path).tensors["t"].to_float32().tolist() == [3, 4]


def nested_arrays(depth: int) -> bytes:
    return array(ARRAY, 1) * (depth - 1) + array(UINT32, 1, u32(7))


def test_nested_arrays_are_read_up_to_their_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file([key_value("k", ARRAY, nested_arrays(4))]))
    assert read_gguf(path).metadata["k"] == [[[[7]]]]
    deep = gguf_file([key_value("k", ARRAY, nested_arrays(5000))])
    assert "nested" in refusal(tmp_path, deep).problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"GGUF\3", "ends after 5 bytes"),
        (b"Hello, this is a text file named .gguf\n", "b'Hello, t'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (gguf_file(version=1), "version 1"),
        (gguf_file(version=3 << 24), "big-endian"),
        (gguf_file(counts=(2**63, 0)), str(2**63)),
        (gguf_file(counts=(0, 2**63)), str(2**63)),
        (gguf_file([key_value("k", STRING, u64(2**63))]), "should end at byte"),
        (gguf_file([key_value("k", STRING, text(b"\xff\xfe"))]), "not UTF-8"),
        (gguf_file([key_value("k", ARRAY, array(STRING, 2, text("12345678") + b"0"))]), "cut off"),
        (gguf_file([key_value("k", UINT32, b"12")]), "announces 1 values"),
        (gguf_file([key_value("n" * 70_000, UINT32, u32(1))]), "name of 70000"),
        (gguf_file([key_value("k", ARRAY, array(UINT32, 2**63))]), "arrays hold more than"),
        (gguf_file([key_value("k", ARRAY, array(ARRAY, 2**18))]), "arrays hold more than"),
        (gguf_file([key_value("k", ARRAY, array(UINT32, 2**20))]), str(2**20)),
        (gguf_file([key_value("k", ARRAY, array(STRING, 2**20))]), str(2**20)),
        (gguf_file([key_value("k", ARRAY, array(ARRAY, 2**14))]), str(2**14)),
        (gguf_file([key_value("k", 99, b"")]), "unknown type 99"),
        (gguf_file([key_value("k", ARRAY, array(99, 1, bytes(12)))]), "unknown type 99"),
        (gguf_file([key_value("", UINT32, u32(1))]), "name of 0 characters"),
        (gguf_file([key_value("k", UINT32, u32(1))] * 2), "'k' occurs twice"),
        (gguf_file([key_value("general.alignment", UINT32, u32(0))]), "general.alignment is 0"),
        (gguf_file([key_value("general.alignment", UINT32, u32(48))]), "not a power of two"),
        (
            gguf_file([key_value("general.alignment", FLOAT32, bytes(4))]),
            "is 0.0",
        ),
        (gguf_file([key_value("general.alignment", UINT32, u32(2**31))]), "general.alignment"),
        (gguf_file([], [tensor_info("t", (1,) * 5)], bytes(4)), "5 dimensions"),
        (gguf_file([], [tensor_info("t", (2, 0))], bytes(4)), "shape (0, 2)"),
        (gguf_file([], [tensor_info("t", (2**62, 2**62))], bytes(4)), "ends at byte"),
        (gguf_file([], [tensor_info("t", (2,))], bytes(4)), "only 4 bytes"),
        (gguf_file([], [tensor_info("t", (1,), offset=2**64 - 32)], bytes(4)), "only 4 bytes"),
        (gguf_file([], [tensor_info("t", (1,), offset=4)], bytes(8)), "multiple of 32"),
        (gguf_file([], [tensor_info("t", (40,), Q4_0)], bytes(64)), "rows of 40"),
        (gguf_file([], [tensor_info("t", (1,))] * 2, bytes(64)), "'t' occurs twice"),
        (
            gguf_file([], [tensor_info("a", (9,)), tensor_info("b", (8,), offset=32)], bytes(64)),
            "'a' and 'b' overlap",
        ),
        (
            gguf_file([], [tensor_info("a", (1,)), tensor_info("b", (1,), F16)], bytes(64)),
            "overlap",
        ),
        (gguf_file([], [tensor_info("t", (1,), F32)]), "only 0 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_dishonest_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content).problem


def test_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, gguf_file([], [tensor_info("blk.0.odd", (4,), 999)], bytes(64)))
    assert isinstance(error, TensorError)
    assert "blk.0.odd" in error.problem
    assert "999" in error.problem


def test_more_tensors_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_TENSORS", 1)
    infos = [tensor_info("a", (1,)), tensor_info("b", (1,), offset=32)]
    problem = refusal(tmp_path, gguf_file([], infos, bytes(64))).problem
    assert "2 tensors" in problem
    assert "1 is the limit" in problem


def test_more_keys_than_the_limit_are_refused(tmp_path: Path) -> None:
    content = gguf_file(counts=(0, 2**17)) + bytes(2**21)
    assert "65536 is the limit" in refusal(tmp_path, content).problem


def test_part_of_a_split_model_says_how_to_join(tmp_path: Path) -> None:
    error = refusal(tmp_path, gguf_file([key_value("split.count", UINT32, u32(3))]))
    assert "one of 3 parts" in error.problem
    assert "--merge" in error.remedy


def test_long_names_are_cut_in_messages(tmp_path: Path) -> None:
    error = refusal(tmp_path, gguf_file([], [tensor_info("n" * 60_000, (2, 0))], bytes(4)))
    assert len(error.problem) < 400 + len(str(tmp_path))
