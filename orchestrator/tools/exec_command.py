"""The tool `exec_command`: a shell command that may go on behind its call.

It is judged, confined and approved as one of `shell` is. What differs: its call waits for it no longer than
it says, and `write_stdin` looks at it again, or types to its terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import Field

from orchestrator.core.calls import Call, Exec, ExecWork, StdinWork, WriteStdin
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import Assessment, CallFinished, ProcessEnd
from orchestrator.core.decide.call_end import no_process
from orchestrator.core.frozen import replace
from orchestrator.core.record_json import whole
from orchestrator.core.state import State
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.exec.output_deltas import ShownOutput
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.exec.worker_processes import (
    MAX_TOKENS,
    MOST_ON_WORKER,
    OUTPUT_TOKENS,
    YIELD,
    LiveProcess,
    LiveProcesses,
    look_of,
    process_end,
    within,
)
from orchestrator.tools.shell import (
    Shell,
    ShellRequest,
    changed_since,
    command_of,
    is_denied,
    keep_rule,
    planted_now,
)
from orchestrator.tools.tool import Judgement, Tool, function, string, unsupported
from orchestrator.tools.tool_context import CallSite, ToolConfig, confinement_of

EXEC_COMMAND = "exec_command"
YIELD_MS, LEAST_YIELD_MS, MOST_YIELD_MS = 10_000, 250, 30_000
SHELLS = ("bash", "sh", "zsh")

SPEC = function(
    EXEC_COMMAND,
    "Runs a shell command and returns its output. A command that has not ended when the time is over goes "
    "on: its session ID is returned, for write_stdin.",
    {
        "cmd": string("The shell command."),
        "workdir": string("The folder to run in, relative to the session's folder; default: that folder."),
        "shell": string(f"The shell that runs it: {', '.join(SHELLS)}; default bash."),
        "login": {"type": "boolean", "description": "Whether it is a login shell; default true."},
        "tty": {
            "type": "boolean",
            "description": "Whether it gets a terminal, to be typed to; default false: it has no input.",
        },
        "yield_time_ms": {
            "type": "number",
            "description": f"{YIELD}{LEAST_YIELD_MS} to {MOST_YIELD_MS}, default {YIELD_MS}.",
        },
        "max_output_tokens": MAX_TOKENS,
        "with_escalated_permissions": {
            "type": "boolean",
            "description": "Ask to run it outside of the sandbox, where the task needs it.",
        },
        "justification": string("With escalated permissions: one sentence for the person who decides."),
    },
    ["cmd"],
)


class ExecCommandArguments(Arguments):
    cmd: str = Field(min_length=1)
    workdir: str | None = None
    shell: str | None = None
    login: bool = True
    tty: bool = False
    yield_time_ms: int = Field(default=YIELD_MS, ge=0)
    max_output_tokens: int = Field(default=OUTPUT_TOKENS, ge=1)
    with_escalated_permissions: bool = False
    justification: str | None = None


class ExecCommand(Tool):
    """Starts commands; what is a patch in a command's clothes goes to the tool of patches."""

    names = (EXEC_COMMAND,)
    beside = frozenset({"plan", "review"})

    def __init__(
        self, config: ToolConfig, supervisor: Supervisor, shell: Shell, processes: LiveProcesses
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._shell = shell
        self.processes = processes
        """The processes of the worker."""

    def offered(self, state: State) -> JsonObject | None:
        return SPEC if state.facts.unified_exec else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.unified_exec or call.item["type"] != "function_call":
            return unsupported(call)
        given = parsed(ExecCommandArguments, call.item["arguments"])
        request = ShellRequest(
            (_shell(given.shell), "-lc" if given.login else "-c", given.cmd),
            given.workdir,
            escalated=given.with_escalated_permissions,
            justification=given.justification,
        )
        assessed = await self._shell.assess_request(request, site)
        if not isinstance(assessed, Exec):
            return assessed
        yield_ms = within(given.yield_time_ms, LEAST_YIELD_MS, MOST_YIELD_MS)
        tokens = min(given.max_output_tokens, OUTPUT_TOKENS)
        return replace(assessed, lasting=Lasting(given.tty, yield_ms, tokens))

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        work = call.work
        if not isinstance(work, ExecWork) or work.lasting is None:
            return await self._shell.run(call, site)
        if self.processes.full:
            why = f"not started: this worker keeps {MOST_ON_WORKER} processes already; try again later"
            return CallFinished(call.call_id, why, (work.broken_off(call.call_id, why),))
        if why := changed_since(work, site.state, self._config):
            return CallFinished(call.call_id, why, (work.broken_off(call.call_id, why),))
        keep_rule(call, work, site, self._config)
        shown = ShownOutput(call.call_id, site.lasting_deltas, self._config.tools.max_deltas)
        confinement = confinement_of(site.state, self._config, sandboxed=work.sandboxed)
        command = command_of(call, work, site, self._config, confinement)
        command = replace(command, timeout_s=None, tty=work.lasting.tty)
        if command.tty:
            command = replace(command, env=self._of_terminal(command.env))
        with self.processes.starting():
            process = LiveProcess(self._supervisor, command, shown)
            return await self._first_look(call, work, work.lasting, process, site)

    def _of_terminal(self, env: Mapping[str, str]) -> dict[str, str]:
        """Programs are told of a plain terminal: nobody draws what they would paint on another."""
        return {**env, "TERM": self._config.sandbox.environment.set.get("TERM", "dumb")}

    async def _first_look(
        self, call: Call, work: ExecWork, lasting: Lasting, process: LiveProcess, site: CallSite
    ) -> CallFinished:
        began = asyncio.get_running_loop().time()
        try:
            await process.wait(lasting.yield_ms / 1000)
        except asyncio.CancelledError:
            await process.stop()
            raise
        seconds, finished = asyncio.get_running_loop().time() - began, process.finished
        if finished is None:
            self.processes.add(site.claim, lasting.number, process)
            output = look_of(process, seconds, lasting.max_tokens, running=lasting.number)
            return CallFinished(call.call_id, output, keeps=True)
        output = look_of(process, seconds, lasting.max_tokens, finished=finished)
        end = process_end(call.call_id, lasting.number, finished)
        denied = is_denied(work, finished)
        found = planted_now(work, site.state, self._config) if denied else ()
        return CallFinished(call.call_id, output, (end,), sandbox_denied=denied, planted=found)

    async def judge(self, call: Call, claim: str) -> Judgement:
        return await self._shell.judge(call, claim)


def _shell(name: str | None) -> str:
    """The shell by its plain name: under another path, a file could be anything."""
    plain = SHELLS[0] if name is None else name.removeprefix("/usr").removeprefix("/bin/")
    if plain not in SHELLS:
        raise BadArguments(f"shell: {name!r} is none of {', '.join(SHELLS)}")
    return plain


# ── write stdin ───────────────────────────────────────────────────────────────────────────────────
# The tool `write_stdin`: words to a process that `exec_command` has left running, or a look at it.


WRITE_STDIN = "write_stdin"
LEAST_POLL_MS, MOST_POLL_MS = 5_000, 300_000
"""Milliseconds that a look without words may wait."""
CHARS = 16_384
"""Characters that one call may type."""
NOT_TYPED = "not typed: what was typed before still waits, since the program does not read its input"

WRITE_SPEC = function(
    WRITE_STDIN,
    "Types to a command that runs, and returns what it has said since the last look. \\u0003 is Ctrl-C.",
    {
        "session_id": {"type": "number", "description": "The session ID that exec_command returned."},
        "chars": string("What to type; empty or absent: only look. A line ends with \\n."),
        "yield_time_ms": {
            "type": "number",
            "description": f"{YIELD}default {LEAST_YIELD_MS}; without chars {LEAST_POLL_MS} to "
            f"{MOST_POLL_MS}.",
        },
        "max_output_tokens": MAX_TOKENS,
    },
    ["session_id"],
)


class WriteStdinArguments(Arguments):
    session_id: int = Field(ge=0)
    chars: str = Field(default="", max_length=CHARS)
    yield_time_ms: int = Field(default=LEAST_YIELD_MS, ge=0)
    max_output_tokens: int = Field(default=OUTPUT_TOKENS, ge=1)


class WriteStdinTool(Tool):
    """Looks at processes, and types to them."""

    names = (WRITE_STDIN,)
    beside = frozenset({"plan", "review"})

    def __init__(self, processes: LiveProcesses) -> None:
        self._processes = processes

    def offered(self, state: State) -> JsonObject | None:
        return WRITE_SPEC if state.facts.unified_exec else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.unified_exec or call.item["type"] != "function_call":
            return unsupported(call)
        given = parsed(WriteStdinArguments, call.item["arguments"])
        most = MOST_YIELD_MS if given.chars else MOST_POLL_MS
        least = LEAST_YIELD_MS if given.chars else LEAST_POLL_MS
        return WriteStdin(
            given.session_id,
            given.chars,
            within(given.yield_time_ms, least, most),
            min(given.max_output_tokens, OUTPUT_TOKENS),
        )

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        work = call.work
        if not isinstance(work, StdinWork):
            return await super().run(call, site)
        process = self._processes.get(site.claim, work.number)
        if process is None:
            return CallFinished(call.call_id, no_process(work.number, ()))
        began = asyncio.get_running_loop().time()
        typed = process.write(whole(work.chars).encode("utf-8", "replace")) if work.chars else True
        await process.wait(work.yield_ms / 1000)
        seconds, finished = asyncio.get_running_loop().time() - began, process.finished
        if finished is None:
            output = look_of(process, seconds, work.max_tokens, running=work.number)
            return CallFinished(call.call_id, output if typed else f"{NOT_TYPED}\n{output}")
        self._processes.remove(site.claim, work.number)
        output = look_of(process, seconds, work.max_tokens, finished=finished)
        end = process_end(work.started_by, work.number, finished, unseen=process.unseen)
        return CallFinished(call.call_id, output, over=ProcessEnd(work.number, end))
