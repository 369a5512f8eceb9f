import pytest

from headlong.bench.memory import ModelSizes, plan_memory, resident_bytes
from headlong.cache.sequence_state import GROWTH
from headlong.errors import RequestError

SIZES = ModelSizes(
    weights_bytes=1_000_000,
    kv_bytes_per_token=100,
    head_bytes=20_000,
    head_kv_bytes_per_token=3,
    context_length=4096,
    process_bytes=50_000,
)


def test_parts_add_up() -> None:
    need = plan_memory(SIZES, context=512, concurrency=4, prefix_bytes=7_000)
    assert need.kv_bytes == 512 * 4 * 100
    assert need.head_kv_bytes == 512 * 4 * 3
    assert need.plain_bytes == 1_000_000 + 204_800 + 7_000 + 50_000
    assert need.mtp_bytes == need.plain_bytes + 20_000 + 6_144
    assert need.to_dict()["mtp_bytes"] == need.mtp_bytes


def test_contexts_take_whole_steps_of_the_cache() -> None:
    assert plan_memory(SIZES, 2 * GROWTH, 1, 0).kv_bytes == 2 * GROWTH * 100
    assert plan_memory(SIZES, 2 * GROWTH + 1, 1, 0).kv_bytes == 3 * GROWTH * 100


def test_context_beyond_the_models_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError, match=r"5,000 tokens; the model's holds 4,096"):
        plan_memory(SIZES, 5000, 1, 0)


@pytest.mark.parametrize(("context", "concurrency", "kept"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_impossible_workers_are_refused(context: int, concurrency: int, kept: int) -> None:
    with pytest.raises(RequestError):
        plan_memory(SIZES, context, concurrency, kept)


def test_process_has_a_size() -> None:
    assert resident_bytes() > 10_000_000
