"""Births of sessions whose first folder is in the store before they are: clients that may die on the way.

The product announces, creates, and copies packs of another session's folder; simulated are what is packed of
a folder, and the client. A client that died may come back and send the same request again, a day later, too.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from orchestrator.broker.errors import BirthGivenUp, OutOfMemory, Unavailable
from orchestrator.core import facts as f
from orchestrator.core.birth import Birth
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.packs import Pack
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.tree import ROOT
from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import Bounds, Place
from orchestrator.protocol.ids import SnapshotId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.wiring import portable
from orchestrator.wiring.new_sessions import FirstFolder
from orchestrator.workspaces.stored_packs import Packs
from sim.double import EPOCH_S
from sim.fixture import Fixture
from sim.folder_content import marked, on_disk
from sim.folders import MARKS
from sim.machines import POOL
from sim.people import FREE, Person

DAY_S = 86_400.0
TRIES = 4
"""A client that was refused, or heard nothing, makes so many sessions at most."""
DIES, SLEEPS, COMES_BACK = 0.12, 0.12, 0.5
"""How likely a client dies at a step, lets a day pass before it, and comes back when it died."""
COPIES = 0.3
"""How likely a session begins with the folder of another one, where there is one."""
DIES_WITHIN_S = (0.0, 0.001, 0.003, 0.05)


class Died(Exception):
    """The client is dead; what it has sent may arrive all the same."""


class Founder(Person):
    """A client that makes sessions with a first folder."""

    def __init__(
        self, fixture: Fixture, facts: dict[str, Any], *, sleeps: float = SLEEPS, days: float = 1.0
    ) -> None:
        rng = fixture.site.drawn(fixture.rng.getrandbits(64))
        super().__init__(fixture.site, f"p{len(fixture.people) + 1}", rng, fixture.diary)
        fixture.people.append(self)
        self._facts = facts
        self._sleepy, self._days = sleeps, days
        self._insists = rng.random() < 0.5
        """Whether it asks again where it heard nothing, instead of making another session."""

    def acts(self) -> int:
        """How often it acts in the session that it has made."""
        return self._rng.choice((0, 1, 2))

    async def founds(self) -> str | None:
        """Makes a session, again as another one where it must; None if it did not come to that."""
        for _ in range(TRIES):
            source = self._whose()
            begun = self._begun(source)
            try:
                return await self._makes(begun, source)
            except BirthGivenUp:
                self._site.trace.note(self.name, "begins again", begun.facts.session_id[-4:])
            except (portable.NoWorkspace, Unavailable, OutOfMemory) as error:
                self._site.trace.note(self.name, "makes not", type(error).__name__)
                await asyncio.sleep(self._rng.uniform(0.5, 5.0))
            except Died:
                if self._rng.random() >= COMES_BACK:
                    return None
        return None

    async def _makes(self, begun: Birth, source: State | None) -> str:
        session = begun.facts.session_id
        self._policies[session] = begun.settings.approval_policy, FREE
        birth = await self._step(lambda: self._stored(begun, source))
        try:
            await self._step(lambda: self._client.create(birth))
        except Died:
            if self._rng.random() >= COMES_BACK:
                raise
            # It had kept the request, and sends it again.
            await asyncio.sleep(self._rng.choice((1.0, 20.0, 1.2 * DAY_S)) * self._rng.random())
            await self._client.create(birth)
        self._diary.created[session] = self._site.loop.time()
        self._site.trace.note(self.name, "founded", session)
        if source is not None:
            self._site.watch.reach.saw("birth_copied")
        return session

    async def _step(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """A step of the client: at once, or a day later, or to the moment of its death."""
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 2.0)) * self._rng.random())
        await self._sleeps()
        if self._rng.random() >= DIES:
            return await step()
        self._site.trace.note(self.name, "dies")
        try:
            async with asyncio.timeout(self._rng.choice(DIES_WITHIN_S) * self._rng.random()):
                await step()
        except TimeoutError:
            pass
        raise Died

    async def _sleeps(self) -> None:
        if self._rng.random() < self._sleepy:
            self._site.trace.note(self.name, "sleeps")
            await asyncio.sleep(self._days * DAY_S * self._rng.uniform(0.9, 1.2))

    def _whose(self) -> State | None:
        """The session whose folder the next one begins with; None: it packs a folder of its own."""
        if self._whims.random() >= COPIES:
            return None
        states = (seen.state for _, seen in sorted(self._site.watch.sessions.items()))
        known = [state for state in states if state.workspace.snapshot and state.workspace.unsaved is None]
        return self._whims.choice(known) if known else None

    def _begun(self, source: State | None) -> Birth:
        """The session as the client means it, before its folder is packed."""
        site, now_ms = self._site, int((EPOCH_S + self._site.loop.time()) * 1000)
        shard = self._rng.randrange(site.config.shards)
        session = new_session_id(now_ms, shard, self._rng.getrandbits(62))
        site.trace.note(self.name, "makes", session)
        given = SessionFacts(session, TreeId(session), ROOT, POOL, **self._facts)
        if source is not None:
            given = replace(given, portable=source.facts.portable)
        return Birth(given, TurnSettings("/sim", "never", {"mode": FREE}, "gpt-5"), "0", now_ms)

    async def _stored(self, begun: Birth, source: State | None) -> Birth:
        """The session with its first snapshot: announced, packed and stored as the product does it."""
        rules = begun.facts.portable
        assert isinstance(rules, PortableFolder)
        told = (source, "another") if source is not None else None
        first = FirstFolder(rules, top=Path("/sim") if told is None else None, source=told)
        return await portable.with_folder(cast(Any, self), cast(Any, self), begun, first)

    def pack_store(self) -> Packs:
        """The store, for the copies of another session's packs."""
        return Packs(self._site.objects.opened())

    async def announce(self, session: SessionId) -> int:
        if self._days > 1:
            self.does(self._late_copy(session), "late copy")
        while True:
            try:
                return await self._broker.commits.announce(session)
            except Unavailable:
                if not self._insists:
                    raise
                await asyncio.sleep(0.3)

    async def _late_copy(self, session: SessionId) -> None:
        """An announcement that a network held back until its session was given up and its packs removed."""
        await asyncio.sleep(DAY_S * self._rng.uniform(1.2, 2.0))
        with suppress(BirthGivenUp, Unavailable, OutOfMemory):
            await self._broker.commits.announce(session)
            self._site.watch.reach.saw("announced_anew")

    async def packs(self, birth: Birth) -> f.WorkspaceBegun:
        """Puts the first pack into the store."""
        folders, session = self._site.folders, birth.facts.session_id
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 2.0)) * self._rng.random())
        await self._sleeps()
        if folders.store.away:
            raise ArchiveUnavailable("the store is away")
        with tempfile.TemporaryDirectory(dir=folders.root) as beside:
            place = Place(Path(beside, "folder"), Path(beside, "objects"))
            place.folder.mkdir()
            marked(place.folder, f"{MARKS}first:{session}")
            taken = Copy(place, Bounds()).born(None, "", birth.at_ms)
            folders.contents[taken.snapshot] = on_disk(place.folder)
            name = portable._pack_name(birth, taken.sha256)
            await self.pack_store().put(name, taken.pack)
        pack = Pack(str(name), taken.sha256, taken.bytes, whole=True)
        return f.WorkspaceBegun(SnapshotId(taken.snapshot), (pack,))


async def _packed(client: Any, birth: Birth, top: Path, within: str) -> tuple[f.WorkspaceBegun, None]:
    packed: f.WorkspaceBegun = await client.packs(birth)
    return packed, None


async def _no_skills(*_: object) -> None:
    """Offers none: simulated folders have none."""


@contextmanager
def packing() -> Iterator[None]:
    """While a simulation runs, first folders are packed by its clients and not by the product's keeper."""
    store = patch.object(portable, "pack_store", lambda client: client.pack_store())
    skills = patch.object(portable, "in_git_thread", _no_skills)
    with patch.object(portable, "_packed", _packed), skills, store:
        yield
