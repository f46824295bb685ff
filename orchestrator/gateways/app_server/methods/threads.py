"""Methods that list threads, read them, name them, and come back to one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import SessionHead, TreeEntry
from orchestrator.core.counts import counted
from orchestrator.core.ids import InvalidSessionId, SessionId, parse_session_id
from orchestrator.core.state import Process, State
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door, head_of
from orchestrator.gateways.app_server.messages import bad_params, no_rollout
from orchestrator.gateways.app_server.method import (
    CursorText,
    Limit,
    Method,
    PageParams,
    Params,
    Result,
    page,
)
from orchestrator.gateways.app_server.write_items import (
    ItemsView,
    item_json,
    listed_turn_json,
    read_state_json,
    thread_json,
    turn_json,
)
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.submit import unread
from orchestrator.protocol import ops
from orchestrator.protocol.events import ThreadNameUpdated
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts.replay import fold_session
from orchestrator.views import thread_pages
from orchestrator.views.search import excerpt
from orchestrator.views.thread_list import (
    Kind,
    ListAsked,
    ListCursor,
    SortKey,
    ThreadFilter,
    ThreadPage,
    loaded,
    threads_page,
)
from orchestrator.views.thread_log import ThreadLog, begun_since, turn_at
from orchestrator.views.threads import Thread, read_state, read_states, threads
from orchestrator.views.tree_past import place_then
from orchestrator.views.turns.turn_records import ThreadItem, Turn, TurnId

MOST_THREADS, USUAL_THREADS = 200, 25
MOST_TURNS, USUAL_TURNS = 200, 25
MOST_ITEMS, USUAL_ITEMS = 500, 100
MOST_NAMES = 200
MOST_TEXT = 4_096
MOST_LOADED = 1_000
MOST_INCLUDED = 300
"""Turns that come with a thread: a tenth of a second of the gateway, during which others wait for a page."""
MOST_BYTES = 4 << 20
"""Bytes of the rows of one answer: half of what may wait for a client to read it."""
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Texts = Annotated[tuple[Text, ...], Field(max_length=MOST_NAMES)]
SourceKind = Literal[
    "cli",
    "vscode",
    "exec",
    "appServer",
    "subAgent",
    "subAgentReview",
    "subAgentCompact",
    "subAgentThreadSpawn",
    "subAgentOther",
    "unknown",
]
_KINDS: Mapping[SourceKind, Kind] = {
    "cli": "cli",
    "vscode": "cli",
    "exec": "exec",
    "subAgent": "agent",
    "subAgentThreadSpawn": "agent",
}
_SORTS: Mapping[str, SortKey] = {"created_at": "created", "updated_at": "recency", "recency_at": "recency"}


async def head_to_read(door: Door, thread: str) -> SessionHead:
    """The session of a thread whose log is read; raises `RpcError` as clients know it."""
    return await head_of(door.client, thread, no_rollout)


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


class ThreadList(Params):
    """The threads that are wanted, and their order."""

    limit: Limit | None = None
    cursor: CursorText | None = None
    sort_key: Literal["created_at", "updated_at", "recency_at", "section_position"] | None = None
    sort_direction: thread_pages.Direction | None = None
    source_kinds: Annotated[tuple[SourceKind, ...], Field(max_length=MOST_NAMES)] | None = None
    cwd: Text | Texts | None = None
    archived: bool | None = None
    search_term: Text | None = None
    model_providers: Texts | None = None
    parent_thread_id: str | None = None
    ancestor_thread_id: str | None = None
    excluded_thread_ids: Texts | None = None
    section_id: str | None = None
    project_id: str | None = None
    originators: Texts | None = None
    attached_to_thread_id: str | None = None

    @property
    def wants_none(self) -> bool:
        """Whether it asks for threads of a section, a project, a program: here none has one."""
        return any((self.section_id, self.project_id, self.originators, self.attached_to_thread_id))

    def asked(self, namespace: str) -> ListAsked:
        """The page; raises `RpcError` for a cursor that is none."""
        sort = _SORTS.get(self.sort_key or "created_at", "recency")
        kinds = frozenset(_KINDS[kind] for kind in self.source_kinds or ("cli",) if kind in _KINDS)
        cwds = (self.cwd,) if isinstance(self.cwd, str) else self.cwd or ()
        wanted = ThreadFilter(
            kinds=kinds,
            cwds=frozenset(cwds),
            archived=bool(self.archived),
            text=self.search_term or "",
            providers=frozenset(self.model_providers or ()),
            parent=self.parent_thread_id or "",
            ancestor=self.ancestor_thread_id or "",
            without=frozenset(self.excluded_thread_ids or ()),
        )
        limit = max(1, min(self.limit or USUAL_THREADS, MOST_THREADS))
        try:
            cursor = None if self.cursor is None else ListCursor.of(self.cursor, sort)
        except thread_pages.BadCursor as error:
            raise bad_params(str(error)) from None
        return ListAsked(limit, sort, self.sort_direction or "desc", cursor, namespace, wanted)


class ThreadSearch(ThreadList):
    """Words that are looked for in a thread's first message, its name and its folder."""

    search_term: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


