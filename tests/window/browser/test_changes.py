"""Changes: the files of a portable folder, the lines of one, and remarks that go to their agent."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.window.browser.conftest import PHONE, Deployment, Visitor, portable
from tests.window.browser.scripts import POEM


def test_file_is_read_by_lines_and_a_remark_on_one_reaches_the_agent(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = portable(deployment, "patch")
    page = visitor.signed_in(f"/tree/{tree}/0/changes")
    changes = page.get_by_test_id("changes")
    file = changes.get_by_test_id("file").filter(has_text="notes.txt")
    expect(file).to_contain_text("+2")
    expect(changes.get_by_test_id("file").first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("]")
    expect(file).to_have_attribute("aria-selected", "true")
    expect(changes).to_contain_text("second ⟨U+202E⟩ line")
    page.keyboard.press("v")
    expect(file.get_by_label("viewed")).to_be_visible()
    changes.get_by_role("button", name="Remark on line 1").click()
    page.get_by_test_id("remark-text").fill("Say `why`, too.")
    page.get_by_test_id("remark-add").click()
    expect(page.get_by_test_id("remark")).to_contain_text("Say `why`, too.")
    expect(page.get_by_test_id("remarks")).to_contain_text("1 remark for root")
    page.get_by_test_id("remarks-send").click()
    expect(page.get_by_test_id("remarks")).to_have_count(0)
    page.get_by_test_id("tab-agents").click()
    talk = page.get_by_test_id("conversation")
    expect(talk).to_contain_text("Remarks on your changes:")
    expect(talk).to_contain_text("notes.txt, line 1:")
    expect(talk).to_contain_text("+first line")


def test_a_remark_that_is_being_written_outlives_what_its_agent_changes_meanwhile(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = portable(deployment, "many changes")
    page = visitor.signed_in(f"/tree/{tree}/0/changes?file=notes.txt")
    page.get_by_test_id("file").filter(has_text="notes.txt").click()
    page.get_by_role("button", name="Remark on line 1").click()
    page.get_by_test_id("remark-text").fill("Half of a")
    deployment.say(tree, "go on")
    expect(page.get_by_test_id("file").filter(has_text="later.md")).to_be_visible()
    expect(page.get_by_test_id("remark-text")).to_have_value("Half of a")
    page.get_by_test_id("tab-agents").click()
    page.get_by_test_id("tab-changes").click()
    page.get_by_test_id("file").filter(has_text="notes.txt").click()
    expect(page.get_by_test_id("remark-text")).to_have_value("Half of a")
    page.get_by_test_id("remark-add").click()
    expect(page.get_by_test_id("remark")).to_contain_text("Half of a")
    # The line goes: the remark stays, below the lines.
    deployment.say(tree, "go on")
    expect(page.get_by_test_id("adrift")).to_contain_text("Half of a")
    expect(page.get_by_test_id("adrift")).to_contain_text("first line")
    expect(page.get_by_test_id("remarks")).to_contain_text("1 remark for root")


def test_reader_sees_the_lines_and_writes_no_remark_and_a_plain_folder_says_what_it_is(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = portable(deployment, "patch")
    page = visitor.signed_in(f"/tree/{tree}/0/changes", scope="read")
    page.get_by_test_id("file").filter(has_text="notes.txt").click()
    expect(page.get_by_test_id("changes")).to_contain_text("first line")
    expect(page.get_by_role("button", name="Remark on line 1")).to_have_count(0)
    plain = deployment.asks("echo")
    page.goto(f"{deployment.url}/tree/{plain}/0/changes")
    expect(page.get_by_test_id("changes")).to_contain_text("is not portable")
    expect(page.get_by_test_id("changes")).to_contain_text("It has made no patch yet.")


def test_patches_stand_for_the_changes_of_a_folder_that_no_log_has(
    visitor: Visitor, deployment: Deployment, tmp_path: Path
) -> None:
    tree = deployment.begins(cwd=str(tmp_path), approvalPolicy="never")
    deployment.say(tree, "patch")
    page = visitor.signed_in(f"/tree/{tree}/0/changes")
    patches = page.get_by_test_id("patches")
    expect(patches).to_contain_text("notes.txt")
    expect(patches).to_contain_text("second ⟨U+202E⟩ line")
    expect(patches).to_contain_text("a⟨U+202E⟩b<i>.md")
    expect(page.get_by_test_id("changes")).to_contain_text("what its commands wrote is not among them")


def test_a_part_that_cannot_be_read_says_so_and_is_tried_again_and_the_rest_works(
    visitor: Visitor, deployment: Deployment
) -> None:
    visitor.allowed.add("500")
    tree = deployment.asks("echo")
    page = visitor.signed_in(f"/tree/{tree}")
    fault = {"error": {"code": -32603, "message": "a disk is <b>full</b>"}}
    asked: list[Route] = []
    page.route("**/api/workspace/changes", lambda route: asked.append(route))
    page.get_by_test_id("tab-changes").click()
    # Until it is answered there are bare words; what else the page has is there.
    expect(page.get_by_test_id("changes")).to_have_text("Compares the folder…")
    expect(page.get_by_test_id("tree")).to_contain_text("echo")
    while not asked:
        # Each round trip to the browser takes what it has said meanwhile.
        page.evaluate("0")
    asked[-1].fulfill(status=500, json=fault)
    changes = page.get_by_test_id("changes")
    expect(changes).to_contain_text("The changes cannot be read: a disk is <b>full</b>.")
    page.unroute("**/api/workspace/changes")
    changes.get_by_role("button", name="Try again").click()
    expect(changes).to_contain_text("is not portable")
    page.route("**/api/tree/log", lambda route: route.fulfill(status=500, json=fault))
    page.get_by_test_id("tab-log").click()
    expect(page.get_by_test_id("log")).to_contain_text("The log cannot be read: a disk is <b>full</b>.")
    page.get_by_test_id("tab-agents").click()
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")


def test_lines_stand_side_by_side_with_marked_words_and_one_below_the_other_where_there_is_no_room(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = portable(deployment, "reword", poem=POEM)
    page = visitor.signed_in(f"/tree/{tree}/0/changes")
    page.get_by_test_id("file").filter(has_text="poem").click()
    lines = page.get_by_role("table", name="Lines")
    first = lines.locator("tr").first
    # Both sides of a line in one row, so they scroll together; what agents wrote is text, also in a mark.
    expect(first.locator(".left")).to_have_text("roses are red")
    expect(first.locator(".right mark")).to_have_text('<img src=x onerror="alert(8)">')
    second = lines.locator("tr").nth(1)
    expect(second.locator(".right")).to_have_text("violets ⟨U+202E⟩are [blue](javascript:alert(9))⟨U+200B⟩")
    expect(second.locator(".left mark")).to_have_count(0)
    expect(second.locator(".right mark").first).to_have_text("⟨U+202E⟩")
    # A line without another one, and a long one, have no marks.
    expect(lines.locator("tr").nth(2).locator(".right")).to_have_text("added alone")
    assert lines.locator("tr", has_text="x x x").locator("mark").count() == 0
    page.get_by_role("button", name="Remark on old line 2").click()
    page.get_by_test_id("remark-text").fill("As before.")
    page.get_by_test_id("remark-add").click()
    page.get_by_role("button", name="Remark on line 2", exact=True).click()
    page.get_by_test_id("remark-text").fill("Why <b>so</b>?")
    page.get_by_test_id("remark-add").click()
    expect(page.get_by_test_id("remark")).to_have_text(["As before. Take back", "Why <b>so</b>? Take back"])

    page.get_by_test_id("one-column").click()
    expect(lines.locator("tr").first).to_have_class("del")
    expect(lines.locator("tr.add mark").first).to_have_text('<img src=x onerror="alert(8)">')
    expect(page.get_by_test_id("remark")).to_have_count(2)
    # The page remembers it, where there is room for a choice.
    page.reload()
    page.get_by_test_id("file").filter(has_text="poem").click()
    expect(page.get_by_test_id("one-column")).to_have_attribute("aria-pressed", "true")
    expect(lines.locator(".left")).to_have_count(0)
    page.get_by_test_id("two-columns").click()
    expect(first.locator(".left")).to_have_text("roses are red")
    page.set_viewport_size({"width": 899, "height": 900})
    expect(lines.locator("tr").first).to_have_class("del")
    expect(page.get_by_test_id("two-columns")).to_have_count(0)
    page.set_viewport_size({"width": 900, "height": 900})
    expect(first.locator(".left")).to_have_text("roses are red")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.get_by_test_id("viewed").click()
    expect(page.get_by_test_id("file").filter(has_text="poem").get_by_label("viewed")).to_be_visible()


def test_changes_of_all_agents_stand_in_one_list_with_whose_they_are_and_what_is_at_odds(
    visitor: Visitor, deployment: Deployment
) -> None:
    tree = portable(deployment, "brood of poets", poem=POEM)
    page = visitor.signed_in(f"/tree/{tree}")
    page.get_by_test_id("tab-changes").click()
    expect(page).to_have_url(re.compile(r"/0/changes\?by=all$"))
    files, poem = page.get_by_test_id("file"), page.get_by_test_id("file").filter(has_text="poem")
    expect(files).to_have_count(4)
    expect(files.filter(has_text="alone.txt")).to_contain_text("⟨U+202E⟩evil")
    expect(files.filter(has_text="notes.txt")).to_contain_text("left")
    expect(poem).to_contain_text("conflict2 agents")
    page.get_by_test_id("files-odds").click()
    expect(files).to_have_count(1)
    expect(page.get_by_test_id("conflict")).to_have_text(
        re.compile(r"^Conflict\. left and <img .* are at odds: the same lines changed on both sides\.$")
    )
    # The lines are those of the agent that is chosen, and a remark goes to it.
    changes, shares = page.get_by_test_id("changes"), page.get_by_test_id("share")
    expect(shares.first).to_have_attribute("aria-pressed", "true")
    expect(changes).to_contain_text("added alone")
    page.get_by_role("button", name="Remark on line 3", exact=True).click()
    page.get_by_test_id("remark-text").fill("Not alone.")
    page.get_by_test_id("remark-add").click()
    expect(page.get_by_test_id("remarks")).to_contain_text("1 remark for left")
    shares.last.click()
    expect(changes).to_contain_text("roses are <b>white</b>")
    expect(changes).not_to_contain_text("added alone")
    page.get_by_role("button", name="Remark on line 1", exact=True).click()
    page.get_by_test_id("remark-text").fill("Why white?")
    page.get_by_test_id("remark-add").click()
    remarks = page.get_by_test_id("remarks")
    expect(remarks).to_have_count(2)
    expect(remarks.filter(has_text="evil")).to_contain_text("1 remark for")
    page.get_by_test_id("remarks-send").first.click()
    expect(remarks).to_have_count(1)
    page.keyboard.press("v")
    expect(poem.get_by_label("viewed")).to_be_visible()
    page.get_by_test_id("by-agent").click()
    expect(changes).to_contain_text("Nothing is changed yet.")
    page.go_back()
    expect(page.get_by_test_id("agents")).to_be_visible()
    # As it was before any agent had written; the place and the view stay in the address.
    page.goto(f"{deployment.url}/tree/{tree}/0/changes?by=all&at=1")
    expect(changes).to_contain_text("Nothing is changed up to there.")
    page.get_by_test_id("live").click()
    expect(files).to_have_count(4)
    page.goto(f"{deployment.url}/tree/{tree}/0/changes?by=all&held=1")
    expect(page.get_by_test_id("by-agent-alone")).to_be_visible()
    expect(page.get_by_test_id("merged")).to_have_count(0)
    page.go_back()
    page.get_by_test_id("tab-agents").click()
    page.get_by_test_id("agent").filter(has_text="left").click()
    expect(page.get_by_test_id("conversation")).to_contain_text("poem.txt, line 3:")
