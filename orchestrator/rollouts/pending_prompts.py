"""Prompts on their way into a history: they wait in a session's queue, or a worker is about to add them.

No history has them yet, and the session may be of any tree: a person's sessions share one history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress

from orchestrator.broker.errors import Corrupt
from orchestrator.broker.open_requests import person_of
from orchestrator.broker.records import SessionHead, SqEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.state import lookup_key
from orchestrator.protocol.codec import parse_submission
from orchestrator.protocol.ops import AddToHistory
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.protocol.wire import tag_of
from orchestrator.rollouts.log_source import LogSource

NEWEST_ENTRIES = 1_000
"""Entries of a session at work in which a prompt is looked for: a worker adds what it has read at once."""
_OP = tag_of(AddToHistory)


@record
class PendingPrompt:
    """A prompt that no history has yet."""

    who: str
    key: str
    """The key under which its worker is going to add it."""
    text: str


async def pending_prompts(
    found: LogSource, people: Collection[str], is_meant: Callable[[str], bool]
) -> list[PendingPrompt]:
    """Those of some people that are meant, of all sessions."""
    names, pending = {person_of(who) for who in people}, list[PendingPrompt]()
    async for session in _at_work(found):
        # A worker cannot read either what cannot be read here.
        with suppress(Corrupt):
            # The queue first: what is read of it meanwhile stands in the log by then.
            pending += [one async for one in _queued(found, session)]
            pending += await _accepted(found, session)
    return [one for one in pending if person_of(one.who) in names and is_meant(one.text)]


async def _at_work(found: LogSource) -> AsyncIterator[SessionHead]:
    """The sessions that have something to read, or that somebody holds or is to take.

    A quarantined one goes on with what it has read when a person readmits it.
    """
    logs = found.broker.logs
    async for page in logs.session_ids():
        heads = await logs.heads(page, {})
        served = await logs.serving(heads)
        for head in heads:
            serving = served[head.session]
            is_served = serving.due or serving.lease_ms is not None
            if is_served or head.has_unread or head.quarantined:
                yield head


async def unread(found: LogSource, head: SessionHead) -> AsyncIterator[SqEntry]:
    """The entries of a session's queue that no worker has read yet."""
    after = head.cursor
    while page := await found.broker.logs.read_sq(head.session, after):
        for entry in page:
            yield entry
        after = page[-1].id


async def _queued(found: LogSource, head: SessionHead) -> AsyncIterator[PendingPrompt]:
    async for entry in unread(found, head):
        if (text := _prompt_of(entry)) is not None:
            yield PendingPrompt(entry.sender, _key(head.session, entry.client, entry.submission), text)


def _prompt_of(entry: SqEntry) -> str | None:
    if _OP.encode() not in entry.payload:
        return None
    try:
        op = parse_submission(entry.payload).op
    except MalformedSubmission:
        return None
    return op.text if isinstance(op, AddToHistory) else None


async def _accepted(found: LogSource, head: SessionHead) -> list[PendingPrompt]:
    """Prompts that the newest entries of a log owe to a history."""
    now = await found.broker.logs.head(head.session)
    after = max(now.seq - NEWEST_ENTRIES, 0) if now is not None else 0
    owed: dict[str, PendingPrompt] = {}
    for entry in await found.broker.logs.read_rollout(head.session, after, NEWEST_ENTRIES):
        if stored_kind(entry.payload) not in (f.LookUpAsked, f.LookUpEnded):
            continue
        match f.decode(decode_entry(entry.payload).payload):
            case f.LookUpAsked(id, op, client, who) if op["type"] == _OP:
                texts = await found.large_texts(head.tree, references(op))
                key = _key(head.session, client, id)
                owed[key] = PendingPrompt(who, key, str(resolve(op["text"], texts.get)))
            case f.LookUpEnded(id, client):
                owed.pop(_key(head.session, client, id), None)
    return [*owed.values()]


def _key(session: SessionId, client: str | None, id: str) -> str:
    return f"{session}|{lookup_key(client, id)}"
