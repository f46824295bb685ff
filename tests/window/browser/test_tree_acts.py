"""A person acts on a whole tree: interrupts all of it, and saves its logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.window.browser.conftest import PHONE, Visitor, portable
from tests.window.browser.scripts import POEM
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import queue

__all__ = ["queue"]


@pytest.mark.usefixtures("queue")
def test_all_turns_of_a_tree_are_interrupted_at_once(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("family", "An interrupted family")
    page = visitor.signed_in(f"/tree/{tree}")
    expect(page.locator("[data-testid=agent][data-label=scout]")).to_have_attribute("data-state", "needs")
    page.get_by_test_id("tree-more").click()
    page.get_by_role("button", name="Interrupt all").click()
    expect(page.get_by_role("dialog")).to_contain_text("The turns of 2 agents stop: root, scout")
    assert found(page) == []
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("notice")).to_contain_text("were interrupted")
    for agent in page.get_by_test_id("agent").all():
        expect(agent).to_have_attribute("data-state", re.compile("idle|ready"))
    expect(page.get_by_test_id("needs-count")).to_have_count(0)


@pytest.mark.usefixtures("queue")
def test_the_palette_finds_the_agents_of_a_tree_and_does_what_its_page_does(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("family", "Found by its agents")
    page = visitor.signed_in(f"/tree/{tree}")
    expect(page.locator("[data-testid=agent][data-label=scout]")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("scout")
    expect(page.get_by_test_id("palette-item").filter(has_text="agent 1")).to_be_visible()
    page.get_by_test_id("palette-item").filter(has_text="agent 1").click()
    expect(page).to_have_url(re.compile(f"/tree/{tree}/1$"))
    page.keyboard.press("Control+k")
    page.keyboard.type("interrupt")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Interrupt all")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_palette_finds_the_files_that_a_tree_has_changed(visitor: Visitor) -> None:
    tree = portable(visitor.deployment, "brood of poets", poem=POEM)
    page = visitor.signed_in(f"/tree/{tree}")
    expect(page.get_by_test_id("agent")).not_to_have_count(0)
    told = visitor.deployment.call("tree/timeline", {"treeId": tree})["marks"]
    saved = [mark for mark in told if mark["kind"] == "snapshot"]
    assert {mark["agentId"] for mark in saved} >= {1, 2}
    assert "the folder of agent 1: 3 files changed" in [mark["text"] for mark in saved]
    expect(page.get_by_test_id("slider").locator("path.mark-snapshot")).to_have_count(1)
    hit, chosen = page.get_by_test_id("palette-item"), page.locator("[data-testid=file][aria-selected=true]")
    page.keyboard.press("Control+k")
    page.keyboard.type("alone.txt")
    # A name that an agent chose is text, in which nothing is hidden.
    expect(hit.filter(has_text="alone.txt")).to_contain_text("⟨U+202E⟩evil")
    hit.filter(has_text="alone.txt").click()
    expect(page).to_have_url(re.compile(rf"/tree/{tree}/2/changes\?file=.*alone\.txt$"))
    expect(chosen).to_contain_text("alone.txt")
    page.keyboard.press("Control+k")
    page.keyboard.type("<i>.md")
    expect(hit.filter(has_text="<i>.md")).to_contain_text("a⟨U+202E⟩b<i>.md")
    hit.filter(has_text="<i>.md").click()
    expect(page.locator("header.path")).to_contain_text("a⟨U+202E⟩b<i>.md")
    expect(chosen).to_contain_text("a⟨U+202E⟩b<i>.md")
    page.keyboard.press("Control+k")
    page.keyboard.type("poem")
    expect(hit.filter(has_text="poem.txt")).to_contain_text("file · 2 agents")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/0/changes\?by=all&file=poem\.txt$"))
    expect(chosen).to_contain_text("poem.txt")
    page.keyboard.press("[")
    expect(chosen).not_to_contain_text("poem.txt")
    page.reload()
    expect(chosen).to_contain_text("poem.txt")


def _saved(page: Page, testid: str, into: Path) -> tuple[str, bytes]:
    with page.expect_download() as saving:
        page.get_by_test_id(testid).first.click()
    saving.value.save_as(into)
    return saving.value.suggested_filename, into.read_bytes()


def test_the_log_of_a_tree_is_saved_as_the_command_writes_it(visitor: Visitor, tmp_path: Path) -> None:
    tree = visitor.deployment.asks("echo", "An exported tree")
    visitor.deployment.until_at_rest(tree)
    machine = visitor.deployment.served.machine
    page = visitor.signed_in(f"/tree/{tree}/0/proof", scope="admin")
    expect(page.get_by_test_id("proof-verdict")).to_have_attribute("data-ok", "true")
    machine.run("export", tree, str(tmp_path / "wanted"))
    name, content = _saved(page, "export", tmp_path / "saved")
    assert (name, content) == (f"rollout-{tree}.jsonl", (tmp_path / "wanted").read_bytes())
    expect(page.get_by_test_id("notice")).to_contain_text("The log is saved.")
    machine.run("export", tree, "--full", str(tmp_path / "whole"))
    page.get_by_test_id("tree-more").click()
    name, content = _saved(page, "export-full", tmp_path / "saved")
    assert (name, content) == (f"session-{tree}.jsonl", (tmp_path / "whole").read_bytes())


def test_who_may_not_have_a_log_sees_no_button_for_it(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("echo", "Not exported")
    visitor.deployment.until_at_rest(tree)
    page = visitor.signed_in(f"/tree/{tree}", scope="submit", size=PHONE)
    page.get_by_test_id("tree-more").click()
    expect(page.get_by_test_id("tree-rule")).to_be_visible()
    expect(page.get_by_test_id("export-root")).to_have_count(0)
    assert found(page) == []
