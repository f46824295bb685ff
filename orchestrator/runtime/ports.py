"""Everything that the runtime may touch outside of itself.

A simulator replaces this record and nothing else: with it, the same runner, the same core
and the same scripts run on a simulated clock and network.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from orchestrator.boottime import boottime
from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Claim
from orchestrator.config_keys import ModelSettings
from orchestrator.core.calls import Call, MergeWork
from orchestrator.core.commands import (
    Assessment,
    CallFinished,
    FolderCopied,
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotCopied,
    FolderNotMerged,
    FolderUnsaved,
    ProcessEnd,
    SetupEnded,
)
from orchestrator.core.facts import Claimed, WorkspaceSaved
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.state import Process, State
from orchestrator.instructions.skills import RecordedSkills
from orchestrator.model.canonical import CanonicalRequests, Conversations
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Item, ModelEvent, Prompt
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.rollout_file import Files, locked
from orchestrator.runtime.machine_files import Library, NoFiles
from orchestrator.runtime.same_folder import WorkspaceCheck, check_workspace
from orchestrator.telemetry.observer import Observer
from orchestrator.tools.tool_context import CallSite, DeltaSink

# ── folders ───────────────────────────────────────────────────────────────────────────────────────
# The port to folders of sessions: what is made, looked at, stored and merged of them, on a worker's
# machine.
#
# A portable folder belongs to one session, and only the holder of the session's claim writes it. Any
# other session works in a folder of the machine as it is, the person's own: that is neither made nor
# recorded, but it is copied for agents, and their changes are merged into it. Nothing here decides: each
# answer is a command, which the runner decides in the step that it belongs to, or becomes the end of the
# call that it belongs to.


NOT_SERVED = (
    "this worker makes no folders, and the session's is one that any worker makes. Set `workspace.root` and "
    "`upkeep.archive_url` for all workers of the session's pool, start them again, and send the input again"
)


NOT_COPIED = (
    "this worker copies no folders. Set `workspace.root` and `upkeep.archive_url` for all workers of the "
    "session's pool and start them again, or leave `workspace` out: then the agent works in your folder"
)


class Folders(Protocol):
    """The folders of one worker's machine."""

    @property
    def machine(self) -> str:
        """The machine's name, as entries and people are told it."""
        ...

    async def unfit(self) -> str:
        """The reason why no folder can be made on this machine now, with the remedy; empty if one can."""
        ...

    async def has(self, state: State) -> SnapshotId | None:
        """The snapshot of the session's unsaved changes, if this machine can make it."""
        ...

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        """Makes the folder at `state.workspace.standing`, or finds it; what is there beside it is discarded.

        Waits for a store that is away, for a time. Cancelling it leaves the folder as it was, or not there.
        """
        ...

    async def writing(self, state: State, claim: Claim) -> None:
        """Notes, before a call that may write begins, that the copy is none of a known snapshot any more.

        Waits for a snapshot that is being taken: it holds nothing of the call.
        """
        ...

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | FolderUnsaved | None:
        """Takes a snapshot of the folder and stores it; None if nothing has changed since the last one.

        Its parent is the last snapshot that this claim stored, also if the log does not have it yet; where
        nothing else has changed, the same `at_ms` gives the same snapshot. After
        `within_s` the answer is `FolderUnsaved`, while the upload may go on; the next question finds what
        came of it. It may be cancelled and asked again. Those who ask at once are answered one by one. It
        raises for nothing that a folder, a disk or a store can do.
        """
        ...

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        """Brings a child's changes into the folder: all of them, or none where any conflicts.

        Cancelled, it is ended, whole or not begun, when this raises. In a folder of the machine it can be
        taken back until `recorded` has seen it in the log, and cancelled, nothing of it is there.
        """
        ...

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        """Takes a snapshot of a folder of the machine as it is now; its pack is stored when this returns.

        Writes nothing to the folder. It may be cancelled, and asked again.
        """
        ...

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        """Judges the merge of a lost worker into a folder of the machine.

        `none` when nothing of it is there (any more), or `in_doubt`.
        """
        ...

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        """Notes that the log has the folder's state, and what was merged under this claim.

        `resting`: nothing that may write runs.
        """
        ...

    async def instructions(self, state: State, folder: str) -> str | None:
        """The instructions for a folder that the model has not been told, read from the snapshot's tree."""
        ...

    async def read(self, state: State, paths: Sequence[str], most: int) -> Mapping[str, bytes | str]:
        """Files of a portable folder as it was recorded last, by their paths in it.

        A text says why a file was not read: it has more than `most` bytes, for example. Raises `OSError` with
        a text for people where none can be read.
        """
        ...

    async def skills(self, state: State, folder: str) -> RecordedSkills:
        """The skills that a portable folder has for one of its folders, as it was recorded last.

        Raises `OSError` with a text for people where they cannot be read.
        """
        ...

    async def release(self, session: SessionId, claim: Claim) -> None:
        """Lets go of the folder: nothing of this claim touches it when this returns."""
        ...


