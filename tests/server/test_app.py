"""What is done before the first request, so that none has to wait for it."""

import asyncio
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from headlong.llm import LLM
from headlong.server.app import make_app
from headlong.server.chat import plan_chat
from headlong.server.chat_protocol import ChatBody
from headlong.server.settings import ServerSettings
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer


def test_table_of_tokens_is_there_before_the_first_request(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Tokenizer]()

    def counted(tokenizer: Tokenizer) -> LLTokenizer:
        made.append(tokenizer)
        return make_token_table(tokenizer)

    monkeypatch.setattr("headlong.text.grammar.make_token_table", counted)
    llm = LLM.load(tiny_model_path, backend="numpy")
    app = make_app(llm, ServerSettings())

    async def start_and_ask() -> None:
        async with app.router.lifespan_context(app):
            assert made == [llm.tokenizer]
            body = {"messages": [{"role": "user", "content": "hello"}]}
            wanted = {**body, "response_format": {"type": "json_object"}}
            assert plan_chat(app.state.service, ChatBody.model_validate(wanted), "auto").asks

    asyncio.run(start_and_ask())
    assert made == [llm.tokenizer]
