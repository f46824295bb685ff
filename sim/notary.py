"""A notary of the simulated fleet: the product's own process, on a disk of memory, that may die at any write.

Its look, its state, its registers and its signatures are the product's. Simulated are the disk under its
database, the store of its registers, and its death: before any statement that writes to the database, before
any object that is written or removed, or at any wait. A disk may be copied, and put back to an earlier copy.
What it states is held against the logs by `sim/notary_rules.py`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.broker.blobs import Blobs, Texts
from orchestrator.rollouts import notary_state
from orchestrator.rollouts.bundle_receipts import Head
from orchestrator.rollouts.notary import Look, Notary
from orchestrator.rollouts.notary_state import Alarm, KnownLog, NotaryState
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.redaction import StoredLogs
from orchestrator.rollouts.register import BadRegister, Forked
from orchestrator.rollouts.signed_notes import Note, Signer
from sim.double import EPOCH_S, Double
from sim.loop import Lane
from sim.machines import Process, Site, archive_of, broker_on, storage_of
from sim.notary_rules import NotaryRules
from sim.objects import SimObjects
from workers.notary import LOOK_S, Figures
from workers.notary import _look as serve

NAME = "fleet.sim"
INTERVAL_S = 60.0
"""`receipts.interval_s` as it is where nobody sets it."""
PRIVATE = Ed25519PrivateKey.from_private_bytes(sha256(b"notary of a simulation").digest())
_WRITES = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")


class Died(Exception):
    """The process was killed before this write."""


class Life:
    """The life of a process: so many writes are left to it, where it is to die at one."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.dead = False

    def write(self) -> None:
        """Before each write; raises `Died`."""
        if self.left is not None:
            self.left -= 1
            self.dead = self.dead or self.left < 0
        if self.dead:
            raise Died


class Disk:
    """The folder of a notary's state, which outlives its processes."""

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self.database = database or sqlite3.connect(":memory:", isolation_level=None)
        if database is None:
            self.database.executescript(f"BEGIN;{notary_state._SCHEMA}")
            told = (
                ("format", notary_state._FORMAT),
                ("name", NAME),
                ("key", PRIVATE.public_key().public_bytes_raw().hex()),
            )
            self.database.executemany("INSERT INTO meta VALUES (?, ?)", told)
            self.database.execute("COMMIT")
        self.used = False
        """Whether a process has its lock."""
        self.ended = False
        """Whether another notary has continued its register: it is of no use any more."""

    def copy(self) -> Disk:
        """The parts of it that a backup has."""
        made = sqlite3.connect(":memory:", isolation_level=None)
        self.database.backup(made)
        return Disk(made)


class _Database:
    """A connection to a disk, of a process that may die."""

    def __init__(self, disk: Disk, life: Life) -> None:
        self._disk, self._life = disk, life
        if disk.database.in_transaction:
            # What a process that was killed had begun is not there, as a journal says.
            disk.database.execute("ROLLBACK")

    def execute(self, sql: str, row: Sequence[Any] = ()) -> Any:
        if sql.startswith(_WRITES):
            self._life.write()
        if self._life.dead:
            return ()
        return self._disk.database.execute(sql, row)


class _Registers:
    """The store of registers, as one process reaches it."""

    def __init__(self, objects: SimObjects, life: Life) -> None:
        self._objects, self._life = objects, life

    def __getattr__(self, name: str) -> Any:
        if self._objects.away:
            raise ArchiveUnavailable("the store of registers is away")
        if name in ("put", "put_new", "remove"):
            self._life.write()
        return getattr(self._objects, name)


class _State(NotaryState):
    """The state, which tells the rules what it is about to write."""

    def __init__(self, disk: Disk, life: Life, rules: NotaryRules) -> None:
        super().__init__(Path("/sim/notary"), cast(sqlite3.Connection, _Database(disk, life)), -1)
        self._rules = rules

    def add(
        self,
        stated: Sequence[tuple[KnownLog, Head]],
        alarms: dict[str, Alarm | None],  # type: ignore[override]
    ) -> None:
        self._rules.states(self, stated)
        super().add(stated, alarms)


class _Watched:
    """A notary whose looks are known by when they began, and whether they came to their end."""

    def __init__(self, process: NotaryProcess, notary: Notary) -> None:
        self._process, self._notary = process, notary

    def start(self) -> None:
        self._notary.start()

    async def look(self) -> Look:
        process = self._process
        rules = process.office.rules
        rules.begins(began_s := process.site.loop.time())
        found = await self._notary.look()
        rules.looked(process.state, began_s)
        process.looks += 1
        return found


class Office:
    """The parts of a notary that are there while no process of it runs: disks, registers, a key."""

    def __init__(self, site: Site, double: Double, rng: Random) -> None:
        self.site, self.rng = site, rng
        self.registers = SimObjects(site.loop.time)
        self.rules = NotaryRules(site.watch, double, self.registers, PRIVATE.public_key().public_bytes_raw())
        self.disks = [Disk()]
        self.backups: list[Disk] = []
        self.copied = False
        """Whether a disk was ever copied: two notaries may go on from one state."""
        self.processes: list[NotaryProcess] = []
        self._started = 0

    @property
    def living(self) -> list[NotaryProcess]:
        return [one for one in self.processes if one.alive]

    def start(self) -> None:
        """A process on each disk that has none, and is of use."""
        for disk in self.disks:
            if not disk.used and not disk.ended:
                self.starts(disk)

    def starts(self, disk: Disk) -> NotaryProcess:
        self._started += 1
        name = f"n{self._started}"
        self.site.trace.note("nemesis", "starts", name)
        made = NotaryProcess(self, name, Random(self.rng.getrandbits(64)), disk)
        self.processes.append(made)
        return made

    def signer(self, origin: str) -> Signer:
        return cast(Signer, _Noted(self.rules, origin))


