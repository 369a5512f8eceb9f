"""The answer check: what an engine elsewhere sends is an answer to the request, or is refused."""

import contextlib
import math

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats
from headlong.engine.request import FinishReason
from headlong.errors import GarbledError
from headlong.fleet.answer_check import AnswerAsSent, AnswerCheck, SpeltAnswerCheck, check_whole
from headlong.fleet.dialect import Delta
from headlong.text.grammar import json_schema_grammar
from headlong.text.tokenizer import Tokenizer
from tiny_text import byte_level_tokenizer

EOS = 7
REQUEST = Request((1, 2), stopping=StopParams(max_tokens=4), eos_ids=frozenset({EOS}))
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def check(request: Request = REQUEST) -> AnswerCheck:
    return AnswerCheck(request, vocab_size=300)


def test_last_token_comes_with_the_reason_and_what_is_told_behind_it() -> None:
    it, stats = check(), DecodeStats(rounds=2)
    assert it.read(Delta((5,), num_cached_tokens=1)).token_ids == (5,)
    assert it.read(Delta((6, EOS))).token_ids == ()
    assert it.is_complete
    it.read(Delta(finish_reason=STOP))
    it.read(Delta(stats=stats, is_end=True))
    assert it.end() == Delta((6, EOS), (), STOP, stats, 1, None, is_end=True)


def test_end_of_text_that_an_engine_keeps_to_itself_is_given() -> None:
    it = check()
    it.read(Delta((5,)))
    it.read(Delta(finish_reason=STOP))
    assert it.end().token_ids == (EOS,)


def test_answer_is_cut_where_it_has_to_end() -> None:
    for ids, reason, left in (((5, EOS, 6), STOP, (5, EOS)), ((5,) * 6, LENGTH, (5,) * 4)):
        it = check()
        it.read(Delta(ids))
        it.read(Delta((9,)))  # behind the end
        assert (it.end().finish_reason, it.end().token_ids) == (reason, left)


def test_end_of_text_is_no_end_where_it_is_to_be_ignored() -> None:
    it = check(Request((1,), stopping=StopParams(4, ignore_eos=True), eos_ids=frozenset({EOS})))
    assert it.read(Delta((5, EOS, 6))).token_ids == (5, EOS, 6)
    assert not it.is_complete


def test_broken_answers_are_refused() -> None:
    scored = Request((1,), SamplingParams(logprobs=0))
    garbled = [
        (REQUEST, Delta((300,)), "token 300"),
        (REQUEST, Delta((-1,)), "token -1"),
        (REQUEST, Delta((5,), finish_reason=LENGTH), "3 tokens early"),
        (scored, Delta((5,)), "log-probabilities"),
        (scored, Delta((5,), (TokenLogprob(6, -1.0, ()),)), "log-probabilities"),
        (scored, Delta((5,), (TokenLogprob(5, math.nan, ()),)), "log-probabilities"),
        (scored, Delta((5,), (TokenLogprob(5, 0.5, ()),)), "log-probabilities"),
    ]
    for request, delta, problem in garbled:
        with pytest.raises(GarbledError, match=problem):
            check(request).read(delta)
    with pytest.raises(GarbledError, match="broke its answer off"):
        check().end()


def test_answer_that_came_as_text_may_have_fewer_tokens_or_more() -> None:
    """Guards text that is held back for a character's end: the last token brings the reason."""
    it = SpeltAnswerCheck(REQUEST, 300)
    given = [it.read(delta).token_ids for delta in (Delta((5,)), Delta((6, 8)), Delta())]
    it.read(Delta(finish_reason=LENGTH))
    assert [*given, it.end().token_ids] == [(), (5, 6), (), (8,)]
    assert it.end().finish_reason is LENGTH
    it = SpeltAnswerCheck(REQUEST, 300)
    it.read(Delta((5,) * 6))
    it.read(Delta(finish_reason=LENGTH))
    assert it.end().token_ids == (5,)


def test_answer_must_follow_its_grammar() -> None:
    tokenizer = byte_level_tokenizer()
    follows = _deltas(tokenizer, '{"a": true}')
    for deltas in (follows[:-1], _deltas(tokenizer, '{"b"')):
        with pytest.raises(GarbledError, match="form that was asked for"):
            _answer(tokenizer, [*deltas, Delta(finish_reason=STOP)])
    for text in ('{"a": true}', '{\n  "a" : true }\n'):
        assert _answer(tokenizer, _deltas(tokenizer, text)).finish_reason is STOP


def test_forced_text_may_be_cut_into_any_tokens() -> None:
    """llama.cpp's JSON was refused: it spells keys letter by letter where its model likes to."""
    tokenizer = byte_level_tokenizer()
    schema = {"type": "object", "properties": {"hello": {"enum": [1]}}, "required": ["hello"]}
    grammar = json_schema_grammar(tokenizer, {**schema, "additionalProperties": False})
    text = '{"hello": 1}'
    letters = [tokenizer.encode(letter)[-1] for letter in text]
    assert letters != tokenizer.encode(text)
    for ids, fits in ((letters, True), (letters[:3], False), (letters[::-1], False)):
        it = AnswerCheck(Request((1,), eos_ids=tokenizer.eos_ids, grammar=grammar), 300)
        deltas = [Delta((one,)) for one in ids] + [Delta(finish_reason=STOP)]
        with contextlib.nullcontext() if fits else pytest.raises(GarbledError):
            for delta in deltas:
                it.read(delta)
            assert it.end().finish_reason is STOP


def _deltas(tokenizer: Tokenizer, text: str) -> list[Delta]:
    return [Delta((token_id,)) for token_id in tokenizer.encode(text)]


def _answer(tokenizer: Tokenizer, deltas: list[Delta]) -> Delta:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    grammar = json_schema_grammar(tokenizer, {**schema, "additionalProperties": False})
    request = Request((1,), eos_ids=tokenizer.eos_ids, grammar=grammar)
    it = AnswerCheck(request, tokenizer.vocab_size)
    for delta in deltas:
        it.read(delta)
    it.read(Delta(finish_reason=STOP))
    return it.end()


def test_answers_as_sent_keep_what_comes_behind_their_end() -> None:
    it, stats = AnswerAsSent(REQUEST, 300), DecodeStats(rounds=2)
    assert it.read(Delta((5, EOS, 6), finish_reason=STOP)).token_ids == (5, EOS, 6)
    assert it.read(Delta((9,), stats=stats)).token_ids == (9,)
    assert it.end() == Delta((), (), STOP, stats, is_end=True)


def test_a_whole_answer_is_cut_as_one_that_comes_in_pieces() -> None:
    assert check_whole(REQUEST, Delta((5, EOS, 6)), 300).token_ids == (5, EOS)
    with pytest.raises(GarbledError):
        check_whole(REQUEST, Delta((5,)), 300)
