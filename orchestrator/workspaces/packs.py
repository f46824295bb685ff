"""Packs of snapshots in the store: named by what they hold, written once, checked before they are read.

    <tree>/workspaces/<session>/<epoch>-<claim>-<sha256>.pack

A pack is written before the entry that names it, by the claim in its name. A pack that no entry names is
read by nobody: its claim died before the commit. They lie beside the tree's logs, so what deletes a tree
deletes them, too. Names come from logs, which may come from another deployment: a name that is none of the
session's tree is refused before the store is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.objects import ArchiveUnavailable, Objects, TooLarge

_ID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_NAME = re.compile(
    f"(?P<tree>{_ID})/workspaces/(?P<session>{_ID})/"
    "(?P<epoch>[0-9]{1,15})-(?P<claim>[0-9a-f]{1,32})-(?P<sha256>[0-9a-f]{64})[.]pack"
)
_NAMED = re.compile(re.sub(r"\(\?P<[a-z0-9]+>", "(?:", _NAME.pattern).encode("ascii"))
BIRTH = "0"
"""The claim of packs that were written when the session was made: nobody held it yet, its epoch was 0."""


class BrokenPack(Exception):
    """A pack is missing from the store, or is not what its name says: its snapshot cannot be made."""


@dataclass(frozen=True, slots=True)
class PackName:
    """A pack's place in the store, and the SHA-256 of its bytes."""

    tree: TreeId
    session: SessionId
    epoch: int
    claim: str
    sha256: str

    def __str__(self) -> str:
        return f"{folder_of(self.tree, self.session)}/{self.epoch}-{self.claim}-{self.sha256}.pack"

    @classmethod
    def of(cls, text: str, tree: TreeId) -> PackName:
        """The name that an entry of a session of `tree` holds; raises `BrokenPack` for any other text."""
        found = _NAME.fullmatch(text)
        if found is None or found["tree"] != tree:
            raise BrokenPack(
                f"the log names a pack {text[:200]!r}, which is none of tree {tree}: its snapshot is not made"
            )
        return cls(tree, SessionId(found["session"]), int(found["epoch"]), found["claim"], found["sha256"])


class Packs:
    """The packs of all workspaces, in one store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, name: PackName, file: Path) -> None:
        """Stores a pack; it is in the store, and survives a power failure, when this returns.

        Again is harmless: the name says what the bytes are. Raises `BrokenPack` for a file whose bytes
        are not those of its name, `ArchiveUnavailable` where the store does not take it.
        """
        await asyncio.to_thread(self._put, name, file)

    def _put(self, name: PackName, file: Path) -> None:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != name.sha256:
            raise BrokenPack(f"{file.name} changed after it was made: it is not stored")
        self._objects.put_file(str(name), file)

    async def fetch(self, name: PackName, target: Path, most: int) -> None:
        """Brings a pack here, whole and checked: `target` is there with its bytes, or not at all.

        Raises `BrokenPack` for one that is missing, has more than `most` bytes, or has another hash than
        its name says; `ArchiveUnavailable` where the store does not answer; `OSError` where this disk does
        not take it.
        """
        await asyncio.to_thread(self._fetch, name, target, most)

    def _fetch(self, name: PackName, target: Path, most: int) -> None:
        unfinished = target.with_name(f"{target.name}.part")
        try:
            with unfinished.open("wb") as file:
                hashed = _Hashed(file)
                size = self._copied(name, hashed, most)
            if size is None:
                raise BrokenPack(f"the store lacks {name}, which the log names: restore it from a backup")
            if hashed.digest.hexdigest() != name.sha256:
                raise BrokenPack(f"{name} has other bytes than its name says: restore it from a backup")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def _copied(self, name: PackName, target: _Hashed, most: int) -> int | None:
        try:
            return self._objects.get_file(str(name), target, most)  # type: ignore[arg-type]
        except TooLarge as error:
            raise BrokenPack(f"{error}: it is not read") from error
        except ArchiveUnavailable:
            if target.refused is not None:
                # The store did answer: this disk is full, or broken.
                raise target.refused from None
            raise

    async def has(self, name: PackName) -> bool:
        return await asyncio.to_thread(self._objects.exists, str(name))

    async def names(self, tree: TreeId, session: SessionId) -> tuple[PackName, ...]:
        """The packs of a session in the store; what has no pack's name is left out."""
        folder = folder_of(tree, session)
        found = await asyncio.to_thread(self._objects.names, folder)
        named = (_NAME.fullmatch(f"{folder}/{name}") for name in found)
        return tuple(PackName.of(match.group(), tree) for match in named if match is not None)

    async def written_s(self, name: PackName) -> float | None:
        """The Unix time at which a pack was stored; None if it is not there."""
        return await asyncio.to_thread(self._objects.changed_s, str(name))

    async def remove(self, name: PackName) -> None:
        """Removes a pack; one that is not there is removed already."""
        await asyncio.to_thread(self._objects.remove, str(name))


def named_in(payload: bytes) -> set[str]:
    """Everything in an entry's bytes that is a pack's name."""
    return {match.group().decode("ascii") for match in _NAMED.finditer(payload)}


class _Hashed:
    """A file to write to that hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.refused: OSError | None = None
        """The error with which this machine's disk refused a part of it."""

    def write(self, chunk: bytes) -> int:
        self.digest.update(chunk)
        try:
            return self._file.write(chunk)
        except OSError as error:
            self.refused = error
            raise


def folder_of(tree: TreeId, session: SessionId) -> str:
    """The store's folder of a session's packs."""
    return f"{tree}/workspaces/{session}"
