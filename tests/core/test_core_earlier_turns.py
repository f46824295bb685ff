"""Turns before a compaction: input goes on from them once the log was read back to them."""

from __future__ import annotations

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.birth import opened
from orchestrator.core.compaction import compacted_history
from orchestrator.core.context import initial_context
from orchestrator.core.entries import COMPACTED, SESSION_META, Entry, decode_entry, item
from orchestrator.core.evolve import evolve, fold
from orchestrator.core.frozen import replace
from orchestrator.core.history import INHERITED, Item, Log
from orchestrator.core.outstanding import LookUp, OweRequest, ReadInstructions
from orchestrator.core.settings import Rules, TurnSettings
from orchestrator.core.snapshot import decode, encode
from orchestrator.core.state import MOST_EARLIER, State
from tests.core.driver import SETTINGS, Seen, Session, assistant, op
from tests.core.tree_driver import Agent, TreeDriver, a_family


def talked(turns: int = 2, **fields: object) -> Session:
    """A session with its initial context and answered turns `r1`, `r2`, …"""
    session = Session(**fields)  # type: ignore[arg-type]
    for opening in initial_context(TurnSettings.of(SETTINGS), "be brief", "bash"):
        session.record(item(opening))
    for number in range(1, turns + 1):
        session.say(f"question {number}", f"u{number}")
        session.answers(f"answer {number}", f"r{number}")
    return session


def summed_up(session: Session, words: str = "what was done") -> None:
    session.compact()
    session.begin()
    session.item(assistant(words))
    session.ends()


def past(session: Session, response_id: str) -> State:
    """The state when the turn ended, as a worker folds it from the log."""
    lines = session.lines
    last = max(at for at, line in enumerate(lines, 1) if _ends(line, response_id))
    return fold(State(), map(decode_entry, lines[:last]), 1)


def _ends(line: bytes, response_id: str) -> bool:
    payload = orjson.loads(line)["payload"]
    return bool(payload.get("type") == "token_count" and payload.get("response_id") == response_id)


def goes_back(session: Session, response_id: str, words: str = "instead", id: str = "back") -> Seen:
    """Says something to the conversation at the end of a turn, which is then found in the log."""
    assert session.say(words, id, last_response_id=response_id).events == []
    assert session.owes() == (LookUp(f"|{id}"),)
    return session.happens(c.LookedUp(f"|{id}", past=past(session, response_id)))


def shown(session: Session) -> list[Item]:
    """The conversation as a model reads it."""
    return list(opened(session.shown(), session.text_of))


def said(session: Session) -> list[str]:
    messages = [one for one in shown(session) if one["type"] == "message"]
    return ["".join(part["text"] for part in one["content"]) for one in messages]


def test_person_goes_on_from_a_turn_that_a_compaction_summed_up() -> None:
    session = talked()
    then = shown(session)[:-2]
    summed_up(session)
    seen = goes_back(session, "r1")
    assert seen.types == ["task_started", "user_message"]
    assert shown(session)[:-1] == then
    assert said(session)[-1] == "instead"
    assert session.replayed() == session.state
    session.answers("done", "r3")
    assert session.status == "idle"


def test_person_who_goes_back_has_the_model_told_of_settings_that_changed_while_that_turn_ran() -> None:
    session = talked(1)
    session.say("question 2", "u2")
    session.begin()
    session.submit(op("override_turn_context", approval_policy="never"), "over")
    session.answers_now("answer 2", "r2")
    summed_up(session)
    goes_back(session, "r2")
    assert "<approval_policy>never</approval_policy>" in said(session)[-2]
    session.answers("done", "r3")


def test_conversation_that_was_put_back_is_compacted_with_what_people_said_in_it() -> None:
    session = talked()
    summed_up(session)
    goes_back(session, "r1")
    session.answers("done", "r3")
    assert not session.state.kept_user_texts
    summed_up(session, "more was done")
    assert session.state.kept_user_texts == ("question 1", "instead")
    assert "be brief" in said(session)[0]


def test_person_goes_back_over_two_compactions_and_on_from_there() -> None:
    session = talked()
    summed_up(session)
    session.say("question 3", "u3")
    session.answers("answer 3", "r3")
    summed_up(session)
    assert list(session.state.earlier_turns) == ["r1", "r2", "r3"]
    goes_back(session, "r3")
    assert "what was done" in "".join(said(session)), "the first summary is a part of that conversation"
    assert said(session)[-2:] == ["answer 3", "instead"]


