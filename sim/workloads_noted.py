"""A workload with a notary, which states logs while they grow, Redis goes back and it dies."""

from __future__ import annotations

import asyncio
import io
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.broker.blobs import Blobs, Texts
from orchestrator.broker.errors import BrokerError
from orchestrator.core.chain import ChainKey
from orchestrator.core.ids import TreeId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_check import check_bundle
from orchestrator.rollouts.bundle_receipts import Receipt, Trust, read_statement
from orchestrator.rollouts.bundle_writer import Order, WantedReceipts, write_bundle
from orchestrator.rollouts.deletion import NotDeleted, delete_everywhere
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.redaction import StoredLogs
from orchestrator.rollouts.register import Register
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.signed_notes import Signer
from sim.archive_moves import NEVER, UpkeepRules
from sim.fixture import Fixture, new_session, perhaps_agents, used
from sim.machines import Clock, archive_of, broker_on, storage_of
from sim.notary import INTERVAL_S, NAME, PRIVATE, NotaryProcess, Office, strikes

QUIET_S = INTERVAL_S + 15.0
"""An interval, and two looks."""
TRIES = 8
HOME = "home"
ROOT = Path(__file__).parent.parent


async def receipts(fixture: Fixture) -> None:
    """Sessions and trees whose logs a notary states: it dies at its writes, Redis goes back, a tree is
    deleted; receipts and bundles are made and checked."""
    rng, nemesis, odds = fixture.rng, fixture.nemesis, fixture.site.model.odds
    odds.asks, odds.agents = 0.0, 0.5
    odds.verbs |= {"subagent_spawn": 10}
    nemesis.weights |= {"rewind": 8, "rewind_1s": 4, "rewind_at": 6}
    if rng.random() < 0.4:
        nemesis.keep_up(UpkeepRules(processes=1, seal_after=5, archive_after_s=rng.choice((0.0, NEVER))))
    office = Office(fixture.site, nemesis._double, Random(rng.getrandbits(64)))
    striking = fixture.site.loop.start(nemesis.lane, strikes(office, nemesis.calm), "strikes")
    auditor = Auditor(fixture, office)
    plays = []
    for _ in range(rng.choice((1, 2, 2))):
        person = fixture.person()
        facts: dict[str, Any] = {"on_user_input": "steer", **perhaps_agents(rng, 0.6)}
        session = await new_session(fixture, person, "never", **facts)
        plays.append(person.does(used(fixture, person, session, rng.choice((1, 2, 4))), "uses"))
        plays.append(person.does(auditor.keeps(session), "keeps"))
        plays.append(person.does(auditor.takes(session), "takes"))
    await asyncio.wait(plays)
    await nemesis.calm.wait()
    await asyncio.wait([striking])
    notary = await _settled(fixture, office)
    if notary is None:
        return
    office.rules.at_rest(notary.state)
    office.rules.published()
    for tree in sorted({seen.tree for seen in fixture.site.watch.sessions.values()}):
        await auditor.audits(tree, notary)
    if fixture.site.watch.sessions and rng.random() < 0.3:
        await _deletes(fixture, office, auditor)
        if (notary := await _settled(fixture, office)) is not None:
            office.rules.at_rest(notary.state)
    for one in office.living:
        one.kill()


async def _settled(fixture: Fixture, office: Office) -> NotaryProcess | None:
    """The notary that has looked for longer than an interval while no log grew; None: logs go on growing."""
    watch = fixture.site.watch
    for _ in range(TRIES):
        before = {session: seen.seq for session, seen in watch.sessions.items()}
        office.start()
        looks = {one: one.looks for one in office.living}
        await asyncio.sleep(QUIET_S)
        able = [one for one in office.living if one.looks > looks.get(one, 0) and not one.disk.ended]
        if able and before == {session: seen.seq for session, seen in watch.sessions.items()}:
            return max(able, key=lambda one: sum(each.frontier.size for each in one.state.registers.values()))
    return None


async def _deletes(fixture: Fixture, office: Office, auditor: Auditor) -> None:
    """A person deletes a tree (`dendro rm`), and the notary is told by what Redis keeps of that."""
    watch = fixture.site.watch
    tree = fixture.rng.choice(sorted({seen.tree for seen in watch.sessions.values()}))
    with suppress(BrokerError, NotDeleted):
        _, heads = await auditor.source.broker.trees.heads_at_once(TreeId(tree))
        watch.archive_moves.by_people.add(tree)
        await delete_everywhere(auditor.source.storage, heads, by="p1")


