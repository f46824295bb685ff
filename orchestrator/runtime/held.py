"""What all parts of one runner share: its claim, what it was asked to keep to, and where its log stands.

It only holds. Whatever changes here is changed by the part whose rule it is: the journal by
accepted commits, nothing else after the claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.broker.records import Claim, Claimed
from orchestrator.core.chain import ChainKey
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import Rules
from orchestrator.runtime.budget import Accounting
from orchestrator.runtime.commits import Writing
from orchestrator.runtime.journal import Journal
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.workspace import Workspace
from orchestrator.tables import LogSettings, WorkerSettings


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What one worker asks of each of its runners."""

    rules: Rules = field(default_factory=Rules)
    chain_key: ChainKey | None = None
    accounting: Accounting = field(default_factory=Accounting)
    """What model requests cost."""
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    others_wait: Callable[[], bool] = lambda: False
    """Whether sessions of the pool are due while this worker has no room."""
    adopt: Callable[[Sequence[SessionId]], None] = lambda sessions: None
    """Asks the worker to end what is cancelled and due in pools that nobody may serve."""
    confirm_effects: Callable[[Claim, int], Awaitable[bool]] | None = None
    """Under `effects = wait`: whether replicas have the log of a claim's session up to an entry."""


@dataclass(frozen=True, slots=True)
class Held:
    """One claimed session, as the parts of its runner see it."""

    ports: Ports
    config: RunnerConfig
    claimed: Claimed
    journal: Journal
    writing: Writing
    workspace: Workspace

    @classmethod
    def of(cls, ports: Ports, config: RunnerConfig, claimed: Claimed) -> Held:
        writing = Writing(ports, claimed.claim, claimed.last_commit)
        return cls(ports, config, claimed, Journal(), writing, Workspace(ports.workspace))

    @property
    def claim(self) -> Claim:
        return self.claimed.claim