def test_turns_that_were_left_are_not_gone_back_to() -> None:
    session = talked()
    summed_up(session)
    session.say("question since", "u3")
    session.answers("answer since", "since")
    goes_back(session, "r1")
    assert session.state.last_response is None, "the provider's copy goes on from what was left"
    session.answers("done", "r3")
    assert list(session.state.earlier_turns) == ["r1"]
    for left in ("r2", "since"):
        assert "error" in session.say("no", last_response_id=left).types
    goes_back(session, "r1", "once more", "again")
    assert said(session)[-2:] == ["answer 1", "once more"]


def test_conversation_that_was_put_back_may_be_compacted_at_once_and_one_that_just_was_may_not() -> None:
    session = talked()
    summed_up(session)
    session.rules = Rules(auto_compact_limit=100)
    goes_back(session, "r1")
    purposes = []
    for _ in range(2):
        session.begin()
        assert session.task.request is not None
        purposes.append(session.task.request.purpose)
        session.item(assistant("sum"))
        session.ends()
    assert purposes == ["compact", "turn"]


def an_agent() -> tuple[TreeDriver, Agent]:
    """A tree whose agent has ended turn `r1`, and summed it up."""
    tree, (child,) = a_family()
    child.answers("one", "r1")
    summed_up(child)
    tree.settle()
    return tree, child


def test_part_of_an_agent_that_went_back_stands_behind_the_next_compaction() -> None:
    tree, child = an_agent()
    for _ in range(2):
        goes_back(child, "r1")
        child.answers("two")
        tree.settle()
        summed_up(child)
        tree.settle()
        assert [text for text in said(child) if text.startswith("You are agent")] == ["You are agent 1."]


@pytest.mark.parametrize("error", ["", "the log is damaged"])
@pytest.mark.parametrize("ends", ["closed before", "closed meanwhile", "pruned before", "pruned meanwhile"])
def test_input_to_an_earlier_turn_of_an_agent_that_ends_is_answered_once(ends: str, error: str) -> None:
    tree, child = an_agent()
    how, when = ends.split()
    end = tree.root.shutdown if how == "closed" else lambda: tree.root.prunes(child.id)
    if when == "before":
        end()
    child.say("instead", "back", last_response_id="r1")
    if when == "meanwhile":
        end()
    found = c.LookedUp("|back", error=error) if error else c.LookedUp("|back", past=past(child, "r1"))
    child.happens(found)
    tree.settle()
    child.happens(found)
    told = [message["message"] for id, message in child.events if id == "back"]
    assert told == ["this agent was cancelled or pruned: it takes no more input"]
    assert (child.state.task, child.state.queue, child.owes()) == (None, (), ())
    tree.check()


def test_mail_waits_behind_input_whose_earlier_turn_is_looked_for_in_an_agent_that_was_closed() -> None:
    tree, child = an_agent()
    child.shutdown()
    child.say("instead", "back", last_response_id="r1")
    tree.root.sends(child.id, "go on")
    tree.settle()
    assert child.state.task is None
    child.happens(c.LookedUp("|back", past=past(child, "r1")))
    assert child.task.id == "back"
    tree.check()


def test_turn_since_the_compaction_is_gone_back_to_at_once() -> None:
    session = talked()
    summed_up(session)
    session.say("question 3", "u3")
    session.answers("answer 3", "r3")
    session.say("question 4", "u4")
    session.answers("answer 4", "r4")
    assert session.say("instead", last_response_id="r3").types == ["task_started", "user_message"]
    assert list(session.state.earlier_turns) == ["r1", "r2"]


def test_unknown_turn_is_an_error_that_changes_nothing() -> None:
    session = talked()
    summed_up(session)
    session.say("on", "u3")
    before = session.digest
    assert "no turn of this session" in session.say("no", last_response_id="nope").one("error")["message"]
    assert session.digest == before


