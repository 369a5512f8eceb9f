import json
import os
from pathlib import Path

import pytest

from headlong.cli.sessions import Session, list_sessions, load_session, save_session
from headlong.errors import HeadlongError, RequestError

MESSAGES = [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "ho\n"}]


def test_conversation_comes_back_as_it_was(state_folder: Path) -> None:
    session = Session("a-model", "Be brief.", MESSAGES)
    save_session("one", session)
    assert load_session("one") == session


def test_latest_conversation_is_named_first(state_folder: Path) -> None:
    for second, name in enumerate(("old", "new")):
        os.utime(save_session(name, Session("m")), (second, second))
    assert list_sessions() == ["new", "old"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "is not a conversation as /save writes it"),
        ("[1]", "is not a conversation as /save writes it"),
        (json.dumps({"model": "m", "messages": [{"role": "user"}]}), "is not a conversation"),
        (json.dumps({"model": "m", "messages": MESSAGES[:1]}), "user and assistant in turn"),
        (json.dumps({"model": "m", "messages": MESSAGES[::-1]}), "user and assistant in turn"),
        (json.dumps({"model": "m", "system": 5, "messages": []}), "user and assistant in turn"),
    ],
)
def test_file_that_is_no_conversation_is_refused(
    state_folder: Path, document: str, problem: str
) -> None:
    save_session("bad", Session("m")).write_text(document)
    with pytest.raises(RequestError, match=problem):
        load_session("bad")


def test_slip_in_a_name_is_guessed(state_folder: Path) -> None:
    save_session("recipes", Session("m"))
    with pytest.raises(RequestError, match="Did you mean 'recipes'"):
        load_session("recipe")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_nobody_else_can_read_what_was_said(state_folder: Path) -> None:
    folder = save_session("one", Session("m")).parent
    assert folder.stat().st_mode & 0o077 == 0


def test_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADLONG_STATE", str(tmp_path / "file"))
    with pytest.raises(HeadlongError, match="HEADLONG_STATE"):
        save_session("one", Session("m"))
