"""Patches: calls of `apply_patch`, and commands that are one."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import ClassVar, Literal, TypeAlias

from orchestrator.core.calls.approval_policy import Ask, Refuse, Remembered, Run, Runs, Verdict, short_keys
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import PACKS, Pack
from orchestrator.core.record_json import ALWAYS, EMPTY, LIST, TEXT, TEXTS, form, read_text, write_text
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.commands import FileChange
from orchestrator.protocol.events import ApplyPatchApprovalRequest, PatchApplyBegin, PatchApplyEnd, Reach
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.protocol.scalars import LargeText, StoredText
from orchestrator.protocol.wire import JsonObject, JsonValue, written

MOST_NAMED = 20
"""Paths that one line of text names."""
Rows: TypeAlias = Sequence[Sequence[str | None]]
"""A row of each file: its path, its hash before, its hash after."""


def _read_record(value: Rows | str | JsonObject) -> Rows | LargeText:
    return read_text(value) if isinstance(value, (str, Mapping)) else value


def _write_record(value: Rows | LargeText) -> Rows | str | JsonObject:
    return write_text(value) if isinstance(value, (str, StoredText)) else value


@record
class ApplyPatch:
    """A patch that passed its check: nothing is written yet."""

    patch: str
    cwd: str
    changes: Mapping[str, FileChange]
    summary: str
    record: Rows | str
    """Each file's path, hash before and hash after, which a takeover judges by; JSON text for very many."""
    outside: tuple[str, ...] = ()
    """Paths that the sandbox policy does not let it write, where links lead."""
    baselines: JsonObject = field(default_factory=dict)
    """`set` and `drop`: what the task's diff counts from once it is applied."""
    left_out: int = 0
    """Files that `changes` does not show."""
    token: str = ""
    """For a patch with files left out: the name of the whole patch, which no other patch has."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys under which `approved_for_session` remembers the patch: its paths, and where they lead.

        A path's link may lead elsewhere by the next patch, and a file may be moved to where nobody was asked
        about. A patch that is not shown whole is remembered by its token: an approval says nothing of paths
        that the request did not show.
        """
        if self.left_out:
            return frozenset({f"patch:{self.token}"})
        rows: Rows = json.loads(self.record) if isinstance(self.record, str) else self.record
        return frozenset(f"patch:{path}" for path in (*self.changes, *(row[0] for row in rows)))

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the patch: inside the writable roots it needs no approval, but under `untrusted`."""
        if self.keys <= approved:
            return Run(sandboxed=False)
        if settings.approval_policy == "untrusted":
            return Ask(self._unseen() or None, sandboxed=False, outside=self.outside)
        if not self.outside:
            return Run(sandboxed=True)
        if settings.approval_policy == "never":
            return Refuse(
                "writing outside of the project; rejected by the approval policy: " + _first(self.outside)
            )
        return Ask(self._unseen() or None, sandboxed=False, outside=self.outside)

    def _unseen(self) -> str:
        """The reason in a request whose patch is too large to be shown; empty if all of it is shown."""
        if not self.left_out:
            return ""
        files = len(self.changes) + self.left_out
        return f"{files:,} files change, and {self.left_out:,} of them are not shown"

    def work(self, sandboxed: bool) -> PatchWork:
        """The patch as it is to be written."""
        return PatchWork(
            keys=tuple(sorted(self.keys)),
            patch=self.patch,
            cwd=self.cwd,
            changes={path: written(change) for path, change in self.changes.items()},
            summary=self.summary,
            record=self.record if isinstance(self.record, str) else [list(row) for row in self.record],
            baselines=dict(self.baselines),
            grant_root=self._grant_root(),
            left_out=self.left_out,
            sandboxed=sandboxed,
        )

    def _grant_root(self) -> str | None:
        """The folder whose grant would let the patch in; only offered for a single one."""
        folders = {path.rpartition("/")[0] for path in self.outside}
        return folders.pop() if len(folders) == 1 else None


def verb_of(change: JsonValue) -> str:
    """The kind of a file's change (`add`, `delete`, `update`), as events show it; empty for what is none."""
    if not isinstance(change, Mapping):
        return ""
    # The recorded Codex puts it outside: `{"add": {…}}`.
    return str(change.get("type") or next(iter(change), ""))


@record
class PatchWork(Runs):
    """A patch that waits for an approval, or is being written."""

    kind: ClassVar[Literal["patch"]] = "patch"
    rejected: ClassVar[str] = "patch rejected by user"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    patch: LargeText = field(metadata=TEXT)
    cwd: LargeText = field(metadata=TEXT)
    changes: JsonObject
    """The files' changes, as events show them."""
    summary: LargeText = field(metadata=TEXT)
    record: Rows | LargeText = field(metadata=form(read=_read_record, write=_write_record))
    baselines: JsonObject
    grant_root: str | None
    left_out: int = 0
    sandboxed: bool = field(default=True, metadata=ALWAYS)
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> PatchWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ApplyPatchApprovalRequest:
        return ApplyPatchApprovalRequest(
            changes=self.changes,
            changes_left_out=self.left_out or None,
            call_id=call_id,
            reason=reach.told,
            reach=reach,
            grant_root=self.grant_root or None,
        )

    def begin(self, call_id: CallId, *, auto_approved: bool) -> PatchApplyBegin:
        return PatchApplyBegin(
            call_id=call_id,
            auto_approved=auto_approved,
            changes=self.changes,
            changes_left_out=self.left_out or None,
        )

    def broken_off(self, call_id: CallId, text: str, after_s: float = 0.0) -> PatchApplyEnd:
        """The end of a patch of which only `text` is known: never written, failed, or in doubt."""
        return PatchApplyEnd(call_id=call_id, stdout="", stderr=text, success=False)

    def found_done(self, call_id: CallId) -> PatchApplyEnd:
        """The end of a patch whose worker was lost, but whose files say that all of it was written."""
        return PatchApplyEnd(call_id=call_id, stdout=self.summary, stderr="", success=True)

    def remembered(self, settings: TurnSettings) -> Remembered:
        return Remembered(short_keys(self.keys), (self.grant_root,) if self.grant_root else ())

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the patch is written."""
        return f"changes {', '.join(self.changes)}"

    def by_link(self, asked: Ask) -> bool:
        if self.left_out:
            return False
        moved = (change.get("move_path") for change in self.changes.values() if isinstance(change, dict))
        return not {*asked.outside} <= {*self.changes, *(path for path in moved if isinstance(path, str))}


def _first(paths: tuple[str, ...]) -> str:
    more = len(paths) - MOST_NAMED
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


# ── merge ─────────────────────────────────────────────────────────────────────────────────────────
# Merges: what an agent has made of its folder comes into the folder of who made the agent.


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
class MergeWork(Runs):
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

    @property
    def cwd(self) -> str:
        """The folder that it is written to; empty for that of the session."""
        return self.folder
