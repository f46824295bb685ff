"""Skills: folders with a `SKILL.md`, found for a working folder and offered to its sessions.

A skill is instructions for one kind of task. Its front matter has a name and a description, which the model
is told of at once; it reads the file when a task fits. What was found for a folder is kept until a root or a
known file changes; what that misses, a new folder two levels down, is found by force.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from orchestrator.core.frozen import record, replace
from orchestrator.folders.outcomes import Found, Search
from orchestrator.instructions.project import ProjectDocs, from_root
from orchestrator.protocol.catalog import SkillErrorInfo, SkillMetadata, SkillScope, SkillsListEntry
from orchestrator.sandbox.trusted_files import read_regular

SKILL_FILE = "SKILL.md"
IN_REPOSITORY = (".agents/skills", ".dendro/skills")
ADMIN_FOLDER = Path("/etc/dendro/skills")
MOST_FILES = 500
MOST_DEPTH = 4
MOST_ENTRIES = 10_000
"""Entries of folders that are looked at below one root."""
MOST_BYTES = 64 << 10
MOST_NAME, MOST_DESCRIPTION = 64, 1024
MOST_KEPT = 64
"""Working folders whose skills are kept."""
OFFER_BYTES = 8 << 10
"""Bytes of the section that tells a model of its skills."""

_OFFER = (
    "## Skills\n\nA skill is a file of instructions for one kind of task. When a task fits a description, or "
    "names a skill as `$name`, read its file first and follow it.\n\n"
)


@record
class Root:
    """A folder below which skills lie; `within` is where a link in it may not lead out of."""

    path: Path
    scope: SkillScope
    within: Path


@record
class RecordedSkills:
    """The skills that lie in a portable folder as it was recorded last."""

    skills: tuple[SkillMetadata, ...] = ()
    errors: tuple[SkillErrorInfo, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """The files of the skills, by their paths."""


@record
class _Kept:
    """The skills of a working folder, and the modification times that they were found under."""

    entry: SkillsListEntry
    times: tuple[tuple[Path, int], ...]
    top: str | None = None
    """The root of the folder's repository that was known then."""


