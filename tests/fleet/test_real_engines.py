"""vLLM and llama.cpp themselves, with the head that is exported for them.

Slow, and only where HEADLONG_PEERS names the folder that `bench/setup_peers.sh` has made:
`HEADLONG_PEERS=FOLDER python -m pytest -m slow tests/fleet/test_real_engines.py`.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
from headlong.weights.progress import LogProgress
from peer_engines import K, llama_server, peers_folder, vllm_server

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
    request = exported.request(QUESTIONS[0], logprobs=2)
    (answer,) = ask(speculating_vllm, VllmDialect(), K, request)
    for theirs, ours in zip(answer.logprobs, exported.answer(request).take(), strict=True):
        assert ours.pick.logprob is not None
        assert theirs.token_id == ours.pick.token_id
        assert theirs.logprob == pytest.approx(ours.pick.logprob.logprob, abs=1e-3)


def test_llama_cpp_keeps_no_connection_behind_a_stream(
    exported: Exported, default_model_path: Path
) -> None:
    """It promises to: a request on a connection it is about to close was lost."""
    dialect = LlamaCppDialect(exported.llm.tokenizer)
    request = exported.request(QUESTIONS[1], max_tokens=1)
    with llama_server(default_model_path) as url:
        answers = ask(url, dialect, 0, *[request] * 100)
    assert len({answer.token_ids for answer in answers}) == 1
