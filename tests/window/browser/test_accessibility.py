"""Every page: no serious findings of axe in both schemes, and text of agents that is never more than text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.worker_state import MachineFacts, WorkerState, encoded
from orchestrator.config_keys import RedisSettings
from tests.window.browser.conftest import DESKTOP, PHONE, Deployment, Visitor, portable
from tests.window.browser.scripts import EVIL, POEM
from tests.window.browser.test_needs_you import press, queue, row

__all__ = ["queue"]
AXE = Path(__file__).with_name("axe").joinpath("axe.min.js").read_text()
RUN = """(rules) => axe.run(document, {resultTypes: ['violations'], ...rules})
  .then((found) => found.violations)"""
COLOURS = {"runOnly": ["color-contrast"]}
# What a page would have in it if text of an agent had become more than text, or turned what stands around it.
MORE_THAN_TEXT = r"""() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const own = (one) => one.type === 'importmap' || (one.src && new URL(one.src).origin === location.origin);
  const found = all('iframe, object, embed, base, meta[http-equiv], body style, form[action]'
    + ', [onerror], [onclick], [onload], [href^=javascript]')
    .concat(all('img, script').filter((one) => !own(one)));
  const safe = (one) => one.rel === 'noopener noreferrer' && /^https?:$/.test(one.protocol);
  const out = all('a[href]').filter((one) => one.origin !== location.origin && !safe(one));
  const named = all('[title], [aria-label], [placeholder], option').flatMap((one) =>
    [one.title, one.getAttribute('aria-label'), one.getAttribute('placeholder'), one.text]);
  const turns = /.{0,40}[\u202a-\u202e\u2066-\u2069].{0,40}/u;
  return [...found, ...out].map((one) => one.outerHTML.slice(0, 200))
    .concat([document.title, document.body.innerText, ...named].join('\n').match(turns) ?? []);
}"""


def found(page: Page, rules: dict[str, Any] | None = None) -> list[str]:
    """The serious findings, each with its first element."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    violations: list[dict[str, Any]] = page.evaluate(RUN, rules or {})
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in serious]


def looked_over(page: Page) -> None:
    """Looks for findings in both schemes, and for text that is more than text."""
    page.emulate_media(color_scheme="light")
    assert found(page) == [], page.url
    page.emulate_media(color_scheme="dark")
    assert found(page, COLOURS) == [], f"{page.url} in the dark"
    assert page.evaluate(MORE_THAN_TEXT) == [], page.url


@pytest.fixture
def hostile_worker(deployment: Deployment) -> Iterator[str]:
    """A worker whose machine chose its own names."""
    name = f"worker {EVIL}"
    facts = MachineFacts(f"machine {EVIL}", 1, EVIL, 7, 0, int(time.time() * 1000), 0.0)

    async def beats(*, left: bool) -> None:
        url = deployment.served.machine.environ["DENDRO_REDIS_URL"]
        broker = Broker(connect(RedisSettings(url=url)), BrokerConfig(), time.monotonic)
        try:
            state = WorkerState((f"pool {EVIL}",), 0, 1, facts=facts)
            await broker.claims.heartbeat(name, encoded(state), left=left)
        finally:
            await broker.aclose()

    def beat(left: bool) -> None:
        # The browser's library has a loop of its own in this thread.
        thread = threading.Thread(target=lambda: asyncio.run(beats(left=left)))
        thread.start()
        thread.join()

    beat(False)
    yield name
    beat(True)


