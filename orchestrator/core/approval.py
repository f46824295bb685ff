"""Whether a command or a patch runs, is asked about, or is refused.

The four policies (the September 2025 specification, `AskForApproval`), with the
dangerous-command rule of January 2026. Nothing is executed or read here: the words of a
command were judged by whoever made the `Exec`.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.commands import ApplyPatch, Exec
from orchestrator.core.settings import TurnSettings

UNSANDBOXED_REASON = "command failed; retry without sandbox?"
NO_CONFINEMENT_REASON = "this worker cannot confine commands; run it without a sandbox?"


@dataclass(frozen=True, slots=True)
class Run:
    """It may run now; `sandboxed` is False where confinement was given up knowingly."""

    sandboxed: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody has to decide first; `sandboxed` is how it runs if approved."""

    reason: str | None
    sandboxed: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """It will not run; the text is the call's output."""

    text: str


Verdict = Run | Ask | Refuse


def judge_exec(command: Exec, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
    """The verdict on one command under the task's settings."""
    policy = settings.approval_policy
    full_access = settings.sandbox_policy["mode"] == "danger-full-access"
    if command.escalated and policy != "on-request":
        return Refuse(
            f"approval policy is {policy}: escalated permissions cannot be asked for; "
            "run the command without with_escalated_permissions"
        )
    sandboxed = not (full_access or command.escalated)
    if command.key in approved:
        return Run(sandboxed and command.confinable)
    if command.dangerous:
        return _judge_dangerous(policy, sandboxed)
    if command.safe and (full_access or command.confinable):
        return Run(sandboxed=not full_access)
    if policy == "untrusted" or command.escalated:
        return Ask(command.justification, sandboxed and command.confinable)
    if full_access or command.confinable:
        return Run(sandboxed)
    if policy == "never":
        return Refuse("no confinement can be had on this worker, and the approval policy is never: not run")
    return Ask(NO_CONFINEMENT_REASON, sandboxed=False)


def _judge_dangerous(policy: str, sandboxed: bool) -> Verdict:
    if policy == "never":
        return Refuse("the command is dangerous, and the approval policy is never: not run")
    return Ask("the command looks destructive", sandboxed)


def judge_patch(patch: ApplyPatch, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
    """The verdict on one patch: inside the writable roots it needs nobody, but under `untrusted`."""
    if patch_keys(patch) <= approved:
        return Run(sandboxed=False)
    if settings.approval_policy == "untrusted":
        return Ask(None, sandboxed=False)
    if not patch.outside:
        return Run(sandboxed=True)
    if settings.approval_policy == "never":
        return Refuse(
            "writing outside of the project; rejected by the approval policy: " + ", ".join(patch.outside)
        )
    return Ask("the patch writes outside of the writable roots", sandboxed=False)


def patch_keys(patch: ApplyPatch) -> frozenset[str]:
    """What `approved_for_session` remembers of a patch: its paths."""
    return frozenset(f"patch:{path}" for path in patch.changes)


def may_ask_for_more(policy: str) -> bool:
    """Whether a command that the sandbox stopped may be asked about again."""
    return policy in {"on-failure", "untrusted"}
