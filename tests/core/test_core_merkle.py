"""Merkle trees against the recursive definition of RFC 6962, and its known answers."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    includes,
    inclusion_proof,
    is_consistent,
    leaf_hash,
    root_of,
)

DATA = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
"""The leaves of the known answers that implementations of RFC 6962 share."""
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
leaves_of = st.integers(1, 70).map(lambda size: [leaf_hash(bytes([n])) for n in range(size)])


def by_definition(leaves: list[bytes]) -> bytes:
    """MTH of section 2.1, as it is written there."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    at = 1
    while at * 2 < len(leaves):
        at *= 2
    return sha256(b"\x01" + by_definition(leaves[:at]) + by_definition(leaves[at:])).digest()


@pytest.mark.parametrize(("size", "root"), list(enumerate(ROOTS, 1)))
def test_the_tree_has_the_roots_that_other_implementations_have(size: int, root: str) -> None:
    assert root_of([leaf_hash(data) for data in DATA[:size]]).hex() == root


def test_a_tree_without_leaves_has_the_hash_of_nothing() -> None:
    assert Frontier().root() == EMPTY_ROOT == by_definition([])


@given(leaves_of)
def test_a_frontier_has_the_root_of_the_definition_after_each_leaf(leaves: list[bytes]) -> None:
    frontier = Frontier()
    for size, leaf in enumerate(leaves, 1):
        frontier.append(leaf)
        assert (frontier.size, frontier.root()) == (size, by_definition(leaves[:size]))


@given(leaves_of, st.data())
def test_an_inclusion_proof_shows_its_leaf_and_no_other(leaves: list[bytes], data: st.DataObject) -> None:
    size, root = len(leaves), by_definition(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(leaves, index)
    assert includes(root, size, index, leaves[index], proof)
    assert not includes(root, size, index, leaf_hash(b"another"), proof)
    assert not includes(root, size, index, leaves[index], [*proof, root])
    assert not includes(root, size, size, leaves[index], proof)
    other = data.draw(st.integers(0, size - 1))
    assert includes(root, size, other, leaves[index], proof) == (other == index)
    if proof:
        assert not includes(root, size, index, leaves[index], proof[:-1])


@given(leaves_of, st.data())
def test_a_consistency_proof_shows_the_beginning_and_no_other(
    leaves: list[bytes], data: st.DataObject
) -> None:
    size, root = len(leaves), by_definition(leaves)
    earlier = data.draw(st.integers(1, size))
    before = by_definition(leaves[:earlier])
    proof = consistency_proof(leaves, earlier)
    assert is_consistent(earlier, before, size, root, proof)
    assert not is_consistent(earlier, leaf_hash(b"another"), size, root, proof)
    assert not is_consistent(earlier, before, size, leaf_hash(b"another"), proof)
    assert not is_consistent(earlier, before, size, root, [*proof, root])
    if proof:
        assert not is_consistent(earlier, before, size, root, proof[:-1])


def test_a_tree_without_leaves_begins_each_tree_and_no_larger_one_does() -> None:
    root = root_of([leaf_hash(b"one")])
    assert is_consistent(0, EMPTY_ROOT, 1, root, [])
    assert not is_consistent(0, root, 1, root, [])
    assert not is_consistent(0, EMPTY_ROOT, 1, root, [root])
    assert not is_consistent(2, root, 1, root, [])


@pytest.mark.parametrize("index", [-1, 1])
def test_no_proof_is_made_of_what_is_not_there(index: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        inclusion_proof([leaf_hash(b"one")], index)
    with pytest.raises(ValueError, match="no beginning"):
        consistency_proof([leaf_hash(b"one")], index * 2)