class Auditor:
    """A person who keeps receipts, and asks for bundles."""

    def __init__(self, fixture: Fixture, office: Office) -> None:
        site = fixture.site
        self._fixture, self._office, self._watch = fixture, office, site.watch
        clock = Clock(site.loop, 0.0, 1.0)
        broker, connection = broker_on(site, "auditor", clock)
        storage = storage_of(site, broker, connection, clock)
        self.source = StoredLogs(
            storage, Texts(Blobs(connection, broker.keys), archived=archive_of(site).text)
        )
        self._kept: list[bytes] = []
        self._trust = Trust((Signer(f"{NAME}/{HOME}", PRIVATE).key,), quorum=0)

    async def keeps(self, session: str) -> None:
        """Asks for receipts of a session's log now and then."""
        for _ in range(self._fixture.rng.choice((1, 2, 3))):
            await asyncio.sleep(self._fixture.rng.uniform(2.0, 20.0))
            register = Register(self._office.registers.opened(), HOME)
            if self._office.registers.away or (signed := register.newest()) is None:
                continue
            found = [
                read_statement(index, text)
                for index, text in enumerate(register.statements(signed.point.size))
                if text.split("\n", 2)[1] == f"session:{session}"
            ]
            if found:
                proof = register.inclusion(signed.point.size, found[-1].index)
                self._kept.append(Receipt(found[-1], tuple(proof), signed.note).encode())

    async def takes(self, session: str) -> None:
        """Takes bundles of a session's tree while it is at work, and has them checked by two readers."""
        rng, watch = Random(f"takes:{session}"), self._watch
        for _ in range(rng.choice((2, 3, 4))):
            await asyncio.sleep(rng.choice((2.0, 8.0)) * rng.random())
            if session in watch.sessions:
                await self._takes(watch.sessions[session].tree)

    async def _takes(self, tree: str) -> None:
        watch, rewinds, out = self._watch, len(self._watch.rewinds), io.BytesIO()
        before = {one: seen.seq for one, seen in watch.sessions.items() if seen.tree == tree}
        secret = self.source.secret
        order = Order("sim", "2027-01-15T08:00:00.000Z", "d", key_id="k" if secret else "")
        # What is committed while it reads is to meet it.
        answers_s = self._fixture.site.network.answers_s
        answers_s["auditor"] = (0.02, 0.3)
        try:
            await write_bundle(self.source, TreeId(tree), out, order)
        except (BrokerError, ArchiveUnavailable):
            return
        except (RolloutError, BrokenArchive) as error:
            if len(watch.rewinds) == rewinds and watch.parted is None:
                watch.broken("bundled", f"{tree}: no bundle of a tree at work: {error}")
            return
        finally:
            answers_s.pop("auditor", None)
        if len(watch.rewinds) != rewinds or watch.parted is not None:
            return
        after = {one: seen.seq for one, seen in watch.sessions.items() if seen.tree == tree}
        if len(after) > 1 and any(seq != before.get(one) for one, seq in after.items()):
            watch.reach.saw("bundled")
        with tempfile.TemporaryDirectory(prefix="dendro-sim-") as folder:
            path = Path(folder, "run.zip")
            _keep(path, out.getvalue())
            report = check_bundle(path, key=ChainKey("k", secret) if secret else None)
            found = [f"{one.code} {one.place}: {one.text}" for one in report.findings]
            found += [repr(one) for one in _second_reader().Check(str(path), None, {}).run()]
        if found:
            watch.broken("bundled", f"{tree}: its bundle, taken at work, does not hold: {found}")
        for log, seen in report.logs.items():
            kind, _, name = log.partition(":")
            if kind == "session" and seen.entries:
                ends = watch.sessions[name].stored[seen.entries - 1][1][b"h"]
                if seen.head != ends or seen.entries < before.get(name, 0):
                    watch.broken("bundled", f"{tree}: {log} ends at {seen.entries} in its bundle")
        if lacks := [one for one in before if f"session:{one}" not in report.logs]:
            watch.broken("bundled", f"{tree}: its bundle lacks {lacks}")

    async def audits(self, tree: str, notary: NotaryProcess) -> None:
        """A bundle of a tree with the register, held against every receipt that was kept."""
        rules, registers = self._office.rules, self._office.registers.opened()
        if not Register(registers, HOME).newest():
            return
        wanted = WantedReceipts.of(Register(registers, HOME), whole=True)
        origin = wanted.newest.point.origin
        secret = self.source.secret
        order = Order(
            origin,
            "2027-01-15T08:00:00.000Z",
            "d",
            signer=Signer(origin, PRIVATE),
            receipts=wanted,
            key_id="k" if secret else "",
        )
        logs = [known for known in notary.state.logs.values() if known.tree == tree]
        spoiled = [known.log for known in logs if rules.unlike(known)]
        with tempfile.TemporaryDirectory(prefix="dendro-sim-") as folder:
            path, out = Path(folder, "run.zip"), io.BytesIO()
            made = await write_bundle(self.source, TreeId(tree), out, order)
            _keep(path, out.getvalue())
            if made.behind and not spoiled:
                self._watch.broken(
                    "receipts", f"{tree}: its bundle lacks {made.behind} entries, and all is stated"
                )
            for receipt in [None, *self._kept]:
                trust = self._trust if receipt is None else self._trust.holding(Receipt.read(receipt))
                if receipt is not None and trust.checkpoint != wanted.newest.note:
                    self._watch.reach.saw("receipts")
                report = check_bundle(path, trust, ChainKey("k", secret) if secret else None)
                found = [f"{one.code} {one.place}: {one.text}" for one in report.findings]
                if found and not spoiled:
                    self._watch.broken("receipts", f"{tree}: its bundle does not hold: {found}")
                if spoiled:
                    self._watch.reach.saw("disputed")
                if spoiled and not found:
                    self._watch.broken(
                        "receipts", f"{tree}: {spoiled} are not as stated, and its bundle holds"
                    )


@cache
def _second_reader() -> Any:
    """The checker of bundles that the repository has as an example: it shares no code with the product."""
    spec = spec_from_file_location("check_bundle", ROOT / "examples" / "check_bundle.py")
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _keep(path: Path, content: bytes) -> None:
    path.write_bytes(content)
