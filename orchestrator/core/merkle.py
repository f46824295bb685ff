"""Merkle trees over lists that only grow, by RFC 6962 section 2.1 and RFC 9162 section 2.1, over SHA-256.

    leaf hash   SHA-256(0x00 | data)
    node hash   SHA-256(0x01 | left | right)

A tree of n leaves has the largest power of two below n on its left. An inclusion proof shows that a leaf is
in the tree with a root; a consistency proof, that an earlier tree is the beginning of a later one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []
        """The roots of the full trees that the leaves make up, the largest first."""

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
        if not self._peaks:
            return EMPTY_ROOT
        *others, found = self._peaks
        for peak in reversed(others):
            found = node_hash(peak, found)
        return found


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


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes beside the way from a leaf to the root, the leaf's neighbour first."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    if len(leaves) == 1:
        return []
    at = _split(len(leaves))
    if index < at:
        return [*inclusion_proof(leaves[:at], index), root_of(leaves[at:])]
    return [*inclusion_proof(leaves[at:], index - at), root_of(leaves[:at])]


def consistency_proof(leaves: Sequence[bytes], earlier: int) -> list[bytes]:
    """The hashes that show that the first `earlier` leaves are the beginning of all."""
    if not 0 < earlier <= len(leaves):
        raise ValueError(f"a tree of {earlier} leaves is no beginning of one of {len(leaves)}")
    return list(_subproof(leaves, earlier, whole=True))


def _subproof(leaves: Sequence[bytes], earlier: int, *, whole: bool) -> Iterator[bytes]:
    if earlier == len(leaves):
        if not whole:
            yield root_of(leaves)
        return
    at = _split(len(leaves))
    if earlier <= at:
        yield from _subproof(leaves[:at], earlier, whole=whole)
        yield root_of(leaves[at:])
    else:
        yield from _subproof(leaves[at:], earlier - at, whole=False)
        yield root_of(leaves[:at])


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
