"""A browser calls its person: by the title, and by notifications that the person has chosen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.window.browser.conftest import Visitor
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import press, queue, ready, row

__all__ = ["queue"]
# A browser's notifications cannot be seen from a test: these record what they were given.
# No window is looked at, unless a test says so.
RECORDED = """
window.told = [];
const note = () => {
  const closed = told.filter((one) => one.closed).length;
  Object.assign(document.documentElement.dataset, { told: told.length, closed });
};
window.Notification = class extends EventTarget {
  static permission = "GIVEN";
  static asked = 0;
  static async requestPermission() {
    this.permission = "ANSWER";
    document.documentElement.dataset.asked = ++this.asked;
    return this.permission;
  }
  constructor(title, options) {
    super();
    window.told.push(Object.assign(this, { title, options, closed: false }));
    note();
  }
  close() { this.closed = true; note(); this.onclose?.(); }
};
Document.prototype.hasFocus = () => window.looks ?? false;
"""
HOSTILE = "\u202e<b>Allow</b> me " + "x" * 100


def _page(visitor: Visitor, given: str = "granted", answer: str = "granted", **more: Any) -> Page:
    context = visitor.context(**more)
    context.add_init_script(RECORDED.replace("GIVEN", given).replace("ANSWER", answer))
    page = visitor.page(context)
    page.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code('--scope', 'approve')}")
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    return page


def _choose(page: Page, topic: str, way: str) -> None:
    page.get_by_test_id("settings-open").click()
    page.get_by_test_id(f"calls-{topic}").get_by_text(way, exact=True).click()


def _shows(page: Page, **counts: int) -> None:
    """Waits until so many were told, or closed."""
    for name, count in counts.items():
        expect(page.locator("html")).to_have_attribute(f"data-{name}", f"{count}")


def _told(page: Page) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = page.evaluate(
        "told.map(({ title, options, closed }) => ({ title, body: options.body, closed }))"
    )
    return told


@pytest.mark.usefixtures("queue")
def test_a_person_who_wants_to_be_called_is_led_to_the_very_request(visitor: Visitor) -> None:
    page = _page(visitor, given="default")
    assert page.evaluate("Notification.asked") == 0
    _choose(page, "needs", "Call")
    _shows(page, asked=1)
    assert found(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("f")
    first = visitor.deployment.asks("fetch a", HOSTILE)
    _shows(page, told=1)
    (told,) = _told(page)
    assert told["title"] == "Dendro: a command waits for you"
    assert re.fullmatch(r"“⟨U\+202E⟩<b>Allow</b> me x+…”", told["body"]), told["body"]
    assert "curl" not in str(told)
    page.evaluate("told[0].onclick()")
    expect(row(page, first)).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile(r"/\?request="))
    assert _told(page)[0]["closed"]
    # What is over calls nobody any more.
    visitor.deployment.asks("touch one")
    _shows(page, told=2)
    row(page, first).click()
    page.evaluate("window.looks = true; dispatchEvent(new Event('focus'))")
    third = visitor.deployment.asks("fetch b")
    expect(row(page, third)).to_be_visible()
    assert len(_told(page)) == 2, "a window that is looked at calls nobody"
    for asked in visitor.deployment.call("approval/list")["data"]:
        answer = {"threadId": asked["threadId"], "callId": asked["callId"], "answer": {"decision": "decline"}}
        visitor.deployment.call("approval/answer", {"requests": [answer]})
    _shows(page, closed=2)


@pytest.mark.usefixtures("queue")
def test_a_browser_that_refuses_is_said_to_and_calls_nobody(visitor: Visitor) -> None:
    page = _page(visitor, given="default", answer="denied")
    _choose(page, "needs", "Call")
    expect(page.get_by_role("alert")).to_contain_text("does not allow notifications")
    expect(page.get_by_test_id("calls-needs").get_by_label("Badge")).to_be_checked()
    page.keyboard.press("Escape")
    expect(row(page, visitor.deployment.asks("touch one"))).to_be_visible()
    expect(page).to_have_title("(1) Dendro")
    _choose(page, "needs", "Off")
    expect(page).to_have_title("Dendro")
    assert _told(page) == []


@pytest.mark.usefixtures("queue")
def test_a_tree_has_its_own_rule(visitor: Visitor) -> None:
    page = _page(visitor)
    silent, called = visitor.deployment.begins("Silent"), visitor.deployment.begins("Called")
    for tree, rule in ((silent, "off"), (called, "call")):
        page.goto(f"{visitor.deployment.url}/tree/{tree}")
        page.get_by_test_id("tree-more").click()
        page.get_by_test_id("tree-rule").select_option(rule)
        page.keyboard.press("Escape")
        expect(page.get_by_test_id("conversation")).to_contain_text("Nothing has been said here yet.")
        assert found(page) == []
    page.goto(f"{visitor.deployment.url}/fleet")
    expect(page.get_by_test_id("tree-row").first).to_be_visible()
    visitor.deployment.say(silent, "touch one")
    expect(page.get_by_test_id("tree-row").filter(has_text="Silent")).to_have_attribute("data-state", "needs")
    expect(page).to_have_title("Fleet · Dendro")
    visitor.deployment.say(called, "fetch a")
    _shows(page, told=1)
    expect(page).to_have_title("(1) Fleet · Dendro")
    assert _told(page)[0]["body"] == "“Called”"


@pytest.mark.usefixtures("queue")
def test_a_tree_that_is_ready_calls_where_a_person_wants_that(visitor: Visitor) -> None:
    page = _page(visitor)
    _choose(page, "ready", "Call")
    page.keyboard.press("Escape")
    tree = visitor.deployment.asks("touch one", "Soon ready")
    ready(page, tree)
    assert _told(page) == []
    press(page, "a")
    _shows(page, told=1)
    assert _told(page)[0]["title"] == "Dendro: a tree is ready"
    assert _told(page)[0]["body"] == "“Soon ready”"
    expect(page).to_have_title(re.compile(r"^\(\d+\) Dendro$"))
    page.evaluate("told[0].onclick()")
    expect(page).to_have_url(re.compile(f"/tree/{tree}$"))
    expect(page.get_by_test_id("conversation")).to_contain_text("It is done.")
    _shows(page, closed=1)
