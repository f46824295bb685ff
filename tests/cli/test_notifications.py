"""Calling a person: which events do, what their program is given, and that nothing hangs on it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.follow import BEGINNING
from orchestrator.config_keys import FrontSettings
from orchestrator.requests import TO_PEOPLE
from orchestrator.settings import SettingsError, SettingsSources, load_settings
from orchestrator.terminal import notifications as calling
from orchestrator.terminal.notifications import Notifications, knows_osc9, notifications
from orchestrator.views.event import Event
from tests.cli.machine import TOUCH, Machine, says
from tests.requests.test_answers import ASKS
from tests.views.test_threads import head

ASK: Mapping[str, Any] = {"call_id": "c1", "command": ["bash", "-lc", "rm -r x"], "cwd": "/w"}


def happens(type: str, id: str = "t1", **fields: Any) -> Event:
    return Event(id, {"type": type, **fields}, BEGINNING)


class Person:
    """A person with a program, a terminal, and a screen."""

    def __init__(self, folder: Path, program: tuple[str, ...] | None = None, **settings: Any) -> None:
        self.file = folder / "called"
        appends = ("sh", "-c", f'printf "%s\\n" "$1" >> {self.file}', "notify")
        front = FrontSettings(notify=appends if program is None else program, **settings)
        self.rung: list[str] = []
        self.complaints: list[str] = []
        self.notifications = Notifications(
            front, "thread", "/home/me", self.rung.append, self.complaints.append
        )

    async def called(self, *events: Event) -> list[dict[str, Any]]:
        for event in events:
            self.notifications.receive(event)
        await self.notifications.end()
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


async def test_program_is_given_the_end_of_a_turn_as_the_peers_is(tmp_path: Path) -> None:
    said = happens("user_message", message="fix it")
    [told] = await Person(tmp_path).called(said, happens("task_complete", last_agent_message="fixed"))
    assert told == {
        "type": "agent-turn-complete", "thread-id": "thread", "turn-id": "t1", "cwd": "/home/me",
        "input-messages": ["fix it"], "last-assistant-message": "fixed",
    }  # fmt: skip


@pytest.mark.parametrize("number", [0, 1, 2, calling.MOST_MESSAGES, calling.MOST_MESSAGES + 2])
@pytest.mark.parametrize("ends", ["task_complete", "turn_aborted"])
async def test_program_is_given_the_first_messages_of_its_own_turn_and_each_turn_forgets_its_own_alone(
    ends: str, number: int, tmp_path: Path
) -> None:
    said = [f"do {at}" for at in range(number)]
    person = Person(tmp_path)
    for text in said:
        person.notifications.receive(happens("user_message", message=text))
        person.notifications.receive(happens("user_message", "t2", message=f"{text} there"))
    first = happens(ends, last_agent_message="1", reason="interrupted")
    second = happens("task_complete", "t2", last_agent_message=None)
    told = await person.called(first, second)
    completed = [(one["turn-id"], one["input-messages"], one["last-assistant-message"]) for one in told]
    kept = said[: calling.MOST_MESSAGES]
    both = {("t1", "1"): kept, ("t2", None): [f"{text} there" for text in kept]}
    wanted = [(turn, texts, last) for (turn, last), texts in both.items()][ends == "turn_aborted" :]
    assert sorted(completed, key=lambda one: one[0]) == wanted
    again = await person.called(happens("task_complete", "t2", last_agent_message=None))
    assert again[-1]["input-messages"] == []


async def test_program_is_given_what_an_agent_asks_for(tmp_path: Path) -> None:
    event = happens("exec_approval_request", **{**ASK, "agent_id": 3, "reason": "cleanup"})
    [told] = await Person(tmp_path).called(event)
    assert told == {
        "type": "approval-requested", "thread-id": "thread", "turn-id": "t1", "cwd": "/w", "call-id": "c1",
        "agent-id": 3, "command": "rm -r x", "reason": "reason given: cleanup",
        "where": "where it would run (in /w) is not recorded: an older version of Dendro has asked",
    }  # fmt: skip


async def test_program_is_given_each_path_that_a_patch_writes(tmp_path: Path) -> None:
    moved = {"/w/a": {"type": "update", "unified_diff": "-a", "move_path": "/etc/b"}}
    patch = happens("apply_patch_approval_request", call_id="c1", changes=moved)
    [told] = await Person(tmp_path).called(patch)
    assert told["paths"] == ["/w/a", "/etc/b"]


async def test_nobody_is_called_for_the_past_or_for_a_turn_that_the_person_stopped(tmp_path: Path) -> None:
    past = Event("t1", {"type": "task_complete", "last_agent_message": "old"})
    assert await Person(tmp_path).called(past, happens("turn_aborted", reason="interrupted")) == []


@pytest.mark.parametrize("wild", ["x", "\ud800", "\U0001f4a3", "\U0001f4a3\ud800"])
async def test_texts_of_any_size_fit_an_argument(tmp_path: Path, wild: str) -> None:
    wild *= 100_000
    said = [happens("user_message", message=wild) for _ in range(9)]
    changes: dict[str, Any] = {f"{number}{wild}": {} for number in range(99)}
    patch = happens("apply_patch_approval_request", call_id=wild, changes=changes, reason=wild)
    command = happens("exec_approval_request", **{**ASK, "command": [wild], "cwd": wild, "reason": wild})
    questions = [{"id": str(at), "header": "", "question": wild} for at in range(999)]
    choices = happens("request_user_input", call_id="c1", questions=questions)
    events = (*said, patch, command, choices, happens("task_complete", last_agent_message=wild))
    person = Person(tmp_path)
    told = await person.called(*events)
    assert person.complaints == []
    assert all(len(json.dumps(one)) <= calling.ARGUMENT_BYTES < 128 * 1024 for one in told)
    assert {one["thread-id"] for one in told} == {"thread"}
    by_key = {key: one[key] for one in told for key in one}
    assert {"command", "paths", "questions", "last-assistant-message", "reason"} < set(by_key)
    assert wild[:100] in by_key["command"]
    assert len(by_key["questions"]) == len(by_key["paths"]) == calling.MOST
    assert len(told) == 4


async def test_program_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "PROGRAM_S", 0.2)
    killed: list[tuple[int, int]] = []
    kills = os.killpg

    def killpg(group: int, number: int) -> None:
        killed.append((os.getsid(group), number))
        kills(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    person = Person(tmp_path, ("sh", "-c", "sleep 60 & sleep 60"))
    await person.called(happens("task_complete", last_agent_message=None))
    assert person.complaints == ["notify: sh was killed after 0.2 s"]
    assert [number for _, number in killed] == [signal.SIGKILL]
    assert os.getsid(0) not in [session for session, _ in killed], "nothing of this one's own"


async def test_program_finds_its_own_programs_not_where_sessions_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    person = Person(tmp_path, ("sh", "-c", f'printf \'"%s"\\n\' "$PATH" >> {tmp_path}/called'))
    await person.called(happens("task_complete", last_agent_message=None))
    assert (tmp_path / "called").read_text() == '"/usr/bin:/bin"\n'


async def test_program_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    person = Person(tmp_path, ("/nowhere/ring",))
    await person.called(*[happens("task_complete", last_agent_message="x")] * 3)
    assert len(person.complaints) == 1
    assert "/nowhere/ring cannot be started: it is not there, or cannot be run" in person.complaints[0]
    person = Person(tmp_path, ("no-such-program",))
    await person.called(happens("task_complete", last_agent_message="x"))
    assert "it is not on PATH outside of projects and temporary folders" in person.complaints[0]


async def test_terminal_rings_for_the_news_that_were_chosen(tmp_path: Path) -> None:
    person = Person(tmp_path, (), notifications=("approval-requested",))
    await person.called(
        happens("exec_approval_request", **ASK), happens("task_complete", last_agent_message="")
    )
    assert person.rung == ["\a"]


BOTH = ("agent-turn-complete", "approval-requested")
NEWS = {
    **{
        kind: (Event("t1", event, BEGINNING), BOTH[1])
        for kind, event in ASKS.items()
        if event["type"] in TO_PEOPLE
    },
    "end": (happens("task_complete", last_agent_message="done"), BOTH[0]),
    "tool": (Event("t1", ASKS["client_tool"], BEGINNING), ""),
    "stop": (happens("turn_aborted", reason="interrupted"), ""),
    "words": (happens("user_message", message="go"), ""),
}


@pytest.mark.parametrize("program", [True, False])
@pytest.mark.parametrize("news", [(), BOTH[:1], BOTH[1:], BOTH])
@pytest.mark.parametrize("kind", NEWS)
async def test_program_and_terminal_are_called_each_for_itself_and_the_terminal_however_many_programs_run(
    kind: str, news: tuple[str, ...], program: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []

    async def run(self: Notifications, argument: str) -> None:
        started.append(json.loads(argument))

    monkeypatch.setattr(Notifications, "_run", run)
    person = Person(tmp_path, ("ring",) if program else (), notifications=news)
    event, called = NEWS[kind]
    many = calling.MOST_AT_ONCE + 2
    await person.called(*[event] * many)
    assert person.rung == ["\a"] * (many if called in news else 0)
    assert [one["type"] for one in started] == [called] * (calling.MOST_AT_ONCE if program and called else 0)


async def test_person_is_called_with_the_outcome_of_a_review_and_not_with_its_json(tmp_path: Path) -> None:
    person = Person(tmp_path, notifications=("agent-turn-complete",))
    output = {"findings": [], "overall_correctness": "patch is correct", "overall_confidence_score": 0.5}
    exited = happens("exited_review_mode", review_output=output)
    [told] = await person.called(exited, happens("task_complete", last_agent_message='{"findings": []}'))
    assert told["last-assistant-message"] == '{"findings": []}'
    person.notifications.osc9 = True
    await person.called(exited, happens("task_complete", last_agent_message="{}"))
    assert "review: patch is correct, no findings" in person.rung[-1]


async def test_no_text_of_a_model_steers_the_terminal(tmp_path: Path) -> None:
    person = Person(tmp_path, (), notifications=("agent-turn-complete",))
    person.notifications.osc9 = True
    await person.called(happens("task_complete", last_agent_message="a\a\x1b]0;owned\x07\nb" + "x" * 999))
    [rung] = person.rung
    assert rung.startswith("\x1b]9;a␇␛]0;owned␇␊bxxx")
    assert rung.endswith("x\a")
    assert rung.count("\x1b") == rung.count("\a") == 1
    assert len(rung) < 140


async def test_text_of_a_model_that_begins_with_a_number_moves_no_progress_bar(tmp_path: Path) -> None:
    """`OSC 9 ; 4 ; 3` is an order to some terminals."""
    person = Person(tmp_path, (), notifications=("agent-turn-complete",))
    person.notifications.osc9 = True
    await person.called(happens("task_complete", last_agent_message="4;3;50"))
    assert person.rung == ["\x1b]9; 4;3;50\a"]


@pytest.mark.parametrize(
    ("given", "news"),
    [
        ("true", ("agent-turn-complete", "approval-requested")),
        ("false", ()),
        ('["approval-requested"]', ("approval-requested",)),
    ],
)
def test_notifications_are_chosen_as_the_peers_are(tmp_path: Path, given: str, news: tuple[str, ...]) -> None:
    sources = SettingsSources(
        cwd=tmp_path, environ={"HOME": str(tmp_path)}, overrides=(f"tui.notifications={given}",)
    )
    assert load_settings(sources).front.notifications == news


def test_unknown_news_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    sources = SettingsSources(
        cwd=tmp_path, environ={"HOME": str(tmp_path)}, overrides=('tui.notifications=["lunch"]',)
    )
    with pytest.raises(SettingsError, match="agent-turn-complete, approval-requested"):
        load_settings(sources)


@pytest.mark.parametrize("cwd", ["/srv/theirs", None, ""])
def test_program_is_told_the_folder_of_the_session_wherever_its_person_sits(
    tmp_path: Path, cwd: str | None
) -> None:
    settings = load_settings(SettingsSources(cwd=tmp_path, environ={"HOME": str(tmp_path)}))
    of_session = head({} if cwd is None else {"cwd": cwd})
    for one, told in ((of_session, cwd or str(tmp_path)), (None, str(tmp_path))):
        assert notifications(settings, "thread", print, one).cwd == told


@pytest.mark.parametrize(
    ("environ", "known"),
    [
        ({"TERM_PROGRAM": "WezTerm"}, True),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "1"}, False),
        ({"TERM_PROGRAM": "WezTerm", "STY": "1.screen"}, False),
        ({}, False),
    ],
)
def test_notification_is_a_bell_where_the_terminal_may_not_know_more(
    tmp_path: Path, environ: dict[str, str], known: bool
) -> None:
    settings = load_settings(SettingsSources(cwd=tmp_path, environ={"HOME": str(tmp_path), **environ}))
    assert knows_osc9(settings) is known


def test_person_who_runs_a_task_is_called_by_their_program_and_their_terminal(machine: Machine) -> None:
    called = machine.folder / "called"
    program = json.dumps(["sh", "-c", f'printf "%s\\n" "$1" >> {called}', "n"])
    untrusted = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
    words = ("run", "go", *untrusted, "-c", f"notify={program}", "-c", "tui.notifications=true")
    with machine.model(TOUCH, says("made")) as user, user.terminal(*words) as person:
        person.wait_for("\a")
        person.wait_for("uit the turn: ")
        person.type("y\n")
        person.wait_for("\a")
        assert person.exit_code() == 0
    told = [json.loads(line) for line in called.read_text().splitlines()]
    assert [one["type"] for one in told] == ["approval-requested", "agent-turn-complete"]
    assert (told[0]["command"], told[1]["last-assistant-message"]) == ("touch made.txt", "made")
