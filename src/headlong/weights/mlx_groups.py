"""MLX's quantised weights: each matrix of packed levels beside the scales of its groups.

In:  the tensors of a folder under their own names, and its config.json.
Out: the same, with `….scales` and `….biases` put into the matrix `….weight`. config.json says in
     `quantization` how many bits a level has and how many numbers share a scale, for all matrices
     and for single ones that differ.
Written in the same form are heads that run in 4 bits: `pack_matrix` makes such a matrix, with the
levels that the kernels' own packing to 4 bits gives, and `split_components` its three tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.errors import TensorError
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, shown
from headlong.weights.tensors import AffineType, GroupScales, StoredTensor

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)
_WORD_BITS = 32
PACKED = AffineType(4, 32)
"""What `pack_matrix` packs to."""
_OF_SCALES = (GGMLQuantizationType.F16, GGMLQuantizationType.BF16, GGMLQuantizationType.F32)
_TRY_ANOTHER = "Use a version in MLX's affine 4 or 8 bits, in BF16, or a GGUF of the model."


def check_modes(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder with matrices of another mode than affine, before its tensors are read.

    Other modes have types of scales that no reader here knows.
    """
    settings = _settings(config) or {}
    own = {f"{folder}: {shown(name)}": one for name, one in settings.items()}
    for what, one in {f"{folder}": settings, **own}.items():
        mode = one.get("mode", "affine") if isinstance(one, dict) else "affine"
        if mode != "affine":
            problem = f"{what} is quantised in MLX's mode {shown(mode)}; affine is read here."
            raise TensorError(problem, _TRY_ANOTHER)


def join_group_scales(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors with scales inside their matrices; other tensors stay as they are."""
    joined = dict(tensors)
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        scales = tensors.get(f"{stem}.scales")
        is_packed = tensor.type is GGMLQuantizationType.I32 and len(tensor.shape) > 1
        if scales is None or stem == name or not is_packed:
            continue
        kind = _stored_type(config, stem)
        minimums = tensors.get(f"{stem}.biases")
        if minimums is None:
            problem = f"{shown(name)} has scales but no biases, as MLX's affine matrices have."
            raise TensorError(problem, _TRY_ANOTHER)
        joined[name] = _join(tensor, kind, GroupScales(scales, minimums))
        del joined[scales.name], joined[minimums.name]
    return joined


def can_pack(tensor: StoredTensor) -> bool:
    """Tell whether a tensor is a matrix whose rows are whole groups."""
    return len(tensor.shape) == 2 and tensor.shape[-1] % PACKED.group_size == 0


def pack_matrix(tensor: StoredTensor) -> StoredTensor:
    """Return a matrix in 4 bits, rounded as `csrc/levels.cpp` rounds floats to q4."""
    rows, columns = tensor.shape
    groups = tensor.to_float32().reshape(rows, -1, PACKED.group_size)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # refused below
        halves = [part.astype("<f2") for part in ((high - low) / np.float32(15), low)]
    if not all(np.isfinite(half).all() for half in halves):
        problem = f"{shown(tensor.name)} has numbers too large, or not finite, for 4 bits."
        raise TensorError(problem, "Keep it in floats.")
    scale, minimum = (half.astype(np.float32) for half in halves)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    levels = np.rint(((groups - minimum) * inverse).clip(0, 15)).astype(np.uint8)
    data = (levels[..., ::2] | levels[..., 1::2] << 4).reshape(rows, -1)
    stem, shape = tensor.name.removesuffix(".weight"), (rows, columns // PACKED.group_size)
    parts = (
        StoredTensor(f"{stem}.{name}", shape, GGMLQuantizationType.F16, half[..., 0].view(np.uint8))
        for name, half in zip(("scales", "biases"), halves, strict=True)
    )
    return replace(tensor, type=PACKED, data=data, scales=GroupScales(*parts))


def split_components(tensor: StoredTensor) -> tuple[StoredTensor, StoredTensor, StoredTensor]:
    """Return the packed words, scales and minimums of a matrix, as files hold them."""
    assert isinstance(tensor.type, AffineType)
    assert isinstance(tensor.scales, GroupScales)
    stem = tensor.name.removesuffix(".weight")
    words = (*tensor.shape[:-1], tensor.shape[-1] * tensor.type.bits // _WORD_BITS)
    return (
        replace(tensor, shape=words, type=GGMLQuantizationType.I32, scales=None),
        replace(tensor.scales.scales, name=f"{stem}.scales"),
        replace(tensor.scales.minimums, name=f"{stem}.biases"),
    )


def describe_groups(tensors: Iterable[StoredTensor]) -> dict[str, int] | None:
    """Return what config.json says of packed matrices; None where there are none."""
    kinds = {tensor.type for tensor in tensors if isinstance(tensor.type, AffineType)}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.name for kind in kinds))
        problem = f"The matrices are packed in different ways: {names}."
        raise TensorError(problem, "Pack all of them in one way.")
    return next(({"group_size": one.group_size, "bits": one.bits} for one in kinds), None)


def _settings(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what config.json says of quantised matrices, those of single ones inside."""
    nested = config.get("text_config")
    places = [config, nested] if isinstance(nested, dict) else [config]
    found = (place.get(key) for place in places for key in ("quantization", "quantization_config"))
    return next((one for one in found if isinstance(one, dict)), None)


def _stored_type(config: Mapping[str, Any], stem: str) -> AffineType:
    shared = _settings(config)
    if shared is None:
        problem = f"{shown(stem)} is quantised, but config.json has no quantization."
        raise TensorError(problem, "Put the model's own config.json in its place.")
    own = shared.get(stem)
    given = own.items() if isinstance(own, dict) else ()
    # mlx-lm's mixed recipes write null for a group size that nobody asked for.
    settings = shared | {name: value for name, value in given if value is not None}
    bits, group_size = settings.get("bits"), settings.get("group_size")
    if type(bits) is not int or bits not in _BITS or group_size not in _GROUP_SIZES:
        raise TensorError(
            f"{shown(stem)} is quantised to {shown(bits)} bits in groups of {shown(group_size)}.",
            f"Known are {', '.join(map(str, _BITS))} bits and groups of 32, 64 and 128.",
        )
    return AffineType(bits, group_size)


def _join(tensor: StoredTensor, kind: AffineType, scales: GroupScales) -> StoredTensor:
    factors, minimums = scales.scales, scales.minimums
    columns = tensor.shape[-1] * _WORD_BITS // kind.bits
    groups = (*tensor.shape[:-1], columns // kind.group_size)
    fits = (
        tensor.shape[-1] * _WORD_BITS == columns * kind.bits
        and columns % kind.group_size == 0
        and all(one.shape == groups and one.type in _OF_SCALES for one in (factors, minimums))
    )
    if not fits:
        raise TensorError(
            f"{shown(tensor.name)} of shape {tensor.shape}, with scales of {factors.shape} and "
            f"biases of {minimums.shape}, is not of {kind.bits} bits in groups of "
            f"{kind.group_size}.",
            f"Its config.json belongs to another model, or the file is damaged. {DOWNLOAD_AGAIN}",
        )
    by_row = [replace(one, shape=(len(one.data), groups[-1])) for one in (factors, minimums)]
    shape = (*tensor.shape[:-1], columns)
    return replace(tensor, shape=shape, type=kind, scales=GroupScales(*by_row))
