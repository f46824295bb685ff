"""A walk through the whole window, as a person makes it: `make walk` keeps its pictures.

Ten requests of four kinds are answered, with the mouse, at a phone and with keys alone; a tree is followed,
its past visited, a remark sent, a budget raised, a tree ended, the line lost. Each part that has a name for
programs is seen on the way. `DENDRO_WALK` names a folder for pictures.
"""

from __future__ import annotations

import os
import re
import signal
from itertools import count
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.window.browser.conftest import PHONE, Deployment, Visitor, portable
from tests.window.browser.test_needs_you import decision, press, queue, ready, row
from tests.window.test_names_of_parts import ATTRIBUTES, NAMES

__all__ = ["queue"]
FOLDER = os.environ.get("DENDRO_WALK")
WORK = (
    ("touch one", "Keep a note of the release"),
    ("patch", "Write the notes of the release"),
    ("question", "Choose the colour of the sign"),
    ("plan", "Upgrade the database"),
    ("fetch a", "Fetch the symbols of 7.4.1"),
    ("patch", "Write the notes once more"),
    ("question", "Choose the colour of the door"),
    ("fetch b", "Fetch the symbols of 7.4.2"),
    ("plan", "Upgrade the other database"),
    ("question", "Choose the colour of the roof"),
)
"""Ten requests: the script that asks, and the title of its tree."""
PARTS = "[...document.querySelectorAll('[data-testid]')].map((one) => one.dataset.testid)"


class Walk:
    """The pictures of a walk, in their order; none where no folder is named."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self._number = count(1)
        self.parts: set[str] = set()
        """The names of the parts that were seen."""

    def seen(self, page: Page, name: str) -> None:
        """Keeps what is seen, light and dark; nothing may stand beyond the page's edge."""
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        self.parts |= set(page.evaluate(PARTS))
        for part, attributes in ATTRIBUTES.items():
            lacks = "(all, names) => all.flatMap((one) => names.filter((name) => !one.hasAttribute(name)))"
            assert page.get_by_test_id(part).evaluate_all(lacks, list(attributes)) == [], part
        number = next(self._number)
        for scheme in ("light", "dark") if FOLDER else ():
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.screenshot(path=Path(FOLDER or "") / f"{number:02}-{name}-{scheme}.png")
        page.emulate_media(color_scheme="light")


@pytest.mark.night
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("queue")
def test_a_day_in_the_window_is_walked_through(visitor: Visitor, deployment: Deployment) -> None:
    walk = Walk(visitor)
    changed = portable(deployment, "patch")
    asked = [deployment.asks(script, name) for script, name in WORK]
    page = visitor.signed_in("/")
    expect(page.get_by_test_id("request")).to_have_count(len(WORK))
    _with_the_mouse(walk, page, asked[:4], asked[7])
    _at_a_phone(walk, asked[4:7])
    _with_keys_alone(walk, page, asked[7:])
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    walk.seen(page, "nobody-waits")
    decided = "accept decline answer accept accept accept answer accept revise answer"
    assert [decision(deployment, each) for each in asked] == decided.split()
    tree = _followed(walk, page)
    _past(walk, page, tree)
    _remark(walk, page, changed)
    _raised_and_ended(walk, page, tree)
    _elsewhere(walk, page)
    _lost(walk, page)
    assert sorted({*NAMES} - walk.parts) == []


def _with_the_mouse(walk: Walk, page: Page, asked: list[str], alike: str) -> None:
    command, patch, question, plan = asked
    ready(page, alike)
    page.keyboard.press("x")
    expect(page.get_by_test_id("selection")).to_contain_text("2 requests")
    walk.seen(page, "selection")
    page.keyboard.press("x")
    expect(page.get_by_test_id("selection")).to_have_count(0)
    ready(page, command)
    expect(page.get_by_test_id("request-detail")).to_contain_text("What led here")
    walk.seen(page, "command")
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("allow").click()
    ready(page, patch)
    walk.seen(page, "patch")
    page.get_by_test_id("deny").click()
    expect(page.get_by_test_id("notice")).to_contain_text("Denied")
    walk.seen(page, "denied")
    row(page, question).click()
    page.get_by_label("green").check()
    walk.seen(page, "question")
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("answer").click()
    ready(page, plan)
    walk.seen(page, "plan")
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("allow").click()
    # What was denied is sent when it cannot be taken back any more.
    expect(page.get_by_test_id("notice").filter(has_text="Denied")).to_have_count(0)


