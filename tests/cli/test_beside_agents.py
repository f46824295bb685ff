"""A person beside an agent: what is put before them and when, what of it is kept, and how they leave."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from rich.console import Console

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import BrokerConfig, Claimed, Committed, SessionHead
from orchestrator.cli import logs, tree
from orchestrator.core import facts as f
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry, fact
from orchestrator.core.ids import AgentId
from orchestrator.core.tree import Mail
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.requests import request_of
from orchestrator.terminal import attachment
from orchestrator.terminal.faults import Fault
from orchestrator.terminal.live import JsonView
from orchestrator.terminal.streams import Left
from orchestrator.terminal.watched_turn import TYPED_IN_VAIN, Prompt, Typed
from orchestrator.views.agent_past import MAIL, Page
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from tests.broker.actors import step, working
from tests.cli.test_typed_lines import ASKED, OF_AGENT, Beside, Notes, Sent, happens
from tests.requests.test_answers import ASKS
from tests.stated import StatedRedis
from tests.views.test_threads import ROOT

QUESTION = {"id": "q", "header": "Q", "question": "Which token?", "isOther": True}
SECRET = {
    "type": "request_user_input", "call_id": "s1", "turn_id": "u1",
    "questions": [{**QUESTION, "isSecret": True}],
}  # fmt: skip
PLAIN = {**SECRET, "call_id": "s2", "questions": [{**QUESTION, "isSecret": False}]}

TWO = {**SECRET, "call_id": "s3", "questions": [{**QUESTION, "isSecret": False}, {**QUESTION, "id": "r"}]}
OTHERS = [(ASKS[kind],) for kind in ("plan", "choices", "elicitation", "client_tool", "patch")]


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("line", ["hush", "y", "!make", "/stop", "/stop now"])
@pytest.mark.parametrize("open", [(), (ASKED,), (PLAIN,), (ASKED, SECRET), (SECRET,), (SECRET, ASKED)])
async def test_line_that_was_hidden_answers_a_secret_question_or_is_for_nobody(
    open: tuple[dict[str, Any], ...], line: str, agent: int
) -> None:
    """Another person may have answered it while it was typed."""
    beside = Beside(agent, *open, status="running")
    await beside.attached._typed(line, hidden=True)
    if open[:1] == (SECRET,):
        (op,) = [submission.op for _, submission in beside.client.sent]
        assert op.type == "user_input_answer"
        assert [one.answers for one in op.response.answers.values()] == [(line,)]
        assert TYPED_IN_VAIN not in beside.view.notes
    else:
        assert (beside.client.sent, beside.view.notes) == ([], [TYPED_IN_VAIN])
        assert len(beside.attached._open) == len(open)


def asks(asked: dict[str, Any]) -> Event:
    return Event("u1", asked)


def resolved(call: str) -> Event:
    return Event(
        "u1", {"type": "request_resolved", "call_id": call, "session_id": ROOT, "decision": "denied"}
    )


async def test_oldest_request_is_put_and_the_next_when_it_is_decided_and_again_where_it_has_moved_up() -> (
    None
):
    beside = Beside(0, status="running")
    seen: list[tuple[list[str], int]] = []
    for event in (
        happens("agent_message", "u1", message="before"),
        asks(ASKED),
        happens("agent_message_delta", "u1", delta="streams"),
        happens("agent_message", "u1", message="between"),
        asks(OF_AGENT),
        resolved("c9"),
        resolved("c1"),
        happens("agent_message", "u1", message="behind"),
    ):
        before = len(beside.view.notes)
        beside.attached._event(event)
        seen.append((list(beside.view.asked), len(beside.view.notes) - before))
    assert [asked for asked, _ in seen] == [[], *[["c1"]] * 5, *[["c1", "c2"]] * 2]
    notes = [new for _, new in seen]
    assert notes[:4] == [0, 1, 0, 1], "a piece of a text moves nothing"
    assert notes[-2:] == [1, 1]
    assert "agent 3" in beside.view.notes[-1]


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("others", [(), (ASKED,), (ASKED, PLAIN)])
async def test_request_that_opens_between_the_look_at_those_that_wait_and_the_events_is_put_once(
    others: tuple[dict[str, Any], ...], agent: int
) -> None:
    """With the answers that it has so far."""
    beside = Beside(agent, TWO, *others, status="running")
    listed = list(beside.attached._open)
    beside.attached._put(listed[0])
    await beside.attached._typed("the first", hidden=False)
    for event in (TWO, *others):
        beside.attached._event(asks(event))
    assert (beside.view.asked, list(beside.attached._open)) == (["s3"], listed)
    await beside.attached._typed("the second", hidden=False)
    (op,) = [cast(Any, submission.op) for _, submission in beside.client.sent]
    assert {name: one.answers for name, one in op.response.answers.items()} == {
        "q": ("the first",),
        "r": ("the second",),
    }
    assert beside.view.asked == ["s3", *(str(other["call_id"]) for other in others[:1])]


async def test_answer_of_a_person_is_followed_by_the_next_request() -> None:
    third = {**ASKED, "call_id": "c3"}
    beside = Beside(0, ASKED, PLAIN, third, status="running")
    await beside.attached._typed("n", hidden=False)
    assert beside.view.asked == ["s2"]
    await beside.attached._typed("a token", hidden=False)
    assert beside.view.asked == ["s2", "c3"]
    kinds = [submission.op.type for _, submission in beside.client.sent]
    assert kinds == ["exec_approval", "user_input_answer"]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("open", [(), (ASKED,), (PLAIN,), (SECRET,), (TWO,), *OTHERS])
async def test_empty_line_leaves_a_question_out_that_may_be_left_and_is_no_message(
    open: tuple[dict[str, Any], ...], agent: int, hidden: bool
) -> None:
    """As the line that asks says: "empty to leave it out"."""
    beside = Beside(agent, *open, status="running")
    left = Left()
    for line in ("", "  ") if open == (TWO,) else ("",):
        beside.attached._news.put_nowait(Typed(line.strip(), hidden))
    beside.attached._news.put_nowait(None)
    await beside.attached._handle(left)
    ops = [submission.op for _, submission in beside.client.sent]
    if open in ((PLAIN,), (SECRET,), (TWO,)):
        (op,) = ops
        assert op.type == "user_input_answer"
        assert not any(one.answers for one in op.response.answers.values())
        assert len(beside.attached._open) == 0
    else:
        assert (ops, len(beside.attached._open)) == ([], len(open))
    assert TYPED_IN_VAIN not in beside.view.notes, "nothing was typed"


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("one\n", ["one"]),
        ("one\ntwo\r\n/stop\n", ["one", "two", "/stop"]),
        ("pasted \u2028/stop\n", ["pasted \u2028/stop"]),
        ("a\x0b!make\x0c/stop\x85b\x1c\u2029c\n", ["a\x0b!make\x0c/stop\x85b\x1c\u2029c"]),
        ("\n \n", ["", ""]),
        ("caf\u00e9", ["café"]),
    ],
)
async def test_line_is_what_a_person_has_ended_and_no_part_of_what_they_pasted(
    typed: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of a text is no command, and no message of its own."""
    given = [typed.encode(), b""]

    async def read(limit: int) -> bytes:
        return given.pop(0)

    monkeypatch.setattr(attachment, "read_stdin", read)
    beside = Beside(3, status="running")
    await beside.attached._read(Left())
    news = [beside.attached._news.get_nowait() for _ in range(beside.attached._news.qsize())]
    assert news == [*(Typed(line, False) for line in lines), None]


