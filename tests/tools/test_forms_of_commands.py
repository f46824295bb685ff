"""Commands in each form in which a model, a person or a door gives them: what holds for one holds for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.config_keys import (
    EnvironmentPolicy,
    McpServerSettings,
    SandboxPolicy,
    SandboxSettings,
    ToolSettings,
)
from orchestrator.core.calls import Call, Exec, shell_call
from orchestrator.core.calls.approval_policy import amendment
from orchestrator.core.commands import CallFinished
from orchestrator.core.frozen import replace
from orchestrator.core.settings import FolderSetup, PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import Answer, State, Task
from orchestrator.protocol import jobs
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec_policy import CommandRules, parsed_rules
from orchestrator.tools.folder_setup import SetupRunner
from orchestrator.tools.job_bench import Commands
from orchestrator.tools.mcp_tools import _program
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

C1, U1 = CallId("c1"), SubmissionId("u1")
BOUNDS = SandboxSettings(max_processes=77, max_memory_bytes=1 << 27)
DENIED = Finished(exit_code=1, aggregated=b"cannot write: Permission denied\n")
Item = Callable[..., JsonObject]


def _function(name: str, **arguments: Any) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": C1,
        "name": name,
        "arguments": orjson.dumps(arguments).decode(),
    }


def _local(script: str) -> JsonObject:
    action = {"type": "exec", "command": ["bash", "-lc", script]}
    return {"type": "local_shell_call", "call_id": C1, "action": action}


FORMS: dict[str, Item] = {
    "shell": lambda script: _function("shell", command=["bash", "-lc", script]),
    "container.exec": lambda script: _function("container.exec", command=["bash", "-lc", script]),
    "local_shell": _local,
    "exec_command": lambda script, **more: _function("exec_command", cmd=script, **more),
}
"""The forms in which a model gives a command."""
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


@dataclass
class Kept:
    """Stands where a supervisor is; it keeps the commands that it is asked to run."""

    ends: Finished = field(default_factory=lambda: Finished(exit_code=0))
    commands: list[Command] = field(default_factory=list)

    async def run(self, command: Command, shown: Any, *_: object) -> Finished:
        self.commands.append(command)
        for number in range(20):
            shown("stdout", b"%d\n" % number * 4_000)
        return self.ends


@dataclass
class Bench:
    """A session's tools on a worker whose supervisor runs nothing."""

    folder: Path
    form: str
    mode: str = "workspace-write"
    supervisor: Kept = field(default_factory=Kept)
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin"})
    shown: list[JsonObject] = field(default_factory=list)
    answers: tuple[Answer, ...] = ()
    bounds: SandboxSettings = BOUNDS

    @property
    def config(self) -> ToolConfig:
        return ToolConfig(
            SandboxSupport("/usr/bin/bwrap", 0, ()),
            self.environ,
            self.bounds,
            ToolSettings(rules_writable=True, max_deltas=3),
            rules=CommandRules(self.folder / "home"),
        )

    @property
    def site(self) -> CallSite:
        policy = {"mode": self.mode, "exclude_slash_tmp": True}
        given = TurnSettings(str(self.folder), "on-request", policy, "codex-mini-latest")
        facts = SessionFacts(unified_exec=self.form == "exec_command")
        state = State(task=Task(U1, "user", given), facts=facts, answers=self.answers)
        return CallSite("c", state, self.shown.append, lasting_deltas=self.shown.append)

    @property
    def toolbox(self) -> Toolbox:
        return Toolbox(built_in(self.config, cast(Any, self.supervisor)))

    async def asked(self, script: str, **more: Any) -> tuple[Call, Exec]:
        """A call, and what it asks for."""
        item = FORMS[self.form](script, **more)
        call = Call(C1, str(item.get("name", self.form)), item)
        asked = await self.toolbox.assess(call, self.site)
        assert isinstance(asked, Exec), asked
        return call, asked

    async def run(self, script: str, *, sandboxed: bool = True, **more: Any) -> CallFinished:
        call, asked = await self.asked(script, **more)
        return await self.toolbox.run(replace(call, work=asked.work(sandboxed)), self.site)

    def rules(self) -> Sequence[tuple[str, bool]]:
        """The prefixes of one word that the owner's rules allow, and whether they keep the sandbox."""
        file = self.folder / "home" / "rules" / "default.rules"
        found = parsed_rules(file.read_text()) if file.exists() else ()
        return [("".join(rule.pattern[0]), rule.confined) for rule in found]


