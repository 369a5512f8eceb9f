import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.client import EngineClient, TokenStream
from headlong.engine.engine import Engine
from headlong.engine.request import FinishReason
from headlong.errors import EngineError
from headlong.llm import LLM
from headlong.server.telemetry import add_up
from scripted_engine import ScriptedEngine

REQUEST = Request(
    (65, 66, 66),
    SamplingParams(logit_bias={66: 100.0}),  # one letter over and over, which n-grams guess
    StopParams(max_tokens=12, ignore_eos=True),
    mtp=3,
)


def clients(llm: LLM) -> list[EngineClient]:
    """The local engine, and one that stands for any other."""
    return [Engine.for_model(llm.backbone, llm.drafter), ScriptedEngine(tuple(range(65, 77)))]


def run(client: EngineClient) -> TokenStream:
    """Run one request to its end, taking nothing."""
    stream = client.submit(REQUEST)
    while stream.finish_reason is None:
        client.step()
    return stream


def test_tokens_are_taken_once_and_in_order(tiny_llm: LLM) -> None:
    for client in clients(tiny_llm):
        whole = run(client).take()
        stream = run(client)
        assert stream.num_ready == 12
        pieces = [*stream.take(1), *stream.take(4), *stream.take(0), *stream.take()]
        assert pieces == whole
        assert (stream.num_ready, stream.take(), stream.take(2)) == (0, [], [])


def test_report_tells_what_an_ended_request_took(tiny_llm: LLM) -> None:
    for client in clients(tiny_llm):
        report = run(client).report()
        assert (report.num_prompt_tokens, report.num_completion_tokens) == (3, 12)
        assert report.timings.tokens_per_second > 0
        assert report.explanation


def test_report_of_the_local_engine_counts_its_rounds(tiny_llm: LLM) -> None:
    report = run(Engine.for_model(tiny_llm.backbone, tiny_llm.drafter)).report()
    assert report.stats.rounds > 0
    assert report.stats.num_drafted > 0
    assert report.measured_speedup == report.timings.measured_speedup
    assert report.off_reason is None


def test_speed_up_is_never_above_the_tokens_of_a_pass(tiny_llm: LLM) -> None:
    """A round of six tokens that stalls weighs more than the others: that is no gain."""
    running = Engine.for_model(tiny_llm.backbone).submit(REQUEST)
    for num_accepted, seconds in ((5, 1.0), (0, 0.1), (0, 0.1)):
        running.stats.observe_round(["head"] * 5, num_accepted)
        running.timings.observe_round(seconds, 0.0, seconds, (num_accepted + 1) * seconds)
    assert running.timings.measured_speedup == pytest.approx(6.2 / 1.2)
    report = running.report()
    assert report.measured_speedup == pytest.approx(report.stats.acceptance_length)
    assert add_up([report, report]).measured_speedup == pytest.approx(8 / 3)


def test_cancelled_tokens_are_dropped_and_not_counted(tiny_llm: LLM) -> None:
    client = Engine.for_model(tiny_llm.backbone, tiny_llm.drafter)
    stream = run(client)
    stream.take(5)
    client.cancel(stream, FinishReason.STOP)
    assert stream.num_ready == 0
    assert stream.report().timings.num_tokens == 4, "all that were taken but the first"


def test_failed_request_ends_and_leaves_others_alone(tiny_llm: LLM) -> None:
    for client in clients(tiny_llm):
        failing, fine = client.submit(REQUEST), client.submit(REQUEST)
        client.step()
        client.fail(failing, ValueError("a reader broke off"))
        assert failing.finish_reason is FinishReason.ERROR
        assert isinstance(failing.error, EngineError)
        while fine.finish_reason is None:
            client.step()
        assert fine.error is None
        assert fine.num_ready == 12


def test_fault_of_a_step_is_the_error_of_those_it_hit(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Engine.for_model(tiny_llm.backbone, tiny_llm.drafter)
    stream = client.submit(REQUEST)
    client.step()

    def broken(engine: Engine) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(Engine, "_decode", broken)
    with pytest.raises(RuntimeError):
        client.step()
    assert stream.finish_reason is FinishReason.ERROR
    assert isinstance(stream.error, EngineError)
    assert isinstance(stream.error.__cause__, RuntimeError)
