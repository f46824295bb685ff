"""`local_shell`: who is offered it, which variables its calls may set, and who is asked about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.config_keys import ToolSettings
from orchestrator.core.calls import Call, Exec
from orchestrator.core.calls.approval_policy import Ask, Run
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

CONFIG = ToolConfig(SandboxSupport("/usr/bin/bwrap", 0, ()), {"PATH": "/usr/bin:/bin"})
PLAIN = Toolbox(built_in(CONFIG, cast(Any, None)))
OFFERING = Toolbox(built_in(replace(CONFIG, tools=ToolSettings(local_shell=True)), cast(Any, None)))
WORKSPACE_WRITE = {"mode": "workspace-write"}


def site(folder: Path, policy: str = "untrusted", model: str = "gpt-5") -> CallSite:
    given = TurnSettings(str(folder), policy, WORKSPACE_WRITE, model)
    return CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)


async def assessed(toolbox: Toolbox, folder: Path, env: dict[str, str], *command: str) -> Exec | Immediate:
    action = {"type": "exec", "command": list(command or ("ls",)), "env": env}
    call = Call(CallId("c1"), "local_shell", {"type": "local_shell_call", "call_id": "c1", "action": action})
    found = await toolbox.assess(call, site(folder))
    assert isinstance(found, Exec | Immediate)
    return found


async def exec_of(folder: Path, env: dict[str, str], *command: str) -> Exec:
    found = await assessed(OFFERING, folder, env, *command)
    assert isinstance(found, Exec), found
    return found


def test_model_is_offered_local_shell_in_the_place_of_shell_where_a_person_set_it() -> None:
    def names(toolbox: Toolbox) -> list[str]:
        return [str(tool.get("name", tool["type"])) for tool in toolbox.specs(State())][:2]

    assert names(PLAIN) == ["shell", "apply_patch"]
    assert names(OFFERING) == ["local_shell", "apply_patch"]
    kept = [str(tool["name"]) for tool in OFFERING.specs(State(facts=SessionFacts(unified_exec=True)))]
    assert kept[:3] == ["exec_command", "write_stdin", "apply_patch"], "no two ways to run a command"


def test_model_that_was_trained_with_local_shell_is_offered_it_alone(tmp_path: Path) -> None:
    def names(model: str) -> list[str]:
        at = site(tmp_path, model=model).state
        return [str(tool.get("name", tool["type"])) for tool in PLAIN.specs(at)][:2]

    assert names("codex-mini-latest") == ["local_shell", "apply_patch"]
    assert names("codex-mini-latest-x") == ["shell", "apply_patch"], "a model that nobody knows"


async def test_model_that_writes_local_shell_as_a_function_gives_the_arguments_of_shell(
    tmp_path: Path,
) -> None:
    async def called(**item: str) -> Assessment:
        call = Call(CallId("c1"), "local_shell", {"call_id": "c1", "name": "local_shell", **item})
        return await PLAIN.assess(call, site(tmp_path))

    given = '{"command": ["make"], "workdir": "src", "timeout_ms": 7}'
    found = await called(type="function_call", arguments=given)
    assert isinstance(found, Exec)
    assert (found.command, found.cwd, found.timeout_ms) == (("make",), str(tmp_path / "src"), 7)
    bad = await called(type="function_call", arguments='{"command": []}')
    assert isinstance(bad, Immediate)
    assert str(bad.output).startswith("failed to parse function arguments: command")
    other = await called(type="custom_tool_call", input="make")
    assert isinstance(other, Immediate)
    assert other.output == "unsupported call: local_shell"


async def test_call_that_its_provider_has_cut_off_runs_nothing(tmp_path: Path) -> None:
    async def with_status(status: str) -> Assessment:
        action = {"type": "exec", "command": ["rm", "-r", "build"], "env": {}}
        item = {"type": "local_shell_call", "call_id": "c1", "status": status, "action": action}
        return await PLAIN.assess(Call(CallId("c1"), "local_shell", item), site(tmp_path))

    found = await with_status("incomplete")
    assert isinstance(found, Immediate)
    assert found.output == "incomplete call"
    assert isinstance(await with_status("completed"), Exec)


async def test_variables_are_refused_where_local_shell_is_not_offered(tmp_path: Path) -> None:
    found = await assessed(PLAIN, tmp_path, {"A": "1"})
    assert isinstance(found, Immediate)
    assert str(found.output).startswith("`env` is not taken here; leave it out")
    assert isinstance(await assessed(PLAIN, tmp_path, {}), Exec)


@pytest.mark.parametrize(
    "name",
    [
        "GIT_EXTERNAL_DIFF",
        "GIT_DIR",
        "GIT_CONFIG_COUNT",
        "PATH",
        "PYTHONPATH",
        "PERL5OPT",
        "NODE_OPTIONS",
        "PAGER",
        "EDITOR",
        "HOME",
        "XDG_CONFIG_HOME",
        "RIPGREP_CONFIG_PATH",
        "LESSOPEN",
        "RUSTC_WRAPPER",
        "LOCPATH",
        "CARGO_HOME",
        "lc_all",
    ],
)
async def test_person_is_asked_about_a_reading_command_with_a_variable(name: str, tmp_path: Path) -> None:
    found = await exec_of(tmp_path, {name: "x"})
    assert not found.safe
    settings = site(tmp_path).state.task
    assert settings is not None
    assert isinstance(found.judged(settings.settings, frozenset()), Ask)


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "GCONV_PATH", "ld_preload"),
        *("BASH_ENV", "ENV", "SHELLOPTS", "IFS", "PS4", "PROMPT_COMMAND", "ZDOTDIR"),
    ],
)
async def test_variables_of_the_loader_and_of_shells_are_refused(name: str, tmp_path: Path) -> None:
    found = await assessed(OFFERING, tmp_path, {name: "x"})
    assert isinstance(found, Immediate)
    assert f"env: {name} is not taken: it makes the loader or a shell run other code" in str(found.output)


async def test_model_that_was_trained_with_local_shell_sets_variables_without_a_setting(
    tmp_path: Path,
) -> None:
    action = {"type": "exec", "command": ["make"], "env": {"A": "1"}}
    call = Call(CallId("c1"), "local_shell", {"type": "local_shell_call", "call_id": "c1", "action": action})
    found = await PLAIN.assess(call, site(tmp_path, model="codex-mini-latest"))
    assert isinstance(found, Exec), found
    assert found.env == {"A": "1"}


async def test_person_is_not_asked_about_a_language(tmp_path: Path) -> None:
    found = await exec_of(tmp_path, {"LC_ALL": "C.UTF-8", "NO_COLOR": "1"})
    assert found.safe
    assert not (await exec_of(tmp_path, {"LC_ALL": "/tmp/evil"})).safe


async def test_what_is_allowed_for_the_session_is_allowed_with_its_variables_only(tmp_path: Path) -> None:
    settings = TurnSettings(str(tmp_path), "untrusted", WORKSPACE_WRITE, "gpt-5")
    plain, other = await exec_of(tmp_path, {}, "make"), await exec_of(tmp_path, {"A": "2"}, "make")
    given = await exec_of(tmp_path, {"A": "1", "B": "2"}, "make")
    again = await exec_of(tmp_path, {"B": "2", "A": "1"}, "make")
    approved = frozenset([given.key])
    assert isinstance(again.judged(settings, approved), Run)
    assert isinstance(plain.judged(settings, approved), Ask)
    assert isinstance(other.judged(settings, approved), Ask)
    assert plain.key == f'[["make"],"{tmp_path}",false]', "as it is in the logs of older sessions"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"BASH_FUNC_ls%%": "() { :; }"}, "is not the name of a variable"),
        ({"A=B": "x"}, "is not the name of a variable"),
        ({"A" * 129: "x"}, "is not the name of a variable"),
        ({"": "x"}, "is not the name of a variable"),
        ({"A": "x\0y"}, "holds a character"),
        ({f"A{n}": "x" for n in range(65)}, "65 variables"),
        ({"A": "x" * 40_000}, "40001 bytes"),
    ],
)
async def test_variables_that_nobody_could_look_through_are_refused(
    env: dict[str, str], told: str, tmp_path: Path
) -> None:
    found = await assessed(OFFERING, tmp_path, env)
    assert isinstance(found, Immediate)
    assert told in found.output
