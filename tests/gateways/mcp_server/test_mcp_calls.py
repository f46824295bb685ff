"""Several calls of one MCP client: whose turn a cancel means, how many may run, and what each is told."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mcp.types as sdk
import pytest

from orchestrator.broker.errors import SessionArchived
from orchestrator.broker.follow import BEGINNING
from orchestrator.core.commands import AnswerOp
from orchestrator.core.decide.call import reply_of
from orchestrator.core.decide.ops import REMOVED
from orchestrator.core.ids import SessionId
from orchestrator.gateways import mcp_server
from orchestrator.gateways.mcp_server import (
    CANCELLED,
    Deployment,
    FollowedTurn,
    McpDoor,
    RunArguments,
    form_of,
)
from orchestrator.protocol import ops
from orchestrator.protocol.plans import QuestionsAnswered
from orchestrator.requests import request_of
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views import ViewError
from orchestrator.views.event import Event
from tests.doors.test_exec_requests import AGENT, REFUSED
from tests.requests.test_answers import ASKS, LATER

SESSIONS = [SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(9)]
DONE = {"type": "task_complete", "last_agent_message": "done"}
SILENT = {**DONE, "last_agent_message": None}
SAID = {"type": "agent_message", "message": "so far"}
STOPPED = {"type": "turn_aborted", "reason": "interrupted"}


def fault(text: str) -> dict[str, Any]:
    return {"type": "error", "message": text}


class Client:
    """A client of several sessions, each of which tells what the test gives."""

    namespace = ""

    def __init__(self, *, quarantined: bool = False) -> None:
        self.events: dict[str, asyncio.Queue[Event]] = defaultdict(asyncio.Queue)
        self.sent: list[tuple[SessionId, Any]] = []
        self.quarantined = quarantined
        self.asked_for: list[SessionId] = []

    async def head(self, session: SessionId) -> Any:
        self.asked_for.append(session)
        return SimpleNamespace(
            session=session,
            tree=SESSIONS[0],
            quarantined=self.quarantined,
            eq_n=0,
            seq=0,
            head=b"\0" * 32,
            status="running",
            has_unread=False,
        )

    def calling_itself(self, name: str) -> None: ...

    async def submit(self, session: SessionId, submission: Any) -> None:
        self.sent.append((session, submission))

    async def follow(self, session: SessionId, cursor: Any) -> AsyncIterator[Event]:
        while True:
            yield await self.events[session].get()

    def turn(self, session: SessionId) -> str:
        """The turn that was handed in to a session."""
        (found,) = (one.id for of, one in self.sent if of == session and isinstance(one.op, ops.UserInput))
        return str(found)

    def ends(self, session: SessionId, end: dict[str, Any] = DONE) -> None:
        turn = self.turn(session)
        self.events[session].put_nowait(Event(turn, {"type": "task_started"}))
        self.events[session].put_nowait(Event(turn, end))


class Calls:
    """A door in memory, and a client's calls at it."""

    def __init__(self) -> None:
        self.client = Client()
        self._free = iter(SESSIONS)
        deployment = Deployment(cast(Any, SimpleNamespace()), cast(Any, self.client), self._create, "0")
        self.door = McpDoor(deployment)

    async def _create(self, asked: RunArguments) -> SessionId:
        return next(self._free)

    def call(
        self, id: Any, tool: str, handshake: Any = None, **arguments: Any
    ) -> asyncio.Task[sdk.CallToolResult]:
        session = SimpleNamespace(client_params=handshake, client_capabilities=None, report_progress=_nothing)
        context = cast(Any, SimpleNamespace(session=session, request_id=id))
        params = sdk.CallToolRequestParams(name=tool, arguments=arguments)
        return asyncio.ensure_future(self.door._call(context, params))

    async def cancel(self, id: Any) -> None:
        context = SimpleNamespace(method=CANCELLED, params={"requestId": id})
        await self.door._watch(cast(Any, context), cast(Any, _nothing))

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.client.sent) < count:
                await asyncio.sleep(0)

    async def until_heard(self, sessions: list[SessionId]) -> None:
        """Until each event of these sessions was taken."""
        async with asyncio.timeout(20):
            while any(not self.client.events[each].empty() for each in sessions):
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self, *calls: asyncio.Task[Any]) -> None:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self.door.close()


