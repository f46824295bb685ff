"""Receipts of a bundle: what a register, its checkpoints and their witnesses say of the tree's logs.

A register is one append-only Merkle log of statements; a statement is the head of a log at a moment. A
checkpoint is the register's root, signed by its notary and by witnesses. The whole register shows that
nothing was left out; chosen statements, each with a proof of inclusion, cannot.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final

import orjson

from orchestrator.core.frozen import record, replace
from orchestrator.core.merkle import Frontier, includes, is_consistent, leaf_hash
from orchestrator.rollouts import signed_notes
from orchestrator.rollouts.bundle_form import (
    CHECKPOINT,
    CONSISTENCY,
    MOST_LINE_BYTES,
    REGISTER,
    BadForm,
    strict_json,
)
from orchestrator.rollouts.bundle_members import BadContainer, lines_of

LATEST_S: Final = 300
"""How much later than a statement an entry may be dated that the statement covers."""
STATES: Final = frozenset({"open", "rest", "closed", "redacted", "deleted"})
MOST_STATEMENTS: Final = 1_000_000
"""Of the logs of one tree."""
MOST_TRUST_BYTES: Final = 1 << 20
"""Bytes of a trust file, and of a client's own receipt."""
_STATEMENT = re.compile(
    r"dendro-head/1\n((?:session|tree):[^\n]+)\n([^\n]+)\n(0|[1-9][0-9]{0,17})\n([0-9a-f]{64})\n([0-9a-f]{64})\n"
    r"(0|[1-9][0-9]{0,17})\n([a-z]+)\n"
)
Find = Callable[[str, str, str], None]
"""Takes a finding: its code, its place, its text."""
Read = Callable[[str], Iterator[bytes]]


# ── the auditor's trust ───────────────────────────────────────────────────────────────────────────


class BadTrust(ValueError):
    """A trust file that cannot be used; the message says why."""


@record
class Trust:
    """The keys that an auditor believes, and a checkpoint that they have seen. Never taken from a bundle."""

    log: tuple[signed_notes.VerifierKey, ...] = ()
    witnesses: tuple[signed_notes.VerifierKey, ...] = ()
    quorum: int | None = None
    """How many of the witnesses have to have signed; 0: receipts are not asked for. None: one of those."""
    people: Mapping[str, signed_notes.VerifierKey] = field(default_factory=dict)
    checkpoint: signed_notes.Note | None = None
    """The auditor's own, from an earlier day."""
    chosen: bool = False
    """Whether chosen receipts are enough, which cannot show completeness."""

    @property
    def asks_receipts(self) -> bool:
        return self.quorum != 0 or self.checkpoint is not None

    @property
    def needed(self) -> int:
        """The witnesses that have to have signed."""
        return min(1, len(self.witnesses)) if self.quorum is None else self.quorum

    def holding(self, receipt: Receipt) -> Trust:
        """With the checkpoint of a receipt that the auditor has; raises `BadTrust`.

        A register that goes on from there has the receipt's statement, and a bundle has to agree with it.
        """
        if self.checkpoint is not None:
            raise BadTrust("it has a checkpoint already: hold the bundle against one at a time")
        if not receipt.checkpoint.signed_by(self.log):
            raise BadTrust("no key of its `log` has signed the receipt's checkpoint")
        return replace(self, checkpoint=receipt.checkpoint)

    @classmethod
    def read(cls, data: bytes) -> Trust:
        """Reads a trust file; raises `BadTrust`."""
        try:
            value = strict_json(data)
            if type(value) is not dict:
                raise BadTrust("it is no JSON object")
            known = {"log", "witnesses", "quorum", "people", "checkpoint", "chosen"}
            if unknown := sorted(value.keys() - known):
                raise BadTrust(f"it has {', '.join(unknown)}; known are {', '.join(sorted(known))}")
            found = cls(
                _keys(value.get("log", []), "log", signed_notes.ED25519),
                _keys(value.get("witnesses", []), "witnesses", signed_notes.COSIGNATURE),
                value.get("quorum"),
                {
                    name: _key(text, "people", signed_notes.ED25519)
                    for name, text in _object(value.get("people", {})).items()
                },
                _note(value["checkpoint"]) if value.get("checkpoint") is not None else None,
                value.get("chosen", False),
            )
        except (BadForm, signed_notes.BadNote) as error:
            raise BadTrust(str(error)) from None
        whole = found.quorum is None or (type(found.quorum) is int and found.quorum >= 0)
        if not whole or type(found.chosen) is not bool:
            raise BadTrust("its quorum is a whole number, and chosen is true or false")
        if found.needed > len(found.witnesses):
            raise BadTrust(f"its quorum is {found.quorum}, of {len(found.witnesses)} witnesses")
        return found


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadTrust("its people are no object of names and keys")
    return value


