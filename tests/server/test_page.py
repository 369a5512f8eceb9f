"""The page at / in a real browser, against a real server process and the real model."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from live_server import LiveServer, serve
from page_visits import Visits, always_draft, answer_text, ask

KEY = "a-key-for-the-page"
PROMPT = "Write a Python function that adds two numbers."
ONE_THREAD = {**os.environ, "HEADLONG_THREADS": "1"}
"""The browser wants a core too."""


@pytest.fixture(scope="module")
def server(default_model_path: Path) -> Iterator[LiveServer]:
    with serve(default_model_path, environment=ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def locked_server(default_model_path: Path) -> Iterator[LiveServer]:
    with serve(default_model_path, "--api-key", KEY, environment=ONE_THREAD) as server:
        yield server


@pytest.fixture
def visits(browser: Browser, server: LiveServer) -> Iterator[Visits]:
    yield from watched(Visits(browser, server.url))


@pytest.fixture
def locked_visits(browser: Browser, locked_server: LiveServer) -> Iterator[Visits]:
    yield from watched(Visits(browser, locked_server.url))


def watched(visits: Visits) -> Iterator[Visits]:
    """Fail a test whose pages logged an error or asked another host for anything."""
    yield visits
    visits.close()
    assert visits.complaints == []


def scrolls_sideways(page: Page) -> bool:
    boxes = page.locator("html, main, .conversation, .rail")
    return any(boxes.evaluate_all("all => all.map(one => one.scrollWidth > one.clientWidth + 1)"))


def test_answer_is_the_api_s_own_in_colours(visits: Visits, server: LiveServer) -> None:
    page = visits.open()
    always_draft(page)
    ask(page, PROMPT)
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": 48, "temperature": 0, "mtp": "off"}
    plain = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert answer_text(page) == plain.rstrip("\n")
    drafted = page.locator(".answer .tok[class*='s-head-']")
    own = page.locator(".answer .tok.s-backbone")
    assert drafted.count() >= 5
    assert own.count() >= 5
    colour = "one => getComputedStyle(one).borderBottomColor"
    assert drafted.first.evaluate(colour) != own.first.evaluate(colour)
    report = page.locator(".report").inner_text()
    assert re.search(r"[\d.]+ tokens/s", report)
    assert re.search(r"[\d.]+ tokens per pass", report)
    assert page.locator(".histogram rect").count() >= 2


def test_hint_names_source_depth_and_round(visits: Visits) -> None:
    page = visits.open()
    always_draft(page)
    ask(page, PROMPT)
    page.locator(".answer .tok.s-head-2:visible").first.hover()
    expect(page.locator("#tooltip")).to_contain_text("Drafted by the head, depth 2")
    expect(page.locator("#tooltip")).to_contain_text(re.compile(r"[3-9] tokens from one pass"))
    assert page.locator(".tok.same-round").count() >= 3


def test_sample_by_schema_shows_the_grammar_s_tokens(visits: Visits) -> None:
    page = visits.open()
    always_draft(page)
    page.locator(".welcome .sample", has_text="JSON").click()
    expect(page.locator(".report")).to_contain_text("by grammar", timeout=60_000)
    assert page.locator(".answer .tok.s-grammar").count() >= 5
    assert {"name", "email", "address"} <= set(json.loads(answer_text(page)))


def test_stop_keeps_the_text_and_frees_the_engine(visits: Visits, server: LiveServer) -> None:
    page = visits.open()
    page.fill("#set-max_tokens", "4000")
    page.fill("#message", "Write a very long story about a lighthouse keeper.")
    page.press("#message", "Enter")
    expect(page.locator(".answer .tok").nth(20)).to_be_attached()
    page.click("#stop")
    expect(page.locator(".report")).to_contain_text("stopped")
    assert answer_text(page)
    deadline = time.monotonic() + 5
    while server.get("/headlong/live").json()["now"]["running"]:
        assert time.monotonic() < deadline, "the stopped request still runs"
        time.sleep(0.05)
    ask(page, "Hello")  # and the next one works


def test_conversation_goes_on_with_its_history(visits: Visits) -> None:
    page = visits.open()
    page.fill("#set-system", "You answer briefly.")
    ask(page, "My name is Ada.", max_tokens=16)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is my name?", max_tokens=16)
    body = sent.value.post_data_json
    assert body is not None
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["mtp"], body["temperature"], body["max_tokens"]) == ("auto", 0, 16)
    assert "seed" not in body


def test_settings_reach_the_request_and_are_kept(visits: Visits) -> None:
    page = visits.open()
    always_draft(page)
    for field, value in (("seed", "7"), ("temperature", "0.7")):
        page.fill(f"#set-{field}", value)
    page.reload()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello", max_tokens=4)
    body = sent.value.post_data_json
    assert body is not None
    assert (body["mtp"], body["seed"], body["temperature"]) == (3, 7, 0.7)


def test_race_ends_with_identical_text_and_a_factor(visits: Visits) -> None:
    page = visits.open("/#race")
    always_draft(page)
    page.fill("#set-max_tokens", "64")
    page.fill("#set-temperature", "0.7")
    page.fill("#set-seed", "7")
    page.fill("#race-prompt", PROMPT)
    page.click("#race-start")
    expect(page.locator("#race-same")).to_contain_text("identical text", timeout=120_000)
    turns = re.compile(r"\d turns from \d|single turn")
    expect(page.locator(".verdict .note")).to_contain_text(turns)
    compared = re.search(r"(\d+) tokens", page.locator("#race-same").inner_text())
    assert compared is not None
    assert int(compared[1]) >= 20
    assert re.fullmatch(r"\d+\.\d\d ×", page.locator("#race-factor").inner_text())
    expect(page.locator(".verdict")).not_to_contain_text("Others used the server")
    plain, fast = page.locator(".lane .answer").all_text_contents()
    assert plain.strip()
    assert plain == fast
    assert page.locator(".lane").last.locator(".tok[class*='s-head-']").count() >= 3
    assert page.locator(".lane").first.locator(".tok:not(.s-backbone)").count() == 0


def test_race_notices_texts_that_part(visits: Visits) -> None:
    page = visits.open()
    differs_at = """async ([one, other]) => {
        const { compareRuns } = await import("/page/recording.js");
        const run = (ids) => ({
            tokens: ids.map((id) => ({ id, text: "x" })), end: { finishReason: "stop" },
        });
        return compareRuns(run(one), run(other)).differsAt;
    }"""
    assert page.evaluate(differs_at, [[1, 2, 3], [1, 2, 3]]) is None
    assert page.evaluate(differs_at, [[1, 2, 3], [1, 9, 3]]) == 1
    assert page.evaluate(differs_at, [[1, 2, 3], [1, 2]]) == 2


@pytest.mark.parametrize(
    ("speedups", "tokens_per_pass", "shown", "doubt"),
    [
        ((2.4, 2.5, 2.3), 3.0, 2.4, ""),
        ((2.0, 2.1, 3.6), 6.0, 2.1, "differ widely"),
        ((7.4,), 6.05, 7.4, "More than its tokens per pass"),
        ((7.4, 2.5, 9.0), 6.05, 7.4, "More than its tokens per pass"),
        ((2.5, 7.4), 6.05, 2.5, "differ widely"),
    ],
)
def test_race_is_judged_by_its_middle_turn_and_says_its_doubts(
    visits: Visits, speedups: list[float], tokens_per_pass: float, shown: float, doubt: str
) -> None:
    page = visits.open()
    words = """async ([speedups, acceptance_length]) => {
        const { judge } = await import("/page/turns.js");
        const { renderVerdict } = await import("/page/stage.js");
        const run = (decodeMs) => ({
            decodeMs, tokens: [1, 2, 3], end: { mtp: { acceptance_length } },
        });
        const judged = judge(speedups.map((one) => ({ plain: run(one * 100), fast: run(100) })));
        const runs = [judged.shown.plain, judged.shown.fast].map((run) => ({ name: "x", run }));
        const numTurns = speedups.length;
        const parts = renderVerdict(runs, { ...judged, numTurns, differsAt: null, length: 3 });
        return parts.map((part) => part.innerText || part.textContent);
    }"""
    factor, verdict = page.evaluate(words, [speedups, tokens_per_pass])
    assert factor == f"{shown:.2f} ×"
    assert doubt in verdict
    assert bool(doubt) == ("Race again" in verdict)


def test_live_charts_get_data(visits: Visits, server: LiveServer) -> None:
    plain = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, "mtp": "off"}
    server.post("/v1/chat/completions", plain)  # a speed-up is against something measured
    page = visits.open()
    always_draft(page)
    ask(page, PROMPT, max_tokens=96)
    page.click("#tab-live")
    for title in ("Tokens per second", "Rows per pass", "Streams"):
        line = page.locator(".chart", has_text=title).locator(".stroke").first
        expect(line).to_have_attribute("d", re.compile("M.* L"))
    gain = page.locator(".chart", has_text="Speed-up").locator(".stroke, .dot")
    expect(gain.first).to_be_attached()
    expect(page.locator(".column.s-head-1")).not_to_have_attribute("height", "0")
    expect(page.locator("#totals")).to_contain_text("Tokens out")
    live = server.get("/headlong/live").json()
    assert max(one["tokens_per_second"] for one in live["samples"]) > 5
    assert live["recent"]["acceptance_length"] > 1.2


def test_requests_are_listed_without_their_text(visits: Visits, server: LiveServer) -> None:
    page = visits.open()
    ask(page, "Say the word zanzibar.", max_tokens=8)
    page.click("#tab-requests")
    row = page.locator("#request-table tbody tr").first
    for fact in ("chat", "auto", "200"):
        expect(row).to_contain_text(fact)
    assert "zanzibar" not in server.get("/headlong/requests").text.lower()


def test_card_names_model_head_and_backend(visits: Visits, server: LiveServer) -> None:
    page = visits.open()
    name = server.get("/v1/models").json()["data"][0]["id"]
    expect(page.locator("#card-name")).to_have_text(name)
    for fact in ("Q4_1", "135 M parameters", "EAGLE-3", "8,192 tokens"):
        expect(page.locator("#card")).to_contain_text(fact)


def test_theme_follows_the_system_until_toggled(visits: Visits) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = visits.open(), visits.open(is_dark=True)
    assert light.evaluate(background) != dark.evaluate(background)
    light.click("#theme-toggle")
    assert light.evaluate(background) == dark.evaluate(background)
    light.reload()
    assert light.evaluate(background) == dark.evaluate(background)


@pytest.mark.parametrize("width", [360, 768])
def test_narrow_screens_never_scroll_sideways(visits: Visits, width: int) -> None:
    page = visits.open(width=width)
    ask(page, "Write a Python function with a very long line of code.")
    for view in ("chat", "race", "live", "requests"):
        page.click(f"#tab-{view}")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        page.wait_for_timeout(150)
        assert not scrolls_sideways(page), view
    page.click("#tab-chat")
    page.click("#rail-toggle")
    expect(page.locator("#settings")).to_be_visible()
    assert not scrolls_sideways(page)


def test_views_and_fields_work_by_keyboard(visits: Visits) -> None:
    page = visits.open()
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-race")).to_be_visible()
    expect(page.locator("#tab-race")).to_be_focused()
    expect(page.locator("#tab-race")).to_have_attribute("aria-selected", "true")
    is_unnamed = "one => !(one.labels?.length || one.ariaLabel || one.textContent.trim())"
    fields = page.locator("button, input, textarea, select")
    assert fields.evaluate_all(f"all => all.filter({is_unnamed}).map(one => one.outerHTML)") == []


def test_refusal_is_shown_in_the_server_s_words(visits: Visits) -> None:
    page = visits.open()
    page.fill("#message", "word " * 9000)
    page.press("#message", "Enter")
    expect(page.locator(".error")).to_contain_text(re.compile(r"9\d\d\d.*8[\d,]{3,}"))
    expect(page.locator("#send")).to_be_visible()


def test_missing_and_wrong_keys_are_told_apart(locked_visits: Visits) -> None:
    page = locked_visits.open()
    expect(page.locator("#key-message")).to_have_text("This server asks for an API key.")
    page.fill("#key-input", "not-the-right-key")
    page.click("#key-form .button")
    expect(page.locator("#key-message")).to_contain_text("does not accept this API key")
    page.fill("#key-input", KEY)
    page.click("#key-form .button")
    expect(page.locator("#key-form")).to_be_hidden()
    expect(page.locator("#card-name")).not_to_have_text("…")
    ask(page, "Hello", max_tokens=8)
    assert KEY in page.evaluate("JSON.stringify(sessionStorage)")
    assert KEY not in page.evaluate("JSON.stringify(localStorage) + document.cookie")


def test_model_text_never_becomes_markup(visits: Visits) -> None:
    page = visits.open()
    shown = """async (text) => {
        const { AnswerView } = await import("/page/answer.js");
        const element = document.body.appendChild(document.createElement("div"));
        const view = new AnswerView(element);
        const token = (text) => ({ text, source: "head", depth: 1 });
        view.push([token(text), ...[...text].map(token)]);
        view.finish();
        return [element.textContent, element.querySelectorAll("img, script, a, [onerror]").length];
    }"""
    evil = "<img src=x onerror=alert(1)> **<script>alert(1)</script>** `<a href='//x'>`"
    assert page.evaluate(shown, evil) == [evil + evil, 0]


def test_code_blocks_keep_every_character(visits: Visits) -> None:
    page = visits.open()
    shown = """async (text) => {
        const { AnswerView } = await import("/page/answer.js");
        const element = document.body.appendChild(document.createElement("div"));
        const view = new AnswerView(element);
        view.push([{ text, source: "backbone", depth: 0 }]);
        view.finish();
        const code = [...element.querySelectorAll(".code .line")];
        return [code.map((line) => line.textContent), element.querySelector("b").textContent];
    }"""
    text = "A **bold** word.\n```python\nx = '**'\n```\nAfter."
    assert page.evaluate(shown, text) == [["```python", "x = '**'", "```"], "bold"]
