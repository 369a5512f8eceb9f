"""Whole rounds and whole answers on this card: what engines give, host included.

In:  a model of a file, or a random one of a published shape whose weights are made on the card.
Out: figures, and what they say of the goals.
"""

import gc
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cuda_report import Report, say
from cuda_shapes import LARGE, SMALL, Model, Shape
from cuda_timing import CONTEXT, make_ops

from headlong.bench.pass_cost import PassPlan, make_stand_in_head
from headlong.bench.prompt_sets import read_prompt_set
from headlong.bench.round_cost import measure_rounds
from headlong.config import MtpMode, QuantName, SamplingParams, StopParams
from headlong.decode.choose_runner import choose_runner
from headlong.decode.device.runner import DeviceRunner
from headlong.decode.request import Request
from headlong.decode.runner import RunnerBounds
from headlong.drafters.drafter import Drafter
from headlong.drafters.head_drafter import RecursiveDrafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.llm import LLM, make_request
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone

TASKS = (("code", 0.0), ("chat", 0.0), ("creative", 0.7))
PREFILL = 2048


@dataclass(frozen=True)
class Lengths:
    """How much is measured."""

    context: int = CONTEXT
    prefill: int = PREFILL
    rounds: int = 30
    tokens: int = 384
    streams: int = 64
    asked: int = 6
    """Prompts of each task."""
    answer: int = 128
    """Tokens of their answers at most."""


class Subject:
    """The small model that rounds and answers are measured of, loaded when first asked for."""

    def __init__(
        self,
        model: str | None,
        lengths: Lengths,
        shape: Shape = SMALL,
        quant: QuantName = "bf16",
    ) -> None:
        self._model, self._shape, self._quant = model, shape, quant
        self.lengths = lengths

    @cached_property
    def llm(self) -> LLM | None:
        """The model with its tokenizer; None where it is a random one."""
        if self._model is None:
            return None
        llm = LLM.load(self._model, backend="cuda", quant=self._quant)
        say(f"  {llm.model_path.name}: {llm.engine.backend}")
        return llm

    @cached_property
    def pair(self) -> tuple[Backbone, Drafter]:
        """The backbone, and who drafts for it."""
        if self.llm is not None:
            assert self.llm.drafter is not None
            return self.llm.backbone, self.llm.drafter
        backbone = random_backbone(self._shape, "bf16")
        return backbone, RecursiveDrafter(make_stand_in_head(backbone))

    def engine(self, num_streams: int) -> Engine:
        """Return an engine for so many streams."""
        limits = EngineLimits(
            max_running=num_streams,
            rows_per_step=9 * num_streams,
            prefill_rows_per_step=self.lengths.prefill,
        )
        return Engine.for_model(*self.pair, limits)


def random_backbone(shape: Shape, kind: str) -> Backbone:
    """Return a random model whose weights are made where they are used."""
    ops = make_ops()
    model = Model(ops, shape, kind)
    config = ModelConfig(
        "llama",
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocabulary,
        context_length=8192,
        norm_eps=1e-5,
        rope_theta=1e4,
    )
    table = model.lm_head.weight
    return Backbone(config, ops, table, tuple(model.layers), model.final_norm, model.lm_head)


def runner_of(backbone: Backbone, drafter: Drafter | None, num_streams: int = 1) -> DeviceRunner:
    """Return what makes rounds; refuse a model that does not get whole rounds here."""
    runner = choose_runner(backbone, drafter, RunnerBounds(max_running=num_streams + 3))
    if not isinstance(runner, DeviceRunner):
        raise TypeError(f"no whole rounds: {runner.backend}")
    return runner


def measure_small_rounds(subject: Subject, report: Report) -> dict[str, Any]:
    """Measure rounds of the small model: rows, draft steps, what the host adds."""
    found = _rounds(runner_of(*subject.pair), subject.lengths)
    rows = found["rows_in_a_row"]
    report.reach("rows_135M", rows[8] / rows[1])
    if found["draft_step_ms"] is not None:
        report.reach("draft_step", found["draft_step_ms"] / rows[1])
    return found


def measure_large_rounds(
    report: Report, ceilings: dict[str, float], lengths: Lengths, shape: Shape = LARGE
) -> dict[str, Any]:
    """Measure rounds of the large shape in 16 and in 4 bits."""
    found: dict[str, Any] = {}
    for kind in ("bf16", "q4"):
        gc.collect()
        backbone = random_backbone(shape, kind)
        found[kind] = _rounds(runner_of(backbone, None), lengths)
        rows = found[kind]["rows_in_a_row"]
        if kind == "bf16":
            share = found[kind]["bytes_per_pass"] / rows[1] * 1e3 / ceilings["bandwidth"]
            report.reach("bandwidth", share)
            report.reach("rows_8B", rows[8] / rows[1])
            matrices = [one.weight for layer in backbone.layers for one in layer.linears]
            flops = 2 * sum(one.num_outputs * one.num_inputs for one in matrices)
            report.reach("prefill", flops * found[kind]["prefill_tokens_per_s"] / ceilings["rate"])
        del backbone
    ratio = found["bf16"]["rows_in_a_row"][1] / found["q4"]["rows_in_a_row"][1]
    report.reach("levels", ratio)
    return found


