"""Shards survive kills: they are complete, and damaged ones are reported and skipped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headlong.errors import RequestError
from headlong.train.recorded_states import RecordedStates, states_file
from headlong.train.shards import Answer, ShardWriter, read_shards, shard_files, write_shard


def some_answers(seed: int, count: int = 3) -> list[Answer]:
    """Answers of random ids."""
    rng = np.random.default_rng(seed)
    return [
        Answer(rng.integers(0, 40_000, 10 + i), 4 + i, (0.0, 0.7)[i % 2], ("a", "b")[i % 2])
        for i in range(count)
    ]


def test_answers_are_read_as_written(tmp_path: Path) -> None:
    answers = some_answers(0)
    write_shard(tmp_path / "shard-00000.npz", answers, next_prompt=9)
    found = read_shards(tmp_path)
    assert [found.tokens(i).tolist() for i in range(3)] == [a.ids.tolist() for a in answers]
    assert found.prompt_lengths.tolist() == [4, 5, 6]
    assert found.set_counts == {"a": 2, "b": 1}
    assert found.num_answer_tokens == 6 * 3
    assert found.next_prompt == 9


def test_ids_above_two_bytes_are_kept(tmp_path: Path) -> None:
    ids = np.array([1, 70_000, 200_000])
    write_shard(tmp_path / "shard-00000.npz", [Answer(ids, 1, 0.0, "a")], next_prompt=0)
    assert read_shards(tmp_path).tokens(0).tolist() == ids.tolist()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_shard_is_reported_and_skipped(tmp_path: Path, share: float) -> None:
    for number in range(2):
        write_shard(tmp_path / f"shard-0000{number}.npz", some_answers(number), next_prompt=number)
    data = (tmp_path / "shard-00001.npz").read_bytes()
    (tmp_path / "shard-00001.npz").write_bytes(data[: int(len(data) * share)])
    found = read_shards(tmp_path)
    assert len(found) == 3
    assert len(found.damaged) == 1
    assert "shard-00001" in found.damaged[0]


def test_a_writer_continues_after_old_shards(tmp_path: Path) -> None:
    for seed in range(2):
        writer = ShardWriter(tmp_path)
        for answer in some_answers(seed):
            writer.add(answer, next_prompt=seed)
        writer.close(next_prompt=seed)
    assert [path.name for path in shard_files(tmp_path)] == ["shard-00000.npz", "shard-00001.npz"]
    assert len(read_shards(tmp_path)) == 6


def test_a_half_written_shard_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "shard-00000.part").write_bytes(b"half")
    with pytest.raises(RequestError, match="no answers"):
        read_shards(tmp_path)


def test_the_fingerprint_follows_the_answers(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard-00000.npz", some_answers(0), next_prompt=0)
    first = read_shards(tmp_path).fingerprint
    write_shard(tmp_path / "shard-00001.npz", some_answers(1), next_prompt=0)
    assert read_shards(tmp_path).fingerprint != first


def with_states(answers: list[Answer]) -> list[Answer]:
    """The same answers with hidden rows of eight numbers."""
    return [replace(one, states=torch.zeros(len(one.ids) - 1, 8)) for one in answers]


def test_hidden_rows_are_written_beside_a_shard_while_there_is_room(tmp_path: Path) -> None:
    answers = with_states(some_answers(0))
    writer = ShardWriter(tmp_path, state_bytes=(9 + 10) * 8 * 4)
    for answer in answers:
        writer.add(answer, next_prompt=1)
    writer.close(next_prompt=1)
    found = read_shards(tmp_path)
    assert len(found) == 3
    assert len(RecordedStates(found, hidden_size=8, num_taps=0)) == 2


def test_hidden_rows_left_by_a_killed_run_are_removed(tmp_path: Path) -> None:
    """They would be taken for those of the next shard of that name."""
    path = tmp_path / "shard-00000.npz"
    write_shard(path, with_states(some_answers(0)), next_prompt=0)
    path.unlink()
    write_shard(path, some_answers(1), next_prompt=0)
    assert not states_file(path).exists()
