"""Engines that know no token ids: OpenAI's API and Ollama's."""

import json

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.errors import EngineError, GarbledError
from headlong.fleet.dialect import Feature
from headlong.fleet.ollama_dialect import OllamaDialect
from headlong.fleet.openai_dialect import OpenAIDialect
from recorded_answers import read_all
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer

TOKENIZER = byte_level_tokenizer()
OPENAI, OLLAMA = OpenAIDialect(TOKENIZER), OllamaDialect(TOKENIZER)
PROMPT = TOKENIZER.encode("<|im_start|>user\nhello<|im_end|>\n")
REQUEST = Request(tuple(PROMPT), stopping=StopParams(max_tokens=5))


def test_prompts_keep_their_control_tokens() -> None:
    text = "<|im_start|>user\nhello<|im_end|>\n"
    assert OPENAI.write(REQUEST, "m").body["prompt"] == text
    assert OLLAMA.write(REQUEST, "m").body["prompt"] == text
    assert OLLAMA.write(REQUEST, "m").body["raw"] is True


def test_what_the_engine_adds_is_not_sent_twice() -> None:
    tokenizer = sentencepiece_tokenizer()
    request = Request(tuple(tokenizer.encode("ab")))
    assert request.prompt_ids[0] == tokenizer.bos_id
    prompt = OpenAIDialect(tokenizer).write(request, "m").body["prompt"]
    assert "<s>" not in prompt


def test_answers_keep_every_letter() -> None:
    pieces = ["hell", "o <|im_end|> ", "", "é漢🦜"]
    events = [json.dumps({"choices": [{"text": text}]}) for text in pieces]
    last = json.dumps({"choices": [{"text": "", "finish_reason": "stop"}]})
    answer = read_all(OPENAI.reader(REQUEST), [*events, last, "[DONE]"])
    assert TOKENIZER.decode(answer.token_ids, skip_special=True) == "".join(pieces)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.is_end


def test_lines_of_ollama_are_read() -> None:
    lines = [{"response": "he"}, {"response": "llo", "done": False}]
    last = {"response": "", "done": True, "done_reason": "length"}
    answer = read_all(OLLAMA.reader(REQUEST), [json.dumps(one) for one in (*lines, last)])
    assert TOKENIZER.decode(answer.token_ids) == "hello"
    assert (answer.finish_reason, answer.is_end) == (FinishReason.LENGTH, True)


@pytest.mark.parametrize("dialect", [OPENAI, OLLAMA])
def test_nothing_is_dropped_silently(dialect: OpenAIDialect | OllamaDialect) -> None:
    needs = {
        Feature.LOGPROBS: SamplingParams(logprobs=0),
        Feature.REPETITION_PENALTY: SamplingParams(repetition_penalty=1.1),
        Feature.MIN_TOKENS: SamplingParams(min_tokens=1),
    }
    for need, sampling in needs.items():
        request = Request((1,), sampling, eos_ids=frozenset({2}))
        assert dialect.missing(request, with_drafts=False) is need
    assert dialect.missing(REQUEST, with_drafts=True) is None


def test_failures_within_answers_are_told() -> None:
    with pytest.raises(EngineError, match="no memory"):
        OLLAMA.reader(REQUEST).read('{"error": "no memory"}')
    with pytest.raises(EngineError, match="no memory"):
        OPENAI.reader(REQUEST).read('{"error": {"message": "no memory"}}')
    with pytest.raises(GarbledError):
        OPENAI.reader(REQUEST).read('{"choices": [{"text": 5}]}')
