"""Pages of the documentation: each link leads to a file, and each page is in the list of pages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ops").rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_link_of_a_page_leads_to_a_file(page: Path) -> None:
    prose = _CODE.sub("", page.read_text(encoding="utf-8"))
    lost = [link for link in _LINK.findall(prose) if not (page.parent / link).exists()]
    assert lost == []


def test_list_of_pages_has_every_page() -> None:
    listed = set(_LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= listed


_PATH = re.compile(r"`((?:[\w-]+/)+[\w.-]*)`")
_FOLDERS = ("orchestrator", "workers", "sim", "tests", "bench", "docs", "examples", "ops")


def _is_there(path: str) -> bool:
    """A path from the top of the repository; of the product and of tests also without their folder."""
    return (path.partition("/")[0] in _FOLDERS and (ROOT / path).exists()) or any(
        (ROOT / top / path).exists() for top in ("orchestrator", "tests")
    )


def _is_a_file_of_ours(path: str) -> bool:
    first = path.partition("/")[0]
    return "NAME" not in path and (
        first in _FOLDERS or (path.endswith(".py") and (ROOT / "orchestrator" / first).is_dir())
    )


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    named = _PATH.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if _is_a_file_of_ours(name) and not _is_there(name)] == []


def test_each_word_of_the_architecture_stands_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Words and their files")[2].partition("\n## ")[0]
    words = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(words) > 90
    assert sorted(words) == sorted(set(words))


def test_few_files_of_the_product_have_the_name_of_another_one() -> None:
    names = Counter(file.stem for file in (ROOT / "orchestrator").rglob("*.py") if file.stem != "__init__")
    twice = sorted(name for name, files in names.items() if files > 1)
    assert len(twice) <= 30, f"name the file for what it alone has: {twice}"
