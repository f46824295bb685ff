"""A person looks at the machines: who serves which pools, and what is to be done about it."""

from __future__ import annotations

import re
import signal

from playwright.sync_api import expect

from tests.window.browser.conftest import PHONE, Visitor
from tests.window.browser.test_accessibility import found
from tests.window.conftest import working


def test_workers_and_pools_are_shown_as_they_come_and_leave(visitor: Visitor) -> None:
    visitor.deployment.asks("echo", "Work for a pool")
    page = visitor.signed_in("/")
    expect(page.get_by_test_id("needs-empty").or_(page.get_by_test_id("needs"))).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page).to_have_url(re.compile(r"/workers$"))
    serving = page.locator("[data-testid=worker][data-status=serving]")
    expect(serving).to_have_count(1)
    expect(serving).to_contain_text("default")
    expect(page.locator("[data-testid=pool][data-pool=default]")).to_contain_text("slots")
    with working(visitor.deployment.served.machine) as second:
        expect(serving).to_have_count(2)
        second.send_signal(signal.SIGTERM)
        second.wait(20)
    expect(serving).to_have_count(1)
    expect(page).to_have_title(re.compile("Workers"))


def test_workers_can_be_read_on_a_phone_and_by_everybody(visitor: Visitor) -> None:
    for size, scheme in (((1440, 900), "light"), (PHONE, "dark")):
        page = visitor.signed_in("/workers", scope="read", size=size, scheme=scheme)
        expect(page.get_by_test_id("worker").first).to_be_visible()
        assert found(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