def _at_a_phone(walk: Walk, asked: list[str]) -> None:
    command, patch, question = asked
    page = walk.visitor.signed_in("/", size=PHONE)
    expect(row(page, command)).to_be_visible()
    walk.seen(page, "phone-needs")
    with page.expect_response("**/api/approval/answer"):
        row(page, command).get_by_test_id("allow").tap()
    expect(row(page, command)).to_have_count(0)
    row(page, patch).get_by_test_id("read").tap()
    expect(page.get_by_test_id("request-detail")).to_contain_text("notes.txt")
    walk.seen(page, "phone-patch")
    # A text that is longer than the page is read to its end.
    page.get_by_test_id("request-detail").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    detail = page.get_by_test_id("request-detail")
    with page.expect_response("**/api/approval/answer"):
        detail.get_by_test_id("allow").tap()
    page.get_by_role("link", name=re.compile("Needs you")).first.tap()
    row(page, question).get_by_test_id("read").tap()
    page.get_by_label("red").check()
    walk.seen(page, "phone-question")
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("answer").tap()
    page.get_by_test_id("tabbar").get_by_text("Fleet").tap()
    expect(page.get_by_test_id("tree-row").first).to_be_visible()
    walk.seen(page, "phone-fleet")
    page.get_by_test_id("tree-row").first.tap()
    expect(page.get_by_test_id("agent").first).to_be_visible()
    walk.seen(page, "phone-tree")
    page.get_by_test_id("agent").first.tap()
    expect(page.locator("[data-testid=item][data-type=userMessage]")).to_be_visible()
    walk.seen(page, "phone-conversation")
    page.context.close()


def _with_keys_alone(walk: Walk, page: Page, asked: list[str]) -> None:
    command, plan, question = asked
    page.keyboard.press("g")
    page.keyboard.press("n")
    # What was answered at the phone has folded away.
    expect(page.get_by_test_id("request")).to_have_count(len(asked))
    _chosen(page, command)
    press(page, "a")
    _chosen(page, plan)
    page.keyboard.press("r")
    page.keyboard.type("One at a time, please.")
    walk.seen(page, "plan-sent-back")
    # What has been answered elsewhere folds away above: no key answers just then.
    expect(page.get_by_test_id("request")).to_have_count(2)
    expect(page.get_by_test_id("answer")).to_be_enabled()
    press(page, "Control+Enter")
    _chosen(page, question)
    page.keyboard.press("r")
    page.keyboard.press("ArrowDown")
    walk.seen(page, "question-by-keys")
    expect(page.get_by_test_id("answer")).to_be_enabled()
    press(page, "Enter")


def _chosen(page: Page, thread: str) -> None:
    """Goes down to a request by keys, and waits until it may be answered."""
    rows = page.get_by_test_id("request").evaluate_all(
        "all => all.map((one) => [one.dataset.thread, one.getAttribute('aria-selected') === 'true'])"
    )
    here = next((at for at, (_, chosen) in enumerate(rows) if chosen), 0)
    steps = [named for named, _ in rows].index(thread) - here
    for _ in range(abs(steps)):
        page.keyboard.press("j" if steps > 0 else "k")
    expect(row(page, thread)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_test_id("allow").or_(page.get_by_test_id("answer")).first).to_be_visible()
    if page.get_by_test_id("allow").count():
        expect(page.get_by_test_id("allow")).to_be_enabled()


def _followed(walk: Walk, page: Page) -> str:
    """A tree is begun, and followed while its agent asks."""
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_test_id("tree-row").first).to_be_visible()
    walk.seen(page, "fleet")
    page.keyboard.press("n")
    dialog = page.get_by_test_id("new-tree")
    expect(dialog.get_by_test_id("new-tree-pool")).to_be_visible()
    walk.seen(page, "new-tree")
    page.keyboard.press("Escape")
    tree = walk.visitor.deployment.asks("family", "Look around the house")
    page.goto(f"{walk.visitor.deployment.url}/tree/{tree}")
    scout = page.locator("[data-testid=agent][data-label=scout]")
    expect(scout).to_have_attribute("data-state", "needs")
    walk.seen(page, "tree")
    page.keyboard.press("j")
    talk = page.get_by_test_id("conversation")
    expect(talk.locator("[data-type=request]")).to_be_visible()
    walk.seen(page, "request-in-place")
    page.keyboard.press("m")
    page.keyboard.type("echo again")
    page.keyboard.press("Alt+Enter")
    expect(page.get_by_test_id("queued")).to_have_count(1)
    walk.seen(page, "words-wait")
    page.get_by_test_id("queued").get_by_role("button", name="Take back").click()
    expect(page.get_by_test_id("queued")).to_have_count(0)
    return tree


