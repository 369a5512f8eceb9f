"""Growth: initialises a head from a trained head of the same or a smaller size.

In:  a new head, initialised from its backbone; a trained head, which may have fewer draft tokens or
     a narrower MLP.
Out: the new head, with the trained one's drafts for the tokens of the trained one.
"""

import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.head_weights import HeadWeights
from headlong.train.torch_head import TorchHead

_LM_HEADS = ("lm_head", "lm_heads")
_RIDGE = 1e-2
"""Ridge regularisation relative to the mean square of the trained rows, for few rows."""


def grow_from(head: TorchHead, initial: HeadWeights, vocabulary: IntArray) -> None:
    """Copy a trained head's weights; all of its draft tokens must be in `vocabulary`."""
    own = head.state_dict()
    missing, unknown = own.keys() - initial.tensors.keys(), initial.tensors.keys() - own.keys()
    if missing or unknown:
        raise HeadError(
            f"{initial.source} has other tensors than the head to train: {sorted(missing)[:4]} are "
            f"missing, {sorted(unknown)[:4]} are unknown.",
            "Omit --from-head, or start from a head that headlong trained.",
        )
    assert initial.vocabulary is not None, "initial heads have a draft vocabulary"
    row_of = {int(token_id): row for row, token_id in enumerate(vocabulary)}
    rows = torch.tensor([row_of[int(token_id)] for token_id in initial.vocabulary])
    for name, values in own.items():
        trained = torch.from_numpy(initial.tensors[name].to_float32().copy()).to(values.device)
        if name.split(".")[0] in _LM_HEADS:
            _fill_rows(values, trained, rows.to(values.device))
        else:
            _fill_corner(name, values, trained, initial.source)


def _fill_rows(values: Tensor, trained: Tensor, rows: Tensor) -> None:
    """Copy the trained rows.

    Rows of additional tokens are the backbone's, transformed by the linear map that best explains
    how training changed the other rows (ridge regression).
    """
    initial = values[rows].float()
    square = initial.T @ initial
    ridge = _RIDGE * square.diagonal().mean() * torch.eye(len(square), device=square.device)
    change = torch.linalg.solve(square + ridge, initial.T @ trained)
    values.copy_(values.float() @ change)
    values[rows] = trained.to(values.dtype)


def _fill_corner(name: str, values: Tensor, trained: Tensor, source: str) -> None:
    """Copy a tensor; additional units of a wider MLP keep their inputs and get zero outputs."""
    fits = len(values.shape) == len(trained.shape) and all(
        size >= smaller for size, smaller in zip(values.shape, trained.shape, strict=True)
    )
    if not fits or (values.shape != trained.shape and ".mlp." not in name):
        raise HeadError(
            f"{name} is {tuple(trained.shape)} in {source} and {tuple(values.shape)} in the head "
            "in training.",
            "Set head.mlp_share in the recipe to at least the head's own, or omit --from-head.",
        )
    if name.endswith("down_proj.weight"):
        values.zero_()
    values[tuple(slice(size) for size in trained.shape)] = trained.to(values.dtype)
