"""The rules of portable folders, held against their copies, the store, and what the log says of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orchestrator.core.state import State
from orchestrator.core.workspace import Workspace
from sim.folders import SETUP, Copy, Folders
from sim.ledger import Ledger, Run
from sim.observer import Observer
from sim.placement import PLACED, Placement
from sim.rights import Rights
from sim.seen import Seen
from sim.unborn import BIRTHS, Unborn

IN_DOUBT = "in doubt"


def has_script(state: State) -> bool:
    """Whether the session's folder is to be set up before it is used."""
    return state.facts.portable is not None and state.facts.portable.setup is not None


class FolderObserver(Observer, Protocol):
    """An observer that knows whose runs count."""

    rights: Rights


class FolderRules:
    """Rules of what calls meet in their folders, and of what is recorded of their writes."""

    def __init__(self, watch: FolderObserver, ledger: Ledger, folders: Folders, placement: Placement) -> None:
        self._watch, self._ledger, self._folders = watch, ledger, folders
        self.placement, self.unborn = placement, Unborn(watch, folders)
        folders.met, folders.made, folders.wrote = self._met, self._made, self._wrote
        folders.cleaned, folders.prepares = self._cleaned, self._prepares
        self._done: dict[str, list[str]] = {}
        """Marks of calls that ended in the folder that their session works in as it is."""

    def script(self, name: str, args: Sequence[Any], reply: Any, session: str) -> None:
        """A script was answered."""
        if name in PLACED:
            self.placement.wrote(name, args[3 + int(args[2]) :], reply, session)
        if name in BIRTHS:
            self.unborn.wrote(name, args, reply)

    # ── as calls begin and write ──────────────────────────────────────────────────────────────

    def _met(self, session: str, call_id: str, claim: str, copy: Copy | None) -> None:
        """A call begins: the folder is what a fold of the log's snapshots gives."""
        watch = self._watch
        seen = watch.sessions.get(session)
        if seen is None or seen.claim != claim or watch.now_s < watch.forgot_s + 4.1:
            return
        known, others = seen.state.workspace, self._ledger.running(session)
        if copy is None or copy.holder != claim:
            watch.broken("folder", f"{session}: {call_id} begins in a folder that its claim has not made")
            return
        if known.unsaved is not None and known.unsaved.blocked:
            watch.broken("folder", f"{session}: {call_id} begins, and the disk is full")
        if has_script(seen.state) and not copy.prepared:
            watch.broken("set_up", f"{session}: {call_id} begins in a folder that is not set up")
        if others or seen.state.processes.living or (known.unsaved and known.unsaved.snapshot is None):
            return
        if tuple(copy.content) != self._folders.contents[known.standing]:
            recorded = self._folders.contents[known.standing]
            watch.broken("folder", f"{session}: {call_id} meets {copy.content}, the log has {recorded}")
        if known.epoch > 1 and copy.content:
            watch.reach.saw("folder")

    def _prepares(self, session: str, claim: str, copy: Copy) -> bool:
        """A set-up begins: in a folder of its claim, as the log has it, and with no call beside it.

        Returns whether Redis has lost the decision to begin it.
        """
        watch = self._watch
        seen = watch.sessions.get(session)
        if seen is None or seen.claim != claim or watch.now_s < watch.forgot_s + 4.1:
            return seen is None or seen.state.workspace.setting_up == 0
        known = seen.state.workspace
        if copy.holder != claim or known.setting_up != known.epoch:
            watch.broken("set_up", f"{session}: a set-up begins, and the log of its claim does not say so")
        if others := [run.call_id for run in self._ledger.running(session) if run.marks is not None]:
            watch.broken("set_up", f"{session}: a set-up begins beside {others}")
        if known.epoch > 1:
            watch.reach.saw("set_up")
        return False

    def _made(self, session: str, claim: str, before: Copy | None) -> None:
        """A copy is put in the place of another one: not of that of a later holder."""
        watch, holder = self._watch, self._watch.claim_of(session)
        if before is None or before.holder != holder or holder in ("", claim):
            return
        if watch.now_s < max(watch.late_s, watch.forgot_s + 4.1) and not self._is_trusted(holder):
            # A claim that Redis, or a primary that was left, gave out; the holder of the other has let go.
            return
        watch.broken("one_writer", f"{session}: claim {claim} replaces the folder of {holder}")

    def _is_trusted(self, claim: str) -> bool:
        """Whether the claim's own holder trusts it, and has not given the copy back."""
        supervisor = self._ledger.supervisors.get(claim)
        if supervisor is None or claim in self._folders.let_go:
            return False
        return supervisor.trusted_until_s(claim) > self._watch.now_s

    def _cleaned(self, session: str, copy: Copy) -> None:
        recorded = self._folders.contents[copy.clean]
        if tuple(copy.content) != recorded:
            self._watch.broken("folder", f"{session}: {copy.content} passes for {recorded}")

    def _wrote(self, session: str, claim: str, copy: Copy) -> None:
        if copy.holder != claim:
            self._watch.broken("one_writer", f"{session}: claim {claim} writes the folder of {copy.holder}")

    # ── as the log grows ──────────────────────────────────────────────────────────────────────

    def fact(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """An entry names a snapshot: the store has what it is made from."""
        known = seen.state.workspace
        if fact["kind"] == "workspace_merged":
            self._is_merged(session, known, fact)
        if fact["kind"] == "workspace_setup_ended" and fact["result"] == "done":
            self._is_prepared(session, known)
        if fact["kind"] == "workspace_given" and not self._watch.reads_anew:
            self._is_given(session, seen, fact)
        if fact["kind"] == "workspace_rolled_back":
            self.placement.told(session, fact.get("by", ""))
        if fact["kind"] in ("workspace", "workspace_settled"):
            self.placement.saved(session)
        if fact["kind"] not in ("workspace", "workspace_base"):
            return
        try:
            content = self._folders.read(known.packs)
        except ValueError as error:
            self._watch.broken("packed", f"{session}: {fact['snapshot']} is recorded, and {error}")
            return
        if content != self._folders.contents[known.snapshot]:
            self._watch.broken("packed", f"{session}: the packs of {fact['snapshot']} make {content}")

    def _is_prepared(self, session: str, known: Workspace) -> None:
        """A set-up is over: what it wrote is recorded, or is not stored."""
        runs = self._ledger.by_call.get((session, SETUP), ())
        last = runs[-1] if runs else None
        if known.unsaved is not None or last is None or self._watch.reads_anew:
            return
        if last.began_s <= self._watch.forgot_s:
            return
        content = self._folders.contents[known.snapshot]
        if lacking := [mark for mark in last.marks or () if mark not in content]:
            self._watch.broken("set_up", f"{session}: the set-up is over, and the log lacks {lacking}")

    def _is_merged(self, session: str, known: Workspace, fact: Mapping[str, Any]) -> None:
        """All that the child had by then is recorded in its parent's folder, or is not stored."""
        if known.unsaved is not None and fact["call_id"] in known.unsaved.call_ids:
            return
        theirs = set(self._folders.contents[fact["snapshot"]]) - set(
            self._folders.contents[fact["base"] or None]
        )
        own = self._folders.shared.get(session, self._folders.contents[known.snapshot])
        if lacking := theirs - set(own):
            self._watch.broken("recorded", f"{session}: {fact['call_id']} merged without {sorted(lacking)}")

    def _is_given(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """An agent begins with all that its maker's calls have written to the folder by then."""
        copied = seen.state.workspace.copied
        if copied is None or copied.request != seen.state.requests:
            self._watch.broken("copied", f"{session}: agent {fact['agent_id']} begins with an old copy")
        content, done = self._folders.contents[fact["snapshot"]], self._done.get(session, [])
        if lacking := [mark for mark in done if mark not in content]:
            self._watch.broken("copied", f"{session}: agent {fact['agent_id']} begins without {lacking}")
        if done:
            self._watch.reach.saw("copied")

    def _ends_in_shared(self, session: str, seen: Seen, call_id: str) -> None:
        runs = self._ledger.by_call.get((session, call_id), ())
        last = runs[-1] if runs else None
        if last is not None and last.marks and last.state == "finished" and last.claim == seen.claim:
            self._done.setdefault(session, []).extend(last.marks)

    def output(self, session: str, seen: Seen, call_id: str, output: str) -> None:
        """A call gets its output: what it wrote is recorded, or is not there if its holder was lost."""
        state, watch = seen.state, self._watch
        if session in self._folders.shared and not watch.reads_anew:
            self._ends_in_shared(session, seen, call_id)
        if state.facts.portable is None or watch.reads_anew:
            return
        runs = self._ledger.by_call.get((session, call_id), ())
        last = runs[-1] if runs else None
        if last is None or last.marks is None or last.lost or last.began_s <= watch.forgot_s:
            return
        if last.denied and last.claim != seen.claim:
            # It was to run again, and never began.
            return
        if output.startswith(IN_DOUBT) and "before this call" in output:
            if call_id not in seen.grammar.lost:
                watch.broken(
                    "rolled_back", f"{session}: {call_id} is in doubt, and no entry says what is lost"
                )
            self._is_gone(session, state, last, output)
        elif last.claim == seen.claim or output.startswith(IN_DOUBT):
            self._is_recorded(session, state.workspace, last, output)

    def _is_gone(self, session: str, state: State, run: Run, output: str) -> None:
        self._watch.reach.saw("rolled_back")
        content = self._folders.contents[state.workspace.standing]
        if found := [mark for mark in run.marks or () if mark in content]:
            self._watch.broken(
                "rolled_back", f"{session}: {run.call_id} is {output[:40]!r}, and left {found}"
            )

    def _is_recorded(self, session: str, known: Workspace, run: Run, output: str) -> None:
        if known.unsaved is not None and run.call_id in known.unsaved.call_ids:
            return
        marks = run.marks or []
        if run.lasting:
            marks = marks[:1]
        content = self._folders.contents[known.snapshot]
        if lacking := [mark for mark in marks if mark not in content]:
            told = f"{run.call_id} has the output {output[:30]!r}"
            self._watch.broken("recorded", f"{session}: {told}, and the log's folder lacks {lacking}")
        if run.state == "killed":
            self._watch.reach.saw("recorded")
