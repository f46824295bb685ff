"""Senders: a fact that an op led to says who sent it, as the door knew them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core import facts as f
from orchestrator.core.entries import DENDRO, decode_entry
from orchestrator.core.sender import Sender, decoded, sender_of
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import Session, op, text
from tests.core.tree_driver import TreeDriver

ANN = Sender("ann@host", "", "admin", "terminal", "machine", "uid:1000@host")
BEN = Sender("of-ci/ben", "of-ci", "approve", "app-server", "ab12", stated_name="codex")


def facts_of(session: Session, kind: type[Any]) -> list[Any]:
    entries = [decode_entry(line) for line in session.lines]
    made = [f.decode(entry.payload) for entry in entries if entry.type == DENDRO]
    return [fact for fact in made if isinstance(fact, kind)]


def said(words: str, **fields: Any) -> Any:
    return op("user_input", items=[text(words)], **fields)


def test_task_is_of_the_one_who_sent_it() -> None:
    session = Session()
    session.submit(said("go"), "u1", by=BEN)
    (task,) = facts_of(session, f.TaskBegun)
    assert task.by == BEN
    assert orjson.loads(orjson.dumps(f.encode(task)))["by"] == {
        "who": "of-ci/ben", "namespace": "of-ci", "scope": "approve", "via": "app-server", "token": "ab12",
        "stated_name": "codex",
    }  # fmt: skip


def test_session_works_for_the_last_one_who_gave_it_a_task_also_in_tasks_that_nobody_gave() -> None:
    tree = TreeDriver()
    for by, id in ((ANN, "u1"), (BEN, "u2")):
        tree.root.submit(said("go"), id, by=by)
        child = tree.root.spawns("work")
        tree.settle()
        tree.root.answers("so far")
        child.answers("done")
        tree.settle()
        assert tree.root.task.id.startswith("auto-")
        assert tree.root.state.behalf == by
        assert decode(encode(tree.root.state)) == tree.root.state
        tree.root.answers("all of it")


def test_agent_works_for_the_one_who_had_it_made_whoever_speaks_to_it() -> None:
    tree = TreeDriver()
    tree.root.submit(said("go"), "u1", by=ANN)
    child = tree.root.spawns("work")
    tree.settle()
    child.answers("done")
    child.submit(said("and this"), "u2", by=BEN)
    assert child.state.behalf == ANN
    grandchild = child.spawns("deeper")
    assert grandchild.state.behalf == ANN


def test_each_input_that_waits_is_of_the_one_who_sent_it() -> None:
    session = Session()
    session.submit(said("go"), "u1", by=ANN)
    session.submit(said("then", delivery="queue"), "u2", by=ANN)
    session.submit(said("later", delivery="queue"), "u3", by=BEN)
    assert [fact.by for fact in facts_of(session, f.InputQueued)] == [ANN, BEN]
    assert decode(encode(session.state)) == session.state
    session.answers("one")
    session.answers("two")
    assert [fact.by for fact in facts_of(session, f.TaskBegun)] == [ANN, ANN, BEN]


def test_settings_that_waiting_input_brings_are_not_of_the_one_who_stops_what_runs() -> None:
    session = Session()
    session.submit(said("go"), "u1", by=ANN)
    session.submit(said("then", delivery="queue", overrides={"model": "gpt-5-mini"}), "u2", by=BEN)
    session.begin()
    session.submit(op("interrupt"), "stop", by=ANN)
    session.stopped()
    (stopping,) = facts_of(session, f.Stopping)
    assert (stopping.by, stopping.sender) == ("stop", ANN)
    (changed,) = facts_of(session, f.SettingsChanged)
    assert (changed.changes, changed.by) == ({"model": "gpt-5-mini"}, BEN)


def test_agent_works_for_the_one_who_gave_the_task_that_made_it() -> None:
    tree = TreeDriver()
    tree.root.submit(said("go"), "u1", by=ANN)
    first = tree.root.spawns("look")
    tree.settle()
    below = first.spawns("look closer")
    tree.root.submit(said("and now this", delivery="queue"), "u2", by=BEN)
    tree.root.answers("done")
    second = tree.root.spawns("look again")
    assert [agent.state.facts.behalf for agent in (first, below, second)] == [ANN, ANN, BEN]
    assert tree.root.state.behalf == BEN
    (configured,) = facts_of(below, f.Configured)
    assert configured.session.behalf == ANN
    assert configured.by is None


def test_message_of_a_person_to_an_agent_says_whose_it_is_and_the_task_that_it_begins_is_nobodys() -> None:
    tree = TreeDriver()
    tree.root.submit(said("go"), "u1", by=ANN)
    child = tree.root.spawns("look")
    tree.settle()
    child.answers("seen")
    tree.settle()
    tree.root.submit(
        op("message_agent", agent_id=1, text="once more"), "m1", by=BEN, agents=(tree.target(1),)
    )
    tree.settle()
    (mail,) = facts_of(child, f.MailReceived)
    assert sender_of(mail.mail.content["by"]) == BEN
    assert [fact.by for fact in facts_of(child, f.TaskBegun)] == [None, None]
    assert "of-ci" not in str(child.shown())


def test_interrupt_of_a_tree_is_of_its_sender_in_the_logs_below() -> None:
    tree = TreeDriver()
    tree.root.submit(said("go"), "u1", by=ANN)
    child = tree.root.spawns("look")
    tree.settle()
    tree.root.submit(op("interrupt", tree=True), "stop", by=BEN)
    child.begin()
    tree.settle()
    (stopping,) = facts_of(child, f.Stopping)
    assert stopping.sender == BEN


@pytest.mark.parametrize("wire", [None, "ann", 7, [], {}, {"who": 3}, {"name": "ann"}])
def test_what_names_no_sender_is_none(wire: Any) -> None:
    assert sender_of(wire) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"ann"', b'{"who":null}'])
def test_entry_of_a_queue_that_names_no_sender_has_none(data: bytes) -> None:
    assert decoded(data) is None


def test_sender_is_read_as_it_was_written() -> None:
    assert decoded(ANN.encoded()) == ANN
    assert sender_of({**BEN.wire(), "more": 1, "scope": 3}) == Sender(
        "of-ci/ben", "of-ci", "", "app-server", "ab12", stated_name="codex"
    )
