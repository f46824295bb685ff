"""Merges: what an agent has made of its folder comes into the folder of who made the agent."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Verdict, short_keys
from orchestrator.core.counts import counted
from orchestrator.core.forms import EMPTY, LIST
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import PACKS, Pack
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import ApplyPatchApprovalRequest, PatchApplyBegin, PatchApplyEnd, Reach
from orchestrator.protocol.ids import CallId, SnapshotId

MOST_ASKED_ABOUT = 20
"""Paths that a request names."""
GUARDED = frozenset({"dendro.toml"})
"""Names of files that no merge writes unasked in a machine's folder, because nobody looks at each of its
files: the next `dendro` reads them."""


def writable_folders(settings: TurnSettings) -> tuple[str, ...]:
    """The folders that a task may write with `workspace-write`, but for temporary ones."""
    roots = settings.sandbox_policy.get("writable_roots") or ()
    return (settings.cwd, *(posixpath.join(settings.cwd, root) for root in roots))


def is_within(folder: str, roots: Sequence[str]) -> bool:
    """Whether a folder is one of `roots`, or below one; links are not followed."""
    named = map(posixpath.normpath, roots)
    return any(folder == root or folder.startswith(f"{root.rstrip('/')}/") for root in named)


@record
class Merge:
    """The changes of an agent between two snapshots; nothing is written yet."""

    agent_id: AgentId
    base: SnapshotId | None
    snapshot: SnapshotId
    packs: tuple[Pack, ...]
    """The packs that make both snapshots."""
    files: int
    names: tuple[str, ...]
    folder: str = ""
    """The folder of the machine that it is written to; empty for a portable one."""

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the merge: this very one."""
        return f"merge:{self.base}:{self.snapshot}"

    @property
    def summary(self) -> str:
        """The merge in one line, for people."""
        named = ", ".join(self.names[:MOST_ASKED_ABOUT])
        files = counted(self.files, "changed file")
        return f"merges {files} of agent {self.agent_id}" + (f": {named}" if named else "")

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the merge, as on a patch inside the writable roots."""
        if self.key in approved:
            return Run(sandboxed=False)
        why = self._held_back(settings)
        outside = () if why is None else (self.folder or settings.cwd,)
        if settings.approval_policy == "untrusted":
            reason = f"{why}; it {self.summary}" if why else self.summary
            return Ask(reason, sandboxed=False, outside=outside)
        if why is None:
            return Run(sandboxed=True)
        if settings.approval_policy == "never":
            return Refuse(f"not merged: {why}, and the approval policy is never")
        return Ask(f"{why}; it {self.summary}", sandboxed=False, outside=outside)

    def _held_back(self, settings: TurnSettings) -> str | None:
        """The reason why the sandbox does not let it be written; None if it does."""
        mode = settings.sandbox_policy["mode"]
        if mode == "danger-full-access" or (mode == "workspace-write" and not self.folder):
            return None
        if mode != "workspace-write":
            return "the sandbox is read-only"
        if not is_within(self.folder, writable_folders(settings)):
            return f"{self.folder} is outside of the writable roots"
        if any(PurePosixPath(name.strip("'\"")).name in GUARDED for name in self.names):
            return "it changes a file of settings"
        return None

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
            folder=self.folder,
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
    folder: str = ""
    """The folder of the machine that it is written to; empty for a portable one."""

    def asked(self, timer: int) -> MergeWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ApplyPatchApprovalRequest:
        return ApplyPatchApprovalRequest(
            changes={},
            changes_left_out=self.files or None,
            call_id=call_id,
            reason=reach.told,
            reach=reach,
            grant_root=None,
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
