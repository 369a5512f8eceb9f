"""vLLM and llama.cpp themselves, with the head that is exported for them.

Slow, and only where HEADLONG_PEERS names the folder that `bench/setup_peers.sh` has made:
`HEADLONG_PEERS=FOLDER python -m pytest -m slow tests/fleet/test_real_engines.py`.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from headlong.decode.request import Request
from headlong.engine.client import TokenStream
from headlong.export.exporter import ExportRequest, export
from headlong.fleet.dialect import Delta, Dialect
from headlong.fleet.exchange import Exchanger, make_http
from headlong.fleet.llama_cpp_dialect import LlamaCppDialect
from headlong.fleet.replica import Replica
from headlong.fleet.vllm_dialect import VllmDialect
from headlong.llm import LLM, make_request
from headlong.text.grammar import json_schema_grammar
from headlong.weights.progress import LogProgress
from peer_engines import K, llama_server, peers_folder, vllm_server
from server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Count from 1 to 20.",
    "What is the capital of France?",
    "请用三句话介绍中国的长城。",
)


@dataclass(frozen=True)
class Exported:
    """What was exported for vLLM, loaded here."""

    backbone: Path
    head: Path
    llm: LLM

    def request(self, question: str, **options: object) -> Request:
        """Return a question as a greedy request."""
        ids = self.llm.encode([{"role": "user", "content": question}])
        asked = {"temperature": 0.0, "max_tokens": 48, "mtp": K, "seed": 1, **options}
        return make_request(ids, self.llm.tokenizer.eos_ids, asked)  # type: ignore[arg-type]

    def answer(self, request: Request) -> TokenStream:
        """Return the whole answer of our own engine."""
        stream = self.llm.engine.submit(request)
        while stream.finish_reason is None:
            self.llm.engine.step()
        return stream


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The default model and its head, as vLLM reads them, in float32."""
    peers_folder()
    out = tmp_path_factory.mktemp("exported") / "vllm"
    export(ExportRequest("vllm", out, has_backbone=True, float_type="float32"), LogProgress())
    backbone, head = out / "backbone", out / "head"
    llm = LLM.load(backbone, head=head, drafter="head", quant="f32", head_quant="f32")
    return Exported(backbone, head, llm)


@pytest.fixture(scope="module")
def plain_vllm(exported: Exported) -> Iterator[str]:
    """The URL of a vLLM without drafts."""
    with vllm_server(exported.backbone) as url:
        yield url


@pytest.fixture(scope="module")
def speculating_vllm(exported: Exported) -> Iterator[str]:
    """The URL of a vLLM that drafts with the exported head."""
    with vllm_server(exported.backbone, exported.head) as url:
        yield url


def ask(url: str, dialect: Dialect, num_draft_tokens: int, *requests: Request) -> list[Delta]:
    """Return an engine's whole answers, one after another."""

    async def run() -> list[Delta]:
        async with make_http() as http:
            exchanger = Exchanger(http, vocab_size=49152)
            replica = Replica(url, dialect, num_draft_tokens)
            return [await exchanger.ask(replica, request) for request in requests]

    return asyncio.run(run())


def test_vllm_says_and_drafts_what_we_do(exported: Exported, speculating_vllm: str) -> None:
    requests = [exported.request(question) for question in QUESTIONS]
    for request, answer in zip(
        requests, ask(speculating_vllm, VllmDialect(), K, *requests), strict=True
    ):
        ours = exported.answer(request)
        assert answer.token_ids == tuple(one.pick.token_id for one in ours.take())
        assert answer.stats is not None
        assert answer.stats.rounds == ours.report().stats.rounds


