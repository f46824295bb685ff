"""Packs of snapshots in the store: named by what they hold, written once, checked before they are read.

    <tree>/workspaces/<session>/<epoch>-<claim>-<sha256>.pack

A pack is written before the entry that names it, by the claim in its name. A pack that no entry names is
read by nobody: its claim died before the commit. They lie beside the tree's logs, so what deletes a tree
deletes them, too. Names come from logs, which may come from another deployment: a name that is none of the
session's tree is refused before the store is asked.

With a key the store has them sealed (`sealing`): this is the one place where packs are sealed and opened. A
name and its SHA-256 are those of the pack as it was before.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.private_files import replacing
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects, TooLarge
from orchestrator.workspaces.pack_keys import Key, KeyUnavailable, PackKeys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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


@record
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
    """The packs of all workspaces, in one store; `keys` seal what is put into it."""

    def __init__(self, objects: Objects, keys: PackKeys | None = None) -> None:
        self._objects = objects
        self._keys = keys

    def require_keys(self) -> None:
        """Raises `KeyUnavailable` if there are to be keys, and none can be had."""
        if self._keys is not None:
            self._keys.first()

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
        if self._keys is None:
            self._objects.put_file(str(name), file)
            return
        key = self._keys.first()
        with file.open("rb") as content:
            self._objects.put_parts(str(name), seal(content, str(name), key))

    async def fetch(self, name: PackName, target: Path, most: int) -> None:
        """Brings a pack here, whole and checked: `target` is there with its bytes, or not at all.

        Raises `BrokenPack` for one that is missing, has more than `most` bytes, or is not the one that its
        name says; `ArchiveUnavailable` where the store does not answer, as `KeyUnavailable` where the key of
        the pack is not here; `OSError` where this disk does not take it.
        """
        await asyncio.to_thread(self._fetch, name, target, most)

    def _fetch(self, name: PackName, target: Path, most: int) -> None:
        with replacing(target, sync=False) as file:
            hashed = _Hashed(file)
            self._copied(name, Opening(hashed.write, str(name), self._keys, most), most)
            if hashed.digest.hexdigest() != name.sha256:
                raise BrokenPack(f"{name} has other bytes than its name says: restore it from a backup")

    def _copied(self, name: PackName, target: Opening, most: int) -> None:
        try:
            self._received(name, target, most)
        except TooLarge as error:
            raise BrokenPack(f"{error}: it is not read") from error
        except NotOpened as error:
            raise BrokenPack(f"{error}: restore it from a backup") from error

    def _received(self, name: PackName, target: Opening, most: int) -> None:
        # `target` counts exactly; this bounds what it is given.
        bound = sealed_bytes(most + PIECE)
        try:
            size = self._objects.get_file(str(name), target, bound)  # type: ignore[arg-type]
        except ArchiveUnavailable:
            if target.refused is not None:
                # The store did answer: this disk is full, or the key is not here.
                raise target.refused from None
            raise
        if size is None:
            raise BrokenPack(f"the store lacks {name}, which the log names: restore it from a backup")
        target.finish()

    async def is_sealed(self, name: PackName) -> bool | None:
        """Whether a pack is sealed, and its first piece opens with a key of ours; None if it is not there.

        Raises `BrokenPack`, `ArchiveUnavailable`.
        """
        return await asyncio.to_thread(self._is_sealed, name)

    def _is_sealed(self, name: PackName) -> bool | None:
        start = self._objects.begin(str(name), FIRST_BYTES)
        if start is None:
            return None
        first = Opening(len, str(name), self._keys, FIRST_BYTES)
        try:
            first.write(start)
            if len(start) < FIRST_BYTES:
                first.finish()
        except NotOpened as error:
            raise BrokenPack(f"{error}: restore it from a backup") from error
        return first.sealed

    async def has(self, name: PackName) -> bool:
        return await asyncio.to_thread(self._objects.exists, str(name))

    async def names(self, tree: TreeId, session: SessionId) -> tuple[PackName, ...]:
        """The packs of a session in the store; what has no pack's name is left out."""
        folder = folder_of(tree, session)
        found = await asyncio.to_thread(self._objects.names, folder)
        named = (_NAME.fullmatch(f"{folder}/{name}") for name in found)
        return tuple(PackName.of(match.group(), tree) for match in named if match is not None)

    async def newest(self, most: int) -> PackName | None:
        """The pack written last, in the youngest tree that has one; looks at `most` trees and sessions."""
        for tree in await self._youngest("", most):
            found: list[PackName] = []
            for session in await self._youngest(f"{tree}/workspaces", most):
                found += await self.names(TreeId(tree), session)
            if found:
                written = {name: await self.written_s(name) or 0.0 for name in found}
                return max(found, key=lambda name: written[name])
        return None

    async def _youngest(self, folder: str, most: int) -> list[SessionId]:
        """The ids right below a folder, the youngest first: they begin with the time."""
        found = await asyncio.to_thread(self._objects.names, folder)
        return [SessionId(name) for name in sorted(found, reverse=True) if re.fullmatch(_ID, name)][:most]

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
    """A file to write to that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, chunk: bytes) -> int:
        self.digest.update(chunk)
        return self._file.write(chunk)


def folder_of(tree: TreeId, session: SessionId) -> str:
    """The store's folder of a session's packs."""
    return f"{tree}/workspaces/{session}"


# ── sealing ───────────────────────────────────────────────────────────────────────────────────────
# Packs as the store holds them under a key: a header, and pieces that are encrypted one by one.
#
#     "DENDRPK", version 1 | the key's id, 8 bytes | salt, 32 bytes | piece | piece | … | last piece
#
# A piece is 1 MiB of the pack, or less for the last one, under AES-256-GCM. Each object has a key of its
# own, by HKDF-SHA256 from the deployment's key and the salt, so a piece's nonce is its number and whether
# it is the last. The header and the object's name are authenticated with every piece: one that is cut,
# exchanged, moved, or comes from another object does not open. The primitives are those of
# `cryptography`.


MAGIC = b"DENDRPK"
VERSION = 1
PIECE = 1 << 20
TAG = 16
_SALT = 32
_KEY_ID = 8
HEADER = len(MAGIC) + 1 + _KEY_ID + _SALT
FIRST_BYTES = HEADER + PIECE + TAG + 1
"""So many bytes of a sealed pack open its first piece, or there are no more."""
_INFO = b"dendro pack 1"


class NotOpened(Exception):
    """A sealed pack is not the one that was stored under its name."""


def sealed_bytes(plain: int) -> int:
    """The most bytes that a pack of this many may have in the store."""
    return HEADER + plain + TAG * (plain // PIECE + 1)


def seal(plain: BinaryIO, name: str, key: Key, salt: Callable[[int], bytes] = os.urandom) -> Iterator[bytes]:
    """The parts of a sealed pack, in order; no more than two pieces are in memory."""
    header = MAGIC + bytes([VERSION]) + bytes.fromhex(key.id) + salt(_SALT)
    cipher, number = _cipher(key, header), 0
    yield header
    piece = plain.read(PIECE)
    while True:
        following = plain.read(PIECE)
        yield cipher.encrypt(_nonce(number, last=not following), piece, header + name.encode())
        if not following:
            return
        piece, number = following, number + 1


class Opening:
    """A place to write a pack to, as the store holds it; `target` gets it as it was before it was sealed.

    A pack that is not sealed is handed on as it is: one of before there was a key. What goes wrong is
    raised, and kept in `refused`: between this and its caller stands a store with errors of its own.
    """

    def __init__(
        self, target: Callable[[bytes], object], name: str, keys: PackKeys | None, most: int
    ) -> None:
        self._target = target
        self._name = name
        self._keys = keys
        self._most = most
        self._left = most
        self._waiting = bytearray()
        self._header = b""
        self._cipher: AESGCM | None = None
        self._number = 0
        self._plain = False
        self.refused: Exception | None = None

    @property
    def sealed(self) -> bool:
        """Whether the pack was found to be sealed."""
        return self._cipher is not None

    def write(self, chunk: bytes) -> int:
        """Takes the next bytes."""
        try:
            self._waiting += chunk
            self._hand_on(whole=False)
        except Exception as error:
            self.refused = error
            raise
        return len(chunk)

    def finish(self) -> None:
        """Ends it: what was written is all of the pack. Raises `NotOpened` if it is not."""
        self._hand_on(whole=True)

    def _hand_on(self, *, whole: bool) -> None:
        if self._cipher is None and not self._plain and not self._begun(whole=whole):
            return
        if self._plain:
            self._give(bytes(self._waiting))
            self._waiting.clear()
            return
        # Only the last piece is followed by nothing: it is opened when there is no more to come.
        while len(self._waiting) > PIECE + TAG:
            self._open(PIECE + TAG, last=False)
        if whole:
            self._open(len(self._waiting), last=True)

    def _begun(self, *, whole: bool) -> bool:
        """Whether it is known what this is; a header is taken off."""
        if not self._waiting.startswith(MAGIC):
            self._plain = whole or not MAGIC.startswith(self._waiting)
            return self._plain
        if len(self._waiting) < HEADER:
            if whole:
                raise NotOpened(f"{self._name} ends within its header")
            return False
        self._header = bytes(self._waiting[:HEADER])
        del self._waiting[:HEADER]
        self._cipher = self._cipher_of(self._header)
        return True

    def _cipher_of(self, header: bytes) -> AESGCM:
        version, key_id = header[len(MAGIC)], header[len(MAGIC) + 1 : len(MAGIC) + 1 + _KEY_ID].hex()
        if version != VERSION:
            raise KeyUnavailable(
                f"{self._name} is encrypted in form {version}, and this Dendro reads form {VERSION}: use a "
                "newer one"
            )
        if self._keys is None:
            raise KeyUnavailable(
                f"{self._name} is encrypted with key {key_id}, and this process has no key: set "
                "`workspace.key_file` to the deployment's"
            )
        return _cipher(self._keys.of(key_id, self._name), header)

    def _open(self, size: int, *, last: bool) -> None:
        from cryptography.exceptions import InvalidTag

        assert self._cipher is not None, "the header was read"
        nonce = _nonce(self._number, last=last)
        try:
            piece = self._cipher.decrypt(
                nonce, bytes(self._waiting[:size]), self._header + self._name.encode()
            )
        except InvalidTag:
            raise NotOpened(
                f"{self._name} does not open at piece {self._number + 1}: it is cut, changed or another pack"
            ) from None
        del self._waiting[:size]
        self._number += 1
        self._give(piece)

    def _give(self, plain: bytes) -> None:
        self._left -= len(plain)
        if self._left < 0:
            raise TooLarge(f"{self._name} has more than the {self._most:,} bytes that it may have")
        self._target(plain)


def _cipher(key: Key, header: bytes) -> AESGCM:
    # Imported here: most processes never seal, and this costs milliseconds of their start.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), 32, header[-_SALT:], _INFO).derive(key.secret))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
