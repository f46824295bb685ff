"""Tools in a portable folder: a path is what commands call it, and leads to the copy of this machine."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.core.calls import ApplyPatch, Call, Exec
from orchestrator.core.commands import CallFinished, Immediate
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.probe import probe
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

SUPPORT = probe()
WRITABLE: Mapping[str, Any] = {"mode": "workspace-write"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
needs_bubblewrap = pytest.mark.skipif(SUPPORT.bubblewrap is None, reason="bubblewrap does not work here")


class Session:
    """A portable session whose folder is on this machine, and the tools of its worker."""

    def __init__(self, supervisor: Supervisor, tmp_path: Path, policy: Mapping[str, Any] = WRITABLE) -> None:
        root = tmp_path / "home/workspaces"
        facts = SessionFacts(
            session_id=SessionId("s"), tree_id=TreeId("t"), portable=PortableFolder(str(root), "work")
        )
        self.place = Place.of(root, "t", "s", "work")
        for folder in (self.place.here, self.place.temporary, self.place.seen):
            folder.mkdir(parents=True, exist_ok=True)
        config = ToolConfig(SUPPORT, {"PATH": os.environ["PATH"]}, hidden=(tmp_path / "home",))
        self.toolbox = Toolbox(built_in(config, supervisor))
        settings = TurnSettings(str(self.place.seen), "never", policy, "gpt-5")
        state = State(facts=facts, task=Task(SubmissionId("u1"), "user", settings))
        self.site = CallSite("claim", state, lambda _: None)

    async def assess(self, name: str, arguments: Mapping[str, Any]) -> tuple[Call, Any]:
        text = orjson.dumps(arguments).decode()
        item = {"type": "function_call", "name": name, "arguments": text, "call_id": "c1"}
        call = Call(CallId("c1"), name, item)
        return call, await self.toolbox.assess(call, self.site)

    async def patch(self, *lines: str) -> CallFinished | Immediate:
        body = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
        call, assessed = await self.assess("apply_patch", {"input": body})
        if not isinstance(assessed, ApplyPatch):
            assert isinstance(assessed, Immediate)
            return assessed
        return await self.toolbox.run(replace(call, work=assessed.work(sandboxed=True)), self.site)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(SUPPORT))
    started.extend("claim", time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
    try:
        yield started
    finally:
        await started.close()


@pytest.fixture
def session(supervisor: Supervisor, tmp_path: Path) -> Session:
    return Session(supervisor, tmp_path)


async def test_patch_of_a_path_that_commands_name_is_written_into_the_copy(session: Session) -> None:
    (session.place.here / "old").write_text("1\n")
    seen = session.place.seen
    done = await session.patch(
        *("*** Add File: new.txt", "+hello"),
        *(f"*** Update File: {seen}/old", "-1", "+2"),
    )
    assert isinstance(done, CallFinished), done
    assert done.applied, done
    assert (session.place.here / "new.txt").read_text() == "hello\n"
    assert (session.place.here / "old").read_text() == "2\n"
    assert list(seen.iterdir()) == []
    diff = str(done.events[-1])
    assert "a/old" in diff
    assert "copies" not in diff


async def test_patch_through_a_link_with_the_path_of_commands_stays_in_the_copy(session: Session) -> None:
    (session.place.here / "sub").mkdir()
    (session.place.here / "link").symlink_to(session.place.seen / "sub")
    done = await session.patch("*** Add File: link/new", "+x")
    assert isinstance(done, CallFinished), done
    assert (session.place.here / "sub/new").read_text() == "x\n"


@pytest.mark.parametrize("path", ["/tmp/../srv/outside", "/srv/outside", "out/x"])
@pytest.mark.parametrize("mode", ["workspace-write", "danger-full-access"])
async def test_patch_that_leads_out_of_the_folder_is_refused(
    supervisor: Supervisor, tmp_path: Path, path: str, mode: str
) -> None:
    session = Session(supervisor, tmp_path, {"mode": mode})
    (session.place.here / "out").symlink_to("/srv")
    refused = await session.patch(f"*** Add File: {path}", "+x")
    assert isinstance(refused, Immediate)
    assert "Nothing was written" in str(refused.output)


async def test_patch_may_write_the_folders_own_tmp(session: Session) -> None:
    done = await session.patch("*** Add File: /tmp/note", "+x")
    assert isinstance(done, CallFinished), done
    assert (session.place.temporary / "note").read_text() == "x\n"


@needs_bubblewrap
@pytest.mark.sandbox
async def test_command_runs_in_the_copy_and_is_recorded_with_the_path_of_every_machine(
    session: Session,
) -> None:
    (session.place.here / "sub").mkdir()
    command = {"command": ["bash", "-c", "pwd; echo x > made"], "workdir": "sub"}
    call, assessed = await session.assess("shell", command)
    assert isinstance(assessed, Exec), assessed
    assert assessed.cwd == f"{session.place.seen}/sub"
    call = replace(call, work=assessed.work(sandboxed=True))
    done = await session.toolbox.run(call, session.site)
    assert f"{session.place.seen}/sub" in str(done.output), done
    assert (session.place.here / "sub/made").read_text() == "x\n"


async def test_git_is_trusted_in_the_folder_and_not_where_a_link_leads(session: Session) -> None:
    (session.place.here / "out").symlink_to("/srv")
    safe = []
    for workdir in (".", "out", ".."):
        _, assessed = await session.assess("shell", {"command": ["git", "status"], "workdir": workdir})
        safe.append(assessed.safe)
    assert safe == [True, False, False]


async def test_image_of_the_folder_is_shown_and_one_of_the_data_folder_is_not(
    session: Session, tmp_path: Path
) -> None:
    (session.place.here / "a.png").write_bytes(PNG)
    (tmp_path / "home/secret.png").write_bytes(PNG)
    (session.place.here / "link.png").symlink_to(tmp_path / "home/secret.png")
    _, shown = await session.assess("view_image", {"path": "a.png"})
    _, linked = await session.assess("view_image", {"path": "link.png"})
    assert not isinstance(shown.output, str)
    assert str(session.place.seen / "a.png") in str(shown.events)
    assert "could not be read" in str(linked.output)


async def test_image_whose_folder_becomes_a_link_while_it_is_looked_up_is_not_read(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the session goes on while the worker reads."""
    (tmp_path / "home/shots").mkdir(parents=True)
    (tmp_path / "home/shots/a.png").write_bytes(PNG)
    shots = session.place.here / "shots"
    shots.mkdir()
    (shots / "a.png").write_bytes(PNG)
    followed = Place.followed

    def look(place: Place, path: Path) -> Path:
        found = followed(place, path)
        shots.rename(session.place.here / "away")
        shots.symlink_to(tmp_path / "home/shots")
        return found

    monkeypatch.setattr(Place, "followed", look)
    _, shown = await session.assess("view_image", {"path": "shots/a.png"})
    assert "could not be read" in str(shown.output)