def test_vllm_tells_the_same_logprobs_while_it_drafts(
    exported: Exported, speculating_vllm: str
) -> None:
    """The oracle's: native attention in 16-bit integers is up to 2e-3 from it."""
    request = exported.request(QUESTIONS[0], logprobs=2)
    (answer,) = ask(speculating_vllm, VllmDialect(), K, request)
    llm = LLM.load(exported.backbone, drafter="none", quant="f32", backend="numpy")
    truth = Exported(exported.backbone, exported.head, llm).answer(request)
    for theirs, ours in zip(answer.logprobs, truth.take(), strict=True):
        assert ours.pick.logprob is not None
        assert theirs.token_id == ours.pick.token_id
        assert theirs.logprob == pytest.approx(ours.pick.logprob.logprob, abs=1e-3)


@pytest.fixture(scope="module")
def front(plain_vllm: str, speculating_vllm: str) -> Iterator[str]:
    """The URL of a front over both, as soon as the one that drafts has been probed."""
    pools = ("--engine-url", plain_vllm, "--speculative-url", f"{speculating_vllm}={K}")
    with ServerProcess("--engine", "vllm", *pools) as server:
        deadline_s = time.monotonic() + 600
        while time.monotonic() < deadline_s:
            replicas = httpx.get(f"{server.url}/health").json()["replicas"]
            if all(one["takes_requests"] for one in replicas):
                break
            time.sleep(1)
        yield server.url


def chat(front: str, **options: object) -> dict[str, Any]:
    """Return the front's whole answer to a question."""
    messages = [{"role": "user", "content": QUESTIONS[1]}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, **options}
    answer = httpx.post(f"{front}/v1/chat/completions", json=body, timeout=300)
    return dict(answer.raise_for_status().json())


def test_requests_go_where_their_mtp_says(front: str) -> None:
    plain, drafted = chat(front, mtp="off"), chat(front, mtp=K)
    assert plain["choices"] == drafted["choices"]
    assert plain["mtp"]["num_drafted"] == 0
    assert drafted["mtp"]["num_accepted"] > 0
    assert drafted["mtp"]["off_reason"] is None


def test_sampling_that_failed_the_probe_gets_no_drafts(front: str) -> None:
    """vLLM's CPU build writes nonsense at temperatures above 0 while it drafts."""
    mtp = chat(front, mtp=K, temperature=0.7)["mtp"]
    assert mtp["num_drafted"] == 0
    assert "sampled text with drafts failed the probe" in mtp["off_reason"]


def test_what_an_engine_lacks_while_it_drafts_goes_to_a_plain_one(front: str) -> None:
    mtp = chat(front, mtp=K, logit_bias={"28": -100})["mtp"]
    assert mtp["num_drafted"] == 0
    assert "logit_bias" in mtp["off_reason"]


def test_llama_cpp_keeps_no_connection_behind_a_stream(
    exported: Exported, default_model_path: Path
) -> None:
    """It promises to: a request on a connection it is about to close was lost."""
    dialect = LlamaCppDialect(exported.llm.tokenizer)
    request = exported.request(QUESTIONS[1], max_tokens=1)
    with llama_server(default_model_path) as url:
        answers = ask(url, dialect, 0, *[request] * 100)
    assert len({answer.token_ids for answer in answers}) == 1


def test_llama_cpp_keeps_to_a_schema_in_tokens_of_its_own(
    exported: Exported, default_model_path: Path
) -> None:
    """It cuts keys into other tokens than our grammar would: they were refused."""
    tokenizer = exported.llm.tokenizer
    properties = {"colour": {"enum": ["red", "blue"]}, "ready": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["colour", "ready"]}
    grammar = json_schema_grammar(tokenizer, {**schema, "additionalProperties": False})
    requests = [
        replace(exported.request(QUESTIONS[0], temperature=1.0, seed=seed), grammar=grammar)
        for seed in range(8)
    ]
    with llama_server(default_model_path) as url:
        answers = ask(url, LlamaCppDialect(tokenizer), 0, *requests)
    for answer in answers:
        assert json.loads(tokenizer.decode(answer.token_ids)).keys() == properties.keys()
