import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine_faults import Fault
from headlong.config import SamplingParams
from headlong.decode.request import Request
from headlong.fleet import probe, probing
from headlong.fleet.exchange import Exchanger, make_http
from headlong.fleet.probing import ProbeOptions, Probing
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.fleet.vllm_dialect import VllmDialect
from http_engine import HttpEngine, run_engine
from scripted_model import ScriptedModel
from scripted_sides import TOKENIZER

MODEL = ScriptedModel(tuple(range(256)), min(TOKENIZER.eos_ids), TOKENIZER.vocab_size)
SAMPLED, GREEDY = Request((1,), SamplingParams(temperature=1.0)), Request((1,))


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[HttpEngine]:
    with run_engine(model=MODEL) as engine:
        yield engine


@pytest.fixture
def _few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    few = dict(list(probe.PROMPTS.items())[:4])
    monkeypatch.setattr(probe, "PROMPTS", few)


def replica_of(engine: HttpEngine) -> Replica:
    num = engine.num_spec_tokens
    return Replica(engine.url, VllmDialect(), num, model="scripted", state=ReplicaState.UP)


def gets_requests(replica: Replica) -> bool:
    return replica.is_usable


def examine(*replicas: Replica) -> Verdict | None:
    """Examine the first replica beside the others."""

    async def run() -> Verdict | None:
        async with make_http() as http:
            exchanger = Exchanger(http, TOKENIZER.vocab_size)
            return await Probing(replicas, exchanger, TOKENIZER).examine(replicas[0])

    return asyncio.run(run())


@contextlib.contextmanager
def drafting_engine(fault: str | None = None, **settings: Any) -> Iterator[HttpEngine]:
    def choose(number: int) -> Fault | None:
        return None if fault is None else Fault(fault)

    with run_engine(model=MODEL, num_spec_tokens=3, choose_fault=choose, **settings) as engine:
        yield engine


def test_an_honest_engine_gets_all_requests(plain_engine: HttpEngine) -> None:
    with drafting_engine() as engine:
        replica = replica_of(engine)
        verdict = examine(replica, replica_of(plain_engine))
    assert verdict is not None
    assert replica.verdict is verdict
    found = {one.aspect: one.outcome for one in verdict.judgements}
    # The scripted engines follow no schema, the plain one neither: nobody is to blame.
    assert found.pop(Aspect.JSON) is found.pop(Aspect.GRAMMAR) is Outcome.NOT_CHECKED
    assert set(found.values()) == {Outcome.PASSED}, verdict
    assert replica.is_usable
    assert not verdict.blocks(SAMPLED)


