"""Every call of a model is assessed: the model is told its errors, and no worker falls over the call."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.calls import ApplyPatch, Call, Exec
from orchestrator.core.calls.approval_policy import Ask
from orchestrator.core.commands import Immediate
from orchestrator.core.frozen import replace
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.commands import bash
from orchestrator.tools.exec.supervisor import SupervisorLost
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in
from tests.commit_seed import examples

TOOLBOX = Toolbox(built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), cast(Any, None)))
AWKWARD = st.sampled_from(
    ["", ".", "..", "/", "loop", "loop/x", "fifo", "\0", "a\0b", "~", "x" * 5_000, "é\n"]
)
TEXTS = st.one_of(AWKWARD, st.text(max_size=8))
WORDS = st.lists(st.one_of(st.sampled_from(["git", "status", "bash", "-lc", "cat", "apply_patch"]), TEXTS))
HUNKS = st.sampled_from(["*** Add File: {}\n+x", "*** Update File: {}\n@@\n-x\n+y", "*** Delete File: {}"])
PATCHES = st.builds(lambda hunk, path: f"*** Begin Patch\n{hunk.format(path)}\n*** End Patch", HUNKS, TEXTS)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "command": st.one_of(WORDS, PATCHES.map(lambda patch: ["apply_patch", patch])),
        "workdir": TEXTS,
        "path": TEXTS,
        "input": PATCHES,
        "timeout_ms": st.one_of(st.integers(), st.floats(allow_nan=False), TEXTS),
        "plan": st.lists(st.fixed_dictionaries({"step": TEXTS, "status": TEXTS})),
    },
)
SHELL = ("shell", "container.exec", "exec")
NAMES = st.sampled_from([*SHELL, "apply_patch", "view_image", "update_plan", "nonsense"])


def site(folder: Path) -> CallSite:
    given = TurnSettings(str(folder), "never", {"mode": "danger-full-access"}, "gpt-5")
    return CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)


def asked(name: str, arguments: dict[str, Any]) -> Call:
    text = orjson.dumps({k: v for k, v in arguments.items() if not _too_long(v)}).decode()
    return Call(
        CallId("c1"), name, {"type": "function_call", "name": name, "arguments": text, "call_id": "c1"}
    )


def _too_long(value: Any) -> bool:
    """JSON's integers end here for whoever reads them."""
    return isinstance(value, int) and value.bit_length() > 63


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(NAMES, ARGUMENTS)
async def test_any_arguments_are_assessed(tmp_path: Path, name: str, arguments: dict[str, Any]) -> None:
    loop = tmp_path / "loop"
    if not loop.is_symlink():
        loop.symlink_to("loop")
    found = await TOOLBOX.assess(asked(name, arguments), site(tmp_path))
    assert isinstance(found, Exec | ApplyPatch | Immediate)
    # An assessment is written to the log before anything else.
    assert orjson.dumps(found, default=vars)


@pytest.mark.parametrize("name", SHELL)
async def test_command_is_judged_the_same_under_each_name_of_shell(name: str, tmp_path: Path) -> None:
    found = await TOOLBOX.assess(asked(name, {"command": ["ls", "-l"]}), site(tmp_path))
    assert isinstance(found, Exec)
    assert (found.command, found.safe) == (("ls", "-l"), True)


async def test_a_folder_that_no_name_can_have_is_not_trusted(tmp_path: Path) -> None:
    call = asked("shell", {"command": ["git", "status"], "workdir": "a\0b"})
    found = await TOOLBOX.assess(call, site(tmp_path))
    assert isinstance(found, Exec)
    assert not found.safe


async def test_destructive_command_of_which_two_readers_were_lost_is_not_taken_for_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, lost = bash._ask, [ConnectionError(), ConnectionError()]

    def asked_of(kind: bytes, source: bytes) -> object:
        if kind == bash.BEGINNINGS and lost:
            raise lost.pop()
        return asking(kind, source)

    monkeypatch.setattr(bash, "_ask", asked_of)
    call = asked("shell", {"command": ["bash", "-lc", "rm -rf unread; true"]})
    found = await TOOLBOX.assess(call, site(tmp_path))
    assert isinstance(found, Exec)
    assert found.dangerous or found.unreadable.startswith("the process that reads scripts was lost twice")
    again = await TOOLBOX.assess(call, site(tmp_path))
    assert isinstance(again, Exec)
    assert (again.dangerous, again.unreadable) == (True, "")