def _keys(value: Any, name: str, type_: int) -> tuple[signed_notes.VerifierKey, ...]:
    if type(value) is not list:
        raise BadTrust(f"its {name} is no list of verifier keys")
    return tuple(_key(text, name, type_) for text in value)


def _key(text: Any, name: str, type_: int) -> signed_notes.VerifierKey:
    if type(text) is not str:
        raise BadTrust(f"in its {name} stands {text!r:.80}, and no verifier key")
    key = signed_notes.VerifierKey.read(text)
    if key.type != type_:
        raise BadTrust(f"in its {name} stands a key of type {key.type:#04x}, and not {type_:#04x}: {text}")
    return key


def _note(text: Any) -> signed_notes.Note:
    if type(text) is not str:
        raise BadTrust("its checkpoint is no text of a note")
    return signed_notes.Note.read(text.encode("utf-8", "surrogatepass"))


# ── statements ────────────────────────────────────────────────────────────────────────────────────


@record
class Head:
    """A statement: the head of a log at a moment (Unix milliseconds)."""

    index: int
    log: str
    tree: str
    size: int
    root: bytes
    chain: bytes
    ms: int
    state: str

    @property
    def text(self) -> str:
        """The statement's eight lines; raises `BadForm` if they would be none."""
        lines = self.log, self.tree, self.size, self.root.hex(), self.chain.hex(), self.ms, self.state
        text = "".join(f"{line}\n" for line in ("dendro-head/1", *lines))
        if read_statement(self.index, text) != self:
            raise BadForm(f"{self.log!r:.80} of {self.tree!r:.80} is no log that a statement can name")
        return text


def read_statement(index: int, text: str) -> Head:
    """Reads a statement's eight lines; raises `BadForm`."""
    found = _STATEMENT.fullmatch(text)
    if found is None or found[7] not in STATES:
        raise BadForm("it is no statement of a head")
    log, tree, size, root, chain, ms, state = found.groups()
    return Head(index, log, tree, int(size), bytes.fromhex(root), bytes.fromhex(chain), int(ms), state)


@record
class Receipt:
    """A client's own: a statement, the proof that a checkpoint has it, and the checkpoint."""

    head: Head
    proof: tuple[bytes, ...]
    checkpoint: signed_notes.Note

    def encode(self) -> bytes:
        value = {
            "format": "dendro-receipt",
            "version": 1,
            "i": self.head.index,
            "t": self.head.text,
            "p": [base64.b64encode(one).decode() for one in self.proof],
            "checkpoint": self.checkpoint.encode().decode(),
        }
        return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def read(cls, data: bytes) -> Receipt:
        """Reads what `encode` writes, where the proof holds; raises `BadTrust`."""
        try:
            value = strict_json(data)
            if type(value) is not dict or value.keys() != {"format", "version", "i", "t", "p", "checkpoint"}:
                raise BadTrust("it is no receipt")
            if (value["format"], value["version"]) != ("dendro-receipt", 1) or type(value["i"]) is not int:
                raise BadTrust("it is no receipt of a version that is known here")
            if type(value["t"]) is not str:
                raise BadTrust("it has no statement")
            found = cls(
                read_statement(value["i"], value["t"]), tuple(_proof(value["p"])), _note(value["checkpoint"])
            )
            point = signed_notes.Checkpoint.of(found.checkpoint)
            leaf = leaf_hash(value["t"].encode())
        except (BadForm, signed_notes.BadNote, UnicodeEncodeError) as error:
            raise BadTrust(str(error)) from None
        if not includes(point.root, point.size, found.head.index, leaf, found.proof):
            raise BadTrust("its proof does not lead to the root of its checkpoint")
        return found


