"""Tools of MCP servers: offered, assessed and run as the other tools are.

Knows what a session may be offered, not how servers are reached.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from orchestrator.core.calls import Mcp, McpWork
from orchestrator.core.commands import CallFinished, Immediate
from orchestrator.core.forms import whole
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.mcp.records import (
    JSON_DEPTH,
    PREFIX,
    STDERR_BYTES,
    UNREAD_BYTES,
    McpTools,
    OfferedTool,
    Pipes,
    Question,
    ServerTool,
    Started,
    StartProgram,
    is_deeper,
    plain,
)
from orchestrator.protocol.events import McpStartupComplete, McpStartupUpdate, WarningEvent
from orchestrator.protocol.mcp import ElicitationAction, McpStartupFailure, McpStartupStatus, Tool
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.policy import Confinement
from orchestrator.sandbox.trusted_files import named_environment
from orchestrator.tables import McpServerSettings
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.exec.programs import Program, running_program
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.site import CallSite, DeltaSink, ToolConfig

ARGUMENT_BYTES = 64 << 10
MOST_TOLD = 10_000
"""Sessions of which a worker remembers that they were notified of their servers' start."""
MOST_QUESTIONS = 8
"""Questions that one call may ask, and declined ones of which its end tells."""


class McpToolbox:
    """The tools of a worker's MCP servers."""

    def __init__(self, servers: McpTools) -> None:
        self._servers = servers
        self._told: OrderedDict[str, None] = OrderedDict()

    # ── before a request ──────────────────────────────────────────────────────────────────────

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Starts the servers of the session's folder, and waits for them as long as the settings say."""
        session = state.facts.session_id

        def report(server: str, status: McpStartupStatus) -> None:
            show(written(McpStartupUpdate(server=server, status=status)))

        started = await self._servers.start(session, _folder(state), report)
        if session not in self._told:
            show(written(_complete(started)))
            self._told[session] = None
            while len(self._told) > MOST_TOLD:
                self._told.popitem(last=False)

    def specs(self, state: State) -> Sequence[Mapping[str, Any]]:
        """The tools that the session's model is offered: always in one order, behind all others."""
        return [_spec(each) for each in self._servers.offered(_folder(state)) if _may_use(state, each.tool)]

    async def listed(self, state: State) -> dict[str, Tool]:
        """All tools of the folder's servers by their full names, as their servers describe them."""
        return {each.full_name: each.tool.record for each in await self._servers.up(_folder(state))}

    def release(self, session: str) -> None:
        """Ends the session's hold on its servers."""
        self._servers.let_go(session)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    async def assess(self, call: Call, state: State) -> Mcp | Immediate:
        """The assessment of a call by its full name."""
        folder = _folder(state)
        tool = await self._servers.find(call.name, folder)
        if tool is None:
            return Immediate(f"unsupported call: {call.name}")
        if not _may_use(state, tool):
            return Immediate(f"{call.name} may not be used here: this agent only reads, and the tool may not")
        arguments = _arguments(call.item.get("arguments"))
        return Mcp(tool.server, tool.name, arguments, str(folder), read_only=tool.read_only)

    async def run(self, call: Call, work: McpWork, site: CallSite) -> CallFinished:
        """Calls the tool; cancelled, it tells the server."""
        declined: list[WarningEvent] = []
        asked = 0

        async def ask(question: Question) -> ElicitationAction:
            nonlocal asked
            asked += 1
            why = _unaskable(question, site, asked)
            if why is None and site.ask is not None:
                return await site.ask(call.call_id, question.server, question.message)
            if len(declined) < MOST_QUESTIONS:
                declined.append(_declined(question, work, why or "nobody can be asked here"))
            return ElicitationAction.DECLINE

        began = time.monotonic()
        answer = await self._servers.call(
            (work.server, work.tool), work.arguments, Path(whole(work.cwd)), ask
        )
        end = work.end(call.call_id, answer.result, time.monotonic() - began)
        return CallFinished(call.call_id, answer.output, (*declined, end))


def is_mcp(name: str) -> bool:
    """Whether a call's name is one of an MCP server's tool."""
    return name.startswith(PREFIX)


def _folder(state: State) -> Path:
    portable = state.facts.portable
    # A portable folder is made when a call first needs it, and replaced: a server that began in it would stay
    # in one that is gone. Its servers begin where the copies are, and all such sessions share them.
    return Path(state.in_force.cwd) if portable is None else Path(portable.root)


def _may_use(state: State, tool: ServerTool) -> bool:
    """Whether the tool may be used: helpers, and tasks beside the conversation, only read."""
    beside = state.task is not None and state.task.branch is not None
    return tool.read_only or not (beside or state.facts.helper_call)


def _spec(offered: OfferedTool) -> JsonObject:
    return {
        "type": "function",
        "name": offered.full_name,
        "description": offered.tool.description,
        "strict": False,
        "parameters": dict(offered.tool.parameters),
    }


def _arguments(text: Any) -> JsonObject | None:
    """The arguments of a call: a JSON object, or none at all."""
    if not text:
        return None
    if len(text.encode("utf-8", "replace")) > ARGUMENT_BYTES:
        raise BadArguments(f"the arguments have more than {ARGUMENT_BYTES:,} bytes; say it in fewer")
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict) or is_deeper(arguments, JSON_DEPTH):
        raise BadArguments(f"the arguments must be a JSON object of at most {JSON_DEPTH} levels")
    found: JsonObject = plain(arguments)
    return found


def _complete(started: Started) -> McpStartupComplete:
    failed = [McpStartupFailure(server=server, error=error) for server, error in started.failed.items()]
    return McpStartupComplete(ready=started.ready, failed=tuple(failed))


def _unaskable(question: Question, site: CallSite, asked: int) -> str | None:
    """The reason why a person is not asked; None if they are."""
    if not question.answerable:
        return "a person can answer yes or no, and it wants more, or several calls of it run at once"
    if site.state.facts.helper_call:
        return "the agent only reads for another one: it asks nobody"
    if asked > MOST_QUESTIONS:
        return f"a call asks at most {MOST_QUESTIONS} questions"
    return None


def _declined(question: Question, work: McpWork, why: str) -> WarningEvent:
    return WarningEvent(
        message=f"the MCP server {question.server} asked in the middle of {work.tool}: "
        f"{question.message!r}; its question was declined: {why}"
    )


# ── mcp programs ──────────────────────────────────────────────────────────────────────────────────
# The programs of MCP servers: supervised, in the environment of commands and their own variables.


def mcp_programs(supervisor: Supervisor, config: ToolConfig) -> StartProgram:
    """Starts servers outside of the sandbox: the person has configured them."""

    def start(settings: McpServerSettings, cwd: Path) -> AbstractAsyncContextManager[Pipes]:
        return _started(supervisor, _program(settings, cwd, config))

    return start


@asynccontextmanager
async def _started(supervisor: Supervisor, program: Program) -> AsyncIterator[Pipes]:
    async with running_program(supervisor, program) as running:
        yield running


def _program(settings: McpServerSettings, cwd: Path, config: ToolConfig) -> Program:
    assert settings.command is not None
    folder = settings.cwd or cwd
    inherited = command_environment(
        config.environ, config.sandbox.environment, Confinement("danger-full-access", folder)
    )
    argv, path = (settings.command, *settings.args), inherited.get("PATH", os.defpath)
    return Program(
        argv=argv,
        cwd=folder,
        env={
            **inherited,
            **named_environment(argv, path, (folder, cwd)),
            **settings.given_env,
            **settings.env,
        },
        unread_bytes=UNREAD_BYTES,
        stderr_bytes=STDERR_BYTES,
    )
