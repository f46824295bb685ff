"""Look-ups of a session in its tree: numbers for new agents, open requests and decisions below, logs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from orchestrator.broker.records import OpenApproval, TreeEntry
from orchestrator.core.commit_parts import OpenRequest, tree_event
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id, shard_of
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import EventModel
from orchestrator.runtime import lookups
from orchestrator.runtime.lookups import TreeLookups

TREE = TreeId(new_session_id(1_700_000_000_000, 3, 1))


class Log:
    """The log of a tree, read from its end."""

    def __init__(self, *told: EventModel, digests: Sequence[str] = ()) -> None:
        self.reads: list[int | None] = []
        self.entries = []
        for number, message in enumerate(told, 1):
            digest = digests[number - 1] if digests else ""
            event = tree_event("t", message, (), {}, about={"response": digest} if digest else None)
            (payload,) = event.parts
            self.entries.append(TreeEntry(number, payload, SessionId("s"), 1, b"", (), 0, about=event.about))

    async def read_tree_back(
        self, tree: TreeId, before: int | None = None, count: int = 1_000
    ) -> tuple[TreeEntry, ...]:
        assert tree == TREE
        self.reads.append(before)
        there = [each for each in self.entries if before is None or each.tree_seq < before]
        return tuple(reversed(there[-count:]))


def decided(agent_id: int, call: str, turn: str, who: str, decision: str = "approved") -> EventModel:
    return ev.RequestResolved(
        call_id=CallId(call),
        turn_id=turn,
        decision=decision,
        who=who,
        resolved_at_ms=1,
        agent_id=agent_id,
        session_id=f"s{agent_id}",
        agent_path=f"0/{agent_id}",
    )


def lookups_of(**ports: Any) -> TreeLookups:
    given: Any = SimpleNamespace(**ports)
    facts: Any = SimpleNamespace(tree_id=TREE, rollout_path=None)
    return TreeLookups.of(given, facts)


def over(log: Log) -> TreeLookups:
    return lookups_of(broker=SimpleNamespace(logs=log))


@pytest.mark.parametrize(
    ("id", "agent", "who"),
    [
        ("c1", None, ["ann", "bob", "cas", "dan"]),
        ("c1", 2, ["ann", "dan"]),
        ("c1", 3, ["bob", "cas"]),
        ("c1", 4, []),
        ("c2", None, ["eve"]),
        ("t1", None, ["ann", "cas", "eve"]),
        ("t1", 3, ["cas"]),
        ("t2", 2, ["dan"]),
    ],
)
async def test_decisions_below_are_found_by_call_or_turn_and_agent_the_oldest_first(
    id: str, agent: int | None, who: list[str]
) -> None:
    told = [
        decided(2, "c1", "t1", "ann"),
        decided(3, "c1", "t2", "bob"),
        ev.WarningEvent(message="c1"),
        decided(0, "c1", "t1", "who asked at the root"),
        decided(3, "c1", "t1", "cas", "denied"),
        decided(2, "c1", "t2", "dan"),
        decided(2, "c2", "t1", "eve"),
    ]
    found = await over(Log(*told)).decided_below(id, agent)
    assert [each.who for each in found] == who


async def test_decision_has_the_digest_of_its_response() -> None:
    log = Log(decided(2, "c1", "t1", "ann"), decided(2, "c1", "t2", "bob"), digests=["", "d2"])
    assert [each.digest for each in await over(log).decided_below("c1", 2)] == ["", "d2"]


async def test_decisions_are_looked_for_page_by_page_and_no_further_than_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "_TREE_PAGE", 2)
    monkeypatch.setattr(lookups, "_TREE_PAGES", 3)
    log = Log(*(decided(2, "c1", "t1", f"w{number}") for number in range(9)))
    assert [each.who for each in await over(log).decided_below("c1", 2)] == [f"w{n}" for n in range(3, 9)]
    assert log.reads == [None, 8, 6]
    short = Log(*(decided(2, "c1", "t1", f"w{number}") for number in range(3)))
    assert [each.who for each in await over(short).decided_below("c1", 2)] == ["w0", "w1", "w2"]
    assert short.reads == [None, 2]


async def test_open_requests_below_are_those_of_agents_of_this_very_tree() -> None:
    def asked(number: int, *, tree: str = TREE, agent_id: int = 2, **fields: Any) -> OpenApproval:
        event = {"type": "one that asks", **fields.pop("event", {})}
        request = OpenRequest(event, tree=tree, agent_id=AgentId(agent_id), turn=SubmissionId("t1"), **fields)
        payload = orjson.dumps(request.value())
        return OpenApproval(SessionId(f"s{agent_id}"), f"c{number}", payload, 1)

    secret = {"questions": [{"isSecret": False}, {"isSecret": True}]}
    opened = (
        asked(1, kind="exec", sandboxed=True),
        asked(2, tree="another"),
        asked(3, agent_id=0),
        asked(4, agent_id=3, kind="input", event=secret),
        asked(5, kind="input", event={"questions": [{"isSecret": False}]}),
        *(
            OpenApproval(SessionId("s2"), "c7", payload, 1)
            for payload in (b"", b"[1]", b"{}", b'{"event":1}', b'{"event":{}}')
        ),
        asked(6, kind="exec", sandboxed=False),
    )

    async def approvals() -> tuple[OpenApproval, ...]:
        return opened

    requests = SimpleNamespace(approvals=approvals)
    found = await lookups_of(broker=SimpleNamespace(requests=requests)).pending_below(1)
    told = [(one.call_id, one.agent_id, one.session, one.kind, one.sandboxed, one.secret) for one in found]
    assert told == [
        ("c1", 2, "s2", "exec", True, False),
        ("c4", 3, "s3", "input", None, True),
        ("c5", 2, "s2", "input", None, False),
        ("c6", 2, "s2", "exec", False, False),
    ]
    assert {one.turn for one in found} == {"t1"}


@pytest.mark.parametrize("lane", ["m", "i"])
async def test_cancel_reaches_agents_below_that_work_or_have_something_to_read(lane: str) -> None:
    """A message that an agent at rest has not read may start it again."""
    paths = {1: "0/1", 2: "0/1/2", 3: "0/1/2/3", 4: "0/1/4", 5: "0/5"}
    records = {
        f"a:{number}": orjson.dumps(
            {"agent_id": number, "session_id": f"s{number}", "agent_path": path, "turn": 1, "label": None}
            | {"status": "running" if number in (3, 5) else "idle", "parent_session_id": "s", "summary": None}
        )
        for number, path in paths.items()
    }

    async def agents(tree: TreeId) -> dict[str, bytes]:
        return {**records, f"{lane}:4": b"1"}

    found = await lookups_of(broker=SimpleNamespace(trees=SimpleNamespace(agents=agents))).target_and_below(1)
    assert [target.agent_id for target in found] == [1, 3, 4]


class Numbers:
    """The counter of a tree's agents."""

    def __init__(self) -> None:
        self.next = 1
        self.wanted: list[int] = []

    async def reserve(self, tree: TreeId, count: int) -> range:
        assert tree == TREE
        self.wanted.append(count)
        self.next += count
        return range(self.next - count, self.next)