@dataclass(slots=True)
class LogReceipts:
    """The statements about one log, and what was found while its entries were read."""

    heads: list[Head] = field(default_factory=list)
    latest_ms: list[tuple[int, int]] = field(default_factory=list)
    """By size: up to that entry, the latest time that an entry may have."""

    def seal(self) -> None:
        """Orders the statements by size; an entry has to fit each that covers it."""
        self.heads.sort(key=lambda head: (head.size, head.index))
        found, least = [], 1 << 63
        for head in reversed(self.heads):
            least = min(least, head.ms + LATEST_S * 1000)
            found.append((head.size, least))
        self.latest_ms = found[::-1]

    @property
    def covered(self) -> int:
        return self.heads[-1].size if self.heads else 0


@dataclass(slots=True)
class Receipts:
    """The receipts of a bundle, as far as they hold without its logs."""

    present: bool = False
    read: bool = False
    """Whether the register could be read to its end."""
    whole: bool = False
    logs: dict[str, LogReceipts] = field(default_factory=dict)
    size: int = 0
    """Of the newest checkpoint."""
    earlier: int | None = None
    """The size of the checkpoint that the auditor had."""
    witnesses: int = 0
    """Of those that are trusted, how many signed the newest checkpoint."""
    until_ms: int = 0
    """The time of the register's last statement."""
    stamps: int = 0
    """Time stamps of authorities, which are not looked at here."""


@dataclass
class _Lines:
    """The lines of a register up to one: all are whole or all are chosen, and their indexes rise."""

    number: int = 0
    kind: str = ""
    index: int = -1

    def take(self, line: bytes) -> Mapping[str, Any]:
        """The fields of the next line; raises `BadForm`."""
        self.number += 1
        value = strict_json(line)
        if type(value) is not dict or type(value.get("i")) is not int or type(value.get("t")) is not str:
            raise BadForm("it is no line of a register")
        if value.keys() not in ({"i", "t"}, {"i", "n", "t", "p"}):
            raise BadForm(f"it has the fields {', '.join(value):.80}")
        kind, index = "chosen" if "n" in value else "whole", value["i"]
        if self.kind not in ("", kind):
            raise BadForm("whole and chosen lines are mixed")
        if index <= self.index if kind == "chosen" else index != self.number - 1:
            raise BadForm(f"it has the index {index}, out of order")
        self.kind, self.index = kind, index
        return value