@pytest.mark.parametrize(
    ("reads", "lines"),
    [
        ([b"he", b"llo\nwor", b"ld\n"], ["hello", "world"]),
        ([b"look at a", b"/stop b\n!make"], ["look at a/stop b", "!make"]),
        ([b"caf\xc3", b"\xa9\r", b"\n"], ["café"]),
        ([b"\n", b"\n", b"one"], ["", "", "one"]),
        ([b"x" * 700_000] * 3 + [b"\nnext\n"], [None, "next"]),
        ([b"x" * 700_000] * 2, [None]),
    ],
)
async def test_line_that_comes_through_a_pipe_in_pieces_is_one_line(
    reads: list[bytes], lines: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*reads, b""]

    async def read(limit: int) -> bytes:
        return given.pop(0)

    monkeypatch.setattr(attachment, "read_stdin", read)
    monkeypatch.setattr("os.isatty", lambda _: False)
    beside = Beside(3, status="running")
    await beside.attached._read(Left())
    news = [beside.attached._news.get_nowait() for _ in range(beside.attached._news.qsize())]
    assert news == [*(Typed(line, False) for line in lines if line is not None), None]
    assert len(beside.view.notes) == lines.count(None), "what was not sent is told once"


async def test_what_a_person_ends_at_a_terminal_without_a_line_break_is_sent_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Ctrl-D, which does not end the input then."""
    given = [b"so far", b"and more\n", b""]

    async def read(limit: int) -> bytes:
        return given.pop(0)

    monkeypatch.setattr(attachment, "read_stdin", read)
    monkeypatch.setattr("os.isatty", lambda _: True)
    beside = Beside(3, status="running")
    await beside.attached._read(Left())
    news = [beside.attached._news.get_nowait() for _ in range(beside.attached._news.qsize())]
    assert news == [Typed("so far", False), Typed("and more", False), None]


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────


class Leaves:
    """A person who presses Ctrl-C at once."""

    def __enter__(self) -> Left:
        left = Left()
        left.set()
        return left

    def __exit__(self, *_: object) -> None:
        pass


async def _nothing(*_: object) -> list[Any]:
    return []


async def _silence(*_: Any) -> AsyncIterator[Event]:
    await asyncio.Event().wait()
    yield happens("background_event", "")


async def _heir(*_: object) -> str:
    return "the task goes on"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"status": "idle"}, "left"),
        ({"status": "closed"}, "left"),
        (None, "left"),
        ({"status": "awaiting_approval"}, "left; it waits as it did"),
        ({"status": "waiting"}, "left; it waits as it did"),
        ({"status": "running", "holder": "w1"}, "left; the task goes on"),
        ({"status": "running"}, "left; it waits as it did"),
        ({"status": "idle", "holder": "w1"}, "left; the task goes on"),
        ({"status": "idle", "sq_tip": "2-0"}, "left; the task goes on"),
        ({"status": "awaiting_approval", "sq_tip": "2-0"}, "left; the task goes on"),
    ],
)  # fmt: skip
async def test_who_leaves_an_agent_reads_what_becomes_of_it(
    facts: dict[str, Any] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "open_requests_of", _nothing)
    monkeypatch.setattr(attachment, "ctrl_c", Leaves)
    monkeypatch.setattr(attachment, "who_goes_on", _heir)
    monkeypatch.setattr(Sent, "follow", _silence, raising=False)
    monkeypatch.setattr(attachment, "with_messages", _silence)
    beside = Beside(3, **facts or {})
    if facts is None:
        monkeypatch.setattr(Sent, "head", lambda *_: _none())
    await beside.attached.run()
    assert beside.view.notes[-1] == said
    assert beside.client.sent == [], "the agent stays as it is"


@pytest.mark.parametrize("agent", [0, 3])
async def test_who_comes_to_an_agent_is_asked_what_a_person_answers_and_told_of_what_waits_for_a_program(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of a program's tool takes the place of no request: `y` would be said to the agent."""
    beside = Beside(agent, status="awaiting_approval")
    waiting = [_waits(beside, each) for each in (ASKS["client_tool"], ASKED)]

    async def open(*_: object) -> list[Any]:
        return waiting

    monkeypatch.setattr(attachment, "open_requests_of", open)
    monkeypatch.setattr(attachment, "ctrl_c", Leaves)
    monkeypatch.setattr(attachment, "with_messages", _silence)
    monkeypatch.setattr(Sent, "follow", _silence, raising=False)
    await beside.attached.run()
    assert beside.view.asked == ["c1"]
    assert beside.view.notes[0] == "waiting for a program: its client is to do look"
    await beside.attached._typed("y", hidden=False)
    assert [op["type"] for op in beside.client.ops] == ["exec_approval"]


