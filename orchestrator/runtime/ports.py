"""Everything that the runtime may touch outside of itself.

A simulator replaces this record and nothing else: with it, the same runner, the same core
and the same scripts run on a simulated clock and network.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import field
from typing import Any, Protocol

from orchestrator.boottime import boottime
from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.core.commands import Assessment, CallFinished, ProcessEnd
from orchestrator.core.folder_commands import SetupEnded
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.processes import Process
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.model.client import HttpBudget
from orchestrator.model.events import ModelEvent
from orchestrator.model.request import Item, Prompt
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.files import Files, locked
from orchestrator.runtime.folders import Folders, NoFolders
from orchestrator.runtime.library import Library, NoFiles
from orchestrator.runtime.workspace import WorkspaceCheck, check_workspace
from orchestrator.tables import ModelSettings
from orchestrator.telemetry.observer import Observer
from orchestrator.tools.site import CallSite, DeltaSink


class Tools(Protocol):
    """The tools that a model is offered, and what their calls do."""

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Makes ready what the tools of the session's next request need; `show` publishes how that goes."""
        ...

    def release(self, session: SessionId) -> None:
        """Lets go of what was made ready for a session that this worker gives back."""
        ...

    async def of_servers(self, state: State) -> dict[str, McpTool]:
        """The tools of the MCP servers of the session's folder, by the names that models call them by."""
        ...

    def specs(self, state: State) -> Sequence[Item]:
        """The tools as the model is offered them, in the Responses API's form."""
        ...

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        """Assesses what a call asks for; reads files, starts nothing."""
        ...

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        """Runs an accepted call to its end; cancelling it kills it and waits for the proof."""
        ...

    async def judge(self, call: Call, claim: str) -> str:
        """Judges what a lost worker's call left: `none`, `all` or `in_doubt`; `claim` is the asker's."""
        ...

    async def set_up(self, site: CallSite) -> SetupEnded:
        """Runs the set-up of the session's folder; cancelling it kills it and waits for the proof."""
        ...

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        """Returns at the end of a process that a call has left; cancelling it kills it and waits for the
        proof."""
        ...

    def kill_process(self, number: int, claim: str) -> None:
        """Lets a process be killed; `follow` returns when that is proved."""
        ...

    async def abandon(self, claim: str) -> None:
        """Kills the processes of a claim that nobody follows; returns when they are proved dead."""
        ...


class Models(Protocol):
    """The providers that this worker knows."""

    def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """Streams one model request; raises the model's errors, also for a provider that it does not know."""
        ...

    def retries(self, provider: str) -> tuple[int, int]:
        """(request_max_retries, stream_max_retries) of a provider."""
        ...


Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


def _spawn(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine, name=name)


@record
class Ports:
    """The ports of one worker: all that it runs on."""

    broker: Broker
    texts: Texts
    """Large texts by their hash."""
    models: Models
    tools: Tools
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    """A provider without a table in it has the defaults."""
    workspace: WorkspaceCheck = check_workspace
    folders: Folders = field(default_factory=NoFolders)
    """The folders of portable sessions, and those of this machine that agents have copies of."""
    library: Library = field(default_factory=NoFiles)
    """The machine's files of instructions, skills, prompts and images."""
    archive: Archive | None = None
    """Sealed parts of logs; read only when a snapshot cannot be used."""
    restore: Callable[[SessionId], Awaitable[bool]] | None = None
    """Brings an archived session back, to which a step sends something; None: it is refused."""
    files: Files = locked
    """Where rollouts' files are written."""
    monotonic: Callable[[], float] = time.monotonic
    boottime: Callable[[], float] = boottime
    """Counts while the machine sleeps: a lease does, too."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    machine: str = ""
    """The name of this worker's machine, which requests to people state."""
    jitter: Callable[[], float] = field(default=lambda: 0.9 + secrets.randbelow(2001) / 10_000)
    spawn: Spawn = _spawn
    observer: Observer | None = None
    """Hears of every step; None where nobody listens."""
    version: str = "0"
    """The program's version: the first line of a new session's rollout names it."""