class ReceiptReader:
    """Reads and checks a bundle's receipts before its logs are read."""

    def __init__(self, names: Sequence[str], read: Read, find: Find, trust: Trust | None) -> None:
        self._names, self._read, self._find, self._trust = names, read, find, trust
        self._found = Receipts()
        self._notes: dict[int, signed_notes.Checkpoint] = {}
        self._newest: signed_notes.Note | None = None

    def run(self, tree: str, origin: str) -> Receipts:
        found, trust = self._found, self._trust
        receipts = [name for name in self._names if name.startswith("receipts/")]
        found.present = bool(receipts)
        found.stamps = sum(name.endswith(".tsr") for name in receipts)
        if not found.present:
            if trust is not None and trust.asks_receipts:
                self._find("receipts", "receipts/", "there are none, and the trust file asks for them")
            return found
        self._read_notes(origin)
        if REGISTER not in self._names or not any(map(CHECKPOINT.fullmatch, self._names)):
            self._find("receipts", "receipts/", "a register and a checkpoint of it belong together")
            return found
        if not self._notes:
            return found
        found.size = max(self._notes)
        earlier = self._earlier(origin)
        self._read_register(tree, earlier)
        self._check_consistency(earlier)
        self._check_witnesses()
        for log in found.logs.values():
            log.seal()
        return found

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def _read_notes(self, origin: str) -> None:
        for name in self._names:
            if (match := CHECKPOINT.fullmatch(name)) is None:
                continue
            try:
                note = signed_notes.Note.read(_whole(self._read(name), signed_notes.MOST_NOTE_BYTES))
                checkpoint = signed_notes.Checkpoint.of(note)
                self._require_signed(note, checkpoint, origin)
            except (signed_notes.BadNote, BadContainer) as error:
                self._find("checkpoint", name, str(error))
                continue
            if checkpoint.size != int(match[1]):
                self._find("checkpoint", name, f"it is the checkpoint of size {checkpoint.size}")
                continue
            if checkpoint.size >= max(self._notes, default=0):
                self._newest = note
            self._notes[checkpoint.size] = checkpoint

    def _require_signed(
        self, note: signed_notes.Note, checkpoint: signed_notes.Checkpoint, origin: str
    ) -> None:
        if checkpoint.origin != origin:
            raise signed_notes.BadNote(
                f"it is a checkpoint of {checkpoint.origin}, and the bundle is of {origin}"
            )
        if self._trust is None:
            return
        signers = note.signed_by(self._trust.log)
        if all(key.name != origin for key in signers):
            raise signed_notes.BadNote("no key of the log that you trust has signed it")

    def _earlier(self, origin: str) -> signed_notes.Checkpoint | None:
        """The checkpoint that the auditor has seen; None if there is none, or it is none of this register."""
        if self._trust is None or self._trust.checkpoint is None:
            return None
        note = self._trust.checkpoint
        try:
            checkpoint = signed_notes.Checkpoint.of(note)
            self._require_signed(note, checkpoint, origin)
        except signed_notes.BadNote as error:
            self._find("earlier", "receipts/", f"the checkpoint that you had: {error}")
            return None
        if checkpoint.size > self._found.size:
            self._find(
                "earlier",
                "receipts/",
                f"you had a checkpoint of size {checkpoint.size}, which is a later one",
            )
            return None
        self._found.earlier = checkpoint.size
        return checkpoint

    def _check_witnesses(self) -> None:
        trust, newest = self._trust, self._newest
        if trust is None or newest is None:
            return
        place = f"receipts/{self._found.size}.note"
        signers = 0
        for key in trust.witnesses:
            try:
                signers += bool(newest.signed_by([key]))
            except signed_notes.BadNote as error:
                self._find("witnesses", place, str(error))
        self._found.witnesses = signers
        if signers < trust.needed:
            self._find("witnesses", place, f"{signers} of your witnesses signed it, {trust.needed} have to")

    # ── the register ──────────────────────────────────────────────────────────────────────────

    def _read_register(self, tree: str, earlier: signed_notes.Checkpoint | None) -> None:
        frontier, lines, last_ms, count = Frontier(), _Lines(), 0, 0
        self._compare_at(frontier, earlier)
        try:
            for line in chain.from_iterable(lines_of(self._read(REGISTER))):
                value = lines.take(line)
                head = read_statement(value["i"], value["t"])
                if head.ms < last_ms:
                    self._find(
                        "time", f"{REGISTER}:{lines.number}", "it is dated before the statement before it"
                    )
                last_ms = max(last_ms, head.ms)
                leaf = leaf_hash(value["t"].encode())
                if lines.kind == "chosen":
                    self._require_included(value, leaf)
                else:
                    frontier.append(leaf)
                    self._compare_at(frontier, earlier)
                if head.tree == tree:
                    count += 1
                    if count > MOST_STATEMENTS:
                        raise BadForm("it has more statements of one tree than are looked at")
                    self._found.logs.setdefault(head.log, LogReceipts()).heads.append(head)
        except (BadForm, BadContainer, UnicodeEncodeError) as error:
            self._find("register", f"{REGISTER}:{lines.number}", str(error))
            return
        self._found.read = True
        self._found.until_ms, self._found.whole = last_ms, lines.kind != "chosen"
        if lines.kind == "chosen":
            if self._trust is not None and self._trust.needed and not self._trust.chosen:
                self._find(
                    "chosen", REGISTER, "chosen receipts cannot show completeness, and you did not allow them"
                )
        elif frontier.size != self._found.size:
            self._find(
                "register",
                REGISTER,
                f"it has {frontier.size} statements, its newest checkpoint is of {self._found.size}",
            )

    def _require_included(self, value: Mapping[str, Any], leaf: bytes) -> None:
        size = value["n"]
        point = self._notes.get(size) if type(size) is int else None
        if point is None:
            raise BadForm(f"it names a checkpoint of size {size!r:.40}, which is not in the bundle")
        if not includes(point.root, point.size, value["i"], leaf, _proof(value["p"])):
            raise BadForm("its proof does not lead to the root of its checkpoint")

    def _compare_at(self, frontier: Frontier, earlier: signed_notes.Checkpoint | None) -> None:
        """Compares the root of the statements so far with what is signed of a register of this size."""
        size = frontier.size
        if size in self._notes:
            self._compare("register", self._notes[size].root, frontier.root(), size)
        if earlier is not None and earlier.size == size:
            self._compare("earlier", earlier.root, frontier.root(), size)

    def _compare(self, code: str, stated: bytes, root: bytes, size: int) -> None:
        if stated != root:
            self._find(code, f"receipts/{size}.note", "its root is not that of the register's statements")

    # ── between checkpoints ───────────────────────────────────────────────────────────────────

    def _check_consistency(self, earlier: signed_notes.Checkpoint | None) -> None:
        """Each proof holds; of chosen receipts, all neighbours and the auditor's own are tied."""
        points = dict(self._notes)
        shown: set[tuple[int, int]] = set()
        if earlier is not None and points.setdefault(earlier.size, earlier).root != earlier.root:
            self._find(
                "earlier", f"receipts/{earlier.size}.note", "it has another root than the one that you had"
            )
            return
        if CONSISTENCY in self._names:
            try:
                for proof in _proofs(_whole(self._read(CONSISTENCY), MOST_LINE_BYTES)):
                    if proof["to"] not in points:
                        raise BadForm(f"there is no checkpoint of size {proof['to']}")
                    # An earlier one may be somebody's who had it, and is not here.
                    if proof["from"] in points:
                        shown.add(_tied(proof, points))
            except (BadForm, BadContainer) as error:
                self._find("consistency", CONSISTENCY, str(error))
                return
        sizes = sorted(points)
        if self._found.whole:
            return
        for pair in pairwise(sizes):
            if pair not in shown:
                self._find("consistency", CONSISTENCY, f"nothing shows that {pair[1]} continues {pair[0]}")


