"""The folder of a portable session: made before what needs it, and recorded before what changed it ends."""

from __future__ import annotations

import pytest

from orchestrator.core.commands import FolderFailed, FolderMade
from orchestrator.core.commit_parts import FOLDER_TIMER
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import AssessCall, MakeFolder, OweRequest, RunCall, SaveFolder
from orchestrator.core.settings import portable_wire
from orchestrator.core.workspace import MOST_TRIES
from orchestrator.protocol.ids import SnapshotId
from tests.core.driver import Session, a_command
from tests.core.folders import FOLDER, RULES, a_pack, changed, kinds, made, portable, running, unsaved

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


def test_people_are_warned_of_what_a_cloned_repository_asks_for() -> None:
    session = Session(facts={"portable": portable_wire(FOLDER)}, rules=RULES)
    told = FolderMade("m1", SnapshotId("s1"), True, a_pack(1, whole=True), warning="its set-up is not run")
    assert session.happens(told).one("warning")["message"] == "its set-up is not run"


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


def test_claims_that_could_not_make_the_folder_count_in_a_row_alone() -> None:
    session = portable()
    full = FolderFailed("m1", "no space left", elsewhere=True)
    for number in range(3):
        session.say("go", f"u{number}")
        session.asks_for("c1")
        for _ in range(MOST_TRIES - 1):
            assert session.happens(full).types == ["warning"]
            session.epoch += 1
        session.happens(made(session))
        assert session.owes() == (AssessCall("c1"),)
        session.interrupt()
        session.epoch += 1


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


def test_each_file_that_is_left_out_is_warned_of_once_however_often_others_come() -> None:
    session = running("c1")
    known: tuple[str, ...] = ()
    warned: list[list[str]] = []
    names = [f"'{number}.pem' (excluded)" for number in range(6)]
    for number, new in enumerate(([], names[:1], [], names[1:3], names[3:5], [], names[5:]), 1):
        # The newest stand first, as a machine tells them.
        known = (*new, *known)
        seen = session.happens(changed(number, "c1", omitted=known))
        warned.append([entry.payload["message"] for entry in seen.entries if entry.payload.get("message")])
        named = [one for text in warned[-1] for one in names if one in text]
        assert named == list(new), number
        assert len(warned[-1]) == bool(new)
    assert session.state.workspace.omitted == known, "a move to another machine tells of all"


# ── the second time ───────────────────────────────────────────────────────────────────────────


def test_folder_that_is_not_stored_for_long_names_all_its_calls_and_since_when_and_is_warned_of_once() -> (
    None
):
    session = running("c1", "c2", "c3")
    for number, call_id in enumerate(("c1", "c2", "c1")):
        seen = session.happens(replace(unsaved(call_id, snapshot=f"x{number}"), at_ms=7_000 + number))
        assert ("warning" in seen.types) == (number == 0)
    known = session.state.workspace.unsaved
    assert known is not None
    assert (known.since_ms, known.at_ms, known.call_ids) == (7_000, 7_002, ("c1", "c2"))
    assert session.happens(changed(1, "c1")).types == ["background_event"]
    assert "warning" in session.happens(unsaved("c2", snapshot="y")).types
    assert session.replayed() == session.state


@pytest.mark.parametrize("trying", [True, False])
def test_timer_of_a_folder_that_is_stored_again_is_over(trying: bool) -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="x", trying=trying))
    assert (FOLDER_TIMER in session.timers) == (not trying)
    session.happens(changed(1, "c1"))
    assert session.timers == {}


def test_files_that_are_left_out_are_told_whenever_they_are_others() -> None:
    session, told = running("c1"), []
    for number, omitted in enumerate((("'a'",), ("'a'",), ("'a'", "'b'"), (), ("'a'",)), 1):
        seen = session.happens(changed(number, "c1", omitted=omitted))
        told.append([warning["message"].partition(": ")[2] for warning in seen.all("warning")])
    assert told == [["'a'"], [], ["'b'"], [], ["'a'"]]


@pytest.mark.parametrize(
    ("machine", "anew", "told"),
    [
        ("m1", False, ""),
        ("m1", True, "Your folder was made again."),
        ("m2", False, "Your folder was made on another machine."),
        ("m2", True, "Your folder was made on another machine."),
    ],
)
def test_model_is_told_of_each_folder_that_is_another_than_it_was(
    machine: str, anew: bool, told: str
) -> None:
    session = running("c1")
    session.happens(changed(1, "c1"))
    session.finishes("c1")
    session.epoch += 1
    session.happens(made(session, machine, anew=anew))
    session.begin()
    assert [text for text in session.texts() if "Your folder was made" in text and told in text] == (
        [session.texts()[-1]] if told else []
    )
    assert told or "Your folder was made" not in str(session.shown())


def test_folder_that_cannot_be_made_leaves_a_task_that_is_being_stopped_to_its_reason() -> None:
    session = portable()
    session.say("go", "u1")
    session.begin()
    session.calls("c1")
    session.interrupt()
    session.happens(FolderFailed("m1", "the pack is broken"))
    seen = session.stopped()
    assert ("turn_aborted" in seen.types, "error" in session.types) == (True, False)
