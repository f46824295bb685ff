"""The memory of a notary: the heads that it stated, its registers, and each root that it will sign.

One SQLite file in a folder of this user's. A statement, the frontier of its log and the root of the register
are written in one transaction, which is on the disk before anybody is told of them: so a size has one root,
however often the notary is killed. What is in full tiles is published, and kept no longer.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.core.frozen import record
from orchestrator.core.merkle import Frontier, leaf_hash, root_of
from orchestrator.private_files import new_file, open_file, own_folder
from orchestrator.rollouts.bundle_receipts import Head
from orchestrator.rollouts.register import WIDTH, Step, widths
from orchestrator.rollouts.signed_notes import Checkpoint, Note

FILE: Final = "notary.db"
LOCK: Final = "lock"
_FORMAT: Final = "1"
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE registers (
  name TEXT PRIMARY KEY, size INTEGER NOT NULL, ms INTEGER NOT NULL, peaks BLOB NOT NULL,
  published INTEGER NOT NULL, note BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE leaves (
  register TEXT NOT NULL, n INTEGER NOT NULL, statement BLOB NOT NULL,
  PRIMARY KEY (register, n)) WITHOUT ROWID;
CREATE TABLE hashes (
  register TEXT NOT NULL, level INTEGER NOT NULL, n INTEGER NOT NULL, hash BLOB NOT NULL,
  PRIMARY KEY (register, level, n)) WITHOUT ROWID;
CREATE TABLE roots (
  register TEXT NOT NULL, size INTEGER NOT NULL, before INTEGER NOT NULL, root BLOB NOT NULL,
  PRIMARY KEY (register, size)) WITHOUT ROWID;
CREATE TABLE logs (
  log TEXT PRIMARY KEY, register TEXT NOT NULL, tree TEXT NOT NULL, size INTEGER NOT NULL,
  chain BLOB NOT NULL, leaf BLOB NOT NULL, peaks BLOB NOT NULL, ms INTEGER NOT NULL,
  state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE alarms (
  log TEXT PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL, ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE witnesses (
  register TEXT NOT NULL, witness TEXT NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (register, witness)) WITHOUT ROWID;
"""


class BadState(Exception):
    """A notary's state that cannot be used; the message says why, and what to do."""


@record
class KnownLog:
    """A log as its last statement has it, and what the next one goes on from."""

    log: str
    register: str
    tree: str
    size: int = 0
    chain: bytes = bytes(32)
    leaf: bytes = b""
    """The leaf of its last entry."""
    peaks: tuple[bytes, ...] = ()
    ms: int = 0
    state: str = ""

    def frontier(self) -> Frontier:
        return Frontier(self.size, self.peaks)


@record
class Alarm:
    """A log about which nothing is stated any more, since when, and why."""

    kind: str
    text: str
    ms: int


@dataclass(slots=True)
class Standing:
    """How far a register goes."""

    frontier: Frontier = field(default_factory=Frontier)
    ms: int = 0
    """Of the last statement."""
    published: int = 0
    note: bytes = b""
    """The checkpoint that was published last."""


