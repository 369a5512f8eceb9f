"""The page's table of requests on a phone, and when there are many."""

from playwright.sync_api import Page, expect

from page_visits import ask


def test_requests_are_a_line_each_on_a_phone(page: Page) -> None:
    ask(page, "Hello", max_tokens=2)
    page.set_viewport_size({"width": 360, "height": 740})
    page.click("#tab-requests")
    row = page.locator("#request-table tbody tr").first
    expect(row).to_be_visible()
    box = row.bounding_box()
    assert box is not None
    assert box["height"] < 45
    expect(row.locator("td:visible")).to_have_count(5)
    table = page.locator("#request-table")
    assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), "columns are cut off"
    page.check("#request-columns")
    expect(row.locator("td:visible")).to_have_count(12)


def test_many_requests_are_shown_on_demand(page: Page) -> None:
    listed = page.evaluate(
        """async () => {
            const one = (n) => ({
                created_s: n, route: "/v1/chat/completions", mtp: "auto", report: {}, status: 200,
            });
            const requests = Array.from({ length: 30 }, (_, n) => one(n));
            window.fetch = async () => new Response(JSON.stringify({ requests }));
            const { refreshRequests } = await import("/page/requests.js");
            await refreshRequests();
            const count = () => document.querySelectorAll("#request-table tbody tr").length;
            const before = count();
            document.getElementById("request-rows").click();
            return [before, count()];
        }"""
    )
    assert listed == [20, 30]
