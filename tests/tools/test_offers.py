"""The tools that a session's settings switch on and off, and the rules of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import Call
from orchestrator.core.commands import Immediate
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import Branch, State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.runtime.model_request import BASE_INSTRUCTIONS, base_instructions
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

TOOLBOX = Toolbox(built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), cast(Any, None)))
STEP = {"step": "build", "status": "in_progress"}


def offered(**facts: Any) -> dict[str, str]:
    """The tools that a session with these facts is offered, each with its type."""
    specs = TOOLBOX.specs(State(facts=SessionFacts(**facts)))
    return {str(spec.get("name", spec["type"])): str(spec["type"]) for spec in specs}


def reviewing(folder: str = "/repo", **facts: Any) -> State:
    """A session in the middle of a code review."""
    given = TurnSettings(folder, "never", {"mode": "read-only"}, "gpt-5")
    task = Task(SubmissionId("r1"), "review", given, branch=Branch(given))
    return State(facts=SessionFacts(**facts), settings=given, task=task)


async def output(folder: Path, name: str, arguments: dict[str, Any], **facts: Any) -> object:
    text = orjson.dumps(arguments).decode()
    call = Call(CallId("c1"), name, {"type": "function_call", "name": name, "arguments": text})
    given = TurnSettings(str(folder), "never", {"mode": "danger-full-access"}, "gpt-5")
    state = State(facts=SessionFacts(**facts), task=Task(SubmissionId("u1"), "user", given))
    found = await TOOLBOX.assess(call, CallSite("c", state, lambda _: None))
    assert isinstance(found, Immediate)
    return found.output


def test_a_model_is_offered_what_its_session_was_made_with() -> None:
    plain = offered()
    assert "web_search" not in plain
    assert (plain["view_image"], plain["apply_patch"]) == ("function", "function")
    assert "exec_command" not in plain
    other = offered(web_search=True, view_image=False, patch_freeform=True, unified_exec=True)
    assert list(other)[:2] == ["exec_command", "write_stdin"]
    assert not {"shell", "local_shell"} & set(other)
    assert (other["web_search"], other["apply_patch"]) == ("web_search", "custom")
    assert "view_image" not in other


async def test_session_without_a_tool_is_neither_offered_it_nor_told_of_it_and_a_call_is_refused(
    tmp_path: Path,
) -> None:
    step = {"plan": [STEP]}
    patch = {"input": "*** Begin Patch\n*** Add File: a\n+a\n*** End Patch\n"}
    for name, given in (("update_plan", step), ("apply_patch", patch), ("view_image", {"path": "a.png"})):
        assert name in offered()
        assert name not in offered(**{name: False})
        assert f"`{name}`" in base_instructions(SessionFacts())
        assert f"`{name}`" not in base_instructions(replace(SessionFacts(), **cast(Any, {name: False})))
        assert await output(tmp_path, name, given, **{name: False}) == f"unsupported call: {name}"
    assert base_instructions(SessionFacts()) == BASE_INSTRUCTIONS


def test_review_may_look_at_what_goes_on_behind_its_call() -> None:
    specs = TOOLBOX.specs(reviewing(unified_exec=True))
    names = [spec.get("name") for spec in specs]
    assert names[:2] == ["exec_command", "write_stdin"]
    assert "apply_patch" not in names


@pytest.mark.parametrize(
    ("mode", "agent_id", "asks"),
    [
        ("code", 0, "ask_user_question"),
        ("plan", 0, "request_user_input"),
        ("pair_programming", 0, "request_user_input"),
        ("plan", 1, None),
    ],
)
def test_a_model_asks_people_with_the_tool_of_its_mode(mode: str, agent_id: int, asks: str | None) -> None:
    given = TurnSettings("/repo", "never", {"mode": "read-only"}, "gpt-5", collaboration_mode={"mode": mode})
    specs = TOOLBOX.specs(State(facts=SessionFacts(agent_id=AgentId(agent_id)), settings=given))
    names = {str(spec.get("name")) for spec in specs} & {"ask_user_question", "request_user_input"}
    assert names == ({asks} if asks else set())


async def test_a_model_sees_no_image_where_the_person_has_switched_that_off(tmp_path: Path) -> None:
    said = await output(tmp_path, "view_image", {"path": "x.png"}, view_image=False)
    assert said == "unsupported call: view_image"


def test_a_session_states_its_switches_only_where_they_are_set() -> None:
    plain, other = (
        SessionFacts(),
        SessionFacts(web_search=True, view_image=False, patch_freeform=True, unified_exec=True),
    )
    assert not {"web_search", "view_image", "patch_freeform", "unified_exec"} & set(plain.wire())
    assert SessionFacts.of(plain.wire()) == plain
    assert SessionFacts.of(other.wire()) == other


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ([], "plan: it has no steps; name at least one"),
        ([STEP, STEP], "plan: 2 steps are in_progress, and at most one may be"),
        ([STEP, {"step": "test", "status": "pending"}], "Plan updated"),
    ],
    ids=["empty", "two at once", "good"],
)
async def test_a_plan_shows_where_the_work_stands(tmp_path: Path, plan: Any, said: str) -> None:
    assert await output(tmp_path, "update_plan", {"plan": plan}) == said


def test_a_reviewer_has_the_tools_that_look_and_no_other() -> None:
    specs = TOOLBOX.specs(reviewing(agents=True, web_search=True))
    assert {str(spec.get("name", spec["type"])) for spec in specs} == {"shell", "view_image"}


@pytest.mark.parametrize(
    "name", ["apply_patch", "update_plan", "ask_user_question", "request_user_input", "subagent_spawn"]
)
async def test_a_reviewer_that_calls_another_tool_reads_that_it_only_reads(name: str) -> None:
    call = Call(CallId("c1"), name, {"type": "function_call", "name": name, "arguments": "{}"})
    found = await TOOLBOX.assess(call, CallSite("c", reviewing(agents=True), lambda _: None))
    assert isinstance(found, Immediate)
    assert found.output == f"unsupported call: {name} (review mode)"


def test_session_that_is_reviewed_and_goes_on_has_the_tools_of_each_task() -> None:
    review = reviewing(agents=True)
    turn = replace(review, task=None)
    counts = [len(TOOLBOX.specs(state)) for state in (turn, review, review, turn)]
    assert counts == [counts[0], 2, 2, counts[0]]
    assert counts[0] > 2


def test_merging_is_offered_where_each_agent_has_a_folder_of_its_own() -> None:
    assert "subagent_merge" not in offered(agents=True)
    assert "subagent_merge" in offered(agents=True, portable=PortableFolder("/w", "repo"))


def test_tools_that_touch_no_file_do_not_wait_for_a_portable_folder() -> None:
    assert {"update_plan", "ask_user_question", "subagent_await"} <= TOOLBOX.folder_free
    assert not TOOLBOX.folder_free & {
        "subagent_merge",
        "shell",
        "apply_patch",
        "view_image",
        "exec_command",
        "user_shell",
    }