class NoFolders:
    """A worker that makes and copies no folders: it can say so, and give claims of portable sessions back."""

    machine = ""

    async def unfit(self) -> str:
        return NOT_SERVED

    async def has(self, state: State) -> SnapshotId | None:
        return None

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        return FolderFailed("", NOT_SERVED, elsewhere=True)

    async def writing(self, state: State, claim: Claim) -> None:
        return None

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | FolderUnsaved | None:
        return None

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        return FolderNotMerged(NOT_COPIED if state.facts.portable is None else NOT_SERVED)

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        return FolderNotCopied(NOT_COPIED)

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        return "in_doubt"

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        return None

    async def instructions(self, state: State, folder: str) -> str | None:
        return None

    async def read(self, state: State, paths: Sequence[str], most: int) -> Mapping[str, bytes | str]:
        raise OSError(NOT_SERVED)

    async def skills(self, state: State, folder: str) -> RecordedSkills:
        raise OSError(NOT_SERVED)

    async def release(self, session: SessionId, claim: Claim) -> None:
        return None


# ── ports ─────────────────────────────────────────────────────────────────────────────────────────


class Tools(Protocol):
    """The tools that a model is offered, and what their calls do."""

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Makes ready what the tools of the session's next request need; `show` publishes how that goes."""
        ...

    def release(self, session: SessionId) -> None:
        """Lets go of what was made ready for a session that this worker gives back."""
        ...

    async def of_servers(self, state: State, server: str | None = None) -> dict[str, McpTool]:
        """The tools of the MCP servers of the session's folder, by the names that models call them by.

        `server`: those of the one of this name alone.
        """
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


@record
class AboutWorker:
    """A worker as the first entry of an epoch tells of it, and the texts that it names, by their SHA-256."""

    told: Claimed
    texts: Mapping[str, str] = field(default_factory=dict)


Signers = Callable[[str, bytes, bytes], bool | None]
"""Tells whether a signature is one of a message by the key that is named; None: that key is not known."""


def _nobody(key: str, signature: bytes, message: bytes) -> bool | None:
    return None


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
    random_bytes: Callable[[int], bytes] = os.urandom
    machine: str = ""
    """The name of this worker's machine, which requests to people state."""
    jitter: Callable[[], float] = field(default=lambda: random.uniform(0.9, 1.1))
    spawn: Spawn = _spawn
    observer: Observer | None = None
    """Hears of every step; None where nobody listens."""
    version: str = "0"
    """The program's version: the first line of a new session's rollout names it."""
    signers: Signers = _nobody
    """Checks people's signatures under their answers."""
    canonical: CanonicalRequests | None = None
    """The digests of requests; None: no entry says what was sent."""
    conversations: Conversations = field(default_factory=Conversations)
    """Conversations as sessions showed their models in their last requests."""
    about: Callable[[State, str], AboutWorker] | None = None
    """Tells of the worker of this name, as it is now, in the session's folder; None: no entry says it."""
