"""Facts about a session's place in its tree: its own status, its children, its inbox, its watchdogs."""

from __future__ import annotations

from dataclasses import field, fields
from typing import ClassVar, Literal, TypeAlias, TypedDict

from orchestrator.core.forms import EMPTY, LIST, form
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.core.tree import Child, ChildChanges, Mail, TreeChanges, Watchdog
from orchestrator.protocol.wire import JsonMapping, JsonObject


class SentMessage(TypedDict):
    """A message as its sender's log records it, beside its cause; the recipient's log has all of it."""

    agent_id: AgentId
    text: str | None
    interrupt: bool


def _child(wire: JsonMapping) -> Child:
    return Child(**wire)


def _mail(wire: JsonMapping) -> Mail:
    return Mail(**wire)


def _watchdog(wire: JsonMapping) -> Watchdog:
    return Watchdog(**wire)


def _tree_changes(wire: TreeChanges) -> TreeChanges:
    return {**wire, "paused": wire["paused"] or None} if "paused" in wire else wire


def _tree_changes_wire(changes: TreeChanges) -> TreeChanges:
    return {**changes, "paused": changes["paused"] or ""} if "paused" in changes else changes


def _wire(made: Child | Mail | Watchdog) -> JsonObject:
    return {spec.name: getattr(made, spec.name) for spec in fields(made)}


@record
class AgentChanged:
    """The session's own place in its tree: `status`, `slot`, `turns`, `label` and the like."""

    kind: ClassVar[str] = "agent"
    of: ClassVar[Literal["agent"]] = "agent"
    changes: TreeChanges = field(metadata=form(read=_tree_changes, write=_tree_changes_wire))


@record
class ChildMade:
    """This session made an agent; `child` is what this session knows of the agent."""

    kind: ClassVar[str] = "child"
    of: ClassVar[Literal["agent"]] = "agent"
    child: Child = field(metadata=form(read=_child, write=_wire))


@record
class ChildChanged:
    """A child has changed, as its message says or by an act of this session."""

    kind: ClassVar[str] = "child_changed"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_id: AgentId
    changes: ChildChanges


@record
class ChildrenChanged:
    """Several children have changed alike, in one entry: a commit carries only so many."""

    kind: ClassVar[str] = "children_changed"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    changes: ChildChanges


@record
class ToEnd:
    """Children are to be told to end, in this order, in as many commits as it takes."""

    kind: ClassVar[str] = "to_end"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    reason: str | None = field(metadata=EMPTY)


@record
class ToldToEnd:
    """The first `count` of the children that are to end have been told."""

    kind: ClassVar[str] = "told_to_end"
    of: ClassVar[Literal["agent"]] = "agent"
    count: int


@record
class MailReceived:
    """A message that waits until the model can be given it."""

    kind: ClassVar[str] = "mail"
    of: ClassVar[Literal["agent"]] = "agent"
    mail: Mail = field(metadata=form(read=_mail, write=_wire))


@record
class MailTaken:
    """Messages are in the conversation now, or will never be."""

    kind: ClassVar[str] = "mail_taken"
    of: ClassVar[Literal["agent"]] = "agent"
    keys: tuple[str, ...] = field(metadata=LIST)


@record
class WatchdogSet:
    """A watchdog is armed; `sent` is the message that it has just written."""

    kind: ClassVar[str] = "watchdog"
    of: ClassVar[Literal["agent"]] = "agent"
    watchdog: Watchdog = field(metadata=form(read=_watchdog, write=_wire))
    sent: SentMessage | None = None


@record
class WatchdogEnded:
    """The regular message to `agent_id` is not sent any more."""

    kind: ClassVar[str] = "watchdog_ended"
    of: ClassVar[Literal["agent"]] = "agent"
    agent_id: AgentId


AgentFact: TypeAlias = (
    AgentChanged
    | ChildMade
    | ChildChanged
    | ChildrenChanged
    | ToEnd
    | ToldToEnd
    | MailReceived
    | MailTaken
    | WatchdogSet
    | WatchdogEnded
)