async def thread_search(door: Door, params: ThreadSearch) -> Result:
    """The threads that have the words, each with the place where they stand."""
    if params.wants_none:
        return {name: value for name, value in NO_THREADS.items() if name != "readStates"}
    found = await _listed(door, params.asked(door.principal.namespace))
    return {
        "data": [
            {"thread": thread_json(one), "snippet": snippet(one, params.search_term)} for one in found.threads
        ],
        "nextCursor": _text(found.next),
        "backwardsCursor": _text(found.back),
    }


async def _listed(door: Door, asked: ListAsked) -> ThreadPage:
    try:
        for id in filter(None, (asked.wanted.parent, asked.wanted.ancestor)):
            parse_session_id(id)
        return await threads_page(door.ports.found.broker, asked)
    except InvalidSessionId as error:
        raise bad_params(f"parentThreadId, ancestorThreadId: {str(error)[:200]}") from None


def snippet(thread: Thread, words: str) -> str:
    """The words with the text around them."""
    wanted = re.compile(re.escape(words), re.IGNORECASE)
    for said in (thread.name or "", thread.preview, thread.cwd):
        if match := wanted.search(said):
            return excerpt(said, *match.span())
    return thread.preview


NO_THREADS: JsonObject = {"data": [], "readStates": {}, "nextCursor": None, "backwardsCursor": None}


async def thread_list(door: Door, params: ThreadList) -> Result:
    """The threads of the principal's namespace, of the whole fleet."""
    asked = params.asked(door.principal.namespace)
    if params.wants_none:
        return NO_THREADS
    found = await _listed(door, asked)
    return {
        "data": [thread_json(one) for one in found.threads],
        "readStates": await _read_states(door, found.threads),
        "nextCursor": _text(found.next),
        "backwardsCursor": _text(found.back),
    }


async def _read_states(door: Door, listed: Sequence[Thread]) -> JsonObject:
    """The states of the threads of a page that this person has ever marked."""
    states = await read_states(door.ports.found, [one.id for one in listed], door.principal.name)
    return {thread: read_state_json(state) for thread, state in states.items()}


def _text(cursor: ListCursor | thread_pages.Cursor | None) -> str | None:
    return None if cursor is None else str(cursor)


async def loaded_list(door: Door, params: PageParams) -> Result:
    """The threads that are at work or wait for somebody, and those that this connection hears."""
    found = await loaded(door.ports.found.broker.logs, MOST_LOADED, door.principal.namespace)
    heard = [session for session in sorted(door.subscriptions, reverse=True) if session not in found]
    return page((found + heard)[:MOST_LOADED], params)


# ── a thread ──────────────────────────────────────────────────────────────────────────────────────


class ThreadRead(Params):
    """A thread, with its turns if they are wanted."""

    thread_id: str
    include_turns: bool = False


async def thread_read(door: Door, params: ThreadRead) -> Result:
    """A thread as it stands; nothing of it is heard from then on."""
    head = await head_to_read(door, params.thread_id)
    turns = await all_turns(door, head) if params.include_turns else []
    state = await read_state(door.ports.found, head, door.principal.name)
    door.tells_read_states = True
    return {"thread": await thread_of(door, head, turns), "readState": read_state_json(state)}


async def thread_of(door: Door, head: SessionHead, turns: list[JsonObject] | None = None) -> JsonObject:
    """A thread's JSON."""
    (found,) = await threads(door.ports.found.broker, [head])
    return thread_json(found, turns or ())


async def all_turns(door: Door, head: SessionHead) -> list[JsonObject]:
    """The turns of a thread with their items, oldest first; of a long one the newest that fit an answer."""
    log, turns, size = await ThreadLog.of(door.ports.found, head), list[Turn](), 0
    async for stretch in log.back():
        turn = await log.turn(stretch)
        if turn is None:
            continue
        size += len(orjson.dumps(turn_json(turn, "full")))
        if turns and (size > MOST_BYTES or len(turns) == MOST_INCLUDED):
            words = f"only the last {len(turns):,} turns are told at once: thread/turns/list has those before"
            door.notify("warning", {"threadId": head.session, "message": words})
            break
        turns.append(turn)
    root_turn = await _root_turns(door, head, turns)
    return [turn_json(turn, "full", root_turn(turn)) for turn in reversed(turns)]


