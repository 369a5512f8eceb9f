"""What can be done with a message: copy, edit, answer again, see its code and its signs."""

import pytest
from playwright.sync_api import Page, expect

from page_visits import ask

CODE = "Look:\n```python\nx = '**'\n\nprint(x)\n```\n## After\nA **bold** word."
SHOWN = """async (text) => {
    const { AnswerMessage } = await import("/page/message.js");
    const message = new AnswerMessage();
    document.getElementById("chat-welcome").hidden = true;
    document.getElementById("conversation").append(message.element);
    const tokens = [{ text, source: "backbone", depth: 0 }];
    message.push(tokens);
    message.finish();
    message.addFoot({ tokens, end: null, firstTokenMs: 0, decodeMs: 0 }, () => {});
}"""
CLIPBOARD = "navigator.clipboard.readText()"


@pytest.fixture
def page(page: Page) -> Page:
    """Let the page use the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return page


def sent_roles(page: Page, act: str) -> list[tuple[str, str]]:
    """Press a button and read the messages of the request it sends."""
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name=act, exact=True).last.click()
    expect(page.locator("#send")).to_be_visible()
    body = sent.value.post_data_json
    assert body is not None
    return [(one["role"], one["content"]) for one in body["messages"]]


def test_code_is_shown_as_code_and_raw_on_demand(page: Page) -> None:
    page.evaluate(SHOWN, CODE)
    expect(page.locator(".code-bar span")).to_have_text("python")
    assert page.locator(".code").get_attribute("aria-label") == "Code, python"
    assert "`" not in page.locator(".answer").inner_text()
    assert "#" not in page.locator(".answer").inner_text()
    page.get_by_role("button", name="Raw").click()
    lines = page.locator(".answer .line").all_inner_texts()
    assert "\n".join(line.rstrip("\n") for line in lines) == CODE
    expect(page.locator(".code-bar")).to_be_hidden()


def test_longer_fence_holds_shorter_ones(page: Page) -> None:
    page.evaluate(SHOWN, "````md\n```\nx\n```\n````\nafter")
    assert page.locator(".code .line:not(.fence)").all_text_contents() == ["```", "x", "```"]
    assert page.locator(".answer > .line").all_text_contents() == ["after"]


def test_answer_and_code_are_copied_as_written(page: Page) -> None:
    page.evaluate(SHOWN, CODE)
    page.get_by_role("button", name="Copy this code").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate(CLIPBOARD) == "x = '**'\n\nprint(x)"
    page.locator(".foot").get_by_role("button", name="Copy").click()
    page.wait_for_function(f"async (text) => await {CLIPBOARD} === text", arg=CODE)


def test_copy_works_without_a_clipboard(page: Page) -> None:
    """Plain http from another machine has none: the button must not just do nothing."""
    page.evaluate(SHOWN, CODE)
    page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('no')))")
    page.locator(".foot").get_by_role("button", name="Copy").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate(CLIPBOARD) == CODE


def test_edited_message_replaces_what_followed(page: Page) -> None:
    ask(page, "First", max_tokens=4)
    ask(page, "Second", max_tokens=4)
    page.get_by_role("button", name="Edit", exact=True).first.click()
    field = page.get_by_label("Edit your message")
    expect(field).to_be_focused()
    field.press("Escape")
    expect(page.locator(".question")).to_have_text(["First", "Second"])
    page.get_by_role("button", name="Edit", exact=True).first.click()
    field.fill("Changed")
    with page.expect_request("**/v1/chat/completions") as sent:
        field.press("Enter")
    body = sent.value.post_data_json
    assert body is not None
    assert body["messages"] == [{"role": "user", "content": "Changed"}]
    expect(page.locator(".report")).to_have_count(1)
    expect(page.locator(".question")).to_have_text(["Changed"])


def test_answer_is_asked_for_again_in_its_place(page: Page) -> None:
    ask(page, "First", max_tokens=4)
    ask(page, "Second", max_tokens=4)
    roles = sent_roles(page, "Regenerate")
    assert [role for role, _ in roles] == ["user", "assistant", "user"]
    assert roles[-1] == ("user", "Second")
    expect(page.locator(".answer")).to_have_count(2)
    page.reload()
    expect(page.locator(".answer")).to_have_count(2)


def test_figures_are_one_line_until_opened(page: Page) -> None:
    ask(page, "Hello", max_tokens=4)
    expect(page.locator(".report summary")).to_contain_text("tokens/s")
    expect(page.locator(".report .words")).to_be_hidden()
    box = page.locator(".report").bounding_box()
    assert box is not None
    assert box["height"] < 45
    page.locator(".report summary").press("Enter")
    expect(page.locator(".report .words")).to_contain_text("By source")
