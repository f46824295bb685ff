"""Each page is without serious findings of axe, in both schemes, at a desk and at a phone."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.window.browser.conftest import DESKTOP, PHONE, Visitor
from tests.window.browser.test_needs_you import press, queue, row

__all__ = ["queue"]
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
RUN = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"


def found(page: Page) -> list[str]:
    """The serious findings, each with its first element."""
    page.evaluate(AXE)
    violations: list[dict[str, Any]] = page.evaluate(RUN)
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in serious]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.usefixtures("queue")
def test_needs_you_has_no_serious_findings(visitor: Visitor, scheme: str) -> None:
    say = visitor.deployment.asks
    threads = [say("patch"), say("question"), say("hostile")]
    page = visitor.signed_in("/", scheme=scheme, bypass_csp=True)
    for thread in threads:
        row(page, thread).click()
        expect(page.get_by_test_id("request-detail")).to_contain_text("Folder")
        assert found(page) == []
    for key, shown in (("?", "keys"), ("Control+k", "palette")):
        page.keyboard.press(key)
        expect(page.get_by_test_id(shown)).to_be_visible()
        assert found(page) == []
        page.keyboard.press("Escape")
    row(page, threads[0]).click()
    expect(page.get_by_test_id("deny")).to_be_enabled()
    press(page, "d")
    page.goto(f"{visitor.deployment.url}/?answered")
    expect(page.get_by_test_id("answered-row").first).to_be_visible()
    assert found(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.usefixtures("queue")
def test_the_queue_of_a_phone_has_no_serious_findings(visitor: Visitor, scheme: str) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in("/", scheme=scheme, size=PHONE, bypass_csp=True)
    expect(row(page, thread).get_by_test_id("allow")).to_be_visible()
    assert found(page) == []
    row(page, thread).click()
    expect(page.get_by_test_id("request-detail")).to_be_visible()
    assert found(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_sign_in_has_no_serious_findings(visitor: Visitor, scheme: str, size: tuple[int, int]) -> None:
    visitor.allowed.add("401")
    page = visitor.page(scheme=scheme, size=size, bypass_csp=True)
    page.goto(visitor.deployment.url)
    expect(page.get_by_test_id("sign-in")).to_be_visible()
    assert found(page) == []
