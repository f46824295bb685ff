"""Messages between agents as a person reads them: those that an agent sent and got, by its own log.

A message between agents is no event of the protocol: it goes from log to log, and events say only how
many wait. So each becomes an event of the views' own, `agent_mail`, at its entry's place. One line of its
text is shown; the whole is in the log of the agent that got it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core import facts as f
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries.stored import decode_entry, stored_kind

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.entries import Json
    from orchestrator.core.tree import Mail
    from orchestrator.rollouts.source import LogSource
    from orchestrator.views.event import Event

MAIL = "agent_mail"


HOLD_MESSAGES = frozenset({f.MailReceived, f.CallMoved, f.WatchdogSet, f.AgentChanged})
"""Facts that may hold a message."""


async def message_in(found: LogSource, head: SessionHead, fact: f.Fact | f.UnknownFact) -> Json | None:
    """The message that a fact of the session's log holds; None if the fact holds none."""
    match fact:
        case f.MailReceived(mail):
            texts = await found.large_texts(head.tree, references((mail.sender, mail.content)))
            return _got(mail, texts.get)
        case f.CallMoved(sent=sent) if sent is not None:
            return _sent("message", sent)
        case f.WatchdogSet(sent=sent) if sent is not None:
            return _sent("message", {**sent, "watchdog": True})
        case f.AgentChanged({"turns": _, "status": status}) if head.parent is not None:
            # With the number of a turn the agent's result went to its parent, in the same commit.
            parent = await found.broker.logs.head(head.parent)
            above = 0 if parent is None else int(parent.agent_id)
            return _sent("completion", {"agent_id": above, "status": status, "text": None})
        case _:
            return None


def _sent(kind: str, told: Mapping[str, Any]) -> Json:
    return {"type": MAIL, "direction": "sent", "kind": kind, **told}


def _got(mail: Mail, text_of: Callable[[str], str | None]) -> Json:
    from orchestrator.core.agent_views import SENT_CHARS, one_line

    content, sender = resolve(mail.content, text_of), resolve(mail.sender, text_of)
    told: Json = {
        "type": MAIL,
        "direction": "received",
        "kind": mail.kind,
        "agent_id": sender["agent_id"],
        "label": sender.get("label"),
        "interrupt": mail.interrupt,
        "text": one_line(_text(content), SENT_CHARS),
    }
    return told | {name: content[name] for name in ("status", "person", "watchdog") if content.get(name)}


def _text(content: Mapping[str, Any]) -> str | None:
    """The text of a message: its prompt, or the one text of a completion."""
    if "completion" not in content:
        return content.get("prompt")
    texts = [text for end in (content["completion"] or {}).values() for text in end.values()]
    return next(iter(texts), None)


def message_line(message: Mapping[str, Any]) -> str:
    """A message in one line."""
    sent = message["direction"] == "sent"
    mark = "⚡" if message.get("interrupt") else "✉"
    words = [f"{mark} {'to' if sent else 'from'} {_other(message)}"]
    if message["kind"] == "completion":
        words.append(message["status"])
    if message["text"]:
        words.append(message["text"])
    return ": ".join(words)


def _other(message: Mapping[str, Any]) -> str:
    """The agent or person that it came from, or went to."""
    if message.get("person"):
        return str(message["person"])
    label = f" ({message['label']})" if message.get("label") else ""
    by = "a watchdog of " if message.get("watchdog") and message["direction"] == "received" else ""
    because = ", by a watchdog" if message.get("watchdog") and message["direction"] == "sent" else ""
    return f"{by}agent {message['agent_id']}{label}{because}"


async def with_messages(
    found: LogSource, head: SessionHead, events: AsyncIterator[Event]
) -> AsyncIterator[Event]:
    """The events of a session, each after the messages that its log has had until then.

    `head` is the place before the first event. An event names its place in the log: no search is needed.
    """
    from orchestrator.views.event import Event

    at = head.seq
    async for event in events:
        reached = at if event.cursor is None else event.cursor.seq
        if reached > at:
            for stored in await found.broker.logs.read_rollout(head.session, at, reached - at):
                if stored_kind(stored.payload) not in HOLD_MESSAGES:
                    continue
                told = await message_in(found, head, f.decode(decode_entry(stored.payload).payload))
                if told is not None:
                    yield Event(event.id, told)
            at = reached
        yield event