async def _nothing(*_: Any, **more: Any) -> None: ...


def told(result: sdk.CallToolResult) -> tuple[bool | None, Any, str]:
    (content,) = result.content
    assert isinstance(content, sdk.TextContent)
    return result.is_error, result.structured_content, content.text


async def answer(call: asyncio.Task[sdk.CallToolResult]) -> tuple[bool | None, Any, str]:
    async with asyncio.timeout(20):
        return told(await call)


async def test_what_a_client_calls_itself_in_its_handshake_is_noted_before_its_call_is_carried_out() -> None:
    at, named = Calls(), list[tuple[str, int]]()
    cast(Any, at.client).calling_itself = lambda name: named.append((name, len(at.client.sent)))
    call = at.call(1, "run", prompt="go", handshake=SimpleNamespace(client_info=SimpleNamespace(name="ed")))
    await at.until_sent(1)
    assert named == [("ed", 0)]
    await at.close(call)


@pytest.mark.parametrize("cancelled", [0, 1, 2])
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_cancel_interrupts_the_turn_of_its_call_and_no_other(
    cancelled: int, as_text: bool, begun: bool
) -> None:
    """And a turn that is not known to have begun is taken out of the queue, if it waits there."""
    at = Calls()
    replies = {"thread_id": SESSIONS[5], "prompt": "go"}
    calls = [at.call(1, "run", prompt="go"), at.call("2", "reply", **replies), at.call(3, "run", prompt="go")]
    await at.until_sent(3)
    sessions = [SESSIONS[0], SESSIONS[5], SESSIONS[1]]
    id = [1, 2, 3][cancelled]
    own = at.client.turn(sessions[cancelled])
    for session in sessions:
        turn = at.client.turn(session) if begun else "of another client"
        at.client.events[session].put_nowait(Event(turn, {"type": "task_started"}))
    await at.until_heard(sessions)
    # The protocol's libraries take a number and its text for one.
    await at.cancel(str(id) if as_text else id)
    calls[cancelled].cancel()
    stops = [ops.Interrupt(expected_turn_id=own)]
    wanted = stops if begun else [ops.RemoveQueued(submission_id=own), *stops]
    await at.until_sent(3 + len(wanted))
    await at.cancel(str(id) if as_text else id)
    assert [(of, one.op) for of, one in at.client.sent[3:]] == [(sessions[cancelled], op) for op in wanted]
    for place, other in enumerate(calls):
        if place != cancelled:
            at.client.ends(sessions[place])
            assert (await answer(other))[2] == "done"
    assert len(at.client.sent) == 3 + len(wanted)
    await at.close(*calls)


async def test_runs_and_replies_count_as_turns_under_way_until_each_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mcp_server.MOST_TURNS == 64
    monkeypatch.setattr(mcp_server, "MOST_TURNS", 3)
    at = Calls()
    more: dict[str, dict[str, Any]] = {
        "run": {"prompt": "more"},
        "reply": {"thread_id": SESSIONS[7], "prompt": "more"},
    }
    calls = [
        at.call(1, "run", prompt="go"),
        at.call(2, "reply", thread_id=SESSIONS[5], prompt="go"),
        at.call(3, "run", prompt="go"),
    ]
    await at.until_sent(3)
    for id, tool in enumerate(more, 10):
        is_error, _, text = await answer(at.call(id, tool, **more[tool]))
        assert (is_error, text) == (True, "3 turns of this client run: wait until one is over")
    assert len(at.client.sent) == 3
    # A call that its client has given up runs still.
    calls[0].cancel()
    await asyncio.gather(calls[0], return_exceptions=True)
    assert (await answer(at.call(20, "run", prompt="more")))[0]
    at.client.ends(SESSIONS[5])
    assert (await answer(calls[1]))[2] == "done"
    calls.append(at.call(21, "reply", **more["reply"]))
    await at.until_sent(4)
    await at.close(*calls)


