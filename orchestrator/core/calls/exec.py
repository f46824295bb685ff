"""Commands: calls of `shell` and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Verdict, short_keys
from orchestrator.core.forms import ALWAYS, LIST, TEXT, TEXTS
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.commands import ParsedCommand
from orchestrator.protocol.events import ExecApprovalRequest, ExecCommandBegin, ExecCommandEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, LargeText
from orchestrator.protocol.wire import JsonObject, written

UNSANDBOXED_REASON = "command failed; retry without sandbox?"
NO_CONFINEMENT_REASON = "this worker cannot confine commands; run it without a sandbox?"


@dataclass(frozen=True, slots=True)
class Exec:
    """A command, as judged from its words. `key` is what `approved_for_session` remembers."""

    command: tuple[str, ...]
    cwd: str
    parsed_cmd: tuple[ParsedCommand, ...]
    key: str
    safe: bool = False
    dangerous: bool = False
    escalated: bool = False
    justification: str | None = None
    confinable: bool = True
    """Whether this worker can enforce the task's sandbox policy."""
    timeout_ms: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the command under the task's settings."""
        policy, free = settings.approval_policy, settings.full_access
        if self.escalated and policy != "on-request":
            return Refuse(
                f"approval policy is {policy}: escalated permissions cannot be asked for; "
                "run the command without with_escalated_permissions"
            )
        if unconfined_key(self.key) in approved:
            return Run(sandboxed=False)
        sandboxed = not (free or self.escalated)
        confined = sandboxed and self.confinable
        # An approval covers what was approved: one of a confined run is none to give confinement up.
        if self.key in approved and (free or confined):
            return Run(sandboxed)
        if self.dangerous:
            return self._judged_dangerous(policy, sandboxed)
        if self.safe and (free or self.confinable):
            return Run(sandboxed=not free)
        if policy == "untrusted" or self.escalated:
            return self._ask(self.justification, sandboxed)
        if free or self.confinable:
            return Run(sandboxed)
        if policy == "never":
            return Refuse(
                "no confinement can be had on this worker, and the approval policy is never: not run"
            )
        return self._ask(None, sandboxed)

    def _judged_dangerous(self, policy: str, sandboxed: bool) -> Verdict:
        if policy == "never":
            return Refuse("the command is dangerous, and the approval policy is never: not run")
        return self._ask("the command looks destructive", sandboxed)

    def _ask(self, reason: str | None, sandboxed: bool) -> Ask:
        """Adds to the reason when the command would run without the confinement that it should have."""
        if not sandboxed or self.confinable:
            return Ask(reason, sandboxed)
        return Ask(f"{reason}; {NO_CONFINEMENT_REASON}" if reason else NO_CONFINEMENT_REASON, sandboxed=False)

    def work(self, sandboxed: bool) -> ExecWork:
        """The command as it is to run."""
        return ExecWork(
            keys=(self.key,),
            command=self.command,
            cwd=self.cwd,
            parsed_cmd=tuple(written(part) for part in self.parsed_cmd),
            timeout_ms=self.timeout_ms,
            env=self.env,
            sandboxed=sandboxed,
        )


@record
class ExecWork:
    """A command that waits for an approval, or runs."""

    kind: ClassVar[Literal["exec"]] = "exec"
    rejected: ClassVar[str] = "exec command rejected by user"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    command: tuple[LargeText, ...] = field(metadata=TEXTS)
    cwd: LargeText = field(metadata=TEXT)
    parsed_cmd: tuple[JsonObject, ...] = field(metadata=LIST)
    timeout_ms: int | None
    env: Mapping[str, str]
    sandboxed: bool = field(default=True, metadata=ALWAYS)
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> ExecWork:
        return replace(self, timer=timer)

    def unconfined(self) -> ExecWork:
        """The same command without its sandbox."""
        return replace(self, sandboxed=False)

    def request(self, call_id: CallId, reason: str | None) -> ExecApprovalRequest:
        return ExecApprovalRequest(
            command=self.command,
            cwd=self.cwd,
            env=dict(self.env) or None,
            call_id=call_id,
            reason=reason or None,
        )

    def begin(self, call_id: CallId, *, auto_approved: bool) -> ExecCommandBegin:
        return ExecCommandBegin.model_validate(
            {"call_id": call_id, "command": self.command, "cwd": self.cwd, "parsed_cmd": self.parsed_cmd}
        )

    def broken_off(self, call_id: CallId, text: str, after_s: float = 0.0) -> ExecCommandEnd:
        """The end of a command of which only `text` is known: never started, killed, or in doubt."""
        return ExecCommandEnd(
            call_id=call_id,
            stdout="",
            stderr=text,
            aggregated_output=text,
            exit_code=-1,
            duration=Duration.cut(after_s),
            formatted_output=text,
        )

    def remembered(self, settings: TurnSettings) -> Remembered:
        keys = short_keys(self.keys)
        if not self.sandboxed and not settings.full_access:
            keys = tuple(map(unconfined_key, keys))
        return Remembered(keys)

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the command runs."""
        words = (word if isinstance(word, str) else "[a long text]" for word in self.command)
        return f"runs {' '.join(words)}"


def unconfined_key(key: str) -> str:
    """The key under which `approved_for_session` remembers an approval to run without confinement."""
    return f"unconfined:{key}"


def may_ask_for_more(policy: str) -> bool:
    """Whether a command that the sandbox stopped may be asked about again."""
    return policy in {"on-failure", "untrusted"}
