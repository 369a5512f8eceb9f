"""Conversations on the page: kept in the browser, bounded, listed, renamed, deleted."""

import pytest
from playwright.sync_api import Page, expect

from page_visits import answer_text, ask

STORED = "JSON.parse(localStorage.getItem('headlong.conversations'))"


def stored(page: Page) -> list[str]:
    titles: list[str] = page.evaluate(f"({STORED} ?? []).map((one) => one.title)")
    return titles


def test_reload_brings_the_conversation_back_with_its_colours(page: Page) -> None:
    page.fill("#set-max_tokens", "24")
    page.locator(".welcome .sample", has_text="JSON").click()
    expect(page.locator(".report")).to_be_attached()
    assert page.locator(".answer .s-grammar").count() > 0
    before = page.locator(".answer").inner_html()
    report = page.locator(".report").text_content()
    page.reload()
    expect(page.locator(".question")).to_contain_text("with a JSON schema")
    assert page.locator(".answer").inner_html() == before
    assert page.locator(".report").text_content() == report
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And then?", max_tokens=4)
    body = sent.value.post_data_json
    assert body is not None
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
    assert all(one.keys() == {"role", "content"} for one in body["messages"])


def test_list_opens_an_earlier_conversation(page: Page) -> None:
    ask(page, "The first one", max_tokens=8)
    text = answer_text(page)
    page.click("#new-chat")
    expect(page.locator("#chat-welcome")).to_be_visible()
    ask(page, "The second one", max_tokens=4)
    page.click("#conversations-open")
    expect(page.locator("#conversation-list .title")).to_have_text(
        ["The second one", "The first one"]
    )
    page.locator("#conversation-list .open", has_text="The first one").click()
    expect(page.locator("#conversations")).to_be_hidden()
    expect(page.locator(".question")).to_have_text("The first one")
    assert answer_text(page) == text


def test_list_renames_and_deletes_by_keyboard(page: Page) -> None:
    ask(page, "Poetry", max_tokens=4)
    page.focus("#conversations-open")
    page.keyboard.press("Enter")
    expect(page.locator("#conversation-list .open")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("Prose")
    page.keyboard.press("Escape")
    expect(page.locator("#conversation-list .title")).to_have_text("Poetry")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("Prose")
    page.keyboard.press("Enter")
    expect(page.locator("#conversation-list .title")).to_have_text("Prose")
    expect(page.locator("#conversation-title")).to_have_text("Prose")
    ask_again = page.get_by_role("button", name="Delete Prose")
    ask_again.press("Enter")
    assert stored(page) == ["Prose"], "one press only asks"
    page.keyboard.press("Enter")
    assert stored(page) == []
    expect(page.locator("#conversations-close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#conversations")).to_be_hidden()
    expect(page.locator("#chat-welcome")).to_be_visible()


def test_oldest_conversations_make_room(page: Page) -> None:
    kept = """async ([number, size]) => {
        const { keepConversation, listConversations } = await import("/page/conversations.js");
        const fits = [];
        for (let i = 0; i < number; i += 1) {
            const messages = [{ role: "user", content: `${i} ${"x".repeat(size)}` }];
            fits.push(keepConversation({ id: `c${i}`, title: `c${i}`, messages }));
            await new Promise((resume) => setTimeout(resume, 2));
        }
        return [listConversations().map((one) => one.id), fits.every(Boolean)];
    }"""
    ids, _ = page.evaluate(kept, [60, 10])
    assert ids == [f"c{i}" for i in range(59, 9, -1)]
    ids, is_kept = page.evaluate(kept, [3, 900_000])
    assert ids == ["c2", "c1"]
    assert is_kept
    ids, is_kept = page.evaluate(kept, [1, 2_100_000])
    assert ids == ["c2", "c1"], "what does not fit takes nothing else away"
    assert not is_kept


def test_browser_s_own_limit_makes_room_too(page: Page) -> None:
    kept = """async () => {
        const { keepConversation, listConversations } = await import("/page/conversations.js");
        localStorage.setItem("other", "x".repeat(5_200_000 - 1_000_000));
        for (const id of ["old", "new"]) {
            const messages = [{ role: "user", content: "x".repeat(600_000) }];
            keepConversation({ id, title: id, messages });
            await new Promise((resume) => setTimeout(resume, 2));
        }
        return listConversations().map((one) => one.id);
    }"""
    assert page.evaluate(kept) == ["new"]


@pytest.mark.parametrize(
    "damaged",
    [
        '[{"id": 1}, nonsense',
        '[{"id": "x", "title": "x", "messages": [{"role": "assistant", "content": "no run"}]}]',
    ],
)
def test_damaged_store_starts_afresh(page: Page, damaged: str) -> None:
    page.evaluate("(text) => localStorage.setItem('headlong.conversations', text)", damaged)
    page.evaluate("sessionStorage.setItem('headlong.conversation', 'x')")
    page.reload()
    ask(page, "Hello", max_tokens=4)
    assert stored(page) == ["Hello"]
