"""A person looks at a tree as it was: by the slider, by keys, by the address, and goes on from there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.window.browser.conftest import PHONE, Deployment, Visitor, portable
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import queue

__all__ = ["queue"]
NOTES_PLACES = """() => {
  const slider = document.querySelector('[data-testid=slider]'), seen = [];
  new MutationObserver(() => { seen.push(slider.dataset.at); document.body.dataset.seen = seen.join(); })
    .observe(slider, {attributeFilter: ['data-at']});
}"""
FITS = """() => {
  const right = (one) => document.querySelector(one).getBoundingClientRect(), words = document.createRange();
  words.selectNodeContents(document.querySelector('.time .place'));
  return words.getBoundingClientRect().right <= right('[data-testid=live]').left;
}"""
"""Whether the words of the slider's place end before its button."""
EVIL = '<img src=x onerror="alert(1)"> \u202eevil\u202c [Allow](https://evil.example.com) "'


def family(visitor: Visitor, name: str) -> str:
    """A tree whose agent waits for a person."""
    thread = visitor.deployment.asks("family", name)
    page = visitor.signed_in(f"/tree/{thread}")
    expect(page.locator("[data-testid=agent][data-state=needs]")).to_be_visible()
    page.close()
    return thread


def marks(deployment: Deployment, tree: str) -> list[dict[str, Any]]:
    """The marks of a tree's log, oldest first."""
    told: list[dict[str, Any]] = deployment.call("tree/timeline", {"treeId": tree})["marks"]
    return told


def at(page: Page) -> int | None:
    """The entry that the address names."""
    named = parse_qs(urlsplit(page.url).query).get("at")
    return int(named[0]) if named else None


def shows(page: Page, seq: int | None) -> None:
    """Waits until the page shows the tree as it was at an entry; None: as it is."""
    banner = page.get_by_test_id("past-banner")
    if seq is None:
        expect(banner).to_have_count(0)
    else:
        expect(banner).to_have_attribute("data-drawn", str(seq))
    expect(page.get_by_test_id("slider")).to_have_attribute("data-at", "" if seq is None else str(seq))
    assert at(page) == seq


