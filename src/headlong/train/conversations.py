"""Conversations: the turns that the backbone generates, and their follow-ups.

In:  prompts from files, a tokenizer with a chat template, a recipe; finished turns.
Out: an endless sequence of `Turn`s in seeded order, with follow-ups to finished ones.
An instruct model given only its chat prefix writes a user turn. That turn then becomes a prompt.
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
"""Maximum length of a user turn that the model writes."""
_MAX_TURNS = 3
_CODE_FENCE = "```"
_NUM_ENCODERS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn to generate: an answer, or a user turn that will become a prompt."""

    job: Job
    set_name: str
    is_user_turn: bool = False
    num_turns: int = 1


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: IntArray
    set_name: str


class Conversations:
    """An endless source of turns, determined by the seed and the first number."""

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
        self._waiting: deque[Turn] = deque()
        self.next_prompt = first
        """Number of the next new prompt; a resumed run continues from here."""
        if not self._files and recipe.prompts.self_written_share < 1:
            raise RequestError(
                "There are no prompts of at most prompts.max_tokens tokens.",
                "Give a prompt file, or set prompts.self_written_share = 1 in the recipe.",
            )

    def next_turn(self) -> Turn:
        """Return a queued follow-up, or a new prompt."""
        if self._waiting:
            return self._waiting.popleft()
        number = self.next_prompt
        self.next_prompt += 1
        rng = np.random.default_rng([self._recipe.seed, number])
        shares = self._recipe.prompts
        draw = rng.random()
        if draw < shares.self_written_share or not self._files:
            return self._user_turn(self._prefix, rng, 1)
        threshold = shares.self_written_share
        for share, questions in self._composed:
            threshold += share
            if draw < threshold and questions:
                chosen = questions[int(rng.integers(len(questions)))]
                return self._answer(chosen.ids, chosen.set_name, rng, 1)
        if draw < threshold + shares.tool_share:
            ids = _ids(self._tokenizer, self._tool_prompt(rng))
            if len(ids) <= shares.max_tokens:
                return self._answer(ids, COMPOSED_TOOLS, rng, 1)
        # Every epoch over the file prompts has its own order.
        epoch, index = divmod(number, len(self._files))
        step = _coprime(len(self._files), self._recipe.seed + epoch)
        chosen = self._files[(index * step + epoch) % len(self._files)]
        return self._answer(chosen.ids, chosen.set_name, rng, 1)

    def finish(self, turn: Turn, ids: IntArray) -> bool:
        """Queue the follow-up of a finished turn; return whether it is an answer to train on."""
        rng = np.random.default_rng([self._recipe.seed, turn.job.seed, 7])
        has_ended = int(ids[-1]) in self._tokenizer.eos_ids
        if turn.is_user_turn:
            if has_ended and len(ids) > len(turn.job.prompt_ids) + 3:
                question = self._continue(ids, self._frame.before_answer)
                self._queue(self._answer(question, turn.set_name, rng, turn.num_turns))
            return False
        continues = rng.random() < self._recipe.prompts.second_turn_share
        may_continue = has_ended and turn.num_turns < _MAX_TURNS
        if may_continue and not self._queue_code_turn(turn, ids, rng) and continues:
            prefix = self._continue(ids, self._frame.before_next_user)
            self._queue(self._user_turn(prefix, rng, turn.num_turns + 1))
        return len(ids) >= len(turn.job.prompt_ids) + 4

    def _queue_code_turn(self, turn: Turn, ids: IntArray, rng: np.random.Generator) -> bool:
        """With some chance, queue a question about code in the answer; return whether it did."""
        if rng.random() >= self._recipe.prompts.code_turn_share:
            return False
        answer = self._tokenizer.decode(ids[len(turn.job.prompt_ids) :].tolist())
        if _CODE_FENCE not in answer:
            return False
        text = str(rng.choice(WORDINGS["code_turns"]))
        between = f"{self._frame.before_next_user}{text}{self._frame.before_answer}"
        question = self._continue(ids, between)
        self._queue(self._answer(question, f"{turn.set_name}_turns", rng, turn.num_turns + 1))
        return True

    def _tool_prompt(self, rng: np.random.Generator) -> str:
        """Return a prompt with functions, in its text or as the chat template lists them."""
        if rng.random() >= self._recipe.prompts.template_tools_share:
            return self._frame.frame(self._tools.compose(rng))
        schemas, request = self._tools.draw(rng)
        tools = [{"type": "function", "function": schema} for schema in schemas]
        return self._tokenizer.apply_chat_template(
            [{"role": "user", "content": request}], tools=tools
        )

    def _queue(self, turn: Turn) -> None:
        reserved = MAX_TURN_TOKENS if turn.is_user_turn else 0
        if len(turn.job.prompt_ids) + reserved <= self._recipe.prompts.max_tokens:
            self._waiting.append(turn)

    def _continue(self, ids: IntArray, between: str) -> IntArray:
        """Replace the model's end token by the template's text between two turns."""
        return np.concatenate([ids[:-1], _ids(self._tokenizer, between)])

    def _user_turn(self, prefix: IntArray, rng: np.random.Generator, num_turns: int) -> Turn:
        job = Job(prefix, MAX_TURN_TOKENS, 1.0, _draw_seed(rng))
        return Turn(job, SELF_WRITTEN, is_user_turn=True, num_turns=num_turns)

    def _answer(
        self, ids: IntArray, set_name: str, rng: np.random.Generator, num_turns: int
    ) -> Turn:
        answers = self._recipe.answers
        is_greedy = rng.random() < answers.greedy_share
        temperature = 0.0 if is_greedy else float(rng.choice(answers.temperatures))
        job = Job(ids, answers.max_tokens, temperature, _draw_seed(rng))
        return Turn(job, set_name, num_turns=num_turns)


def _encode(
    tokenizer: Tokenizer, frame: ChatFrame, questions: Sequence[tuple[str, str]], recipe: Recipe
) -> list[_Encoded]:
    """Tokenize questions in parallel; the tokenizer library releases Python's lock."""
    with ThreadPoolExecutor(_NUM_ENCODERS) as pool:
        texts = [frame.frame(question) for question, _ in questions]
        encoded = pool.map(lambda text: _ids(tokenizer, text), texts)
        pairs = zip(encoded, questions, strict=True)
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
