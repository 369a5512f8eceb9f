"""Exactness on real model files with the heads that are shipped for them; slow, they are pulled."""

import pytest

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.llm import LLM
from headlong.weights.head_folders import SHIPPED

MODELS = sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())
MODES: tuple[MtpMode, ...] = ("off", "auto", 1, 3, 5, 8)
PROMPTS = (
    'def binary_search(items, key):\n    """Return the index of key, or -1."""\n',
    "Rename `total` to `sum_of_prices` in this code:\n\ndef add(prices):\n    total = 0\n"
    "    for price in prices:\n        total += price\n    return total\n\nRenamed:\n\ndef add(",
    '{"name": "Ada", "born": 1815, "languages": ["',
    "Explain in a few words why the sky is blue.\n",
)


def tokens(llm: LLM, temperature: float, modes: tuple[MtpMode, ...]) -> list[list[int]]:
    """Answer every prompt once in every mode, all in one batch that honours a fixed K."""
    engine = Engine.for_model(llm.backbone, llm.drafter, EngineLimits(honour_k=True))
    running = [
        engine.submit(
            Request(
                tuple(llm.tokenizer.encode(prompt)),
                SamplingParams(temperature=temperature, seed=seed),
                StopParams(max_tokens=64),
                mode,
                llm.tokenizer.eos_ids,
            )
        )
        for mode in modes
        for seed, prompt in enumerate(PROMPTS)
    ]
    while any(one.finish_reason is None for one in running):
        engine.step()
    return [[emitted.pick.token_id for emitted in one.take()] for one in running]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_all_modes_equals_plain_decoding(name: str) -> None:
    llm = LLM.load(name)
    assert llm.head is not None, "the shipped head is found by itself"
    for temperature in (0.0, 0.7):
        plain = tokens(llm, temperature, ("off",))
        assert tokens(llm, temperature, MODES) == plain * len(MODES)
