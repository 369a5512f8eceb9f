"""FP8 weights as published: each matrix beside the scales of its blocks.

In:  the tensors of a Hugging Face folder under their own names, and its config.json.
Out: the same, with `….weight_scale_inv` (a factor per block of 128 × 128) put into its FP8 matrix.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headlong.errors import TensorError
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, shown
from headlong.weights.tensors import BlockScales, FloatType, StoredTensor

_SUFFIX = "_scale_inv"
_USUAL_BLOCK = (128, 128)


def join_block_scales(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors with scales inside their matrices; other tensors stay as they are."""
    joined = dict(tensors)
    block = _block_size(config)
    for name, tensor in tensors.items():
        factors = tensors.get(f"{name}{_SUFFIX}")
        if tensor.type is FloatType.F8_E4M3 and factors is not None:
            _check_shape(tensor, factors, block)
            joined[name] = replace(tensor, scales=BlockScales(factors, block))
            del joined[factors.name]
    return joined


def _block_size(config: Mapping[str, Any]) -> tuple[int, int]:
    quantization = config.get("quantization_config")
    size = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if size is None:
        return _USUAL_BLOCK
    is_pair = isinstance(size, list) and len(size) == 2
    if not is_pair or not all(type(one) is int and 0 < one < 2**31 for one in size):
        raise TensorError(
            f"quantization_config.weight_block_size is {shown(size)}, not two sizes.",
            DOWNLOAD_AGAIN,
        )
    return size[0], size[1]


def _check_shape(tensor: StoredTensor, factors: StoredTensor, block: tuple[int, int]) -> None:
    expected = tuple(-(-size // step) for size, step in zip(tensor.shape, block, strict=False))
    if len(tensor.shape) != 2 or factors.shape != expected or isinstance(factors.type, FloatType):
        raise TensorError(
            f"The scales {shown(factors.name)} of type {factors.type.name} and shape "
            f"{factors.shape} do not fit a matrix of {tensor.shape} in blocks of {block}.",
            "The checkpoint was put together wrongly, or its FP8 is of another kind; use a BF16 "
            "version or a GGUF of the model.",
        )
