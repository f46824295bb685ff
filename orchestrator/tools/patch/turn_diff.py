"""The accumulated diff of a task: every file that its patches touched, then and now.

A baseline is what a file was when the task first touched it; baselines live in the
session's state, so a takeover continues the same diff. Whatever changed the file since
(a patch, a command, a person) shows up, because "now" is read from the disk.

The form is git's with full blob ids; a file that was moved is shown as one diff from its
old name to its new one.

It must not write, and must not know how a patch is applied.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from orchestrator.core.frozen import record
from orchestrator.folders.linediff import unified_diff
from orchestrator.tools.patch.bounds import MOST_LINES
from orchestrator.tools.patch.files import FileImage, FileReader
from orchestrator.tools.patch.plan import PatchPlan, PlannedFile

_ABSENT_ID = "0" * 40


@record
class Baseline:
    """A file when the task first touched it; fields are plain JSON values.

    `origin` is its path then. `mode` is git's ("100644"); mode and content are None for a
    file that was absent. `encoding` tells how `content` holds the bytes.
    """

    origin: str
    mode: str | None = None
    content: str | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @classmethod
    def of(cls, origin: Path, image: FileImage | None) -> Baseline:
        if image is None:
            return cls(str(origin))
        try:
            return cls(str(origin), image.git_mode, image.content.decode("utf-8"))
        except UnicodeDecodeError:
            content = base64.b64encode(image.content).decode("ascii")
            return cls(str(origin), image.git_mode, content, "base64")

    def content_bytes(self) -> bytes | None:
        if self.content is None:
            return None
        if self.encoding == "base64":
            return base64.b64decode(self.content)
        return self.content.encode("utf-8")


def with_plan(baselines: Mapping[str, Baseline], plan: PatchPlan) -> dict[str, Baseline]:
    """The baselines after a plan was applied, by the path where each file is now."""
    result = dict(baselines)
    by_path = {file.path: file for file in plan.files}
    # Who is looked for among thousands of baselines is mostly not there: only moves take one away.
    away = {baseline.origin for path, baseline in result.items() if baseline.origin != path}
    away |= {str(file.target) for file in plan.files if file.move_to}
    for file in plan.files:
        if file.moved_from is None:
            dest = by_path.get(file.move_to) if file.move_to else None
            _remember(result, file, dest, away)
    return result


def _remember(
    result: dict[str, Baseline], file: PlannedFile, dest: PlannedFile | None, away: set[str]
) -> None:
    path = str(file.target)
    if path not in result:
        back = _given_back(result, path) if path in away else None
        result[path] = back or Baseline.of(file.target, file.before)
    if dest is not None and _follow(result, path, dest):
        return
    if file.after is None and result[path].origin != path:
        # A file that was moved and is gone now is a deletion where it was at first.
        _send_home(result, result.pop(path))


def _send_home(result: dict[str, Baseline], baseline: Baseline) -> None:
    """Puts a baseline back to its origin; one that a move had put there goes home in turn."""
    if baseline.content is None:
        # Made and gone again: nothing to tell, and no reason to part another file from its move.
        result.setdefault(baseline.origin, baseline)
        return
    displaced = result.get(baseline.origin)
    result[baseline.origin] = baseline
    if displaced is not None and displaced.origin != baseline.origin:
        _send_home(result, displaced)


def _given_back(result: dict[str, Baseline], path: str) -> Baseline | None:
    """The baseline that a move took away from `path`, where there is a file again.

    What the move led to counts as a new file from then on, as in git.
    """
    for other, baseline in result.items():
        if baseline.origin == path:
            result[other] = Baseline(other)
            return baseline
    return None


def _follow(result: dict[str, Baseline], path: str, dest: PlannedFile) -> bool:
    """Takes the baseline of `path` along to where its file was moved; false if it stays behind."""
    end = str(dest.target)
    if dest.before is None and end not in result:
        result[end] = result.pop(path)
        return True
    # The move's end was a file of its own: two stories, not one.
    result.setdefault(end, Baseline.of(dest.target, dest.before))
    return False


def turn_diff(baselines: Mapping[str, Baseline], root: Path, files: FileReader) -> str:
    """Diffs of all files that differ from their baselines, sorted by path; "" if none does.

    Paths under `root` are shown relative to it, others whole.
    """
    base = files.resolve(root)
    shown = sorted((_shown(Path(path), base), path) for path in baselines)
    return "".join(
        text
        for name, path in shown
        for text in _file_diff(baselines[path], name, _read(files, Path(path)), base)
    )


def _read(files: FileReader, path: Path) -> FileImage | None:
    try:
        return files.read(path)
    except OSError:
        # A folder or a device stands there now: for the diff the file is gone.
        return None


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _file_diff(baseline: Baseline, name: str, now: FileImage | None, root: Path) -> Iterator[str]:
    before, after = baseline.content_bytes(), now.content if now else None
    old_name = _shown(Path(baseline.origin), root)
    mode = now.git_mode if now else None
    if (before, baseline.mode) == (after, mode) and (old_name == name or before is None):
        return
    yield f"diff --git a/{old_name} b/{name}\n"
    yield from _mode_lines(baseline.mode, mode)
    if before == after:
        if old_name != name:
            yield f"similarity index 100%\nrename from {old_name}\nrename to {name}\n"
        return
    yield f"index {_blob_id(before)}..{_blob_id(after)}\n"
    old_header = "/dev/null" if before is None else f"a/{old_name}"
    new_header = "/dev/null" if after is None else f"b/{name}"
    yield from _body(before or b"", after or b"", f"--- {old_header}\n+++ {new_header}\n")


def _mode_lines(before: str | None, after: str | None) -> Iterator[str]:
    if before is None:
        yield f"new file mode {after}\n"
    elif after is None:
        yield f"deleted file mode {before}\n"
    elif before != after:
        yield f"old mode {before}\nnew mode {after}\n"


def _body(before: bytes, after: bytes, headers: str) -> Iterator[str]:
    old, new = _text(before), _text(after)
    if old is None or new is None:
        yield f"{headers}Binary files differ\n"
    elif diff := unified_diff(old, new):
        yield headers + diff


def _text(content: bytes) -> str | None:
    # A command may have made millions of lines of a file since a patch changed it.
    if b"\0" in content or content.count(b"\n") > MOST_LINES:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _blob_id(content: bytes | None) -> str:
    if content is None:
        return _ABSENT_ID
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
