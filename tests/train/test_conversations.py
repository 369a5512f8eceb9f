"""Conversations: which turns are generated, and which follow-ups."""

from collections import Counter

import numpy as np

from headlong.text.tokenizer import Tokenizer
from headlong.train.conversations import SELF_WRITTEN, Conversations
from headlong.train.prompt_files import Prompt
from headlong.train.questions import WORDINGS
from headlong.train.recipe import make_recipe
from headlong.train.tool_prompts import COMPOSED_TOOLS
from tiny_text import byte_level_tokenizer

PROMPTS = [Prompt((f"say {word}",), "words", "chat") for word in ("a", "b", "c", "hello")]
PASSAGE = Prompt((f"Read.\n\nPassage:\n{'One two three. ' * 30}\n\nWhy?",), "reading", "rag")


def make(tokenizer: Tokenizer, *, first: int = 0, **prompts: float) -> Conversations:
    """Conversations about a few words."""
    recipe = make_recipe(
        {"prompts": {"max_tokens": 700, "tool_share": 0.0, "code_share": 0.0, **prompts}}
    )
    return Conversations([*PROMPTS, PASSAGE], tokenizer, recipe, first)


def test_the_same_number_gives_the_same_turn() -> None:
    tokenizer = byte_level_tokenizer()
    whole, later = make(tokenizer), make(tokenizer, first=30)
    turns = [whole.next_turn() for _ in range(60)]
    for turn in turns[30:]:
        again = later.next_turn()
        assert again.job.seed == turn.job.seed
        assert again.job.prompt_ids.tolist() == turn.job.prompt_ids.tolist()


def test_shares_follow_the_recipe() -> None:
    source = make(byte_level_tokenizer(), self_written_share=0.4, passage_share=0.2)
    found = Counter(source.next_turn().set_name for _ in range(1000))
    assert 340 < found[SELF_WRITTEN] < 460
    assert 150 < found["reading_passages"] < 250
    assert found["words"] > 200


def test_tool_prompts_get_their_share() -> None:
    source = make(byte_level_tokenizer(), self_written_share=0.2, tool_share=0.5, max_tokens=4000)
    found = Counter(source.next_turn().set_name for _ in range(400))
    assert 150 < found[COMPOSED_TOOLS] < 250


def test_a_written_user_turn_becomes_a_prompt() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(tokenizer, self_written_share=1.0, passage_share=0.0)
    turn = source.next_turn()
    assert turn.is_user_turn
    written = tokenizer.encode("how are you?<|im_end|>", add_special=False)
    is_answer = source.finish(turn, np.concatenate([turn.job.prompt_ids, written]))
    assert not is_answer
    answer = source.next_turn()
    expected = tokenizer.encode_chat([{"role": "user", "content": "how are you?"}])
    assert not answer.is_user_turn
    assert answer.job.prompt_ids.tolist() == expected


def test_an_unfinished_user_turn_is_dropped() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(tokenizer, self_written_share=1.0, passage_share=0.0)
    turn = source.next_turn()
    written = tokenizer.encode("how are", add_special=False)
    source.finish(turn, np.concatenate([turn.job.prompt_ids, written]))
    assert source.next_turn().is_user_turn


def test_a_conversation_continues_in_the_template_s_format() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(tokenizer, self_written_share=0.0, passage_share=0.0, second_turn_share=1.0)
    turn = source.next_turn()
    written = tokenizer.encode("fine<|im_end|>", add_special=False)
    assert source.finish(turn, np.concatenate([turn.job.prompt_ids, written]))
    follow_up = source.next_turn()
    assert follow_up.is_user_turn
    assert follow_up.num_turns == 2
    text = tokenizer.decode(follow_up.job.prompt_ids.tolist(), skip_special=False)
    assert text.endswith("fine<|im_end|>\n<|im_start|>user\n")


def test_prompts_that_are_too_long_are_left_out() -> None:
    recipe = make_recipe({"prompts": {"max_tokens": 60, "self_written_share": 0.0}})
    source = Conversations([*PROMPTS, PASSAGE], byte_level_tokenizer(), recipe)
    assert {source.next_turn().set_name for _ in range(50)} == {"words"}


def test_code_in_an_answer_is_asked_about_next() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(tokenizer, self_written_share=0.0, passage_share=0.0, code_turn_share=1.0)
    turn = source.next_turn()
    written = tokenizer.encode("```\nx = 1\n```<|im_end|>", add_special=False)
    assert source.finish(turn, np.concatenate([turn.job.prompt_ids, written]))
    follow_up = source.next_turn()
    assert not follow_up.is_user_turn
    assert follow_up.num_turns == 2
    assert follow_up.set_name == f"{turn.set_name}_turns"
    text = tokenizer.decode(follow_up.job.prompt_ids.tolist())
    assert any(question in text for question in WORDINGS["code_turns"])


def test_an_answer_without_code_is_not_asked_about() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(
        tokenizer,
        self_written_share=0.0,
        passage_share=0.0,
        second_turn_share=0.0,
        code_turn_share=1.0,
    )
    turn = source.next_turn()
    written = tokenizer.encode("fine<|im_end|>", add_special=False)
    source.finish(turn, np.concatenate([turn.job.prompt_ids, written]))
    assert source.next_turn().num_turns == 1


def test_functions_are_listed_as_the_template_lists_them() -> None:
    tokenizer = byte_level_tokenizer()
    source = make(
        tokenizer,
        self_written_share=0.0,
        passage_share=0.0,
        tool_share=1.0,
        template_tools_share=1.0,
        max_tokens=6000,
    )
    turns = [tokenizer.decode(source.next_turn().job.prompt_ids.tolist()) for _ in range(8)]
    assert all('"type": "function"' in text for text in turns)
