"""The folder of a portable session: recorded before what changed it ends, and rolled back with its holder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.calls.process import Lasting
from orchestrator.core.compaction import newest_texts
from orchestrator.core.decide.takeover import IN_DOUBT_ELSEWHERE, IN_DOUBT_RECORDED
from orchestrator.core.entries import fact
from orchestrator.core.folder_commands import FolderChanged, FolderFailed, FolderMade, FolderUnsaved
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import AssessCall, MakeFolder, OweRequest, RunCall, SaveFolder
from orchestrator.core.settings import PortableFolder, Rules, SessionFacts, portable_wire
from orchestrator.core.snapshot import decode, encode
from orchestrator.core.timers import FOLDER_TIMER
from orchestrator.core.turn_calls import Phase
from orchestrator.core.workspace import (
    MOST_ADDED,
    MOST_TRIES,
    NAMES_BYTES,
    FileCounts,
    Pack,
    fitting,
    is_pack_due_whole,
)
from orchestrator.protocol.ids import CallId, SnapshotId
from tests.core.driver import Session, a_command, a_patch, op

FOLDER = PortableFolder("/workspaces", "repo")
RULES = Rules(folder_free=frozenset({"update_plan"}))


def portable(**fields: Any) -> Session:
    session = Session(facts={"portable": portable_wire(FOLDER)}, rules=RULES, **fields)
    session.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (a_pack(0, whole=True),))))
    return session


def a_pack(number: int, *, whole: bool = False, bytes: int = 100) -> Pack:
    return Pack(f"tree/workspaces/session/{number}.pack", f"{number:064x}", bytes, whole)


def changed(number: int, *call_ids: str, **fields: Any) -> FolderChanged:
    """The folder has become snapshot `number`, by these calls."""
    names = fields.pop("names", (f"file-{number}",))
    parent = SnapshotId(f"s{number - 1}")
    pack = fields.pop("pack", a_pack(number))
    calls = tuple(map(CallId, call_ids))
    return FolderChanged(
        SnapshotId(f"s{number}"), parent, pack, FileCounts(1, 0, 0), names, calls, 5_000, **fields
    )


def unsaved(*call_ids: str, snapshot: str | None = None, **fields: Any) -> FolderUnsaved:
    here = SnapshotId(snapshot) if snapshot else None
    return FolderUnsaved("m1", "the store is away", tuple(map(CallId, call_ids)), 7_000, here, **fields)


def made(session: Session, machine: str = "m1", **fields: Any) -> FolderMade:
    return FolderMade(machine, session.state.workspace.standing, **fields)


def running(*call_ids: str) -> Session:
    """A portable session whose folder is made and whose commands run."""
    session = portable()
    session.say("go", "u1")
    session.asks_for(*call_ids)
    session.happens(made(session))
    for call_id in call_ids[:1]:
        session.runs(call_id, "make")
    return session


def kinds(session: Session) -> list[str]:
    return [
        entry.payload["kind"] for seen in session.seen for entry in seen.entries if entry.type == "dendro"
    ]


# ── making it ─────────────────────────────────────────────────────────────────────────────────


def test_folder_is_made_before_the_first_call_that_needs_it_is_assessed() -> None:
    session = portable()
    session.say("go", "u1")
    assert session.owes() == (OweRequest(),), "a session that only talks has no folder"
    session.asks_for("c1")
    assert session.owes() == (MakeFolder(),)
    session.happens(made(session))
    assert session.owes() == (AssessCall("c1"),)


def test_call_that_needs_nothing_of_the_folder_does_not_wait_for_it() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("p1", name="update_plan")
    assert session.owes() == (AssessCall("p1"),)


def test_call_that_was_approved_under_a_later_claim_waits_for_the_folder() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("c1")
    session.happens(made(session))
    session.assessed("c1", a_command("rm", dangerous=True))
    session.epoch += 1
    session.decides("c1", "approved")
    assert session.owes() == (MakeFolder(),)
    session.happens(made(session))
    assert session.owes() == (RunCall("c1", session.epoch),)


def test_model_is_told_what_a_move_to_another_machine_loses() -> None:
    session = running("c1")
    session.happens(changed(1, "c1", omitted=("'.env' (excluded)",)))
    session.finishes("c1")
    session.epoch += 1
    session.begin()
    session.happens(made(session, "m2", anew=True))
    session.ends()
    session.begin()
    assert any("another machine" in text and "'.env'" in text for text in session.texts())
    assert session.state.workspace.machine == "m2"


def test_clean_copy_on_the_same_machine_is_not_spoken_of() -> None:
    session = running("c1")
    session.finishes("c1")
    texts = session.texts()
    session.epoch += 1
    session.happens(made(session, "m1"))
    assert session.texts() == texts


def test_folder_at_another_snapshot_than_the_log_says_is_a_defect() -> None:
    session = portable()
    with pytest.raises(ValueError, match="made at s9"):
        session.happens(FolderMade("m1", SnapshotId("s9")))


def test_first_content_from_elsewhere_is_what_the_session_began_with() -> None:
    session = Session(facts={"portable": portable_wire(FOLDER)}, rules=RULES)
    pack = a_pack(1, whole=True)
    seen = session.happens(FolderMade("m1", SnapshotId("s1"), anew=True, fetched=pack, omitted=("'big'",)))
    known = session.state.workspace
    assert (known.snapshot, known.base, known.packs) == ("s1", "s1", (pack,))
    assert "'big'" in seen.one("warning")["message"]


def test_machine_that_cannot_make_the_folder_lets_another_one_try() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("c1")
    full = FolderFailed("m1", "no space left", elsewhere=True)
    for _ in range(MOST_TRIES - 1):
        assert session.happens(full).types == ["warning"]
        assert session.owes() == (MakeFolder(),)
        session.epoch += 1
    assert session.happens(full).types[-2:] == ["error", "task_complete"]
    assert session.state.task is None


def test_folder_that_cannot_be_made_ends_the_task_while_its_request_streams() -> None:
    session = portable()
    session.say("go", "u1")
    session.begin()
    session.calls("c1")
    session.happens(FolderFailed("m1", "the pack is broken"))
    seen = session.stopped()
    assert "the pack is broken" in seen.one("error")["message"]


def at_rest_unsaved() -> Session:
    """A portable session without a task, whose last changes are on its machine alone."""
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    session.finishes("c1")
    session.answers("done")
    return session


def test_folder_that_cannot_be_made_between_tasks_leaves_its_unsaved_changes_to_a_later_try() -> None:
    session = at_rest_unsaved()
    before = session.state.workspace.unsaved
    assert before is not None
    seen = session.happens(FolderFailed("m1", "the pack is broken"))
    assert seen.one("warning")["message"] == "the folder could not be made: the pack is broken"
    assert kinds(session)[-3:] == ["workspace_not_made", "workspace_unsaved", "timer"]
    assert session.state.workspace.unsaved == replace(before, trying=False)
    assert session.owes() == ()
    session.fires(FOLDER_TIMER)
    assert session.owes() == (SaveFolder(),)


def test_folder_that_cannot_be_made_between_tasks_is_warned_of_and_nothing_else() -> None:
    session = running("c1")
    session.finishes("c1")
    session.answers("done")
    seen = session.happens(FolderFailed("m1", "the pack is broken"))
    assert seen.types == ["warning"]
    assert kinds(session)[-1] == "workspace_not_made"
    assert session.timers == {}


# ── recording it ──────────────────────────────────────────────────────────────────────────────


def test_snapshot_stands_before_the_end_of_the_call_that_changed_the_folder() -> None:
    session = running("c1")
    session.happens(changed(1, "c1"))
    session.finishes("c1")
    assert kinds(session)[-2:] == ["workspace", "call"]
    assert session.state.workspace.snapshot == "s1"


def test_folder_of_an_interrupted_command_is_recorded() -> None:
    session = running("c1")
    session.interrupt()
    session.happens(changed(1, "c1"))
    session.stopped()
    assert session.state.workspace.snapshot == "s1"


def test_folder_is_recorded_while_no_task_holds_the_session() -> None:
    session = portable()
    session.happens(made(session))
    session.happens(changed(1, live=True))
    assert session.state.workspace.snapshot == "s1"


def test_snapshot_after_another_one_than_the_last_is_a_defect() -> None:
    session = running("c1")
    with pytest.raises(ValueError, match="after s1"):
        session.happens(changed(2, "c1"))


def test_pack_that_stands_alone_takes_the_place_of_those_before_it() -> None:
    session = running("c1")
    session.happens(changed(1))
    session.happens(changed(2))
    assert [pack.name[-6] for pack in session.state.workspace.packs] == ["0", "1", "2"]
    session.happens(changed(3, pack=a_pack(3, whole=True)))
    assert session.state.workspace.packs == (a_pack(3, whole=True),)


def test_pack_has_to_stand_alone_after_so_many_or_when_they_outweigh_it() -> None:
    first = a_pack(0, whole=True, bytes=10_000)
    assert is_pack_due_whole(())
    assert not is_pack_due_whole((first, *(a_pack(n) for n in range(1, MOST_ADDED))))
    assert is_pack_due_whole((first, *(a_pack(n) for n in range(1, MOST_ADDED + 1))))
    assert is_pack_due_whole((first, a_pack(1, bytes=10_001)))


def test_names_of_changed_files_are_bounded() -> None:
    session = running("c1")
    session.happens(changed(1, names=tuple(f"'{'x' * 200}{n}'" for n in range(1000))))
    named = session.seen[-1].entries[0].payload["names"]
    assert 5 < len(named) < 12
    assert sum(map(len, named)) <= NAMES_BYTES
    assert fitting(["é" * 2000]) == ()


def test_files_that_are_left_out_are_named_once() -> None:
    session = running("c1")
    assert "'.env'" in session.happens(changed(1, omitted=("'.env'",))).one("warning")["message"]
    assert session.happens(changed(2, omitted=("'.env'",))).types == []
    many = tuple(f"'f{n}'" for n in range(12))
    assert "and 2 more" in session.happens(changed(3, omitted=many)).one("warning")["message"]


# ── not saved ─────────────────────────────────────────────────────────────────────────────────


def test_store_that_is_away_is_told_once_and_the_session_goes_on() -> None:
    session = running("c1", "c2")
    assert "m1" in session.happens(unsaved("c1", snapshot="u1")).one("warning")["message"]
    session.finishes("c1")
    assert session.owes() == (SaveFolder(), AssessCall("c2"))
    session.runs("c2")
    assert session.happens(unsaved("c2", snapshot="u2")).types == []
    known = session.state.workspace
    assert known.unsaved is not None
    assert (known.unsaved.call_ids, known.unsaved.since_ms, known.standing) == (("c1", "c2"), 7_000, "u2")


def test_next_snapshot_covers_what_was_not_saved() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    assert session.happens(changed(1, "c1")).types == ["background_event"]
    assert session.state.workspace.unsaved is None
    session.finishes("c1")
    assert session.owes() == (OweRequest(),)


def test_full_disk_lets_no_further_call_begin_until_the_folder_is_saved() -> None:
    session = running("c1", "c2")
    session.happens(unsaved("c1", blocked=True))
    session.finishes("c1")
    assert session.owes() == (SaveFolder(),)
    session.happens(changed(1, "c1"))
    assert session.owes() == (AssessCall("c2"),)


def test_session_that_gave_its_claim_up_unsaved_is_woken_to_try_again() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    session.finishes("c1")
    session.answers("done")
    session.happens(unsaved(snapshot="u1", trying=False))
    assert session.owes() == ()
    session.fires(FOLDER_TIMER)
    assert session.owes() == (SaveFolder(),)
    session.happens(changed(1, "c1"))
    assert session.timers == {}


# ── after a fall ──────────────────────────────────────────────────────────────────────────────


def test_call_in_doubt_is_told_that_the_folder_is_as_it_was_before_it() -> None:
    session = running("c1")
    seen = session.is_taken_over()
    assert kinds(session)[-2:] == ["workspace_rolled_back", "call"]
    assert seen.entries[0].payload == {"kind": "workspace_rolled_back", "to": "s0", "lost": ["c1"]}
    assert session.output_of("c1") == IN_DOUBT_ELSEWHERE


def test_patch_of_a_lost_worker_is_assessed_again_without_a_look_at_files() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("p1", name="apply_patch")
    session.happens(made(session))
    session.assessed("p1", a_patch())
    session.is_taken_over()
    assert session.call("p1").phase is Phase.PROPOSED
    assert session.owes() == (MakeFolder(),)


def test_command_that_only_reads_rolls_nothing_back() -> None:
    session = portable(settings={"sandbox_policy": {"mode": "read-only"}})
    session.say("go", "u1")
    session.asks_for("c1")
    session.happens(made(session))
    session.runs("c1")
    session.is_taken_over()
    assert "workspace_rolled_back" not in kinds(session)


def test_folder_that_is_not_portable_is_never_rolled_back() -> None:
    session = Session(rules=RULES)
    session.say("go", "u1")
    session.asks_for("c1")
    session.runs("c1")
    session.is_taken_over()
    assert "workspace_rolled_back" not in kinds(session)


def takes_over(session: Session, has: str | None, abandoned: str = "") -> None:
    """The next claim looks what this machine has of the unsaved changes, and who has given them up."""
    session.epoch += 1
    session.happens(c.TookOver({}, SnapshotId(has) if has else None, abandoned))


def test_changes_that_no_store_had_are_lost_with_their_machine_and_everybody_is_told() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    session.finishes("c1")
    takes_over(session, None)
    rolled = session.seen[-1].entries[0].payload
    assert rolled == {"kind": "workspace_rolled_back", "to": "s0", "lost": ["c1"]}
    assert "c1" in session.seen[-1].one("warning")["message"]
    session.begin()
    assert any("c1" in text and "lost" in text for text in session.texts())
    assert session.state.workspace.unsaved is None


def test_machine_that_has_the_unsaved_changes_goes_on_with_them() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1", trying=False))
    session.finishes("c1")
    takes_over(session, "u1")
    assert "workspace_rolled_back" not in kinds(session)
    assert session.owes() == (MakeFolder(), OweRequest())
    session.happens(made(session))
    assert session.owes() == (SaveFolder(), OweRequest())


def test_changes_that_a_person_gave_up_are_gone_on_their_own_machine_too_and_the_log_says_who() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1", trying=False))
    session.finishes("c1")
    takes_over(session, "u1", "ada")
    rolled = session.seen[-1].entries[0].payload
    assert rolled == {"kind": "workspace_rolled_back", "to": "s0", "lost": ["c1"], "by": "ada"}
    assert "ada has given it up: c1" in session.seen[-1].one("warning")["message"]
    assert (session.state.workspace.unsaved, session.state.workspace.epoch) == (None, 0)


def test_nothing_is_given_up_of_a_folder_that_is_stored() -> None:
    session = running("c1")
    session.happens(changed(1, "c1"))
    session.finishes("c1")
    takes_over(session, None, "ada")
    assert "workspace_rolled_back" not in kinds(session)


def test_changes_without_a_snapshot_are_lost_with_their_claim() -> None:
    session = running("c1")
    session.happens(unsaved("c1"))
    session.finishes("c1")
    takes_over(session, None)
    assert session.state.workspace.unsaved is None
    assert "workspace_rolled_back" in kinds(session)


def test_copy_that_turns_out_to_be_gone_rolls_the_folder_back_when_it_is_made() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    session.finishes("c1")
    takes_over(session, "u1")
    session.happens(FolderMade("m1", SnapshotId("s0"), anew=True))
    assert "workspace_rolled_back" in kinds(session)
    assert session.state.workspace.unsaved is None


def test_call_whose_snapshot_is_recorded_and_whose_end_is_not_says_so() -> None:
    session = running("c1")
    session.happens(changed(1, "c1"))
    session.is_taken_over()
    assert session.output_of("c1") == IN_DOUBT_RECORDED
    assert "workspace_rolled_back" not in kinds(session)


def test_patch_that_is_recorded_is_not_written_again() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("p1", name="apply_patch")
    session.happens(made(session))
    session.assessed("p1", a_patch())
    session.happens(changed(1, "p1"))
    session.is_taken_over()
    assert session.output_of("p1") == IN_DOUBT_RECORDED


def test_call_that_runs_again_is_not_the_one_that_was_recorded() -> None:
    session = portable(settings={"approval_policy": "on-failure"})
    session.say("go", "u1")
    session.asks_for("c1")
    session.happens(made(session))
    session.runs("c1")
    session.happens(changed(1, "c1"))
    session.finishes("c1", sandbox_denied=True)
    session.decides("c1", "approved")
    session.is_taken_over()
    assert session.output_of("c1") == IN_DOUBT_ELSEWHERE


def test_process_that_is_lost_takes_what_it_wrote_since_the_last_snapshot_along() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("c1", name="exec_command")
    session.happens(made(session))
    session.assessed("c1", a_command("serve", safe=True, lasting=Lasting(True, 250, 100)))
    session.finishes("c1", keeps=True)
    session.is_taken_over()
    rolled = [entry.payload for entry in session.seen[-1].entries if entry.type == "dendro"]
    assert {"kind": "workspace_rolled_back", "to": "s0", "lost": ["c1"]} in rolled


def test_persons_command_leaves_the_news_of_the_folder_in_the_conversation() -> None:
    session = portable()
    session.happens(made(session))
    session.submit(op("run_user_shell_command", command="make"), "u1")
    session.epoch += 1
    session.happens(made(session, "m2", anew=True))
    assert "another machine" in session.texts()[-1]


def test_compaction_does_not_keep_the_news_of_the_folder_as_words_of_a_person() -> None:
    session = portable()
    session.happens(made(session))
    session.epoch += 1
    session.happens(made(session, "m2"))
    session.say("go", "u1")
    assert "another machine" in session.texts()[0]
    assert newest_texts(session.state) == ("go",)


# ── as it is kept ─────────────────────────────────────────────────────────────────────────────


def states() -> Iterable[Session]:
    session = running("c1")
    yield session
    session.happens(changed(1, "c1", omitted=("'x'",)))
    yield session
    session.happens(unsaved("c1", snapshot="u1", blocked=True))
    yield session
    session.record(fact(f.WorkspaceMerged(CallId("m1"), 3, None, SnapshotId("t1"), (a_pack(9),))))  # type: ignore[arg-type]
    yield session


def test_snapshot_of_the_state_holds_the_folder() -> None:
    for session in states():
        assert decode(encode(session.state)) == session.state


def test_state_of_a_session_without_a_portable_folder_says_nothing_of_one() -> None:
    stored = encode(Session().state)
    assert b"portable" not in stored
    assert b'"workspace":{' not in stored


def test_facts_of_a_portable_session_are_read_as_they_were_written() -> None:
    folder = PortableFolder("/w", "repo", ("*.lock",), (".env*",), {"git": "https://x/y", "ref": "main"})
    facts = SessionFacts(portable=folder)
    assert SessionFacts.of(facts.wire()) == facts
    assert folder.path(facts.tree_id) == "/w//repo"
