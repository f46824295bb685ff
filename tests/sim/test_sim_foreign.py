"""Foreign defects: each fits the product, and one that nothing finds, or that no longer fits, is told."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest

from sim.foreign.__main__ import BEGIN, END, PAGE, table
from sim.foreign.trial import (
    ROOT,
    Defect,
    Unfit,
    Verdict,
    copied,
    defects,
    plant,
    promised,
    read,
    simulated,
    tried,
)

SOMEWHERE = "old_result_makes_a_child_idle"


@pytest.mark.always
def test_every_foreign_defect_applies_and_breaks_what_a_page_says() -> None:
    with copied() as tree:
        for defect in defects():
            plant(defect, tree)
            promised(defect.name, defect.page, defect.sentence)


def test_every_finder_of_a_foreign_defect_is_a_test_that_there_is() -> None:
    for path, _, name in [test.partition("::") for defect in defects() for test in defect.tests]:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"


def test_the_page_has_every_foreign_defect_and_nothing_else() -> None:
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ") for line in made.splitlines() if line.startswith("| ")][1:]
    told = {row[0].removeprefix("| "): row[1] for row in rows}
    known = {defect.name.replace("_", " "): defect.wrong for defect in defects()}
    assert told == known, "make the table anew: python -m sim.foreign --page"
    assert "**nothing**" not in made


@pytest.mark.slow
@pytest.mark.slice
def test_planted_defect_is_found_by_its_test() -> None:
    (defect,) = defects([SOMEWHERE])
    by = tried(defect).by
    assert by == "test_tree_mail: test_old_result_that_is_read_leaves_a_child_ready_that_has_worked_since"
    shown = table([defect], {defect.name: Verdict(by, 1.0)})
    assert f"| old result makes a child idle | {defect.wrong} | [states](states.md): " in shown
    assert shown.endswith(f" | {by} |")


@pytest.mark.slow
@pytest.mark.slice
def test_defect_that_its_finders_do_not_notice_survives() -> None:
    harmless = _changed("orchestrator/core/outstanding.py", '"""`outstanding`: ', '"""What is owed: ')
    (defect,) = defects([SOMEWHERE])
    assert tried(replace(harmless, finders=(*defect.finders, "seeds 0-1 of single"))).by is None


@pytest.mark.slow
@pytest.mark.slice
def test_seeds_find_what_breaks_a_rule_of_the_simulator() -> None:
    old = "def evolve_processes(known: Processes, fact: f.ProcessFact) -> Processes:\n"
    deadly = _changed("orchestrator/core/evolve.py", old, f"{old}    return known\n")
    by = tried(replace(deadly, finders=("seeds 0-9 of processes",))).by
    assert by is not None
    assert re.fullmatch(r"`\w+`, seed \d of `processes`", by)


def _changed(path: str, old: str, new: str) -> Defect:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.count(old) == 1
    lines, changed = (one.splitlines(keepends=True) for one in (text, text.replace(old, new)))
    patch = "".join(unified_diff(lines, changed, f"a/{path}", f"b/{path}"))
    (defect,) = defects([SOMEWHERE])
    return replace(defect, name="a_change", patch=patch)


def test_simulator_alone_is_given_no_test_of_a_defect() -> None:
    (defect,) = defects([SOMEWHERE])
    assert simulated(defect).finders == ("seeds 0-19 of letters",)


def test_patch_that_no_longer_applies_is_told() -> None:
    (defect,) = defects([SOMEWHERE])
    with copied() as tree:
        plant(defect, tree)
        with pytest.raises(Unfit, match=f"{SOMEWHERE} does not apply any more, plant it anew"):
            plant(defect, tree)


def test_sentence_that_no_page_has_is_told() -> None:
    (defect,) = defects([SOMEWHERE])
    with pytest.raises(Unfit, match=r"docs/states\.md does not say 'agents sing'"):
        promised(defect.name, defect.page, "agents sing")


@pytest.mark.parametrize("lacking", ["wrong", "breaks", "found-by"])
def test_patch_whose_head_lacks_a_line_is_told(lacking: str, tmp_path: Path) -> None:
    lines = (ROOT / "sim" / "foreign" / f"{SOMEWHERE}.patch").read_text(encoding="utf-8").splitlines()
    patch = tmp_path / "one.patch"
    patch.write_text("\n".join(line for line in lines if not line.startswith(f"{lacking}: ")))
    with pytest.raises(Unfit, match="its head is"):
        read(patch)


def test_name_of_no_defect_is_told() -> None:
    with pytest.raises(Unfit, match="no such defect: nowhere; there are: "):
        defects(["nowhere"])