async def _root_turns(door: Door, head: SessionHead, turns: Sequence[Turn]) -> Callable[[Turn], str | None]:
    """Names the turn of the root in which a turn of its agent was begun; None for the turns of a root."""
    root = None
    if head.agent_id != ROOT and turns:
        with suppress(Corrupt):
            root = await door.client.head(SessionId(head.tree))
    oldest_ms = min((turn.started_ms or 0 for turn in turns), default=0)
    begun = [] if root is None else await begun_since(door.ports.found, root, oldest_ms)
    return lambda turn: turn_at(begun, turn.started_ms or 0)


TreePlace = Annotated[int, Field(ge=1, le=1 << 53)]
"""Dendro's own: an entry of the log of a thread's tree. What came later than it is left out."""


async def tree_entry_at(door: Door, head: SessionHead, at: int) -> TreeEntry:
    """An entry of the log of a thread's tree; raises `RpcError` for one that it has not."""
    page = await door.ports.found.broker.logs.read_tree_back(head.tree, at + 1, 1)
    if not page or page[0].tree_seq != at:
        raise bad_params(f"at: the log of the tree has no entry {at}")
    return page[0]


async def as_it_was(door: Door, head: SessionHead, at: int | None) -> SessionHead:
    """A thread's head with its log cut behind the last entry that is not later than one of its tree's log."""
    if at is None:
        return head
    entry = await tree_entry_at(door, head, at)
    if entry.session == head.session:
        # It is the thread's own, and names its place, which no clock could tell from others of that moment.
        return replace(head, seq=min(entry.seq, head.seq))
    return replace(head, seq=await place_then(door.ports.found, head, entry.at_ms))


def fits(data: list[JsonObject]) -> bool:
    """Whether a page fits an answer; one row goes out however large it is."""
    return len(data) < 2 or len(orjson.dumps(data)) <= MOST_BYTES


class TurnsList(Params):
    """A page of a thread's turns, the newest first unless said otherwise."""

    thread_id: str
    limit: Limit | None = None
    cursor: CursorText | None = None
    sort_direction: thread_pages.Direction | None = None
    items_view: ItemsView | None = None
    at: TreePlace | None = None


async def turns_list(door: Door, params: TurnsList) -> Result:
    """Turns from the log, as much of each as is wanted."""
    head = await as_it_was(door, await head_to_read(door, params.thread_id), params.at)
    view: ItemsView = params.items_view or "summary"

    async def read(
        log: ThreadLog, asked: thread_pages.Asked
    ) -> tuple[list[JsonObject], thread_pages.TurnPage]:
        found = await thread_pages.turns_page(log, asked)
        root_turn = await _root_turns(door, head, found.turns)
        return [listed_turn_json(turn, view, root_turn(turn)) for turn in found.turns], found

    limit = max(1, min(params.limit or USUAL_TURNS, MOST_TURNS))
    cursor = _cursor(params.cursor, "turns")
    return await _page_that_fits(
        door, head, thread_pages.Asked(params.sort_direction or "desc", limit, cursor), read
    )


class ItemAnchor(Params):
    """A place that names an item: from no log here can it be found without a walk."""

    type: Literal["item"]
    item_id: str


class ItemsList(Params):
    """A page of a thread's items, or of one turn's, the oldest first unless said otherwise."""

    thread_id: str
    turn_id: str | None = None
    limit: Limit | None = None
    cursor: CursorText | ItemAnchor | None = None
    sort_direction: thread_pages.Direction | None = None
    at: TreePlace | None = None


async def items_list(door: Door, params: ItemsList) -> Result:
    """Items from the log, each with its turn."""
    if isinstance(params.cursor, ItemAnchor):
        raise bad_params("cursor: give a text that such a list answered; items are no places here")
    head = await as_it_was(door, await head_to_read(door, params.thread_id), params.at)

    async def read(
        log: ThreadLog, asked: thread_pages.Asked
    ) -> tuple[list[JsonObject], thread_pages.ItemPage]:
        found = await thread_pages.items_page(log, asked, params.turn_id)
        return [_entry(turn, item) for turn, item in found.items], found

    limit = max(1, min(params.limit or USUAL_ITEMS, MOST_ITEMS))
    cursor = _cursor(params.cursor, "items")
    return await _page_that_fits(
        door, head, thread_pages.Asked(params.sort_direction or "asc", limit, cursor), read
    )