@EVERY_FORM
@pytest.mark.parametrize(
    ("mode", "sandboxed", "confined"),
    [
        ("workspace-write", True, True),
        ("workspace-write", False, False),
        ("danger-full-access", False, True),
    ],
)
async def test_prefix_that_an_answer_allows_is_written_as_the_command_was_confined(
    form: str, mode: str, sandboxed: bool, confined: bool, tmp_path: Path
) -> None:
    said = (amendment(("mv",)), amendment(("touch",)))
    answers = [Answer(C1, U1, decision, "ann") for decision in said]
    elsewhere = (Answer(C1, SubmissionId("u0"), said[0], "ann"), Answer(CallId("c0"), U1, said[0], "ann"))
    bench = Bench(tmp_path, form, mode, answers=(*answers, *elsewhere))
    await bench.run("touch x", sandboxed=sandboxed)
    # The last answer to this call of this turn counts.
    assert bench.rules() == [("touch", confined)]


@EVERY_FORM
@pytest.mark.parametrize("decision", ["approved", "approved_for_session"])
async def test_answer_that_allows_no_prefix_writes_none(form: str, decision: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, form, answers=(Answer(C1, U1, decision, "ann"),))
    await bench.run("touch x")
    assert bench.rules() == []


@EVERY_FORM
async def test_command_that_is_not_run_writes_no_prefix(form: str, tmp_path: Path) -> None:
    """A program came up while the person thought: what they have allowed is not what would run."""
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    answers = (Answer(C1, U1, amendment(("touch",)), "ann"),)
    bench = Bench(tmp_path, form, environ={"PATH": f"{bin}:/usr/bin:/bin"}, answers=answers)
    call, asked = await bench.asked("touch x")
    (bin / "touch").write_text("#!/bin/sh\n")
    (bin / "touch").chmod(0o755)
    refused = await bench.toolbox.run(replace(call, work=asked.work(sandboxed=False)), bench.site)
    assert str(refused.output).startswith("not run: since it was decided")
    assert (bench.rules(), bench.supervisor.commands) == ([], [])
    (bin / "touch").unlink()
    await bench.toolbox.run(replace(call, work=asked.work(sandboxed=False)), bench.site)
    assert (bench.rules(), len(bench.supervisor.commands)) == ([("touch", False)], 1)


@EVERY_FORM
async def test_prefix_that_cannot_be_written_is_a_warning_and_the_command_runs(
    form: str, tmp_path: Path
) -> None:
    (tmp_path / "home" / "rules").mkdir(parents=True)
    (tmp_path / "home" / "rules" / "default.rules").write_text("nonsense")
    bench = Bench(tmp_path, form, answers=(Answer(C1, U1, amendment(("touch",)), "ann"),))
    await bench.run("touch x")
    (warning,) = [event for event in bench.shown if event["type"] == "warning"]
    assert "default.rules was not written: line 1" in str(warning["message"])
    assert len(bench.supervisor.commands) == 1


@EVERY_FORM
async def test_command_has_the_bounds_and_no_secret_of_its_worker(form: str, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "EDITOR": "vi", "GPU_API_KEY": "sk-1"}
    bench = Bench(tmp_path, form, environ=environ)
    await bench.run("touch x")
    (command,) = bench.supervisor.commands
    assert command.limits == Limits(77, 1 << 27)
    assert command.env["EDITOR"] == "vi"
    assert "GPU_API_KEY" not in command.env


@EVERY_FORM
async def test_call_sends_no_more_pieces_of_its_output_than_it_may(form: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, form)
    await bench.run("touch x")
    pieces = [event for event in bench.shown if event["type"] == "exec_command_output_delta"]
    assert len(pieces) == 3


@EVERY_FORM
async def test_program_that_came_up_in_a_run_which_the_sandbox_stopped_is_named(
    form: str, tmp_path: Path
) -> None:
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    bench = Bench(tmp_path, form, environ={"PATH": f"{bin}:/usr/bin:/bin"})
    bench.supervisor = _Planting(DENIED, file=bin / "git")
    done = await bench.run("git fetch")
    assert done.sandbox_denied
    assert done.planted == (str(bin / "git"),)
    free = Bench(tmp_path, form, environ=bench.environ, supervisor=Kept(DENIED))
    assert not (await free.run("/usr/bin/git fetch", sandboxed=False)).sandbox_denied
    for ended in (replace(DENIED, timed_out=True), replace(DENIED, killed=True)):
        late = Bench(tmp_path, form, environ=bench.environ, supervisor=Kept(ended))
        assert not (await late.run("git fetch")).sandbox_denied, "it ran too long: nothing forbade it"


@dataclass
class _Planting(Kept):
    """A supervisor whose command puts a program into a folder."""

    file: Path = Path("/")

    async def run(self, command: Command, shown: Any, *_: object) -> Finished:
        self.file.write_text("#!/bin/sh\n")
        self.file.chmod(0o755)
        return await super().run(command, shown)


