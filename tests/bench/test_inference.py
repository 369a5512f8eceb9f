"""`benchmark_inference`: any function is timed exactly, and the record says what came out."""

import json
import time

import pytest

import headlong
from bench_parts import FakeClock
from headlong.errors import RequestError


def test_figures_are_the_computed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    seconds = {"a": 1.0, "b": 2.0}
    calls: list[str] = []

    def model_fn(prompt: str) -> tuple[str, int]:
        calls.append(prompt)
        clock.advance(seconds[prompt])
        return prompt.upper(), 10

    found = headlong.benchmark_inference(model_fn, ["a", "b"], runs=2)
    assert calls == ["a", "b", "a", "b"]
    assert [result.latency_s for result in found.results] == [1.0, 2.0, 1.0, 2.0]
    assert [result.text for result in found.results] == ["A", "B", "A", "B"]
    assert found.mean_tokens_per_second == pytest.approx(7.5)  # (10 + 5) / 2
    assert found.total_tokens_per_second == pytest.approx(40 / 6)
    assert found.p95_latency_s == pytest.approx(2.0)
    assert found.p50_latency_s == pytest.approx(1.5)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["num_results"] == 4
    assert document["results"][1] == {
        "prompt": "b", "run": 0, "text": "B", "num_tokens": 10, "latency_s": 2.0,
        "tokens_per_second": 5.0,
    }  # fmt: skip


def test_a_model_of_ours_is_timed(tiny_llm: headlong.LLM) -> None:
    def model_fn(prompt: str) -> tuple[str, int]:
        out = tiny_llm.generate(prompt, max_tokens=4)
        return out.text, len(out.token_ids)

    found = headlong.benchmark_inference(model_fn, ["ab", "cd"], runs=1)
    assert [result.num_tokens for result in found.results] == [4, 4]
    assert found.p95_latency_s > 0


@pytest.mark.parametrize("answer", ["text", ("text",), ("text", "five"), ("text", -1), None])
def test_functions_that_return_something_else_are_told(answer: object) -> None:
    with pytest.raises(RequestError, match="not \\(text, number of tokens\\)"):
        headlong.benchmark_inference(lambda prompt: answer, ["a"])  # type: ignore[arg-type,return-value] # on purpose


def test_exceptions_of_the_function_are_passed_on() -> None:
    def fail(prompt: str) -> tuple[str, int]:
        raise KeyError(prompt)

    with pytest.raises(KeyError):
        headlong.benchmark_inference(fail, ["a"])


def test_nothing_to_do_is_refused() -> None:
    with pytest.raises(RequestError, match="no prompts"):
        headlong.benchmark_inference(lambda prompt: ("", 0), [])
    with pytest.raises(RequestError, match="runs is 0"):
        headlong.benchmark_inference(lambda prompt: ("", 0), ["a"], runs=0)
