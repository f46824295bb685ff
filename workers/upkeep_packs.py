"""Packs that no entry names: left in the store by a worker that died, or was too slow, before its commit.

A pack is named by the commit that follows it, under the claim in its name. So one of an earlier claim that
no entry names by now will never be named. What is young stays all the same: clocks of stores differ, and a
person may be looking for it.

Packs of a session that was announced and never created have no log at all: they go after a day, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orchestrator.broker.commits import Commits
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log, head_of
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.workspaces.stored_packs import PackName, Packs, named_in

log = logging.getLogger("dendro.upkeep")
YOUNG_S = 86_400.0
SETTLED_S = 300.0
"""For so long a server that fails over may lose what it was told: longer than any replica lags."""


async def collect_packs(storage: Storage, packs: Packs, sessions: Sequence[SessionId], now_s: float) -> int:
    """Removes packs of these sessions that no entry will ever name; answers how many."""
    removed = 0
    for session in sessions:
        try:
            head = await head_of(storage.broker.logs, session)
            for name in await _orphans(storage, packs, head, now_s):
                log.info("removed %s: no entry of its session names it", name)
                await packs.remove(name)
                removed += 1
        except UnknownSession:
            continue
        except (ArchiveUnavailable, BrokenArchive, Corrupt) as error:
            log.warning("session %s: its packs were not looked at: %s", session, error)
    return removed


async def collect_unborn(commits: Commits, packs: Packs, now_ms: int) -> int:
    """Removes packs stored for sessions that nobody created within a day; answers how many sessions.

    Only what was announced here is looked at: the store may be another deployment's as well. A round gives a
    session up, so that no entry will name its packs; a later one finds that still so, and removes them.
    """
    removed = 0
    for session in await commits.unborn(now_ms - int(YOUNG_S * 1000)):
        try:
            since_ms = await commits.give_up(session)
            if since_ms is None or now_ms - since_ms < SETTLED_S * 1000:
                continue
            for name in await packs.names(TreeId(session), session):
                await packs.remove(name)
        except (ArchiveUnavailable, Corrupt) as error:
            log.warning("session %s was never made, and its packs are not removed: %s", session, error)
            continue
        await commits.forget_unborn(session)
        log.info("removed the packs of session %s, which was never made", session)
        removed += 1
    return removed


async def _orphans(storage: Storage, packs: Packs, head: SessionHead, now_s: float) -> list[PackName]:
    """The packs that earlier claims have left; nothing where the log cannot be read whole."""
    old = [name for name in await packs.names(head.tree, head.session) if name.epoch < head.epoch]
    found = []
    for name in old:
        written = await packs.written_s(name)
        if written is not None and now_s - written > YOUNG_S:
            found.append(name)
    if not found:
        return []
    named, read = set[str](), 0
    async for entry in full_log(storage.broker.logs, storage.archive, head.session, 0, head.seq):
        named |= named_in(entry.payload)
        read += 1
    return [name for name in found if str(name) not in named] if read == head.seq else []