@pytest.mark.usefixtures("_few_questions")
def test_a_wrong_sampler_loses_sampled_requests_only(
    plain_engine: HttpEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with drafting_engine("uniform") as engine:
        replica = replica_of(engine)
        verdict = examine(replica, replica_of(plain_engine))
    assert verdict is not None
    assert "Mean log-probability at temperature 0.7" in str(verdict.blocks(SAMPLED))
    assert verdict.blocks(GREEDY) is None
    errors = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert [replica.name in line.getMessage() for line in errors] == [True]


@pytest.mark.usefixtures("_few_questions")
def test_an_engine_that_mixes_requests_up_gets_greedy_ones_only(plain_engine: HttpEngine) -> None:
    """vLLM's CPU build writes wrong greedy text as soon as another request is sampled."""
    with drafting_engine("mixed", token_s=0.001) as engine:
        verdict = examine(replica_of(engine), replica_of(plain_engine))
    assert verdict is not None
    assert "answers are others beside sampled ones" in str(verdict.blocks(SAMPLED))
    assert verdict.blocks(GREEDY) is None


@pytest.mark.usefixtures("_few_questions")
def test_a_replica_with_known_faults_is_probed_alone(
    plain_engine: HttpEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy answers of clients were cut and wrong whenever the probe sampled beside them."""
    monkeypatch.setattr(probing, "FIRST_AGAIN_S", 0.01)
    failed = Verdict(0.0, (Judgement(Aspect.SAMPLED, Outcome.FAILED, "Seen."),))
    with drafting_engine("mixed") as engine:
        replicas = [replica_of(engine), replica_of(plain_engine)]
        drafting, plain = replicas
        drafting.verdict, drafting.num_in_flight = failed, 1
        plain.state = ReplicaState.DOWN

        async def run() -> None:
            async with make_http() as http:
                exchanger = Exchanger(http, TOKENIZER.vocab_size)
                probing_ = Probing(replicas, exchanger, TOKENIZER)
                watching = asyncio.create_task(probing_.watch(drafting))
                await asyncio.sleep(0.5)
                assert gets_requests(drafting), "nobody else could take its requests"
                plain.state = ReplicaState.UP
                await asyncio.sleep(0.5)
                assert not gets_requests(drafting)
                assert engine.num_requests == 0, "an answer is still under way"
                plain.state = ReplicaState.DOWN
                await asyncio.sleep(0.5)
                assert gets_requests(drafting), "it is needed again"
                plain.state, drafting.num_in_flight = ReplicaState.UP, 0
                async with asyncio.timeout(30):
                    while drafting.verdict is failed:
                        assert not (engine.num_requests and gets_requests(drafting))
                        await asyncio.sleep(0.01)
                    while not gets_requests(drafting):
                        await asyncio.sleep(0.01)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

        asyncio.run(run())


@pytest.mark.usefixtures("_few_questions")
@pytest.mark.parametrize("fault", ["lie", "cut", "garbage", "beyond_limit"])
def test_an_engine_that_garbles_gets_nothing(fault: str, plain_engine: HttpEngine) -> None:
    with drafting_engine(fault) as engine:
        replica = replica_of(engine)
        verdict = examine(replica, replica_of(plain_engine))
    assert verdict is not None
    assert verdict.blocks(GREEDY) is not None
    assert not replica.is_usable


def test_a_replica_that_goes_down_meanwhile_is_not_judged() -> None:
    """What a dying engine says is no evidence about the one that takes its place."""
    with drafting_engine() as engine:
        replica = replica_of(engine)
        replica.state = ReplicaState.DOWN
        assert examine(replica) is None
    assert replica.verdict is None


async def follow(replicas: list[Replica], options: ProbeOptions, until: Callable[[], bool]) -> None:
    """Watch the first replica until something holds."""
    async with make_http() as http:
        exchanger = Exchanger(http, TOKENIZER.vocab_size)
        watching = asyncio.create_task(
            Probing(replicas, exchanger, TOKENIZER, options).watch(replicas[0])
        )
        async with asyncio.timeout(30):
            while not until():
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def test_replicas_are_examined_again_when_it_is_time(plain_engine: HttpEngine) -> None:
    with drafting_engine() as engine:
        replicas = [replica_of(engine), replica_of(plain_engine)]
        verdicts = set()

        def has_two() -> bool:
            verdicts.add(id(replicas[0].verdict))
            return len(verdicts) >= 3  # none, the first, the second

        asyncio.run(follow(replicas, ProbeOptions(every_s=0.01, num_tokens=400), has_two))


def test_a_replica_that_came_back_is_examined_anew(plain_engine: HttpEngine) -> None:
    with drafting_engine() as engine:
        replicas = [replica_of(engine), replica_of(plain_engine)]
        seen: list[Verdict] = []

        def came_back() -> bool:
            verdict = replicas[0].verdict
            if verdict is not None and verdict not in seen:
                seen.append(verdict)
                replicas[0].verdict = None  # as health does
            return len(seen) == 2

        asyncio.run(follow(replicas, ProbeOptions(num_tokens=400), came_back))


@pytest.mark.usefixtures("_few_questions")
def test_a_failure_is_looked_at_again_before_the_hour(
    plain_engine: HttpEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that one bad moment condemned must not stand idle for an hour."""
    monkeypatch.setattr(probing, "FIRST_AGAIN_S", 0.01)
    with drafting_engine("cut") as engine:
        replicas = [replica_of(engine), replica_of(plain_engine)]

        def is_clear() -> bool:
            verdict = replicas[0].verdict
            if verdict is not None and verdict.failed:
                engine.choose_fault = lambda number: None
            return verdict is not None and not verdict.failed

        asyncio.run(follow(replicas, ProbeOptions(num_tokens=400), is_clear))


def test_without_a_probe_all_are_trusted_and_said_to_be_unchecked() -> None:
    with drafting_engine("uniform") as engine:
        replica = replica_of(engine)
        unprobed = ProbeOptions(every_s=None)
        asyncio.run(follow([replica], unprobed, lambda: replica.verdict is not None))
        assert engine.num_requests == 0
    assert replica.is_usable
    assert replica.verdict is not None
    assert {one.outcome for one in replica.verdict.judgements} == {Outcome.NOT_CHECKED}