class Skills:
    """The skills of one machine. Its methods block, and may run in any thread."""

    def __init__(
        self, home: Path, user_home: Path, admin: Path = ADMIN_FOLDER, hidden: Iterable[Path] = ()
    ) -> None:
        own = (home / "skills", user_home / ".agents/skills")
        self._hidden = (home, *hidden)
        self._fixed = (
            *(Root(path, SkillScope.USER, path) for path in own),
            Root(admin, SkillScope.ADMIN, admin),
        )
        self._kept: dict[str, _Kept] = {}
        self._lock = Lock()

    def listed(self, cwd: str, *, anew: bool = False, top: str | None = None) -> SkillsListEntry:
        """The skills for a working folder, nearest first; `anew` looks at every file again.

        With an empty `cwd`, those of the person and of the machine alone. `top` is the root of the folder's
        repository, where it is known.
        """
        with self._lock:
            kept = self._kept.get(cwd)
        if top is None and kept is not None:
            top = kept.top
        if (
            kept is not None
            and kept.top == top
            and not anew
            and all(_time(path) == at for path, at in kept.times)
        ):
            return kept.entry
        kept = replace(self._found(cwd, top), top=top)
        with self._lock:
            self._kept.pop(cwd, None)
            self._kept[cwd] = kept
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return kept.entry

    def content(self, cwd: str, path: str) -> tuple[SkillMetadata, str]:
        """A listed skill and the text of its file; raises `ValueError` for a path that is not listed."""
        listed = self.listed(cwd)
        skill = next((skill for skill in listed.skills if skill.path == path), None)
        if skill is None:
            listed = self.listed(cwd, anew=True)
            skill = next((skill for skill in listed.skills if skill.path == path), None)
        with self._lock:
            top = self._kept[cwd].top if cwd in self._kept else None
        roots = (root for root in self._roots(cwd, top) if Path(path).is_relative_to(root.path))
        if skill is None or (root := next(roots, None)) is None:
            raise no_skill(path, cwd)
        return skill, self._text(Path(path), root)

    def offer(
        self,
        cwd: str,
        known: Sequence[str] = (),
        top: str | None = None,
        recorded: Sequence[SkillMetadata] = (),
    ) -> str | None:
        """The section that tells a model of its skills, without those of the `known` folders; None if empty.

        Skills in Dendro's own folder are left out: it is hidden from the model's commands. Those that are
        `recorded` in a portable folder come first.
        """
        told = {skill.path for other in known for skill in self.listed(other).skills}
        skills = [skill for skill in self.listed(cwd, top=top).skills if skill.path not in told]
        shown = [skill for skill in skills if not any(map(Path(skill.path).is_relative_to, self._hidden))]
        return offered((*recorded, *shown))

    # ── finding ───────────────────────────────────────────────────────────────────────────────

    def _roots(self, cwd: str, known_top: str | None = None) -> Sequence[Root]:
        if not cwd:
            return self._fixed
        inward = from_root(Path(cwd), known_top)
        top = inward[0]
        named = [folder / name for folder in reversed(inward) for name in IN_REPOSITORY]
        fixed = {root.path for root in self._fixed}
        return [*(Root(path, SkillScope.REPO, top) for path in named if path not in fixed), *self._fixed]

    def _found(self, cwd: str, top: str | None) -> _Kept:
        folder = Path(cwd)
        if cwd and not _is_folder(folder):
            error = SkillErrorInfo(path=cwd, message="no folder of this machine")
            return _Kept(SkillsListEntry(cwd=cwd, skills=(), errors=(error,)), ((folder, -1),))
        skills: list[SkillMetadata] = []
        errors: list[SkillErrorInfo] = []
        roots = self._roots(cwd, top)
        times = [(root.path, _time(root.path)) for root in roots]
        found = 0
        for root in roots:
            for file in _files(root, MOST_FILES - found, errors):
                found += 1
                times.append((file, _time(file)))
                try:
                    skills.append(_skill(file, self._text(file, root), root.scope))
                except (OSError, ValueError) as error:
                    errors.append(SkillErrorInfo(path=_shown(file), message=_message(error)))
        return _Kept(SkillsListEntry(cwd=cwd, skills=tuple(skills), errors=tuple(errors)), tuple(times))

    def _text(self, file: Path, root: Root) -> str:
        hidden = self._hidden if root.scope is SkillScope.REPO else ()
        content = read_regular(file, MOST_BYTES + 1, hidden, root.within)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        return _decoded(content)


def no_skill(path: str, cwd: str) -> ValueError:
    """The error of a skill that is named and not listed."""
    return ValueError(f"{path} is no skill of {cwd or 'this machine'}: `list_skills` names those that are")


def offered(skills: Iterable[SkillMetadata]) -> str | None:
    """The section that tells a model of skills; None if there are none."""
    lines = [f"- {skill.name}: {skill.description} (file: {skill.path})\n" for skill in skills]
    return _cut(lines) if lines else None


def _skill(file: Path, text: str, scope: SkillScope) -> SkillMetadata:
    values, _ = split(text)
    if values is None:
        raise ValueError("it has no front matter: its first line has to be `---`")
    short = values.get("metadata.short-description", "")
    return SkillMetadata(
        name=_value(values.get("name"), "name", MOST_NAME),
        description=_value(values.get("description"), "description", MOST_DESCRIPTION),
        path=_path(file),
        scope=scope,
        short_description=_value(short, "short-description", MOST_DESCRIPTION) if short else None,
    )


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _files(root: Root, most: int, errors: list[SkillErrorInfo]) -> Iterator[Path]:
    """The skill files below a root, by path; what is left out is added to `errors`."""
    looked, found = 0, 0
    waiting = [(root.path, 0)]
    while waiting:
        folder, depth = waiting.pop()
        names, cut = _names(folder, MOST_ENTRIES - looked, root.within)
        looked += len(names)
        if SKILL_FILE in names:
            if found == most:
                errors.append(_left_out(root.path, "files"))
                return
            found += 1
            yield folder / SKILL_FILE
        if cut:
            errors.append(_left_out(root.path, "entries"))
            return
        if depth < MOST_DEPTH:
            below = (folder / name for name in reversed(names))
            waiting += [(path, depth + 1) for path in below if _is_folder(path)]


