"""A register as files: the tiles of C2SP tlog-tiles below one URL, and the proofs that are made of them.

    checkpoint                  the newest root, signed (c2sp.org/tlog-checkpoint)
    tile/entries/<n>[.p/<w>]    256 statements, or the w of the last bundle, each behind its length
    tile/<level>/<n>[.p/<w>]    256 hashes, or w: of leaves at level 0, of full tiles below at each other
    next/<size>                 the checkpoint's text that followed this size: there is one, for ever

A number is in groups of three digits, all but the last with an `x` before it. `next` is no part of
tlog-tiles: it is made where nothing was, so that of two notaries which would continue one size, one cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from orchestrator.core.frozen import record
from orchestrator.core.merkle import (
    EMPTY_ROOT,
    Leaves,
    consistency_path,
    full_trees,
    inclusion_path,
    joined,
    root_of,
)
from orchestrator.rollouts.bundle_receipts import Receipt, read_statement
from orchestrator.rollouts.object_store import Objects
from orchestrator.rollouts.signed_notes import MOST_NOTE_BYTES, BadNote, Checkpoint, Note, Signer

WIDTH: Final = 256
"""Leaves, or hashes, of a full tile."""
HOME: Final = "home"
"""The register of sessions without a namespace."""
CHECKPOINT_NAME: Final = "checkpoint"
_MOST_STATEMENT: Final = 0xFFFF
_MOST_BUNDLE: Final = WIDTH * (_MOST_STATEMENT + 2)
_HEIGHT: Final = 8
"""Of the tree that a full tile's hashes make."""


class BadRegister(ValueError):
    """A register whose files do not fit its checkpoint; the message says why."""


class Forked(Exception):
    """Another notary has continued the register: this one signs nothing more for it."""


def number_path(number: int) -> str:
    """A tile's number as its path has it: 1234067 is `x001/x234/067`."""
    groups = [f"{number % 1000:03d}"]
    while number := number // 1000:
        groups.append(f"x{number % 1000:03d}")
    return "/".join(reversed(groups))


def tile_path(level: int | None, number: int, width: int = WIDTH) -> str:
    """The path of a tile, or, without a level, of a bundle of statements."""
    kind = "entries" if level is None else str(level)
    partial = f".p/{width}" if width < WIDTH else ""
    return f"tile/{kind}/{number_path(number)}{partial}"


def widths(size: int) -> Iterator[tuple[int, int]]:
    """By level from 0 on, how many hashes there are in all, as long as there are any."""
    level = 0
    while size:
        yield level, size
        level, size = level + 1, size // WIDTH


def encode_bundle(statements: Sequence[bytes]) -> bytes:
    """Statements as a bundle of entries has them: each behind its length, two bytes, big-endian."""
    return b"".join(len(one).to_bytes(2, "big") + one for one in statements)


def decode_bundle(data: bytes) -> list[bytes]:
    """Reads what `encode_bundle` writes; raises `BadRegister`."""
    found, at = list[bytes](), 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if len(data) < max(end, at + 2):
            raise BadRegister("a bundle of statements ends in the middle of one")
        found.append(data[at + 2 : end])
        at = end
    return found


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


@record
class Signed:
    """A checkpoint as it is published, with its note."""

    point: Checkpoint
    note: Note

    @classmethod
    def read(cls, data: bytes) -> Signed:
        """Raises `BadNote`."""
        note = Note.read(data)
        return cls(Checkpoint.of(note), note)


class Register:
    """A register below a folder of a store. Blocking."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self._objects, self._folder = objects, folder
        self._tiles: dict[tuple[int | None, int, int], bytes] = {}

    def get(self, name: str, most: int) -> bytes | None:
        """An object of it; raises `BadRegister` for one that is longer than it can be."""
        data = self._objects.begin(f"{self._folder}/{name}", most + 1)
        if data is not None and len(data) > most:
            raise BadRegister(f"{name} has more than {most:,} bytes")
        return data

    def newest(self) -> Signed | None:
        """The newest checkpoint; None if there is no register. Raises `BadRegister`."""
        data = self.get(CHECKPOINT_NAME, MOST_NOTE_BYTES)
        if data is None:
            return None
        try:
            return Signed.read(data)
        except BadNote as error:
            raise BadRegister(f"its checkpoint is none: {error}") from None

    def statements(self, size: int, first: int = 0) -> Iterator[str]:
        """The statements from `first` on, up to a size; raises `BadRegister`."""
        for number in range(first // WIDTH, -(-size // WIDTH)):
            width = min(WIDTH, size - number * WIDTH)
            found = decode_bundle(self._tile(None, number, width, _MOST_BUNDLE))
            if len(found) < width:
                raise BadRegister(f"the bundle {number} has {len(found)} statements, not {width}")
            for one in found[max(0, first - number * WIDTH) : width]:
                yield one.decode("utf-8", "surrogateescape")

    def inclusion(self, size: int, index: int) -> list[bytes]:
        """The proof that a statement stands in the register of a size."""
        return [self.root(leaves, size) for leaves in inclusion_path(size, index)]

    def consistency(self, size: int, earlier: int) -> list[bytes]:
        """The proof that an earlier size is the beginning of a later one."""
        if earlier == 0:
            return []
        return [self.root(leaves, size) for leaves in consistency_path(size, earlier)]

    def root(self, leaves: Leaves, size: int) -> bytes:
        """The root of some of the leaves of the register's tree of a size."""
        trees = full_trees(leaves)
        return joined([self._full(*tree, size) for tree in trees]) if trees else EMPTY_ROOT

    def _full(self, height: int, place: int, size: int) -> bytes:
        """The root of a full tree, of the tile that has it or what it is made of."""
        level, above = divmod(height, _HEIGHT)
        first, count = place << above, 1 << above
        number, at = divmod(first, WIDTH)
        width = min(WIDTH, (size >> level * _HEIGHT) - number * WIDTH)
        tile = self._tile(level, number, width, WIDTH * 32)
        if len(tile) < (at + count) * 32:
            raise BadRegister(f"the tile {number} of level {level} has {len(tile)} bytes")
        return root_of([tile[n * 32 : n * 32 + 32] for n in range(at, at + count)])

    def _tile(self, level: int | None, number: int, width: int, most: int) -> bytes:
        """A tile; in the place of a part of it, the whole that it has become."""
        key = level, number, width
        if (known := self._tiles.get(key)) is not None:
            return known
        for each in dict.fromkeys((width, WIDTH)):
            data = self.get(tile_path(level, number, each), most)
            if data is not None:
                if level is not None:
                    self._tiles[key] = data
                return data
        raise BadRegister(f"{tile_path(level, number, width)} is not there")


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


