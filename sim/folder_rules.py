"""The rules of portable folders, held against their copies, the store, and what the log says of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import orjson

from orchestrator.core.entries import DENDRO
from orchestrator.core.packs import Pack
from orchestrator.core.state import State
from orchestrator.core.workspace import Workspace
from sim.folder_content import Lacking, has, lacking, on_disk
from sim.folders import MARKS, SETUP, Copy, Folders
from sim.ledger import Ledger, Run
from sim.observer import Observer
from sim.placement import PLACED, Placement
from sim.rights import Rights
from sim.seen import Seen
from sim.unborn import BIRTHS, Unborn

IN_DOUBT = "in doubt"
IN_PART = "a part of what it wrote may be there"


def has_script(state: State) -> bool:
    """Whether the session's folder is to be set up before it is used."""
    return state.facts.portable is not None and state.facts.portable.setup is not None


def _process_of(seen: Seen, call_id: str) -> int:
    """The process that a call looks at; 0 for another call."""
    for entry in reversed(seen.entries):
        item = entry.payload
        if item.get("call_id") == call_id and item.get("name") == "write_stdin":
            return int(orjson.loads(item["arguments"])["number"])
    return 0


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
        folders.forgets = self._forgets
        folders.broken, folders.saw = watch.broken, watch.reach.saw
        self._begun: list[tuple[str, Seen]] = []
        """Agents that have begun with a folder in the commit that is read."""
        self._done: dict[str, list[tuple[float, str]]] = {}
        """Marks of calls that ended in the folder that their session works in as it is, each with the time
        of the call's output: Redis may lose that, and who goes on there knows of no such call."""

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
        blocked = known.unsaved is not None and known.unsaved.blocked
        if blocked and not _is_told_behind(seen, call_id):
            watch.broken("folder", f"{session}: {call_id} begins, and the disk is full")
        if has_script(seen.state) and not copy.prepared:
            watch.broken("set_up", f"{session}: {call_id} begins in a folder that is not set up")
        if others or seen.state.processes.living or (known.unsaved and known.unsaved.snapshot is None):
            return
        content = copy.content
        if content != (recorded := self._folders.contents[known.standing]):
            watch.broken("folder", f"{session}: {call_id} meets {content}, the log has {recorded}")
        if known.epoch > 1 and content:
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

    def _cleaned(self, session: str, copy: Copy, snapshot: str) -> None:
        recorded = self._folders.contents[snapshot]
        if (content := copy.content) != recorded:
            self._watch.broken("folder", f"{session}: {content} passes for {recorded}")

    def _forgets(self, session: str, snapshot: str) -> None:
        """A machine does not find the changes that are there alone."""
        known = self._watch.sessions.get(session)
        unsaved = known.state.workspace.unsaved if known is not None else None
        # Who has lost its claim looks for what the folder was before another holder went on in it.
        is_last = unsaved is not None and unsaved.snapshot == snapshot
        if unsaved is not None and is_last and not self.placement.is_excused():
            told = f"{unsaved.machine} alone has {unsaved.snapshot}, and does not find it"
            self._watch.broken("placed", f"{session}: {told}")

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
        if fact["kind"] == "workspace_offered":
            self._is_offered(session, known, str(fact["agent_id"]))
        if fact["kind"] not in ("workspace", "workspace_base"):
            return
        # Where its maker had none, an agent's worker fetches one when it is at work.
        born = fact["kind"] == "workspace_base" and seen.state.task is None
        if born and not self._watch.reads_anew:
            self._begun.append((session, seen))
        self._are_packed(session, known.packs, str(known.snapshot))

    def _are_packed(self, session: str, packs: Sequence[Pack], snapshot: str) -> None:
        """The store has packs that make a snapshot as it was taken."""
        if any(pack.name in self._folders.lost_packs for pack in packs):
            self._watch.reach.saw("pack_lost")
            return
        try:
            content = self._folders.read(packs, snapshot)
        except Lacking as error:
            self._watch.broken("packed", f"{session}: {snapshot} is named, and {error}")
            return
        if content != (taken := self._folders.contents[snapshot]):
            self._watch.broken("packed", f"{session}: the packs of {snapshot} make {content}, not {taken}")

    def committed(self, session: str) -> None:
        """A commit was read to its end."""
        self.placement.agrees(session)
        while self._begun:
            self._begins(*self._begun.pop())

    def _begins(self, session: str, seen: Seen) -> None:
        """An agent of a portable tree begins with its maker's folder as it was recorded last.

        Its maker may have recorded another one behind that, in the same commit.
        """
        maker = self._watch.sessions.get(str(seen.state.facts.parent_session))
        if maker is None or maker.state.facts.portable is None:
            return
        found = (entry.payload for entry in reversed(maker.entries) if entry.type == DENDRO)
        named = (fact["snapshot"] for fact in found if fact["kind"] in ("workspace", "workspace_base"))
        last, begun = list(islice(named, 2)), seen.state.workspace.base
        if begun not in last:
            self._watch.broken("begun_with", f"{session} begins with {begun}, and its maker has {last}")
        if len(last) > 1:
            self._watch.reach.saw("begun_with")

    def _is_offered(self, session: str, known: Workspace, agent: str) -> None:
        """An offer can be merged by the packs that it names: the folder, and what the agent began with."""
        offer = known.offered[agent]
        self._are_packed(session, offer.packs, offer.snapshot)
        if offer.base is not None:
            self._are_packed(session, offer.packs, offer.base)
        if any(pack.whole for pack in offer.packs[1:]):
            self._watch.reach.saw("offered_anew")

    def _is_prepared(self, session: str, known: Workspace) -> None:
        """A set-up is over: what it wrote is recorded, or is not stored."""
        runs = self._ledger.by_call.get((session, SETUP), ())
        last = runs[-1] if runs else None
        if known.unsaved is not None or last is None or self._watch.reads_anew:
            return
        if last.began_s <= self._watch.forgot_s:
            return
        content = self._folders.contents[known.snapshot]
        if lacks := lacking(last.marks or (), content):
            self._watch.broken("set_up", f"{session}: the set-up is over, and the log lacks {lacks}")

    def _is_merged(self, session: str, known: Workspace, fact: Mapping[str, Any]) -> None:
        """All that the child had by then is recorded in its parent's folder, or is not stored."""
        if known.unsaved is not None and fact["call_id"] in known.unsaved.call_ids:
            return
        base, theirs = (self._folders.contents[fact[name] or None] for name in ("base", "snapshot"))
        shared = self._folders.shared.get(session)
        own = on_disk(shared) if shared is not None else self._folders.contents[known.snapshot]
        if lacks := {path for path in theirs if path.startswith(MARKS)} - {*base, *own}:
            self._watch.broken("recorded", f"{session}: {fact['call_id']} merged without {sorted(lacks)}")

    def _is_given(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """An agent begins with all that its maker's calls have written to the folder by then."""
        copied = seen.state.workspace.copied
        if copied is None or copied.request != seen.state.requests:
            self._watch.broken("copied", f"{session}: agent {fact['agent_id']} begins with an old copy")
        content = self._folders.contents[fact["snapshot"]]
        done = [mark for at_s, mark in self._done.get(session, ()) if self._watch.kept(at_s)]
        if lacks := lacking(done, content):
            self._watch.broken("copied", f"{session}: agent {fact['agent_id']} begins without {lacks}")
        if done:
            self._watch.reach.saw("copied")

    def _ends_in_shared(self, session: str, seen: Seen, call_id: str) -> None:
        runs = self._ledger.by_call.get((session, call_id), ())
        last = runs[-1] if runs else None
        if last is not None and last.marks and last.state == "finished" and last.claim == seen.claim:
            now_s = self._watch.now_s
            self._done.setdefault(session, []).extend((now_s, mark) for mark in last.marks)

    def output(self, session: str, seen: Seen, call_id: str, output: str) -> None:
        """A call gets its output: what it wrote is recorded, or is not there if its holder was lost."""
        state, watch = seen.state, self._watch
        if session in self._folders.shared and not watch.reads_anew:
            self._ends_in_shared(session, seen, call_id)
        if state.facts.portable is None or watch.reads_anew:
            return
        if "Process exited with code" in output and (number := _process_of(seen, call_id)):
            self._is_read_to_its_end(session, seen, call_id, number)
        runs = self._ledger.by_call.get((session, call_id), ())
        last = runs[-1] if runs else None
        if last is None or last.marks is None or last.lost or last.began_s <= watch.forgot_s:
            return
        if last.denied and last.claim != seen.claim:
            # It was to run again, and never began.
            return
        if output.startswith(IN_DOUBT) and ("before this call" in output or IN_PART in output):
            if call_id not in seen.grammar.lost:
                watch.broken(
                    "rolled_back", f"{session}: {call_id} is in doubt, and no entry says what is lost"
                )
            if IN_PART not in output:
                self._is_gone(session, state, last, output)
            elif not _is_recorded_beside(seen, call_id):
                told = f"{call_id} is told to be there in part, and nothing was recorded while it ran"
                watch.broken("rolled_back", f"{session}: {told}")
        elif last.claim == seen.claim or output.startswith(IN_DOUBT):
            self._is_recorded(session, state.workspace, last, output)

    def _is_read_to_its_end(self, session: str, seen: Seen, call_id: str, number: int) -> None:
        """A look at a process tells of its end: all that it wrote is recorded."""
        known = seen.state.workspace
        runs = [run for run in self._ledger.of_session(session) if run.lasting == number and not run.lost]
        last = runs[-1] if runs else None
        if last is None or last.claim != seen.claim or last.marks is None:
            return
        unsaved = known.unsaved.call_ids if known.unsaved is not None else ()
        if last.began_s <= self._watch.forgot_s or call_id in unsaved or last.call_id in unsaved:
            return
        if lacks := lacking(last.marks, self._folders.contents[known.snapshot]):
            told = f"{call_id} has read {last.call_id} to its end"
            self._watch.broken("recorded", f"{session}: {told}, and the log's folder lacks {lacks}")
        self._watch.reach.saw("read_to_its_end")

    def _is_gone(self, session: str, state: State, run: Run, output: str) -> None:
        self._watch.reach.saw("rolled_back")
        content = self._folders.contents[state.workspace.standing]
        if found := [mark for mark in run.marks or () if has(content, mark)]:
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
        if lacks := lacking(marks, content):
            told = f"{run.call_id} has the output {output[:30]!r}"
            self._watch.broken("recorded", f"{session}: {told}, and the log's folder lacks {lacks}")
        if run.state == "killed":
            self._watch.reach.saw("recorded")


def _is_recorded_beside(seen: Seen, call_id: str) -> bool:
    """Whether the log names a content of the folder behind the decision to run a call."""
    for entry in reversed(seen.readable):
        fact = entry.payload if entry.type == DENDRO else {}
        if fact.get("kind") in ("workspace", "workspace_unsaved") and fact["snapshot"]:
            return True
        if fact.get("kind") == "call" and fact["call_id"] == call_id and fact["phase"] == "running":
            return False
    return False


def _is_told_behind(seen: Seen, call_id: str) -> bool:
    """Whether a call was decided to run before it was told that its folder is not saved."""
    for entry in reversed(seen.readable):
        fact = entry.payload if entry.type == DENDRO else {}
        if fact.get("kind") == "workspace_unsaved":
            return True
        if fact.get("kind") == "call" and fact["call_id"] == call_id:
            return False
    return False