def _cursor(text: str | None, kind: Literal["turns", "items"]) -> thread_pages.Cursor | None:
    try:
        return None if text is None else thread_pages.Cursor.of(text, kind)
    except thread_pages.BadCursor as error:
        raise bad_params(str(error)) from None


async def _page_that_fits(
    door: Door,
    head: SessionHead,
    asked: thread_pages.Asked,
    read: Callable[
        [ThreadLog, thread_pages.Asked],
        Awaitable[tuple[list[JsonObject], thread_pages.TurnPage | thread_pages.ItemPage]],
    ],
) -> Result:
    """A page of the log, of as many rows as a client can be sent: halved until it fits."""
    try:
        log = await ThreadLog.of(door.ports.found, head, door.ports.rollbacks)
        data, found = await read(log, asked)
        while not fits(data):
            asked = replace(asked, limit=len(data) // 2)
            data, found = await read(log, asked)
    except thread_pages.BadCursor as error:
        raise bad_params(str(error)) from None
    return {
        "data": data,
        "nextCursor": _text(found.next),
        "backwardsCursor": _text(found.back),
    }


def _entry(turn: TurnId, item: ThreadItem) -> JsonObject:
    times = {"startedAtMs": item.started_ms, "completedAtMs": item.completed_ms}
    return {"turnId": turn, "item": item_json(item), **times}


# ── names and small things ────────────────────────────────────────────────────────────────────────


class SetName(Params):
    """A thread's new name."""

    thread_id: str
    name: Annotated[str, Field(max_length=MOST_TEXT)]


async def set_name(door: Door, params: SetName) -> Result:
    """Names a thread; those who hear it are told by the event that says so."""
    head = await door.head(params.thread_id)
    op = ops.SetThreadName(name=params.name)
    told = await door.decided(head, op, {ThreadNameUpdated})
    if told is None:
        door.notify("warning", {"threadId": head.session, "message": unread(head)})
    elif head.session not in door.subscriptions:
        door.notify("thread/name/updated", {"threadId": head.session, "threadName": told.thread_name})
    return {}


class OneThread(PageParams):
    """A thread, and a page of what it has."""

    thread_id: str


async def goal_get(door: Door, params: OneThread) -> Result:
    """No goal: threads have tasks and plans."""
    await door.head(params.thread_id)
    return {"goal": None}


async def background_terminals(door: Door, params: OneThread) -> Result:
    """The processes of a session that live beyond the call that started them."""
    state = await _state(door, await door.head(params.thread_id))
    return page([_terminal(process) for process in state.processes.living], params)


def _terminal(process: Process) -> dict[str, Any]:
    return {
        "itemId": process.call_id,
        "processId": str(process.number),
        "command": process.command,
        "cwd": process.cwd,
    }


class CleanTerminals(Params):
    """A thread whose processes are to end."""

    thread_id: str


async def clean_terminals(door: Door, params: CleanTerminals) -> Result:
    """Ends the processes of a thread at rest; those of a running turn end with the turn.

    It is never refused for a turn: Codex's terminal ends with an error.
    """
    head = await door.head(params.thread_id)
    state = await _state(door, head)
    if not state.processes.living:
        return {}
    if state.task is None:
        # It sets nothing, and what lives is killed.
        await door.client.submit(head.session, Submission(door.new_turn_id(), ops.ConfigureSession()))
        return {}
    living = counted(len(state.processes.living), "process")
    why = f"{living} of this thread still running: a turn is at work, and to interrupt it ends them with it"
    door.notify("warning", {"threadId": head.session, "message": why})
    return {}


async def _state(door: Door, head: SessionHead) -> State:
    return (await fold_session(door.ports.found, head, None)).state


METHODS: Mapping[str, Method] = {
    "thread/list": Method(ThreadList, thread_list, Scope.READ),
    "thread/search": Method(ThreadSearch, thread_search, Scope.READ),
    "thread/loaded/list": Method(PageParams, loaded_list, Scope.READ),
    "thread/read": Method(ThreadRead, thread_read, Scope.READ),
    "thread/turns/list": Method(TurnsList, turns_list, Scope.READ, waits=True),
    "thread/items/list": Method(ItemsList, items_list, Scope.READ, waits=True),
    "thread/name/set": Method(SetName, set_name, Scope.SUBMIT, waits=True),
    "thread/goal/get": Method(OneThread, goal_get, Scope.READ),
    "thread/backgroundTerminals/list": Method(OneThread, background_terminals, Scope.READ, waits=True),
    "thread/backgroundTerminals/clean": Method(CleanTerminals, clean_terminals, Scope.SUBMIT, waits=True),
}
