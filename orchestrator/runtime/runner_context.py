"""The parts of one runner share a claim, a configuration, and the place where the log stands.

No rule is here: accepted commits change the journal, and nothing else changes after the claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Protocol

from orchestrator.broker.records import Claim, Claimed, Settlement, Successor
from orchestrator.config_keys import LogSettings, WorkerSettings
from orchestrator.core.chain import ChainKey
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import Rules
from orchestrator.runtime.committing import Writing
from orchestrator.runtime.journal import Journal
from orchestrator.runtime.loader import Loaded
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.request_costs import Accounting
from orchestrator.runtime.same_folder import FolderFaults


class RestedFiles(Protocol):
    """The files of sessions that have just come to rest."""

    def owe(self, claim: Claim, left: Loaded) -> None:
        """Has the file of a session written to where its runner left it."""
        ...


class Successors(Protocol):
    """The worker, as one that goes on with what a commit of its own wakes."""

    def offer(self, session: SessionId, pool: str) -> Successor | None:
        """A claim to be sent with a commit; None if this worker is not the one to go on with the session."""
        ...

    async def settle(self, successor: Successor) -> None:
        """Goes on with the session, if it was claimed; each offer is settled once."""
        ...


@record
class RunnerConfig:
    """The configuration that one worker gives to each of its runners."""

    rules: Rules = field(default_factory=Rules)
    chain_key: ChainKey | None = None
    accounting: Accounting = field(default_factory=Accounting)
    """The costs of model requests."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    others_wait: Callable[[], bool] = lambda: False
    """Whether sessions of the pool are due while this worker has no room."""
    hold_s: float = 86_400.0
    """Seconds for which a claim is kept for a store that does not take a portable folder."""
    adopt: Callable[[Sequence[SessionId]], None] = lambda sessions: None
    """Asks the worker to end cancelled sessions that are due in pools which no worker may serve."""
    committed: Callable[[str, Sequence[Settlement]], None] = lambda pool, settlements: None
    """Hears of each commit of a pool's session, with the model requests that it has settled."""
    files: RestedFiles | None = None
    """Writes the rollouts' files of sessions that rest, later; None: a runner writes its own at once."""
    successors: Successors | None = None
    confirm_effects: Callable[[Claim, int], Awaitable[bool]] | None = None
    """Under `effects = wait`: whether replicas have the log of a claim's session up to an entry."""


@record
class RunnerContext:
    """A claimed session, as the parts of its runner see it."""

    ports: Ports
    config: RunnerConfig
    claimed: Claimed
    journal: Journal
    writing: Writing
    workspace: FolderFaults

    @classmethod
    def of(cls, ports: Ports, config: RunnerConfig, claimed: Claimed) -> RunnerContext:
        writing = Writing(ports, claimed.claim, claimed.last_commit)
        return cls(ports, config, claimed, Journal(), writing, FolderFaults(ports.workspace))

    @property
    def claim(self) -> Claim:
        return self.claimed.claim