def test_input_to_an_earlier_turn_replaces_the_running_task_and_keeps_its_place() -> None:
    session = talked()
    summed_up(session)
    session.say("question 3", "u3")
    session.begin()
    session.say("instead", "back", last_response_id="r1")
    assert session.say("behind it", "u4").events == []
    assert session.stopped().types == ["turn_aborted"]
    assert session.owes() == (LookUp("|back"),)
    seen = session.happens(c.LookedUp("|back", past=past(session, "r1")))
    assert seen.types[:2] == ["task_started", "user_message"]
    session.stopped()
    assert said(session)[-3:] == ["answer 1", "instead", "behind it"]


def test_input_to_a_turn_that_input_before_it_left_is_an_error_and_says_nothing() -> None:
    session = talked(3)
    session.say("question 4", "u4")
    session.begin()
    session.say("back to the first", "b1", last_response_id="r1")
    session.say("on from the third", "b3", last_response_id="r3")
    session.stopped()
    seen = session.stopped()
    assert seen.types[-3:] == ["task_started", "error", "task_complete"]
    assert "turn r3 was left" in seen.one("error")["message"]
    assert said(session)[-2:] == ["answer 1", "back to the first"]
    assert session.owes() == ()


@pytest.mark.parametrize("delivery", ["queue", "replace"])
def test_each_of_many_inputs_to_a_turn_that_was_left_is_answered_one_task_a_decision(delivery: str) -> None:
    session = talked(3)
    session.say("question 4", "u4")
    session.begin()
    session.say("back to the first", "b1", last_response_id="r1", delivery=delivery)
    ids = [f"b{number}" for number in range(2, 100)]
    for id in ids:
        session.say("on from the third", id, last_response_id="r3", delivery=delivery)
    before = len(session.seen)
    if delivery == "queue":
        session.answers_now("answer 4", "r4")
        session.begin()
        session.answers_now("answer 5", "r5")
    while session.state.task is not None:
        session.stopped()
    for seen in session.seen[before:]:
        assert len(seen.decision.entries) <= 16
        assert seen.types.count("task_started") <= 1
    told = [(id, message["message"]) for id, message in session.events if message["type"] == "error"]
    assert [id for id, _ in told] == ids
    assert all("turn r3 was left" in message for _, message in told)
    assert session.replayed() == session.state
    assert "on from the third" not in said(session)


def test_log_that_cannot_be_read_fails_the_task_and_leaves_the_conversation() -> None:
    session = talked()
    summed_up(session)
    before = said(session)
    session.say("instead", "back", last_response_id="r1")
    seen = session.happens(c.LookedUp("|back", error="the archive is away"))
    assert seen.types == ["task_started", "error", "task_complete"]
    assert {id for id, _ in seen.events} == {"back"}
    assert "the archive is away" in seen.one("error")["message"]
    assert said(session) == before
    assert session.owes() == ()


def test_nothing_else_begins_while_a_turn_is_looked_for() -> None:
    session = talked()
    summed_up(session)
    session.say("instead", "back", last_response_id="r1")
    session.say("behind it", "u4")
    assert session.submit(op("thread_rollback", num_turns=1)).types == ["error"]
    assert session.compact("k").events == []
    assert session.owes() == (LookUp("|back"),)
    assert session.state.task is None


def test_shutdown_drops_the_search_and_later_input_takes_it_up_again() -> None:
    session = talked()
    summed_up(session)
    session.say("instead", "back", last_response_id="r1")
    assert session.shutdown().types == ["shutdown_complete"]
    assert session.owes() == ()
    assert session.happens(c.LookedUp("|back", past=past(session, "r1"))).events == []
    session.say("hello again", "u5")
    assert session.owes() == (LookUp("|back"),)
    session.happens(c.LookedUp("|back", past=past(session, "r1")))
    session.stopped()
    assert said(session)[-2:] == ["instead", "hello again"]


def test_model_is_told_which_settings_differ_from_those_of_then() -> None:
    session = talked()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    summed_up(session)
    goes_back(session, "r1")
    assert "<cwd>/elsewhere</cwd>" in said(session)[-2]
    assert session.owes() == (ReadInstructions("/elsewhere"),)


FOLDERS = ("/repo", "/one", "/two", "/three")


def comes_to(session: Session, folder: str) -> None:
    """The session's next tasks are in a folder."""
    session.submit(op("override_turn_context", cwd=folder))