@pytest.mark.usefixtures("queue")
def test_tree_is_looked_at_as_it_was_by_keys_alone_and_nothing_is_written_there(visitor: Visitor) -> None:
    tree = family(visitor, "Then")
    born, asked = marks(visitor.deployment, tree)
    assert (born["kind"], born["agentId"], asked["kind"]) == ("spawn", 1, "approval")
    page = visitor.signed_in(f"/tree/{tree}/1")
    slider, banner = page.get_by_test_id("slider"), page.get_by_test_id("past-banner")
    expect(slider).to_have_attribute("data-end", str(asked["seq"]))
    expect(page.get_by_test_id("composer")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    shows(page, asked["seq"])
    expect(banner).to_contain_text(re.compile(r"As it was at .*entry \d"))
    scout = page.locator("[data-testid=agent][data-agent-id='1']")
    expect(scout).to_have_attribute("data-state", "needs")
    expect(scout).to_contain_text("asks you")
    expect(page.get_by_test_id("slider-mark")).to_contain_text("touch one.txt")
    talk = page.get_by_test_id("conversation")
    expect(talk).to_contain_text("I make a file.")
    for gone in ("composer", "interrupt", "allow", "deny", "budget-add", "cancel"):
        expect(page.get_by_test_id(gone)).to_have_count(0)
    for key in ("m", "i", "c", "e", "a"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Title")).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    shows(page, born["seq"])
    expect(page.get_by_test_id("slider-mark")).to_contain_text("scout")
    expect(page.get_by_test_id("composer")).to_have_count(0)
    page.keyboard.press("Shift+ArrowRight")
    shows(page, born["seq"] + 1)
    page.keyboard.press("Home")
    shows(page, 1)
    page.keyboard.press("k")
    expect(page.locator("[data-testid=agent][data-agent-id='0']")).to_have_attribute("aria-selected", "true")
    shows(page, 1)
    page.keyboard.press("End")
    shows(page, None)
    expect(page.get_by_test_id("composer")).to_be_visible()
    # The slider itself takes the keys, also where single letters are switched off.
    track = page.get_by_role("slider")
    track.focus()
    track.press("Home")
    shows(page, 1)
    expect(track).to_have_attribute("aria-valuetext", re.compile(r"entry 1 of \d"))
    track.press("End")
    expect(track).to_have_attribute("aria-valuetext", re.compile("^now"))
    page.evaluate(NOTES_PLACES)
    page.get_by_role("button", name="Play from mark to mark").click()
    expect(page.locator("body")).to_have_attribute("data-seen", f"{born['seq']},{asked['seq']},")
    shows(page, None)
    (request,) = visitor.deployment.call("approval/list", {"treeId": tree})["data"]
    assert request["threadId"], "looking back has answered nothing"


@pytest.mark.usefixtures("queue")
def test_address_has_the_place_for_back_forward_reload_and_a_copied_link(visitor: Visitor) -> None:
    tree = family(visitor, "Links")
    born, asked = marks(visitor.deployment, tree)
    page = visitor.signed_in(f"/tree/{tree}")
    expect(page.get_by_test_id("slider")).to_have_attribute("data-end", str(asked["seq"]))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    shows(page, born["seq"])
    page.get_by_test_id("live").click()
    shows(page, None)
    page.go_back()
    shows(page, born["seq"])
    page.go_back()
    shows(page, None)
    page.go_forward()
    shows(page, born["seq"])
    page.reload()
    shows(page, born["seq"])
    page.goto(f"{visitor.deployment.url}/tree/{tree}/7?at={born['seq']}")
    expect(page.get_by_label("Conversation")).to_contain_text("There was no agent 7 yet")
    page.go_back()
    shows(page, born["seq"])
    # Agents, tabs and the log keep the place; the log ends there.
    page.get_by_test_id("agent").last.click()
    page.get_by_test_id("tab-log").click()
    shows(page, born["seq"])
    expect(page.get_by_test_id("log-row")).to_have_count(born["seq"])
    other = visitor.page(page.context)
    other.goto(page.url)
    shows(other, born["seq"])
    expect(other.get_by_test_id("log-row")).to_have_count(born["seq"])
    # What is held is compared with where one goes.
    other.get_by_test_id("tab-agents").click()
    other.keyboard.press("=")
    expect(other.get_by_test_id("compare")).to_contain_text("is held")
    other.keyboard.press("ArrowRight")
    shows(other, asked["seq"])
    difference = other.get_by_test_id("difference").filter(has_text="scout")
    expect(difference).to_contain_text("needs you")
    other.keyboard.press("=")
    expect(other.get_by_test_id("compare")).to_have_count(0)
    # A place that there is not is told in words, with the way back.
    visitor.allowed.add("tree/read")
    other.goto(f"{visitor.deployment.url}/tree/{tree}?at=99999")
    expect(other.get_by_test_id("past-banner")).to_contain_text(f"entries 1 to {asked['seq']}")
    other.get_by_test_id("back-to-now").click()
    shows(other, None)


def test_tree_is_forked_from_a_place_and_goes_on_without_what_came_later(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = deployment.asks("echo", "Forked")
    page = visitor.signed_in(f"/tree/{tree}")
    said = page.get_by_test_id("conversation").locator("[data-type=agentMessage]")
    expect(said).to_have_count(1)
    deployment.call("budget/add", {"treeId": tree, "requestId": "r", "add": {"slots": 1}})
    deployment.say(tree, "once more")
    expect(said).to_have_count(2)
    expect(page.get_by_test_id("slider")).to_have_attribute("data-end", "1")
    page.keyboard.press("Home")
    shows(page, 1)
    expect(said).to_have_count(1)
    expect(page.get_by_test_id("slider-mark")).to_contain_text("added to the tree's limits")
    expect(page.get_by_test_id("fork")).to_be_enabled()
    page.keyboard.press("f")
    expect(page.get_by_role("dialog")).to_contain_text("Fork from entry 1")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("past-banner")).to_have_count(0)
    expect(page).not_to_have_url(re.compile(tree))
    expect(said).to_have_count(1)
    expect(page.get_by_test_id("composer")).to_be_visible()
    reader = visitor.signed_in(f"/tree/{tree}?at=1", scope="read")
    shows(reader, 1)
    expect(reader.get_by_test_id("fork")).to_have_count(0)


def test_folder_is_shown_as_it_was_without_remarks(visitor: Visitor, deployment: Deployment) -> None:
    tree = portable(deployment, "two changes")
    deployment.call("budget/add", {"treeId": tree, "requestId": "r", "add": {"slots": 1}})
    deployment.say(tree, "two changes")
    page = visitor.signed_in(f"/tree/{tree}/0/changes")
    file = page.get_by_test_id("file")
    expect(file.filter(has_text="later.md")).to_be_visible()
    expect(page.get_by_test_id("moment")).to_be_visible()
    page.keyboard.press("Home")
    shows(page, 1)
    expect(file).to_have_count(2)
    expect(file.filter(has_text="later.md")).to_have_count(0)
    expect(page.get_by_test_id("moment")).to_have_count(0)
    file.filter(has_text="notes.txt").click()
    expect(page.get_by_test_id("changes")).to_contain_text("first line")
    expect(page.get_by_role("button", name="Remark on line 1")).to_have_count(0)
    # Beside a place that is held stands what was changed since.
    page.keyboard.press("=")
    page.keyboard.press("End")
    expect(page.get_by_test_id("compare")).to_be_visible()
    expect(file).to_have_count(1)
    expect(page.get_by_test_id("changes")).to_contain_text("of later")
    page.keyboard.press("=")
    expect(file).to_have_count(3)


def line(seq: int) -> Iterator[dict[str, Any]]:
    """A log of a day with long pauses and hostile marks, as a server tells it: first while it reads."""
    hour, begun = 3_600_000, 1_795_000_000_000
    times = [begun + (n * 3 // seq) * 9 * hour + n * 9_000 for n in range(seq)]
    told = {
        "firstAtMs": times[0],
        "lastAtMs": times[-1],
        "treeSeq": seq,
        "buckets": [{"seq": n, "atMs": at_ms, "entries": 1} for n, at_ms in enumerate(times, 1)],
        "gaps": [
            {"fromMs": before, "toMs": behind} for before, behind in pairwise(times) if behind - before > hour
        ],
        "marks": [
            {"seq": 1, "atMs": begun, "kind": "spawn", "agentId": 1, "text": EVIL, "who": EVIL},
            {"seq": 2, "atMs": begun, "kind": "constructor", "agentId": 1, "text": "x" * 5_000},
        ],
        "more": True,
    }
    yield {**told, "reading": {"read": 1, "of": seq}}
    while True:
        yield told


@pytest.mark.parametrize(("size", "scheme"), [((1440, 900), "dark"), (PHONE, "light")])
@pytest.mark.usefixtures("queue")
def test_slider_is_dragged_shows_pauses_and_hostile_marks_and_has_no_serious_findings(
    visitor: Visitor, size: tuple[int, int], scheme: str
) -> None:
    tree = family(visitor, "Dragged")
    end = visitor.deployment.call("tree/timeline", {"treeId": tree})["treeSeq"]
    page = visitor.page(size=size, scheme=scheme, bypass_csp=True)
    answers = line(end)

    def answer(route: Route) -> None:
        route.fulfill(json=next(answers))

    page.route("**/api/tree/timeline", answer)
    code = visitor.deployment.served.new_code("--scope", "approve")
    page.goto(f"{visitor.deployment.url}/tree/{tree}#c={code}")
    slider = page.get_by_test_id("slider")
    expect(slider).to_have_attribute("data-end", str(end))
    expect(page.get_by_test_id("slider-reading")).to_have_count(0)
    expect(slider.locator(".break")).to_have_count(2)
    if size != PHONE:
        expect(slider).to_contain_text("9 h")
    assert found(page) == []
    page.keyboard.press("Home")
    shows(page, 1)
    tip = page.get_by_test_id("slider-mark")
    expect(tip).to_contain_text('<img src=x onerror="alert(1)"> ⟨U+202E⟩evil')
    expect(tip.locator("img, a")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("xxxx")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert found(page) == []
    box = page.get_by_role("slider").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 3, middle)
    page.mouse.down()
    shows(page, 1)
    for share in (0.3, 0.93):
        page.mouse.move(box["x"] + box["width"] * share, middle, steps=4)
    expect(slider).to_have_attribute("data-at", re.compile(f"^[2-{end}]$"))
    page.mouse.move(box["x"] + box["width"] - 1, middle, steps=2)
    page.mouse.up()
    shows(page, None)
    page.go_back()
    shows(page, 2)


@pytest.mark.usefixtures("queue")
def test_two_places_are_compared_at_a_phone(visitor: Visitor) -> None:
    tree = family(visitor, "Compared by a thumb")
    page = visitor.signed_in(f"/tree/{tree}?at=1", size=PHONE, bypass_csp=True)
    shows(page, 1)
    assert page.evaluate(FITS)
    page.get_by_role("button", name="Compare").tap()
    compared = page.get_by_test_id("compare")
    expect(compared).to_contain_text("Entry 1 is held")
    page.get_by_test_id("live").tap()
    shows(page, None)
    expect(compared).to_contain_text(re.compile(r"^From entry 1, .*, to now"))
    expect(page.get_by_test_id("difference")).not_to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(FITS)
    assert found(page) == []
    compared.get_by_role("button", name="Let go").tap()
    expect(compared).to_have_count(0)