def _tied(proof: Mapping[str, Any], points: Mapping[int, signed_notes.Checkpoint]) -> tuple[int, int]:
    pair = proof["from"], proof["to"]
    if pair[0] >= pair[1]:
        raise BadForm(f"no register continues {pair[0]} as {pair[1]}")
    before, after = points[pair[0]], points[pair[1]]
    if not is_consistent(before.size, before.root, after.size, after.root, _proof(proof["p"])):
        raise BadForm(f"the register of size {pair[1]} does not continue that of size {pair[0]}")
    return pair


def _proofs(data: bytes) -> list[Mapping[str, Any]]:
    value = strict_json(data)
    fields = {"from", "to", "p"}
    if type(value) is not list or any(type(one) is not dict or one.keys() != fields for one in value):
        raise BadForm("it is no list of proofs")
    if any(type(one[name]) is not int for one in value for name in ("from", "to")):
        raise BadForm("a proof is between two sizes")
    return value


def _proof(value: Any) -> list[bytes]:
    if type(value) is not list or len(value) > 128:
        raise BadForm("a proof is a list of hashes")
    found = []
    for text in value:
        try:
            hash = base64.b64decode(text, validate=True)
        except (TypeError, ValueError):
            hash = b""
        if len(hash) != 32 or base64.b64encode(hash).decode() != text:
            raise BadForm("a proof is a list of hashes")
        found.append(hash)
    return found


def _whole(chunks: Iterator[bytes], most: int) -> bytes:
    data = b""
    for chunk in chunks:
        data += chunk
        if len(data) > most:
            raise BadContainer(f"it has more than {most:,} bytes")
    return data
