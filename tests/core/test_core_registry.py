"""The registry of a tree: how each agent stands, from its record and what was told since."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.commit_parts import Debit, OutboundMessage, TreeEvent, TreePart
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import Agent, TreeFact, fold_tree, projected

STATUSES = ("queued", "running", "ready", "failed", "canceled")


def record(status: str, turn: int = 0, agent_id: int = 1, **fields: Any) -> dict[str, Any]:
    path = f"0/{agent_id}"
    return {"agent_id": agent_id, "session_id": f"s{agent_id}", "agent_path": path, "parent_agent_id": 0} | {
        "status": status,
        "turn": turn,
        **fields,
    }


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(("turn", "read"), [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)])
def test_agent_is_idle_when_the_result_of_its_last_turn_was_read(status: str, turn: int, read: int) -> None:
    idle = status == "ready" and turn > 0 and turn == read
    assert Agent(record(status, turn), read).status == ("idle" if idle else status)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("pending", [(0, 0), (1, 0), (0, 1)])
def test_agent_is_at_work_while_it_is_active_or_may_be_started_by_what_waits_for_it(
    status: str, marked: bool, pending: tuple[int, int]
) -> None:
    agent = Agent(record(status, 1), 1, pending, marked)
    startable = status != "canceled" and not marked and pending != (0, 0)
    assert agent.at_work == (status in ("queued", "running") or startable)


def created(agent_id: int, status: str = "queued") -> TreeFact:
    return TreeFact({"event": "created"}, {"record": record(status, agent_id=agent_id)})


def test_agent_that_was_pruned_stays_off_the_list_whatever_is_told_of_it_later() -> None:
    told = [
        created(1),
        created(2),
        TreeFact({"event": "deleted", "agent_id": 1}),
        TreeFact({"event": "status"}, {"record": record("canceled", agent_id=1)}, {"s1": (1, 0)}),
        TreeFact({"event": "status"}, {"agent_id": 1, "read": 1}),
        TreeFact({"event": "updated"}, {"agent_id": 1, "marked": True}),
        TreeFact({"event": "status"}, {"record": record("running", agent_id=2)}, {"s2": (0, 2)}),
    ]
    view = fold_tree(told)
    assert {id: (agent.status, agent.pending) for id, agent in view.agents.items()} == {
        2: ("running", (0, 2))
    }
    assert view.spawned == 2
    stepwise = fold_tree(())
    for fact in told:
        stepwise = stepwise.after(fact)
    assert stepwise == view


def test_projection_leaves_out_who_is_pruned_and_knows_the_others_by_their_own_fields() -> None:
    text = (
        b'{"agent_id":%d,"session_id":"s","agent_path":"0/%d","parent_agent_id":0,"status":"ready","turn":1}'
    )
    fields = {f"a:{id}": text % (id, id) for id in (12, 1, 2)}
    fields |= {"x:1": b"1", "d:12": b"1", "m:2": b"3", "i:12": b"4", "cancel:2": b"1", "spawned": b"7"}
    view = projected(fields)
    known = {id: (agent.status, agent.pending, agent.marked) for id, agent in view.agents.items()}
    assert known == {2: ("ready", (3, 0), True), 12: ("idle", (0, 4), False)}
    assert (list(view.agents), view.spawned) == ([2, 12], 7)


def test_part_of_two_decisions_in_one_commit_has_all_of_both() -> None:
    def part(name: str, count: int) -> TreePart:
        return TreePart(
            (OutboundMessage(SessionId(name), "message", b"{}", name),),
            (),
            (TreeEvent((name.encode(),), after=count),),
            {"both": name.encode(), name: b"1"},
            (Debit(name, count),),
            (f"cancel:{name}",) if count else (),
            (count, 10 * count),
            (name,),
        )

    first, second, last = part("a", 1), part("b", 2), part("c", 0)
    whole = first.and_then(second)
    assert [each.key for each in whole.outbox] == ["a", "b"]
    assert [each.counter for each in whole.debits] == ["a", "b"]
    assert [each.parts for each in whole.events] == [(b"a",), (b"b",)]
    assert (whole.summary, whole.taken) == ({"both": b"b", "a": b"1", "b": b"1"}, (3, 30))
    assert (whole.secrets_dropped, whole.unless_flagged) == (("a", "b"), ("cancel:b",))
    assert whole.and_then(last).unless_flagged == ("cancel:b",)
    assert first.and_then(second.and_then(last)) == whole.and_then(last)
    assert [each.after for each in second.behind(5).events] == [7]