@pytest.mark.parametrize(
    ("command", "planted"),
    [
        (["git", "fetch"], ["git"]),
        (["bash", "-lc", "ls && git fetch"], ["git"]),
        (["ls"], []),
        (["/usr/bin/git", "fetch"], []),
        (["no-such-program"], []),
    ],
)
@pytest.mark.parametrize("mode", ["workspace-write", "read-only"])
async def test_program_that_a_session_may_have_written_is_named_where_it_would_leave_the_sandbox(
    tmp_path: Path, command: list[str], planted: list[str], mode: str
) -> None:
    """With an environment activated in the project `git` is whatever an agent put into it."""
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    (bin / "git").write_text("#!/bin/sh\n")
    (bin / "git").chmod(0o755)
    config = ToolConfig(SandboxSupport(None, 0, ()), {"PATH": f"{bin}:/usr/bin:/bin"})
    toolbox = Toolbox(built_in(config, cast(Any, None)))
    # A turn that only reads comes behind ones that have written.
    policy = {"mode": mode, **({"exclude_slash_tmp": True} if mode == "workspace-write" else {})}
    given = TurnSettings(str(tmp_path), "on-request", policy, "gpt-5")
    there = CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)
    found = await toolbox.assess(
        asked("shell", {"command": command, "with_escalated_permissions": True}), there
    )
    assert isinstance(found, Exec)
    assert found.planted == tuple(str(bin / name) for name in planted)
    verdict = found.judged(given, frozenset())
    assert isinstance(verdict, Ask)
    assert (f"what it runs is {bin}/git, which commands" in str(verdict.reason)) is bool(planted)
    confined = replace(found, escalated=False, confinable=True)
    asks = replace(given, approval_policy="untrusted")
    assert "which commands of the session" not in str(confined.judged(asks, frozenset()))


class Untried:
    """A supervisor that is asked, and starts nothing."""

    async def run(self, *_: Any) -> Any:
        raise SupervisorLost("let through")


def put(places: Collection[Path]) -> None:
    for place in places:
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)


@pytest.mark.parametrize("mode", ["workspace-write", "read-only"])
async def test_program_that_came_up_since_does_not_leave_the_sandbox_of_a_turn_that_only_reads_either(
    tmp_path: Path, mode: str
) -> None:
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    config = ToolConfig(SandboxSupport(None, 0, ()), {"PATH": f"{bin}:/usr/bin:/bin"})
    toolbox = Toolbox(built_in(config, cast(Any, Untried())))
    given = TurnSettings(str(tmp_path), "on-request", {"mode": mode}, "gpt-5")
    there = CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)
    call = asked("shell", {"command": ["git", "fetch"], "with_escalated_permissions": True})
    request = await toolbox.assess(call, there)
    assert isinstance(request, Exec)
    put([bin / "git"])
    finished = await toolbox.run(replace(call, work=request.work(sandboxed=False)), there)
    assert f"outside of the sandbox, {bin}/git came up" in str(finished.output)


@pytest.mark.parametrize("name", ["shell", "exec_command"])
async def test_program_that_came_into_path_while_a_person_thought_does_not_leave_the_sandbox(
    tmp_path: Path, name: str
) -> None:
    """However many the request has named before: another one that is found by then is not run."""
    bins = [tmp_path / ".venv/bin", tmp_path / "node_modules/.bin"]
    for bin in bins:
        bin.mkdir(parents=True)
    config = ToolConfig(SandboxSupport(None, 0, ()), {"PATH": f"{bins[0]}:{bins[1]}:/usr/bin:/bin"})
    toolbox = Toolbox(built_in(config, cast(Any, Untried())))
    policy = {"mode": "workspace-write", "exclude_slash_tmp": True}
    given = TurnSettings(str(tmp_path), "on-request", policy, "gpt-5")
    state = State(task=Task(SubmissionId("u1"), "user", given))
    state = replace(state, facts=replace(state.facts, unified_exec=name == "exec_command"))
    there = CallSite("c", state, lambda _: None)
    script = "git fetch && make"
    said = {"cmd": script} if name == "exec_command" else {"command": ["bash", "-lc", script]}
    call = asked(name, {**said, "with_escalated_permissions": True})
    places = [bin / program for bin in bins for program in ("git", "make")]

    def found(there: Collection[Path]) -> list[str]:
        first = (next((bin / name for bin in bins if bin / name in there), None) for name in ("git", "make"))
        return [str(path) for path in first if path is not None]

    some = [there for count in range(5) for there in itertools.combinations(places, count)]
    for before in some:
        put(before)
        request = await toolbox.assess(call, there)
        assert isinstance(request, Exec)
        assert list(request.planted) == found(before)
        for path in before:
            path.unlink()
        for after in some:
            put(after)
            finished = await toolbox.run(replace(call, work=request.work(sandboxed=False)), there)
            new = [path for path in found(after) if path not in request.planted]
            told = f"outside of the sandbox, {', '.join(new)} came up" if new else "let through"
            assert told in str(finished.output), (before, after)
            for path in after:
                path.unlink()
