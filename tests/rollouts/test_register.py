"""A register as files: its tiles, the proofs that are made of them, and the one place of each size."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.merkle import (
    Frontier,
    consistency_proof,
    includes,
    inclusion_proof,
    is_consistent,
    leaf_hash,
    root_of,
)
from orchestrator.gateways.bearer_tokens import MOST_NAME, TokenWish
from orchestrator.rollouts.bundle_form import BadForm
from orchestrator.rollouts.bundle_receipts import Head, read_statement
from orchestrator.rollouts.object_store import Objects
from orchestrator.rollouts.register import (
    WIDTH,
    BadRegister,
    Forked,
    Register,
    Step,
    decode_bundle,
    number_path,
    publish,
    receipt_of,
    register_of,
    tile_path,
    widths,
)
from orchestrator.rollouts.signed_notes import Checkpoint, Note, is_name
from tests.rollouts import bundles as b

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "bundle.md"
MANY = [f"statement {n}\n".encode() for n in range(WIDTH * WIDTH + WIDTH + 7)]

LEAVES = [leaf_hash(one) for one in MANY]


def of(statements: list[bytes], size: int, before: int) -> Step:
    leaves = (LEAVES if statements is MANY else [leaf_hash(one) for one in statements])[:size]

    def hashes(level: int, first: int, end: int) -> list[bytes]:
        wide = WIDTH**level
        return [root_of(leaves[n * wide : (n + 1) * wide]) for n in range(first, end)]

    point = Checkpoint(b.ORIGIN, size, root_of(leaves))
    return Step(before, point, hashes, lambda first, end: statements[first:end])


@pytest.fixture
def objects() -> Objects:
    return Objects(f"memory://register-{uuid.uuid4()}")


def grown(objects: Objects, *sizes: int) -> Register:
    for before, size in zip((0, *sizes), sizes, strict=False):
        publish(objects, "home", of(MANY, size, before), b.OPERATOR.signed)
    return Register(objects, "home")


def test_statement_of_the_page_is_written_as_it_is_read() -> None:
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith("a statement, as JSON")]
    text = json.loads(line.partition('"')[1] + line.partition('"')[2])
    [leaf] = [line.split()[-1] for line in PAGE.read_text().splitlines() if line.startswith("its leaf")]
    head = read_statement(0, text)
    assert (head.text, leaf_hash(head.text.encode()).hex()) == (text, leaf)


@pytest.mark.parametrize("log", ["session:a\nb", "elsewhere:a", "session:"])
def test_no_statement_is_made_of_a_log_that_it_cannot_name(log: str) -> None:
    with pytest.raises(BadForm):
        _ = Head(0, log, "tree", 1, bytes(32), bytes(32), 1, "open").text


def test_receipt_is_of_the_last_statement_about_the_very_log(objects: Objects) -> None:
    logs = ["session:a", "session:ab", "session:a", "tree:a", "session:a", "session:ab", "tree:a"]
    heads = [Head(at, log, "tree", at + 1, bytes(32), bytes(32), at, "open") for at, log in enumerate(logs)]
    statements = [head.text.encode() for head in heads]
    for before, size in ((0, 3), (3, 7)):
        publish(objects, "home", of(statements, size, before), b.OPERATOR.signed)
        register = Register(objects, "home")
        signed = register.newest()
        assert signed is not None
        for log in (*logs, "session:b", "session:"):
            receipt = receipt_of(register, signed, log)
            last = max((at for at, known in enumerate(logs[:size]) if known == log), default=None)
            assert (None if receipt is None else receipt.head) == (None if last is None else heads[last])
            if receipt is not None and last is not None:
                assert receipt.proof == tuple(
                    inclusion_proof([leaf_hash(one) for one in statements[:size]], last)
                )
                assert receipt.checkpoint == signed.note
        assert receipt_of(register, None, logs[0]) is None


def test_paths_are_those_of_tlog_tiles() -> None:
    assert number_path(0) == "000"
    assert number_path(1234067) == "x001/x234/067"
    assert tile_path(0, 5) == "tile/0/005"
    assert tile_path(None, 1000, 17) == "tile/entries/x001/000.p/17"
    assert list(widths(70_000)) == [(0, 70_000), (1, 273), (2, 1)]


@given(st.integers(1, 700), st.data())
def test_proofs_from_tiles_are_those_of_the_definition(size: int, data: st.DataObject) -> None:
    statements = MANY[:size]
    leaves = [leaf_hash(one) for one in statements]
    register = grown(Objects(f"memory://register-{uuid.uuid4()}"), size)
    index, earlier = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    assert register.inclusion(size, index) == inclusion_proof(leaves, index)
    assert register.consistency(size, earlier) == consistency_proof(leaves, earlier)
    assert register.consistency(size, 0) == []
    assert [text.encode() for text in register.statements(size, index)] == statements[index:]


def test_register_of_three_levels_shows_its_statements_and_its_past(objects: Objects) -> None:
    sizes = 3, WIDTH * WIDTH - 1, len(MANY)
    register = grown(objects, *sizes)
    newest = register.newest()
    assert newest is not None
    root, size = newest.point.root, newest.point.size
    assert size == len(MANY)
    assert newest.note.signed_by([b.OPERATOR.key]) == {b.OPERATOR.key: 0}
    for index in (0, 255, 256, WIDTH * WIDTH, size - 1):
        assert includes(root, size, index, leaf_hash(MANY[index]), register.inclusion(size, index))
    for earlier in sizes:
        before = root_of([leaf_hash(one) for one in MANY[:earlier]])
        assert is_consistent(earlier, before, size, root, register.consistency(size, earlier))
    assert list(register.statements(3)) == [one.decode() for one in MANY[:3]]
    assert objects.names("home/tile/0/000.p") == [], "parts of a tile go when it is whole"


def test_frontier_goes_on_from_the_hashes_that_it_was_kept_in() -> None:
    leaves = [leaf_hash(one) for one in MANY[:21]]
    frontier = Frontier()
    for leaf in leaves[:13]:
        frontier.append(leaf)
    again = Frontier(frontier.size, frontier.peaks)
    for leaf in leaves[13:]:
        again.append(leaf)
    assert again.root() == root_of(leaves)
    with pytest.raises(ValueError, match="3 peaks"):
        Frontier(13, again.peaks[:2])


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_of_two_notaries_one_continues_a_size(url: str, tmp_path: Path) -> None:
    objects = Objects(f"memory://{tmp_path}" if url == "memory://" else tmp_path.as_uri())
    grown(objects, 3)
    publish(objects, "home", of(MANY, 5, 3), b.OPERATOR.signed)
    signed: list[str] = []

    def sign(text: str) -> Note:
        signed.append(text)
        return b.OPERATOR.signed(text)

    other = [*MANY[:3], b"another statement\n"]
    with pytest.raises(Forked, match="another notary"):
        publish(objects, "home", of(other, 4, 3), sign)
    assert signed == [], "a root that has no place is not signed"
    publish(objects, "home", of(MANY, 5, 3), sign)
    assert len(signed) == 1, "the same step may be published again, after a crash"
    assert [text.encode() for text in Register(objects, "home").statements(5)] == MANY[:5]


def test_damaged_register_is_told(objects: Objects) -> None:
    register = grown(objects, 5)
    objects.put("home/tile/entries/000.p/5", b"\0\1a\0\7b")
    with pytest.raises(BadRegister, match="in the middle"):
        list(register.statements(5))
    objects.put("home/tile/entries/000.p/5", b"\0\1a")
    with pytest.raises(BadRegister, match="1 statements"):
        list(register.statements(5))
    objects.put("home/tile/0/000.p/5", bytes(33))
    with pytest.raises(BadRegister, match="33 bytes"):
        register.inclusion(5, 0)
    objects.put("home/tile/0/000.p/5", bytes(WIDTH * 32 + 1))
    with pytest.raises(BadRegister, match="more than"):
        Register(objects, "home").inclusion(5, 0)
    with pytest.raises(BadRegister, match="not there"):
        list(register.statements(6))
    objects.put("home/checkpoint", b"no note")
    with pytest.raises(BadRegister, match="checkpoint"):
        register.newest()
    assert Register(objects, "elsewhere").newest() is None
    with pytest.raises(BadRegister):
        decode_bundle(b"\0")


def test_namespaces_have_registers_of_their_own() -> None:
    names = ["", "home", "team-a", "Team-A", "tEAM-a", "a+b", "a.b", "HOME", "a" * MOST_NAME]
    assert [register_of(name) for name in names[:3]] == ["home", "~home", "team-a"]
    registers = [register_of(name) for name in names]
    # A store may take letters of either case for the same.
    assert len({name.lower() for name in registers}) == len(names)
    for name in names[1:]:
        assert TokenWish("ann", name).namespace == name
    assert all(is_name(f"fleet.example/{name}") for name in registers)
    for wrong in ("../x", "a/b", "~41", "a\n", "-a", "a" * (MOST_NAME + 1)):
        with pytest.raises(BadRegister):
            register_of(wrong)


def test_cosignature_of_the_page_is_made_of_its_key() -> None:
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith("a checkpoint, as JSON")]
    note = Note.read(json.loads('"' + line.partition('"')[2]).encode())
    own = Note(note.text, note.signatures[:1])
    time = int.from_bytes(note.signatures[1].value[:8], "big")
    assert own.with_signatures([b.WITNESS.cosigned(note.text, time)]) == note
    later = note.with_signatures([b.WITNESS.cosigned(note.text, time + 1)])
    assert later.signed_by([b.WITNESS.witness_key]) == {b.WITNESS.witness_key: time + 1}
    assert len(later.signatures) == 2
