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

MOST_NAMED = 20
"""Paths that one line of text names."""


@dataclass(frozen=True, slots=True)
class Run:
    """The command or patch may run now; `sandboxed` is False where confinement was given up knowingly."""

    sandboxed: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """An approval must come first; `sandboxed` says how the command or patch runs if approved."""

    reason: str | None
    sandboxed: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """The command or patch will not run; the text is the call's output."""

    text: str


Verdict = Run | Ask | Refuse


def judge_exec(command: Exec, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
    """The verdict on one command under the task's settings."""
    policy, free = settings.approval_policy, full_access(settings)
    if command.escalated and policy != "on-request":
        return Refuse(
            f"approval policy is {policy}: escalated permissions cannot be asked for; "
            "run the command without with_escalated_permissions"
        )
    if unconfined_key(command.key) in approved:
        return Run(sandboxed=False)
    sandboxed = not (free or command.escalated)
    confined = sandboxed and command.confinable
    # An approval covers what was approved: one of a confined run is none to give confinement up.
    if command.key in approved and (free or confined):
        return Run(sandboxed)
    if command.dangerous:
        return _judge_dangerous(command, policy, sandboxed)
    if command.safe and (free or command.confinable):
        return Run(sandboxed=not free)
    if policy == "untrusted" or command.escalated:
        return _ask(command, command.justification, sandboxed)
    if free or command.confinable:
        return Run(sandboxed)
    if policy == "never":
        return Refuse("no confinement can be had on this worker, and the approval policy is never: not run")
    return _ask(command, None, sandboxed)


def _judge_dangerous(command: Exec, policy: str, sandboxed: bool) -> Verdict:
    if policy == "never":
        return Refuse("the command is dangerous, and the approval policy is never: not run")
    return _ask(command, "the command looks destructive", sandboxed)


def _ask(command: Exec, reason: str | None, sandboxed: bool) -> Ask:
    """Adds to the reason when the command would run without the confinement that it should have."""
    if not sandboxed or command.confinable:
        return Ask(reason, sandboxed)
    return Ask(f"{reason}; {NO_CONFINEMENT_REASON}" if reason else NO_CONFINEMENT_REASON, sandboxed=False)


def full_access(settings: TurnSettings) -> bool:
    return bool(settings.sandbox_policy["mode"] == "danger-full-access")


def unconfined_key(key: str) -> str:
    """The key under which `approved_for_session` remembers an approval to run without confinement."""
    return f"unconfined:{key}"


def judge_patch(patch: ApplyPatch, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
    """The verdict on a patch: inside the writable roots it needs no approval, but under `untrusted`."""
    if patch_keys(patch) <= approved:
        return Run(sandboxed=False)
    if settings.approval_policy == "untrusted":
        return Ask(_unseen(patch) or None, sandboxed=False)
    if not patch.outside:
        return Run(sandboxed=True)
    if settings.approval_policy == "never":
        return Refuse(
            "writing outside of the project; rejected by the approval policy: " + _first(patch.outside)
        )
    why = "the patch writes outside of the writable roots"
    return Ask(f"{why}; {_unseen(patch)}" if patch.left_out else why, sandboxed=False)


def _unseen(patch: ApplyPatch) -> str:
    """The reason in a request whose patch is too large to be shown; empty if all of it is shown."""
    if not patch.left_out:
        return ""
    return (
        f"{len(patch.changes) + patch.left_out:,} files change, and {patch.left_out:,} of them are not shown"
    )


def _first(paths: tuple[str, ...]) -> str:
    more = len(paths) - MOST_NAMED
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def patch_keys(patch: ApplyPatch) -> frozenset[str]:
    """The keys under which `approved_for_session` remembers a patch: its paths.

    A patch that is not shown whole is remembered by its token: an approval says nothing of paths that the
    request did not show.
    """
    if patch.left_out:
        return frozenset({f"patch:{patch.token}"})
    return frozenset(f"patch:{path}" for path in patch.changes)


def may_ask_for_more(policy: str) -> bool:
    """Whether a command that the sandbox stopped may be asked about again."""
    return policy in {"on-failure", "untrusted"}
