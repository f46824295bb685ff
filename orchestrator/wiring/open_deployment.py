"""The deployment of some settings, opened for a command or for another program, and new sessions in it.

What a use of it needs is imported at that use: a command that lists sessions loads no rule, store or client.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import Sender, Via
from orchestrator.recent import Recent
from orchestrator.settings import Settings
from orchestrator.settings.private_home import require_private
from orchestrator.wiring.deployment import Deployment, ProcessKind, chain_key, deployment, redis_url

if TYPE_CHECKING:
    from orchestrator.broker.blobs import Texts
    from orchestrator.broker.broker import Broker
    from orchestrator.broker.follow import EventReader
    from orchestrator.broker.records import SessionHead, Source, StoredEntry
    from orchestrator.core.birth import Birth, ForkedFrom
    from orchestrator.folders.outcomes import Bounds
    from orchestrator.gateways.bursts import Messages
    from orchestrator.gateways.client import Client
    from orchestrator.gateways.permissions import Permits
    from orchestrator.protocol.ops import WorkspaceSource
    from orchestrator.rollouts.archive import Archive, Storage
    from orchestrator.rollouts.segments import Manifest, Segment
    from orchestrator.workspaces.stored_packs import Packs

log = logging.getLogger("dendro.archive")

PATIENCE_S = 10.0
"""The wait of a command for a Redis that does not answer: a server loads, or fails over, in seconds."""


@record
class _WhenSealed:
    """The archive for the reader of a log, which is opened where entries of the log are in it."""

    archive: Callable[[], Archive]

    def read_entries(self, manifest: Manifest, after: int, through: int) -> AsyncIterator[StoredEntry]:
        return self.archive().read_entries(manifest, after, through)


class SealedLogs:
    """Short logs in the archive, for lists, pictures and followers; those that were just read are kept."""

    MOST_BYTES = 16 << 20
    KEPT_S = 60.0
    """A segment that nobody has read for so long is dropped: its entries take three times its bytes."""

    def __init__(self, archive: Callable[[], Archive], clock: Callable[[], float] = time.monotonic) -> None:
        self._archive = archive
        self._kept: Recent[str, tuple[StoredEntry, ...]] = Recent(
            self.MOST_BYTES, seconds=self.KEPT_S, clock=clock
        )
        """The entries of segments by their names."""

    async def read(self, data: bytes, after: int, count: int) -> tuple[StoredEntry, ...]:
        """Entries that the manifest names; none where the archive is away or damaged."""
        from orchestrator.rollouts.object_store import ArchiveUnavailable
        from orchestrator.rollouts.segments import BrokenArchive, Manifest

        try:
            found = Manifest.decode(data).entries(self._entries, after, after + count)
            return tuple([entry async for entry in found])
        except (ArchiveUnavailable, BrokenArchive) as error:
            log.warning("a log that was sealed cannot be read: %s", error)
            return ()

    async def _entries(self, segment: Segment) -> tuple[StoredEntry, ...]:
        entries = self._kept.use(segment.name)
        if entries is None:
            entries = await self._archive().read_segment(segment)
            self._kept.put(segment.name, entries, segment.bytes)
        return entries


@record
class Opened:
    """The deployment as one process sees it."""

    settings: Settings
    deployment: Deployment
    insists: bool = False
    """Whether submissions are sent again until Redis answers, however long that takes."""
    events: EventReader | None = None
    """The reads of followed sessions, where the clients of many connections share them."""
    messages: Messages | None = None
    """The messages that were read last, where they share these, too."""

    @property
    def broker(self) -> Broker:
        return self.deployment.broker

    @property
    def texts(self) -> Texts:
        return self.deployment.texts

    @property
    def secret(self) -> bytes:
        """The key of the hash chain; empty without one."""
        key = chain_key(self.settings)
        return key.secret if key else b""

    @property
    def rollout_files(self) -> Path:
        """The folder of rollout files in this user's data folder."""
        from orchestrator.wiring.new_sessions import SESSIONS

        return self.settings.home / SESSIONS

    def archive(self) -> Archive:
        """The store of the sealed stretches of logs."""
        from orchestrator.rollouts.archive import Archive

        return Archive.at(self.settings.upkeep.archive_url, self.secret)

    def packs(self) -> Packs:
        """The store of the packs of portable folders."""
        from orchestrator.wiring.portable import pack_store

        return pack_store(self.settings)

    def folder_bounds(self) -> Bounds:
        """The bounds within which folders of sessions are read on this machine."""
        from orchestrator.folders.outcomes import Bounds

        own = self.settings.workspace
        return Bounds(own.max_file, own.max_files, own.max_bytes, own.seconds)

    def storage(self) -> Storage:
        """Redis and the archive, for those who walk whole logs."""
        from orchestrator.rollouts.archive import Storage

        return Storage(self.broker, self.deployment.blobs, self.archive(), self.secret)

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        """The session's entries after `after` up to `through`, wherever they are kept."""
        from orchestrator.rollouts.full_log import full_log

        return full_log(self.broker.logs, _WhenSealed(self.archive), session, after, through)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        """The texts that entries refer to, from Redis or the archive; one that is nowhere is left out."""
        wanted = list(digests)
        await self.texts.fetch(tree, wanted)
        found = {digest: self.texts.get(digest) for digest in wanted}
        for digest in [digest for digest, text in found.items() if text is None]:
            content = await self.archive().read_blob(tree, digest)
            found[digest] = None if content is None else content.decode("utf-8", "surrogatepass")
        return {digest: text for digest, text in found.items() if text is not None}

    def client(
        self,
        by: Sender | None = None,
        namespace: str | None = None,
        permits: Permits | None = None,
        *,
        via: Via = "cli",
    ) -> Client:
        """A new client of this process's user at the door `via`, or of another sender that a door knows.

        With a namespace there are no sessions but those of it.
        """
        from orchestrator.gateways.client import Client, ClientPorts
        from orchestrator.gateways.principals import machine_user

        ports = ClientPorts(
            self.broker,
            self.texts,
            os.urandom,
            chain_key=chain_key(self.settings),
            restore=self.restore,
            may_create=self.may_create,
            keeps_history=self.settings.session_defaults.history != "none",
            insists=self.insists,
            events=self.events,
            messages=self.messages,
        )
        by = by or machine_user().sender(via)
        return Client(ports, str(uuid.uuid4()), by.who, namespace, permits, by)

    async def may_create(self) -> None:
        """Raises `Misconfigured` where the logs of the deployment are keyed otherwise than this process's."""
        await self.broker.hold_key(chain_key(self.settings))

    async def restore(self, session: SessionId) -> bool:
        """Brings an archived session back; False if it was not archived. Raises `SessionArchived`."""
        from orchestrator.broker.errors import SessionArchived
        from orchestrator.rollouts.object_store import ArchiveUnavailable
        from orchestrator.rollouts.segments import BrokenArchive
        from orchestrator.runtime.loader import BrokenLog, restore_session

        try:
            return await restore_session(self.storage(), session)
        except (ArchiveUnavailable, BrokenArchive, BrokenLog) as error:
            raise SessionArchived(session, str(error)) from error

    async def find(self, text: str) -> SessionHead:
        """The session that an id, or a part of one, names; raises `ViewError`.

        A part that fits a tree's root and agents of it means the root: ids of one minute begin alike.
        """
        from orchestrator.views.find import find

        return await find(self, text)

    async def find_tree(self, text: str) -> TreeId:
        """The tree of the sessions that an id, or a part of one, names; raises `ViewError`."""
        from orchestrator.views.find import find_tree

        return await find_tree(self, text)

    async def find_one(self, text: str) -> SessionHead:
        """The only session that text names, for what cannot be undone; raises `ViewError`."""
        from orchestrator.views.find import find_one

        return await find_one(self, text)


