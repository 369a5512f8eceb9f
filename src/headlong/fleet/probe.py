"""The probe: is an engine that drafts still the same engine? Asked before it gets requests.

In:  two engines of one model, with drafts and without, and the model's tokenizer.
Out: a verdict. What an engine lacks for a check is "not checked", never "passed"; where time, load
or the plain side stopped a check, it is "not settled". No check is left out because another failed.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

from headlong.fleet.probe_checks import (
    check_drafts,
    check_greedy,
    check_length,
    check_logprobs,
    check_mixed,
    check_seed,
    check_stop,
)
from headlong.fleet.probe_forms import check_grammar, check_json
from headlong.fleet.probe_sampled import check_sampled
from headlong.fleet.probe_sides import NotChecked, NotSettled, Side, WrongAnswer
from headlong.fleet.probe_subject import Examined, Question
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.text.tokenizer import Tokenizer

PROMPTS = {
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "JSON": "Describe a book as JSON with the fields title, author, year, pages and genres.",
    "the sky": "Why is the sky blue during the day and red in the evening?",
    "a train": "A train goes 60 km in 45 minutes. How far does it go in 3 hours? Show your steps.",
    "a copy": "Repeat this line five times: the quick brown fox jumps over the lazy dog.",
    "a rainbow": "Erkläre in drei Sätzen, wie ein Regenbogen entsteht.",
    "the wall": "请用三句话介绍中国的长城。",
    "a keeper": "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
}
"""Tasks and languages of many kinds: drafts are right in some of them and wrong in others."""

CHECKS: Mapping[Aspect, Callable[[Examined], Awaitable[Judgement]]] = {
    Aspect.GREEDY: check_greedy,
    Aspect.DRAFTS: check_drafts,
    Aspect.LENGTH: check_length,
    Aspect.STOP: check_stop,
    Aspect.JSON: check_json,
    Aspect.GRAMMAR: check_grammar,
    Aspect.MIXED: check_mixed,
    Aspect.SAMPLED: check_sampled,
    Aspect.LOGPROBS: check_logprobs,
    Aspect.SEED: check_seed,
}
"""In order: what is quickly done comes before what may use up the time."""

Tell = Callable[[Judgement], None]


async def probe(
    drafting: Side, plain: Side | None, tokenizer: Tokenizer, tell: Tell = lambda judgement: None
) -> Verdict:
    """Run all checks, telling each judgement as it comes; `plain` is None where there is none."""
    began_s = time.monotonic()
    examined = Examined(drafting, plain, tokenizer, questions_for(tokenizer))
    judgements = []
    for aspect, check in CHECKS.items():
        try:
            judgement = await check(examined)
        except NotChecked as reason:
            # Without a plain engine nobody else could take what is refused.
            is_open = isinstance(reason, NotSettled) and plain is not None
            outcome = Outcome.NOT_SETTLED if is_open else Outcome.NOT_CHECKED
            judgement = Judgement(aspect, outcome, str(reason))
        except WrongAnswer as wrong:
            judgement = Judgement(aspect, Outcome.FAILED, str(wrong))
        judgements.append(judgement)
        tell(judgement)
    seconds = time.monotonic() - began_s
    return Verdict(time.time(), tuple(judgements), seconds, drafting.budget.num_taken)


def questions_for(tokenizer: Tokenizer) -> list[Question]:
    """Return the prompts in this model's tokens, as chats where it knows chats."""
    return [Question(name, tuple(_encode(tokenizer, text))) for name, text in PROMPTS.items()]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])
