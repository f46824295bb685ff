"""Policies of a session: approval policy, sandbox policy, decisions.

Only the shapes: `sandbox` and `core` give a policy its meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator

from orchestrator.protocol.wire import Flag, JsonValue, OneOf, Source, WhenTrue, WireModel


class AskForApproval(StrEnum):
    """When a person is asked before a command runs."""

    UNTRUSTED = "untrusted"
    ON_FAILURE = "on-failure"
    ON_REQUEST = "on-request"
    NEVER = "never"


class SandboxMode(StrEnum):
    """The sandbox policies by name alone, as configuration spells them."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"
    DANGER_FULL_ACCESS = "danger-full-access"


class DangerFullAccess(WireModel):
    """No confinement at all."""

    mode: Literal["danger-full-access"] = "danger-full-access"


class ReadOnly(WireModel):
    """Read everything, write nothing, no network."""

    mode: Literal["read-only"] = "read-only"


class WorkspaceWrite(WireModel):
    """Read everything, write the working folder, temporary folders and the roots named."""

    mode: Literal["workspace-write"] = "workspace-write"
    writable_roots: WhenTrue[tuple[str, ...]] = ()
    network_access: Flag = False
    exclude_tmpdir_env_var: Flag = False
    exclude_slash_tmp: Flag = False


class NetworkAccess(StrEnum):
    """Whether an outer sandbox lets its processes use the network."""

    RESTRICTED = "restricted"
    ENABLED = "enabled"


NO_EXTERNAL_SANDBOX: Final = (
    "external-sandbox is not served, since nothing proves that something outside confines the worker; where "
    "it is so, say danger-full-access"
)


class ExternalSandbox(WireModel):
    """A sandbox outside of Dendro, which confines the process already; nothing is added."""

    stated_in = Source.JANUARY_2026
    mode: Literal["external-sandbox"] = "external-sandbox"
    network_access: NetworkAccess = NetworkAccess.RESTRICTED


def _tag_as_mode(value: JsonValue) -> JsonValue:
    """January 2026 tags the policy with `type`; both are read, `mode` is written."""
    if isinstance(value, dict) and "mode" not in value and "type" in value:
        return {"mode": value["type"], **{key: item for key, item in value.items() if key != "type"}}
    return value


SandboxPolicy: TypeAlias = DangerFullAccess | ReadOnly | WorkspaceWrite | ExternalSandbox
SandboxPolicyField = Annotated[SandboxPolicy, OneOf("mode", rewrite=_tag_as_mode)]


class ReviewDecision(StrEnum):
    """A person's plain answer to an approval request."""

    APPROVED = "approved"
    APPROVED_FOR_SESSION = "approved_for_session"
    DENIED = "denied"
    ABORT = "abort"


class ExecpolicyAmendment(WireModel):
    """The command prefix that a person lets run from now on."""

    stated_in = Source.JANUARY_2026
    proposed_execpolicy_amendment: tuple[str, ...]


class ApprovedExecpolicyAmendment(WireModel):
    """Approved, and commands with this prefix from now on."""

    stated_in = Source.JANUARY_2026
    approved_execpolicy_amendment: ExecpolicyAmendment


def _plain_denial(value: JsonValue) -> JsonValue:
    """Newer clients send `{"denied": {"rejection": …}}`; it is read as `denied`, without the reason."""
    if isinstance(value, dict) and value.keys() == {"denied"}:
        return ReviewDecision.DENIED
    return value


Decision: TypeAlias = ReviewDecision | ApprovedExecpolicyAmendment
DecisionField = Annotated[Decision, BeforeValidator(_plain_denial)]
