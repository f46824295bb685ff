"""Rule files: the owner's, and with the owner's leave those of the project that a session works in.

The owner's files are `rules/*.rules` in the home folder, which no confined command can reach. A project's are
`.dendro/rules/*.rules` at the top of its repository; an agent can write them, so they can ask and forbid, and
allow nothing. A file with an error is left out, whole. All are read again when one of them changes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from orchestrator.core.frozen import record
from orchestrator.core.state import State
from orchestrator.private_files import make_folder, open_file
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.rules.parse import PrefixRule, RuleError, parsed_rules

IN_HOME: Final = "rules"
IN_PROJECT: Final = Path(".dendro", "rules")
MOST_FILES: Final = 64
MOST_ENTRIES: Final = 10_000
"""Entries of a folder that are looked at."""
MOST_PROJECTS: Final = 64
"""Projects whose rules are kept."""

_Seen = tuple[tuple[str, int, int], ...]
"""The files of a folder: name, modification time in nanoseconds, size."""


@record
class RuleSet:
    """The rules of some files, and what is wrong with the files that were left out."""

    rules: tuple[PrefixRule, ...] = ()
    problems: tuple[str, ...] = ()

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.rules + other.rules, self.problems + other.problems)


class CommandRules:
    """The rules of one worker."""

    def __init__(self, home: Path | None = None, *, trust_projects: bool = False) -> None:
        self._home = home
        self._own = None if home is None else _Folder(home / IN_HOME, home / IN_HOME, may_allow=True)
        self._trust_projects = trust_projects
        self._projects: OrderedDict[Path, _Folder] = OrderedDict()

    def of(self, cwd: Path) -> RuleSet:
        """The rules for a session that works in a folder, as the files are now."""
        found = self._own.read() if self._own is not None else RuleSet()
        return found + self._of_project(cwd) if self._trust_projects else found

    def add(self, prefix: Sequence[str], *, confined: bool) -> None:
        """Adds a rule to the owner's `default.rules`; raises `OSError`, or `RuleError` if it does not fit."""
        if self._home is not None:
            add_rule(self._home / IN_HOME, prefix, confined=confined)

    def _of_project(self, cwd: Path) -> RuleSet:
        top = _top(cwd)
        if top is None:
            return RuleSet()
        folder = self._projects.pop(top, None) or _Folder(top / IN_PROJECT, top, may_allow=False)
        self._projects[top] = folder
        while len(self._projects) > MOST_PROJECTS:
            self._projects.popitem(last=False)
        return folder.read()


class _Folder:
    """The rule files of one folder, as they were last read."""

    def __init__(self, path: Path, within: Path, *, may_allow: bool) -> None:
        self._path = path
        self._within = within
        """The folder out of which no link may lead."""
        self._may_allow = may_allow
        self._seen: _Seen | None = None
        self._found = RuleSet()

    def read(self) -> RuleSet:
        try:
            seen = _seen(self._path)
        except FileNotFoundError:
            seen = ()
        except OSError as error:
            return RuleSet(problems=(f"{_shown(self._path)}: not readable: {error.strerror}",))
        if seen != self._seen:
            self._found = sum(map(self._of_file, [name for name, _, _ in seen][:MOST_FILES]), RuleSet())
            if len(seen) > MOST_FILES:
                more = f"more than {MOST_FILES} rule files; the last of them by name are left out"
                self._found += RuleSet(problems=(f"{_shown(self._path)}: {more}",))
            self._seen = seen
        return self._found

    def _of_file(self, name: str) -> RuleSet:
        file = self._path / name
        try:
            data = read_regular(file, MOST_BYTES + 1, below=self._within)
            if len(data) > MOST_BYTES:
                raise RuleError(1, f"more than {MOST_BYTES:,} bytes")
            return RuleSet(parsed_rules(data.decode(), may_allow=self._may_allow))
        except UnicodeDecodeError:
            why = "not readable: it is no UTF-8"
        except RuleError as error:
            why = str(error)
        except OSError as error:
            why = f"not readable: {error.strerror}"
        return RuleSet(
            problems=(f"{_shown(file)}: {why}; the whole file is left out until that is corrected",)
        )


def _shown(path: Path) -> str:
    """A path as an event can carry it: a file's name need not be UTF-8."""
    return str(path).encode("utf-8", "replace").decode()


def _seen(folder: Path) -> _Seen:
    return tuple(sorted(_files(folder)))


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            if entry.name.endswith(".rules"):
                about = entry.stat(follow_symlinks=False)
                yield entry.name, about.st_mtime_ns, about.st_size


def _top(cwd: Path) -> Path | None:
    """The top of the repository that a folder lies in; None outside of one."""
    folder = Path(os.path.realpath(cwd))
    chain: Sequence[Path] = [folder, *folder.parents]
    return next((each for each in chain if (each / ".git").exists()), None)


# ── amend ─────────────────────────────────────────────────────────────────────────────────────────
# A rule that a person's answer adds to the owner's `default.rules`.


DEFAULT_FILE: Final = "default.rules"
MOST_BYTES: Final = 256 << 10
"""Bytes of a rule file."""


def add_rule(folder: Path, prefix: Sequence[str], *, confined: bool) -> None:
    """Adds a line that allows a prefix, unless it is there.

    `confined`: as the command that was approved, commands of the prefix stay in their sandbox. Raises
    `OSError`, or `RuleError` where the file would not be readable any more: then it stays as it is.
    """
    make_folder(folder)
    descriptor = open_file(folder / DEFAULT_FILE, os.O_RDWR | os.O_APPEND)
    with os.fdopen(descriptor, "r+b") as file:
        # Two workers of one person may add at once.
        fcntl.flock(file, fcntl.LOCK_EX)
        there, line = file.read(MOST_BYTES + 1), _line(prefix, confined=confined)
        if line.strip() in [each.strip() for each in there.splitlines()]:
            return
        added = line + b"\n" if not there or there.endswith(b"\n") else b"\n" + line + b"\n"
        if len(there) + len(added) > MOST_BYTES:
            raise RuleError(1, f"the file would have more than {MOST_BYTES:,} bytes")
        parsed_rules((there + added).decode())
        file.write(added)


def _line(prefix: Sequence[str], *, confined: bool) -> bytes:
    # JSON's texts are Python's, as long as nothing beyond ASCII is escaped.
    pattern = json.dumps(list(prefix), ensure_ascii=False)
    return f'prefix_rule(pattern={pattern}, decision="allow"{", confined=True" if confined else ""})'.encode()


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────
# Warnings about rule files that were left out: each session hears of them once, until they change.


MOST_SHOWN: Final = 8
MOST_TOLD: Final = 10_000
"""Sessions of which a worker remembers what they heard."""


class RuleWarnings:
    """The warnings about rule files, and the sessions that have heard them."""

    def __init__(self, rules: CommandRules) -> None:
        self._rules = rules
        self._told: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def show(self, state: State, show: Callable[[JsonObject], None]) -> None:
        """Warns of files that are left out, if the session has not heard of them."""
        problems, session = self._rules.of(Path(state.in_force.cwd)).problems, state.facts.session_id
        if self._told.get(session, ()) == problems:
            return
        for problem in problems[:MOST_SHOWN]:
            show(written(WarningEvent(message=f"rules about commands: {problem}")))
        self._told[session] = problems
        while len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
