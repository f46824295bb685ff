"""Mail as a person reads it: the letters that an agent sent and got, told by its own log.

A letter is no event of the protocol: it travels from log to log, and only its inbox is told of. So
each becomes an event of this command line's own, `agent_mail`, where its entry stands. One line
of its text is shown; the whole is in the log of whoever got it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core.agent_views import SENT_CHARS, one_line
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import DENDRO, Json
from orchestrator.core.stored import decode_entry

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.cli.opening import Opened
    from orchestrator.gateways.client import Event

MAIL = "agent_mail"


async def letter_in(found: Opened, head: SessionHead, fact: Mapping[str, Any]) -> Json | None:
    """The letter that a fact of the session's log tells of; None if it tells of none."""
    match fact.get("kind"):
        case "mail":
            texts = await found.large_texts(head.tree, references(fact))
            return _got(resolve(fact["mail"], texts.get))
        case "call" | "watchdog" if "sent" in fact:
            by = {"watchdog": True} if fact["kind"] == "watchdog" else {}
            return _sent("message", {**fact["sent"], **by})
        case "agent" if "turns" in fact["changes"] and head.parent is not None:
            # With the number of a turn the agent's result went to its parent, in the same commit.
            parent = await found.broker.head(head.parent)
            above = 0 if parent is None else int(parent.agent_id)
            return _sent("completion", {"agent_id": above, "status": fact["changes"]["status"], "text": None})
        case _:
            return None


def _sent(kind: str, told: Mapping[str, Any]) -> Json:
    return {"type": MAIL, "direction": "sent", "kind": kind, **told}


def _got(mail: Mapping[str, Any]) -> Json:
    content, sender = mail["content"], mail["sender"]
    told: Json = {
        "type": MAIL,
        "direction": "received",
        "kind": mail["kind"],
        "agent_id": sender["agent_id"],
        "label": sender.get("label"),
        "interrupt": mail["interrupt"],
        "text": one_line(_text(content), SENT_CHARS),
    }
    return told | {name: content[name] for name in ("status", "person", "watchdog") if content.get(name)}


def _text(content: Mapping[str, Any]) -> str | None:
    """What was said: the message, or the one text of a completion."""
    if "completion" not in content:
        return content.get("prompt")
    texts = [text for end in (content["completion"] or {}).values() for text in end.values()]
    return next(iter(texts), None)


def letter_text(message: Mapping[str, Any]) -> str:
    """A letter in one line."""
    sent = message["direction"] == "sent"
    mark = "⚡" if message.get("interrupt") else "✉"
    words = [f"{mark} {'to' if sent else 'from'} {_other(message)}"]
    if message["kind"] == "completion":
        words.append(message["status"])
    if message["text"]:
        words.append(message["text"])
    return ": ".join(words)


def _other(message: Mapping[str, Any]) -> str:
    """Whom it came from, or went to."""
    if message.get("person"):
        return str(message["person"])
    label = f" ({message['label']})" if message.get("label") else ""
    by = "a watchdog of " if message.get("watchdog") and message["direction"] == "received" else ""
    because = ", by a watchdog" if message.get("watchdog") and message["direction"] == "sent" else ""
    return f"{by}agent {message['agent_id']}{label}{because}"


async def with_letters(
    found: Opened, head: SessionHead, events: AsyncIterator[Event]
) -> AsyncIterator[Event]:
    """The events of a session, each after the letters that its log has had until then.

    `head` is where they begin. An event names its place in the log: nothing has to be looked for by itself.
    """
    from orchestrator.gateways.client import Event

    at = head.seq
    async for event in events:
        reached = at if event.cursor is None else event.cursor.seq
        if reached > at:
            for stored in await found.broker.read_rollout(head.session, at, reached - at):
                entry = decode_entry(stored.payload)
                told = await letter_in(found, head, entry.payload) if entry.type == DENDRO else None
                if told is not None:
                    yield Event(event.id, told)
            at = reached
        yield event
