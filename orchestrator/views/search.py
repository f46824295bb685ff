"""Search in what a session's messages say, with an excerpt around each match."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import EVENT_MSG
from orchestrator.core.entries.stored import decode_entry
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.source import LogSource
from orchestrator.views.event_text import command_text
from orchestrator.views.questions import ASKED, subject_of

LINES = 3
"""Of one session."""
AROUND = 40
"""Characters shown before a match; behind it, twice as many."""


async def matches(found: LogSource, head: SessionHead, text: str) -> AsyncIterator[str]:
    """The first matches of a conversation, each with the text around it."""

    count, wanted = 0, re.compile(re.escape(text), re.IGNORECASE)
    try:
        async for stored in found.log(head.session, head.seq):
            if not any(kind in stored.payload for kind in _SAYING):
                continue
            entry = decode_entry(stored.payload)
            if entry.type != EVENT_MSG:
                continue
            message = dict(entry.payload)
            if digests := set(references(message)):
                message = resolve(message, (await found.large_texts(head.tree, digests)).get)
            said = _text_of(message)
            if match := wanted.search(said):
                yield excerpt(said, *match.span())
                count += 1
                if count == LINES:
                    return
    except (ArchiveUnavailable, BrokenArchive, BrokerError) as error:
        yield f"[not read to its end: {error}]"


_SAYING = (
    b'"user_message"',
    b'"agent_message"',
    b'"exec_command_begin"',
    *(f'"{kind}"'.encode() for kind in sorted(ASKED)),
)


def _text_of(message: Mapping[str, Any]) -> str:

    match message.get("type"):
        case "user_message" | "agent_message":
            return str(message.get("message", ""))
        case "exec_command_begin":
            return f"$ {command_text(list(message['command']))}"
        case kind if kind in ASKED:
            # An imported log may hold a request of any shape.
            with suppress(KeyError, TypeError):
                return subject_of(message)
    return ""


def excerpt(text: str, start: int, end: int) -> str:
    """A match with the text around it."""
    first, last = max(0, start - AROUND), end + 2 * AROUND
    return ("…" if first else "") + text[first:last].strip() + ("…" if last < len(text) else "")
