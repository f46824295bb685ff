"""A person looks at the machines: who serves which pools, and what is to be done about it."""

from __future__ import annotations

import re
import signal

from playwright.sync_api import expect

from tests.window.browser.conftest import Visitor
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