@pytest.mark.parametrize("end", ["made", "failed", "cancelled"])
async def test_turns_that_begin_count_before_their_sessions_are_made(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "MOST_TURNS", 3)
    at, made = Calls(), asyncio.Event()
    create = at._create

    async def slowly(asked: RunArguments) -> SessionId:
        await made.wait()
        if end == "failed":
            raise ViewError("the folder cannot be copied")
        return await create(asked)

    at.door._there = replace(at.door._there, create=slowly)
    calls = [at.call(id, "run", prompt="go") for id in range(5)]
    refused = [(await answer(call))[2] for call in calls[3:]]
    assert refused == ["3 turns of this client run: wait until one is over"] * 2
    if end == "cancelled":
        for call in calls[:3]:
            call.cancel()
        await asyncio.gather(*calls[:3], return_exceptions=True)
    made.set()
    if end == "made":
        await at.until_sent(3)
        assert (await answer(at.call(9, "run", prompt="more")))[0]
        at.client.ends(SESSIONS[1])
        assert (await answer(calls[1]))[2] == "done"
    elif end == "failed":
        assert [(await answer(call))[2] for call in calls[:3]] == ["the folder cannot be copied"] * 3
    before = len(at.client.sent)
    further = at.call(10, "reply", thread_id=SESSIONS[7], prompt="more")
    await at.until_sent(before + 1)
    await at.close(*calls, further)


ENDS: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "answered": ([DONE], "completed", "done"),
    "answered behind an error": ([fault("a try failed"), DONE], "completed", "done"),
    "silent": ([SILENT], "completed", ""),
    "silent behind errors": ([fault("first"), fault("no money"), SILENT], "failed", "no money"),
    "interrupted": ([STOPPED], "interrupted", "the turn was interrupted"),
    "interrupted with a reason": (
        [fault("the budget is spent"), STOPPED],
        "interrupted",
        "the budget is spent",
    ),
    "refused": ([fault("the queue is full")], "failed", "the queue is full"),
    "taken out of the queue": ([{"type": "warning", "message": REMOVED}], "failed", REMOVED),
    "set aside": ([fault("quarantined")], "failed", "quarantin"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_each_end_of_a_turn_has_its_status_its_words_and_is_an_error_only_where_it_failed(
    end: str,
) -> None:
    events, status, text = ENDS[end]
    client = Client(quarantined=end == "set aside")
    progress = list[str]()

    async def tell(line: str) -> None:
        progress.append(line)

    person = SimpleNamespace(can_be_asked=False, tell=tell)
    turn = FollowedTurn(cast(Any, client), SESSIONS[0], "t", cast(Any, person))
    begun = end not in ("refused", "taken out of the queue")
    for id, message in (
        ("other", {"type": "agent_message", "message": "of another turn"}),
        ("other", fault("of another turn")),
        ("other", {**DONE, "last_agent_message": "of another turn"}),
        *([("t", {"type": "task_started"}), ("t", SAID)] if begun else []),
        *(("" if end == "set aside" else "t", message) for message in events),
    ):
        client.events[SESSIONS[0]].put_nowait(Event(id, message))
    async with asyncio.timeout(20):
        is_error, structured, words = told((await turn.outcome(BEGINNING)).result())
    assert is_error is (status == "failed")
    assert structured == {"threadId": SESSIONS[0], "turnId": "t", "status": status}
    assert words == text or (end == "set aside" and text in words)
    assert not any("of another turn" in line for line in progress)
    assert progress.count("so far") == begun


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, "is set aside|quarantined"),
        (BrokenArchive("a segment is gone"), "cannot be read to its end now: a segment is gone"),
        (ArchiveUnavailable("no answer"), "cannot be read to its end now: no answer"),
        (SessionArchived(SESSIONS[0]), "archive"),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_reply_to_a_session_that_cannot_go_on_is_refused_with_the_reason_and_hands_nothing_in(
    error: Exception | None, why: str
) -> None:
    at = Calls()
    at.client.quarantined = error is None

    async def fails(session: SessionId) -> None:
        assert error is not None
        raise error

    if error is not None:
        cast(Any, at.client).head = fails
    is_error, structured, text = await answer(at.call(1, "reply", thread_id=SESSIONS[0], prompt="more"))
    assert is_error
    assert structured is None
    assert re.search(why, text)
    assert at.client.sent == []
    # It counts as no turn, and its id is free again.
    assert at.door._turns == {}
    await at.close()


