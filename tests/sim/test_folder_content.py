"""The simulator's plain reader of folders and packs, and its plain merge."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import Bounds, Place, Taken
from sim.folder_content import (
    EMPTY,
    FILE,
    LINK,
    PROGRAM,
    Content,
    Lacking,
    PackReader,
    changed,
    merged,
    on_disk,
    text_of,
)

A, B, C = (text_of((slot, "", "")) for slot in "abc")
BOTH = text_of(("a", "", "z"))
BASE: Content = {"text": (FILE, A), "gone": (FILE, b"1"), "link": (LINK, b"text")}


def test_packs_that_a_copy_wrote_are_read_as_the_folder_was(tmp_path: Path) -> None:
    rng, place = Random(3), Place(tmp_path / "folder", tmp_path / "objects")
    place.folder.mkdir()
    copy, packs = Copy(place, Bounds()), dict[str, bytes]()
    reader = PackReader(lambda name: packs[name])
    taken = copy.born(None, "", 1)
    for number in range(40):
        packs[taken.sha256] = taken.pack.read_bytes()
        assert reader.content([*packs], taken.snapshot) == on_disk(place.folder)
        changed(place.folder, rng, str(number))
        found = copy.take(taken.snapshot, number, live=True)
        taken = found if isinstance(found, Taken) else taken
    kinds = {kind for kind, _ in on_disk(place.folder).values()}
    assert kinds >= {FILE, LINK, EMPTY}


def test_pack_that_lacks_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path / "folder", tmp_path / "objects")
    place.folder.mkdir()
    copy = Copy(place, Bounds())
    first = copy.born(None, "", 1)
    (place.folder / "a").write_bytes(b"a")
    second = copy.take(first.snapshot, 2)
    assert isinstance(second, Taken)
    reader = PackReader(lambda name: first.pack.read_bytes())
    with pytest.raises(Lacking, match=second.snapshot):
        reader.content([first.sha256], second.snapshot)


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        (BASE, {"text": (FILE, B)}, {"text": (FILE, B)}),
        (
            {**BASE, "text": (FILE, BOTH)},
            {**BASE, "text": (FILE, B)},
            {**BASE, "text": (FILE, text_of(("b", "", "z")))},
        ),
        ({**BASE, "text": (FILE, C)}, {**BASE, "text": (FILE, B)}, None),
        ({**BASE, "text": (PROGRAM, A)}, {**BASE, "text": (FILE, B)}, {**BASE, "text": (PROGRAM, B)}),
        ({"text": (FILE, A)}, {**BASE, "gone": (FILE, b"2")}, None),
        ({**BASE, "gone": (FILE, b"2")}, {"text": (FILE, A), "link": (LINK, b"text")}, None),
        ({**BASE, "new": (FILE, b"1")}, {**BASE, "new": (FILE, b"2")}, None),
        ({**BASE, "new/below": (FILE, b"1")}, {**BASE, "new": (FILE, b"2")}, None),
        ({**BASE, "new": (EMPTY, b"")}, {**BASE, "new": (FILE, b"2")}, {**BASE, "new": (FILE, b"2")}),
        ({**BASE, "link": (LINK, b"a")}, {**BASE, "link": (LINK, b"b")}, None),
    ],
)
def test_plain_merge_goes_three_ways(ours: Content, theirs: Content, wanted: Content | None) -> None:
    assert merged(BASE, ours, theirs) == wanted