def _rounds(runner: DeviceRunner, lengths: Lengths) -> dict[str, Any]:
    plan = PassPlan((1, 2, 4, 8), lengths.context, lengths.prefill, lengths.rounds)
    found = measure_rounds(runner, plan).to_dict()
    rows = ", ".join(f"{n}: {ms:.3f}" for n, ms in found["rows_in_a_row"].items())
    step = found["draft_step_ms"]
    say(
        f"  {runner.backend}\n  rounds over rows, ms: {rows}; draft step "
        f"{0.0 if step is None else step:.4f} ms, a sampled pick {found['pick_ms']:.4f} ms more, "
        f"host {found['host_share']:.1%}, prefill {found['prefill_tokens_per_s']:.0f} tokens/s"
    )
    return found


def measure_plain(subject: Subject, report: Report, rounds: dict[str, Any]) -> dict[str, Any]:
    """Time plain answers of one stream by the wall clock, and what the GPU waits for in them."""
    engine, lengths = subject.engine(1), subject.lengths
    rates = []
    for seed in range(4):
        (request,) = _random_requests(engine, 1, lengths.context, lengths.tokens, seed)
        rates.append(_rate(engine, [request]))
    rate = sorted(rates[1:])[1]  # the first one prepares
    report.reach("plain", rate)
    on_gpu_ms = rounds.get("rows_in_a_row", {}).get(1)
    if on_gpu_ms is not None:
        report.reach("host", max(0.0, 1 - on_gpu_ms * rate / 1e3))
    return {"tokens_per_s": rates}


def measure_streams(subject: Subject, report: Report) -> dict[str, Any]:
    """Time many plain streams at once against one."""
    lengths, rates = subject.lengths, {}
    for count in (1, lengths.streams):
        engine = subject.engine(count)
        asked = [
            _random_requests(engine, count, lengths.context, lengths.tokens // 2, seed)
            for seed in range(2)
        ]
        rates[count] = [_rate(engine, requests) for requests in asked][-1]
    report.reach("streams", rates[lengths.streams] / rates[1])
    return rates


def measure_tasks(subject: Subject, report: Report) -> dict[str, Any]:
    """Time answers to the built-in tasks with MTP off and auto, one stream."""
    found: dict[str, Any] = {}
    engine = subject.engine(1)
    for task, temperature in TASKS:
        rates = {"off": 0.0, "auto": 0.0}
        for turn in range(2):  # the first one prepares
            for mtp in rates:
                rates[mtp] = _task_rate(subject, engine, task, temperature, mtp, turn)
        found[task] = rates
        say(f"  {task}: off {rates['off']:.0f}, auto {rates['auto']:.0f} tokens/s")
        report.reach(task, rates["auto"] / rates["off"])
        if task == "code":
            report.reach("auto_code", rates["auto"])
    return found


def measure_auto_streams(subject: Subject, report: Report) -> dict[str, Any]:
    """Time the tasks by many streams, with MTP off and auto."""
    count, rates = subject.lengths.streams, {}
    for mtp in ("off", "auto"):
        engine = subject.engine(count)
        for turn in range(2):
            requests = _task_requests(subject, mtp, turn, 2 * count)
            rates[mtp] = _rate(engine, requests, count)
    report.reach("auto_64", rates["auto"] / rates["off"])
    return rates


def _task_rate(
    subject: Subject, engine: Engine, task: str, temperature: float, mtp: str, turn: int
) -> float:
    requests = _task_requests(subject, mtp, turn, subject.lengths.asked, task, temperature)
    seconds = [(_timed(engine, [one], 1)) for one in requests]
    return sum(tokens for tokens, _ in seconds) / sum(took for _, took in seconds)


def _task_requests(
    subject: Subject, mtp: str, turn: int, count: int, task: str = "", temperature: float = 0.0
) -> list[Request]:
    """Return requests of the built-in tasks; those of another turn have other seeds and salts."""
    llm = subject.llm
    assert llm is not None, "a random model answers no task"
    asked = [one for one in read_prompt_set([], str).prompts if task in ("", one.task)]
    mode: MtpMode = "off" if mtp == "off" else "auto"
    return [
        make_request(
            llm.encode(asked[i % len(asked)].messages),
            llm.tokenizer.eos_ids,
            {"temperature": temperature, "seed": 100 * turn + i, "mtp": mode}
            | {"max_tokens": subject.lengths.answer},
        )
        for i in range(count)
    ]


def _random_requests(
    engine: Engine, count: int, num_rows: int, num_tokens: int, seed: int
) -> list[Request]:
    """Return plain requests of random tokens that none shares."""
    rng = np.random.default_rng([seed, count])
    stopping = StopParams(num_tokens, ignore_eos=True)
    return [
        Request(
            tuple(rng.integers(0, engine.vocab_size, num_rows).tolist()),
            SamplingParams(seed=seed),
            stopping,
            mtp="off",
        )
        for _ in range(count)
    ]


def _rate(engine: Engine, requests: list[Request], num_streams: int | None = None) -> float:
    tokens, seconds = _timed(engine, requests, num_streams or len(requests))
    return tokens / seconds


def _timed(engine: Engine, requests: list[Request], num_streams: int) -> tuple[int, float]:
    """Return the tokens of answers, and the seconds from when all first streams have one."""
    waiting, running = list(reversed(requests)), list[Running]()
    num_before, began_s = 0, 0.0
    ended: list[Running] = []
    while waiting or running:
        while waiting and len(running) < num_streams:
            running.append(engine.submit(waiting.pop()))
        engine.step()
        ended += [one for one in running if one.finish_reason is not None]
        running = [one for one in running if one.finish_reason is None]
        if not began_s and all(one.num_emitted for one in running):
            began_s, num_before = time.perf_counter(), sum(r.num_emitted for r in running + ended)
    seconds = time.perf_counter() - began_s
    for one in ended:
        if one.error is not None:
            raise one.error
    return sum(one.num_emitted for one in ended) - num_before, seconds
