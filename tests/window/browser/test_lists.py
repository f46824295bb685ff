"""A person goes through lists that are longer than the page."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.window.browser.conftest import Visitor


def item(page: Page, words: str) -> Locator:
    """The item of a conversation that begins so."""
    return page.get_by_test_id("item").filter(has_text=re.compile(f"^{re.escape(words)}"))


def place(page: Page) -> dict[str, float]:
    """Where the first row in view stands, by its id."""
    found: dict[str, float] = page.evaluate(
        "(() => { const box = document.querySelector('.items'), top = box.getBoundingClientRect().top;"
        " const row = [...box.querySelectorAll('article')]"
        ".find((one) => one.getBoundingClientRect().bottom > top);"
        " return {[row.dataset.itemId]: Math.round(row.getBoundingClientRect().top - top)}; })()"
    )
    return found


def test_a_long_conversation_draws_what_is_in_view_and_leads_to_any_item(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("many words", "Many words")
    page = visitor.signed_in(f"/tree/{thread}", bypass_csp=True)
    items, box = page.get_by_test_id("item"), page.locator(".items")
    newest = item(page, "Message 89 of many")
    expect(newest).to_be_in_viewport()
    # Rows out of view are not there; those that are say their number, of which nobody knows how many yet.
    assert items.count() < 40
    expect(newest).to_have_attribute("aria-setsize", "-1")
    first = item(page, "Message 0 of many")
    page.mouse.move(*centre(box))
    page.mouse.wheel(0, -30_000)
    expect(page.locator("[aria-setsize='91']").first).to_be_attached()
    page.mouse.wheel(0, -30_000)
    expect(first).to_be_in_viewport()
    expect(first).to_have_attribute("aria-posinset", "2")
    expect(newest).to_have_count(0)
    # What is read does not move when something is said below.
    page.evaluate("document.querySelector('.items').scrollTop = 900")
    expect(first).to_have_count(0)
    stands = place(page)
    (read,) = stands
    visitor.deployment.say(thread, "echo")
    expect(page.locator(".newer")).to_contain_text("new item")
    assert place(page) == stands
    page.locator(".newer").click()
    expect(page.locator(".newer")).to_have_count(0)
    # A link leads to an item, wherever it is.
    page.goto(f"{visitor.deployment.url}/tree/{thread}?item={read}")
    linked = page.locator(f"[data-item-id='{read}']")
    expect(linked).to_be_in_viewport()
    expect(linked).to_have_class(re.compile(r"\bat\b"))
    # Words are found wherever they were said: the browser's own search sees what is drawn alone.
    page.goto(f"{visitor.deployment.url}/tree/{thread}")
    expect(item(page, "Message 89 of many")).to_be_in_viewport()
    page.keyboard.press("Control+f")
    page.keyboard.type("message 3 OF many")
    find, shown = page.get_by_test_id("find"), page.locator(".item.at")
    for said in ("2 of 2", "1 of 2"):
        page.keyboard.press("Enter")
        expect(find).to_contain_text(said)
        expect(shown).to_be_in_viewport()
        expect(shown).to_contain_text("Message 3 of many")
    page.keyboard.press("Enter")
    expect(find).to_contain_text("no more")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("find")).to_have_count(0)


def centre(box: Locator) -> tuple[float, float]:
    """The middle of an element."""
    found = box.bounding_box()
    assert found is not None
    return found["x"] + found["width"] / 2, found["y"] + found["height"] / 2
