"""A person looks at what was spent: by day, model, person and tree, in a picture, a table and a file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.window.browser.conftest import Visitor


def _spent(visitor: Visitor, name: str) -> str:
    """A tree that has used some tokens."""
    thread = visitor.deployment.asks("echo", name)
    visitor.deployment.until_at_rest(thread)
    return thread


def _rows(page: Page) -> list[str]:
    expect(page.get_by_test_id("spend-row").first).to_be_visible()
    return [row.get_attribute("data-name") or "" for row in page.get_by_test_id("spend-row").all()]


def test_spend_is_shown_by_day_model_person_and_tree(visitor: Visitor) -> None:
    tree = _spent(visitor, "A tree that costs")
    told = visitor.deployment.call("spend/list", {"by": ["day", "model"]})
    page = visitor.signed_in("/", scope="read")
    # One sequence right behind another one counts, too.
    for key, path in (("f", "/fleet$"), ("w", "/workers$"), ("s", "/spend$")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(path))
    expect(page).to_have_title(re.compile("Spend · Dendro"))
    expect(page.get_by_test_id("spend-total")).to_contain_text(re.compile(r"tokens · \d+ requests?$"))
    expect(page.get_by_test_id("spend-chart").locator("canvas")).to_be_visible()
    assert _rows(page) == [told["to"]]
    page.get_by_test_id("by-model").click()
    expect(page.get_by_test_id("spend-row")).to_contain_text([told["data"][0]["model"]])
    page.get_by_test_id("by-who").click()
    expect(page.get_by_test_id("spend-row")).to_contain_text(["program"])
    page.get_by_test_id("by-tree").click()
    expect(page).to_have_url(re.compile(r"/spend\?days=30&by=tree$"))
    page.locator(f"[data-testid=spend-row][data-name='{tree}'] a").click()
    expect(page.get_by_test_id("tree")).to_contain_text("A tree that costs")
    page.go_back()
    page.get_by_role("link", name="7 days").click()
    expect(page).to_have_url(re.compile(r"days=7&by=tree"))


def test_spend_is_kept_as_a_file_for_spreadsheets(visitor: Visitor, tmp_path: Path) -> None:
    _spent(visitor, "Counted in a file")
    page = visitor.signed_in("/spend", scope="read")
    with page.expect_download() as saving:
        page.get_by_test_id("spend-csv").click()
    saving.value.save_as(tmp_path / "spend.csv")
    told = visitor.deployment.call("spend/list", {"by": ["day", "model", "who"]})
    assert saving.value.suggested_filename == f"dendro-spend-{told['from']}-{told['to']}.csv"
    with (tmp_path / "spend.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["day"], row["who"], int(row["tokens"])) for row in rows] == [
        (row["day"], row["who"], row["tokens"]) for row in told["data"]
    ]
