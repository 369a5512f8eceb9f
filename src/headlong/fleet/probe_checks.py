"""What the probe asks of greedy answers: the same tokens, alone and beside sampled ones; the same
ends, the same numbers.

In:  the two sides and some prompts. Out: judgements. A token that differs is held against the plain
side's own scores: where it found both nearly alike, rounding decided; elsewhere the token is wrong.
"""

import statistics
from collections.abc import Sequence

from headlong.config import StopParams
from headlong.decode.divergence import find_divergence
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.fleet.dialect import Delta
from headlong.fleet.probe_sides import NotChecked, Side, together
from headlong.fleet.probe_subject import MAX_TOKENS, Examined, Question, blame
from headlong.fleet.verdict import Aspect, Judgement, Outcome

NEAR_TIE = 0.5
"""Log-probability by which the plain side may prefer its own token where rounding decides: two
steps of logits in bfloat16, which are 1/8 to 1/4 wide."""

_LOGPROB_MEAN = 0.15
_LOGPROB_ROUNDING = 1e-2
"""How far logprobs may be from the plain side's on average, and what needs no mention."""

_NUM_MIXED = 4
"""Greedy answers that are written once more beside sampled ones."""

_TO_PLAIN = "are the plain engine's", "differ from the plain engine's"
_TO_UNMIXED = "are the same beside sampled ones", "are others beside sampled ones"

_LENGTHS = (1, 2, 5, 9)
_STOP_FROM = 6
"""Tokens before one that is made to end an answer: drafts have begun by then."""


async def check_greedy(examined: Examined) -> Judgement:
    """Judge whether greedy answers are those of the plain engine."""
    drafting, questions = examined.drafting, examined.questions
    greedy = [examined.request(question) for question in questions]
    answers = await together(drafting.ask(request) for request in greedy)
    for question, answer in zip(questions, answers, strict=True):
        question.answer = answer
    plain = await together(examined.judge.ask(request) for request in greedy)
    pairs = list(zip(questions, plain, answers, strict=True))
    return await _compare(examined, Aspect.GREEDY, pairs, _TO_PLAIN)


async def check_mixed(examined: Examined) -> Judgement:
    """Judge whether greedy answers are the same while the engine samples others beside them."""
    examined.longest()  # there is one
    asked = [one for one in examined.questions if one.answer is not None][:_NUM_MIXED]
    requests = [
        request
        for seed, one in enumerate(asked)
        for request in (examined.request(one), examined.request(one, temperature=1.0, seed=seed))
    ]
    answers = (await together(examined.drafting.ask(request) for request in requests))[::2]
    before = [one.answer for one in asked if one.answer is not None]
    pairs = list(zip(asked, before, answers, strict=True))
    return await _compare(examined, Aspect.MIXED, pairs, _TO_UNMIXED)


async def _compare(
    examined: Examined,
    aspect: Aspect,
    answers: Sequence[tuple[Question, Delta, Delta]],
    words: tuple[str, str],
) -> Judgement:
    """Judge answers by how they should be, which comes first; where they differ, by their scores.

    `words` say that they do not differ, and that they do.
    """
    differing = [
        (question, answer.token_ids)
        for question, wanted, answer in answers
        if find_divergence(answer.token_ids, wanted.token_ids) is not None
    ]
    num_tokens = sum(len(answer.token_ids) for _, _, answer in answers)
    counts = {"num_answers": len(answers), "num_differing": len(differing)}
    if not differing:
        seen = f"{len(answers)} answers of {num_tokens} tokens in all {words[0]}."
        return Judgement(aspect, Outcome.PASSED, seen, counts)
    start = f"{len(differing)} of {len(answers)} answers {words[1]}"
    try:
        worst = [await _worst_token(examined.judge, question, ids) for question, ids in differing]
    except NotChecked as reason:
        told = f"{start}; whether by rounding cannot be told. {reason}"
        raise type(reason)(told) from None
    lag, token_id, place, question = max(worst, key=lambda one: one[0])
    numbers = {**counts, "worst_lag": lag}
    if lag <= NEAR_TIE:
        seen = f"{start}, at near-ties only: its tokens lag by at most {lag:.2f} nats there."
        return Judgement(aspect, Outcome.NOT_EXACT, seen, numbers)
    seen = (
        f"{start}. Token {place} of the one about {question.name} is "
        f"{examined.tokenizer.token_text(token_id)!r}, which the plain engine finds {lag:.2f} nats "
        "less likely than its own."
    )
    return Judgement(aspect, Outcome.FAILED, seen, numbers)


async def _worst_token(
    judge: Side, question: Question, answer_ids: Sequence[int]
) -> tuple[float, int, int, Question]:
    """Return by how much the likeliest token beats an answer's worst one, and which that is."""
    scores = await judge.score(question.prompt_ids, answer_ids)
    if not all(score.top for score in scores):
        raise NotChecked("The plain engine told no alternatives.")
    lags = [max(0.0, score.top[0].logprob - score.logprob) for score in scores]
    place = max(range(len(lags)), key=lags.__getitem__)
    return lags[place], answer_ids[place], place, question