def drawing(numbers: Numbers) -> TreeLookups:
    drawn = iter(range(1, 100))
    broker = SimpleNamespace(
        trees=numbers, now_ms=lambda: 1_700_000_000_000, config=SimpleNamespace(shards=512)
    )
    return lookups_of(broker=broker, random_bytes=lambda count: next(drawn).to_bytes(count, "big"))


async def test_each_call_gets_a_number_of_its_own_and_the_same_one_when_it_is_assessed_again() -> None:
    numbers = Numbers()
    tree = drawing(numbers)
    first = [await tree.reserve(call, wanted) for call, wanted in (("1:a", 3), ("1:b", 2), ("1:c", 1))]
    assert [number for number, _, _ in first] == [1, 2, 3]
    assert numbers.wanted == [3], "those of one response are taken in one go"
    assert len({session for _, session, _ in first}) == 3
    assert [await tree.reserve(call, 1) for call in ("1:c", "1:a")] == [first[2], first[0]]
    (number, _, _) = await tree.reserve("2:a", 0)
    assert (number, numbers.wanted) == (4, [3, 1])


async def test_agent_lives_in_the_shard_of_its_tree() -> None:
    _, session, path = await drawing(Numbers()).reserve("1:a", 1)
    assert shard_of(session, 512) == shard_of(TREE, 512) == 3
    assert path is None, "its root writes no file"
