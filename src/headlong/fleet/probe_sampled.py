"""What the probe asks of sampled answers: are they drawn from the plain engine's distribution?

In:  the two sides. Out: one judgement over all temperatures. Both sides write, the plain one scores
both; after every few rounds the two are compared, and no more are drawn than it takes.
"""

import statistics
from collections.abc import Sequence
from itertools import chain, count

from headlong.decode.logprobs import TokenLogprob
from headlong.fleet.probe_sides import NotChecked, Side, together
from headlong.fleet.probe_statistics import LOOKS, Ruling, compare, surprise
from headlong.fleet.probe_subject import Examined, Question
from headlong.fleet.verdict import Aspect, Judgement, Outcome

TEMPERATURES = (0.7, 1.0)

_FIRST_SEED = 1000

_LEAST_LOGPROB = -30.0
"""What can never be said counts as this: one token must not outweigh all others."""


async def check_sampled(examined: Examined) -> Judgement:
    """Judge whether sampled answers are as likely as the plain engine's own."""
    sides = (examined.drafting, examined.judge)
    found = []
    for temperature in TEMPERATURES:
        samples = [_Samples(examined, side, temperature) for side in sides]
        judgement = await _compare_at(temperature, *samples)
        if judgement.outcome is Outcome.FAILED:
            return judgement
        found.append(judgement)
    outcomes = [one.outcome for one in found]
    outcome = Outcome.NOT_CHECKED if Outcome.NOT_CHECKED in outcomes else Outcome.PASSED
    numbers = {name: value for one in found for name, value in one.numbers.items()}
    seen = " ".join(one.seen for one in found)
    return Judgement(Aspect.SAMPLED, outcome, seen, numbers)


async def _compare_at(temperature: float, drafted: "_Samples", plain: "_Samples") -> Judgement:
    for look in LOOKS:
        for samples in (plain, drafted):
            await samples.grow(look)
        ruling = Ruling(
            compare(drafted.surprises, plain.surprises), compare(drafted.logprobs, plain.logprobs)
        )
        if ruling.is_different or ruling.is_same:
            break
    seen = ruling.surprise
    means = drafted.mean_logprob, plain.mean_logprob
    told = (
        f"Mean log-probability at temperature {temperature:g}: {means[0]:.2f} with drafts, "
        f"{means[1]:.2f} without (surprise {seen.difference:+.2f} ± {seen.error:.2f}, "
        f"{look * len(drafted.surprises)} answers each)."
    )
    names = ("drafted_logprob", "plain_logprob", "difference", "error")
    values = (*means, seen.difference, seen.error)
    numbers = {f"{name}_{temperature:g}": value for name, value in zip(names, values, strict=True)}
    if not ruling.is_different and not ruling.is_same:
        return Judgement(Aspect.SAMPLED, Outcome.NOT_CHECKED, f"Too few samples. {told}", numbers)
    outcome = Outcome.FAILED if ruling.is_different else Outcome.PASSED
    return Judgement(Aspect.SAMPLED, outcome, told, numbers)


class _Samples:
    """What one side has written at one temperature, scored by the plain side."""

    def __init__(self, examined: Examined, side: Side, temperature: float) -> None:
        self._examined, self._side, self._temperature = examined, side, temperature
        # The two sides draw with other seeds: engines may share their noise, and be right.
        self._seeds = count(_FIRST_SEED * (1 + side.is_plain))
        self.surprises: list[list[float]] = [[] for _ in examined.questions]
        """Mean of each answer, by question."""
        self.logprobs: list[list[float]] = [[] for _ in examined.questions]
        """The same of log-probabilities."""

    @property
    def mean_logprob(self) -> float:
        """Mean over all answers."""
        return statistics.fmean(chain.from_iterable(self.logprobs))

    async def grow(self, num: int) -> None:
        """Sample until there are so many answers to each question."""
        missing = [
            (place, question)
            for place, question in enumerate(self._examined.questions)
            for _ in range(num - len(self.surprises[place]))
        ]
        scored = await together(self._write(question) for _, question in missing)
        for (place, _), scores in zip(missing, scored, strict=True):
            values = [surprise(score, self._temperature) for score in scores]
            self.surprises[place].append(statistics.fmean(values))
            bounded = [max(score.logprob, _LEAST_LOGPROB) for score in scores]
            self.logprobs[place].append(statistics.fmean(bounded))

    async def _write(self, question: Question) -> Sequence[TokenLogprob]:
        sampled = {"temperature": self._temperature, "seed": next(self._seeds)}
        answer = await self._side.ask(self._examined.request(question, **sampled))
        if not answer.token_ids:
            raise NotChecked(f"{self._side.name.capitalize()} sent an answer without tokens.")
        ids = (question.prompt_ids, answer.token_ids)
        return await self._examined.judge.score(*ids, may_skip=True)
