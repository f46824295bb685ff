"""Changes: the files of a portable folder, the lines of one, and remarks that go to their agent."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.window.browser.conftest import Deployment, Visitor, portable


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
