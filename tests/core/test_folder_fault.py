"""Settings that a portable folder does not go with are refused before anything runs under them."""

from __future__ import annotations

import pytest

from orchestrator.core.decide.folder_fault import folder_fault
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import PortableFolder, SessionFacts, portable_wire
from orchestrator.core.state import State
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.protocol.policy import WorkspaceWrite
from tests.core.driver import Session
from tests.core.driver import op as parsed

PORTABLE = State(
    facts=SessionFacts(session_id=SessionId("s"), tree_id=TreeId("t"), portable=PortableFolder("/ws", "main"))
)
SAID = (TextInput(text="hello"),)


@pytest.mark.parametrize("cwd", ["/ws/t/main", "/ws/t/main/sub", "sub", "/ws/t/main/./sub/.."])
def test_turn_may_work_anywhere_in_its_portable_folder(cwd: str) -> None:
    assert folder_fault(PORTABLE, ops.OverrideTurnContext(cwd=cwd)) is None


@pytest.mark.parametrize("cwd", ["/srv", "/ws/t", "/ws/t/mainly", "/ws/t/main/../../x", "../x", "/"])
def test_turn_outside_of_its_portable_folder_is_refused(cwd: str) -> None:
    ways = (
        ops.OverrideTurnContext(cwd=cwd),
        ops.ConfigureSession(cwd=cwd),
        ops.UserInput(items=SAID, overrides=ops.OverrideTurnContext(cwd=cwd)),
    )
    for op in ways:
        assert "is outside of /ws/t/main" in str(folder_fault(PORTABLE, op))
        assert folder_fault(State(), op) is None


def test_folder_is_named_from_where_the_turns_work() -> None:
    below = replace(PORTABLE, settings=replace(PORTABLE.settings, cwd="/ws/t/main/a"))
    assert folder_fault(below, ops.OverrideTurnContext(cwd="../b")) is None
    assert "/ws/t/main/a/../../x is outside" in str(
        folder_fault(below, ops.OverrideTurnContext(cwd="../../x"))
    )


def test_root_outside_of_a_portable_folder_is_refused() -> None:
    def asked(root: str) -> ops.OverrideTurnContext:
        return ops.OverrideTurnContext(sandbox_policy=WorkspaceWrite(writable_roots=(root,)))

    assert folder_fault(PORTABLE, asked("/ws/t/main/build")) is None
    several = WorkspaceWrite(writable_roots=("/ws/t/main/a", "/ws/t/main/b", "/data"))
    assert "/data is outside" in str(folder_fault(PORTABLE, ops.OverrideTurnContext(sandbox_policy=several)))
    assert "writable_roots" in str(folder_fault(PORTABLE, asked("/data")))
    assert folder_fault(State(), asked("/data")) is None


def test_folder_of_a_session_that_is_there_is_not_settled_again() -> None:
    op = ops.ConfigureSession(workspace=WorkspaceSource(empty=True))
    assert "is settled when the session is made" in str(folder_fault(State(), op))
    assert "is settled when the session is made" in str(folder_fault(PORTABLE, op))


@pytest.mark.parametrize("type", ["override_turn_context", "configure_session"])
def test_portable_session_that_is_told_to_work_elsewhere_answers_with_an_error(type: str) -> None:
    session = Session(facts={"portable": portable_wire(PortableFolder("/ws", "main"))})
    before = session.state.settings
    told = session.submit(parsed(type, cwd="/srv"), "x1")
    assert told.types == ["error"]
    assert told.id_of("error") == "x1"
    assert "cwd: /srv is outside of /ws/" in told.one("error")["message"]
    assert session.state.settings == before


@pytest.mark.parametrize("behind", [False, True])
def test_input_that_waited_and_would_work_outside_by_now_fails_and_says_nothing_to_the_model(
    behind: bool,
) -> None:
    """A folder that is not absolute is one of the session's, which what waited before it has changed."""
    session = Session(
        facts={"portable": portable_wire(PortableFolder("/ws", "main")), "on_user_input": "steer"}
    )
    home = session.state.facts.portable.path(session.state.facts.tree_id)  # type: ignore[union-attr]
    session.submit(parsed("override_turn_context", cwd=f"{home}/sub"), "o1")
    session.say("work", "u1")
    up = {"type": "override_turn_context", "cwd": ".."}
    for id in ("u2", "u3"):
        words = [{"type": "text", "text": id}]
        session.submit(parsed("user_input", items=words, overrides=up, delivery="queue"), id)
    if behind:
        session.submit(parsed("user_input", items=[{"type": "text", "text": "u4"}], delivery="queue"), "u4")
    session.answers("done")
    assert (session.task.id, session.task.settings.cwd) == ("u2", home)
    session.answers("done")
    if behind:
        session.stopped()
    told = [message for id, message in session.events if id == "u3"]
    kinds = [message["type"] for message in told if message["type"] != "input_accepted"]
    assert kinds == ["task_started", "error", "task_complete"]
    (error,) = [message["message"] for message in told if message["type"] == "error"]
    assert f"{home}/.. is outside of {home}" in error
    assert session.state.settings.cwd == home
    assert not any("u3" in text for text in session.texts())
    assert (session.state.task.id if session.state.task else "") == ("u4" if behind else "")