def _silent(text: str) -> None:
    pass


@asynccontextmanager
async def opened(
    settings: Settings,
    say: Callable[[str], None] = _silent,
    *,
    insists: bool = False,
    kind: ProcessKind = "cli",
) -> AsyncIterator[Opened]:
    """Starts or joins the user's private Redis if no other is configured; leaves it at the end.

    A Redis that does not answer is asked again for `PATIENCE_S`, and for ever by the clients of a command
    that `insists`; `say` gets a line when Redis is away, and when it is back.
    """
    from orchestrator.broker.connection import Outage

    for line in require_private(settings):
        say(line)
    until = "until it answers" if insists else f"for {PATIENCE_S:.0f} s"
    outage = Outage(say, time.monotonic, until)
    with redis_url(settings, say) as url:
        async with deployment(settings, url, outage, PATIENCE_S, kind) as found:
            own = Opened(settings, found, insists)
            found.broker.logs.sealed = SealedLogs(own.archive).read
            yield own


async def forked_session(found: Opened, client: Client, text: str, at: str | None) -> SessionHead:
    """A new session that goes on from the end of another, or of its turn `at`; raises `ViewError`."""
    from orchestrator.gateways.folder_facts import look_at
    from orchestrator.gateways.fork import copy_texts, to_fork
    from orchestrator.rollouts.full_log import head_of
    from orchestrator.sandbox.git import in_git_thread
    from orchestrator.wiring.new_sessions import guide, new_birth

    source = await to_fork(found, text, at)
    settings = found.settings
    folder = settings.session_defaults.cwd
    workspace = await in_git_thread(look_at, folder, guide(settings))
    own = new_birth(settings, workspace, time.time_ns() // 1_000_000, os.urandom)
    birth = await _forked(found, source, replace(own, history=await client.history()))
    tree = TreeId(birth.facts.tree_id)
    session = await client.create(birth, copies=lambda: copy_texts(found, source, tree))
    return await head_of(found.broker.logs, session)


async def _forked(found: Opened, source: ForkedFrom, own: Birth) -> Birth:
    if source.state.facts.portable is None:
        from orchestrator.wiring.new_sessions import forked_birth

        return forked_birth(found.settings, source, own)
    from orchestrator.wiring.portable import forked_folder

    return await forked_folder(found.broker.commits, found.settings, source, own)


async def portable_session(
    found: Opened, client: Client, wish: WorkspaceSource, *, source: Source = "cli"
) -> SessionId:
    """A session with a portable folder; raises `NoWorkspace`, `ViewError`."""
    from orchestrator.wiring.portable import portable_birth

    birth = await portable_birth(found, wish, found.settings)
    return await client.create(replace(birth, history=await client.history()), source=source)


async def new_session(
    settings: Settings, client: Client, originator: str | None = None, *, source: Source = "cli"
) -> SessionId:
    """A session with these settings, in their working folder; `originator` is the program that wants it."""
    from orchestrator.gateways.folder_facts import look_at
    from orchestrator.sandbox.git import in_git_thread
    from orchestrator.wiring.new_sessions import guide, new_birth

    workspace = await in_git_thread(look_at, settings.session_defaults.cwd, guide(settings))
    birth = new_birth(settings, workspace, time.time_ns() // 1_000_000, os.urandom)
    birth = replace(birth, originator=originator or birth.originator)
    return await client.create(replace(birth, history=await client.history()), source=source)
