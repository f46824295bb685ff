"""Opening the deployment for the length of one command, and finding sessions in it."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import SessionArchived
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.broker.texts import Texts
from orchestrator.cli.faults import Fault
from orchestrator.core.ids import InvalidSessionId, SessionId, TreeId, parse_session_id
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.runtime.archive import Archive
from orchestrator.runtime.full_log import full_log
from orchestrator.runtime.loading import BrokenLog
from orchestrator.runtime.objects import ArchiveUnavailable
from orchestrator.runtime.restore import Storage, restore_session
from orchestrator.runtime.segments import BrokenArchive
from orchestrator.settings import Settings
from orchestrator.wiring import Deployment, chain_key, deployment, redis_url

MANY = 100_000
CANDIDATES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Opened:
    """The deployment as one command sees it."""

    settings: Settings
    deployment: Deployment

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

    def archive(self) -> Archive:
        """Where sealed stretches of logs are."""
        return Archive.at(self.settings.upkeep.archive_url, self.secret)

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        """The session's entries after `after` up to `through`, wherever they are kept."""
        return full_log(self.broker, self.archive(), session, after, through)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        """The texts that entries refer to, from Redis or the archive; one that is nowhere is left out."""
        wanted = list(digests)
        await self.texts.fetch(tree, wanted)
        found = {digest: self.texts.get(digest) for digest in wanted}
        for digest in [digest for digest, text in found.items() if text is None]:
            content = await self.archive().read_blob(tree, digest)
            found[digest] = None if content is None else content.decode("utf-8", "surrogatepass")
        return {digest: text for digest, text in found.items() if text is not None}

    def client(self) -> Client:
        """A client of its own, in the name of whoever runs this process."""
        ports = ClientPorts(
            self.broker, self.texts, os.urandom, chain_key=chain_key(self.settings), restore=self.restore
        )
        return Client(ports, str(uuid.uuid4()), _who())

    async def restore(self, session: SessionId) -> bool:
        """Brings an archived session back; False if it was not archived. Raises `SessionArchived`."""
        storage = Storage(self.broker, self.deployment.blobs, self.archive(), self.secret)
        try:
            return await restore_session(storage, session)
        except (ArchiveUnavailable, BrokenArchive, BrokenLog) as error:
            raise SessionArchived(session, str(error)) from error

    async def find(self, text: str) -> SessionHead:
        """The session that an id, or the beginning of exactly one id, names; raises `Fault`."""
        try:
            head = await self.broker.head(parse_session_id(text))
            if head is not None:
                return head
        except InvalidSessionId:
            pass
        return chosen(text, await self.broker.sessions(MANY))


def chosen(text: str, heads: Sequence[SessionHead]) -> SessionHead:
    """The one whose id begins with `text`; raises `Fault`, which names the candidates."""
    found = [head for head in heads if text and head.session.startswith(text.strip().lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Fault(f"no session {text!r}; `dendro sessions` lists those that there are")
    named = ", ".join(head.session for head in found[:CANDIDATES_SHOWN])
    more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
    raise Fault(f"{text!r} is the beginning of {len(found)} sessions: {named}{more}; give more of the id")


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        # A container's user may have no name.
        return f"uid {os.getuid()}@{socket.gethostname()}"


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Opened]:
    """Starts or joins the user's private Redis if no other is configured; leaves it at the end."""
    with redis_url(settings) as url:
        async with deployment(settings, url) as found:
            yield Opened(settings, found)
