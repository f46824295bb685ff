"""Sentences of the pages that promise or compare: each names what holds it, and that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.chaos_rules import RULES

ROOT = Path(__file__).parent.parent
LIST = ROOT / "docs" / "proof" / "promises.md"
OF_DEFECTS_AND_FIGURES = {"benchmarks.md", "defects-of-meaning.md", "planted-defects.md", "simulator.md"}
"""Pages that are lists of what was tried and measured: tests of their own hold them."""
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OF_DEFECTS_AND_FIGURES),
]
_WORDS = re.compile(
    r"\b(never|always|however often|no matter|survives?|guarantee[sd]?|nothing is lost|los(?:es|ing) nothing"
    r"|(?:costs?|repeats|lost) nothing|not lost|without loss|at most once|exactly once|bit for bit"
    r"|faster|slower|cheap(?:er|est)?|(?:twice|\w+ times) as|less than a \w+ of"
    r"|within (?:seconds|half a second|an? second|\d+ s(?:econds)?\b))|\d ?×|× ?\d",
    re.IGNORECASE,
)
_CODE, _SPAN = re.compile(r"```.*?```", re.DOTALL), re.compile(r"`[^`\n]*`")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*[-*|#>]|\s*\d+\. )")
_END = re.compile(r"(?<=[.;:])\s+(?=[A-Z`*\[(])|(?<=[.;])\s+")
_ROW = re.compile(r"^\| \[[^\]]+\]\((\S+)\) \| “(.+)” \| (.+) \|$", re.MULTILINE)
_FIGURE = re.compile(r"(?<![p\d.])\d[\d,]*(?:\.\d+)?")
LEASE = ("the lease: 6 s", "the lease")
"""A setting, and no measure."""
_HOLDER = re.compile(r"(?:(rule|chaos|row|law) )?`([^`]+)`")


def promises(page: Path) -> Iterator[str]:
    """Sentences, and cells of tables, in which a word promises or compares."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for block in _BLOCK.split(text):
        flat = " ".join(block.split())
        for cell in flat.split(" | ") if flat.startswith("|") else _END.split(flat):
            if " " in cell.strip() and _WORDS.search(_SPAN.sub("``", cell)):
                yield cell


def rows() -> list[tuple[Path, str, str]]:
    """Of the list: the page, words of its sentence, and what holds it."""
    found = _ROW.findall(LIST.read_text(encoding="utf-8"))
    return [((LIST.parent / link).resolve(), words, holders) for link, words, holders in found]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_sentence_that_promises_or_compares_is_in_the_list(page: Path) -> None:
    known = [words for listed, words, _ in rows() if listed == page]
    bare = [one for one in promises(page) if not any(words in one for words in known)]
    assert bare == [], f"name what holds it in {LIST.relative_to(ROOT)}, or strike it out"


def test_list_quotes_what_the_pages_say() -> None:
    texts = {page: " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert len(rows()) > 60
    assert [(page.name, words) for page, words, _ in rows() if words not in texts[page]] == []


def test_what_the_list_names_is_there() -> None:
    tests = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    table = re.compile(r"^\| (.+?) \|", re.MULTILINE)
    pages = {
        name: (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        for name in ("simulator", "benchmarks", "scale")
    }
    known = {
        "": tests,
        "chaos": {rule.__name__ for rule in RULES},
        "rule": {cell.strip("`") for cell in table.findall(pages["simulator"])},
        "row": {cell.strip() for cell in table.findall(pages["benchmarks"])},
        "law": set(table.findall(pages["scale"])),
    }
    held = [(kind, name) for _, _, holders in rows() for kind, name in _HOLDER.findall(holders)]
    assert [one for one in held if one[1] not in known[one[0]]] == []
    assert [words for _, words, holders in rows() if not _HOLDER.search(holders)] == []


def test_figures_of_the_readme_stand_in_the_rows_that_were_measured() -> None:
    readme = (
        (ROOT / "README.md").read_text("utf-8").partition("<!-- figures -->")[2].partition("<!-- /figures")[0]
    )
    cells = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", readme, re.MULTILINE)[1:]
    measured = (ROOT / "docs" / "benchmarks.md").read_text("utf-8").partition("<!-- figures: begin -->")[2]
    known = set(re.findall(r"\| ([\d,.]+) (?=\|)", measured))
    told = [figure for cell in cells for figure in _FIGURE.findall(cell.replace(*LEASE))]
    assert len(told) > 20
    assert [figure for figure in told if figure not in known and f"{figure}.00" not in known] == []