def _names(folder: Path, most: int, within: Path) -> tuple[list[str], bool]:
    """The entries of a folder, sorted, and whether there are more; none of a folder that a link led to."""
    try:
        if not folder.resolve().is_relative_to(within.resolve()):
            return [], False
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(most + 1), entries, strict=False)]
    except (OSError, RuntimeError):
        return [], False
    return sorted(names[:most]), len(names) > most


def _left_out(folder: Path, bound: Literal["files", "entries"]) -> SkillErrorInfo:
    counted = "skills are listed" if bound == "files" else "files and folders were looked at"
    most = MOST_FILES if bound == "files" else MOST_ENTRIES
    return SkillErrorInfo(path=_shown(folder), message=f"the rest was left out: {most:,} {counted}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _time(path: Path) -> int:
    """When a file or folder was changed last; -1 for none."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return -1


# ── portable folders ──────────────────────────────────────────────────────────────────────────────
# A portable folder need not be on this machine: its skills are found in what was recorded of it.


def search_of(folders: Sequence[str]) -> Search:
    """The search for skills in these folders of a portable one, "" for itself, the nearest last."""
    named = (f"{folder}/{name}".lstrip("/") for folder in reversed(folders) for name in IN_REPOSITORY)
    return Search(tuple(named), SKILL_FILE, MOST_DEPTH, MOST_ENTRIES, MOST_FILES, MOST_BYTES)


def recorded_skills(top: str, found: Found) -> RecordedSkills:
    """The skills that such a search has found in the portable folder `top`."""
    skills: list[SkillMetadata] = []
    errors: list[SkillErrorInfo] = []
    texts = {}
    for file in found.files:
        path = Path(top, file.path)
        try:
            if file.content is None:
                raise ValueError(file.why)
            text = _decoded(file.content)
            skills.append(_skill(path, text, SkillScope.REPO))
            texts[str(path)] = text
        except ValueError as error:
            errors.append(SkillErrorInfo(path=_shown(path), message=str(error)))
    errors += (_left_out(Path(top, cut.folder), cut.bound) for cut in found.cut)
    return RecordedSkills(tuple(skills), tuple(errors), texts)


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────


def _value(text: str | None, name: str, most: int) -> str:
    """A value in one line, without what a terminal would obey."""
    plain = "".join(char if char.isprintable() else " " for char in text or "")
    shown = " ".join(plain.split())
    if not shown:
        raise ValueError(f"its front matter has no `{name}`")
    if len(shown) > most:
        raise ValueError(f"its `{name}` has more than {most:,} characters")
    return shown


def _path(file: Path) -> str:
    """A path that a model can be told, and JSON can hold."""
    if not str(file).isprintable():
        raise ValueError("its path has characters that cannot be shown")
    return str(file)


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()


def _message(error: Exception) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)


def _cut(lines: Iterable[str]) -> str:
    """The section, with as many lines as it may hold."""
    text, rest = _OFFER, list(lines)
    room = OFFER_BYTES - len(_OFFER.encode()) - len("- and 500 more, which are not shown\n")
    while rest and len(rest[0].encode()) <= room:
        room -= len(rest[0].encode())
        text += rest.pop(0)
    return text + (f"- and {len(rest)} more, which are not shown\n" if rest else "")


# ── front matter ──────────────────────────────────────────────────────────────────────────────────
# The front matter of a Markdown file: YAML between two lines of three dashes.
#
# Only events of the parser are read, so no object is built, no alias is followed, and what nests deeper
# than needed is passed over: the file may be hostile.


FENCE = "---"
MOST_FRONT_BYTES = 16 << 10
"""Bytes of a front matter; a longer one is an error."""


def split(text: str) -> tuple[Mapping[str, str] | None, str]:
    """The front matter's plain values and the text behind it; None and the whole text if there is none.

    A value inside of a mapping is named by both keys, joined by a dot. Raises `ValueError` for a front matter
    that does not end, is too long, or is no YAML.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines or lines[0].rstrip() != FENCE:
        return None, text
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() == FENCE), None)
    if end is None:
        raise ValueError(f"its front matter does not end: a line `{FENCE}` is missing")
    matter = "".join(lines[1:end])
    if len(matter.encode("utf-8", "replace")) > MOST_FRONT_BYTES:
        raise ValueError(f"its front matter has more than {MOST_FRONT_BYTES:,} bytes")
    return _values(matter), "".join(lines[end + 1 :])


