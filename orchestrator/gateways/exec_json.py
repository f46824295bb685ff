"""Turns for programs that start a process for each: `dendro exec`, from its submission to its end.

What is written belongs to one turn alone: the one that the submission begins, or that it joins.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

import orjson

from orchestrator import requests
from orchestrator.broker.errors import OutOfMemory, QueueFull, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.record_json import whole
from orchestrator.gateways.client import PAUSED, QUARANTINED, RETRY_MAX_S, Client, standing
from orchestrator.gateways.submit import POLL_S, new_submission_id
from orchestrator.gateways.turn_follower import Quarantined, Refused, TurnFollower
from orchestrator.protocol import ops
from orchestrator.protocol.events import Error, TokenUsage
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonMapping
from orchestrator.views import SetAside
from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.projector import Projector

# ── writer ────────────────────────────────────────────────────────────────────────────────────────
# The lines of exec-json: what happens in one turn, in the words that Codex's TypeScript SDK reads.
#
# Nothing is made of events here: the projector has done so, for this door as for all others.


Line: TypeAlias = dict[str, Any]
STATUSES: Mapping[r.ItemStatus, str] = {
    r.ItemStatus.IN_PROGRESS: "in_progress",
    r.ItemStatus.COMPLETED: "completed",
    r.ItemStatus.FAILED: "failed",
    r.ItemStatus.DECLINED: "declined",
    r.ItemStatus.INTERRUPTED: "failed",
}
TOOLS: Mapping[r.CollabTool, str] = {
    r.CollabTool.SPAWN: "spawn_agent",
    r.CollabTool.SEND_INPUT: "send_input",
    r.CollabTool.INTERRUPT: "interrupt_agent",
    r.CollabTool.WAIT: "wait",
    r.CollabTool.CLOSE: "close_agent",
    r.CollabTool.LIST: "list_agents",
}
DENDRO = "dendro"
"""The server as which calls of Dendro's own tools are shown."""
INTERRUPTED = "the turn was interrupted"


class ExecWriter:
    """The lines of one run. Items are numbered in the order in which they appear."""

    def __init__(self, used: TokenUsage | None = None) -> None:
        self._numbers: dict[str, str] = {}
        self._used = used or TokenUsage()
        """The tokens of the whole thread: a run that goes on with one begins with what it has used."""
        self._begun = False
        self._todo: Line | None = None

    def opened(self, thread: SessionId, warnings: tuple[str, ...]) -> Iterator[Line]:
        """The first lines: which thread it is, and what of the command line has no effect."""
        yield {"type": "thread.started", "thread_id": thread}
        for number, warning in enumerate(warnings):
            yield self._warning(f"-c {number}", warning)

    def joined(self) -> Iterator[Line]:
        """The begin of a turn that ran before this process came."""
        yield from self._begin()

    def refused(self, message: str) -> Iterator[Line]:
        """The end of a turn that never began."""
        yield from self._begin()
        yield {"type": "error", "message": message}
        yield {"type": "turn.failed", "error": {"message": message}}

    def receive(self, change: r.Change) -> Iterator[Line]:
        """The lines that follow from a change of the turn."""
        match change:
            case r.TurnStarted():
                yield from self._begin()
            case r.ItemStarted(_, item):
                if (body := _shown(item)) is not None and not isinstance(item, WHOLE_ONLY):
                    yield self._item("item.started", item.id, body)
            case r.ItemCompleted(_, item):
                if (body := _shown(item)) is not None and not _is_empty(item):
                    yield self._item("item.completed", item.id, body)
            case r.PlanUpdated():
                yield self._planned(change)
            case r.TokenUsageUpdated(_, total):
                self._used = total
            case r.TurnError(_, fault):
                yield {"type": "error", "message": fault.message}
            case r.Warned(message):
                yield self._warning(f"warning {len(self._numbers)}", message)
            case r.TurnCompleted(turn):
                yield from self._end(turn)
            case (
                r.ItemDelta()
                | r.DiffUpdated()
                | r.RequestOpened()
                | r.RequestResolved()
                | r.StatusChanged()
                | r.NameChanged()
                | r.TurnsDropped()
                | r.QueueChanged()
            ):
                pass
            case _:
                assert_never(change)

    def _begin(self) -> Iterator[Line]:
        if not self._begun:
            self._begun = True
            yield {"type": "turn.started"}

    def _item(self, kind: str, id: str, body: Line) -> Line:
        """The line of an item; a search has the id of its call, and takes a number all the same."""
        return {"type": kind, "item": {"id": self._number(id), **body}}

    def _number(self, id: str) -> str:
        return self._numbers.setdefault(id, f"item_{len(self._numbers)}")

    def _warning(self, id: str, message: str) -> Line:
        return self._item("item.completed", id, {"type": "error", "message": message})

    def _planned(self, plan: r.PlanUpdated) -> Line:
        first = self._todo is None
        steps = [{"text": step, "completed": status == "completed"} for step, status in plan.steps]
        self._todo = {"type": "todo_list", "items": steps}
        return self._item("item.started" if first else "item.updated", TODO, self._todo)

    def _end(self, turn: r.Turn) -> Iterator[Line]:
        if self._todo is not None:
            yield self._item("item.completed", TODO, self._todo)
        if turn.status is r.TurnStatus.COMPLETED:
            yield {"type": "turn.completed", "usage": self._usage()}
            return
        message = turn.fault.message if turn.fault is not None else INTERRUPTED
        yield {"type": "turn.failed", "error": {"message": message}}

    def _usage(self) -> Line:
        used = self._used
        return {
            "input_tokens": used.input_tokens,
            "cached_input_tokens": used.cached_input_tokens,
            # No provider's figures that are kept tell of tokens that were written to a cache.
            "cache_write_input_tokens": 0,
            "output_tokens": used.output_tokens,
            "reasoning_output_tokens": used.reasoning_output_tokens,
        }


