"""The set-up of a portable folder: a person's script, run under the claim in a sandbox of its own.

The folder and its `/tmp` may be written whatever the session's own sandbox says, and the network is as the
set-up says. The environment is that of commands: no secret of the worker's is in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.core.commands import SetupEnded
from orchestrator.core.settings import FolderSetup
from orchestrator.core.state import State
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import Confinement, InvalidPolicy, resolve
from orchestrator.sandbox.probe import NoConfinement
from orchestrator.tools.exec.command import Command, Finished, formatted_output
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.shell import search_path
from orchestrator.tools.tool_context import CallSite, ToolConfig, place_of

CALL_ID = "folder-setup"
OUTPUT_BYTES = 4096
"""Bytes of its output that an error shows, from the end: there it says why it failed."""
NO_FOLDER = "the session has no portable folder, or no set-up"


class SetupRunner:
    """The runner of set-ups on one worker."""

    def __init__(self, config: ToolConfig, supervisor: Supervisor) -> None:
        self._config = config
        self._supervisor = supervisor

    async def run(self, site: CallSite) -> SetupEnded:
        """Runs the session's set-up to its end; cancelling it kills it and waits for the proof."""
        portable = site.state.facts.portable
        if portable is None or portable.setup is None:
            return SetupEnded("failed", message=NO_FOLDER)
        try:
            command = self._command(site, portable.setup)
            finished = await self._supervisor.run(command, _unseen)
        except (NoConfinement, SupervisorLost, InvalidPolicy) as error:
            finished = Finished(exit_code=-1, error=str(error))
        return _ended(finished, portable.setup)

    def _command(self, site: CallSite, setup: FolderSetup) -> Command:
        confinement = self._confinement(site.state, setup)
        sandbox = self._config.sandbox
        shell = "bash" if shutil.which("bash", path=search_path(self._config)) else "sh"
        return Command(
            claim=site.claim,
            call_id=CALL_ID,
            argv=(shell, "-c", setup.script, "setup"),
            cwd=confinement.cwd,
            env=command_environment(self._config.environ, sandbox.environment, confinement),
            confinement=confinement,
            timeout_s=setup.timeout_ms / 1000,
            limits=Limits(sandbox.max_processes, sandbox.max_memory_bytes),
        )

    def _confinement(self, state: State, setup: FolderSetup) -> Confinement:
        place = place_of(state.facts)
        assert place is not None, "the session's folder is portable"
        return resolve(
            {"mode": "workspace-write", "network_access": setup.network},
            Path(place.here),
            None,
            hidden=self._config.hidden,
            read_only=self._config.read_only,
            unix_sockets=False,
            place=place,
        )


def _unseen(stream: str, chunk: bytes) -> None:
    """Drops output: a set-up's is shown at its end."""


def _ended(finished: Finished, setup: FolderSetup) -> SetupEnded:
    if finished.exit_code == 0 and finished.error is None and not (finished.timed_out or finished.killed):
        return SetupEnded("done", finished.duration_s)
    name = setup.origin or "its script"
    if finished.timed_out:
        how = f"{name} did not end within {setup.timeout_ms / 1000:g} s (`workspace.setup_timeout_s`)"
    elif finished.error is not None and finished.exit_code == -1:
        how = f"{name} did not run"
    else:
        how = f"{name} ended with exit code {finished.exit_code}"
    said = _end_of(formatted_output(finished))
    return SetupEnded("failed", finished.duration_s, f"{how}. It said:\n{said}" if said else how)


def _end_of(text: str) -> str:
    """The last bytes of the output, as valid text."""
    data = text.strip().encode()
    if len(data) <= OUTPUT_BYTES:
        return data.decode()
    return "[...] " + data[-OUTPUT_BYTES:].decode("utf-8", "ignore")
