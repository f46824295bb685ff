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


# Ten thousand rows of many heights, in a box of 400 pixels: what the test asks of them is answered as text.
LAB = """async () => {
  const scripts = new URL('.', document.querySelector('script[type=module]').src).href;
  const { Rows } = await import(scripts + 'rows.js');
  const { h, render } = await import('preact');
  const { useRef } = await import('preact/hooks');
  const { signal } = await import('@preact/signals');
  const keys = signal(Array.from({length: 10_000}, (_, n) => `${n}`)), chosen = signal(null), more = {};
  const high = (id) => 20 + (Number(id.replace('new', '')) * 7) % 41;
  const Row = ({ id, index, count, at }) => h('div', { ...at, style: { ...at.style, height: `${high(id)}px` },
    'aria-posinset': index + 1, 'aria-setsize': count, tabindex: -1 }, id);
  const Box = () => { const box = useRef(); return h('div', { ref: box, id: 'lab',
    style: { position: 'fixed', top: 0, left: 0, width: '300px', height: '400px', overflow: 'auto' } },
    h(Rows, { keys: keys.value, Row, more, box, usual: 30, chosen, name: 'lab' })); };
  const place = document.body.appendChild(document.createElement('div'));
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const box = () => document.querySelector('#lab');
  const rows = () => [...box().querySelectorAll('[data-row]')];
  const inView = () => rows().filter((one) => { const { top, bottom } = one.getBoundingClientRect();
    return bottom > 0 && top < 400; });
  const first = () => { const [row] = inView(); return `${row.dataset.row} at ${
    Math.round(row.getBoundingClientRect().top)}`; };
  const joined = () => inView().every((one, n, all) => !n || Math.abs(
    all[n - 1].getBoundingClientRect().bottom - one.getBoundingClientRect().top) < 1);
  const found = {};
  render(h(Box), place); await frame();
  found.first = first(); found.few = rows().length < 60; found.joined = joined();
  chosen.value = '7777'; await frame();
  const row = inView().find((one) => one.dataset.row === '7777');
  found.chosen = row && `${row.ariaPosInSet} of ${row.ariaSetSize}`; found.chosenJoined = joined();
  row?.focus();
  box().scrollTop = 50_000; await frame(); await frame();
  found.kept = rows().some((one) => one.dataset.row === '7777') && document.activeElement.dataset.row;
  found.order = rows().map((one) => Number(one.dataset.row)).every((one, n, all) => !n || one > all[n - 1]);
  const before = first();
  keys.value = [...Array.from({length: 100}, (_, n) => `new${n}`), ...keys.value]; await frame();
  found.stays = first() === before && joined(); found.farStill = rows().length < 60;
  render(null, place); render(h(Box), place); await frame(); await frame();
  found.comesBack = first() === before;
  keys.value = keys.value.slice(0, 3); await frame();
  found.short = inView().map((one) => one.dataset.row).join(' ');
  return found;
}"""


def test_rows_of_any_height_stand_where_they_stood_while_others_come_and_go(visitor: Visitor) -> None:
    page = visitor.signed_in("/workers", bypass_csp=True)
    assert page.evaluate(LAB) == {
        "first": "0 at 0",
        "few": True,
        "joined": True,
        "chosen": "7778 of 10000",
        "chosenJoined": True,
        "kept": "7777",
        "order": True,
        "stays": True,
        "farStill": True,
        "comesBack": True,
        "short": "new0 new1 new2",
    }