def _waits(beside: Beside, event: dict[str, Any]) -> Any:
    request = request_of(event)
    return SimpleNamespace(
        session=beside.session, request=request, named_request=request, subject=request.subject
    )


async def _none() -> None:
    return None


@pytest.mark.parametrize("agent", [0, 3])
async def test_who_sits_beside_a_session_that_is_deleted_is_told_so(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: Any) -> AsyncIterator[Event]:
        yield happens("agent_message", "u1", message="last words")
        raise UnknownSession(beside.session)

    async def no_line(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(attachment, "open_requests_of", _nothing)
    monkeypatch.setattr(attachment, "read_stdin", no_line)
    monkeypatch.setattr(Sent, "follow", _silence, raising=False)
    monkeypatch.setattr(attachment, "with_messages", gone)
    beside = Beside(agent, status="running")
    with pytest.raises(Fault, match=f"session {beside.session} was deleted"):
        await beside.attached.run()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


# ── what happens while a person comes ─────────────────────────────────────────────────────────────


class Working:
    """A session on a broker, as its worker goes on with it, and a person who comes to it."""

    def __init__(self, broker: Broker, held: Claimed, agent: int) -> None:
        self.broker, self.held, self.agent = broker, held, agent
        self.at: Claimed | Committed = held
        self.said = 0

    async def says(self, *texts: str) -> None:
        """A commit for each text: a message from an agent, then an event with the same words."""
        for text in texts:
            content = {"prompt": text}
            mail = Mail(text, "message", 1, False, 1, {"agent_id": 4}, content)
            lines = [
                encode_entry(entry, 1, {}).line
                for entry in (fact(f.MailReceived(mail)), Entry(EVENT_MSG, _event(text), "u1"))
            ]
            self.said += 1
            made = step(self.at, self.held.claim, f"{self.agent} {self.said}", lines)
            payload = orjson.dumps({"id": "u1", "msg": _event(text)})
            made = replace(made, events=tuple(replace(event, payload=payload) for event in made.events))
            committed = await self.broker.commits.commit(made)
            assert isinstance(committed, Committed)
            self.at = committed

    async def looked_at(self) -> Addressed:
        head = await self.broker.logs.head(self.held.claim.session)
        assert head is not None
        return Addressed(replace(head, agent_id=AgentId(self.agent)))

    def opened(self) -> Any:
        ports = ClientPorts(self.broker, cast(Any, None), os.urandom)

        async def large_texts(*_: object) -> dict[str, str]:
            return {}

        client = Client(ports, "person")
        return SimpleNamespace(broker=self.broker, client=lambda via="": client, large_texts=large_texts)


def _event(text: str) -> dict[str, Any]:
    return {"type": "agent_message", "message": text}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    double = StatedRedis()
    opened = Broker(Connection(double, double), BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    yield opened
    await opened.aclose()


def _words(event: Event) -> str:
    return f"✉ {event.msg['text']}" if event.type == MAIL else str(event.msg["message"])


def _told(*texts: str) -> list[str]:
    return [words for text in texts for words in (f"✉ {text}", text)]


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("between", [(), ("b",), ("b", "c")])
@pytest.mark.parametrize("before", [(), ("a",)])
async def test_person_is_told_of_all_that_happens_behind_the_look_at_the_agent_and_of_nothing_twice(
    before: tuple[str, ...], between: tuple[str, ...], agent: int, broker: Broker
) -> None:
    beside, other = [Working(broker, await working(broker), number) for number in (agent, 7)]
    await beside.says(*before)
    target = await beside.looked_at()
    await other.says("of another agent")
    await beside.says(*between)
    attached = attachment.Attachment(beside.opened(), target, Notes())
    listening = asyncio.create_task(attached._listen(Left()))
    heard: list[str] = []
    try:
        for behind in ("d", "e"):
            await other.says(f"{behind} of another agent")
            await beside.says(behind)
        while heard[-1:] != ["e"]:
            event = await asyncio.wait_for(attached._news.get(), 10)
            assert isinstance(event, Event)
            heard.append(_words(event))
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert heard == _told(*between, "d", "e")


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize("between", [(), ("b",), ("b", "c")])
async def test_reader_who_follows_is_shown_all_that_happens_while_the_page_is_read(
    between: tuple[str, ...], agent: int, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Working(broker, await working(broker), agent)
    await beside.says("a")
    shown: list[str] = []
    left = Left()

    class Shows(JsonView):
        def event(self, event: Event) -> None:
            shown.append(_words(event))
            if event.msg.get("message") == "d":
                left.set()

    @asynccontextmanager
    async def opens(*_: object, **__: object) -> AsyncIterator[Any]:
        yield beside.opened()

    async def looks(*_: object) -> Addressed:
        return await beside.looked_at()

    async def reads(found: object, head: SessionHead, *_: object) -> Page:
        await beside.says(*between)
        return Page((Event("u1", _event("a")),), None)

    @contextmanager
    def until_left() -> Iterator[Left]:
        behind = asyncio.create_task(beside.says("d"))
        yield left
        behind.result()

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opens)
    monkeypatch.setattr("orchestrator.terminal.live.JsonView", Shows)
    monkeypatch.setattr("orchestrator.terminal.streams.ctrl_c", until_left)
    monkeypatch.setattr("orchestrator.views.find.addressed", looks)
    monkeypatch.setattr("orchestrator.views.agent_past.page_before", reads)
    invocation = cast(Any, SimpleNamespace(settings=lambda: None))
    await asyncio.wait_for(logs._logs(invocation, ("s", agent), (20, None), (True, True)), 10)
    assert shown == ["a", *_told(*between, "d")]


@pytest.mark.parametrize("agent", [0, 3])
async def test_who_follows_a_log_or_a_tree_that_is_deleted_is_told_so(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(agent, status="running")

    class Reader:
        tree = beside.attached.target.tree
        broker = SimpleNamespace(logs=SimpleNamespace(wait_tree=lambda *_: _nothing()))

        async def picture(self) -> Any:
            raise UnknownSession(str(self.tree))

    @asynccontextmanager
    async def opens(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(client=lambda: SimpleNamespace(follow=_silence))

    async def looks(*_: object) -> Addressed:
        return beside.attached.target

    async def reads(*_: object) -> Page:
        return Page((), None)

    async def gone(*_: object) -> AsyncIterator[Event]:
        yield happens("agent_message", "u1", message="last words")
        raise UnknownSession(beside.session)

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opens)
    monkeypatch.setattr("orchestrator.views.find.addressed", looks)
    monkeypatch.setattr("orchestrator.views.agent_past.page_before", reads)
    monkeypatch.setattr("orchestrator.views.agent_past.with_messages", gone)
    invocation = cast(Any, SimpleNamespace(settings=lambda: None))
    with pytest.raises(Fault, match=f"session {beside.session} was deleted"):
        await logs._logs(invocation, ("s", agent), (20, None), (True, True))
    monkeypatch.setattr("orchestrator.terminal.tree_view.headline", lambda _: "")
    monkeypatch.setattr("orchestrator.terminal.tree_view.drawing", lambda _: "")
    seen = cast(Any, SimpleNamespace(registry=SimpleNamespace(tree_seq=1)))
    with pytest.raises(Fault, match=f"session {Reader.tree} was deleted"):
        await tree._watch(cast(Any, Reader()), seen, Console(file=io.StringIO()))


async def test_terminal_shows_what_is_typed_again_behind_a_secret_answer() -> None:
    beside, shown = Beside(0, SECRET, status="running"), list[bool]()
    beside.attached._echo = cast(Any, SimpleNamespace(set=lambda *, hides: shown.append(not hides)))
    beside.attached._put(cast(Any, beside.attached._open.first))
    await beside.attached._typed("hush", hidden=True)
    assert [op["type"] for op in beside.client.ops] == ["user_input_answer"]
    assert (shown[0], shown[-1]) == (False, True)


def test_answers_are_given_anew_where_those_before_did_not_do() -> None:
    """Also one that is left out now, and was given then."""
    prompt = Prompt(request_of(TWO))
    assert prompt.take("the first") is None
    assert prompt.take("x" * (33 << 10)) is None
    assert "at most" in prompt.fault
    assert prompt.take("") is None
    op = cast(Any, prompt.take("the second"))
    assert {name: one.answers for name, one in op.response.answers.items()} == {"r": ("the second",)}


@pytest.mark.parametrize(
    ("line", "kind"), [("y", "approved"), ("n", "rejected"), ("ok", "approved"), ("x", ""), ("?", "")]
)
def test_letter_that_is_no_decision_changes_no_plan(line: str, kind: str) -> None:
    prompt = Prompt(request_of(ASKS["plan"]))
    op = cast(Any, prompt.take(line))
    assert (op.response.type if op is not None else "") == kind
    assert ("is no answer to a plan" in prompt.fault) is (not kind)
