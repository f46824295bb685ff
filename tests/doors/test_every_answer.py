"""Every answer of a client to each kind of request, at each door: the decision that its session reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic.alias_generators import to_camel

from orchestrator.core.decide.call import reply_of
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server.door import Conversations
from orchestrator.gateways.app_server.door import request_method as method_of_version_1
from orchestrator.gateways.app_server.door import request_params as params_of_version_1
from orchestrator.gateways.app_server.live_threads import Told
from orchestrator.gateways.app_server.messages import Answer
from orchestrator.gateways.app_server.write_requests import Asks
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.mcp_server import form_of
from orchestrator.gateways.principals import Principal
from orchestrator.requests import known_request_of, request_of
from orchestrator.views.event import Event
from orchestrator.views.turns.turn_records import ItemId, RequestOpened, RequestResolved, TurnId
from tests.requests.test_answers import ASKS, PREFIX

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
OTHER = SessionId("0199a2b4-0000-7000-8000-000000000002")
OPENED_MS = 1_800_000_000_000
EVERY = {**ASKS, "prefix": PREFIX}
APPROVALS = ("command", "prefix", "patch")
"""Kinds whose answers keep what was shown."""


class Keeps:
    """A client that keeps what is submitted."""

    def __init__(self) -> None:
        self.sent: list[tuple[SessionId, Any]] = []

    async def submit(self, session: SessionId, submission: Any) -> None:
        self.sent.append((session, submission.op))


def said(*texts: str, name: str = "Store") -> dict[str, Any]:
    return {"answers": {name: {"answers": list(texts)}}}


AMENDED = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["git", "push"]}}
VERSION_2: list[tuple[str, dict[str, Any], str | None]] = [
    *[
        (kind, {"decision": word}, decision)
        for kind in ("command", "patch")
        for word, decision in (
            *(("accept", "approved"), ("acceptForSession", "approved_for_session")),
            *(("decline", "denied"), ("cancel", "abort"), ("yes", None), (None, None)),
        )
    ],
    ("prefix", {"decision": AMENDED}, "git"),
    ("patch", {"decision": AMENDED}, None),
    *[
        ("prefix", {"decision": {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": words}}}, None)
        for words in ([], "git", ["git", 7], None, {"git": 1})
    ],
    ("prefix", {"decision": {**AMENDED, "more": 1}}, None),
    ("choices", said("Redis"), "answered"),
    ("choices", {"answers": {}}, "cancelled"),
    ("choices", said("Redis", name="Disk"), None),
    ("choices", {}, None),
    *[
        ("choices", {"answers": {"Store": value}}, None)
        for value in (["Redis"], "Redis", {}, {"answers": "Redis"}, {"answers": [7]}, {"answers": None})
    ],
    ("input", said("hunter2", name="key"), "answered"),
    ("input", {"answers": {}}, "cancelled"),
    ("plan", said("Approve", name="plan"), "approved"),
    ("plan", said("Reject", name="plan"), "rejected"),
    ("plan", said("shorter", name="plan"), "revised"),
    ("plan", said("Approve", "but shorter", name="plan"), "revised"),
    ("plan", {"answers": {}}, "rejected"),
    ("elicitation", {"action": "accept"}, "accept"),
    ("elicitation", {"action": "decline"}, "decline"),
    ("elicitation", {"action": "cancel"}, "cancel"),
    ("elicitation", {"action": "approved"}, None),
    ("client_tool", {"success": True, "contentItems": [{"type": "inputText", "text": "x"}]}, "answered"),
    ("client_tool", {"success": True, "output": "x"}, "answered"),
    ("client_tool", {"success": False, "output": "x"}, "failed"),
]


def opened(session: SessionId, kind: str, turn: str = "t") -> RequestOpened:
    request = known_request_of({**EVERY[kind], "agent_id": 3})
    assert request is not None
    return RequestOpened(TurnId(turn), ItemId("item"), request, at_ms=OPENED_MS)


@pytest.mark.parametrize(("kind", "result", "decision"), VERSION_2)
async def test_answer_of_version_2_goes_to_the_session_that_asked(
    kind: str, result: dict[str, Any], decision: str | None
) -> None:
    client = Keeps()
    asks = Asks(cast(Any, client))
    asked = asks.open(ONE, opened(ONE, kind), 1)
    other = asks.open(OTHER, opened(OTHER, kind), 1)
    assert asked is not None
    assert other is not None
    await asks.answer(Answer(asked.id, result))
    found = [(session, reply_of(op)) for session, op in client.sent]
    assert [session for session, _ in found] == ([] if decision is None else [ONE])
    for _, reply in found:
        # In its own session the call's id is enough.
        assert (reply.id, reply.agent_id) == ("c", None)
        assert str(decision) in reply.decision
        assert "output" not in result or "'x'" in str(op_of(client).response)
    for _, op in client.sent:
        assert kind not in APPROVALS or (op.shown.surface, op.shown.opened_ms) == ("app-server v2", OPENED_MS)


def op_of(client: Keeps) -> Any:
    ((_, op),) = client.sent
    return op


@pytest.mark.parametrize("kind", EVERY)
async def test_error_of_a_client_ends_a_call_of_its_tool_and_leaves_all_else_open(kind: str) -> None:
    client = Keeps()
    asks = Asks(cast(Any, client))
    asked = asks.open(ONE, opened(ONE, kind), 1)
    assert asked is not None
    await asks.answer(Answer(asked.id, None, "it broke"))
    assert [reply_of(op).decision for _, op in client.sent] == (["failed"] if kind == "client_tool" else [])
    assert asks.open(ONE, opened(ONE, kind), 1) is None


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("named", ["item", "c", "another"])
def test_request_is_settled_by_its_item_or_its_call_and_only_in_its_own_thread(kind: str, named: str) -> None:
    asks = Asks(cast(Any, Keeps()))
    first, second = (asks.open(session, opened(session, kind), 1) for session in (ONE, OTHER))
    assert first is not None
    assert second is not None
    settled = RequestResolved(TurnId("t"), ItemId(named))
    assert asks.resolved(OTHER, settled) == ([second.id] if named != "another" else [])
    assert asks.resolved(OTHER, settled) == []
    assert (asks.open(OTHER, opened(OTHER, kind), 1) is None) is (named == "another")
    assert asks.open(ONE, opened(ONE, kind), 1) is None


@pytest.mark.parametrize("kind", ["command", "patch"])
@pytest.mark.parametrize("word", ["accept", "acceptForSession", "decline", "cancel"])
async def test_request_whose_answer_ends_its_turn_is_settled_by_it_and_no_other(kind: str, word: str) -> None:
    asks = Asks(cast(Any, Keeps()))
    first, second = (asks.open(session, opened(session, kind), 1) for session in (ONE, OTHER))
    assert first is not None
    assert second is not None
    assert await asks.answer(Answer(first.id, {"decision": word})) == (first if word == "cancel" else None)
    asks.left(ONE)
    assert asks.open(OTHER, opened(OTHER, kind), 1) is None


@pytest.mark.parametrize("kind", ["command", "patch"])
async def test_answer_of_version_2_keeps_the_words_and_the_moment_of_the_request(kind: str) -> None:
    client = Keeps()
    asks = Asks(cast(Any, client))
    asked = asks.open(ONE, opened(ONE, kind), 1)
    assert asked is not None
    assert asked.params["startedAtMs"] == OPENED_MS
    await asks.answer(Answer(asked.id, {"decision": "accept"}))
    ((_, op),) = client.sent
    assert (op.shown.surface, op.shown.opened_ms) == ("app-server v2", OPENED_MS)
    assert "git push" in op.shown.text or "/w/a" in op.shown.text


FORMS: list[tuple[str, dict[str, Any] | None, str]] = [
    *[
        (kind, {"decision": word}, word)
        for kind in APPROVALS
        for word in ("approved", "approved_for_session", "denied", "abort")
    ],
    ("command", None, "denied"),
    ("prefix", None, "denied"),
    ("patch", None, "denied"),
    ("choices", {"Store": "1"}, "answered"),
    ("choices", None, "cancelled"),
    ("plan", {"decision": "approved", "feedback": "none"}, "approved"),
    ("plan", {"decision": "rejected"}, "rejected"),
    ("plan", {"decision": "revise", "feedback": "shorter"}, "revised"),
    ("plan", None, "rejected"),
    ("elicitation", {}, "accept"),
    ("elicitation", None, "decline"),
]
"""The contents that are filled in; None: the person declines."""


@pytest.mark.parametrize(("kind", "content", "decision"), FORMS)
def test_form_of_an_agents_request_is_answered_for_that_agent(
    kind: str, content: dict[str, Any] | None, decision: str
) -> None:
    form = form_of(request_of(EVERY[kind]).asked_by(3, OTHER, "0/3"), OPENED_MS)
    assert form is not None
    op: Any = form.declined if content is None else form.read(content)
    reply = reply_of(op)
    assert (reply.id, reply.agent_id, reply.decision) == ("c", 3, decision)
    if kind in APPROVALS:
        assert (op.shown.surface, op.shown.opened_ms) == ("mcp", OPENED_MS)


# ── version 1 ─────────────────────────────────────────────────────────────────────────────────────


class TwoConversations:
    """A client of version 1 that listens to two conversations, each of which asks under the same ids."""

    def __init__(self) -> None:
        self.client = Keeps()
        self.left: list[SessionId] = []
        place = SimpleNamespace(
            tell=lambda line: None,
            principal=Principal("ann"),
            ports=SimpleNamespace(now_ms=lambda: 1),
            new_client=lambda: self.client,
            threads=SimpleNamespace(leave=lambda session, listener: self.left.append(session)),
        )
        listening = {"one": ONE, "other": OTHER, "again": OTHER}
        self.conversations = Conversations(cast(Any, place), dict(listening))
        for session in (ONE, OTHER):
            for agent in (0, 1):
                self.hears(session, {**ASKS["command"], "turn_id": f"t{agent}", "agent_id": agent or None})

    def hears(self, session: SessionId, message: dict[str, Any], id: str = "t0") -> None:
        self.conversations.hear(Told(session, Event(id, message), ()))

    async def answers(self) -> list[tuple[SessionId, int]]:
        """Answers all that was ever asked; the session and the agent of each that counts."""
        for number in range(4):
            await self.conversations.answered(Answer(f"conversation-{number}", {"decision": "approved"}))
        return [(session, op.agent_id or 0) for session, op in self.client.sent]


def settles(two: TwoConversations) -> None:
    two.hears(OTHER, {"type": "request_resolved", "call_id": "c", "agent_id": 1, "decision": "denied"})


def completes(two: TwoConversations) -> None:
    two.hears(OTHER, {"type": "task_complete"})


def aborts(two: TwoConversations) -> None:
    two.hears(OTHER, {"type": "turn_aborted", "reason": "interrupted"})


def ends_another_turn(two: TwoConversations) -> None:
    two.hears(OTHER, {"type": "task_complete"}, id="t-before")


def goes_back(two: TwoConversations) -> None:
    two.hears(OTHER, {"type": "warning", "message": GAP_TEXTS["rewound"]})


def stops_one_listener(two: TwoConversations) -> None:
    assert two.conversations.stop("other")


def stops_both(two: TwoConversations) -> None:
    assert two.conversations.stop("other")
    assert two.conversations.stop("again")


def is_gone(two: TwoConversations) -> None:
    two.conversations.lose(OTHER)


@pytest.mark.parametrize(
    ("happens", "left"),
    [
        (settles, [0]),
        (completes, [1]),
        (aborts, [1]),
        (ends_another_turn, [0, 1]),
        (goes_back, []),
        (stops_one_listener, [0, 1]),
        (stops_both, []),
        (is_gone, []),
    ],
)
async def test_what_ends_requests_of_one_conversation_leaves_those_of_the_other(
    happens: Any, left: list[int]
) -> None:
    two = TwoConversations()
    happens(two)
    assert await two.answers() == [(ONE, 0), (ONE, 1), *((OTHER, agent) for agent in left)]
    assert two.left == ([OTHER] if happens in (stops_both, is_gone) else [])
    assert two.conversations.hears(ONE)


async def test_every_waiter_for_a_turns_end_is_told_and_none_of_another_conversation() -> None:
    two = TwoConversations()
    ends = [two.conversations.end_of_turn(session) for session in (OTHER, OTHER, ONE)]
    completes(two)
    assert [end.done() for end in ends] == [True, True, False]
    aborts(two)
    two.hears(ONE, {"type": "turn_aborted", "reason": "interrupted"})
    assert [end.result() for end in ends] == ["task_complete", "task_complete", "turn_aborted"]


@pytest.mark.parametrize(
    ("word", "decision"),
    [
        *[(word, word) for word in ("approved", "approved_for_session", "denied", "abort")],
        ("accept", "denied"),
        (None, "denied"),
        (7, "denied"),
    ],
)
@pytest.mark.parametrize(
    "kind", [kind for kind, event in EVERY.items() if "approval_request" in event["type"]]
)
async def test_answer_of_version_1_is_its_word_and_denies_where_it_is_none(
    kind: str, word: Any, decision: str
) -> None:
    request = known_request_of(EVERY[kind])
    assert request is not None
    if method_of_version_1(request) is None:
        return
    two = TwoConversations()
    two.hears(ONE, {**EVERY[kind], "call_id": "d", "agent_id": 2})
    await two.conversations.answered(Answer("conversation-4", {"decision": word}))
    ((session, op),) = two.client.sent
    reply = reply_of(op)
    assert (session, reply.id, reply.agent_id, reply.decision) == (ONE, "d", 2, decision)
    assert (op.shown.surface, op.shown.opened_ms) == ("app-server v1", 1)


@pytest.mark.parametrize(
    "kind", [kind for kind, event in EVERY.items() if "approval_request" in event["type"]]
)
def test_request_of_version_1_names_each_of_its_members_in_both_cases(kind: str) -> None:
    more = {"turn_id": "t", "agent_id": 3, "agent_path": "0/3", "grant_root": "/w", "changes_left_out": 2}
    request = known_request_of({**EVERY[kind], **more})
    assert request is not None
    if method_of_version_1(request) is None:
        return
    params = params_of_version_1(ONE, request)
    snake = {name: value for name, value in params.items() if "_" in name}
    assert {"call_id", "conversation_id", *more} <= snake.keys()
    assert {name: params[to_camel(name)] for name in snake} == snake


@pytest.mark.parametrize("listeners", [0, 1, 2])
@pytest.mark.parametrize("said", ["nothing", "error", "answer"])
async def test_listener_that_is_added_later_is_asked_again_what_was_left_open_and_nothing_else(
    listeners: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests are open: one that the client has said something to, or not, and one that it has."""
    asking = [{**ASKS["command"], "call_id": call, "turn_id": "t"} for call in ("c", "d")]
    lines: list[Any] = []
    client = Keeps()

    async def still_open(found: Any, head: Any) -> list[Any]:
        return [request_of(event) for event in asking]

    async def hear(*_: Any) -> None:
        return None

    place = SimpleNamespace(
        tell=lines.append,
        principal=Principal("ann"),
        client=None,
        ports=SimpleNamespace(now_ms=lambda: 1, found=None),
        new_client=lambda: client,
        threads=SimpleNamespace(hear=hear, leave=lambda session, listener: None),
    )
    conversations = Conversations(cast(Any, place), {str(number): ONE for number in range(max(1, listeners))})
    for event in asking:
        conversations.hear(Told(ONE, Event("t", event), ()))
    if said != "nothing":
        result = {"decision": "approved"} if said == "answer" else None
        await conversations.answered(Answer("conversation-0", result, "no"))
    if listeners == 0:
        assert conversations.stop("0")
    lines.clear()
    monkeypatch.setattr(door_module, "open_requests", still_open)
    await conversations.listen(cast(Any, SimpleNamespace(session=ONE)))
    asked = [line.params["callId"] for line in lines if line.method == "execCommandApproval"]
    events = [line for line in lines if line.method == "codex/event/exec_approval_request"]
    anew = ["c", "d"] if listeners == 0 else ["c"] if said == "error" else []
    assert (asked, len(events)) == (anew, 2 if listeners == 0 else 0)
    await conversations.answered(Answer("conversation-2", {"decision": "denied"}))
    assert len(client.sent) == (said == "answer") + bool(anew)
