"""Conversations: which prompt comes next, and what a finished row leads to.

In:  prompts from files, a tokenizer with its chat frame, a recipe; finished rows.
Out: `Ask`s in an endless, seeded order; the follow-ups that finished rows call for.
An instruct model given only its chat prefix writes a user turn; that turn then becomes a prompt.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import RequestError
from headlong.text.tokenizer import Tokenizer
from headlong.train.prompt_files import ChatFrame, Prompt, read_frame
from headlong.train.questions import WORDINGS, compose_questions
from headlong.train.recipe import Recipe
from headlong.train.sampler import Job
from headlong.train.tool_prompts import COMPOSED_TOOLS, ToolPrompts

SELF_WRITTEN = "self_written"
MAX_TURN_TOKENS = 160
"""Longest user turn the model may write."""
_MAX_TURNS = 3
_CODE_FENCE = "```"
_NUM_ENCODERS = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """A row's task: an answer, or a user turn that will become a prompt."""

    job: Job
    set_name: str
    is_user_turn: bool = False
    num_turns: int = 1


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: IntArray
    set_name: str


class Conversations:
    """An endless source of asks, the same for the same seed and the same first number."""

    def __init__(
        self, prompts: Sequence[Prompt], tokenizer: Tokenizer, recipe: Recipe, first: int = 0
    ) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._frame = read_frame(tokenizer)
        self._prefix = _ids(tokenizer, self._frame.before_user)
        self._files = _encode(
            tokenizer, self._frame, [(p.turns[0], p.set_name) for p in prompts], recipe
        )
        self._tools = ToolPrompts([p.turns[0] for p in prompts if p.task == "code"])
        composed = compose_questions(prompts, recipe)
        self._composed = [
            (share, _encode(tokenizer, self._frame, questions, recipe))
            for share, questions in composed
        ]
        self._waiting: deque[Ask] = deque()
        self.num_asked = first
        """How many asks were made so far; a resumed run goes on from there."""
        if not self._files and recipe.prompts.self_written_share < 1:
            raise RequestError(
                "There are no prompts that fit.",
                "Give a prompt file, or set prompts.self_written_share = 1 in the recipe.",
            )

    def next_ask(self) -> Ask:
        """Return a follow-up that waits, or a new question."""
        if self._waiting:
            return self._waiting.popleft()
        number = self.num_asked
        self.num_asked += 1
        rng = np.random.default_rng([self._recipe.seed, number])
        shares = self._recipe.prompts
        draw = rng.random()
        if draw < shares.self_written_share or not self._files:
            return self._user_turn(self._prefix, rng, 1)
        bar = shares.self_written_share
        for share, questions in self._composed:
            bar += share
            if draw < bar and questions:
                chosen = questions[int(rng.integers(len(questions)))]
                return self._answer(chosen.ids, chosen.set_name, rng, 1)
        if draw < bar + shares.tool_share:
            ids = _ids(self._tokenizer, self._ask_for_a_call(rng))
            if len(ids) <= shares.max_tokens:
                return self._answer(ids, COMPOSED_TOOLS, rng, 1)
        # Every pass over the file prompts goes through them in an order of its own.
        turn, place = divmod(number, len(self._files))
        step = _coprime(len(self._files), self._recipe.seed + turn)
        chosen = self._files[(place * step + turn) % len(self._files)]
        return self._answer(chosen.ids, chosen.set_name, rng, 1)

    def settle(self, ask: Ask, ids: IntArray) -> bool:
        """Queue what a finished row leads to; tell whether it is an answer to learn from."""
        rng = np.random.default_rng([self._recipe.seed, ask.job.seed, 7])
        has_ended = int(ids[-1]) in self._tokenizer.eos_ids
        if ask.is_user_turn:
            if has_ended and len(ids) > len(ask.job.prompt_ids) + 3:
                question = self._continue(ids, self._frame.before_answer)
                self._queue(self._answer(question, ask.set_name, rng, ask.num_turns))
            return False
        goes_on = rng.random() < self._recipe.prompts.second_turn_share
        if has_ended and ask.num_turns < _MAX_TURNS and not self._ask_about_code(ask, ids, rng):
            prefix = self._continue(ids, self._frame.before_next_user)
            if goes_on:
                self._queue(self._user_turn(prefix, rng, ask.num_turns + 1))
        return len(ids) >= len(ask.job.prompt_ids) + 4

    def _ask_about_code(self, ask: Ask, ids: IntArray, rng: np.random.Generator) -> bool:
        """Queue a question about the code in an answer; tell whether there was one to ask."""
        if rng.random() >= self._recipe.prompts.code_turn_share:
            return False
        answer = self._tokenizer.decode(ids[len(ask.job.prompt_ids) :].tolist())
        if _CODE_FENCE not in answer:
            return False
        turn = str(rng.choice(WORDINGS["code_turns"]))
        between = f"{self._frame.before_next_user}{turn}{self._frame.before_answer}"
        question = self._continue(ids, between)
        self._queue(self._answer(question, f"{ask.set_name}_turns", rng, ask.num_turns + 1))
        return True

    def _ask_for_a_call(self, rng: np.random.Generator) -> str:
        """Return a prompt with functions, in words or as the model's template lists them."""
        if rng.random() >= self._recipe.prompts.template_tools_share:
            return self._frame.frame(self._tools.compose(rng))
        schemas, request = self._tools.draw(rng)
        tools = [{"type": "function", "function": schema} for schema in schemas]
        return self._tokenizer.apply_chat_template(
            [{"role": "user", "content": request}], tools=tools
        )

    def _queue(self, ask: Ask) -> None:
        room = MAX_TURN_TOKENS if ask.is_user_turn else 0
        if len(ask.job.prompt_ids) + room <= self._recipe.prompts.max_tokens:
            self._waiting.append(ask)

    def _continue(self, ids: IntArray, between: str) -> IntArray:
        """Put what the template writes after a turn in the place of the end the model wrote."""
        return np.concatenate([ids[:-1], _ids(self._tokenizer, between)])

    def _user_turn(self, prefix: IntArray, rng: np.random.Generator, num_turns: int) -> Ask:
        job = Job(prefix, MAX_TURN_TOKENS, 1.0, _draw_seed(rng))
        return Ask(job, SELF_WRITTEN, is_user_turn=True, num_turns=num_turns)

    def _answer(
        self, ids: IntArray, set_name: str, rng: np.random.Generator, num_turns: int
    ) -> Ask:
        answers = self._recipe.answers
        is_greedy = rng.random() < answers.greedy_share
        temperature = 0.0 if is_greedy else float(rng.choice(answers.temperatures))
        job = Job(ids, answers.max_tokens, temperature, _draw_seed(rng))
        return Ask(job, set_name, num_turns=num_turns)


def _encode(
    tokenizer: Tokenizer, frame: ChatFrame, questions: Sequence[tuple[str, str]], recipe: Recipe
) -> list[_Encoded]:
    """Turn questions into ids, many at once; the library works outside Python's lock."""
    with ThreadPoolExecutor(_NUM_ENCODERS) as pool:
        texts = [frame.frame(question) for question, _ in questions]
        found = pool.map(lambda text: _ids(tokenizer, text), texts)
        pairs = zip(found, questions, strict=True)
        return [
            _Encoded(ids, set_name)
            for ids, (_, set_name) in pairs
            if len(ids) <= recipe.prompts.max_tokens
        ]


def _ids(tokenizer: Tokenizer, text: str) -> IntArray:
    return np.array(tokenizer.encode(text, add_special=False), dtype=np.int64)


def _draw_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31 - 1))


def _coprime(size: int, seed: int) -> int:
    """Return a stride that visits every index of `size` before it repeats."""
    stride = int(np.random.default_rng(seed).integers(1, size + 1))
    while np.gcd(stride, size) != 1:
        stride += 1
    return stride
