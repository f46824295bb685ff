"""Permissions: the operations and policies that a principal may choose.

The bound of policies is what a person has set: the deployment's own settings, or those that are in force in
the session already. Past it, a principal needs the scope `approve`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePosixPath
from typing import TypeAlias

from pydantic import BaseModel

from orchestrator.config_keys import APPROVAL_POLICIES, SANDBOX_MODES
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.modes import settings_named
from orchestrator.core.settings import GUARDED, TurnSettings
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.protocol import ops
from orchestrator.protocol.wire import JsonMapping
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.threads import settings_of

Permits: TypeAlias = Callable[[SessionId, ops.Op], Awaitable[None]]
"""Raises `NotPermitted` for an operation that its client may not submit to a session."""
SCOPES: Mapping[type[BaseModel], Scope] = {
    ops.AddToHistory: Scope.SUBMIT,
    ops.CancelAgent: Scope.SUBMIT,
    ops.Compact: Scope.SUBMIT,
    ops.ConfigureSession: Scope.SUBMIT,
    ops.DynamicToolResponse: Scope.SUBMIT,
    ops.ExecApproval: Scope.APPROVE,
    ops.GetHistoryEntryRequest: Scope.READ,
    ops.GetPath: Scope.READ,
    ops.InjectItems: Scope.SUBMIT,
    ops.Interrupt: Scope.SUBMIT,
    ops.ListCustomPrompts: Scope.READ,
    ops.ListMcpTools: Scope.READ,
    ops.ListModels: Scope.READ,
    ops.ListSkills: Scope.READ,
    ops.MessageAgent: Scope.SUBMIT,
    ops.OverrideTurnContext: Scope.SUBMIT,
    ops.PatchApproval: Scope.APPROVE,
    ops.Plan: Scope.SUBMIT,
    ops.RefreshMcpServers: Scope.SUBMIT,
    ops.RemoveQueued: Scope.SUBMIT,
    ops.ReorderQueue: Scope.SUBMIT,
    ops.ResolveAskUserQuestion: Scope.APPROVE,
    ops.ResolveElicitation: Scope.APPROVE,
    ops.ResolvePlanApproval: Scope.APPROVE,
    ops.Review: Scope.SUBMIT,
    ops.RunUserShellCommand: Scope.APPROVE,
    ops.SetThreadName: Scope.SUBMIT,
    ops.Shutdown: Scope.SUBMIT,
    ops.ThreadRollback: Scope.SUBMIT,
    ops.Undo: Scope.SUBMIT,
    ops.UpdateQueued: Scope.SUBMIT,
    ops.UserInput: Scope.SUBMIT,
    ops.UserInputAnswer: Scope.APPROVE,
    ops.UserTurn: Scope.SUBMIT,
}
"""The least scope that may submit an operation, whatever policies it names."""
OUTSIDE = "a token of a namespace works in the gateway's folder, or below it: leave it out, or name one there"
FOREIGN = "skills of other folders than the session's are the machine's user's: leave it out"
_SPARED = ("exclude_tmpdir_env_var", "exclude_slash_tmp")


@record
class Policies:
    """An approval policy and a sandbox policy in their wire form, and the folder that they count in."""

    approval: str
    sandbox: JsonMapping
    cwd: str = ""

    @classmethod
    def of(cls, settings: TurnSettings) -> Policies:
        """The policies of a turn's settings."""
        return cls(settings.approval_policy, settings.sandbox_policy, settings.cwd)

    def changed(self, op: ops.Op) -> Policies:
        """The policies after an operation."""
        named = settings_named(op) or {}
        return Policies(
            named.get("approval_policy", self.approval), named.get("sandbox_policy", self.sandbox), self.cwd
        )

    def within(self, bound: Policies) -> bool:
        """Whether commands may do no more than under `bound`, and people are asked no less."""
        asks = _rank(APPROVAL_POLICIES, self.approval) <= _rank(APPROVAL_POLICIES, bound.approval)
        return asks and _confines(self.sandbox, bound.sandbox)

    @property
    def in_words(self) -> str:
        """Both, for an error."""
        named = str(self.sandbox["mode"])
        if self.sandbox.get("network_access"):
            named += " with the network"
        if roots := self.sandbox.get("writable_roots"):
            named += f" and {len(roots)} writable roots"
        return f"sandbox {named}, approvals {self.approval}"


def _rank(strictest_first: tuple[str, ...], value: str) -> int:
    """The place of a policy; one that nobody knows is served as the strictest."""
    return strictest_first.index(value) if value in strictest_first else 0


def _confines(sandbox: JsonMapping, bound: JsonMapping) -> bool:
    mode, most = (_rank(SANDBOX_MODES, str(policy["mode"])) for policy in (sandbox, bound))
    if mode != most or SANDBOX_MODES[mode] != "workspace-write":
        return mode <= most
    if sandbox.get("network_access") and not bound.get("network_access"):
        return False
    if any(bound.get(flag) and not sandbox.get(flag) for flag in _SPARED):
        return False
    allowed = [PurePosixPath(root) for root in bound.get("writable_roots") or ()]
    return all(_lies_in(PurePosixPath(root), allowed) for root in sandbox.get("writable_roots") or ())


def _lies_in(root: PurePosixPath, allowed: list[PurePosixPath]) -> bool:
    # `..` is not resolved here: it may lead through a link of the worker's machine.
    return ".." not in root.parts and any(root.is_relative_to(one) for one in allowed)


@record
class Permissions:
    """The permissions of one principal at a deployment."""

    principal: Principal
    bound: Policies
    """The policies of the deployment's settings."""

    def check_policies(self, asked: Policies, *allowed: Policies) -> None:
        """Raises `NotPermitted` for policies beyond those of the deployment and of each of `allowed`."""
        if self.principal.may(Scope.APPROVE) or any(asked.within(one) for one in (self.bound, *allowed)):
            return
        self.principal.require(
            Scope.APPROVE, f"{asked.in_words}: more than the settings permit ({self.bound.in_words}), which"
        )

    async def check(self, op: ops.Op, in_force: Callable[[], Awaitable[Policies]]) -> None:
        """Raises `NotPermitted` for an operation that is not the principal's to submit.

        `in_force` reads the session's policies; it is asked only where an operation names others.
        """
        self.principal.require(SCOPES[type(op)], op.type)
        if isinstance(op, ops.ListSkills) and op.cwds and not self.principal.sees_machine:
            within = [PurePosixPath((await in_force()).cwd)]
            if not all(_lies_in(PurePosixPath(each), within) for each in op.cwds):
                raise NotPermitted(f"cwds: {FOREIGN}")
            return
        named = settings_named(op) or {}
        cwd = named.get("cwd") if self.principal.is_tenant else None
        if cwd is None and (self.principal.may(Scope.APPROVE) or GUARDED.isdisjoint(named)):
            return
        now = await in_force()
        if (
            cwd is not None
            and cwd != now.cwd
            and not _lies_in(
                PurePosixPath(cwd), [PurePosixPath(one) for one in (self.bound.cwd, now.cwd) if one]
            )
        ):
            raise NotPermitted(f"cwd: {OUTSIDE}")
        self.check_policies(now.changed(op), now)


def permits(found: LogSource, permissions: Permissions) -> Permits:
    """The check of a client's submissions."""

    async def check(session: SessionId, op: ops.Op) -> None:
        async def in_force() -> Policies:
            head = await found.broker.logs.head(session)
            if head is None:
                raise NotPermitted(f"no session {session}")
            return Policies.of(await settings_of(found, head))

        await permissions.check(op, in_force)

    return check
