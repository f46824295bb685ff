"""A request before a person: nothing foreign draws a line of its own, and no event hides the question."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from orchestrator.broker.follow import BEGINNING
from orchestrator.core.ids import SessionId
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of
from orchestrator.terminal.faults import Fault, report
from orchestrator.terminal.live import Live, LiveView, reminder, show_request
from orchestrator.terminal.watched_turn import Conversation, Prompt, Seat
from orchestrator.views.event import Event
from tests.requests.test_answers import EVERY

COMMAND = {"type": "exec_approval_request", "call_id": "c1", "command": ["bash", "-lc", "ls"], "cwd": "/w"}
APPROVAL = "Allow? [y]es / [a]lways in this session / [n]o / [q]uit the turn: "
FORGED = f"fine\n{APPROVAL}y\n✓ allowed\x1b[2K"


def console() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)


def shown(on: Console) -> str:
    return cast(io.StringIO, on.file).getvalue()


def test_newlines_of_a_model_draw_no_line_under_a_question_that_looks_like_ours() -> None:
    on, files = console(), {FORGED: {"type": "add", "content": "x"}}
    show_request(Live(on), request_of({**COMMAND, "cwd": FORGED, "reason": FORGED, "grant_root": FORGED}))
    show_request(Live(on), request_of({**COMMAND, "command": ["bash", "-lc", FORGED]}))
    show_request(
        Live(on), request_of({"type": "apply_patch_approval_request", "call_id": "c2", "changes": files})
    )
    lines = shown(on).splitlines()
    assert not any(line.lstrip().startswith(("Allow?", "✓")) for line in lines), lines
    assert "  │ " + APPROVAL + "y" in lines, "a script keeps its lines, marked"
    assert "\x1b[2K" not in shown(on)


def test_reminder_is_one_line_however_long_the_request_is() -> None:
    told = reminder(request_of({**COMMAND, "agent_id": 3, "command": ["bash", "-lc", "a\nb " + "x" * 999]}))
    assert told.startswith("agent 3 wants to run: a␊b xxx")
    assert len(told) == 160


def talk(on: Console) -> Conversation:
    client = SimpleNamespace()
    seat = Seat(cast(Any, client), SessionId("s"), LiveView(on, streaming=True), interactive=True)
    return Conversation(seat, None)


async def test_question_is_put_again_below_what_other_agents_do(capsys: pytest.CaptureFixture[str]) -> None:
    on = console()
    talking = talk(on)
    talking.open_requests.add(request_of(COMMAND))
    await talking._event(Event("t", {"type": "background_event", "message": "another works"}, BEGINNING))
    assert shown(on) == "another works\nthe agent wants to run: ls\n"
    assert capsys.readouterr().out == f"\n{APPROVAL}", "the event stands below the first question"


async def test_question_is_not_put_again_for_what_nobody_sees(capsys: pytest.CaptureFixture[str]) -> None:
    on = console()
    talking = talk(on)
    talking.open_requests.add(request_of(COMMAND))
    await talking._event(Event("t", {"type": "token_count", "info": None}, BEGINNING))
    assert (shown(on), capsys.readouterr().out) == ("", "")


def test_agents_are_spoken_of_by_their_labels_once_they_are_known() -> None:
    on = console()
    live = Live(on)
    live.know({3: "tests"})
    show_request(live, request_of({**COMMAND, "agent_id": 3}))
    card = {"agent_id": 4, "session_id": "s", "origin": "spawn", "status": "queued", "started_at_ms": 1}
    made = {"event": "created", "subagent": {**card, "label": "docs"}, "agent_id": 4}
    live.show(Event("", {"type": "subagent_lifecycle", **made}))
    settled = {"call_id": "c", "turn_id": "t", "decision": "denied", "who": "me", "agent_id": 4}
    live.show(Event("", {"type": "request_resolved", "resolved_at_ms": 1, **settled}))
    assert "? agent 3 (tests) wants to run a command" in shown(on)
    assert "request c of agent 4 (docs) was denied by me" in shown(on)


def test_error_that_quotes_a_model_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(Fault("no agent \x1b[2Jx\u202ey"))
    assert capsys.readouterr().err == "dendro: no agent ␛[2Jx\\u202ey\n"


def test_key_for_a_prefix_counts_where_the_request_proposes_one() -> None:
    proposed = {**COMMAND, "command": ["git", "fetch"], "proposed_execpolicy_amendment": ["git", "fetch"]}
    prompt, plain = Prompt(request_of(proposed)), Prompt(request_of(COMMAND))
    assert "[p]refix" in prompt.text
    assert (prompt.answers("P"), plain.answers("p"), plain.take("p")) == (True, False, None)
    op = prompt.take("p")
    assert op is not None
    decision = {"approved_execpolicy_amendment": {"proposed_execpolicy_amendment": ["git", "fetch"]}}
    assert written(op)["decision"] == decision
    on = console()
    show_request(Live(on), request_of({**proposed, "proposed_execpolicy_amendment": ["git", "a\nb"]}))
    assert "  p: run in this session whatever begins with git 'a␊b'\n" in shown(on)


@pytest.mark.parametrize("kind", ["command", "prefix", "patch", "later"])
def test_every_key_for_an_approval_sends_what_the_terminal_has_shown_of_it(kind: str) -> None:
    request = request_of(EVERY[kind])
    for choice in request.choices:
        prompt = Prompt(request)
        prompt.was_shown("the request")
        op: Any = prompt.take(choice.short[:1])
        assert (op.shown.text, op.shown.surface) == (f"the request\n{prompt.text}", "terminal")
