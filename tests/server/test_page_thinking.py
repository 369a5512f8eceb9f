"""What a model thinks before it answers, on the page in a real browser."""

from pathlib import Path

from playwright.sync_api import expect

from browser import running_browser
from live_server import ONE_THREAD, serve
from page_visits import Visits, answer_text, ask


def test_reasoning_is_a_closed_block_that_can_be_switched_off(thinking_model_path: Path) -> None:
    options = ("--backend", "numpy", "--mtp", "off")
    with (
        serve(thinking_model_path, *options, environment=ONE_THREAD) as server,
        running_browser() as browser,
    ):
        visits = Visits(browser, server.url)
        page = visits.open()
        ask(page, "hello", max_tokens=6)
        block = page.locator("details.thinking")
        expect(block).to_have_count(1)
        assert block.get_attribute("open") is None
        assert block.locator(".thought").inner_text() == "", "closed"
        block.locator("summary").click()
        assert page.locator(".thinking .tok").count() > 0
        assert answer_text(page) == ""
        page.locator("#set-think").uncheck()
        ask(page, "hello", max_tokens=6)
        expect(block).to_have_count(1)
        assert answer_text(page) != ""
        visits.close()
    assert visits.complaints == []
