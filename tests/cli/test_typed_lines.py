"""Each line that a person types, in a conversation and beside an agent: what is handed in, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.follow import BEGINNING
from orchestrator.core.history import MAX_IMAGE_BYTES
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.protocol.ops import OverrideTurnContext
from orchestrator.protocol.scalars import ModeKind
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of
from orchestrator.terminal import attachment, chat
from orchestrator.terminal.attachment import COMMANDS_AT_ROOT, Attachment
from orchestrator.terminal.chat import WOULD_STOP, Chat, Editor, Opening
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.terminal.live import LiveView
from orchestrator.terminal.origin import Origin
from orchestrator.terminal.streams import Left
from orchestrator.terminal.watched_turn import NOT_SEEN, NOT_SENT, SEEN_S, Conversation, Seat
from orchestrator.views.approvals import Asked
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from tests.tools.test_images import encoded, png
from tests.views.test_threads import CHILD, ROOT, head

TAKEN = {"items", "agent_id", "text", "interrupt", "name", "review_request", "plan_request", "command"}


class Sent:
    """A client that keeps what is handed in."""

    def __init__(self, **facts: Any) -> None:
        self.sent: list[tuple[SessionId, Submission]] = []
        self.facts = facts

    async def submit(self, session: SessionId, submission: Submission) -> None:
        self.sent.append((session, submission))

    async def head(self, session: SessionId) -> Any:
        return head(session=session, **self.facts)

    @property
    def ops(self) -> list[dict[str, Any]]:
        """Each op by its type and what is said in it."""
        wires = [written(submission.op) for _, submission in self.sent]
        return [
            {"type": wire["type"], **{k: v for k, v in wire.items() if k in TAKEN and v is not None}}
            for wire in wires
        ]


class Notes(LiveView):
    """A view that keeps what is noted and asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.asked: list[str] = []

    def event(self, event: Event) -> None:
        pass

    def ask(self, request: Any) -> str:
        self.asked.append(request.call_id)
        return ""

    def note(self, text: str) -> None:
        self.notes.append(text)


class Line(Editor):
    """The line of an editor without a terminal."""

    def __init__(self) -> None:
        self.question, self.hid = "", False

    def ask(self, question: str, *, hides: bool = False) -> None:
        self.question = question

    def draw(self) -> None:
        pass


def happens(type: str, id: str, **fields: Any) -> Event:
    return Event(id, {"type": type, **fields}, BEGINNING)


class Person:
    """A person in a conversation with a session at rest."""

    def __init__(self, *images: Path, **facts: Any) -> None:
        self.client, self.view = Sent(holder="w1", **facts), Notes()
        seat = Seat(cast(Any, self.client), ROOT, self.view, interactive=True)
        self.chat = Chat(seat, None, editor=Line(), images=images, goes_on=_heir)

    async def types(self, line: str | None) -> ExitCode | None:
        return await self.chat._typed(line)

    async def hears(self, type: str, id: str = "", **fields: Any) -> None:
        await self.chat._event(happens(type, id or self.last, **fields))

    @property
    def last(self) -> str:
        """The id of what was handed in last."""
        return str(self.client.sent[-1][1].id)

    def taken(self) -> list[dict[str, Any]]:
        """The ops that were handed in since the last look."""
        found = self.client.ops
        self.client.sent.clear()
        self.view.notes.clear()
        return found


async def _heir() -> str:
    return "worker w1 has it"


def text(said: str) -> dict[str, Any]:
    return {"type": "user_input", "items": [{"type": "text", "text": said}]}


def message(said: str, *, interrupt: bool) -> dict[str, Any]:
    """An op without the member `interrupt` interrupts nothing."""
    told = {"type": "message_agent", "agent_id": 0, "text": said}
    return {**told, "interrupt": True} if interrupt else told


async def _rests(person: Person) -> None:
    pass


async def _has_handed_in(person: Person) -> None:
    await person.types("first")


async def _runs(person: Person) -> None:
    await person.types("first")
    await person.hears("task_started")


async def _runs_for_another(person: Person) -> None:
    await person.hears("task_started", "theirs")


