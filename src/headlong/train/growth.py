"""Growth: a head in training starts from one that may be smaller.

In:  a new head, which stands where its backbone puts it; a trained head with fewer draft tokens or
     a narrower MLP, or of the same size.
Out: the new head, which drafts as the trained one does, and can learn more than it.
"""

import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.head_weights import HeadWeights
from headlong.train.torch_head import TorchHead

_LM_HEADS = ("lm_head", "lm_heads")
_RIDGE = 1e-2
"""Of the mean square of the known rows: keeps the fit sound where they are few."""


def grow_from(head: TorchHead, known: HeadWeights, vocabulary: IntArray) -> None:
    """Fill a head with the weights of a trained one, whose draft tokens are all in `vocabulary`."""
    own = head.state_dict()
    missing, unknown = own.keys() - known.tensors.keys(), known.tensors.keys() - own.keys()
    if missing or unknown:
        raise HeadError(
            f"{known.source} differs from the head in training: it lacks {sorted(missing)[:4]} and "
            f"has {sorted(unknown)[:4]} besides.",
            "Start from nothing, or from a head that headlong trained.",
        )
    assert known.vocabulary is not None, "heads to go on from have draft tokens of their own"
    place = {int(token_id): row for row, token_id in enumerate(vocabulary)}
    rows = torch.tensor([place[int(token_id)] for token_id in known.vocabulary])
    for name, values in own.items():
        trained = torch.from_numpy(known.tensors[name].to_float32().copy()).to(values.device)
        if name.split(".")[0] in _LM_HEADS:
            _fill_rows(values, trained, rows.to(values.device))
        else:
            _fill_corner(name, values, trained, known.source)


def _fill_rows(values: Tensor, trained: Tensor, rows: Tensor) -> None:
    """Put every trained row into its place.

    Further tokens get what the others' training would have made of the backbone's rows, as far as
    one linear map tells.
    """
    before = values[rows].float()
    square = before.T @ before
    ridge = _RIDGE * square.diagonal().mean() * torch.eye(len(square), device=square.device)
    learned = torch.linalg.solve(square + ridge, before.T @ trained)
    values.copy_(values.float() @ learned)
    values[rows] = trained.to(values.dtype)


def _fill_corner(name: str, values: Tensor, trained: Tensor, source: str) -> None:
    """Copy a tensor; a wider MLP keeps its further inner numbers, which do nothing at first."""
    fits = len(values.shape) == len(trained.shape) and all(
        size >= known for size, known in zip(values.shape, trained.shape, strict=True)
    )
    if not fits or (values.shape != trained.shape and ".mlp." not in name):
        raise HeadError(
            f"{name} is {tuple(trained.shape)} in {source} and {tuple(values.shape)} in the head "
            "in training.",
            "Set head.mlp_share in the recipe to at least the head's own, or start from nothing.",
        )
    if name.endswith("down_proj.weight"):
        values.zero_()
    values[tuple(slice(size) for size in trained.shape)] = trained.to(values.dtype)