def _values(matter: str) -> dict[str, str]:
    # Most processes meet no such file, and the library takes a tenth of their start.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return dict(_pairs(yaml, yaml.parse(matter, Loader=loader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 2}" if mark is not None else ""
        raise ValueError(f"its front matter is no YAML{place}") from None


def _pairs(yaml: Any, events: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """The keys and values of the document's mapping, and of the mappings in it."""
    keys: list[str] = []
    """The keys of the open mappings; of a collection that is no such value, an empty text."""
    key: str | None = None
    for event in events:
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                mapping = isinstance(event, yaml.MappingStartEvent)
                readable = mapping and (not keys or (len(keys) == 1 and key is not None))
                keys.append(f"{key}." if readable and key is not None else "" if readable else "\0")
                key = None
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                keys.pop()
                key = None
            case yaml.ScalarEvent() if keys and keys[-1] != "\0" and key is None:
                key = event.value
            case yaml.ScalarEvent() if keys and keys[-1] != "\0":
                yield keys[-1] + str(key), event.value
                key = None
            case yaml.AliasEvent():
                key = "" if key is None else None
            case _:
                pass


# ── guide ─────────────────────────────────────────────────────────────────────────────────────────
# The text that a model is told of a working folder: `AGENTS.md` files, then the skills that it may use.


@record
class Instructions:
    """The words for a model about a folder, and those for a person."""

    text: str | None = None
    warnings: tuple[str, ...] = ()
    """A line for each file that was left out."""


@record
class Guide:
    """The instructions of one machine's folders. Its methods block."""

    docs: ProjectDocs
    skills: Skills

    def first(self, cwd: Path, top: str | None = None, *, skills: bool = True) -> Instructions:
        """The instructions of a new session: the person's own, the folder's, and its skills.

        `top` is the root of the folder's repository, where it is known. Without `skills` nothing of those is
        told: the session's own folder is another one.
        """
        warnings: list[str] = []
        docs = self.docs.of_folder(cwd, warnings.append, top=top)
        offer = self.skills.offer(str(cwd), top=top) if skills else None
        return Instructions(_joined([self.docs.of_person(), docs, offer]), tuple(warnings))

    def own(self) -> str | None:
        """The instructions of the person and of the machine, of no folder."""
        return _joined([self.docs.of_person(), self.skills.offer("")])

    def further(self, cwd: str, known: Sequence[str]) -> Instructions:
        """The instructions of a folder that a session comes to, without those of the `known` folders."""
        warnings: list[str] = []
        docs = self.docs.of_folder(Path(cwd), warnings.append, [Path(folder) for folder in known])
        return Instructions(_joined([docs, self.skills.offer(cwd, known)]), tuple(warnings))


def _joined(parts: Sequence[str | None]) -> str | None:
    return "\n\n".join(part for part in parts if part) or None
