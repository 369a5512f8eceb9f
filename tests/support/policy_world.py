"""A world with exact costs and known chances, in which policies can be compared.

Every token of a text has a chance to be guessed right; a head knows it more or less well and says
so. Passes and draft steps take what the world says, with as much noise as wanted. A fixed K and
"auto" play the same text, so that tokens per second of simulated time tell who decides better.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from headlong.config import MtpMode
from headlong.decode.outcome import Verdict
from headlong.decode.round import RoundResult
from headlong.decode.sampling import Pick
from headlong.drafters.draft_plan import NO_THRESHOLD, DraftPlan
from headlong.drafters.drafter import NGRAM, Draft, Guess, as_draft
from headlong.engine.draft_policy import Candidate, DraftPolicy
from headlong.engine.request_policy import RequestPolicy

MATCH_PROB = 0.75
"""What n-grams say of every match."""

Chance = Callable[[random.Random, int], float]
"""Draws the chance that the next guess stands, given the time in rounds."""


@dataclass(frozen=True)
class World:
    """What things cost and how well drafts do."""

    pass_s: Callable[[int], float]
    step_s: float = 0.0002
    shared_step_s: float = 0.0001
    """Of a draft step, the part that all sequences share."""
    chance: Chance = lambda rng, time: 0.7
    says: Callable[[float], float] = float
    """What probability the head says where it has some chance; an honest one says just that."""
    noise: float = 0.0
    """Spread of measured times, as a standard deviation of their logarithm."""
    fade: float = 1.0
    """What every depth keeps of a guess's chance."""
    ask_s: float = 0.0001
    other_pass_s: Callable[[int], float] | None = None
    """What passes cost every other time, if the machine flips between two states."""
    flip_s: float = math.inf
    """Seconds it stays in one of them."""
    match_share: float = 0.0
    """Share of rounds in which what ends a text stood before."""
    match_chance: float = 0.9
    """The chance that it then goes on as it did."""

    def pass_at(self, num_rows: int, clock_s: float) -> float:
        """Return how long a pass takes that begins at this time."""
        if self.other_pass_s is None or clock_s // self.flip_s % 2 == 0:
            return self.pass_s(num_rows)
        return self.other_pass_s(num_rows)

    def draft_s(self, steps: Sequence[int]) -> float:
        """Return how long drafts of so many steps take; one for every request that drafts."""
        own_s = self.step_s - self.shared_step_s
        shared_s = max(steps, default=0) * self.shared_step_s
        return len(steps) * self.ask_s + shared_s + sum(steps) * own_s


@dataclass
class Player:
    """One sequence in the world."""

    policy: RequestPolicy
    rng: random.Random
    num_tokens: float = 0.0
    """What its rounds were worth: tokens in the mean, which tells more than those of one play."""

    def draft(self, plan: DraftPlan, world: World, time: int) -> tuple[Draft, int]:
        """Draft as a head would; return the draft and how many of its tokens stand."""
        if plan.only_lookup:
            return self._look_up(plan, world)
        threshold = plan.thresholds.get("head", NO_THRESHOLD)
        guesses: list[Guess] = []
        chances: list[float] = []
        while len(guesses) < plan.num_tokens:
            chance = world.chance(self.rng, time) * world.fade ** len(guesses)
            chances.append(chance)
            guesses.append(Guess(0, world.says(chance)))
            if not threshold.can_extend(guess.prob for guess in guesses):
                break
        draft = as_draft(guesses, "head", threshold)
        del chances[len(draft.token_ids) :]
        self.num_tokens += 1 + sum(accumulate(chances, mul))
        stood = [self.rng.random() < chance for chance in chances]
        return draft, [*stood, False].index(False)

    def _look_up(self, plan: DraftPlan, world: World) -> tuple[Draft, int]:
        """Look one token up, if there is a match and it is likely enough to pay for its row."""
        threshold = plan.thresholds[NGRAM]
        self.num_tokens += 1
        has_match = world.match_share > 0 and self.rng.random() < world.match_share
        if not has_match or threshold.chance(MATCH_PROB) < threshold.keep:
            return Draft(), 0
        self.num_tokens += world.match_chance
        stood = self.rng.random() < world.match_chance
        return Draft((0,), (MATCH_PROB,), (NGRAM,)), int(stood)


@dataclass
class Outcome:
    """How a play went."""

    tokens_per_second: float
    lengths: list[int]
    """Draft lengths asked for, of the first sequence."""
    players: Sequence[Player]


def play(
    world: World,
    mtp: MtpMode,
    num_rounds: int,
    num_sequences: int = 1,
    policy: DraftPolicy | None = None,
    seed: int = 0,
) -> Outcome:
    """Let sequences run together for so many rounds; a fixed K is honoured."""
    return play_mixed(world, [mtp] * num_sequences, num_rounds, policy, seed, honours_k=True)


def play_mixed(
    world: World,
    modes: Sequence[MtpMode],
    num_rounds: int,
    policy: DraftPolicy | None = None,
    seed: int = 0,
    *,
    honours_k: bool = False,
) -> Outcome:
    """Let sequences that ask for different things run together for so many rounds."""
    policy = policy or DraftPolicy()
    noise = random.Random(seed + 1)
    players = [
        Player(policy.new_request(mtp, 0.0, honours_k=honours_k), random.Random(f"{seed} {i}"))
        for i, mtp in enumerate(modes)
    ]
    seconds, lengths = 0.0, []
    for time in range(num_rounds):
        plans = policy.plan([Candidate(one.policy) for one in players], max_rows=64)
        lengths.append(plans[0].num_tokens if plans[0].runs_drafter else 0)
        drafted = [one.draft(plan, world, time) for one, plan in zip(players, plans, strict=True)]
        steps = [
            draft.num_steps
            for (draft, _), plan in zip(drafted, plans, strict=True)
            if plan.runs_drafter
        ]
        num_rows = sum(len(draft.token_ids) + 1 for draft, _ in drafted)
        draft_s, pass_s = world.draft_s(steps), world.pass_at(num_rows, seconds)
        seconds += draft_s + pass_s
        if not any(one.policy.is_auto for one in players):
            continue  # nothing is decided, so nothing need be learned
        blur = math.exp(noise.gauss(0.0, world.noise))
        results = [round_result(*one, draft_s * blur, pass_s * blur) for one in drafted]
        requests = [one.policy for one in players]
        policy.observe(requests, plans, results, (draft_s + pass_s) * blur)
    return Outcome(sum(one.num_tokens for one in players) / seconds, lengths, players)


def round_result(
    draft: Draft, num_accepted: int, draft_s: float = 0.0, pass_s: float = 0.0
) -> RoundResult:
    """Return what a round did for a sequence of whose draft so many tokens stood."""
    verdict = Verdict((Pick(0, None),) * (num_accepted + 1), num_accepted)
    return RoundResult(draft, verdict, draft_s, pass_s)


def best_fixed(world: World, num_rounds: int, num_sequences: int = 1) -> tuple[int, float]:
    """Return the best fixed draft length, 0 included, and its tokens per second."""
    rates = {
        mtp: play(world, mtp or "off", num_rounds, num_sequences).tokens_per_second
        for mtp in (0, 1, 2, 3, 4, 6, 8)
    }
    best = max(rates, key=lambda mtp: rates[mtp])
    return best, rates[best]
