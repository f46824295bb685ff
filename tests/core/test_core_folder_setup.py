"""The set-up of a portable folder: over before a call uses it, and owed again where it is made anew."""

from __future__ import annotations

import pytest

from orchestrator.core import facts as f
from orchestrator.core.commands import FolderMade, SetupBegins, SetupEnded
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.entries import fact
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import (
    AssessCall,
    BeginSetup,
    MakeFolder,
    OweRequest,
    RunSetup,
    SaveFolder,
    StopAll,
)
from orchestrator.core.settings import FolderSetup, SessionFacts, portable_wire
from orchestrator.core.snapshot import decode, encode
from orchestrator.protocol.ids import SnapshotId
from tests.core.driver import Session
from tests.core.folders import FOLDER, RULES, a_pack, changed, kinds, made, unsaved

SETUP = FolderSetup("pip install .", timeout_ms=60_000, origin=".dendro/setup.sh")
PREPARED = replace(FOLDER, setup=SETUP)
DONE = SetupEnded("done", 2.5)
FAILED = SetupEnded("failed", 1.0, "the script ended with exit code 3. It said:\nno such package")


def asking() -> Session:
    """A session with a set-up, whose folder is made and whose model has asked for a command."""
    session = Session(facts={"portable": portable_wire(PREPARED)}, rules=RULES)
    session.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (a_pack(0, whole=True),))))
    session.say("go", "u1")
    session.asks_for("c1")
    session.happens(made(session, anew=True))
    return session


def setting_up() -> Session:
    session = asking()
    session.happens(SetupBegins())
    return session


def set_up() -> Session:
    session = setting_up()
    session.happens(DONE)
    return session


def test_setup_runs_after_the_folder_is_made_and_before_the_first_call_that_needs_it() -> None:
    session = asking()
    assert session.owes() == (BeginSetup(),)
    begun = session.happens(SetupBegins())
    assert ".dendro/setup.sh runs without the network, for 60 s" in begun.one("background_event")["message"]
    assert [entry.payload.get("kind", entry.payload.get("type")) for entry in begun.entries] == [
        "workspace_setup_begun",
        "background_event",
    ]
    assert session.owes() == (RunSetup(session.epoch),)
    ended = session.happens(DONE)
    assert "set up (2.5 s)" in ended.one("background_event")["message"]
    assert session.owes() == (AssessCall("c1"),)


def test_session_that_only_talks_is_not_set_up() -> None:
    session = Session(facts={"portable": portable_wire(PREPARED)}, rules=RULES)
    session.say("go", "u1")
    assert session.owes() == (OweRequest(),)
    session.asks_for("p1", name="update_plan")
    assert session.owes() == (AssessCall("p1"),)


def test_what_the_setup_changed_is_an_entry_of_its_own_kind() -> None:
    session = setting_up()
    session.happens(changed(1, setup=True))
    saved = session.seen[-1].entries[-1].payload
    assert (saved["kind"], saved["setup"], saved["call_ids"]) == ("workspace", True, [])


def test_failing_setup_fails_the_task_with_its_output_and_a_remedy() -> None:
    session = setting_up()
    seen = session.happens(FAILED)
    assert seen.types[-2:] == ["error", "task_complete"]
    told = seen.one("error")["message"]
    assert "no such package" in told
    assert "begin a new session" in told
    assert "not run: the folder could not be set up" in str(seen.entries)
    session.say("again", "u2")
    session.asks_for("c2")
    assert session.owes() == (BeginSetup(),), "what it needs may be there by now"


def test_setup_that_fails_beside_a_model_request_stops_both() -> None:
    session = Session(facts={"portable": portable_wire(PREPARED)}, rules=RULES)
    session.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (a_pack(0, whole=True),))))
    session.say("go", "u1")
    session.begin()
    session.calls("c1")
    session.happens(made(session, anew=True))
    session.happens(SetupBegins())
    session.happens(FAILED)
    assert session.owes() == (StopAll("failed"),)
    assert "no such package" in session.stopped().one("error")["message"]


def test_interrupt_waits_until_the_setup_is_stopped_and_it_is_owed_again() -> None:
    session = setting_up()
    assert session.interrupt().types == []
    assert session.owes() == (StopAll("interrupted"),)
    session.happens(SetupEnded("stopped"))
    assert session.stopped().types[-1] == "turn_aborted"
    session.say("again", "u2")
    session.asks_for("c2")
    assert session.owes() == (BeginSetup(),)


def test_setup_of_a_lost_worker_begins_again_in_a_folder_made_anew() -> None:
    session = setting_up()
    session.epoch += 1
    assert session.owes() == (MakeFolder(),)
    seen = session.happens(made(session, anew=True))
    assert "broken off with its worker" in seen.one("warning")["message"]
    assert session.owes() == (BeginSetup(),)


def test_interrupt_under_a_new_claim_does_not_wait_for_the_setup_of_the_last_one() -> None:
    session = setting_up()
    session.epoch += 1
    assert session.interrupt().types[-1] == "turn_aborted"


@pytest.mark.parametrize(
    ("machine", "anew", "again"),
    [("m1", False, False), ("m1", True, True), ("m2", True, True), ("m2", False, True)],
)
def test_setup_runs_again_where_the_copy_is_another_one(machine: str, *, anew: bool, again: bool) -> None:
    session = set_up()
    session.epoch += 1
    session.happens(FolderMade(machine, session.state.workspace.standing, anew=anew))
    assert (BeginSetup() in session.owes()) is again
    assert session.state.task is not None
    assert ("set-up script runs again" in str(session.state.task.steered)) is again


def test_setup_begins_only_where_it_is_owed() -> None:
    session = set_up()
    for command in (SetupBegins(), DONE):
        with pytest.raises(IllegalCommand):
            session.happens(command)
    session = setting_up()
    with pytest.raises(IllegalCommand):
        session.happens(SetupBegins())
    session.epoch += 1
    for command in (SetupBegins(), DONE):
        with pytest.raises(IllegalCommand):
            session.happens(command)


def test_setup_waits_for_a_full_disk_and_runs_beside_a_store_that_is_away() -> None:
    session = asking()
    session.happens(unsaved(snapshot="u1"))
    assert session.owes() == (SaveFolder(), BeginSetup())
    session.happens(unsaved(blocked=True))
    assert session.owes() == (SaveFolder(),)


def test_setup_stands_in_the_log_and_in_snapshots_of_the_state() -> None:
    session = setting_up()
    facts = session.state.facts
    assert SessionFacts.of(facts.wire()).portable == PREPARED
    found = decode(encode(session.state))
    assert (found.facts.portable, found.workspace) == (PREPARED, session.state.workspace)
    assert "workspace_setup_begun" in kinds(session)
