"""Where a turn ended, found in a log of many pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core.birth import ForkedFrom
from orchestrator.core.entries import Entry
from orchestrator.gateways import fork
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods.changes import _said_since
from orchestrator.gateways.app_server.methods.turns import ThreadFork, _last_ended, _source
from orchestrator.gateways.fork import CannotFork, to_fork
from orchestrator.protocol.events import AgentMessage
from orchestrator.rollouts.full_log import PAGE, end_of_turn
from orchestrator.rollouts.replay import Folded
from orchestrator.rollouts.verify import unchecked_for
from orchestrator.views.thread_log import ThreadLog
from tests.core.driver import Session, assistant, op, user_message
from tests.rollouts.deployments import Kept
from tests.rollouts.test_file_format import SECRET, stored


async def _each(log: Sequence[StoredEntry]) -> AsyncIterator[StoredEntry]:
    for entry in log:
        yield entry


def _ended(response: str) -> Entry:
    return Entry(e.EVENT_MSG, {"type": "token_count", "info": None, "response_id": response}, "t")


@pytest.mark.parametrize(("response", "seq"), [("resp_1", 1), ("resp_2", PAGE + 2), ("no", 0)])
async def test_last_turn_that_ended_is_found_behind_the_first_page_of_a_log(response: str, seq: int) -> None:
    said = [e.event("t", AgentMessage(message="word"))]
    log, _ = stored([_ended("resp_1"), *said * PAGE, _ended("resp_2"), *said])
    found = await end_of_turn(_each(log), SECRET, response)
    assert (found.seq, found.last, found.broken) == (seq, PAGE + 3, None)


def _born() -> Session:
    """A session that is told as much at its birth as one that is stored."""
    session = Session()
    session.record(e.item(user_message("<environment_context>")))
    return session


def _talked() -> Session:
    """Two turns, and a third one that goes on from the first."""
    session = _born()
    for number in (1, 2):
        session.say(f"question {number}", f"u{number}")
        session.answers(f"answer {number}", f"r{number}")
    session.say("instead", last_response_id="r1")
    return session


async def _forked(kept: Kept, session: Session) -> list[str]:
    """The conversation that the fork of a session with such a log begins with."""
    source = await kept.has(*map(e.decode_entry, session.lines[2:]))
    found = (await to_fork(kept, str(source), None)).state.history
    return [part["text"] for item in found for part in item["content"]]


async def test_fork_of_a_source_at_work_has_no_turn_that_was_left_by_going_back(kept: Kept) -> None:
    session = _talked()
    assert (await _forked(kept, session))[-2:] == ["question 1", "answer 1"]
    session.answers("answer 3", "r3")
    session.say("and now")
    assert (await _forked(kept, session))[-2:] == ["instead", "answer 3"]


@pytest.mark.parametrize(("rolled_back", "begins"), [(0, ["question 1"]), (1, ["question 1"]), (2, [])])
async def test_fork_at_a_moment_has_no_turn_that_was_left_by_going_back(
    kept: Kept, rolled_back: int, begins: list[str]
) -> None:
    session = _talked()
    if rolled_back:
        session.answers("answer 3", "r3")
        session.submit(op("thread_rollback", num_turns=rolled_back))
    assert await _forked_at_the_end(kept, session) == begins


async def test_fork_before_a_turn_has_no_turn_that_it_went_back_behind(kept: Kept) -> None:
    session = _talked()
    instead = session.task.id
    session.answers("answer 3", "r3")
    head = await kept.head(await kept.has(*map(e.decode_entry, session.lines[2:])))
    for turn, begins in ((instead, ["question 1"]), ("u2", ["question 1"])):
        asked = ThreadFork.model_validate({"threadId": head.session, "beforeTurnId": turn})
        place = await _source(cast(Any, SimpleNamespace(ports=SimpleNamespace(found=kept))), head, asked)
        assert _said_in(place) == begins
    with pytest.raises(RpcError, match="nothing comes before turn u1"):
        asked = ThreadFork.model_validate({"threadId": head.session, "beforeTurnId": "u1"})
        await _source(cast(Any, SimpleNamespace(ports=SimpleNamespace(found=kept))), head, asked)


async def test_thread_is_taken_back_by_what_its_conversation_has_alone(kept: Kept) -> None:
    session = _talked()
    instead = session.task.id
    session.answers("answer 3", "r3")
    head = await kept.head(await kept.has(*map(e.decode_entry, session.lines[2:])))
    door: Any = SimpleNamespace(ports=SimpleNamespace(found=kept))
    assert [await _said_since(door, head, turn) for turn in (instead, "u1")] == [1, 2]
    with pytest.raises(RpcError, match="turn u2 lies before input that went on"):
        await _said_since(door, head, "u2")
    session.submit(op("thread_rollback", num_turns=2))
    assert await _listed(kept, session) == []


async def test_thread_is_not_taken_back_over_a_turn_that_input_left_in_its_middle(kept: Kept) -> None:
    session, turn = _in_a_middle()
    assert await _listed(kept, session) == ["u1", turn]
    head = await kept.head(await kept.has(*map(e.decode_entry, session.lines[2:])))
    door: Any = SimpleNamespace(ports=SimpleNamespace(found=kept))
    assert await _said_since(door, head, turn) == 1
    with pytest.raises(RpcError, match="turn u1 lies before input that went on"):
        await _said_since(door, head, "u1")
    place = await _last_ended(door, head)
    assert place is not None
    assert (_said_in(place), "answer" in str(list(place.state.history))) == (["question 1"], False)


def _in_a_middle() -> tuple[Session, str]:
    """A turn with a second message, and input that goes on from the turn's first response."""
    session = _born()
    session.say("question 1", "u1")
    session.begin()
    session.calls("c1")
    session.say("question 2", "u2", delivery="steer")
    session.ends("r1")
    session.runs("c1")
    session.finishes("c1")
    session.answers("answer", "r2")
    session.say("instead", last_response_id="r1")
    return session, session.task.id


