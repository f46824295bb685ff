"""Tools of MCP servers as sessions are offered them, and their calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.config_keys import McpServerSettings
from orchestrator.core.calls import Call, Mcp
from orchestrator.core.commands import Immediate
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.mcp_tools import ARGUMENT_BYTES, McpToolbox
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in
from tests.mcp.serving import bad, fifo, published, servers, supervisor
from tests.tools.test_offers import reviewing

__all__ = ["fifo"]


def state(folder: Path, **facts: Any) -> State:
    given = {"session_id": "s1", "tree_id": "s1", **facts}
    return State(
        facts=SessionFacts(**given), settings=TurnSettings(str(folder), "never", {"mode": "read-only"}, "m")
    )


def call(name: str, arguments: Any = "") -> Call:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": text}
    return Call(CallId("c1"), name, item)


@asynccontextmanager
async def toolbox(*settings: McpServerSettings) -> AsyncIterator[McpToolbox]:
    async with servers(*settings) as made:
        yield McpToolbox(made)


def nothing(message: dict[str, Any]) -> None:
    """Shows nothing."""


async def names(tools: McpToolbox, session: State) -> list[str]:
    await tools.prepare(session, nothing)
    return [str(spec["name"]) for spec in tools.specs(session)]


async def test_a_session_is_told_of_the_start_once(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    async with toolbox(bad(), bad("dies", id="z")) as tools:
        for _ in range(3):
            await tools.prepare(state(tmp_path), shown.append)
    kinds = [message["type"] for message in shown]
    assert kinds == ["mcp_startup_update"] * 4 + ["mcp_startup_complete"]
    assert shown[-1]["ready"] == ["bad"]
    assert "I cannot start here" in shown[-1]["failed"][0]["error"]


@pytest.mark.parametrize("who", ["helper", "reviewer"])
async def test_who_only_reads_gets_the_tools_that_only_read_by_the_word_of_a_believed_server_alone(
    tmp_path: Path, who: str
) -> None:
    believed, other = published("git", trust_annotations=True), bad()
    async with toolbox(believed, other) as tools:
        helper = state(tmp_path, helper_call="h1") if who == "helper" else reviewing(str(tmp_path))
        offered = await names(tools, helper)
        assert "mcp__git__git_status" in offered
        assert "mcp__git__git_commit" not in offered
        assert not [name for name in offered if name.startswith("mcp__bad__")]
        refused = await tools.assess(call("mcp__git__git_commit"), helper)
        assert isinstance(refused, Immediate)
        assert "this agent only reads" in str(refused.output)
        assert isinstance(await tools.assess(call("mcp__git__git_status"), helper), Mcp)
        assert "mcp__git__git_commit" in await names(tools, state(tmp_path))


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"', json.dumps({"a": "x" * ARGUMENT_BYTES}), "[" * 500])
async def test_arguments_that_are_no_small_object_are_refused(arguments: str, tmp_path: Path) -> None:
    async with toolbox(bad()) as tools:
        with pytest.raises(BadArguments):
            await tools.assess(call("mcp__bad__echo", arguments), state(tmp_path))


async def test_call_is_assessed_run_and_told_of(tmp_path: Path) -> None:
    async with toolbox(bad()) as tools:
        session = state(tmp_path)
        asked = await tools.assess(call("mcp__bad__echo", {"a": 1}), session)
        assert asked == Mcp("bad", "echo", {"a": 1}, str(tmp_path))
        assert isinstance(asked, Mcp)
        done = await tools.run(call("mcp__bad__echo"), asked.work(sandboxed=False), site(session))
    (end,) = done.events
    assert isinstance(getattr(end, "result", None), CallToolResult)
    assert done.output == '[{"type":"text","text":"{\\"a\\": 1}"}]'


def site(session: State) -> CallSite:
    return CallSite("claim", session, nothing)


async def test_call_of_a_server_that_this_worker_does_not_have_is_told_so(tmp_path: Path) -> None:
    work = Mcp("far", "echo", None, str(tmp_path)).work(sandboxed=False)
    async with supervisor() as kept:
        plain = Toolbox(built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), kept))
        asked = call("mcp__far__echo")
        done = await plain.run(Call(asked.call_id, asked.name, asked.item, work=work), site(state(tmp_path)))
    assert "no MCP server is configured on this worker" in str(done.output)
    async with toolbox(bad()) as tools:
        done = await tools.run(call("mcp__far__echo"), work, site(state(tmp_path)))
    assert "there is no MCP server far here" in str(done.output)
