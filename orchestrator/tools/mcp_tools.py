"""Tools of MCP servers: offered, assessed and run as the other tools are.

Knows what a session may be offered, not how servers are reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from orchestrator.boottime import boottime
from orchestrator.config_keys import McpServerSettings
from orchestrator.core.calls import Call, Mcp, McpWork
from orchestrator.core.commands import CallFinished, Immediate
from orchestrator.core.frozen import record
from orchestrator.core.record_json import whole
from orchestrator.core.state import State
from orchestrator.mcp import server_records
from orchestrator.protocol.events import McpStartupComplete, McpStartupUpdate, WarningEvent
from orchestrator.protocol.mcp import ElicitationAction, McpStartupFailure, McpStartupStatus, Tool
from orchestrator.protocol.wire import JsonMapping, JsonObject, written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.sandbox.trusted_files import find_named_program, named_environment, not_found
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.exec.command import Command, Finished, Stream
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.tool_context import CallSite, DeltaSink, ToolConfig

# ── programs ──────────────────────────────────────────────────────────────────────────────────────
# Programs that serve the worker over their pipes, under its supervisor: they end with the worker.
#
# Not a command of an agent: no claim of a session is over it, and it is not confined. The worker extends
# its life again and again, so that a worker that stands still loses its programs, too.


LIFE_S = 60.0
"""A program outlives a worker that stands still for so long at most."""
END_S = 2.0
"""For a program to end by itself when its input has ended."""
ERROR_BYTES, ERROR_S = 16 << 20, 10.0
"""Standard error within so many seconds; a program that writes more of it is ended: reading it is work."""
_WITH_INPUT = 'exec "$@" <"$0"'
"""A shell's line: opens its input and becomes the program."""