class NotaryState:
    """The state in a folder, of which one process has the use."""

    def __init__(self, folder: Path, database: sqlite3.Connection, lock: int) -> None:
        self.folder, self._db, self._lock = folder, database, lock
        self._meta: dict[str, str] = dict(database.execute("SELECT name, value FROM meta"))
        rows = database.execute("SELECT log, register, tree, size, chain, leaf, peaks, ms, state FROM logs")
        self.logs = {row[0]: _known(row) for row in rows}
        alarms = database.execute("SELECT log, kind, text, ms FROM alarms")
        self.alarms = {log: Alarm(kind, text, ms) for log, kind, text, ms in alarms}
        standing = database.execute("SELECT name, size, peaks, ms, published, note FROM registers")
        self.registers = {
            name: Standing(Frontier(size, _hashes(peaks)), ms, published, note)
            for name, size, peaks, ms, published, note in standing
        }

    @classmethod
    def create(cls, folder: Path, name: str, key: str) -> None:
        """Makes the state of a notary that is called `name` and signs by `key`, once; raises `BadState`."""
        own_folder(folder)
        file = folder / FILE
        try:
            os.close(new_file(file))
        except FileExistsError:
            raise BadState(f"{folder} has a notary's state already: it is never made anew") from None
        database = _open(file)
        try:
            # One transaction: after a crash there is all of it, or a file without tables.
            database.executescript(f"BEGIN;{_SCHEMA}")
            told = (("format", _FORMAT), ("name", name), ("key", key))
            database.executemany("INSERT INTO meta VALUES (?, ?)", told)
            database.execute("COMMIT")
        finally:
            database.close()

    @classmethod
    def open(cls, folder: Path) -> NotaryState:
        """Takes the state for this process alone; raises `BadState`."""
        file = folder / FILE
        if not file.exists():
            raise BadState(
                f"{folder} has no notary's state. `dendro notary init` makes one, once; a state that was "
                "lost cannot be made again: its register ends, and a new one needs another receipts.name"
            )
        lock = open_file(folder / LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise BadState(f"another notary uses the state in {folder}: one at a time does") from None
        try:
            os.close(open_file(file, os.O_RDWR))
            found = cls(folder, _open(file), lock)
        except sqlite3.DatabaseError as error:
            os.close(lock)
            raise BadState(
                f"{file} is no notary's state, or is damaged ({error}). If `dendro notary init` was "
                "stopped half-way, remove it and repeat that"
            ) from None
        if found._meta.get("format") != _FORMAT:
            found.close()
            raise BadState(f"{file} was made by a later version, or not to its end")
        return found

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    @property
    def name(self) -> str:
        """The deployment's, before the `/` of each register's origin."""
        return self._meta["name"]

    @property
    def key(self) -> str:
        """The public key that signs, in hexadecimal."""
        return self._meta["key"]

    def rotated(self, key: str) -> None:
        """Signs by another public key from now on."""
        self._db.execute("BEGIN")
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'key'", (key,))
        self._db.execute("COMMIT")
        self._meta["key"] = key

    def origin(self, register: str) -> str:
        return f"{self.name}/{register}"

    # ── stating ───────────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        stated: Sequence[tuple[KnownLog, Head]],
        alarms: Mapping[str, Alarm | None],
    ) -> None:
        """Appends statements to their registers, with the next root of each; None ends an alarm.

        All of it is on the disk when this returns, or none of it is.
        """
        standing = dict[str, tuple[Frontier, int]]()
        with self._transaction():
            for known, head in stated:
                register = known.register
                own = self.registers.get(register, Standing())
                frontier, _ = standing.setdefault(
                    register, (Frontier(own.frontier.size, own.frontier.peaks), head.ms)
                )
                standing[register] = frontier, head.ms
                self._append(register, frontier, head.text.encode())
                self._keep(known)
            for register, (frontier, ms) in standing.items():
                before = self.registers[register].frontier.size if register in self.registers else 0
                peaks = b"".join(frontier.peaks)
                self._db.execute(
                    "INSERT INTO registers VALUES (?, ?, ?, ?, 0, x'') ON CONFLICT (name) DO UPDATE SET "
                    "size = excluded.size, ms = excluded.ms, peaks = excluded.peaks",
                    (register, frontier.size, ms, peaks),
                )
                self._db.execute(
                    "INSERT INTO roots VALUES (?, ?, ?, ?)",
                    (register, frontier.size, before, frontier.root()),
                )
            for log, alarm in alarms.items():
                self._db.execute("DELETE FROM alarms WHERE log = ?", (log,))
                if alarm is not None:
                    row = log, alarm.kind, alarm.text, alarm.ms
                    self._db.execute("INSERT INTO alarms VALUES (?, ?, ?, ?)", row)
        # Only now: a transaction that failed leaves what was known.
        self.logs.update({known.log: known for known, _ in stated})
        for register, (frontier, ms) in standing.items():
            own = self.registers.setdefault(register, Standing())
            own.frontier, own.ms = frontier, ms
        for log, alarm in alarms.items():
            self.alarms.pop(log, None)
            if alarm is not None:
                self.alarms[log] = alarm

    def _append(self, register: str, frontier: Frontier, statement: bytes) -> None:
        n = frontier.size
        frontier.append(leaf_hash(statement))
        self._db.execute("INSERT INTO leaves VALUES (?, ?, ?)", (register, n, statement))
        level, end = 0, n + 1
        while end % WIDTH == 0:
            full = root_of(self.hashes(register, level, end - WIDTH, end))
            level, end = level + 1, end // WIDTH
            self._db.execute("INSERT INTO hashes VALUES (?, ?, ?, ?)", (register, level, end - 1, full))

    def _keep(self, known: KnownLog) -> None:
        peaks = b"".join(known.peaks)
        row = known.log, known.register, known.tree, known.size, known.chain, known.leaf, peaks
        self._db.execute(
            "INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, known.ms, known.state)
        )

    # ── publishing ────────────────────────────────────────────────────────────────────────────────

    def unpublished(self) -> list[tuple[str, Step]]:
        """The roots that stand here and are not known to be published, each behind the one before it."""
        rows = self._db.execute("SELECT register, size, before, root FROM roots ORDER BY register, size")
        return [
            (register, self._step(register, before, Checkpoint(self.origin(register), size, root)))
            for register, size, before, root in rows.fetchall()
        ]

    def _step(self, register: str, before: int, point: Checkpoint) -> Step:
        def hashes(level: int, first: int, end: int) -> list[bytes]:
            return self.hashes(register, level, first, end)

        def statements(first: int, end: int) -> list[bytes]:
            return self.statements(register, first, end)

        return Step(before, point, hashes, statements)

    def hashes(self, register: str, level: int, first: int, end: int) -> list[bytes]:
        """The hashes of a level from one place up to before another one."""
        if level == 0:
            return [leaf_hash(one) for one in self.statements(register, first, end)]
        rows = self._db.execute(
            "SELECT hash FROM hashes WHERE register = ? AND level = ? AND n >= ? AND n < ? ORDER BY n",
            (register, level, first, end),
        )
        return [row[0] for row in rows]

    def statements(self, register: str, first: int, end: int) -> list[bytes]:
        """The statements from one place up to before another one."""
        rows = self._db.execute(
            "SELECT statement FROM leaves WHERE register = ? AND n >= ? AND n < ? ORDER BY n",
            (register, first, end),
        )
        return [row[0] for row in rows]

    def published(self, register: str, size: int, note: Note) -> None:
        """Notes that a root is published, and forgets what is in full tiles."""
        with self._transaction():
            self._db.execute("DELETE FROM roots WHERE register = ? AND size <= ?", (register, size))
            self._db.execute(
                "UPDATE registers SET published = ?, note = ? WHERE name = ?", (size, note.encode(), register)
            )
            for level, count in widths(size):
                table, named = ("leaves", "") if level == 0 else ("hashes", f" AND level = {level:d}")
                last = count // WIDTH * WIDTH
                self._db.execute(f"DELETE FROM {table} WHERE register = ?{named} AND n < ?", (register, last))
        own = self.registers[register]
        own.published, own.note = size, note.encode()

    # ── witnesses ─────────────────────────────────────────────────────────────────────────────────

    def seen_by(self, register: str, witness: str) -> int:
        """The size that a witness has signed last, as far as is known here."""
        found = self._db.execute(
            "SELECT size FROM witnesses WHERE register = ? AND witness = ?", (register, witness)
        ).fetchone()
        return int(found[0]) if found else 0

    def saw(self, register: str, witness: str, size: int) -> None:
        """Notes the size that a witness has signed."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO witnesses VALUES (?, ?, ?)", (register, witness, size))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """A block that is written whole, or not at all."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _open(file: Path) -> sqlite3.Connection:
    # Transactions are begun by hand; the publisher runs in a thread, while nobody else uses it.
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    # The journal is removed, and its folder synced, before a transaction counts.
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA synchronous = EXTRA")
    return database


def _known(row: tuple[str, str, str, int, bytes, bytes, bytes, int, str]) -> KnownLog:
    log, register, tree, size, chain, leaf, peaks, ms, state = row
    return KnownLog(log, register, tree, size, chain, leaf, _hashes(peaks), ms, state)


def _hashes(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + 32] for at in range(0, len(data), 32))
