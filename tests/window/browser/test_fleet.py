"""A person looks over the fleet, and into a tree of it."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.window.browser.conftest import PHONE, Deployment, Visitor
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import queue

__all__ = ["queue"]


def tree_row(page: Page, tree: str) -> Locator:
    """The row of a tree."""
    return page.locator(f"[data-testid=tree-row][data-tree='{tree}']")


@pytest.mark.usefixtures("queue")
def test_trees_stand_by_their_states_and_change_while_one_looks(visitor: Visitor) -> None:
    name = f"Asks {uuid.uuid4()}"
    asking, done = visitor.deployment.asks("touch one", name), visitor.deployment.asks("echo", "Echo it")
    page = visitor.signed_in("/fleet")
    expect(tree_row(page, asking)).to_have_attribute("data-state", "needs")
    expect(tree_row(page, done)).to_have_attribute("data-state", "ready")
    expect(tree_row(page, asking)).to_contain_text(name)
    expect(page.locator(".rail")).to_contain_text(name)
    later = visitor.deployment.asks("patch", "Came later")
    expect(tree_row(page, later)).to_have_attribute("data-state", "needs")
    page.keyboard.press("/")
    page.keyboard.type(name[:20].lower())
    expect(page.get_by_test_id("tree-row")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"/fleet\?q=asks"))
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("tree")).to_contain_text(name)
    expect(page).to_have_url(re.compile(f"/tree/{asking}$"))


def test_each_tree_shows_what_it_did_in_the_last_hour(visitor: Visitor) -> None:
    quiet, busy = (
        visitor.deployment.begins("Nothing was said here"),
        visitor.deployment.asks("echo", "Echo once"),
    )
    visitor.deployment.until_at_rest(busy)
    page = visitor.page(storage_state=visitor.signed_in("/fleet").context.storage_state())
    hour = tree_row(page, busy).get_by_role("img", name=re.compile("in the last hour"))
    page.clock.install()
    page.goto(f"{visitor.deployment.url}/fleet?q=echo+once")
    expect(hour).to_have_accessible_name("1 model request in the last hour")
    expect(hour.locator("rect:not(.none)")).to_have_count(1)
    expect(tree_row(page, quiet)).to_have_count(0)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    expect(tree_row(page, busy).locator(".can")).to_be_visible()
    expect(hour).to_be_visible()
    page.clock.fast_forward(65 * 60_000)
    expect(hour).to_have_accessible_name("No model request in the last hour")


def test_a_tree_that_was_read_is_at_rest(visitor: Visitor) -> None:
    done = visitor.deployment.asks("echo", "Read me")
    page = visitor.signed_in("/fleet")
    expect(tree_row(page, done)).to_have_attribute("data-state", "ready")
    tree_row(page, done).click()
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")
    page.keyboard.press("g")
    page.keyboard.press("f")
    page.goto(f"{visitor.deployment.url}/fleet?q=read+me")
    expect(tree_row(page, done)).to_have_attribute("data-state", "idle")


def test_a_new_tree_is_begun_for_a_pool_that_has_workers(visitor: Visitor) -> None:
    page = visitor.signed_in("/fleet")
    page.get_by_role("button", name="New tree").click()
    dialog, pool = page.get_by_test_id("new-tree"), page.get_by_test_id("new-tree-pool")
    expect(pool.locator("option[value='default']")).to_have_text("default · 1 worker")
    expect(pool.locator("option[value^='host:']")).not_to_have_count(0)
    page.get_by_test_id("portable").check()
    expect(pool.locator("option[value^='host:']")).to_have_count(0)
    page.get_by_test_id("portable").uncheck()
    pool.select_option("default")
    dialog.get_by_role("textbox", name="What is to be done").fill("echo")
    dialog.get_by_role("button", name="Begin").click()
    expect(page).to_have_url(re.compile("/tree/"))
    tree = page.url.rpartition("/")[2]
    assert visitor.deployment.call("fleet/list", {"pool": "default"})["data"][0]["treeId"] == tree
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")


def test_a_new_tree_keeps_still_and_keeps_its_words(visitor: Visitor) -> None:
    page, asked = visitor.signed_in("/fleet"), list[Route]()
    page.route("**/api/worker/list", lambda route: asked.append(route))
    page.get_by_role("button", name="New tree").click()
    words, check = page.get_by_label("What is to be done"), page.get_by_test_id("portable")
    words.fill("echo at leisure")
    # A press that has begun ends on what it began on, whatever comes meanwhile.
    box = check.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 6, box["y"] + 6)
    page.mouse.down()
    while not asked:
        page.evaluate("0")
    asked[0].continue_()
    expect(page.get_by_test_id("new-tree-pool").locator("option[value='default']")).to_have_count(1)
    page.mouse.up()
    expect(check).to_be_checked()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("new-tree")).to_have_count(0)
    page.keyboard.press("n")
    expect(words).to_have_value("echo at leisure")


def test_a_pool_whose_workers_have_gone_is_refused_in_words(visitor: Visitor) -> None:
    visitor.allowed.add("400")
    page = visitor.signed_in("/fleet")
    told = {"data": [{"worker": "w", "status": "serving", "pools": ["gone"], "machine": "m"}]}
    page.route("**/api/worker/list", lambda route: route.fulfill(json=told))
    page.get_by_role("button", name="New tree").click()
    page.get_by_test_id("new-tree-pool").select_option("gone")
    page.get_by_role("textbox", name="What is to be done").fill("echo")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_role("alert")).to_contain_text("no worker serves 'gone'; pools that have workers:")


def test_a_new_tree_is_begun_in_a_portable_folder(visitor: Visitor) -> None:
    page = visitor.signed_in("/fleet")
    expect(page.get_by_role("button", name="New tree")).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_label("What is to be done")).to_be_focused()
    expect(page.get_by_label("What is to be done")).to_have_value("")
    page.get_by_label("What is to be done").fill("echo, please")
    page.get_by_role("textbox", name="Folder").fill("")
    page.get_by_test_id("portable").check()
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")
    tree = page.url.split("/tree/")[1].split("/")[0]
    rows = visitor.deployment.call("fleet/list")["data"]
    assert [row["portable"] for row in rows if row["treeId"] == tree] == [True]


def test_a_new_tree_is_begun_by_a_key(visitor: Visitor) -> None:
    page = visitor.signed_in("/fleet")
    page.keyboard.press("n")
    page.get_by_label("What is to be done").fill("echo, please")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")
    expect(page).to_have_url(re.compile("/tree/"))


@pytest.mark.usefixtures("queue")
def test_an_agent_of_a_tree_is_chosen_and_its_request_seen(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("family", "A family")
    page = visitor.signed_in(f"/tree/{tree}")
    child = page.locator("[data-testid=agent][data-label=scout]")
    expect(child).to_have_attribute("data-state", "needs")
    expect(page.get_by_test_id("conversation")).to_contain_text("Began scout")
    page.keyboard.press("j")
    expect(child).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile(f"/tree/{tree}/1$"))
    ask = page.locator("[data-testid=item][data-type=request]")
    expect(ask).to_contain_text("touch one.txt")
    assert found(page) == []
    ask.get_by_test_id("allow").click()
    expect(child).not_to_have_attribute("data-state", "needs")
    page.keyboard.press("k")
    expect(page.get_by_test_id("conversation")).to_contain_text("The scout is back.")


def test_a_tree_that_is_not_there_is_said_to_be_gone(visitor: Visitor) -> None:
    visitor.allowed.add("404")
    page = visitor.signed_in("/tree/0190a4c0-0000-7000-8000-000000000000")
    expect(page.get_by_test_id("tree")).to_contain_text("There is no such tree")


def test_a_tree_that_somebody_deletes_says_who_did_and_when(visitor: Visitor) -> None:
    visitor.allowed.add("404")
    tree = visitor.deployment.asks("echo", "To be deleted")
    visitor.deployment.until_at_rest(tree)
    page = visitor.signed_in(f"/tree/{tree}/0", size=PHONE)
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")
    visitor.deployment.call("thread/delete", {"threadId": tree})
    said = page.get_by_role("heading", name=re.compile(r"^This tree was deleted by program at \d\d?:\d\d"))
    expect(said).to_be_visible()
    page.reload()
    expect(said).to_be_visible()
    assert found(page) == []


@pytest.mark.usefixtures("queue")
def test_the_log_and_the_proof_of_a_tree_are_shown(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("family", "A proved family")
    page = visitor.signed_in(f"/tree/{tree}")
    expect(page.locator("[data-testid=agent][data-label=scout]")).to_have_attribute("data-state", "needs")
    page.get_by_test_id("tab-log").click()
    expect(page).to_have_url(re.compile(f"/tree/{tree}/0/log$"))
    expect(page.get_by_test_id("log-row").filter(has_text="scout").first).to_be_visible()
    assert found(page) == []
    page.get_by_test_id("tab-proof").click()
    expect(page.get_by_test_id("proof-verdict")).to_have_attribute("data-ok", "true")
    expect(page.get_by_test_id("proof-verdict")).to_contain_text("in 2 sessions")
    assert found(page) == []


@pytest.mark.usefixtures("queue")
def test_an_agent_is_canceled_and_a_limit_is_added_to(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("family", "A canceled family")
    page = visitor.signed_in(f"/tree/{tree}/1")
    child = page.locator("[data-testid=agent][data-label=scout]")
    expect(child).to_have_attribute("data-state", "needs")
    page.get_by_test_id("budget-add").click()
    page.get_by_test_id("budget-tokens").fill("5000000")
    page.get_by_test_id("budget-save").click()
    expect(page.get_by_test_id("notice")).to_contain_text("Added")
    expect(page.locator(".budget")).to_contain_text("5.00M")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel scout")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("notice").filter(has_text="“scout” has ended")).to_be_visible()
    expect(child).not_to_have_attribute("data-state", "needs")


def test_a_fleet_without_trees_says_how_the_first_one_begins(
    visitor: Visitor, deployment: Deployment
) -> None:
    """Of a namespace in which nobody has begun anything: what others have is not counted."""
    visitor.allowed.add("401")
    deployment.asks("echo", "Of somebody else")
    asked = ("token", "new", "newcomer", "--scope", "submit", "--namespace", uuid.uuid4().hex)
    made = deployment.served.machine.run(*asked)
    page = visitor.page()
    page.goto(f"{deployment.url}/fleet")
    page.get_by_test_id("token").fill(made.stdout.split()[0])
    page.keyboard.press("Enter")
    fleet = page.get_by_test_id("fleet")
    expect(fleet.get_by_role("heading", name="No tree has grown here yet")).to_be_visible()
    expect(fleet).to_contain_text('dendro run "Find the flaky test"')
    expect(page.get_by_test_id("tree-row")).to_have_count(0)
    assert found(page) == []
    page.keyboard.press("n")
    expect(page.get_by_test_id("new-tree")).to_be_visible()
