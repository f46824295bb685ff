"""Merkle trees over lists that only grow, by RFC 6962 section 2.1 and RFC 9162 section 2.1, over SHA-256.

    leaf hash   SHA-256(0x00 | data)
    node hash   SHA-256(0x01 | left | right)

A tree of n leaves has the largest power of two below n on its left. An inclusion proof shows that a leaf is
in the tree with a root; a consistency proof, that an earlier tree is the beginning of a later one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

EMPTY_ROOT = sha256(b"").digest()
"""The root of a tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two neighbouring trees."""
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The root of the leaves so far, kept in one hash for each bit of their number."""

    __slots__ = ("_peaks", "size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self.size = size
        self._peaks = list(peaks)
        """The roots of the full trees that the leaves make up, the largest first."""
        if len(self._peaks) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} peaks, not {len(self._peaks)}")

    @property
    def peaks(self) -> tuple[bytes, ...]:
        """The hashes that it is kept in: with its size they make it again."""
        return tuple(self._peaks)

    def append(self, leaf: bytes) -> None:
        """Takes the hash of the next leaf."""
        peaks, size = self._peaks, self.size
        while size & 1:
            leaf = sha256(b"\x01" + peaks.pop() + leaf).digest()
            size >>= 1
        peaks.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The root of the tree of all leaves that were taken."""
        return joined(self._peaks) if self._peaks else EMPTY_ROOT


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of the tree of these leaf hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


def _split(size: int) -> int:
    """The largest power of two below `size`, which is 2 at least."""
    return 1 << ((size - 1).bit_length() - 1)


# ── proofs ────────────────────────────────────────────────────────────────────────────────────────


Leaves = tuple[int, int]
"""Neighbouring leaves: the first, and the one behind the last."""


def inclusion_path(size: int, index: int) -> list[Leaves]:
    """The trees beside the way from a leaf to the root, the leaf's neighbour first."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    beside, first, end = list[Leaves](), 0, size
    while end - first > 1:
        at = first + _split(end - first)
        beside.append((at, end) if index < at else (first, at))
        first, end = (first, at) if index < at else (at, end)
    return beside[::-1]


def consistency_path(size: int, earlier: int) -> list[Leaves]:
    """The trees whose roots show that the first `earlier` leaves are the beginning of `size`."""
    if not 0 < earlier <= size:
        raise ValueError(f"a tree of {earlier} leaves is no beginning of one of {size}")
    beside, first, end, whole = list[Leaves](), 0, size, True
    while end != earlier:
        at = first + _split(end - first)
        beside.append((at, end) if earlier <= at else (first, at))
        whole = whole and earlier <= at
        first, end = (first, at) if earlier <= at else (at, end)
    return beside[::-1] if whole else [(first, end), *beside[::-1]]


def full_trees(leaves: Leaves) -> list[tuple[int, int]]:
    """The full trees that some leaves are made up of, the largest first: height, and place among its like."""
    (first, end), found = leaves, list[tuple[int, int]]()
    while first < end:
        height = (end - first).bit_length() - 1
        found.append((height, first >> height))
        first += 1 << height
    return found


def joined(roots: Sequence[bytes]) -> bytes:
    """The root of a tree that is made up of full ones, the largest first."""
    *others, found = roots
    for root in reversed(others):
        found = node_hash(root, found)
    return found


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes beside the way from a leaf to the root, the leaf's neighbour first."""
    return [root_of(leaves[first:end]) for first, end in inclusion_path(len(leaves), index)]


def consistency_proof(leaves: Sequence[bytes], earlier: int) -> list[bytes]:
    """The hashes that show that the first `earlier` leaves are the beginning of all."""
    return [root_of(leaves[first:end]) for first, end in consistency_path(len(leaves), earlier)]


def includes(root: bytes, size: int, index: int, leaf: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that `leaf` is the leaf `index` of the tree of `size` leaves with this root.

    RFC 9162, section 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for beside in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(beside, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(earlier: int, earlier_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the tree of `earlier` leaves is the beginning of that of `size` leaves.

    RFC 9162, section 2.1.4.2. A tree without leaves is the beginning of each, and needs no proof.
    """
    if not 0 <= earlier <= size:
        return False
    if earlier in (0, size):
        same = earlier == 0 or earlier_root == root
        return same and not proof and (earlier > 0 or earlier_root == EMPTY_ROOT)
    path = list(proof) if earlier & (earlier - 1) else [earlier_root, *proof]
    if not path:
        return False
    at, last = earlier - 1, size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = path[0]
    for beside in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node_hash(beside, old), node_hash(beside, new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and old == earlier_root and new == root
