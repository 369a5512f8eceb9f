import json

import pytest

from headlong.config import MtpMode
from headlong.engine.client import TokenStream
from headlong.engine.engine import Engine
from headlong.engine.request import Running
from headlong.llm import LLM, GenerateOptions, make_request
from headlong.server.telemetry import add_up, llama_timings, mtp_report, speculative_metrics

ISSUE_FIELDS = {
    "mode",
    "rounds",
    "num_drafted",
    "num_accepted",
    "acceptance_length",
    "acceptance_at_depth",
    "by_drafter",
    "k_histogram",
    "draft_ms",
    "verify_ms",
    "prefill_ms",
    "prefill_head_ms",
    "measured_speedup",
    "off_reason",
}


def run(llm: LLM, mtp: MtpMode, num: int = 1) -> list[TokenStream]:
    """Run choices that say one letter over and over, which n-grams guess."""
    options: GenerateOptions = {"mtp": mtp, "max_tokens": 24, "logit_bias": {66: 100.0}}
    request = make_request(llm.encode("aBBBB"), llm.tokenizer.eos_ids, options)
    streams = [llm.engine.submit(request) for _ in range(num)]
    while any(stream.finish_reason is None for stream in streams):
        llm.engine.step()
    return streams


def test_the_mtp_object_has_the_fields_it_was_promised_with(tiny_llm: LLM) -> None:
    (stream,) = run(tiny_llm, 4)
    report = json.loads(json.dumps(mtp_report(stream.report(), 4)))
    assert set(report) == ISSUE_FIELDS | {"explanation", "bound_reason"}
    assert report["bound_reason"] is None
    stats = stream.report().stats
    assert (report["mode"], report["rounds"]) == (4, stats.rounds)
    assert report["num_drafted"] == stats.num_drafted > 0
    assert report["num_accepted"] == stats.num_accepted > 0
    assert report["by_drafter"]["ngram"]["num_accepted"] == stats.num_accepted
    assert sum(report["k_histogram"].values()) == stats.rounds
    depths = report["acceptance_at_depth"]
    assert 1 + sum(depths) == pytest.approx(report["acceptance_length"], abs=1e-3)
    timings = stream.report().timings
    assert report["verify_ms"] == pytest.approx(1e3 * timings.verify_s, abs=1e-2)
    assert report["prefill_ms"] == pytest.approx(1e3 * timings.prefill_s, abs=1e-2)
    assert report["explanation"]


def test_choices_that_share_their_passes_say_that_k_was_a_bound(tiny_llm: LLM) -> None:
    report = mtp_report(add_up([one.report() for one in run(tiny_llm, 4, num=3)]), 4)
    assert "K=4 was an upper bound" in report["bound_reason"]


def test_a_plain_request_says_that_it_did_not_draft(tiny_llm: LLM) -> None:
    (stream,) = run(tiny_llm, "off")
    report = mtp_report(stream.report(), "off")
    assert (report["mode"], report["num_drafted"], report["acceptance_length"]) == ("off", 0, 1.0)
    assert report["k_histogram"] == {"0": report["rounds"]}
    assert report["measured_speedup"] is None
    spoken = speculative_metrics(stream.report(), "off")["speculative_decoding"]
    assert spoken["num_spec_steps"] == 0
    assert spoken["acceptance_histogram"] == [0]
    assert spoken["mean_acceptance_length"] == 1.0


def test_vllms_fields_agree_with_one_another(tiny_llm: LLM) -> None:
    (stream,) = run(tiny_llm, 4)
    fields = json.loads(json.dumps(speculative_metrics(stream.report(), 4)))["speculative_decoding"]
    assert set(fields) == {
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "acceptance_histogram",
        "acceptance_histogram_by_draft_length",
        "num_spec_steps",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "num_spec_tokens",
    }
    histogram, steps = fields["acceptance_histogram"], fields["num_spec_steps"]
    assert len(histogram) == fields["num_spec_tokens"] + 1 == 5
    assert sum(histogram) == steps > 0
    accepted = sum(place * num for place, num in enumerate(histogram))
    assert accepted == fields["num_accepted_draft_tokens"]
    assert fields["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    by_length = fields["acceptance_histogram_by_draft_length"]
    drafted = sum(int(length) * sum(counts) for length, counts in by_length.items())
    assert drafted == fields["num_draft_tokens"]
    assert all(len(counts) == int(length) + 1 for length, counts in by_length.items())


def test_llama_cpps_timings_count_tokens_and_drafts(tiny_llm: LLM) -> None:
    (stream,) = run(tiny_llm, 4)
    timings = llama_timings(stream.report())
    assert timings["prompt_n"] + timings["cache_n"] == len(stream.request.prompt_ids)
    assert timings["predicted_n"] == stream.report().num_completion_tokens == len(stream.take())
    assert timings["draft_n"] == stream.report().stats.num_drafted
    assert timings["draft_n_accepted"] == stream.report().stats.num_accepted
    speed = (timings["predicted_n"] - 1) / (timings["predicted_ms"] / 1e3)
    assert timings["predicted_per_second"] == pytest.approx(speed, rel=1e-2)


def test_choices_add_up(tiny_llm: LLM) -> None:
    parts = [stream.report() for stream in run(tiny_llm, 3, num=3)]
    whole = add_up(parts)
    assert whole.stats.rounds == sum(part.stats.rounds for part in parts)
    assert whole.num_completion_tokens == sum(part.num_completion_tokens for part in parts)
    assert whole.timings.decode_s == pytest.approx(sum(part.timings.decode_s for part in parts))
    report = mtp_report(whole, 3)
    assert report["num_drafted"] == sum(part.stats.num_drafted for part in parts)
    gains = [part.measured_speedup for part in parts if part.measured_speedup is not None]
    if gains:
        assert min(gains) <= report["measured_speedup"] + 1e-3
        assert report["measured_speedup"] <= max(gains) + 1e-3


def test_without_a_drafter_the_reason_is_told(tiny_model_path: str) -> None:
    llm = LLM.load(tiny_model_path, backend="numpy", drafter="none")
    (stream,) = run(llm, "auto")
    assert "without a drafter" in mtp_report(stream.report(), "auto")["off_reason"]


def test_what_a_request_says_is_settled_when_it_ends(tiny_llm: LLM) -> None:
    """Its numbers are read by another thread while the engine goes on learning costs."""
    (stream,) = run(tiny_llm, "auto")
    told = mtp_report(stream.report(), "auto")
    assert isinstance(tiny_llm.engine, Engine)
    tiny_llm.engine.policy.costs.slowdown *= 3
    assert isinstance(stream, Running)
    assert stream.policy.forecast is not None, "the policy has decided"
    assert mtp_report(stream.report(), "auto") == told