TODO = "todo_list"
WHOLE_ONLY = (r.AgentMessage, r.Reasoning)
"""Items that are told when they are complete: their text streams, and these lines have no deltas."""


def _is_empty(item: r.ThreadItem) -> bool:
    """Whether the reasoning of an item is not shown, and so nothing is left to tell."""
    return isinstance(item, r.Reasoning) and not _thought(item)


def _thought(item: r.Reasoning) -> str:
    return "\n".join(item.summary or item.content)


def _shown(item: r.ThreadItem) -> Line | None:
    """An item's fields but its id; None for a kind that these lines do not have."""
    match item:
        case r.AgentMessage():
            return {"type": "agent_message", "text": item.text}
        case r.Reasoning():
            return {"type": "reasoning", "text": _thought(item)}
        case r.CommandExecution():
            return _command(item)
        case r.FileChange():
            changes = [{"path": one.path, "kind": str(one.kind)} for one in item.changes]
            return {"type": "file_change", "changes": changes, "status": STATUSES[item.status]}
        case r.McpToolCall():
            return _tool(item.server, item.tool, item.arguments, item.status, item.result, item.error)
        case r.DynamicToolCall():
            return _dynamic(item)
        case r.CollabToolCall():
            return _collab(item)
        case r.WebSearch():
            action = dict(item.action or {})
            return {"id": item.id, "type": "web_search", "query": item.query, "action": action}
        case (
            r.UserMessage()
            | r.Plan()
            | r.ImageView()
            | r.EnteredReview()
            | r.ExitedReview()
            | r.ContextCompaction()
        ):
            return None
        case _:
            assert_never(item)


def _command(item: r.CommandExecution) -> Line:
    return {
        "type": "command_execution",
        "command": shlex.join(item.command),
        "aggregated_output": item.output or "",
        "exit_code": item.exit_code,
        "status": STATUSES[item.status],
    }


def _tool(
    server: str, tool: str, arguments: Any, status: r.ItemStatus, result: Any, error: str | None
) -> Line:
    return {
        "type": "mcp_tool_call",
        "server": server,
        "tool": tool,
        "arguments": arguments,
        "result": result,
        "error": None if error is None else {"message": error},
        "status": STATUSES[status],
    }


