"""Packs as the store holds them under a key: a header, and pieces that are encrypted one by one.

    "DENDRPK", version 1 | the key's id, 8 bytes | salt, 32 bytes | piece | piece | … | last piece

A piece is 1 MiB of the pack, or less for the last one, under AES-256-GCM. Each object has a key of its own,
by HKDF-SHA256 from the deployment's key and the salt, so a piece's nonce is its number and whether it is the
last. The header and the object's name are authenticated with every piece: one that is cut, exchanged, moved,
or comes from another object does not open. The primitives are those of `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from orchestrator.rollouts.objects import TooLarge
from orchestrator.workspaces.keys import Key, KeyUnavailable, PackKeys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"DENDRPK"
VERSION = 1
PIECE = 1 << 20
TAG = 16
_SALT = 32
_ID = 8
HEADER = len(MAGIC) + 1 + _ID + _SALT
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
        version, key_id = header[len(MAGIC)], header[len(MAGIC) + 1 : len(MAGIC) + 1 + _ID].hex()
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
