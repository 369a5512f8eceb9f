"""GGUF files: what is written is what is read, by us and by the gguf library."""

from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

from headlong.heads.head_weights import store_array
from headlong.weights.gguf_file import read_gguf
from headlong.weights.gguf_writer import GgufEntry, write_gguf


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    metadata = {
        "a.name": "x",
        "a.flag": True,
        "a.count": 3,
        "a.parameters": 2**40,
        "a.eps": 0.5,
        "a.ids": [1, 2],
        "a.t": ["p"],
    }
    tensors = {
        "half.weight": store_array("half.weight", np.arange(12.0).reshape(3, 4), "float16"),
        "full.weight": store_array("full.weight", np.linspace(0, 1, 5)),
    }
    kinds = {"half.weight": GGMLQuantizationType.F16, "full.weight": GGMLQuantizationType.F32}
    entries = [
        GgufEntry(name, one.shape, kinds[name], partial(tensors.__getitem__, name))
        for name, one in tensors.items()
    ]
    path = tmp_path / "model.gguf"
    write_gguf(path, "tiny", metadata, entries)
    read = read_gguf(path)
    assert read.metadata["general.architecture"] == "tiny"
    assert {key: read.metadata[key] for key in metadata} == metadata
    for name, tensor in tensors.items():
        assert read.tensors[name].shape == tensor.shape
        assert read.tensors[name].type == kinds[name]
        np.testing.assert_array_equal(read.tensors[name].to_float32(), tensor.to_float32())
    assert [tensor.name for tensor in GGUFReader(path).tensors] == list(tensors)
