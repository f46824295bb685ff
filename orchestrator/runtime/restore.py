"""Bringing an archived session back, when somebody submits to it or wants to read its state.

Redis has only the session's hash; the archive has the log and the large texts. The log is
folded again, so what comes back was proved by the chain, entry by entry.
"""

from __future__ import annotations

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import Refused, StoredEntry, Unstored
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.rollouts.full_log import full_log, head_of
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import blob_hashes
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.storage import Storage
from orchestrator.runtime.loader import BrokenLog, end_of, folded

_PAGE = 500


async def restore_session(storage: Storage, session: SessionId) -> bool:
    """Makes an archived session claimable again; False if it was not archived.

    Call it when a submission is answered by `SessionArchived`, then submit again. Any number of
    callers may do so at once. Raises `UnknownSession`, `BrokenLog` if the archive cannot be trusted,
    `ArchiveUnavailable`, or `Unavailable` if Redis lost the large texts that were put back.
    """
    head = await head_of(storage.broker.logs, session)
    if not head.archived:
        return False
    try:
        position = await folded(storage, end_of(head), storage.secret)
        texts = await _restored_blobs(storage, head.tree, session)
    except (BrokenLog, BrokenArchive, ArchiveUnavailable):
        # What retention deletes meanwhile is not damaged, it is gone.
        await head_of(storage.broker.logs, session)
        raise
    snapshot = encode_snapshot(position.state, position.seq, position.head, storage.secret)
    answer = await storage.broker.commits.restore(session, position.seq, snapshot, texts)
    if isinstance(answer, Unstored):
        raise Unavailable(f"Redis lost {len(answer.digests)} large texts of session {session}")
    if isinstance(answer, Refused):
        raise BrokenLog(f"session {session} was not restored: {answer.reason}")
    return True


async def _restored_blobs(storage: Storage, tree: TreeId, session: SessionId) -> list[str]:
    """The hashes of the session's large texts, all of them in Redis again but those that nobody has."""
    found = []
    for digest in sorted(await referenced_blobs(storage, session)):
        if await storage.blobs.get(tree, digest) is None:
            content = await storage.archive.read_blob(tree, digest)
            if content is None:
                continue
            await storage.blobs.put(tree, content)
        found.append(digest)
    return found


async def referenced_blobs(storage: Storage, session: SessionId) -> set[str]:
    """The hashes of all large texts that the session's log mentions."""
    found: set[str] = set()
    page: list[StoredEntry] = []
    async for entry in full_log(storage.broker.logs, storage.archive, session):
        page.append(entry)
        if len(page) == _PAGE:
            found |= blob_hashes(page)
            page = []
            await storage.sleep(0)
    return found | blob_hashes(page)