async def test_lists_have_the_turns_that_the_conversation_has(kept: Kept) -> None:
    session = _talked()
    third = session.task.id
    assert await _listed(kept, session) == ["u1", third]
    session.answers("answer 3", "r3")
    session.say("fourth", "u4", last_response_id="r3")
    session.answers("answer 4", "r4")
    assert await _listed(kept, session) == ["u1", third, "u4"]
    session.submit(op("thread_rollback", num_turns=2))
    assert await _listed(kept, session) == ["u1"]
    session.say("fifth", "u5", last_response_id="r1")
    session.answers("answer 5", "r5")
    assert await _listed(kept, session) == ["u1", "u5"]


async def _listed(kept: Kept, session: Session) -> list[str]:
    """The turns of a session with such a log, from both ends alike."""
    head = await kept.head(await kept.has(*map(e.decode_entry, session.lines[2:])))
    log = await ThreadLog.of(kept, head)
    turns = [stretch.turn async for stretch in log.forward()]
    assert [stretch.turn async for stretch in log.back()] == turns[::-1]
    return turns


async def test_fork_at_a_moment_behind_a_rollback_has_the_interrupted_turn_before_it(kept: Kept) -> None:
    session = _born()
    session.say("question 1")
    session.answers("answer 1", "r1")
    session.say("question 2")
    session.interrupt()
    session.say("question 3")
    session.answers("answer 3", "r3")
    session.submit(op("thread_rollback", num_turns=1))
    assert await _forked_at_the_end(kept, session) == ["question 1", "question 2"]


async def _forked_at_the_end(kept: Kept, session: Session) -> list[str]:
    """The words of people in the fork at the last turn that had ended as of the log's end."""
    head = await kept.head(await kept.has(*map(e.decode_entry, session.lines[2:])))
    place = await _last_ended(cast(Any, SimpleNamespace(ports=SimpleNamespace(found=kept))), head)
    return [] if place is None else _said_in(place)


def _said_in(place: ForkedFrom) -> list[str]:
    said = [part["text"] for item in place.state.history for part in item.get("content", ())]
    return [text for text in said if text.startswith(("question", "instead"))]


async def test_fork_of_a_source_at_work_has_its_last_turn_on_either_side_of_a_compaction(kept: Kept) -> None:
    session = _talked()
    session.answers("answer 3", "r3")
    session.compact()
    session.begin()
    session.item(assistant("what was done"))
    session.ends()
    session.say("on")
    assert (await _forked(kept, session))[-2:] == ["instead", "answer 3"]
    session.answers("answer 4", "r4")
    session.say("further")
    assert (await _forked(kept, session))[-2:] == ["on", "answer 4"]


async def test_source_at_work_whose_turns_were_all_taken_back_is_not_forked(kept: Kept) -> None:
    session = _born()
    session.say("question")
    session.answers("answer", "r1")
    session.submit(op("thread_rollback", num_turns=1))
    session.say("instead")
    with pytest.raises(CannotFork, match="at work on its first turn"):
        await _forked(kept, session)


async def test_source_whose_chain_cannot_be_checked_here_is_not_forked(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key nothing of its log is folded: the fork would begin with nothing."""

    async def folded(found: Any, head: Any, at: int | None) -> Folded:
        return Folded(None, unchecked=unchecked_for(""))

    monkeypatch.setattr(fork, "fold_session", folded)
    with pytest.raises(CannotFork, match="cannot be checked here"):
        await _forked(kept, _talked())
