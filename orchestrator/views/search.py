"""Search in what a session's messages say, with an excerpt around each match."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import Kind, decode_entry, stored_kind
from orchestrator.protocol.events import EVENTS, AgentMessage, ExecCommandBegin, UserMessage
from orchestrator.requests import TO_PEOPLE, CommandRequest, PatchRequest, request_of
from orchestrator.requests.approvals import command_text
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.views.readable import UNREADABLE

LINES = 3
"""Of one session."""
AROUND = 40
"""Characters shown before a match; behind it, twice as many."""


async def matches(found: LogSource, head: SessionHead, text: str) -> AsyncIterator[str]:
    """The first matches of a conversation, each with the text around it."""

    count, wanted = 0, re.compile(re.escape(text), re.IGNORECASE)
    try:
        async for stored in found.log(head.session, head.seq):
            kind = stored_kind(stored.payload)
            if kind not in _SAYING:
                continue
            message = dict(decode_entry(stored.payload).payload)
            if digests := set(references(message)):
                message = resolve(message, (await found.large_texts(head.tree, digests)).get)
            said = _text_of(kind, message)
            if match := wanted.search(said):
                yield excerpt(said, *match.span())
                count += 1
                if count == LINES:
                    return
    except (ArchiveUnavailable, BrokenArchive, BrokerError) as error:
        yield f"[not read to its end: {error}]"


_IN_WORDS = TO_PEOPLE - {CommandRequest.tag, PatchRequest.tag}
_SAYING = frozenset({UserMessage, AgentMessage, ExecCommandBegin, *(EVENTS[tag] for tag in _IN_WORDS)})


def _text_of(kind: Kind, message: Mapping[str, Any]) -> str:
    if kind in (UserMessage, AgentMessage):
        return str(message.get("message", ""))
    # An imported log may hold a command or a request of any shape.
    with suppress(*UNREADABLE):
        if kind is ExecCommandBegin:
            return f"$ {command_text(list(message['command']))}"
        return request_of(message).subject
    return ""


def excerpt(text: str, start: int, end: int) -> str:
    """A match with the text around it."""
    first, last = max(0, start - AROUND), end + 2 * AROUND
    return ("…" if first else "") + text[first:last].strip() + ("…" if last < len(text) else "")
