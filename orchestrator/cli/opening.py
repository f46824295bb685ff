"""Opening the deployment for the length of one command, and finding sessions in it."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import SessionArchived
from orchestrator.broker.outage import Outage
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.broker.texts import Texts
from orchestrator.cli.faults import Fault
from orchestrator.cli.short_ids import LEAST, Abbreviation
from orchestrator.cli.text import plain
from orchestrator.core.counts import counted
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

MOST_MEANT = 1_000
"""Sessions that one abbreviation is compared for: of a tree with more, any of them leads to it."""
CANDIDATES_SHOWN = 5
PATIENCE_S = 10.0
"""How long a command waits for a Redis that does not answer: a server loads, or fails over, in seconds."""


def say_on_stderr(text: str) -> None:
    """A line of a command's own, beside what it prints."""
    print(f"dendro: {plain(text)}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Opened:
    """The deployment as one command sees it."""

    settings: Settings
    deployment: Deployment
    insists: bool = False
    """Whether submissions are sent again until Redis answers, however long that takes."""

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

    def storage(self) -> Storage:
        """Redis and the archive, for those who walk whole logs."""
        return Storage(self.broker, self.deployment.blobs, self.archive(), self.secret)

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
            self.broker,
            self.texts,
            os.urandom,
            chain_key=chain_key(self.settings),
            restore=self.restore,
            insists=self.insists,
        )
        return Client(ports, str(uuid.uuid4()), _who())

    async def restore(self, session: SessionId) -> bool:
        """Brings an archived session back; False if it was not archived. Raises `SessionArchived`."""
        try:
            return await restore_session(self.storage(), session)
        except (ArchiveUnavailable, BrokenArchive, BrokenLog) as error:
            raise SessionArchived(session, str(error)) from error

    async def find(self, text: str) -> SessionHead:
        """The session that an id, or a part of one, names; raises `Fault`.

        A part that fits a tree's root and agents of it means the root: ids of one minute begin alike.
        """
        found = await self._found(text)
        root = next((head for head in found if str(head.session) == str(head.tree)), None)
        if root is not None and all(head.tree == root.tree for head in found):
            return root
        return chosen(text, found)

    async def find_tree(self, text: str) -> TreeId:
        """The tree of the sessions that an id, or a part of one, names; raises `Fault`."""
        found = await self._found(text)
        trees = {head.tree for head in found}
        return trees.pop() if len(trees) == 1 else chosen(text, found).tree

    async def find_one(self, text: str) -> SessionHead:
        """The only session that an id, or a part of one, names, for what cannot be undone; raises `Fault`."""
        return chosen(text, await self._found(text))

    async def _found(self, text: str) -> tuple[SessionHead, ...]:
        """The sessions that `text` may mean, of very many only some."""
        with suppress(InvalidSessionId):
            return await self.broker.heads([parse_session_id(text)])
        part = Abbreviation.of(text)
        found: list[SessionId] = []
        if part is not None:
            async for sessions in self.broker.session_ids():
                found += filter(part.means, sessions)
        # A root is older than its agents, and so are its digits lower.
        return await self.broker.heads(sorted(found)[:MOST_MEANT])


def chosen(text: str, found: Sequence[SessionHead]) -> SessionHead:
    """The one that `text` means; raises `Fault`, which names the candidates."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise Fault(f"no session {text!r}; {_what_names_one(text)}")
    named = ", ".join(head.session for head in found[:CANDIDATES_SHOWN])
    more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
    raise Fault(
        f"{text!r} is part of the ids of {counted(len(found), 'session')}: {named}{more}; give more of the id"
    )


def _what_names_one(text: str) -> str:
    if len(text.strip()) < LEAST:
        return f"give at least {LEAST} digits of its id, from the beginning or the end"
    return "`dendro sessions` lists those that there are"


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        # A container's user may have no name.
        return f"uid {os.getuid()}@{socket.gethostname()}"


@asynccontextmanager
async def opened(
    settings: Settings, say: Callable[[str], None] = say_on_stderr, *, insists: bool = False
) -> AsyncIterator[Opened]:
    """Starts or joins the user's private Redis if no other is configured; leaves it at the end.

    A Redis that does not answer is asked again for `PATIENCE_S`, and for ever by the clients of a command
    that `insists`; `say` is told that it is away, and that it is back.
    """
    until = "until it answers" if insists else f"for {PATIENCE_S:.0f} s"
    outage = Outage(say, time.monotonic, until)
    with redis_url(settings, say) as url:
        async with deployment(settings, url, outage, PATIENCE_S) as found:
            yield Opened(settings, found, insists)
