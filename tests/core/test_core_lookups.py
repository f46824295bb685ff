"""Look-ups: accepted at once, owed beside whatever runs, answered once."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.decide.ops import MOST_FOLDERS, MOST_LOOKUPS
from orchestrator.core.entries import SESSION_META, Entry
from orchestrator.core.evolve import evolve
from orchestrator.core.outstanding import MOST_LOOKED_UP, FollowRequest, LookUp, OweRequest, ReadInstructions
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from tests.core.driver import Seen, Session, op
from tests.core.tree_driver import TreeDriver

ANSWER = ev.ListCustomPromptsResponse(custom_prompts=())


def born() -> Session:
    """A session that began in `/repo`, with the line that says so."""
    session = Session()
    session.record(Entry(SESSION_META, {"id": "s", "cwd": "/repo"}))
    return session


def asks(
    session: Session, id: str, type: str = "list_custom_prompts", client: str = "", **fields: Any
) -> Seen:
    return session.happens(c.Submitted(SubmissionId(id), op(type, **fields), client, "anna@host"))


def turn(cwd: str, words: str = "go") -> ops.Op:
    return op(
        "user_turn",
        items=[{"type": "text", "text": words}],
        cwd=cwd,
        approval_policy="never",
        sandbox_policy={"mode": "read-only"},
        model="gpt-5",
        summary="auto",
    )


def test_lookup_is_owed_until_its_answer_comes_under_its_id() -> None:
    session = Session()
    assert asks(session, "l1").events == []
    assert session.owes() == (LookUp("|l1"),)
    seen = session.happens(c.LookedUp("|l1", ANSWER))
    assert seen.id_of("list_custom_prompts_response") == "l1"
    assert session.owes() == ()
    assert session.happens(c.LookedUp("|l1", ANSWER)).events == [], "a second answer says nothing"


def test_lookup_that_failed_is_an_error_under_its_id() -> None:
    session = Session()
    asks(session, "l1")
    seen = session.happens(c.LookedUp("|l1", error="no"))
    assert (seen.id_of("error"), seen.one("error")["message"]) == ("l1", "no")
    assert session.state.lookups == ()


def test_prompt_for_the_history_is_taken_without_an_answer() -> None:
    session = Session()
    asks(session, "l1", "add_to_history", text="words")
    (lookup,) = session.state.lookups
    assert (lookup.op["text"], lookup.who) == ("words", "anna@host")
    assert session.happens(c.LookedUp("|l1")).events == []
    assert session.owes() == ()


def test_running_task_is_not_disturbed_by_a_lookup_nor_a_lookup_by_its_end() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    asks(session, "l1")
    assert [type(work) for work in session.owes()] == [LookUp, FollowRequest]
    session.interrupt()
    session.stopped()
    assert session.state.task is None
    assert session.owes() == (LookUp("|l1"),)


def test_lookups_of_two_clients_under_one_id_are_two() -> None:
    session = Session()
    asks(session, "l1", client="a")
    asks(session, "l1", client="b")
    session.happens(c.LookedUp("a|l1", ANSWER))
    assert session.owes() == (LookUp("b|l1"),)


def test_prompts_are_added_to_the_history_one_by_one_and_read_behind_them() -> None:
    session = Session()
    asks(session, "h1", "add_to_history", text="first")
    asks(session, "h2", "add_to_history", text="second")
    asks(session, "h3", "get_history_entry_request", offset=0, log_id=1)
    asks(session, "l1")
    assert session.owes() == (LookUp("|h1"), LookUp("|l1"))
    session.happens(c.LookedUp("|h1"))
    assert session.owes() == (LookUp("|h2"), LookUp("|l1"))


def test_only_the_first_op_of_the_history_runs_whatever_stands_between_it_and_the_next() -> None:
    session = born()
    history = op("add_to_history", text="one"), op("get_history_entry_request", offset=0, log_id=1)
    for number, asked in enumerate(
        (op("list_models"), *history, op("list_skills"), *history, op("list_models"))
    ):
        session.submit(asked, f"k{number}", client="a")
    runs = [work.key for work in session.owes() if isinstance(work, LookUp)]
    assert runs == ["a|k0", "a|k1", "a|k3", "a|k6"]
    assert session.replayed() == session.state


def test_lookup_that_waits_already_is_not_taken_twice() -> None:
    session = Session()
    asks(session, "l1")
    asks(session, "l1")
    assert len(session.state.lookups) == 1


def test_shutdown_leaves_open_lookups_and_the_closed_session_answers_them() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    asks(session, "l1")
    session.shutdown()
    seen = asks(session, "l2")
    assert "the session is closing" in seen.one("error")["message"]
    assert session.stopped().types[-1] == "shutdown_complete"
    assert session.owes() == (LookUp("|l1"),)
    assert session.happens(c.LookedUp("|l1", ANSWER)).id_of(ANSWER.type) == "l1"
    assert session.owes() == ()


def test_shutdown_of_an_earlier_version_has_dropped_open_lookups() -> None:
    session = Session()
    asks(session, "l1")
    state = evolve(session.state, e.fact(f.Closing(SubmissionId("bye"))), 99)
    assert state.lookups == ()


def test_closed_session_answers_lookups() -> None:
    session = Session()
    session.shutdown()
    asks(session, "l1")
    assert session.owes() == (LookUp("|l1"),)


def test_only_so_many_lookups_wait_and_fewer_run_at_once() -> None:
    session = Session()
    for number in range(MOST_LOOKUPS):
        asks(session, f"l{number}")
    assert len(session.owes()) == MOST_LOOKED_UP
    assert "100 look-ups wait" in asks(session, "late").one("error")["message"]
    session.happens(c.LookedUp("|l0", ANSWER))
    assert asks(session, "late").events == []


def test_entry_of_the_history_that_is_too_long_is_an_error() -> None:
    session = Session()
    assert asks(session, "fits", "add_to_history", text="ä" * 16_384).events == []
    seen = asks(session, "l1", "add_to_history", text="ä" * 16_384 + "x")
    assert "at most 32,768 bytes, this has 32,769" in seen.one("error")["message"]


def test_open_lookups_are_in_a_snapshot_and_an_answered_one_leaves_no_trace() -> None:
    session = Session()
    before = session.digest
    asks(session, "l1")
    assert decode(encode(session.state)).lookups == session.state.lookups
    session.happens(c.LookedUp("|l1", ANSWER))
    assert digest(session.state) == before


# ── folders ───────────────────────────────────────────────────────────────────────────────────


def test_task_in_a_new_folder_reads_its_instructions_before_its_first_request() -> None:
    session = born()
    session.submit(turn("/new"), "u1")
    assert session.owes() == (ReadInstructions("/new"),)
    session.happens(c.InstructionsRead("/new", "Be kind."))
    assert session.owes() == (OweRequest(),)
    assert session.texts()[-1] == "<user_instructions>\n\nBe kind.\n\n</user_instructions>"
    session.begin()
    session.answers_now("done")
    session.submit(turn("/repo"), "u2")
    assert session.owes() == (OweRequest(),), "the first folder was told at the beginning"


def test_folder_without_instructions_is_asked_once() -> None:
    session = born()
    session.submit(turn("/new"), "u1")
    said = len(session.texts())
    session.happens(c.InstructionsRead("/new"))
    session.happens(c.InstructionsRead("/new", "late"))
    assert len(session.texts()) == said
    assert session.owes() == (OweRequest(),)


def test_person_is_warned_once_of_instructions_that_were_left_out() -> None:
    session = born()
    session.submit(turn("/new"), "u1")
    said = len(session.texts())
    for _ in range(2):
        session.happens(c.InstructionsRead("/new", warnings=("/new/AGENTS.md leads out",)))
    warnings = [id for id, it in session.events if it.get("message") == "/new/AGENTS.md leads out"]
    assert warnings == ["u1"]
    assert len(session.texts()) == said, "the model is not told"


def test_planning_session_in_a_new_folder_reads_its_instructions_for_itself_alone() -> None:
    session = born()
    session.say("go", "u1")
    session.answers("done")
    session.submit(op("override_turn_context", cwd="/new"))
    session.submit(op("plan", plan_request={"goal": "Add login"}), "p1")
    assert session.owes() == (ReadInstructions("/new"),)
    session.happens(c.InstructionsRead("/new", "Be kind."))
    assert session.owes() == (OweRequest(),)
    assert session.texts()[-1] == "<user_instructions>\n\nBe kind.\n\n</user_instructions>"
    assert decode(encode(session.state)) == session.state
    session.answers("no plan", "r2")
    session.say("go on", "u2")
    assert "Be kind." not in "".join(session.texts())
    assert session.owes() == (ReadInstructions("/new"),), "the session's conversation was not told"


def test_compaction_asks_for_no_instructions() -> None:
    session = born()
    session.say("go", "u1")
    session.answers("done")
    session.submit(op("override_turn_context", cwd="/new"))
    session.compact("c1")
    assert session.owes() == (OweRequest(),)


def test_conversation_that_goes_back_before_a_folder_was_told_is_told_again() -> None:
    session = born()
    session.say("go", "u1")
    session.answers("done", "r1")
    session.submit(turn("/new"), "u2")
    session.happens(c.InstructionsRead("/new", "Be kind."))
    session.answers("done", "r2")
    session.say("again", "u3", last_response_id="r1")
    assert session.owes() == (ReadInstructions("/new"),)


def test_session_keeps_only_so_many_folders_in_mind() -> None:
    session = born()
    for number in range(MOST_FOLDERS + 3):
        session.submit(turn(f"/{number}"), f"u{number}")
        session.happens(c.InstructionsRead(f"/{number}"))
        session.answers("done")
    assert session.state.told_folders == tuple(f"/{number}" for number in range(3, MOST_FOLDERS + 3))


@pytest.mark.parametrize("replaced", [False, True])
def test_compaction_keeps_the_instructions_that_hold(replaced: bool) -> None:
    session = born()
    session.submit(turn("/new"), "u1")
    session.happens(c.InstructionsRead("/new", "Be kind."))
    session.answers("done")
    if replaced:
        session.submit(op("configure_session", user_instructions="Be brief."))
    session.compact("c1")
    session.answers("summary")
    kept = [text for text in session.texts() if text.startswith("<user_instructions>")]
    assert [("kind" in text, "brief" in text) for text in kept] == [(not replaced, replaced)]


def a_tree_in(folder: str) -> TreeDriver:
    """A tree whose root was born in `/repo`, and works in `folder`."""
    tree = TreeDriver()
    tree.root.record(Entry(SESSION_META, {"id": tree.root.sid, "cwd": "/repo"}))
    tree.root.submit(turn(folder), "u1")
    if folder != "/repo":
        tree.root.happens(c.InstructionsRead(folder, "Be kind."))
    return tree


def test_agent_in_another_folder_than_its_parents_first_reads_the_instructions_there() -> None:
    tree = a_tree_in("/new")
    child = tree.root.spawns("look")
    tree.deliver(child)
    assert child.state.told_folders == ("/repo",)
    assert child.owes() == (ReadInstructions("/new"),)


def test_fork_knows_the_folders_that_its_conversation_tells_of() -> None:
    tree = a_tree_in("/new")
    child = tree.root.forks("look")
    tree.deliver(child)
    assert child.state.told_folders == ("/repo", "/new")
    assert child.owes() == (OweRequest(),)


def test_agent_in_its_parents_first_folder_has_the_instructions() -> None:
    tree = a_tree_in("/repo")
    child = tree.root.spawns("look")
    tree.deliver(child)
    assert child.state.told_folders == ("/repo",)
    assert child.owes() == (OweRequest(),)