class _Noted:
    """A signer whose signatures are noted before anybody has them."""

    def __init__(self, rules: NotaryRules, origin: str) -> None:
        self._rules, self._origin = rules, origin

    def signed(self, text: str) -> Note:
        self._rules.signs(self._origin, text)
        return Signer(self._origin, PRIVATE).signed(text)


class NotaryProcess(Process):
    """`dendro notary run`."""

    def __init__(self, office: Office, name: str, rng: Random, disk: Disk) -> None:
        super().__init__(office.site, name, rng)
        self.office, self.disk, self.life = office, disk, Life()
        self.looks = 0
        """Of those that came to their end."""
        disk.used = True
        broker, connection = broker_on(self.site, name, self.clock)
        storage = storage_of(self.site, broker, connection, self.clock)
        texts = Texts(Blobs(connection, broker.keys), archived=archive_of(self.site).text)
        self.state = _State(disk, self.life, office.rules)
        ahead_s = rng.uniform(-0.2, 0.2)
        self.notary = Notary(
            StoredLogs(storage, texts),
            self.state,
            cast(Objects, _Registers(office.registers, self.life)),
            office.signer,
            int(INTERVAL_S * 1000),
            lambda: int((EPOCH_S + self.site.loop.time() * self.clock.rate + ahead_s) * 1000),
        )
        self.task = self.site.loop.start(self.main, self._serves(), "notary")

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return (self.main,)

    async def _serves(self) -> None:
        try:
            await serve(cast(Notary, _Watched(self, self.notary)), LOOK_S, Figures(), None)
        except Died:
            self.site.watch.reach.saw("one_root")
            self.site.trace.note(self.name, "dies", "at a write")
        except (Forked, BadRegister) as error:
            self.site.trace.note(self.name, "stops", type(error).__name__)
            self.disk.ended = True
            self.site.watch.reach.saw("notary_forked")
            if not self.office.copied:
                self.site.watch.broken("one_root", f"the only notary there is stops: {error}")
        finally:
            self._ends()

    def _ends(self) -> None:
        self.alive, self.life.dead = False, True
        self.disk.used = False

    def kill(self) -> None:
        self._ends()
        self.site.loop.kill(self.main)

    def drain(self) -> None:
        self.site.loop.on(self.main, self.task.cancel)


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────

STRIKES = (("dies_at", 10), ("killed", 4), ("pauses", 3), ("cut", 3), ("away", 3), ("twin", 1), ("older", 1))
"""The things that happen to a notary, and how often each is chosen."""
PAUSE_S = (2.0, 14.0)


async def strikes(office: Office, calm: asyncio.Event) -> None:
    """Faults of a notary, one after the other, until all faults are over; then one runs."""
    rng = office.rng
    names, weights = [name for name, _ in STRIKES], [weight for _, weight in STRIKES]
    office.start()
    while not calm.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(*PAUSE_S)):
                await calm.wait()
        if calm.is_set():
            break
        name = rng.choices(names, weights)[0]
        office.site.trace.note("nemesis", "notary", name)
        _STRIKES[name](office)
        if rng.random() < 0.8:
            office.start()
    office.registers.away = False
    for one in office.living:
        one.life.left = None
        office.site.network.cut.pop(one.name, None)
    office.start()


def _dies_at(office: Office) -> None:
    for one in office.living:
        one.life.left = office.rng.choice((0, 1, 2, 3, 5, 8, 13))


def _killed(office: Office) -> None:
    for one in office.living:
        one.kill()


def _pauses(office: Office) -> None:
    for one in office.living:
        one.pause(office.rng.uniform(1.0, 20.0))


def _cut(office: Office) -> None:
    cut, rng = office.site.network.cut, office.rng
    for one in office.living:
        cut[one.name] = 1
        office.site.loop.on(office.site.network.lane, _joins, cut, one.name, after=rng.uniform(0.5, 15.0))


def _joins(cut: dict[str, int], name: str) -> None:
    cut.pop(name, None)


def _away(office: Office) -> None:
    office.registers.away = True
    office.site.loop.on(office.site.network.lane, _back, office, after=office.rng.uniform(1.0, 20.0))


def _back(office: Office) -> None:
    office.registers.away = False


def _twin(office: Office) -> None:
    """A second notary with a copy of the state, made while nobody writes to it."""
    if office.copied:
        return
    _killed(office)
    office.copied = True
    _end_transactions(office.disks)
    office.disks.append(office.disks[0].copy())


def _older(office: Office) -> None:
    """The state is put back to a backup, or one is made."""
    _end_transactions(office.disks)
    if not office.backups:
        office.backups.append(office.disks[0].copy())
        return
    _killed(office)
    office.copied = True
    older = office.backups.pop()
    office.disks.append(older)
    office.starts(older)


def _end_transactions(disks: Sequence[Disk]) -> None:
    for disk in disks:
        if disk.database.in_transaction:
            disk.database.execute("ROLLBACK")


_STRIKES = {
    "dies_at": _dies_at,
    "killed": _killed,
    "pauses": _pauses,
    "cut": _cut,
    "away": _away,
    "twin": _twin,
    "older": _older,
}