async def _went_on_before(person: Person) -> None:
    person.chat._busy.add("")


async def _has_planned(person: Person) -> None:
    await person.types("/plan a login")


async def _is_reviewed(person: Person) -> None:
    await person.types("/review")


async def _has_a_command(person: Person) -> None:
    await person.types("!make")


async def _is_done(person: Person) -> None:
    await _runs(person)
    await person.hears("task_complete", last_agent_message="done")


async def _was_refused(person: Person) -> None:
    await person.types("first")
    await person.hears("error", message="the text is too long")


async def _was_stopped(person: Person) -> None:
    await _runs(person)
    await person.hears("turn_aborted", reason="interrupted")


State = Callable[[Person], Awaitable[None]]
RESTS: Sequence[State] = (_rests, _is_done, _was_refused, _was_stopped)
WORKS: Sequence[State] = (
    _has_handed_in, _runs, _runs_for_another, _went_on_before, _has_planned, _is_reviewed, _has_a_command,
)  # fmt: skip
REVIEW = {"target": {"type": "baseBranch", "branch": "main"}}
LINES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "hello": (text("hello"), message("hello", interrupt=False)),
    "//halt": (text("/halt"), message("/halt", interrupt=False)),
    "/stop": ({"type": "interrupt"}, {"type": "interrupt"}),
    "/stop and wait": (text("and wait"), message("and wait", interrupt=True)),
    "!make test": ({"type": "run_user_shell_command", "command": "make test"}, None),
    "/plan a login": ({"type": "plan", "plan_request": {"goal": "a login"}}, None),
    "/review main": ({"type": "review", "review_request": REVIEW}, None),
    "/name My work": ({"type": "set_thread_name", "name": "My work"},) * 2,
    "/plan": (None, None),
    "!": (None, None),
    "/help": (None, None),
    "/halt": (None, None),
    " ": (None, None),
}
"""By the line: what is handed in while nothing runs, and while a task runs or was handed in."""


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("state", [*RESTS, *WORKS])
async def test_each_line_is_handed_in_as_what_it_means_and_none_ends_a_task_that_it_does_not_name(
    state: State, line: str
) -> None:
    person = Person()
    await state(person)
    person.taken()
    await person.types(line)
    notes = person.view.notes
    if line in ("!make test", "/plan a login", "!", "/plan") and state in WORKS:
        assert WOULD_STOP in notes
    if line == "/review main":
        assert any("no review yet" in note for note in notes) is (state in WORKS)
    if line == "/stop":
        assert any("nothing runs" in note for note in notes) is (state in RESTS)
    wanted = LINES[line][state in WORKS]
    assert person.taken() == ([] if wanted is None else [wanted])


@pytest.mark.parametrize("way", [None, "/quit", "/detach", "Ctrl-C"])
@pytest.mark.parametrize("state", [*RESTS, *WORKS])
async def test_who_leaves_interrupts_nothing_and_reads_who_goes_on_with_a_task_that_began_or_waits(
    state: State, way: str | None
) -> None:
    person = Person()
    await state(person)
    person.taken()
    works = state in WORKS
    if way == "Ctrl-C":
        assert await person.chat._interrupt() is None
        assert person.taken() == [{"type": "interrupt"}] * works, "the first one stops the turn"
        assert await person.chat._interrupt() is ExitCode.INTERRUPTED
    else:
        assert await person.types(way) is ExitCode.DONE
    assert person.view.notes == ["left; worker w1 has it" if works else "left"]
    assert person.taken() == []


@pytest.mark.parametrize("between", ["hello", "/help", "/stop", "task_started"])
async def test_ctrl_c_leaves_only_where_nothing_was_typed_and_no_task_began_since_the_last_one(
    between: str,
) -> None:
    person = Person()
    await _runs(person)
    assert await person.chat._interrupt() is None
    if between == "task_started":
        await person.hears(between, "next")
    else:
        await person.types(between)
    person.taken()
    assert await person.chat._interrupt() is None
    assert person.taken() == [{"type": "interrupt"}]
    assert await person.chat._interrupt() is ExitCode.INTERRUPTED


