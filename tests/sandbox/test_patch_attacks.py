"""Patches that reach for what is kept from sessions: Dendro writes patches itself, outside of any sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import ApplyPatch, Call
from orchestrator.core.commands import Immediate
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

WRITABLE: Mapping[str, Any] = {"mode": "workspace-write"}
SECRET = "swordfish-4711"


class Home:
    """A person's home folder that a session works in, with Dendro's own folder and a key in it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "home"
        self.hidden = self.folder / ".local/share/dendro"
        (self.hidden / "rules").mkdir(parents=True)
        (self.hidden / "pack.keys").write_text(f"{SECRET}\n")
        config = ToolConfig(SandboxSupport(None, 0, ()), {}, hidden=(self.hidden,))
        self.toolbox = Toolbox(built_in(config, cast(Any, None)))

    async def patched(
        self, *lines: str, policy: Mapping[str, Any] = WRITABLE, asks: str = "on-request"
    ) -> Any:
        settings = TurnSettings(str(self.folder), asks, policy, "gpt-5")
        site = CallSite("c", State(task=Task(SubmissionId("u1"), "user", settings)), lambda _: None)
        text = orjson.dumps({"input": "\n".join(("*** Begin Patch", *lines, "*** End Patch"))}).decode()
        item = {"type": "function_call", "name": "apply_patch", "arguments": text, "call_id": "c1"}
        return await self.toolbox.assess(Call(CallId("c1"), "apply_patch", item), site)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


RULE = '+prefix_rule(pattern=["bash"], decision="allow")'
REACHING = {
    "writes the owner's rules": ("*** Add File: .local/share/dendro/rules/default.rules", RULE),
    "makes a folder among them": ("*** Add File: .local/share/dendro/new/folder/file", "+x"),
    "changes a key": ("*** Update File: .local/share/dendro/pack.keys", "@@", f"-{SECRET}", "+mine"),
    "guesses at a key": ("*** Update File: .local/share/dendro/pack.keys", "@@", "-a guess", "+mine"),
    "moves a key out": (
        "*** Update File: .local/share/dendro/pack.keys",
        "*** Move to: seen.txt",
        "@@",
        "+and more",
    ),
    "deletes a key": ("*** Delete File: .local/share/dendro/pack.keys",),
    "changes a key through a link": ("*** Update File: link/pack.keys", "@@", f"-{SECRET}", "+mine"),
    "adds a file through a link": ("*** Add File: link/new", "+x"),
    "makes what a dangling link leads to": ("*** Add File: dangling", "+x"),
}


@pytest.mark.parametrize("asks", ["never", "on-request", "untrusted"])
@pytest.mark.parametrize("reaching", REACHING)
async def test_patch_reaches_nothing_that_is_hidden_and_nobody_is_asked_about_it(
    reaching: str, asks: str, home: Home
) -> None:
    (home.folder / "link").symlink_to(home.hidden)
    (home.folder / "dangling").symlink_to(home.hidden / "rules/default.rules")
    found = await home.patched(*REACHING[reaching], asks=asks)
    assert isinstance(found, Immediate), "neither written nor asked about"
    assert "Dendro keeps it from sessions" in str(found.output)
    assert SECRET not in str(found.output).replace("-" + SECRET, "")


async def test_patch_beside_what_is_hidden_is_written_as_ever(home: Home) -> None:
    found = await home.patched("*** Add File: .local/share/other/file", "+x")
    assert isinstance(found, ApplyPatch)
    assert found.outside == ()


async def test_full_access_reaches_all_that_the_person_does(home: Home) -> None:
    reached = await home.patched(*REACHING["writes the owner's rules"], policy={"mode": "danger-full-access"})
    assert isinstance(reached, ApplyPatch)