async def check_drafts(examined: Examined) -> Judgement:
    """Judge whether the answers so far were drafted at all."""
    examined.longest()  # there is one
    answers = [one.answer for one in examined.questions if one.answer is not None]
    told = [answer.stats for answer in answers if answer.stats is not None]
    if not told:
        raise NotChecked("The engine does not say what it drafts.")
    drafted, accepted = (
        sum(getattr(stats, name) for stats in told) for name in ("num_drafted", "num_accepted")
    )
    if not drafted:
        raise NotChecked("It has drafted nothing: what follows says nothing about its drafts.")
    seen = f"{drafted} tokens were drafted, {accepted} accepted."
    numbers = {"num_drafted": drafted, "num_accepted": accepted}
    return Judgement(Aspect.DRAFTS, Outcome.PASSED, seen, numbers)


async def check_length(examined: Examined) -> Judgement:
    """Judge whether answers have as many tokens as they may have."""
    question, _ = examined.longest()

    async def find_problem(side: Side) -> str | None:
        for num in _LENGTHS:
            request = Request(question.prompt_ids, stopping=StopParams(max_tokens=num))
            answer = await side.ask(request, as_sent=True)
            sent, reason = len(answer.token_ids), answer.finish_reason
            if sent != num or reason is not FinishReason.LENGTH:
                return f"Asked for {num} tokens it sent {sent} and ended with {str(reason)!r}."
        return None

    lengths = ", ".join(map(str, _LENGTHS))
    return await blame(examined, Aspect.LENGTH, f"Answers of {lengths} tokens.", find_problem)


async def check_stop(examined: Examined) -> Judgement:
    """Judge whether an answer ends at a token that has to end it, in a draft or not."""
    question, said = examined.longest()
    place = next((i for i in range(_STOP_FROM, len(said)) if said[i] not in said[:i]), None)
    if place is None:
        raise NotChecked("Its answers only repeat themselves: no token of them could end one.")
    stop_id, stopping = said[place], StopParams(max_tokens=MAX_TOKENS)
    request = Request(question.prompt_ids, stopping=stopping, eos_ids=frozenset({stop_id}))

    async def find_problem(side: Side) -> str | None:
        sent = (await side.ask(request, as_sent=True)).token_ids
        if stop_id in sent[:-1]:
            num = len(sent) - 1 - sent.index(stop_id)
            return f"It sent {num} tokens behind one that had to end the answer."
        if sent == said[: len(sent)] and len(sent) < place:
            return f"It ended {place - len(sent)} tokens before the one that had to end the answer."
        return None

    seen = f"It ended at token {place}, as it had to."
    return await blame(examined, Aspect.STOP, seen, find_problem)


async def check_logprobs(examined: Examined) -> Judgement:
    """Judge whether logprobs are those of the plain engine."""
    judge, offs = examined.judge, list[float]()
    for question in examined.questions[:3]:
        request = examined.request(question, logprobs=1)
        answer = await examined.drafting.ask(request)
        scores = await judge.score(question.prompt_ids, answer.token_ids)
        pairs = zip(answer.logprobs, scores, strict=True)
        offs += [abs(told.logprob - score.logprob) for told, score in pairs]
    if not offs:
        raise NotChecked("The engine said nothing.")
    mean, most = statistics.fmean(offs), max(offs)
    numbers = {"mean_off": mean, "most_off": most, "num_tokens": len(offs)}
    off = f"off by {mean:.3f} nats on average, by {most:.2f} at most, over {len(offs)} tokens."
    if mean > _LOGPROB_MEAN:
        return Judgement(Aspect.LOGPROBS, Outcome.FAILED, f"They are {off}", numbers)
    outcome = Outcome.NOT_EXACT if most > _LOGPROB_ROUNDING else Outcome.PASSED
    return Judgement(Aspect.LOGPROBS, outcome, f"They are {off}", numbers)


async def check_seed(examined: Examined) -> Judgement:
    """Judge whether a seed gives the same text again; nobody promised that of other engines."""
    question, _ = examined.longest()
    request = examined.request(question, temperature=1.0, seed=7)
    first, again = [(await examined.drafting.ask(request)).token_ids for _ in range(2)]
    if first != again:
        return Judgement(Aspect.SEED, Outcome.NOT_EXACT, "The same seed gave two texts.")
    seen = "The same seed gave the same text twice"
    if examined.plain is None:
        return Judgement(Aspect.SEED, Outcome.PASSED, f"{seen}.")
    if (await examined.plain.ask(request)).token_ids == first:
        return Judgement(Aspect.SEED, Outcome.PASSED, f"{seen}, the plain engine's.")
    return Judgement(Aspect.SEED, Outcome.NOT_EXACT, f"{seen}; without drafts it gives another.")