MEANWHILE: dict[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "a name": [("thread_name_updated", {"thread_id": ROOT, "thread_name": "theirs"})],
    "words": [("user_message", {"message": "of another"})],
    "a refusal": [("error", {"message": "the text is too long"})],
    "a warning": [("warning", {"message": "a server did not start"})],
    "a question": [("exec_approval_request", {"call_id": "c1", "command": ["ls"], "cwd": "/w"})],
    "a task": [("task_started", {}), ("task_complete", {"last_agent_message": "done"})],
    "a stop": [("task_started", {}), ("turn_aborted", {"reason": "interrupted"})],
    "the end of a task": [("task_complete", {"last_agent_message": "done"})],
}
"""Events of others between a line and the task that it begins."""


@pytest.mark.parametrize("ids", [("theirs",), ("",), ("theirs", "third")])
@pytest.mark.parametrize("meanwhile", [[each] for each in MEANWHILE] + [list(MEANWHILE)[::-1]], ids=str)
@pytest.mark.parametrize("first", ["hello", "!make test", "/plan a login", "/review main"])
async def test_what_was_typed_to_begin_a_task_runs_from_then_on_whatever_is_told_of_others(
    first: str, meanwhile: Sequence[str], ids: Sequence[str]
) -> None:
    person = Person()
    await person.types(first)
    mine = person.last
    for happened in meanwhile:
        for id in ids:
            for type, fields in MEANWHILE[happened]:
                await person.chat._event(happens(type, id, **fields))
        person.taken()
        while person.chat.open_requests:
            person.chat.open_requests.take_first()
        await person.types("next")
        await person.types("!make")
        assert person.view.notes == ["› next", "› !make", WOULD_STOP]
        assert person.taken() == [message("next", interrupt=False)]
    assert await person.chat._farewell() == "left; worker w1 has it"
    await person.hears("task_started", mine)
    await person.types("then")
    assert person.taken() == [message("then", interrupt=False)]
    await person.hears("task_complete", mine, last_agent_message="done")
    await person.types("after it")
    assert person.taken() == [text("after it")]


async def test_name_that_is_given_while_a_task_waits_for_its_worker_ends_no_wait() -> None:
    person = Person()
    await person.types("first")
    await person.types("/name Mine")
    await person.hears("thread_name_updated", thread_id=ROOT, thread_name="Mine")
    person.taken()
    await person.types("next")
    assert person.taken() == [message("next", interrupt=False)]


@pytest.mark.parametrize("before", [(), ("!make",), ("/name x",), ("/review",)])
async def test_images_of_the_command_line_go_with_the_first_message_and_with_no_other(
    before: Sequence[str], tmp_path: Path
) -> None:
    image = tmp_path / "a.png"
    person = Person(image, image)
    for line in (*before, "look", "again"):
        await person.types(line)
        await person.hears("task_complete", last_agent_message=None)
    texts = [op["items"] for op in person.taken() if op["type"] == "user_input"]
    assert [[item["type"] for item in items] for items in texts] == [
        ["text", "local_image", "local_image"],
        ["text"],
    ]


async def test_images_of_the_command_line_are_sent_as_content_where_the_folder_is_portable(
    tmp_path: Path,
) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(png(3, 2))
    person = Person(image, image, portable=True)
    await person.types("look")
    [[_, *sent]] = [op["items"] for op in person.taken()]
    assert sent == [{"type": "image", "image_url": encoded(png(3, 2))}] * 2


@pytest.mark.parametrize("content", [None, b"text", png(1, 1, MAX_IMAGE_BYTES)])
async def test_image_that_cannot_be_sent_as_content_is_named_and_nothing_is_asked(
    tmp_path: Path, content: bytes | None
) -> None:
    image = tmp_path / "a.png"
    if content is not None:
        image.write_bytes(content)
    person = Person(image, portable=True)
    with pytest.raises(Fault, match=rf"{image} is not shown, and session {ROOT} was asked nothing"):
        await person.types("look")
    assert person.taken() == []