def is_told(session: Session, folder: str) -> None:
    """The task's instructions are owed, and read."""
    assert session.owes() == (ReadInstructions(folder),)
    session.happens(c.InstructionsRead(folder, f"As in {folder}."))


def told_of(session: Session, folder: str) -> int:
    """How often the conversation has a folder's instructions."""
    return "".join(said(session)).count(f"As in {folder}.")


def went_through(folders: tuple[str, ...], compactions: int) -> Session:
    """A turn in each folder, `r0`, `r1`, …, the first one where the session was born; then compactions."""
    session = Session()
    session.record(Entry(SESSION_META, {"id": "s", "cwd": folders[0]}))
    for number, folder in enumerate(folders):
        comes_to(session, folder)
        session.say(f"question {number}", f"u{number}")
        if number:
            is_told(session, folder)
        session.answers(f"answer {number}", f"r{number}")
    for number in range(compactions):
        summed_up(session)
        session.say("since then", f"since{number}")
        session.answers("answer", f"since{number}")
    return session


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("compactions", [1, 2])
@pytest.mark.parametrize("next_folder", FOLDERS)
@pytest.mark.parametrize("turn", range(len(FOLDERS)))
def test_who_goes_back_is_told_of_each_folder_that_only_the_turns_that_were_left_had_come_to(
    turn: int, next_folder: str, compactions: int, stored: bool
) -> None:
    session = went_through(FOLDERS, compactions)
    comes_to(session, next_folder)
    goes_back(session, f"r{turn}")
    if stored:
        assert session.replayed() == decode(encode(session.state)) == session.state
    known = FOLDERS[: turn + 1]
    if next_folder in known:
        assert session.owes() == (OweRequest(),)
    else:
        is_told(session, next_folder)
    session.answers("done", "back")
    assert told_of(session, next_folder) == (0 if next_folder == FOLDERS[0] else 1)
    for number, folder in enumerate(folder for folder in FOLDERS if folder not in (*known, next_folder)):
        comes_to(session, folder)
        session.say("and there", f"there{number}")
        is_told(session, folder)
        session.answers("done", f"there{number}")
    for number, folder in enumerate(FOLDERS):
        comes_to(session, folder)
        session.say("once more", f"more{number}")
        assert session.owes() == (OweRequest(),), "each folder is told of once"
        session.answers("done", f"more{number}")


@pytest.mark.parametrize("text", ["As in /one.", None])
def test_who_goes_back_twice_is_told_of_a_folder_by_the_conversation_that_it_goes_on_with(
    text: str | None,
) -> None:
    session = went_through(("/repo",), 0)
    comes_to(session, "/one")
    session.say("question 1", "u1")
    session.happens(c.InstructionsRead("/one", text))
    session.answers("answer 1", "r1")
    summed_up(session)
    goes_back(session, "r0", id="first")
    is_told(session, "/one")
    session.answers("done", "r2")
    summed_up(session)
    goes_back(session, "r0", id="second")
    assert session.owes() == (ReadInstructions("/one"),)
    session.happens(c.InstructionsRead("/one", text))
    session.answers("done", "r3")
    summed_up(session)
    goes_back(session, "r3", id="third")
    assert session.owes() == (OweRequest(),)
    assert told_of(session, "/one") == (1 if text else 0)


def test_state_with_earlier_turns_is_the_same_from_a_snapshot() -> None:
    session = talked()
    summed_up(session)
    goes_back(session, "r1")
    assert decode(encode(session.state)) == session.state
    (inherited,) = [one for one in session.state.history if one["type"] == INHERITED]
    assert list(inherited["user_texts"]) == ["question 1"]


def test_session_knows_only_so_many_earlier_turns() -> None:
    session = talked(0)
    session.say("go")
    marks = Log.of((f"r{number}", 1) for number in range(MOST_EARLIER + 5))
    state = replace(session.state, bookmarks=marks)
    _, items = compacted_history(state, "s")
    payload = {"message": "s", "replacement_history": items, "turns_kept": True}
    after = evolve(state, Entry(COMPACTED, payload), 1)
    assert len(after.earlier_turns) == MOST_EARLIER
    assert after.earlier_turns[-1] == f"r{MOST_EARLIER + 4}"