async def test_session_that_is_gone_meanwhile_is_a_refusal_with_the_reason() -> None:
    at = Calls()

    async def over(session: SessionId, cursor: Any) -> AsyncIterator[Event]:
        return
        yield

    cast(Any, at.client).follow = over
    for id, call in enumerate(("run", "reply")):
        more = {"thread_id": SESSIONS[5]} if call == "reply" else {}
        is_error, structured, words = await answer(at.call(id, call, prompt="go", **more))
        assert (is_error, structured) == (True, None)
        assert "unknown session" in words
    assert not at.door._turns
    await at.close()


# ── requests ──────────────────────────────────────────────────────────────────────────────────────

OPEN_INPUT = {
    **ASKS["input"],
    "questions": [{"id": "key", "header": "Key", "question": "Which?", "isSecret": False}],
}
SHOWN = {**{kind: asked for kind, asked in ASKS.items() if kind != "client_tool"}, "input": OPEN_INPUT}


@pytest.mark.parametrize("asker", ["the session", "an agent"])
@pytest.mark.parametrize("kind", SHOWN)
def test_form_of_each_kind_that_is_declined_refuses_in_the_name_of_whom_it_was_asked(
    kind: str, asker: str
) -> None:
    form = form_of(request_of({**SHOWN[kind], **(AGENT if asker == "an agent" else {})}), 1)
    assert form is not None
    reply = reply_of(cast(AnswerOp, form.declined))
    agent = AGENT["agent_id"] if asker == "an agent" else None
    assert (reply.id, reply.agent_id, reply.decision) == ("c", agent, REFUSED[kind])


def test_program_s_tool_and_a_request_of_a_later_version_have_no_form() -> None:
    for asked in (ASKS["client_tool"], LATER):
        assert form_of(request_of(asked), 1) is None


@pytest.mark.parametrize("kind", ["choices", "input"])
@pytest.mark.parametrize("secret", [(0,), (1,), (2,), (0, 2), ()])
def test_request_with_a_secret_among_its_questions_is_asked_by_no_form(
    kind: str, secret: tuple[int, ...]
) -> None:
    questions = [
        {
            "id": f"q{number}",
            "header": f"Q{number}",
            "question": "Which?",
            "options": [{"label": "a", "description": ""}] if kind == "choices" else None,
            "isSecret": number in secret,
        }
        for number in range(3)
    ]
    form = form_of(request_of({**ASKS[kind], "questions": questions}), 1)
    assert (form is None) is bool(secret)


def test_each_of_several_questions_has_its_own_answer_by_number_or_in_words() -> None:
    labels = [{"label": label, "description": ""} for label in ("red", "blue", "green")]
    questions = [
        {"header": name, "question": "Which?", "options": labels, "multiSelect": name == "Third"}
        for name in ("First", "Second", "Third")
    ]
    form = form_of(request_of({**ASKS["choices"], "questions": questions}), 1)
    assert form is not None
    assert form.schema["required"] == ["First", "Second", "Third"]
    op = form.read({"First": "2", "Second": "a shade of 3", "Third": "3, 1"})
    assert isinstance(op, ops.ResolveAskUserQuestion)
    assert isinstance(op.response, QuestionsAnswered)
    assert op.response.answers == {"First": "blue", "Second": "a shade of 3", "Third": "red, green"}