# It goes over all pages with one browser, in place of a test for each page, scheme and size.
@pytest.mark.usefixtures("queue")
def test_no_page_has_serious_findings_or_text_of_agents_that_is_more_than_text(
    visitor: Visitor, deployment: Deployment, hostile_worker: str
) -> None:
    asks = deployment.asks
    plain, family, plan = asks("hostile", EVIL), asks("evil brood", EVIL), asks("evil design", EVIL)
    patch = asks("patch", EVIL)
    files = portable(deployment, "brood of poets", poem=POEM)
    page = visitor.signed_in("/", bypass_csp=True)
    requests = page.get_by_test_id("request")
    expect(requests).to_have_count(4)
    for one in requests.all():
        one.click()
        expect(one).to_have_attribute("aria-selected", "true")
        expect(page.get_by_test_id("request-detail")).to_contain_text("Folder")
        looked_over(page)
    for key, shown in (("?", "keys"), ("Control+k", "palette"), ("n", "fleet")):
        page.keyboard.press(key)
        if shown != "fleet":
            expect(page.get_by_test_id(shown)).to_be_visible()
            looked_over(page)
            page.keyboard.press("Escape")
    page.get_by_test_id("settings-open").click()
    looked_over(page)
    page.keyboard.press("Escape")
    # A name that an agent gave stands quoted in the window's own words.
    requests.filter(has_text="evil").filter(has_text="asks").click()
    expect(page.get_by_test_id("deny")).to_be_enabled()
    page.keyboard.press("d")
    expect(page.get_by_test_id("notice")).to_contain_text("“<img")
    looked_over(page)
    page.keyboard.press("z")
    expect(requests).to_have_count(4)
    row(page, patch).click()
    expect(page.get_by_test_id("deny")).to_be_enabled()
    press(page, "d")
    walk = {
        "/?answered": "answered-row",
        "/fleet": "tree-row",
        f"/tree/{plain}": "item",
        f"/tree/{family}/1": "item",
        f"/tree/{plan}": "item",
        f"/tree/{family}/1/log": "log-row",
        f"/tree/{patch}/0/proof": "proof-act",
        f"/tree/{family}?at=1": "past-banner",
        f"/tree/{files}/0/changes?by=all": "file",
        "/workers": "worker",
        "/spend?by=tree": "spend-row",
    }
    for path, shown in walk.items():
        page.goto(f"{deployment.url}{path}")
        expect(page.get_by_test_id(shown).first).to_be_visible()
        if shown == "file":
            page.get_by_test_id("file").filter(has_text="poem").click()
            expect(page.get_by_test_id("conflict")).to_contain_text("⟨U+202E⟩evil")
            # Both with words of it marked: side by side at a desk, in one column on a phone.
            expect(page.locator("mark").first).to_be_visible()
            page.get_by_role("button", name="Remark on line 1", exact=True).last.click()
            page.get_by_test_id("remark-text").fill(EVIL)
            page.get_by_test_id("remark-add").click()
            expect(page.get_by_test_id("remarks")).to_be_visible()
        if path == f"/tree/{plain}":
            # Read as what they are: nothing of them is left out.
            talk = page.get_by_test_id("conversation")
            expect(talk).to_contain_text("<script>alert(2)</script>")
            expect(talk).to_contain_text("⟨U+202E⟩evil")
            assert talk.locator("img, h1, h2").count() == 0
        if shown == "worker":
            expect(page.get_by_test_id("worker").filter(has_text="evil")).to_contain_text("⟨U+202E⟩evil")
        looked_over(page)
    page.goto(f"{deployment.url}/fleet")
    expect(page.get_by_test_id("tree-row").first).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_test_id("new-tree")).to_be_visible()
    looked_over(page)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    # A phone shows the agents of a tree, or the conversation of one of them.
    for path, shown in {"/": "request", **walk, f"/tree/{plain}": "agent", f"/tree/{plan}": "agent"}.items():
        page.goto(f"{deployment.url}{path}")
        expect(page.get_by_test_id(shown).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        if shown in ("request", "tree-row", "agent", "item", "spend-row"):
            assert found(page) == [], f"{path} at a phone"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_sign_in_has_no_serious_findings(visitor: Visitor, size: tuple[int, int]) -> None:
    visitor.allowed.add("401")
    page = visitor.page(size=size, bypass_csp=True)
    page.goto(visitor.deployment.url)
    expect(page.get_by_test_id("sign-in")).to_be_visible()
    looked_over(page)
