"""The shift by depth: every draft is compared with the row that really speaks about its token."""

import numpy as np
import torch

from headlong.train.batches import make_batch
from headlong.train.targets import make_targets


def test_depth_d_is_judged_by_the_row_d_tokens_on() -> None:
    # Hidden rows that say where they stand, and an LM head that passes them through.
    batch = make_batch([np.arange(9), np.arange(6)], [3, 2], np.zeros(2, np.float32), length=10)
    normed = torch.arange(20.0)[:, None]
    starts, sequences = torch.from_numpy(batch.starts), torch.from_numpy(batch.sequences)
    targets = make_targets(normed, torch.ones(1, 1), starts, sequences, num_depths=4)
    # Sequence 0 has tokens 0…8, 3 of them prompt: drafts start at rows 2…6. Sequence 1: 1…3.
    assert batch.starts[batch.sequences == 0].tolist() == [2, 3, 4, 5, 6]
    assert batch.starts[batch.sequences == 1].tolist() == [11, 12, 13]
    last_row = {0: 7, 1: 14}  # the last row whose next token is known
    for depth in range(1, 5):
        is_valid, judged_by = targets.is_valid(depth), targets.at_depth(depth)[:, 0]
        for row, (start, owner) in enumerate(zip(batch.starts, batch.sequences, strict=True)):
            wanted = int(start) + depth
            assert bool(is_valid[row]) == (owner >= 0 and wanted <= last_row.get(int(owner), -1))
            assert not is_valid[row] or judged_by[row] == wanted


def test_rows_that_fill_up_are_never_valid() -> None:
    batch = make_batch([np.arange(5)], [2], np.zeros(1, np.float32), length=8)
    sequences = torch.from_numpy(batch.sequences)
    targets = make_targets(
        torch.zeros(8, 2), torch.zeros(3, 2), torch.from_numpy(batch.starts), sequences, 2
    )
    assert len(batch.starts) % 256 == 0
    assert int(targets.is_valid(1).sum()) == 2
    assert int(targets.is_valid(2).sum()) == 1
