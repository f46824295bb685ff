"""The folder of a portable session whose worker is lost: rolled back, told of, and gone on with."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Phase, PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import FolderMade
from orchestrator.core.compaction import newest_texts
from orchestrator.core.decide.takeover import IN_DOUBT_ELSEWHERE, IN_DOUBT_PARTLY, IN_DOUBT_RECORDED
from orchestrator.core.outstanding import MakeFolder, OweRequest, SaveFolder
from orchestrator.core.snapshot import decode, encode
from orchestrator.core.state import may_write
from orchestrator.protocol.ids import SnapshotId
from tests.core.driver import Session, a_command, a_patch, op
from tests.core.folders import RULES, changed, kinds, made, portable, running, unsaved


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


def test_call_while_which_the_folder_was_recorded_is_told_that_a_part_of_it_may_be_there() -> None:
    session = running("c1")
    session.happens(changed(1, "of a process that ended"))
    session.state = decode(encode(session.state))
    session.is_taken_over()
    assert session.output_of("c1") == IN_DOUBT_PARTLY
    assert session.seen[-1].entries[0].payload == {
        "kind": "workspace_rolled_back",
        "to": "s1",
        "lost": ["c1"],
    }


def test_call_whose_end_only_the_unsaved_folder_has_is_told_that_a_part_of_it_may_be_there() -> None:
    session = running("c1")
    session.happens(unsaved("c1", snapshot="u1"))
    takes_over(session, "u1")
    assert session.output_of("c1") == IN_DOUBT_PARTLY


def test_call_that_runs_behind_what_was_recorded_last_is_told_that_nothing_of_it_is_there() -> None:
    session = running("c1", "c2")
    session.happens(changed(1, "of a process that ended"))
    session.happens(changed(2, "c1"))
    session.finishes("c1")
    session.runs("c2")
    session.is_taken_over()
    assert session.output_of("c2") == IN_DOUBT_ELSEWHERE


@pytest.mark.parametrize("by", ["p1", "of a process that ended"])
def test_patch_that_is_recorded_is_not_written_again(by: str) -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("p1", name="apply_patch")
    session.happens(made(session))
    session.assessed("p1", a_patch())
    session.happens(changed(1, by))
    session.is_taken_over()
    assert session.output_of("p1") == (IN_DOUBT_RECORDED if by == "p1" else IN_DOUBT_PARTLY)


@pytest.mark.parametrize("by", ["c1", "of a process that ended"])
def test_call_that_runs_again_is_not_the_one_that_was_recorded(by: str) -> None:
    session = portable(settings={"approval_policy": "on-failure"})
    session.say("go", "u1")
    session.asks_for("c1")
    session.happens(made(session))
    session.runs("c1")
    session.happens(changed(1, by))
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


def test_process_whose_first_writes_are_recorded_is_named_where_it_is_lost() -> None:
    session = portable()
    session.say("go", "u1")
    session.asks_for("c1", name="exec_command")
    session.happens(made(session))
    session.assessed("c1", a_command("serve", safe=True, lasting=Lasting(True, 250, 100)))
    session.happens(changed(1, "c1"))
    session.finishes("c1", keeps=True)
    session.is_taken_over()
    rolled = [entry.payload for entry in session.seen[-1].entries if entry.type == "dendro"]
    assert {"kind": "workspace_rolled_back", "to": "s1", "lost": ["c1"]} in rolled


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


@pytest.mark.parametrize(
    "work", [QuestionWork(()), UserInputWork(()), PlanWork({}), None], ids=lambda work: type(work).__name__
)
def test_call_that_waits_for_a_person_changes_no_folder(work: Any) -> None:
    assert not may_write(work, Session().state.settings)


@pytest.mark.parametrize("mode", ["read-only", "workspace-write", "danger-full-access"])
@pytest.mark.parametrize("confined", [True, False])
def test_command_may_change_the_folder_unless_the_sandbox_that_it_runs_in_only_reads(
    mode: str, confined: bool
) -> None:
    settings = Session(settings={"sandbox_policy": {"mode": mode}}).state.settings
    assert may_write(a_command("make").work(confined), settings) == (not confined or mode != "read-only")
