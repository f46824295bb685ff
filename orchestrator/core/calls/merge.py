"""Merges: what an agent has made of its folder comes into the folder of who made the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Verdict, short_keys
from orchestrator.core.forms import EMPTY, LIST
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import TurnSettings
from orchestrator.core.workspace import PACKS, Pack
from orchestrator.protocol.events import ApplyPatchApprovalRequest, PatchApplyBegin, PatchApplyEnd
from orchestrator.protocol.ids import CallId, SnapshotId

MOST_ASKED_ABOUT = 20
"""Paths that a request names."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The changes of an agent between two snapshots; nothing is written yet."""

    agent_id: AgentId
    base: SnapshotId | None
    snapshot: SnapshotId
    packs: tuple[Pack, ...]
    """The packs that make both snapshots."""
    files: int
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the merge: this very one."""
        return f"merge:{self.base}:{self.snapshot}"

    @property
    def summary(self) -> str:
        """The merge in one line, for people."""
        named = ", ".join(self.names[:MOST_ASKED_ABOUT])
        return f"merges {self.files} changed files of agent {self.agent_id}" + (f": {named}" if named else "")

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the merge, as on a patch inside the writable roots."""
        if self.key in approved:
            return Run(sandboxed=False)
        if settings.approval_policy == "untrusted":
            return Ask(self.summary, sandboxed=False)
        if settings.sandbox_policy["mode"] != "read-only":
            return Run(sandboxed=True)
        if settings.approval_policy == "never":
            return Refuse("not merged: the sandbox is read-only, and the approval policy is never")
        return Ask(f"the sandbox is read-only; it {self.summary}", sandboxed=False)

    def work(self, sandboxed: bool) -> MergeWork:
        """The merge as it is to be written."""
        return MergeWork(
            (self.key,),
            self.agent_id,
            self.base,
            self.snapshot,
            self.packs,
            self.files,
            self.names,
            sandboxed,
        )


@record
class MergeWork:
    """A merge that waits for an approval, or is being written."""

    kind: ClassVar[Literal["merge"]] = "merge"
    rejected: ClassVar[str] = "merge rejected by user"
    keys: tuple[str, ...] = field(metadata=LIST)
    agent_id: AgentId
    base: SnapshotId | None = field(metadata=EMPTY)
    snapshot: SnapshotId
    packs: tuple[Pack, ...] = field(metadata=PACKS)
    files: int
    names: tuple[str, ...] = field(metadata=LIST)
    sandboxed: bool = True
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> MergeWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reason: str | None) -> ApplyPatchApprovalRequest:
        return ApplyPatchApprovalRequest(
            changes={}, changes_left_out=self.files or None, call_id=call_id, reason=reason, grant_root=None
        )

    def begin(self, call_id: CallId, *, auto_approved: bool) -> PatchApplyBegin:
        return PatchApplyBegin(
            call_id=call_id, auto_approved=auto_approved, changes={}, changes_left_out=self.files or None
        )

    def end(self, call_id: CallId, text: str, *, written: bool) -> PatchApplyEnd:
        """The end of the merge, as that of a patch."""
        out, err = (text, "") if written else ("", text)
        return PatchApplyEnd(call_id=call_id, stdout=out, stderr=err, success=written)

    def broken_off(self, call_id: CallId, text: str, after_s: float = 0.0) -> PatchApplyEnd:
        """The end of a merge of which only `text` is known: never written, failed, or in doubt."""
        return self.end(call_id, text, written=False)

    def remembered(self, settings: TurnSettings) -> Remembered:
        return Remembered(short_keys(self.keys))

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while it is written."""
        return f"merges the work of agent {self.agent_id}"
