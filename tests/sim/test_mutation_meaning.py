"""Defects of meaning: each fits the product, and one that fits no more, or says too little, is told."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from sim.foreign.trial import ROOT, Unfit
from sim.mutation import meaning
from sim.mutation.meaning import BEGIN, END, KINDS, PAGE, Meaning, figures, planted, read, table
from sim.mutation.verdicts import Verdict

FILE = "orchestrator/core/outstanding.py"
HEAD = "kind: stale read\nwrong: it is wrong\nbreaks: docs/trees.md: {sentence}\n\n"


def _sentence() -> str:
    return (ROOT / "docs" / "trees.md").read_text(encoding="utf-8").splitlines()[2][:30]


def _patch(folder: Path, head: str, *changed: str) -> Path:
    """A patch that cuts the first line of each file."""
    text = head.format(sentence=_sentence())
    for path in changed:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines(keepends=True)
        text += "".join(unified_diff(lines, lines[1:], f"a/{path}", f"b/{path}"))
    (folder / "hand").mkdir(exist_ok=True)
    file = folder / "hand" / "some_defect.patch"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def defects() -> list[Meaning]:
    return planted()


@pytest.mark.always
def test_every_defect_of_meaning_applies_and_breaks_what_a_page_says(defects: list[Meaning]) -> None:
    for one in defects:
        assert one.change.text() != (ROOT / one.change.path).read_text(encoding="utf-8")


def test_the_page_has_every_defect_of_meaning_and_names_every_kind(defects: list[Meaning]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = text.partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ") for line in made.splitlines() if line.startswith("| ")]
    told = {(row[0].removeprefix("| "), row[3]) for row in rows if len(row) == 6} - {
        ("hand", "what is wrong")
    }
    assert told == {(one.hand, one.wrong) for one in defects}, "python -m sim.mutation --meaning --page"
    assert "**nothing**" not in made
    assert all(f"| {kind} | " in text for kind in KINDS)


def test_patch_is_one_change_of_whole_lines_in_the_function_around_it(tmp_path: Path) -> None:
    one = read(_patch(tmp_path, HEAD, FILE))
    assert (one.hand, one.name, one.kind, one.package) == ("hand", "some_defect", "stale read", "core")
    assert one.change.line == 1
    assert one.change.function == ""
    text = (ROOT / FILE).read_text(encoding="utf-8")
    assert one.change.text() == text.partition("\n")[2]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (HEAD.replace("stale read", "bad luck"), "its head is `kind: "),
        (HEAD.replace("wrong: it is wrong\n", ""), "its head is `kind: "),
        (HEAD.replace("{sentence}", "agents sing"), "does not say 'agents sing'"),
    ],
    ids=["kind", "wrong", "sentence"],
)
def test_head_that_says_too_little_is_refused(head: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=said):
        read(_patch(tmp_path, head, FILE))


def test_patch_of_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="changes 2 files"):
        read(_patch(tmp_path, HEAD, FILE, "orchestrator/core/ids.py"))


def test_patch_of_a_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="which is no code of the product"):
        read(_patch(tmp_path, HEAD, "tests/servers.py"))


def test_patch_that_no_longer_applies_is_refused(tmp_path: Path) -> None:
    file = _patch(tmp_path, HEAD, FILE)
    file.write_text(
        file.read_text(encoding="utf-8").replace("\n-", "\n-x").replace("\n-x--", "\n---"), encoding="utf-8"
    )
    with pytest.raises(Unfit, match=r"some_defect\.patch does not apply any more, plant it anew"):
        read(file)


def test_of_several_patches_the_one_that_no_longer_applies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "FOLDER", tmp_path)
    file = _patch(tmp_path, HEAD, FILE)
    text = file.read_text(encoding="utf-8")
    file.with_name("another.patch").write_text(text, encoding="utf-8")
    assert [one.name for one in planted()] == ["another", "some_defect"]
    file.write_text(text.replace("\n-", "\n-x").replace("\n-x--", "\n---"), encoding="utf-8")
    with pytest.raises(Unfit, match=r"some_defect\.patch does not apply any more"):
        planted()


def test_hand_that_planted_nothing_is_refused() -> None:
    with pytest.raises(Unfit, match="no defects were planted by nobody"):
        planted(["nobody"])


def test_figures_count_for_each_hand_what_found_its_defects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "FOLDER", tmp_path)
    _patch(tmp_path, HEAD, FILE)
    (one,) = planted()
    by_rule = Verdict(one.change.id, "simulator", "told", seed=7, workload="tree")
    told = figures([one], {one.change.id: by_rule})
    assert "| hand | 1 | 1 | 1 | 0 | 0 | 0 | 100% | 100% | 0 | 0 | 0% |" in told
    by_story = Verdict(one.change.id, "stories", "log of p1s1 in tree:3", story="…", storied=True)
    told = figures([one], {one.change.id: by_story})
    assert "| hand | 1 | 1 | 0 | 1 | 0 | 0 | 100% | 0% | 1 | 1 | 100% |" in told
    survives = Verdict(one.change.id, "", tests=1, reached=False)
    told = figures([one], {one.change.id: survives})
    assert "| hand | 1 | 0 | 0 | 0 | 0 | 1 | 0% | 0% | 0 | 0 | 0% |" in told
    assert _row(one, by_story).endswith("| story: log of p1s1 in tree:3 |")
    assert _row(one, by_rule).endswith("| `told`, seed 7 of `tree` |")
    assert _row(one, survives).endswith("| **nothing** |")
    seeds_alone = Verdict(one.change.id, "", seeds=40)
    assert _row(one, seeds_alone).endswith("| none of 40 seeds; no test was asked |")


def _row(one: Meaning, verdict: Verdict) -> str:
    return table([one], {one.change.id: verdict}).splitlines()[-1]
