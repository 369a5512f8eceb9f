"""A real engine on a scripted clock: exact costs and acceptances must give the computed figures.

Every pass over n rows takes 10 + n ms, every draft token 2 ms, and the drafter needs 0.5 ms for
every row it sees. Which draft tokens stand is known. So every figure can be computed by hand.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bench_parts import FakeClock, make_prompt, make_prompt_set
from fakes import ScriptedDrafter
from headlong.bench.conclusion import Wording
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import QuestionPlan
from headlong.bench.summary import BenchSetup, measure
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.engine.engine import Engine
from headlong.llm import LLM
from headlong.models.transformer import Backbone

NUM_TOKENS, K = 25, 3
PASS_MS, ROW_MS, DRAFT_MS, OBSERVE_MS = 10.0, 1.0, 2.0, 0.5


@dataclass
class TimedDrafter(ScriptedDrafter):
    """Knows the true texts of several prompts and takes its time on the scripted clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    truths: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    draft_ms: float = DRAFT_MS

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Draft from the text that begins like the history; every fourth token is wrong."""
        drafts = []
        for ask in asks:
            history = tuple(ask.history)
            prompt, truth = next((p, t) for p, t in self.truths.items() if history[: len(p)] == p)
            wrong = frozenset(range(len(prompt) + 3, len(truth), 4))
            one = replace(self, truth=truth, spoiled=wrong)
            drafts.append(one._draft_one(len(history), ask.num_tokens))
            self.clock.advance(self.draft_ms * len(drafts[-1].token_ids) / 1e3)
        return drafts

    def observe(self, settled: Sequence[ObservedRows]) -> None:
        """Take time for every row."""
        self.clock.advance(OBSERVE_MS * sum(len(one.next_ids) for one in settled) / 1e3)


@dataclass
class Expected:
    """What one answer must come to, computed without any engine."""

    ttft_ms: float
    total_ms: float
    rounds: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * K)
    drafted: int = 0


def expect(num_prompt: int, *, drafts: bool, draft_ms: float = DRAFT_MS) -> Expected:
    """Walk through one answer: the first token is the prompt's, the others come in rounds."""
    prefill_ms = PASS_MS + ROW_MS * num_prompt
    head_ms = OBSERVE_MS * num_prompt if drafts else 0.0
    found = Expected(prefill_ms + head_ms, prefill_ms + head_ms)
    position = 1
    while position < NUM_TOKENS:
        k = min(K, NUM_TOKENS - position - 1) if drafts else 0
        stood = 0
        while stood < k and (position + stood) % 4 != 3:
            stood += 1
        found.rounds += 1
        found.drafted += k
        for depth in range(stood):
            found.accepted[depth] += 1
        observe_ms = OBSERVE_MS * (stood + 1) if drafts else 0.0
        found.total_ms += PASS_MS + ROW_MS * (k + 1) + draft_ms * k + observe_ms
        position += stood + 1
    return found


PROMPTS = [make_prompt(n, task) for task in ("chat", "code") for n in range(4)]


def run_measurement(llm: LLM, clock: FakeClock, draft_ms: float) -> dict[str, Any]:
    """Measure plain decoding against K = 3 on the scripted clock."""
    truths = {}
    for prompt in PROMPTS:
        ids = llm.encode(prompt.messages)
        plain = llm.generate(prompt.messages, mtp="off", max_tokens=NUM_TOKENS)
        assert len(plain.token_ids) == NUM_TOKENS
        truths[ids] = [*ids, *plain.token_ids]
    drafter = TimedDrafter(
        [], llm.backbone.config.vocab_size, clock=clock, truths=truths, draft_ms=draft_ms
    )
    scripted = replace(llm, drafter=drafter, engine=Engine.for_model(llm.backbone, drafter))
    bench = BenchSetup(Wording.MTP, {"model": "tiny"}, make_prompt_set(*PROMPTS))
    plan = QuestionPlan(PROMPTS, max_tokens=NUM_TOKENS)
    sides = [LocalSide(scripted, "off"), LocalSide(scripted, K)]
    return measure(sides, plan, bench, lambda run: None)


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> LLM:
    """A tiny model on the oracle backend."""
    return LLM.load(tiny_model_path, backend="numpy")


