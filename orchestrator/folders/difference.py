"""The difference of two snapshots, as `git diff` writes it, cut at a bound."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.folders.known import Change, File, Known, changes
from orchestrator.folders.linediff import unified_diff
from orchestrator.folders.names import COMMIT, quoted
from orchestrator.folders.records import Counts, Difference, FileStat
from orchestrator.folders.store import Objects

MOST_TEXT = 1024 * 1024
"""Bytes of the whole text."""
_MOST_FILE = 1024 * 1024
"""Bytes of a file whose lines are compared; a larger one is told as a binary one is."""
_MOST_LISTED = 1000
_SNIFFED = 8000
"""Bytes in which git looks for a zero, which makes a file binary."""
_NOTHING = "0" * 40
_ABSENT = "/dev/null"


def difference(before: Known, after: Known, objects: Objects, *, text: bool) -> Difference:
    """Compares two folders whose files are in `objects`."""
    counts = {"A": 0, "M": 0, "D": 0}
    stats: list[FileStat] = []
    parts: list[str] = []
    inserted = deleted = size = 0
    truncated = False
    for change in changes(before, after):
        counts[change.what] += 1
        body, stat = _compared(change, objects)
        inserted, deleted = inserted + stat.insertions, deleted + stat.deletions
        if len(stats) < _MOST_LISTED:
            stats.append(stat)
        if not text:
            continue
        part = "".join((*_header(change), *body))
        size += len(part.encode())
        truncated |= size > MOST_TEXT
        if not truncated:
            parts.append(part)
    figures = Counts(counts["A"], counts["M"], counts["D"])
    return Difference("".join(parts), truncated, figures, inserted, deleted, tuple(stats))


def _compared(change: Change, objects: Objects) -> tuple[list[str], FileStat]:
    """The lines below the header, and the figures."""
    path = quoted(change.path)
    old, new = _text(change.before, objects), _text(change.after, objects)
    if change.before and change.after and change.before.sha == change.after.sha:
        return [], FileStat(path, 0, 0)
    sides = _side("a", change, change.before), _side("b", change, change.after)
    if old is None or new is None:
        return [f"Binary files {sides[0]} and {sides[1]} differ\n"], FileStat(path, 0, 0, True)
    diff = unified_diff(old, new)
    if not diff:
        return [], FileStat(path, 0, 0)
    hunks = diff.split("\n")
    added = sum(line.startswith("+") for line in hunks)
    removed = sum(line.startswith("-") for line in hunks)
    # A tab behind a name with spaces, by which patch(1) sees where it ends.
    tab = "\t" if b" " in change.path else ""
    old_name, new_name = (side + tab * (side != _ABSENT) for side in sides)
    return [f"--- {old_name}\n+++ {new_name}\n", diff], FileStat(path, added, removed)


def _text(file: File | None, objects: Objects) -> str | None:
    """The content as text; None for a file that is not shown by lines."""
    if file is None:
        return ""
    if file.mode == COMMIT or file.size > _MOST_FILE:
        return None
    content = objects.read(file.sha, "blob")
    if b"\0" in content[:_SNIFFED]:
        return None
    return content.decode("utf-8", "replace")


def _side(letter: str, change: Change, file: File | None) -> str:
    return _ABSENT if file is None else quoted(letter.encode() + b"/" + change.path)


def _header(change: Change) -> Iterator[str]:
    old, new = change.before, change.after
    yield f"diff --git {quoted(b'a/' + change.path)} {quoted(b'b/' + change.path)}\n"
    if old is None and new is not None:
        yield f"new file mode {new.mode:o}\n"
    elif new is None and old is not None:
        yield f"deleted file mode {old.mode:o}\n"
    elif old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode:o}\nnew mode {new.mode:o}\n"
    ids = [file.sha.hex() if file is not None else _NOTHING for file in (old, new)]
    if ids[0] != ids[1]:
        same_mode = f" {new.mode:o}" if old is not None and new is not None and old.mode == new.mode else ""
        yield f"index {ids[0][:7]}..{ids[1][:7]}{same_mode}\n"
