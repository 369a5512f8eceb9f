"""The verdict of a load in words."""

from typing import Any

from headlong.bench.load_words import say_load


def make_gain(value: float, outcome: str, task: str | None = None) -> dict[str, Any]:
    """Return a gain as the document has it."""
    return {"task": task, "value": value, "low": value - 0.1, "high": value + 0.1,
            "outcome": outcome}  # fmt: skip


def make_level(number: int, gain: dict[str, Any] | None, **mode: Any) -> dict[str, Any]:
    """Return a level as the document has it."""
    figures = {"num_requests": 10, "num_busy": 0, "num_failed": 0, "tokens_per_second": 50.0}
    classes = [make_gain(2.0, "gain", "agents"), make_gain(1.1, "unknown", "stories")]
    return {
        "name": f"{number} at a time",
        "gain": gain,
        "classes": classes,
        "modes": {"off": figures | mode, "auto": figures | mode},
    }


def say(*levels: dict[str, Any], modes: tuple[str, ...] = ("off", "auto")) -> str:
    """Put levels into words."""
    return say_load({"levels": list(levels), "modes": modes, "identical": None})


def test_levels_are_sorted_by_what_may_be_said() -> None:
    words = say(
        make_level(1, make_gain(1.8, "gain")),
        make_level(2, make_gain(1.5, "gain")),
        make_level(8, make_gain(1.05, "unknown")),
        make_level(32, make_gain(0.8, "loss")),
    )
    assert words == (
        "MTP auto answers faster than off with 1 at a time (1.80 × [1.70–1.90]) and 2 at a time "
        "(1.50 × [1.40–1.60]). Slower with 32 at a time (0.80 × [0.70–0.90]). Not enough data to "
        "tell with 8 at a time (1.05 × [0.95–1.15]). With 1 at a time, agents gain most (2.00 ×) "
        "and stories least (1.10 ×)."
    )


def test_class_that_runs_slower_is_not_said_to_gain() -> None:
    level = make_level(4, make_gain(0.9, "loss"))
    level["classes"] = [make_gain(0.98, "unknown", "agents"), make_gain(0.8, "loss", "chat")]
    assert say(level).endswith(
        "With 4 at a time, chat lose most (0.80 ×) and agents least (0.98 ×)."
    )


def test_trouble_is_counted() -> None:
    words = say(make_level(1, make_gain(1.0, "same"), num_busy=3, num_failed=1))
    assert words.endswith("6 of 20 requests were turned away as busy and 2 of 20 failed.")
    assert "No difference with 1 at a time" in words


def test_one_mode_has_only_its_throughput() -> None:
    level = make_level(1, None)
    level["modes"] = {"plain": level["modes"]["off"]}
    assert say(level, modes=("plain",)) == "At most 50.0 tokens/s, with 1 at a time."


def test_nothing_is_said_of_nothing() -> None:
    assert say() == "Nothing was measured."
    assert say(make_level(1, None)).startswith("Not enough data to tell with 1 at a time.")
