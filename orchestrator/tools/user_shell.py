"""Commands that a person types: run by a shell in the session's folder and sandbox, and never asked about."""

from __future__ import annotations

import shutil
from typing import Final

from orchestrator.core.calls import USER_SHELL, Call, Exec, ExecWork, command_of
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.frozen import replace
from orchestrator.protocol.events import Error, ExecCommandEnd
from orchestrator.protocol.wire import UNSET
from orchestrator.tools.commands.parsed import parsed_cmd
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.shell import is_confinable, run_command, search_path
from orchestrator.tools.site import CallSite, ToolConfig
from orchestrator.tools.tool import Tool, task_of, unsupported

LONGEST_MS: Final = 3_600_000
"""A command of a person may take an hour: they can interrupt it."""
NOT_CONFINED: Final = (
    "not run: the session's sandbox confines commands, and this worker cannot; `dendro doctor` says on its "
    "machine what is missing"
)


class UserShell(Tool):
    """The runner of people's commands; no model is offered it, and no call of a model is one of its."""

    names = (USER_SHELL,)

    def __init__(self, config: ToolConfig, supervisor: Supervisor) -> None:
        self._config = config
        self._supervisor = supervisor

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        command = command_of(call.item)
        if command is None:
            return unsupported(call)
        task = task_of(site.state)
        confinable = is_confinable(site.state, self._config)
        if not confinable and not task.settings.full_access:
            return Immediate(NOT_CONFINED, (Error(message=NOT_CONFINED, codex_error_info=UNSET),))
        shell = "bash" if shutil.which("bash", path=search_path(self._config)) else "sh"
        argv = (shell, "-lc", command)
        return Exec(
            command=argv,
            cwd=task.settings.cwd,
            parsed_cmd=tuple(parsed_cmd(argv)),
            key="",
            confinable=confinable,
            timeout_ms=LONGEST_MS,
            by_person=True,
        )

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        assert isinstance(call.work, ExecWork)
        finished = await run_command(call, call.work, site, self._config, self._supervisor)
        # The person knows what the sandbox stops: nobody is asked whether to leave it.
        return replace(finished, output=_told(finished), sandbox_denied=False)


def _told(finished: CallFinished) -> str:
    """The result of a command as the model reads it."""
    (end,) = finished.events
    assert isinstance(end, ExecCommandEnd)
    seconds = end.duration.secs + end.duration.nanos / 1e9
    return f"Exit code: {end.exit_code}\nDuration: {seconds:.1f} seconds\nOutput:\n{end.formatted_output}"
