"""The device runner beside the step runner: same drafts, same books, on the same op set."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.decode.round import RoundResult
from headlong.decode.step_runner import StepRunner
from headlong.drafters.head_drafter import RecursiveDrafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.heads.head_weights import HeadKind
from headlong.models.transformer import Backbone

torch = pytest.importorskip("torch")
from device_engines import (  # noqa: E402  # needs torch
    device_drafters,
    device_engine,
    run_all,
    tiny_on_device,
)
from headlong.decode.device.round import DeviceRound, RoundResults, RoundShape  # noqa: E402
from headlong.decode.device.runner import DeviceRunner  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A tiny random model whose blocks are those of a GPU."""
    return tiny_on_device(tmp_path_factory.mktemp("model"), request.param)


def recorded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[RoundResult]]:
    """Record what every round of an engine's runner does."""
    rounds: list[list[RoundResult]] = []
    make: Callable[..., list[RoundResult]] = engine.runner.round

    def make_and_record(*arguments: Any) -> list[RoundResult]:
        rounds.append(make(*arguments))
        return rounds[-1]

    monkeypatch.setattr(type(engine.runner), "round", lambda _, *rest: make_and_record(*rest))
    return rounds


def drafts_of(rounds: Sequence[Sequence[RoundResult]]) -> list[tuple[int, ...]]:
    """Return all drafts, in order."""
    return [result.draft.token_ids for results in rounds for result in results]


@pytest.mark.parametrize("kind", ["nextn", "eagle3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_head_drafts_what_it_drafts_step_by_step(
    backbone: Backbone, kind: HeadKind, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind prompts of one token, and where the prompt was read in pieces."""
    drafters = device_drafters(kind, backbone, looks_up=False)
    assert drafters.head is not None
    rng = random.Random(kind)
    for num_prompt, chunk in ((1, 256), (40, 7), (90, 256)):
        prompt = tuple(rng.randrange(backbone.config.vocab_size) for _ in range(num_prompt))
        sampling = SamplingParams(temperature=temperature, top_p=0.9, seed=7)
        request = Request(prompt, sampling, StopParams(30, ignore_eos=True), mtp=4)
        limits = EngineLimits(prefill_rows_per_step=chunk)
        step = Engine(StepRunner(backbone, RecursiveDrafter(drafters.head)), limits)
        with monkeypatch.context() as patch:
            wanted = recorded(step, patch)
            run_all(step, [request])
        with monkeypatch.context() as patch:
            device = device_engine(backbone, drafters, limits, begins_ahead=False)
            found = recorded(device, patch)
            run_all(device, [request])
        assert drafts_of(found) == drafts_of(wanted)
        assert sum(map(len, drafts_of(found))) > 20


def test_only_what_the_host_picks_from_comes_back(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards answers of many streams that wait for logits which one of them asked for."""
    engine = device_engine(backbone, device_drafters(None, backbone))
    assert isinstance(engine.runner, DeviceRunner)
    shapes: list[RoundShape] = []
    make = DeviceRound.__call__

    def watched(self: DeviceRound, shape: RoundShape, numbers: Any) -> RoundResults:
        results = make(self, shape, numbers)
        shapes.append(shape)
        assert (0 if results.logits is None else len(results.logits)) == shape.shown
        return results

    monkeypatch.setattr(DeviceRound, "__call__", watched)
    stopping = StopParams(8, ignore_eos=True)
    wanted = [None, None, 2, None, 1, None, None, 3]
    answers = run_all(
        engine,
        [
            Request((5, 6, 7 + i), SamplingParams(logprobs=num), stopping, "off")
            for i, num in enumerate(wanted)
        ],
    )
    assert {(shape.lanes, shape.shown) for shape in shapes} == {(8, 4)}
    for answer, num in zip(answers, wanted, strict=True):
        found = {emitted.pick.logprob is not None for emitted in answer.outbox}
        assert found == {num is not None}


def test_prompts_are_scored_by_the_blocks_of_rounds(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards an LM head of levels, which the plain op set would unpack at the end of each."""
    monkeypatch.setattr(Backbone, "logits", lambda *_: pytest.fail("the plain op set scores"))
    engine = device_engine(backbone, device_drafters(None, backbone))
    stopping = StopParams(2, ignore_eos=True)
    (answer,) = run_all(engine, [Request((5, 6, 7), SamplingParams(), stopping, prompt_logprobs=1)])
    assert len(answer.outbox) == 2
    assert len(answer.sequence.prompt_logprobs) == 2