@pytest.mark.parametrize("left_out", [(), (0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("how", ["missing", "", "  ", None])
def test_question_that_may_be_left_out_is_left_out_where_its_field_is_empty(
    how: str | None, left_out: tuple[int, ...]
) -> None:
    """As in a terminal; an answer without words would be one for the model."""
    questions = [
        {"id": f"q{number}", "header": "Q", "question": "Which?", "isOther": True} for number in range(3)
    ]
    form = form_of(request_of({**ASKS["input"], "questions": questions}), 1)
    assert form is not None
    assert form.schema["required"] == []
    given = {f"q{number}": how if number in left_out else f"words {number}" for number in range(3)}
    said = {name: text for name, text in given.items() if text != "missing"}
    op = form.read(said)
    assert isinstance(op, ops.UserInputAnswer)
    assert {name: one.answers for name, one in op.response.answers.items()} == {
        f"q{number}": (f"words {number}",) for number in range(3) if number not in left_out
    }


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


def row(number: int, **more: Any) -> dict[str, Any]:
    found = dict.fromkeys(("name", "title", "label", "status", "cwd", "model", "created_ms", "updated_ms"))
    return {**found, "cwd": f"/w/{number}", "updated_ms": 100 - number, **more}


ONCE = " for one question"
"""Behind the namespace of a session that is ephemeral."""


def listed_at(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[dict[str, Any], str]]) -> Calls:
    async def listed_rows(
        broker: Any, most: int, *, shelved: bool
    ) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for number, (found, namespace) in enumerate(rows):
            if found.get("shelved", False) is not shelved:
                continue
            yield (
                found,
                SimpleNamespace(
                    session=SESSIONS[number],
                    labels=SimpleNamespace(
                        namespace=namespace.removesuffix(ONCE), ephemeral=namespace.endswith(ONCE)
                    ),
                ),
            )

    monkeypatch.setattr(mcp_server, "listed_rows", listed_rows)
    return Calls()


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [0, 1, 2, 4, 5]),
        ({"limit": 1}, [0]),
        ({"limit": 2}, [0, 1]),
        ({"limit": 4}, [0, 1, 2, 4]),
        ({"limit": 5}, [0, 1, 2, 4, 5]),
        ({"text": "LOGIN"}, [1, 2, 4]),
        ({"text": "login", "limit": 2}, [1, 2]),
        ({"text": "nothing"}, []),
        ({"archived": True}, [8]),
        ({"archived": True, "text": "login"}, []),
    ],
)
async def test_client_lists_so_many_of_its_own_sessions_in_their_order_by_name_title_and_folder(
    asked: dict[str, Any], wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        (row(0), ""),
        (row(1, name="a Login"), ""),
        (row(2, title="the login page"), ""),
        (row(3, name="login"), "acme"),
        (row(4, cwd="/w/login"), ""),
        (row(5), ""),
        (row(6, name="login"), ONCE),
        (row(7), f"acme{ONCE}"),
        (row(8, shelved=True), ""),
    ]
    at = listed_at(monkeypatch, rows)
    is_error, found, _ = await answer(at.call(1, "threads", **asked))
    assert not is_error
    assert [(each["threadId"], each["cwd"]) for each in found["threads"]] == [
        (SESSIONS[number], rows[number][0]["cwd"]) for number in wanted
    ]
    await at.close()


@pytest.mark.parametrize("named", [0, 2, 3])
async def test_client_is_shown_all_agents_of_a_tree_whichever_of_them_it_names(
    named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = {0: None, 1: 0, 2: 1, 3: 0}
    agents = {
        number: SimpleNamespace(
            agent_id=number,
            parent=parent,
            session=SESSIONS[number],
            summary={"label": f"of {number}"},
            status="running",
            doing=SimpleNamespace(waits_for=f"agent {number + 1}" if number < 2 else "", last=""),
            tokens=number,
        )
        for number, parent in parents.items()
    }
    read: list[str] = []

    class Reader:
        def __init__(self, broker: Any, tree: str) -> None:
            read.append(tree)

        async def picture(self) -> Any:
            return SimpleNamespace(agents=agents)

    monkeypatch.setattr(mcp_server, "TreeReader", Reader)
    at = Calls()
    is_error, found, _ = await answer(at.call(1, "tree", thread_id=SESSIONS[named]))
    assert (is_error, found["treeId"], read) == (False, SESSIONS[0], [SESSIONS[0]])
    assert [
        (one["agentId"], one["parentAgentId"], one["threadId"], one["label"], one["waitsFor"])
        for one in found["agents"]
    ] == [
        (
            number,
            parents[number],
            SESSIONS[number],
            f"of {number}",
            f"agent {number + 1}" if number < 2 else None,
        )
        for number in range(4)
    ]
    await at.close()
