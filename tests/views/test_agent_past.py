"""Pages of a long past: in order, without a gap, and at the cost of what they show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol.agents import AgentOrigin, LifecycleChange, SubagentStatus, SubagentSummary
from orchestrator.protocol.events import RequestResolved, SubagentLifecycle
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import written
from orchestrator.views.agent_past import BadPlace, Place, page_before
from orchestrator.wiring.open_deployment import Opened

BEGAN = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
ID = "01a1f8a1-c5d0-7001-97bc-c80be6a60f79"


def said(seq: int) -> StoredEntry:
    """An entry a second; every third is an event that is shown."""
    type = ("agent_message", "token_count", "turn_diff")[seq % 3]
    at = datetime.fromtimestamp(BEGAN + seq, UTC).isoformat().replace("+00:00", "Z")
    line = {
        "timestamp": at,
        "type": "event_msg",
        "id": "u1",
        "payload": {"type": type, "message": f"own {seq}"},
    }
    if type == "turn_diff":
        line |= {"type": "dendro", "payload": {"kind": "of a newer version"}}
    return StoredEntry(seq, 1, orjson.dumps(line), b"", b"")


def told(tree_seq: int) -> TreeEntry:
    """A life of an agent every ten seconds; each second one is of another agent's child."""
    known = SubagentSummary(
        agent_id=tree_seq,
        parent_agent_id=3 if tree_seq % 2 else 9,
        session_id=ID,
        origin=AgentOrigin.SPAWN,
        status=SubagentStatus.RUNNING,
        started_at_ms=0,
    )
    born = SubagentLifecycle(event=LifecycleChange.CREATED, subagent=known)
    message = {**written(born), "message": f"told {tree_seq}"}
    payload = orjson.dumps({"id": "u1", "msg": message})
    at_ms = int(1000 * (BEGAN + 10 * tree_seq)) + 500
    return TreeEntry(tree_seq, payload, SessionId(ID), 1, b"", (), at_ms)


def _shown(message: Mapping[str, Any]) -> bool:
    return bool(message["type"] != "token_count")


@dataclass
class Logs:
    """Both logs, and how much of them was read."""

    own: int
    lives: int
    read: int = 0
    broker: Any = field(default=None)

    def __post_init__(self) -> None:
        self.broker = SimpleNamespace(logs=SimpleNamespace(read_tree_back=self._back))

    async def _back(self, tree: TreeId, before: int | None, count: int) -> tuple[TreeEntry, ...]:
        last = self.lives if before is None else before - 1
        found = tuple(told(n) for n in range(last, max(0, last - count), -1))
        self.read += len(found)
        return found

    async def log(self, session: SessionId, through: int, after: int) -> AsyncIterator[StoredEntry]:
        for seq in range(after + 1, through + 1):
            self.read += 1
            yield said(seq)

    async def large_texts(self, tree: TreeId, digests: Any) -> dict[str, str]:
        return {}

    def head(self, agent_id: int = 0) -> SessionHead:
        head = SimpleNamespace(session=ID, tree=ID, seq=self.own, agent_id=agent_id, parent=None)
        return cast(SessionHead, head)

    async def page(
        self, limit: int, before: Place | None = None, agent: int = 0
    ) -> tuple[list[str], Place | None]:
        page = await page_before(cast(Opened, self), self.head(agent), limit, _shown, before)
        return [event.msg["message"] for event in page.events], page.before


async def test_pages_hold_everything_once_and_in_order() -> None:
    longer, _ = await Logs(1_000, 300).page(0)
    assert [line for line in longer if line.startswith("told")] == [f"told {n}" for n in range(1, 301)]
    whole, nothing_before = await Logs(1_000, 100).page(0)
    assert nothing_before is None
    assert len(whole) == 433
    assert whole[-3:] == ["own 996", "own 999", "told 100"]
    logs = Logs(1_000, 100)
    pages, place = await logs.page(7)
    while place is not None:
        page, place = await logs.page(7, Place.of(str(place)))
        pages = page + pages
    assert pages == whole


async def test_page_at_the_end_of_a_long_log_costs_a_page() -> None:
    logs = Logs(200_000, 50_000)
    page, place = await logs.page(20)
    assert len(page) == 20
    assert logs.read < 600
    logs.read = 0
    assert place is not None
    await logs.page(20, place)
    assert logs.read < 600


async def test_agent_is_told_of_its_own_children_alone_and_not_by_reading_all_of_the_tree() -> None:
    logs = Logs(300, 50_000)
    whole, _ = await logs.page(0, agent=3)
    assert "told 3" in whole
    assert "told 4" not in whole
    logs = Logs(100_000, 10_000)
    page, _ = await logs.page(10, agent=77)
    assert all(line.startswith("own") for line in page)
    assert logs.read < 1_000


async def test_past_of_an_agent_and_of_the_root_alone_say_who_decided_what_the_agent_had_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "told", _decided)
    for agent, lines in ((0, ["told 1", "told 2", "told 3"]), (3, ["told 1", "told 3"]), (9, ["told 2"])):
        assert await Logs(0, 3).page(0, agent=agent) == (lines, None)


async def test_decision_stands_before_what_it_let_begin_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "told", lambda tree_seq: _decided(tree_seq, at_s=3))
    assert await Logs(6, 1).page(0, agent=3) == (["told 1", "own 3", "own 6"], None)


def _decided(tree_seq: int, at_s: int = 0) -> TreeEntry:
    """A decision on a request of one of two agents, which Redis was told of a moment later."""
    resolved = RequestResolved(
        call_id=CallId(f"c{tree_seq}"),
        turn_id="u1",
        decision="approved",
        who="ann",
        resolved_at_ms=int(1000 * (BEGAN + at_s)),
        agent_id=3 if tree_seq % 2 else 9,
    )
    message = {**written(resolved), "message": f"told {tree_seq}"}
    payload = orjson.dumps({"id": "u1", "msg": message})
    return TreeEntry(tree_seq, payload, SessionId(ID), 1, b"", (), int(1000 * (BEGAN + at_s)) + 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "a.b",
        "1.2.3",
        "-1.2",
        "1.",
        ".1",
        "1.²",
        "².1",
        "1.٣",
        " 1.2",
        "1.2\n",
        "9" * 5_000 + ".1",
        "1." + "9" * 16,
    ],
)
def test_text_that_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadPlace):
        Place.of(text)