@pytest.fixture(scope="module")
def documents(llm: LLM) -> dict[str, dict[str, Any]]:
    """Measured on a clock that only passes, drafts and observations move."""
    clock = FakeClock()
    forward = Backbone.forward

    def timed(self: Backbone, token_ids: Any, *args: Any, **options: Any) -> Any:
        clock.advance((PASS_MS + ROW_MS * sum(map(len, token_ids))) / 1e3)
        return forward(self, token_ids, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        patch.setattr(Backbone, "forward", timed)
        return {
            "cheap": run_measurement(llm, clock, DRAFT_MS),
            "dear": run_measurement(llm, clock, 12.0),
        }


@pytest.fixture
def document(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The measurement with cheap drafts."""
    return documents["cheap"]


def test_all_figures_are_the_computed_ones(llm: LLM, document: dict[str, Any]) -> None:
    lengths = [len(llm.encode(prompt.messages)) for prompt in PROMPTS]
    plain = [expect(length, drafts=False) for length in lengths]
    drafted = [expect(length, drafts=True) for length in lengths]
    off, three = (document["overall"]["sides"][name] for name in ("off", "3"))
    for side, expected in ((off, plain), (three, drafted)):
        total_ms = sum(one.total_ms for one in expected)
        decode_ms = total_ms - sum(one.ttft_ms for one in expected)
        num_tokens = NUM_TOKENS * len(PROMPTS)
        assert side["num_tokens"] == num_tokens
        assert side["tokens_per_second"] == pytest.approx(1e3 * num_tokens / total_ms)
        assert side["ms_per_token"] == pytest.approx(total_ms / num_tokens)
        decoded = num_tokens - len(PROMPTS)
        assert side["decode_tokens_per_second"] == pytest.approx(1e3 * decoded / decode_ms)
        ttfts = sorted(one.ttft_ms for one in expected)
        assert side["ttft_p50_ms"] == pytest.approx((ttfts[3] + ttfts[4]) / 2)
        latencies = sorted(one.total_ms for one in expected)
        p95_ms = latencies[6] + 0.65 * (latencies[7] - latencies[6])  # 95 % of the way 0…7
        assert side["latency_p95_s"] == pytest.approx(p95_ms / 1e3)
    ratio = sum(one.total_ms for one in plain) / sum(one.total_ms for one in drafted)
    assert document["speedup"] == pytest.approx(ratio)
    assert document["p95"]["3"] == three["latency_p95_s"]


def test_acceptance_is_counted_as_it_happened(document: dict[str, Any]) -> None:
    expected = expect(10, drafts=True)  # the same for every prompt: it depends on places only
    found = document["overall"]["sides"]["3"]["acceptance"]
    assert found["rounds"] == len(PROMPTS) * expected.rounds
    assert found["num_drafted"] == len(PROMPTS) * expected.drafted
    assert found["num_accepted"] == len(PROMPTS) * sum(expected.accepted)
    shares = [accepted / expected.rounds for accepted in expected.accepted]
    assert found["acceptance_at_depth"] == pytest.approx(shares)
    assert found["acceptance_length"] == pytest.approx(1 + sum(shares))
    assert document["overall"]["sides"]["off"]["acceptance"]["num_drafted"] == 0


def test_heads_share_of_the_prefill_is_its_part_of_the_time(
    llm: LLM, document: dict[str, Any]
) -> None:
    rows = sum(len(llm.encode(prompt.messages)) for prompt in PROMPTS)
    head_ms, backbone_ms = OBSERVE_MS * rows, PASS_MS * len(PROMPTS) + ROW_MS * rows
    found = document["overall"]["sides"]["3"]["prefill_head_share"]
    assert found == pytest.approx(head_ms / (head_ms + backbone_ms))
    assert document["overall"]["sides"]["off"]["prefill_head_share"] == 0


def test_drafts_that_pay_are_recommended(document: dict[str, Any]) -> None:
    low, high = document["speedup_interval"]
    assert 1 < low <= document["speedup"] <= high
    assert document["verdict"].startswith("Enable it, K=3: ")
    assert document["recommended"]["mtp"] == 3
    assert document["identical"] == {
        "all": True, "num_compared": 8, "num_identical": 8, "first_divergence": None,
    }  # fmt: skip


def test_drafts_that_cost_more_than_they_bring_are_advised_against(
    documents: dict[str, dict[str, Any]],
) -> None:
    document = documents["dear"]
    assert document["speedup_interval"][1] < 1
    assert document["verdict"].startswith("Leave it off: K=3 runs at 0.")
    assert document["recommended"] == {
        "mtp": "off",
        "by_task": [{"name": "chat", "mtp": "off"}, {"name": "code", "mtp": "off"}],
    }


def test_document_is_json_and_tells_its_conditions(document: dict[str, Any]) -> None:
    document = json.loads(json.dumps(document))
    assert document["conditions"]["cpu"]
    assert document["prompts"]["hash"] == make_prompt_set(*PROMPTS).hash
    assert document["settings"]["max_tokens"] == [NUM_TOKENS]
    assert [group["name"] for group in document["tasks"]] == ["chat", "code"]
    assert len(document["runs"]) == 16
    assert document["token_counter"] == "the engine's own tokens, the same for all sides"