@pytest.mark.parametrize("own", ["", "vt100"])
@pytest.mark.parametrize("tty", [True, False])
async def test_command_with_a_terminal_is_told_of_a_plain_one_unless_its_owner_names_another(
    own: str, tty: bool, tmp_path: Path
) -> None:
    policy = EnvironmentPolicy(set={"TERM": own} if own else {})
    bench = Bench(tmp_path, "exec_command", environ={"PATH": "/usr/bin:/bin", "TERM": "xterm-kitty"})
    bench.bounds = BOUNDS.model_copy(update={"environment": policy})
    await bench.run("touch x", tty=tty)
    (command,) = bench.supervisor.commands
    assert (command.tty, command.env["TERM"]) == (tty, own or ("dumb" if tty else "xterm-kitty"))


# --- commands that no model gives


async def of_a_person(config: ToolConfig, supervisor: Kept, folder: Path) -> None:
    given = TurnSettings(str(folder), "on-request", {"mode": "workspace-write"}, "gpt-5")
    site = CallSite("c", State(task=Task(U1, "shell", given)), lambda _: None)
    toolbox = Toolbox(built_in(config, cast(Any, supervisor)))
    call = shell_call(U1, "make")
    asked = await toolbox.assess(call, site)
    assert isinstance(asked, Exec), asked
    await toolbox.run(replace(call, work=asked.work(sandboxed=True)), site)


async def of_a_door(config: ToolConfig, supervisor: Kept, folder: Path) -> None:
    bench = Commands(config, cast(Any, supervisor), SandboxPolicy(mode="workspace-write"))
    await bench.run(jobs.RunCommand(command=("make",), cwd=str(folder)), "c")


async def of_a_setup(config: ToolConfig, supervisor: Kept, folder: Path) -> None:
    setup = FolderSetup("make", timeout_ms=60_000)
    portable = PortableFolder(str(folder / "root"), "work", setup=setup)
    facts = SessionFacts(session_id=cast(Any, "s1"), tree_id=cast(Any, "s1"), portable=portable)
    (folder / "root/copies/s1/folder").mkdir(parents=True)
    (folder / "root/copies/s1/tmp").mkdir()
    done = await SetupRunner(config, cast(Any, supervisor)).run(
        CallSite("c", State(facts=facts), lambda _: None)
    )
    assert done.message == ""


@pytest.mark.parametrize("run", [of_a_person, of_a_door, of_a_setup])
async def test_command_that_no_model_gives_is_held_as_one_of_a_model_is(run: Any, tmp_path: Path) -> None:
    hidden, trusted = tmp_path / "hidden", tmp_path / "dendro.toml"
    hidden.mkdir()
    config = ToolConfig(
        SandboxSupport("/usr/bin/bwrap", 0, ()),
        {"PATH": os.defpath, "EDITOR": "vi", "GPU_API_KEY": "sk-1", "SSH_AUTH_SOCK": "/run/agent"},
        BOUNDS,
        hidden=(hidden,),
        trusted=lambda: (trusted,),
    )
    supervisor = Kept()
    await run(config, supervisor, tmp_path)
    (command,) = supervisor.commands
    assert command.limits == Limits(77, 1 << 27)
    assert command.env["EDITOR"] == "vi"
    assert not {"GPU_API_KEY", "SSH_AUTH_SOCK"} & command.env.keys()
    assert hidden in command.confinement.hidden
    assert not command.confinement.unix_sockets
    if run is not of_a_setup:
        # A portable folder is no place that a person has trusted.
        assert trusted in command.confinement.missing


@pytest.mark.parametrize(
    "policy",
    [
        {"inherit": "none"},
        {"inherit": "core"},
        {"exclude": ("EDIT*",)},
        {"include_only": ("PATH", "EDITOR")},
        {"ignore_default_excludes": True},
        {"set": {"EDITOR": "ed", "MORE": "1"}},
    ],
)
def test_server_gets_the_environment_that_commands_get_and_what_its_table_names(
    policy: dict[str, Any], tmp_path: Path
) -> None:
    parent = {"PATH": "/usr/bin:/bin", "EDITOR": "vi", "LANG": "C", "GPU_API_KEY": "sk-1"}
    rules = EnvironmentPolicy(**policy)
    config = ToolConfig(
        SandboxSupport("/usr/bin/bwrap", 0, ()), parent, BOUNDS.model_copy(update={"environment": rules})
    )
    free = Confinement("danger-full-access", tmp_path)
    own = McpServerSettings(id="x", command="/bin/x", env={"OWN": "1"})
    found = dict(_program(own, tmp_path, config).env)
    assert found.pop("OWN") == "1"
    path, wanted = found.pop("PATH"), command_environment(parent, rules, free)
    assert found == {name: value for name, value in wanted.items() if name != "PATH"}
    assert set(path.split(":")) <= {"/usr/bin", "/bin"}
