"""Visits to a page in a real browser, each watched for errors and for requests to strangers."""

import re
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

_REFUSED = re.compile(r"Failed to load resource: .* status of 4\d\d")


class Visits:
    """Opens pages of one server and remembers what went wrong in them."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.complaints: list[str] = []
        self._browser = browser
        self._pages: list[Page] = []

    def open(self, path: str = "/", *, width: int = 1280, is_dark: bool = False) -> Page:
        """Open a page as a new visitor."""
        context = self._browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if is_dark else "light"
        )
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.goto(self.url + path)
        self._pages.append(page)
        return page

    def close(self) -> None:
        """End all visits."""
        for page in self._pages:
            page.context.close()

    def _note(self, kind: str, text: str) -> None:
        # Browsers log every refusal as an error of their own; what the page makes of it counts.
        if kind in ("error", "warning") and not _REFUSED.search(text):
            self.complaints.append(text)

    def _check(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"asked a stranger: {url}")


def ask(page: Page, text: str, max_tokens: int = 48) -> None:
    """Send a message in the chat and wait for the answer's report."""
    if page.locator("#settings").is_visible():
        page.fill("#set-max_tokens", str(max_tokens))
    page.fill("#message", text)
    before = page.locator(".report").count()
    page.press("#message", "Enter")
    expect(page.locator(".report")).to_have_count(before + 1, timeout=60_000)


def always_draft(page: Page, num_tokens: int = 3) -> None:
    """Ask for a fixed K: what "auto" does depends on the machine's other work."""
    page.locator("input[name=mode][value=k]").check(force=True)
    page.fill("#set-k", str(num_tokens))


def answer_text(page: Page) -> str:
    """Read the last answer off the page, line by line."""
    lines = page.locator(".answer").last.locator(".line").all_text_contents()
    return "\n".join(lines).rstrip("\n")