def _dynamic(item: r.DynamicToolCall) -> Line:
    """A call of one of our own tools, in the words for calls of others' tools."""
    server, text = item.namespace or DENDRO, item.output
    if item.success is False:
        return _tool(server, item.tool, item.arguments, item.status, None, text or "")
    parts = item.parts or ({"type": "input_text", "text": text},)
    content = {"content": [_block(part) for part in parts], "structured_content": None}
    return _tool(server, item.tool, item.arguments, item.status, None if text is None else content, None)


def _block(part: JsonMapping) -> Line:
    """A part of an output as a content block of MCP: an image of data as one, any other by its address."""
    if part.get("type") != "input_image":
        return {"type": "text", "text": part.get("text")}
    url = str(part.get("image_url"))
    kind, encoded, data = url.removeprefix("data:").partition(";base64,")
    if encoded and url.startswith("data:"):
        return {"type": "image", "data": data, "mimeType": kind}
    return {"type": "resource_link", "uri": url, "name": "image"}


def _collab(item: r.CollabToolCall) -> Line:
    states = {
        session: {"status": str(state.status), "message": state.message}
        for session, state in item.states.items()
    }
    return {
        "type": "collab_tool_call",
        "tool": TOOLS[item.tool],
        "sender_thread_id": item.sender,
        "receiver_thread_ids": list(item.receivers),
        "prompt": item.prompt,
        "agents_states": states,
        "status": STATUSES[item.status],
    }


# ── one turn ──────────────────────────────────────────────────────────────────────────────────────


BEHIND_S = 1.0
"""For the events before a pause."""
STUCK: Mapping[str, str] = {
    PAUSED: "the tree's budget is spent, and its turn waits until a person adds some: dendro budget {}",
    QUARANTINED: "an agent is quarantined, and its turn waits until a person readmits it: dendro tree {}",
}


@record
class Run:
    """A run's place: the session, the way out, and whether people are asked what it cannot decide."""

    client: Client
    session: SessionId
    write: Callable[[bytes], Awaitable[None]]
    say: Callable[[str], None]
    """Says something to a person, apart from the lines."""
    asks_people: bool = False


