"""What goes into the page's chat and comes out as files: text files dropped or chosen, exports."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from page_visits import answer_text, ask

DROP = """([name, text]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], name));
    const drop = (kind) => new DragEvent(kind, {
        dataTransfer: carried, bubbles: true, cancelable: true,
    });
    const target = document.getElementById("conversation");
    const isOurs = !target.dispatchEvent(drop("dragover"));
    target.dispatchEvent(drop("drop"));
    return isOurs;
}"""


def exported(page: Page, kind: str) -> tuple[str, str]:
    page.press("#export summary", "Enter")
    with page.expect_download() as download:
        page.click(f"#export-{kind}")
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def test_dropped_file_becomes_a_block_of_the_message(page: Page) -> None:
    page.fill("#message", "What does this do?")
    assert page.evaluate(DROP, ["sum.py", "print(1 + 1)\n"])
    block = "What does this do?\n\nsum.py:\n```py\nprint(1 + 1)\n```\n"
    expect(page.locator("#message")).to_have_value(block)
    expect(page.locator("#message")).to_be_focused()
    page.fill("#message", "")
    page.evaluate(DROP, ["notes.md", "```\nx\n```"])
    expect(page.locator("#message")).to_have_value("notes.md:\n````md\n```\nx\n```\n````\n")


def test_chosen_file_is_added_like_a_dropped_one(page: Page) -> None:
    with page.expect_file_chooser() as chooser:
        page.press("#add-file", "Enter")
    file = FilePayload(name="a.txt", mimeType="text/plain", buffer=b"hello")
    chooser.value.set_files([file])
    expect(page.locator("#message")).to_have_value("a.txt:\n```txt\nhello\n```\n")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x" * (256 * 1024 + 1), "big.bin has 262,145 bytes; a file in a message"),
        (b"caf\xe9", "big.bin is not text in UTF-8"),
        (b"a\0b", "big.bin is not text in UTF-8"),
    ],
)
def test_file_that_is_no_message_is_refused(page: Page, content: bytes, problem: str) -> None:
    file = FilePayload(name="big.bin", mimeType="application/octet-stream", buffer=content)
    page.set_input_files("#file-input", [file])
    expect(page.locator("#chat-note")).to_contain_text(problem)
    expect(page.locator("#message")).to_have_value("")


def test_conversation_is_exported_as_markdown_and_json(page: Page) -> None:
    ask(page, "Say it / aloud", max_tokens=6)
    name, text = exported(page, "md")
    assert name == "Say-it-aloud.md"
    assert text.startswith("# Say it / aloud\n\n## You\n\nSay it / aloud\n\n## Answer\n\n")
    assert answer_text(page).strip() in text
    name, text = exported(page, "json")
    assert name == "Say-it-aloud.json"
    told = json.loads(text)
    assert told["title"] == "Say it / aloud"
    question, answer = told["messages"]
    assert question == {"role": "user", "content": "Say it / aloud"}
    assert answer["content"].rstrip("\n") == answer_text(page)
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["finish_reason"] == "length"