def _past(walk: Walk, page: Page, tree: str) -> None:
    page.get_by_test_id("agent").first.click()
    page.keyboard.press("Escape")
    page.get_by_test_id("agents").focus()
    page.keyboard.press("ArrowLeft")
    banner = page.get_by_test_id("past-banner")
    expect(banner).to_have_attribute("data-drawn", re.compile("[0-9]"))
    walk.seen(page, "past")
    page.keyboard.press("=")
    page.keyboard.press("Home")
    expect(page.get_by_test_id("difference").first).to_be_visible()
    walk.seen(page, "compared")
    page.keyboard.press("=")
    page.keyboard.press("End")
    expect(banner).to_have_count(0)
    for tab in ("log", "proof"):
        page.get_by_test_id(f"tab-{tab}").click()
        expect(page.get_by_test_id("log-row" if tab == "log" else "proof-verdict").first).to_be_visible()
        walk.seen(page, tab)


def _remark(walk: Walk, page: Page, changed: str) -> None:
    page.goto(f"{walk.visitor.deployment.url}/tree/{changed}")
    expect(page.get_by_test_id("agent").first).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("notes.txt")
    expect(page.get_by_test_id("palette-item").filter(has_text="file ·")).to_be_visible()
    walk.seen(page, "palette")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remark on line 1").click()
    page.get_by_test_id("remark-text").fill("Say what is new in it.")
    page.get_by_test_id("remark-add").click()
    walk.seen(page, "remark")
    page.get_by_test_id("remarks-send").click()
    expect(page.get_by_test_id("remarks")).to_have_count(0)
    page.get_by_test_id("tab-agents").click()
    expect(page.get_by_test_id("conversation")).to_contain_text("Say what is new in it.")
    walk.seen(page, "remark-sent")


def _raised_and_ended(walk: Walk, page: Page, tree: str) -> None:
    page.goto(f"{walk.visitor.deployment.url}/tree/{tree}")
    page.get_by_test_id("budget-add").click()
    page.get_by_test_id("budget-tokens").fill("1000000")
    walk.seen(page, "budget")
    page.get_by_test_id("budget-save").click()
    expect(page.locator(".budget")).to_contain_text("1.00M")
    page.get_by_test_id("cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("scout")
    walk.seen(page, "cancel")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    for agent in page.get_by_test_id("agent").all():
        expect(agent).to_have_attribute("data-state", re.compile("idle|ready|failed"))
    walk.seen(page, "ended")


def _elsewhere(walk: Walk, page: Page) -> None:
    for key, test, name in (("w", "worker", "workers"), ("s", "spend-row", "spend")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_test_id(test).first).to_be_visible()
        walk.seen(page, name)
    page.keyboard.press("?")
    expect(page.get_by_test_id("keys")).to_be_visible()
    walk.seen(page, "keys")
    page.keyboard.press("Escape")
    page.get_by_test_id("settings-open").click()
    walk.seen(page, "settings")
    page.keyboard.press("Escape")


def _lost(walk: Walk, page: Page) -> None:
    """The line is lost, and comes back; somebody else finds the sign-in."""
    walk.visitor.allowed |= {"ERR_", "Failed to load resource", "401"}
    gateway = walk.visitor.deployment.served.gateway.pid
    os.kill(gateway, signal.SIGSTOP)
    try:
        expect(page.get_by_test_id("lost-connection")).to_contain_text("No word from the server for 1")
        walk.seen(page, "lost")
    finally:
        os.kill(gateway, signal.SIGCONT)
    expect(page.get_by_test_id("connection")).to_have_text("live")
    expect(page.get_by_test_id("lost-connection")).to_have_count(0)
    stranger = walk.visitor.page()
    stranger.goto(walk.visitor.deployment.url)
    expect(stranger.get_by_test_id("sign-in")).to_be_visible()
    walk.seen(stranger, "sign-in")