@record
class Step:
    """A register's next checkpoint, and what its tiles are made of."""

    before: int
    point: Checkpoint
    hashes: Callable[[int, int, int], list[bytes]]
    """By level, the hashes from one place up to before another one."""
    statements: Callable[[int, int], list[bytes]]


def publish(objects: Objects, folder: str, step: Step, sign: Callable[[str], Note]) -> Note:
    """Writes a step out: its place in the register first, then tiles, then the checkpoint, signed.

    The same step may be published again after a crash. Raises `Forked` if another one was.
    """
    _take_place(objects, folder, step)
    for level, count in widths(step.point.size):
        before = step.before // WIDTH**level
        for number in range(before // WIDTH, -(-count // WIDTH)):
            first, end = number * WIDTH, min(count, (number + 1) * WIDTH)
            if end <= before:
                continue
            _put(objects, folder, level, number, b"".join(step.hashes(level, first, end)), end - first)
            if level == 0:
                bundle = encode_bundle(step.statements(first, end))
                _put(objects, folder, None, number, bundle, end - first)
    note = sign(step.point.text)
    objects.put(f"{folder}/{CHECKPOINT_NAME}", note.encode())
    return note


def rotate(objects: Objects, folder: str, former: Signer, signer: Signer) -> Note | None:
    """Publishes the newest checkpoint under both keys, also beside the register; None where there is none.

    Raises `BadRegister` where the key of before has not signed it.
    """
    newest = Register(objects, folder).newest()
    if newest is None:
        return None
    if not newest.note.signed_by([former.key]):
        raise BadRegister(
            f"{former.name}: its newest checkpoint is signed by another key than the one of before"
        )
    note = newest.note.with_signatures(signer.signed(newest.point.text).signatures)
    objects.put(f"{folder}/rotated/{newest.point.size}", note.encode())
    objects.put(f"{folder}/{CHECKPOINT_NAME}", note.encode())
    return note


def _put(objects: Objects, folder: str, level: int | None, number: int, data: bytes, width: int) -> None:
    objects.put(f"{folder}/{tile_path(level, number, width)}", data)
    if width == WIDTH:
        objects.remove(f"{folder}/{tile_path(level, number)}.p")


def _take_place(objects: Objects, folder: str, step: Step) -> None:
    name, text = f"{folder}/next/{step.before}", step.point.text.encode()
    if not objects.put_new(name, text) and objects.get(name) != text:
        raise Forked(
            f"the register {step.point.origin} was continued from size {step.before} by another notary: two "
            "with one key run, or this one's state is older than the register. Stop one of them; a state "
            "that was lost means a register of a new name"
        )


_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_SPELT = re.compile("[A-Z+]")
"""Letters that a store may not tell from others, and a sign that no origin has."""


def receipt_of(register: Register, signed: Signed | None, log: str) -> Receipt | None:
    """The last statement about a log under a checkpoint, with the proof of it; None where there is none yet.

    Raises `BadRegister`. The whole register is read.
    """
    last = None
    if signed is None:
        return None
    for index, text in enumerate(register.statements(signed.point.size)):
        if text.split("\n", 2)[1:2] == [log]:
            last = read_statement(index, text)
    if last is None:
        return None
    return Receipt(last, tuple(register.inclusion(signed.point.size, last.index)), signed.note)


def register_of(namespace: str) -> str:
    """The name of a namespace's register, which is its folder, too; raises `BadRegister` for what is none."""
    if not namespace:
        return HOME
    if not _NAMESPACE.fullmatch(namespace):
        raise BadRegister(f"{namespace!r:.100} is no namespace")
    # A namespace of that name is another one than none.
    spelt = _SPELT.sub(lambda found: f"~{ord(found[0]):02x}", namespace)
    return f"~{HOME}" if namespace == HOME else spelt