@dataclass(slots=True)
class OneTurn:
    """The turn of a run."""

    run: Run
    writer: ExecWriter
    id: str = field(default_factory=new_submission_id)
    _projector: Projector = field(init=False)
    _follower: TurnFollower = field(init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _handed_in: asyncio.Event = field(default_factory=asyncio.Event)
    _refusals: dict[str, Question] = field(default_factory=dict)
    """The requests that it has refused, and that are open still, by the submission of the refusal."""
    _met: dict[Question, requests.Request] = field(default_factory=dict)
    """The requests that were open when the run came."""
    _met_at: int = 0
    """The number of the session's last event then."""

    def __post_init__(self) -> None:
        self._projector = Projector(self.run.session)
        self._follower = TurnFollower(self.run.client, self.run.session, self.id)

    async def open(self, warnings: tuple[str, ...]) -> None:
        """Writes which thread it is, and what has no effect."""
        await self._write(self.writer.opened(self.run.session, warnings))

    def know(
        self, events: Iterable[Event], waiting: Iterable[requests.Request] = (), last_event: int = 0
    ) -> None:
        """Takes the events of a turn that runs already, and that the submission may join.

        `waiting` are the requests that are open, `last_event` is the number of the last event by then.
        """
        for event in events:
            self._projector.receive(event)
        for request in waiting:
            asker = request.session if request.session not in ("", self.run.session) else None
            meant = request if asker is not None else request.in_own_session()
            self._met[asker, r.ItemId(request.call_id)] = meant
        self._met_at = last_event

    async def hold(self, op: ops.Op, cursor: EqCursor) -> bool:
        """Hands in the op and writes its turn; whether the turn completed.

        Raises the errors of `Client.submit`, `SetAside` if the session is quarantined, and `UnknownSession`
        if it is deleted meanwhile.
        """
        await self.run.client.submit(self.run.session, Submission(SubmissionId(self.id), op))
        self._handed_in.set()
        try:
            for question, request in self._met.items():
                await self._asked(question, request)
            async for event in self.run.client.follow(self.run.session, cursor):
                completed = await self._receive(event)
                if completed is not None:
                    return completed
        finally:
            self.over.set()
        raise UnknownSession(self.run.session)

    async def unless_stuck(self, holding: Awaitable[bool]) -> bool:
        """Holds the turn, unless its tree needs a person to go on: nobody here adds to a spent budget."""
        held, stuck = asyncio.ensure_future(holding), asyncio.ensure_future(self._stuck())
        try:
            await asyncio.wait((held, stuck), return_when=asyncio.FIRST_COMPLETED)
            # The events before the pause are written first.
            await asyncio.wait((held,), timeout=0 if held.done() else BEHIND_S)
            if held.done():
                return held.result()
            await self._write(self.writer.refused(stuck.result()))
            return False
        finally:
            for task in (held, stuck):
                while not task.done():
                    # Python 3.11 may forget a cancellation that meets the end of a wait (bpo-37658).
                    task.cancel()
                    await asyncio.wait((task,), timeout=POLL_S)

    async def _stuck(self) -> str:
        """Says why the tree stands still, when it does for what no request asks."""
        client, session = self.run.client, self.run.session

        async def look() -> str:
            head = await client.head(session)
            statuses = await standing(client, head) if head is not None else ()
            return next((text for status, text in STUCK.items() if status in statuses), "").format(session)

        await self._handed_in.wait()
        return await client.until([session], look) or ""

    async def interrupt(self) -> None:
        """Asks for the end of the turn; returns when it has come."""
        op = ops.Interrupt()
        await self.run.client.submit(self.run.session, Submission(SubmissionId(new_submission_id()), op))
        await self.over.wait()

    async def _receive(self, event: Event) -> bool | None:
        joined = self._follower.joined
        end = await self._follower.receive(event)
        if self._follower.joined and not joined:
            await self._write(self.writer.joined())
        if isinstance(end, Refused):
            await self._write(self.writer.refused(end.message))
            return False
        completed = False
        for change in self._projector.receive(event):
            if isinstance(change, r.RequestOpened):
                if not self._has_met(change, event):
                    await self._asked(_question(change), change.request)
            elif isinstance(change, r.RequestResolved):
                self._refusals = {id: one for id, one in self._refusals.items() if one != _question(change)}
            if _turn_of(change) != self._follower.turn:
                continue
            await self._write(self.writer.receive(change))
            if isinstance(change, r.TurnCompleted):
                completed = change.turn.status is r.TurnStatus.COMPLETED
        if isinstance(end, Quarantined):
            raise SetAside(self.run.session)
        if end is None and event.id in self._refusals and isinstance(told := event.told, Error):
            # It stays open, and nobody here can answer it: whoever may is not waited for.
            await self._write(self.writer.refused(whole(told.message)))
            return False
        return None if end is None else completed

    def _has_met(self, opened: r.RequestOpened, event: Event) -> bool:
        """Whether a request was open when the run came, and its event is told now: it was answered then."""
        early = event.cursor is not None and event.cursor.n <= self._met_at
        return early and _question(opened) in self._met

    async def _asked(self, question: Question, request: requests.Request) -> None:
        """Refuses what needs a person, or says that a person is waited for."""
        if self.run.asks_people:
            self.run.say("waits for a person: dendro approvals")
            return
        id, op = SubmissionId(new_submission_id()), request.refused()
        self._refusals[id] = question
        while True:
            # Nobody else refuses it: where the queue or Redis is full, it is handed in when there is room.
            with suppress(QueueFull, OutOfMemory):
                await self.run.client.submit(self.run.session, Submission(id, op))
                return
            await asyncio.sleep(RETRY_MAX_S)

    async def _write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            await self.run.write(orjson.dumps(line) + b"\n")


Question: TypeAlias = tuple[str | None, r.ItemId]
"""A request: the agent that asks, and its call."""


def _question(change: r.RequestOpened | r.RequestResolved) -> Question:
    return change.session, change.item


def _turn_of(change: r.Change) -> str | None:
    match change:
        case r.TurnStarted(turn) | r.TurnCompleted(turn):
            return turn.id
        case r.StatusChanged() | r.NameChanged() | r.TurnsDropped() | r.QueueChanged():
            return None
        case _:
            return change.turn
