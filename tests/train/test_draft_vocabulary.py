"""The draft vocabulary counts answers, not prompts."""

from pathlib import Path

import numpy as np
import pytest

from headlong.train.draft_vocabulary import choose_vocabulary
from headlong.train.shards import Answer, read_shards, write_shard


def test_the_most_frequent_answer_tokens_are_chosen(tmp_path: Path) -> None:
    answers = [
        Answer(np.array([9, 9, 9, 9, 9, 5, 5, 2]), 5, 0.0, "a"),
        Answer(np.array([9, 5, 2, 2, 2, 7]), 1, 0.0, "a"),
    ]
    write_shard(tmp_path / "shard-00000.npz", answers, 0)
    vocabulary = choose_vocabulary(read_shards(tmp_path), vocab_size=12, size=2)
    assert vocabulary.ids.tolist() == [2, 5]  # 2: four times, 5: three times, 7: once, 9: never
    assert vocabulary.ranks.tolist() == [0, 1]
    assert vocabulary.coverage == pytest.approx(7 / 8)


def test_ranks_follow_frequency(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "shard-00000.npz", [Answer(np.array([0, 8, 8, 8, 3, 3, 6]), 1, 0.0, "a")], 0
    )
    vocabulary = choose_vocabulary(read_shards(tmp_path), vocab_size=12, size=3)
    assert vocabulary.ids.tolist() == [3, 6, 8]
    assert vocabulary.ranks.tolist() == [1, 2, 0]


def test_required_tokens_are_chosen_however_rare(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "shard-00000.npz", [Answer(np.array([0, 8, 8, 8, 3, 3, 6]), 1, 0.0, "a")], 0
    )
    answers, required = read_shards(tmp_path), np.array([6, 1])
    assert choose_vocabulary(answers, 12, 3, required).ids.tolist() == [1, 6, 8]
    assert choose_vocabulary(answers, 12, 1, required).ids.tolist() == [1, 6]
