"""The `shell` tool: a command's words judged, and an accepted command run under the supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from orchestrator.core.calls import Exec, ExecWork
from orchestrator.core.commands import CallFinished, Immediate
from orchestrator.core.forms import whole
from orchestrator.core.state import Call, State, Task
from orchestrator.protocol.events import ExecCommandEnd, ExecCommandOutputDelta
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, OutputStream
from orchestrator.protocol.wire import written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy import Confinement
from orchestrator.sandbox.probe import NoConfinement, choose
from orchestrator.tools.apply_patch import PatchRequest
from orchestrator.tools.commands.parsed import parsed_cmd
from orchestrator.tools.commands.safety import is_dangerous, is_known_safe, obeys_its_folder
from orchestrator.tools.commands.variables import are_known_safe
from orchestrator.tools.confinement import confinement_of
from orchestrator.tools.exec.command import Command, Finished, Stream
from orchestrator.tools.exec.deltas import COALESCE_S, DeltaCoalescer, OutputDelta
from orchestrator.tools.exec.output import formatted_output, model_output
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.patch.invocation import PatchInvocation, PatchRefusal, patch_from_argv
from orchestrator.tools.site import DeltaSink, Site, ToolConfig

_DENIALS = (
    b"permission denied",
    b"read-only file system",
    b"operation not permitted",
    b"network is unreachable",
    b"could not resolve host",
    b"temporary failure in name resolution",
)


@dataclass(frozen=True, slots=True)
class ShellRequest:
    """A command as the model asked for it."""

    command: tuple[str, ...]
    workdir: str | None = None
    timeout_ms: int | None = None
    escalated: bool = False
    justification: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def assess_shell(request: ShellRequest, state: State, config: ToolConfig) -> Exec | Immediate | PatchRequest:
    """The command as it would run; a patch given as a command is recognised first."""
    task = _task(state)
    match patch_from_argv(request.command):
        case PatchInvocation(body, workdir):
            return PatchRequest(body, _joined(request.workdir, workdir))
        case PatchRefusal(message):
            return Immediate(message)
    cwd = str(Path(task.settings.cwd, request.workdir or "."))
    return Exec(
        command=request.command,
        cwd=cwd,
        parsed_cmd=tuple(parsed_cmd(request.command)),
        key=_key(request, cwd),
        safe=_is_safe(request, cwd, task, config),
        dangerous=is_dangerous(request.command),
        escalated=request.escalated,
        justification=request.justification,
        confinable=_confinable(state, config),
        timeout_ms=request.timeout_ms,
        env=request.env,
    )


def _key(request: ShellRequest, cwd: str) -> str:
    """The key under which `approved_for_session` is stored: another variable is another command."""
    said = [request.command, cwd, request.escalated, *([request.env] if request.env else [])]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


def _is_safe(request: ShellRequest, cwd: str, task: Task, config: ToolConfig) -> bool:
    if not is_known_safe(request.command) or not are_known_safe(request.env):
        return False
    if task.settings.full_access:
        # Nothing holds it: what the words say has to be all that runs.
        return not obeys_its_folder(request.command) and _finds_programs_of_the_system(config)
    return _trusted(cwd, task, request.command)


def _finds_programs_of_the_system(config: ToolConfig) -> bool:
    """Whether `ls` is never a file of the command's folder: a relative part of PATH would make it one."""
    path = config.sandbox.environment.set.get("PATH", config.environ.get("PATH", os.defpath))
    return all(folder.startswith("/") for folder in path.split(":"))


def _joined(outer: str | None, inner: str | None) -> str | None:
    return str(Path(outer or ".", inner or ".")) if outer or inner else None


def _trusted(cwd: str, task: Task, command: tuple[str, ...]) -> bool:
    """git obeys the configuration of the repository that it is run in: only the session's own is trusted."""
    return not any("git" in word for word in command) or _inside(cwd, task.settings.cwd)


def _inside(cwd: str, workspace: str) -> bool:
    try:
        return Path(cwd).resolve().is_relative_to(Path(workspace).resolve())
    except (OSError, RuntimeError, ValueError):
        # No folder has such a name, or links lead in a circle: it will not be run in.
        return False


def _confinable(state: State, config: ToolConfig) -> bool:
    try:
        choose(config.support, confinement_of(state, config, sandboxed=True), config.sandbox.mechanism)
    except NoConfinement:
        return False
    return True


async def run_shell(
    call: Call, work: ExecWork, site: Site, config: ToolConfig, supervisor: Supervisor
) -> CallFinished:
    """Runs the command that was recorded as decided, and publishes its output while it runs."""
    confinement = confinement_of(site.state, config, sandboxed=work.sandboxed)
    shown = _Shown(call.call_id, site.deltas, config.tools.max_deltas)
    try:
        finished = await supervisor.run(_command(call, work, site, config, confinement), shown.add)
    except (NoConfinement, SupervisorLost) as error:
        finished = Finished(exit_code=-1, error=str(error))
    finally:
        shown.flush()
    return _result(call, work, finished)


def _command(call: Call, work: ExecWork, site: Site, config: ToolConfig, confinement: Confinement) -> Command:
    timeout_ms = work.timeout_ms
    environment = command_environment(config.environ, config.sandbox.environment, confinement)
    return Command(
        claim=site.claim,
        call_id=call.call_id,
        argv=tuple(map(whole, work.command)),
        cwd=Path(whole(work.cwd)),
        env={**environment, **work.env},
        confinement=confinement,
        timeout_s=config.tools.timeout_s if timeout_ms is None else timeout_ms / 1000,
        limits=Limits(config.sandbox.max_processes, config.sandbox.max_memory_bytes),
    )


def _result(call: Call, work: ExecWork, finished: Finished) -> CallFinished:
    end = ExecCommandEnd(
        call_id=CallId(call.call_id),
        stdout=_text(finished.stdout),
        stderr=_text(finished.stderr),
        aggregated_output=_text(finished.aggregated),
        exit_code=finished.exit_code,
        duration=Duration.cut(finished.duration_s),
        formatted_output=formatted_output(finished),
    )
    return CallFinished(call.call_id, model_output(finished), (end,), sandbox_denied=_denied(work, finished))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _denied(work: ExecWork, finished: Finished) -> bool:
    """A guess from the exit code and the words, as every sandbox of this kind has to make it."""
    if not work.sandboxed or finished.exit_code == 0 or finished.timed_out or finished.killed:
        return False
    said = finished.aggregated.lower()
    return any(words in said for words in _DENIALS)


class _Shown:
    """Output on its way to `exec_command_output_delta` events."""

    def __init__(self, call_id: str, sink: DeltaSink, limit: int) -> None:
        self._call_id = CallId(call_id)
        self._sink = sink
        self._coalescer = DeltaCoalescer(limit)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream, data: bytes) -> None:
        self._show(self._coalescer.add(stream, data, self._loop.time()))
        if self._timer is None and self._coalescer.due_at is not None:
            self._timer = self._loop.call_later(COALESCE_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._show(self._coalescer.flush())

    def _show(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            stream = OutputStream(delta.stream)
            shown = ExecCommandOutputDelta(call_id=self._call_id, stream=stream, chunk=delta.chunk)
            self._sink(written(shown))


def _task(state: State) -> Task:
    assert state.task is not None
    return state.task