@record
class Program:
    """A program to start."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    unread_bytes: int
    """Output that may wait to be read; a program that writes more is ended."""
    stderr_bytes: int
    """The end of the standard error that is kept."""


class RunningProgram:
    """A program that runs, and its pipes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._parts: list[bytes] = []
        self._unread = 0
        self._news = asyncio.Event()
        self._ended = False
        self._stderr = b""
        self._errors, self._errors_since = 0, 0.0
        self._why = ""
        self._input = -1
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()
        self._flood = asyncio.Event()

    async def read(self) -> bytes:
        """The next part of its standard output; empty when there will be no more."""
        while not self._parts and not self._ended:
            self._news.clear()
            await self._news.wait()
        data, self._parts, self._unread = b"".join(self._parts), [], 0
        return data

    async def write(self, data: bytes) -> None:
        """Writes to its standard input, in order; raises `OSError` when it does not read any more."""
        async with self._writing:
            view = memoryview(data)
            while view:
                if self._input < 0:
                    raise BrokenPipeError("its input is closed")
                try:
                    view = view[os.write(self._input, view) :]
                except BlockingIOError:
                    await self._writable()

    async def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._input
        self._room.clear()
        loop.add_writer(descriptor, self._room.set)
        try:
            await self._room.wait()
        finally:
            if self._input == descriptor:
                loop.remove_writer(descriptor)

    def last_words(self) -> str:
        """Why it ended, as far as it can be told, and the end of its standard error."""
        said = self._stderr[-self._program.stderr_bytes :].decode("utf-8", "replace").strip()
        return "; its last words: ".join(each for each in (self._why or "it still runs", said) if each)

    def receive(self, stream: Stream, data: bytes) -> None:
        """Takes a part of its output."""
        if stream == "stderr":
            self._receive_error(data)
            return
        if self._flood.is_set():
            return
        self._unread += len(data)
        if self._unread > self._program.unread_bytes:
            self._end_flood(f"it wrote more than {self._program.unread_bytes:,} bytes that were not read yet")
            return
        self._parts.append(data)
        self._news.set()

    def _receive_error(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-self._program.stderr_bytes :]
        now = time.monotonic()
        if now - self._errors_since > ERROR_S:
            self._errors, self._errors_since = 0, now
        self._errors += len(data)
        if self._errors > ERROR_BYTES:
            self._end_flood(f"it wrote more than {ERROR_BYTES:,} bytes of errors within {ERROR_S:g} s")

    def _end_flood(self, why: str) -> None:
        self._why = self._why or why
        self._flood.set()

    async def _run(self, supervisor: Supervisor, claim: str, source: str) -> None:
        """Runs it to its end, and to the end of all that it started."""
        program = self._program
        command = Command(
            claim=claim,
            call_id=claim,
            argv=("/bin/sh", "-c", _WITH_INPUT, source, *program.argv),
            cwd=program.cwd,
            env=program.env,
            confinement=Confinement("danger-full-access", program.cwd),
            timeout_s=None,
        )
        running = asyncio.ensure_future(supervisor.run(command, self.receive))
        flood = asyncio.ensure_future(self._flood.wait())
        try:
            await asyncio.wait({running, flood}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                self._why = self._why or _end(running.result())
        except SupervisorLost as lost:
            self._why = str(lost)
        finally:
            for task in (running, flood):
                task.cancel()
                with suppress(asyncio.CancelledError, SupervisorLost):
                    await task
            self._ended = True
            self._close_input()
            self._news.set()

    @asynccontextmanager
    async def kept(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Runs it until the end of the context: its input ends, it has a moment to end, then it is killed."""
        claim = f"program-{secrets.token_hex(8)}"
        reading, self._input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._input, False)
        supervisor.extend(claim, _deadline())
        # The program opens the pipe through the worker's own descriptor: a crash leaves no file behind.
        source = f"/proc/{os.getpid()}/fd/{reading}"
        running = asyncio.ensure_future(self._run(supervisor, claim, source))
        living = asyncio.ensure_future(_extend(supervisor, claim))
        try:
            yield
        finally:
            self._close_input()
            os.close(reading)
            await asyncio.wait({running}, timeout=END_S)
            for task in (running, living):
                task.cancel()
            await asyncio.wait({running, living})

    def _close_input(self) -> None:
        if self._input >= 0:
            asyncio.get_running_loop().remove_writer(self._input)
            os.close(self._input)
            self._input = -1
            self._room.set()


async def _extend(supervisor: Supervisor, claim: str) -> None:
    while True:
        await asyncio.sleep(LIFE_S / 3)
        supervisor.extend(claim, _deadline())


def _deadline() -> float:
    return boottime() + LIFE_S


def _end(finished: Finished) -> str:
    """How it ended, for people."""
    if finished.error is not None:
        return finished.error
    if finished.killed:
        return "it was killed"
    return f"it ended with the code {finished.exit_code}"


@asynccontextmanager
async def running_program(supervisor: Supervisor, program: Program) -> AsyncIterator[RunningProgram]:
    """The program, running; at the end of the context no process of it is left.

    Raises `FileNotFoundError` if there is no such program, `NotADirectoryError` if there is no such folder.
    """
    if not program.cwd.is_dir():
        raise NotADirectoryError(f"its folder {program.cwd} is not there")
    found = _found(program)
    running = RunningProgram(replace(program, argv=(found, *program.argv[1:])))
    async with running.kept(supervisor):
        yield running


def _found(program: Program) -> str:
    """The path of the program; raises `FileNotFoundError`."""
    name = program.argv[0]
    if "/" in name:
        found = shutil.which(program.cwd / name)
    else:
        found = find_named_program(name, program.env.get("PATH", os.defpath), (program.cwd,))
    if found is None:
        remedy = "" if "/" in name else ": install it, or name it by its path"
        raise FileNotFoundError(f"the program {name} {not_found(name)}{remedy}")
    return str(found)


# ── mcp ───────────────────────────────────────────────────────────────────────────────────────────


ARGUMENT_BYTES = 64 << 10
MOST_TOLD = 10_000
"""Sessions of which a worker remembers that they were told of their servers' last start."""
MOST_QUESTIONS = 8
"""Questions that one call may ask, and declined ones of which its end tells."""


def _digest_of(tools: Sequence[server_records.ServerTool]) -> str:
    """SHA-256 of the list of a server's tools, in the order of their names."""
    told = [
        [tool.name, tool.description, tool.parameters] for tool in sorted(tools, key=lambda tool: tool.name)
    ]
    return hashlib.sha256(orjson.dumps(told, default=dict, option=orjson.OPT_SORT_KEYS)).hexdigest()


class McpToolbox:
    """The tools of a worker's MCP servers."""

    def __init__(self, servers: server_records.McpTools) -> None:
        self._servers = servers
        self._told: OrderedDict[str, None] = OrderedDict()

    # ── before a request ──────────────────────────────────────────────────────────────────────

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Starts the servers of the session's folder, and waits for them as long as the settings say."""
        session = state.facts.session_id

        def report(server: str, status: McpStartupStatus) -> None:
            # Clients show that servers start until they hear of all: also in another folder, and of one anew.
            self._told.pop(session, None)
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

    def told(self, state: State) -> tuple[JsonMapping, ...]:
        """The servers of the session's folder, as the first entry of an epoch has them."""
        return tuple(
            {"name": name, "version": version, "tools": _digest_of(tools) if tools else ""}
            for name, version, tools in self._servers.known(_folder(state))
        )

    async def listed(self, state: State, server: str | None = None) -> dict[str, Tool]:
        """The tools of the folder's servers by their full names, as their servers describe them.

        `server`: those of the one of this name alone.
        """
        up = await self._servers.up(_folder(state))
        return {each.full_name: each.tool.record for each in up if server in (None, each.tool.server)}

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

        async def ask(question: server_records.Question) -> ElicitationAction:
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
    return name.startswith(server_records.PREFIX)


def _folder(state: State) -> Path:
    portable = state.facts.portable
    # A portable folder is made when a call first needs it, and replaced: a server that began in it would stay
    # in one that is gone. Its servers begin where the copies are, and all such sessions share them.
    return Path(state.in_force.cwd) if portable is None else Path(portable.root)


def _may_use(state: State, tool: server_records.ServerTool) -> bool:
    """Whether the tool may be used: helpers, and tasks beside the conversation, only read."""
    beside = state.task is not None and state.task.branch is not None
    return tool.read_only or not (beside or state.facts.helper_call)


def _spec(offered: server_records.OfferedTool) -> JsonObject:
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
    if not isinstance(arguments, dict) or server_records.is_deeper(arguments, server_records.JSON_DEPTH):
        raise BadArguments(
            f"the arguments must be a JSON object of at most {server_records.JSON_DEPTH} levels"
        )
    found: JsonObject = server_records.plain(arguments)
    return found


def _complete(started: server_records.Started) -> McpStartupComplete:
    failed = [McpStartupFailure(server=server, error=error) for server, error in started.failed.items()]
    return McpStartupComplete(ready=started.ready, failed=tuple(failed))


def _unaskable(question: server_records.Question, site: CallSite, asked: int) -> str | None:
    """The reason why a person is not asked; None if they are."""
    if not question.answerable:
        return "a person can answer yes or no, and it wants more, or several calls of it run at once"
    if site.state.facts.helper_call:
        return "the agent only reads for another one: it asks nobody"
    if asked > MOST_QUESTIONS:
        return f"a call asks at most {MOST_QUESTIONS} questions"
    return None


def _declined(question: server_records.Question, work: McpWork, why: str) -> WarningEvent:
    return WarningEvent(
        message=f"the MCP server {question.server} asked in the middle of {work.tool}: "
        f"{question.message!r}; its question was declined: {why}"
    )


# ── mcp programs ──────────────────────────────────────────────────────────────────────────────────
# The programs of MCP servers: supervised, in the environment of commands and their own variables.


def mcp_programs(supervisor: Supervisor, config: ToolConfig) -> server_records.StartProgram:
    """Starts servers outside of the sandbox: the person has configured them."""

    def start(settings: McpServerSettings, cwd: Path) -> AbstractAsyncContextManager[server_records.Pipes]:
        return _started(supervisor, _program(settings, cwd, config))

    return start


@asynccontextmanager
async def _started(supervisor: Supervisor, program: Program) -> AsyncIterator[server_records.Pipes]:
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
        unread_bytes=server_records.UNREAD_BYTES,
        stderr_bytes=server_records.STDERR_BYTES,
    )
