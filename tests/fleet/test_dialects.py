"""The dialects by name, and what the documentation says that they can do."""

from pathlib import Path

import pytest

from headlong.errors import RequestError
from headlong.fleet.dialect import Feature
from headlong.fleet.dialects import DIALECTS, make_dialect
from tiny_text import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"

ROWS = {
    "token ids as input and output": Feature.TOKEN_IDS,
    "JSON schemas": Feature.JSON_SCHEMA,
    "tools, patterns, choices, reasoning before JSON": Feature.GRAMMAR,
    "log-probabilities": Feature.LOGPROBS,
    "log-probabilities of the prompt": Feature.PROMPT_LOGPROBS,
    "drafts counted per answer": Feature.DRAFT_STATS,
    "`presence_penalty`, `frequency_penalty`": Feature.PENALTIES,
    **{
        f"`{one}`": one
        for one in (
            Feature.SEED,
            Feature.TOP_K,
            Feature.MIN_P,
            Feature.LOGIT_BIAS,
            Feature.REPETITION_PENALTY,
            Feature.MIN_TOKENS,
            Feature.IGNORE_EOS,
            Feature.CACHE_SALT,
        )
    },
}
"""Rows of the page's table."""

NOWHERE = {Feature.EMBEDDINGS}


def test_dialects_bear_the_names_they_are_called_by() -> None:
    for name in DIALECTS:
        assert make_dialect(name, TOKENIZER).name == name
    with pytest.raises(RequestError, match="vllm, sglang"):
        make_dialect("llamacpp", TOKENIZER)


def test_the_page_says_what_each_engine_can_do() -> None:
    table = PAGE.read_text().partition("## What each engine can do")[2].partition("\n\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    told = {row[0]: row[1:] for row in rows[2:]}
    assert told.keys() == ROWS.keys()
    assert set(ROWS.values()) | NOWHERE == set(Feature)
    names = ("vllm", "sglang", "llama.cpp", "ollama", "openai")
    for column, name in enumerate(names):
        dialect = make_dialect(name, TOKENIZER)
        assert not NOWHERE & dialect.features
        for label, feature in ROWS.items():
            cell = told[label][column].replace("the same", told[label][column - 1])
            can = not cell.startswith("no")
            assert (feature in dialect.features) == can, f"{name}: {label}"
            drafts = can and "without drafts" not in cell
            assert (feature in dialect.features_with_drafts) == drafts, f"{name}: {label}"
