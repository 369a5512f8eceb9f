"""llama.cpp itself drafts with what is exported for it.

Slow, and only where HEADLONG_PEERS names the folder that `bench/setup_peers.sh` has made:
`HEADLONG_PEERS=FOLDER python -m pytest -m slow tests/export/test_in_llama_cpp.py`.
"""

from pathlib import Path

import httpx
import pytest

from headlong.export.exporter import ExportRequest, export
from headlong.llm import LLM
from headlong.weights.progress import LogProgress
from peer_engines import K, llama_server, peers_folder

QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of France?",
    "Count from 1 to 20.",
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_llama_cpp_drafts_as_we_do(tmp_path: Path) -> None:
    """In float32: where the texts are the same, the rounds are."""
    peers_folder()
    for target in ("llama.cpp", "vllm"):
        out = tmp_path / target
        export(ExportRequest(target, out, has_backbone=True, float_type="float32"), LogProgress())
    backbone, head = tmp_path / "vllm/backbone", tmp_path / "llama.cpp/head.gguf"
    llm = LLM.load(backbone, head=head, drafter="head", quant="f32", head_quant="f32")
    num_same = 0
    with llama_server(tmp_path / "llama.cpp/backbone.gguf", head) as url:
        for question in QUESTIONS:
            ids = llm.encode([{"role": "user", "content": question}])
            ours = llm.generate(ids, mtp=K, max_tokens=40, temperature=0)
            body = {"prompt": ids, "n_predict": 40, "temperature": 0, "return_tokens": True}
            theirs = httpx.post(f"{url}/completion", json=body, timeout=600).json()
            if tuple(theirs["tokens"]) == ours.token_ids:
                told = theirs["timings"]
                # Of its tokens, the first has no round, and every one not drafted ends one.
                rounds = told["predicted_n"] - 1 - told["draft_n_accepted"]
                assert rounds == ours.stats.rounds
                num_same += 1
    assert num_same >= len(QUESTIONS) - 1
