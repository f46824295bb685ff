"""Files of folders: which a person trusts, each by its place and its content, and what others may set.

A folder's `dendro.toml`, or its `.dendro/setup.sh`, may come from a stranger's repository, or from an agent
that worked there. The list lies in the home folder, which no confined command can reach.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from orchestrator.config_keys import FOLDER_SETUP, Setting, Table, settings_of
from orchestrator.core.frozen import record
from orchestrator.private_files import make_folder, write_file
from orchestrator.settings.layers import KeyPath, Layers, SettingsError, leaves

LIST_NAME = "trusted.json"
_WRITABLE_BY_OTHERS = 0o022


@record
class FolderConfig:
    """The file of the current folder, as it counts."""

    path: Path
    trusted: bool
    ignored: tuple[str, ...] = ()
    """Keys that it may not set while it is not trusted, written as in TOML."""
    obeyed: tuple[str, ...] = ()
    """Keys that it sets."""


@record
class TrustedFile:
    """A content that a person has trusted in one place."""

    path: str
    sha256: str
    at_s: int
    """Unix time at which it was trusted."""


def content_hash(content: bytes) -> str:
    """The name under which a content is trusted."""
    return hashlib.sha256(content).hexdigest()


def place_of(config: Path) -> str:
    """The place of a folder's file: the real path of the folder, and the file's name in it.

    A link of that name is not followed: an agent may have made it, to a file that was trusted elsewhere.
    """
    file = Path.cwd() / config
    top = file.parent.parent if file.match(FOLDER_SETUP) else file.parent
    return str(Path(os.path.realpath(top)) / file.relative_to(top))


@record
class TrustList:
    """The contents that one person has trusted, in a file that only this person can read and write."""

    home: Path

    @property
    def file(self) -> Path:
        return self.home / LIST_NAME

    def trusts(self, config: Path, content: bytes) -> bool:
        """Whether this content was trusted in this place; the same one elsewhere is another file."""
        wanted = place_of(config), content_hash(content)
        return any((each.path, each.sha256) == wanted for each in self.entries())

    def entries(self) -> Sequence[TrustedFile]:
        """All of them, the oldest first. Raises `SettingsError` if the list is not to be believed."""
        try:
            with self.file.open("rb") as stream:
                self._check_owner(os.fstat(stream.fileno()))
                found = json.loads(stream.read())
            return [_entry(each) for each in found["trusted"]]
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "remove it, and trust your files again: dendro trust FILE"
            raise SettingsError(
                str(self.file), "", f"the list of trusted files is unreadable ({error})", remedy
            ) from error

    def configurations(self) -> Sequence[Path]:
        """The places of trusted `dendro.toml` files; none if the list is not to be believed: nobody does."""
        try:
            found = [Path(each.path) for each in self.entries()]
        except SettingsError:
            return ()
        return tuple(dict.fromkeys(path for path in found if not path.match(FOLDER_SETUP)))

    def add(self, config: Path, content: bytes, now_s: int) -> TrustedFile:
        """Trusts this content in this place, beside those that were trusted there before."""
        added = TrustedFile(place_of(config), content_hash(content), now_s)
        with self._alone():
            kept = [each for each in self.entries() if (each.path, each.sha256) != (added.path, added.sha256)]
            self._write([*kept, added])
        return added

    def revoke(self, config: Path) -> int:
        """Trusts no content in this place any more; answers how many there were."""
        place = place_of(config)
        with self._alone():
            found = self.entries()
            kept = [each for each in found if each.path != place]
            if len(kept) != len(found):
                self._write(kept)
        return len(found) - len(kept)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two processes that change the list at once would lose one change."""
        make_folder(self.home)
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, entries: Sequence[TrustedFile]) -> None:
        text = json.dumps({"trusted": [asdict(each) for each in entries]}, indent=1)
        write_file(self.file, f"{text}\n".encode())

    def _check_owner(self, found: os.stat_result) -> None:
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & _WRITABLE_BY_OTHERS:
            what = "the list of trusted files can be written by other users"
            raise SettingsError(str(self.file), "", what, f"own it, and: chmod 600 {self.file}")


def _entry(found: Mapping[str, object]) -> TrustedFile:
    match found:
        case {"path": str(path), "sha256": str(digest), "at_s": int(at_s)}:
            return TrustedFile(path, digest, at_s)
    raise ValueError("an entry without path, sha256 and at_s")


# ── folder ────────────────────────────────────────────────────────────────────────────────────────
# Rules for the `dendro.toml` of a folder: everything once a person has trusted it, else what does no
# harm.
#
# The file may come from a stranger's repository, or from an agent that worked in the folder. Untrusted,
# it may set what each setting's own record permits by `folder`; keys that no record knows are refused
# too, so that a new table cannot be forgotten here. Knows no particular setting.


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SHOWN_KEY_CHARS = 60


@record
class _Rule:
    """A folder's rights on a key, and the key's value when nobody sets it."""

    spec: Setting
    default: object


@record
class FolderRules:
    """The rules of all keys, taken from the records. `usual` gives defaults that depend on the machine."""

    records: Sequence[type[Table]]
    usual: Mapping[KeyPath, Callable[[], object]]

    def refused(self, table: Mapping[str, object], person: Layers) -> list[KeyPath]:
        """Keys of a folder's table that it may not set over what the person has set."""
        rules = dict(self._rules())
        return [
            path
            for path, value in leaves(table)
            if path and not self._permits(rules.get(path), path, value, person)
        ]

    def _rules(self) -> Iterator[tuple[KeyPath, _Rule]]:
        for table in self.records:
            for name, spec in settings_of(table):
                yield tuple((spec.key or name).split(".")), _Rule(spec, table.model_fields[name].default)

    def _permits(self, rule: _Rule | None, path: KeyPath, value: object, person: Layers) -> bool:
        if rule is None or rule.spec.folder is None or rule.spec.folder == "trusted":
            return False
        if rule.spec.folder == "free":
            return True
        found = person.peek(path)
        if found is not None:
            return _is_stricter(rule.spec, value, found.value)
        return _is_stricter(rule.spec, value, self.usual.get(path, lambda: rule.default)())


def written(path: KeyPath) -> str:
    """A key as TOML writes it, cut where it is long; a stranger's key may hold anything."""
    key = whole_key(path)
    return key if len(key) <= SHOWN_KEY_CHARS else key[: SHOWN_KEY_CHARS - 1] + "…"


def whole_key(path: KeyPath) -> str:
    """A key as TOML writes it."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(part) for part in path)


def _is_stricter(spec: Setting, value: object, counts: object) -> bool:
    """Whether a value permits no more than the one that counts without it."""
    match spec.folder:
        case tuple() as strict_first:
            return (
                value in strict_first
                and counts in strict_first
                and (strict_first.index(value) <= strict_first.index(counts))
            )
        case "down" | "up":
            return _bounds(value) and _no_further(spec, value, counts)
    return False


def _no_further(spec: Setting, value: object, counts: object) -> bool:
    if counts is None:
        return True
    if not _bounds(counts):
        return False
    assert isinstance(value, (int, float))
    assert isinstance(counts, (int, float))
    return value <= counts if spec.folder == "down" else value >= counts


def _bounds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