BEGINS: dict[str | None, dict[str, Any] | None] = {
    "hello": text("hello"),
    "//halt": text("/halt"),
    "!make test": {"type": "run_user_shell_command", "command": "make test"},
    "/plan a login": {"type": "plan", "plan_request": {"goal": "a login"}},
    "/review main": {"type": "review", "review_request": REVIEW},
    None: None,
}
"""The first line of a conversation, and what it begins; None: one that goes on, where nothing was typed."""


@pytest.mark.parametrize("mode", [None, ModeKind.PLAN, ModeKind.CODE])
@pytest.mark.parametrize("first", BEGINS)
async def test_mode_of_the_command_line_is_in_force_before_the_first_line_of_any_conversation(
    first: str | None, mode: ModeKind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that is made with that line: its agent would write where it is to plan."""
    person, asked = Person(), list[tuple[Any, ...]]()

    async def changed(found: Any, session: SessionId, override: Any, wanted: Any) -> Any:
        asked.append((session, override, wanted))
        return None if wanted is None else OverrideTurnContext(model=str(wanted))

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(chat, "changed_from_here", changed)
    monkeypatch.setattr(chat, "take_up_requests", nothing)
    monkeypatch.setattr(Chat, "hearing_ctrl_c", nullcontext)
    monkeypatch.setattr(Chat, "begin", nothing_of_a_chat)
    monkeypatch.setattr(Chat, "run", done)
    at = None if first is not None else head(session=ROOT)
    opening = Opening(Origin(), (), None, mode)
    assert await chat._hold(person.chat, cast(Any, None), opening, (first, at, BEGINNING), None) is DONE
    assert asked == [(ROOT, None, mode)]
    wanted = [] if mode is None else [{"type": "override_turn_context"}]
    begun = BEGINS[first]
    assert person.taken() == [*wanted, *([] if begun is None else [begun])]


DONE = ExitCode.DONE


async def nothing_of_a_chat(self: Chat, busy: bool) -> None:
    """Stands for the reading of lines."""


async def done(self: Chat, cursor: Any, worker: Any) -> ExitCode:
    return DONE


@pytest.mark.parametrize("state", [_rests, _runs])
async def test_words_of_others_are_shown_in_a_conversation_and_ones_own_are_not_again(state: State) -> None:
    person = Person()
    await state(person)
    await person.types("mine")
    await person.hears("user_message", message="mine")
    await person.hears("user_message", "theirs", message="of another")
    await person.hears("user_message", "third", message="two\nrequest c9 was approved")
    shown = [note for note in person.view.notes if note.startswith("» ")]
    assert shown == ["» of another", "» two\n  request c9 was approved"]


ASKED = {"type": "exec_approval_request", "call_id": "c1", "command": ["ls"], "cwd": "/w"}
OF_AGENT = {**ASKED, "agent_id": 3, "session_id": CHILD, "agent_path": "0/3", "call_id": "c2"}


@pytest.mark.parametrize("line", ["y", "a", "n", "q", "YES", "hello", "9", "!make", "/stop", "/stop it"])
async def test_line_at_an_open_request_answers_it_or_is_a_command_and_is_never_said_to_the_agent(
    line: str,
) -> None:
    person = Person()
    await _runs(person)
    person.taken()
    for asked in (ASKED, OF_AGENT):
        person.chat.open_requests.add(request_of(asked))
    await person.types(line)
    kinds = [op["type"] for op in person.client.ops]
    if line.lower() in ("y", "yes", "a", "n", "q"):
        assert kinds == ["exec_approval"]
        assert [one.call_id for one in person.chat.open_requests] == ["c2"], "the oldest, and that alone"
        assert person.view.asked == ["c2"], "then the next is asked"
    else:
        assert kinds == {"/stop": ["interrupt"], "/stop it": ["message_agent"]}.get(line, [])
        assert len(person.chat.open_requests) == 2
        if line in ("hello", "9"):
            assert any("answer the question first" in note for note in person.view.notes)


SETTLED: dict[str, Any] = {"call_id": "c1", "command": ["ls"], "cwd": "/w", "parsed_cmd": []}


# ── beside an agent ───────────────────────────────────────────────────────────────────────────


class Beside:
    """A person who is attached to an agent, or to the root."""

    def __init__(self, agent: int, *open: dict[str, Any], **facts: Any) -> None:
        self.session = CHILD if agent else ROOT
        self.client, self.view = Sent(**facts), Notes()
        target = Addressed(head(session=self.session, agent_id=AgentId(agent), **facts))
        found = cast(Any, SimpleNamespace(client=lambda via: self.client))
        self.attached = Attachment(found, target, self.view)
        for each in open:
            self.attached._open.add(request_of(each))

    async def types(self, line: str) -> list[tuple[SessionId, dict[str, Any]]]:
        """The ops that are handed in for a line, each with its session."""
        await self.attached._typed(line, hidden=False)
        sessions = [session for session, _ in self.client.sent]
        return list(zip(sessions, self.client.ops, strict=True))


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize(
    ("line", "said", "interrupt"),
    [
        ("hello", "hello", False), ("//halt", "/halt", False), ("/stop it now", "it now", True),
        ("y", "y", False),
    ],
)  # fmt: skip
async def test_line_beside_an_agent_is_a_message_to_it_through_the_root(
    agent: int, line: str, said: str, interrupt: bool
) -> None:
    wanted = message(said, interrupt=interrupt) | {"agent_id": agent}
    assert await Beside(agent, status="running").types(line) == [(ROOT, wanted)]


@pytest.mark.parametrize("agent", [0, 3])
async def test_stop_beside_an_agent_stops_that_one_alone_and_other_words_nothing(agent: int) -> None:
    beside = Beside(agent, status="running")
    assert await beside.types("/stop") == [(beside.session, {"type": "interrupt"})]
    assert await Beside(agent).types("/halt") == []


@pytest.mark.parametrize("agent", [0, 3])
@pytest.mark.parametrize(
    ("facts", "works"),
    [
        ({"status": "idle"}, False), ({"status": "closed"}, False), ({"status": "running"}, True),
        ({"status": "waiting"}, True), ({"status": "awaiting_approval"}, True), ({"sq_tip": "2-0"}, True),
    ],
)  # fmt: skip
async def test_command_beside_an_agent_runs_in_the_root_alone_and_ends_no_task_or_input_that_waits(
    agent: int, facts: dict[str, Any], works: bool
) -> None:
    beside = Beside(agent, **facts)
    sent = await beside.types("!make test")
    command = {"type": "run_user_shell_command", "command": "make test"}
    assert sent == ([] if agent or works else [(ROOT, command)])
    assert beside.view.notes == ([COMMANDS_AT_ROOT] if agent else [WOULD_STOP] if works else [])
    assert await Beside(agent, **facts).types("!") == []


async def test_answer_beside_the_root_goes_to_the_root_and_names_the_agent_that_asked() -> None:
    beside = Beside(0, OF_AGENT, ASKED)
    ((session, op),) = await beside.types("y")
    assert (session, op["type"], op["agent_id"]) == (ROOT, "exec_approval", 3)
    _, (session, _) = await beside.types("n")
    assert session == ROOT
    assert len(beside.attached._open) == 0


async def _silence(*_: Any) -> AsyncIterator[Event]:
    await asyncio.Event().wait()
    yield happens("background_event", "")


@pytest.mark.parametrize("agent", [0, 3])
async def test_person_beside_the_root_is_asked_for_the_whole_tree_and_beside_an_agent_for_that_one(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(number: int, session: SessionId, call: str) -> Asked:
        request = request_of({**ASKED, "call_id": call})
        return Asked(session, head().tree, number, f"0/{number}", call, 1, request, 9)

    other = SessionId("01a1f8a1-c5d2-7001-97bc-c80be6a60f79")
    found = [asked(4, other, "c4"), asked(3, CHILD, "c3"), asked(0, ROOT, "c0"), asked(3, CHILD, "c5")]

    async def requests(*_: Any) -> list[Asked]:
        return found

    class Leaves:
        def __enter__(self) -> Left:
            left = Left()
            left.set()
            return left

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(attachment, "open_requests_of", requests)
    monkeypatch.setattr(attachment, "ctrl_c", Leaves)
    beside = Beside(agent)
    monkeypatch.setattr(Sent, "follow", _silence, raising=False)
    monkeypatch.setattr(attachment, "with_messages", _silence)
    await beside.attached.run()
    calls = [one.call_id for one in beside.attached._open]
    assert calls == (["c3", "c5"] if agent else ["c4", "c3", "c0", "c5"])
    assert beside.view.asked == calls[:1], "the oldest alone is put to the person"


# ── a request in the place of another ─────────────────────────────────────────────────────────


class Watching(Conversation):
    """A watched task whose questions stand nowhere."""

    def _put_question(self, request: Any) -> None:
        pass

    def _leave_question(self) -> None:
        pass


def seats() -> dict[str, tuple[Any, Sent, Notes]]:
    """Each place at which a person answers, its client and its view."""
    person, beside, sent, notes = Person(), Beside(0), Sent(), Notes()
    watching = Watching(Seat(cast(Any, sent), ROOT, notes, interactive=True), None)
    return {
        "a conversation": (person.chat, person.client, person.view),
        "beside an agent": (beside.attached, beside.client, beside.view),
        "a watched task": (watching, sent, notes),
    }


def open_at(place: Any, *asked: dict[str, Any]) -> OpenRequests:
    requests: OpenRequests = place._open if isinstance(place, Attachment) else place.open_requests
    for each in asked:
        requests.add(request_of(each))
    return requests


async def typed_at(place: Any, line: str) -> None:
    await (place._typed(line, hidden=False) if isinstance(place, Attachment) else place._typed(line))


@pytest.mark.parametrize("which", seats())
async def test_line_that_was_typed_for_a_request_that_others_settled_answers_no_other(which: str) -> None:
    """The next request takes its place while a finger is on the key."""
    place, client, view = seats()[which]
    requests = open_at(place, ASKED, OF_AGENT)
    begun = happens("exec_command_begin", "t", call_id="c1", command=["ls"], cwd="/w", parsed_cmd=[])
    told = place._event(begun)
    if told is not None:
        await told
    assert view.asked == ["c2"]
    await typed_at(place, "y")
    assert (client.ops, len(requests)) == ([], 1)
    assert any(NOT_SEEN in note for note in view.notes)
    place._prompt._unseen_until -= SEEN_S
    await typed_at(place, "y")
    assert ([op["type"] for op in client.ops], len(requests)) == (["exec_approval"], 0)


@pytest.mark.parametrize("line", ["y", "hello", "/stop"])
@pytest.mark.parametrize("which", seats())
async def test_answer_to_a_request_that_others_settled_is_said_to_nobody_for_a_second(
    which: str, line: str
) -> None:
    """Also where no other request takes its place: the agent would be told a letter."""
    place, client, view = seats()[which]
    requests = open_at(place, ASKED)
    told = place._event(
        happens("exec_command_begin", "t", call_id="c1", command=["ls"], cwd="/w", parsed_cmd=[])
    )
    if told is not None:
        await told
    await typed_at(place, line)
    watches = which == "a watched task"
    said = ["user_input" if which == "a conversation" else "message_agent"]
    commands = {"y": [], "hello": said, "/stop": ["interrupt"]}
    assert [op["type"] for op in client.ops] == ([] if watches else commands[line])
    assert (NOT_SENT in view.notes, len(requests)) == (line == "y" and not watches, 0)
    client.sent.clear()
    if not watches:
        place._prompt._meant_until -= SEEN_S
        await typed_at(place, "y")
        [now] = client.ops
        assert now["type"] in ("user_input", "message_agent")


@pytest.mark.parametrize("which", seats())
async def test_lines_that_were_typed_ahead_answer_a_request_each(which: str) -> None:
    place, client, _ = seats()[which]
    open_at(place, ASKED, OF_AGENT)
    for _ in range(2):
        await typed_at(place, "y")
    assert [op["type"] for op in client.ops] == ["exec_approval"] * 2
