"""The place that a number of an event line means, wherever its session stands by now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.follow import BEGINNING, EqCursor, hash8_of
from orchestrator.core.ids import SessionId
from orchestrator.gateways import resume
from orchestrator.gateways.sq_eq import NOT_THERE, cursor_of, number_of

ROOT = SessionId("0199a2b4-0000-7000-8000-000000000001")
AGENT = SessionId("0199a2b4-0000-7000-8000-000000000002")
CHAIN = b"\1" * 32


class Logs:
    """A session of ten entries and ten events, of whose queue some events are kept."""

    def __init__(self, *kept: tuple[int, int]) -> None:
        self.kept = [SimpleNamespace(n=n, seq=seq, hash8=f"of {n}") for n, seq in kept]

    async def read_eq(self, session: SessionId, after: int, count: int) -> list[Any]:
        return [event for event in self.kept if event.n > after][:count]

    async def read_rollout(self, session: SessionId, after: int, count: int) -> list[Any]:
        return [SimpleNamespace(seq=seq, chain=CHAIN) for seq in range(after + 1, 11)][:count]


@pytest.mark.parametrize(
    ("about", "kept", "place", "hash8"),
    [
        ("the event is kept", [(5, 6), (6, 7)], (5, 6), "of 5"),
        ("the last event", [(10, 10)], (10, 10), "of 10"),
        ("an event behind the queue's end", [(10, 10)], (11, 10), NOT_THERE),
        ("an entry behind the log's end", [(10, 10)], (10, 11), NOT_THERE),
        ("the event is gone, its entry is there", [(8, 8)], (5, 6), hash8_of(CHAIN)),
        ("the event is gone, and the next is of a later entry", [(6, 7)], (5, 6), hash8_of(CHAIN)),
        ("the next event is of the same entry: Redis went back", [(6, 6)], (5, 6), NOT_THERE),
        ("the next event is of an earlier entry: Redis went back", [(6, 5)], (5, 6), NOT_THERE),
        ("its number is another entry's by now", [(5, 4), (6, 5)], (5, 6), NOT_THERE),
    ],
)
async def test_number_means_its_place_or_one_from_which_a_gap_is_told(
    about: str, kept: list[tuple[int, int]], place: tuple[int, int], hash8: str
) -> None:
    head = SimpleNamespace(session=ROOT, eq_n=10, seq=10)
    number = number_of(EqCursor(*place, ""))
    found = await cursor_of(cast(Any, Logs(*kept)), cast(Any, head), number)
    assert found == EqCursor(*place, hash8)


async def test_number_of_nothing_is_the_beginning() -> None:
    head = SimpleNamespace(session=ROOT, eq_n=10, seq=10)
    assert await cursor_of(cast(Any, Logs()), cast(Any, head), 0) == BEGINNING


@pytest.mark.parametrize(
    ("agent_id", "session", "asked"), [(0, ROOT, ["root", "agent"]), (1, AGENT, ["agent"])]
)
async def test_client_of_a_root_is_asked_for_its_tree_and_one_of_an_agent_for_that_agent(
    monkeypatch: pytest.MonkeyPatch, agent_id: int, session: SessionId, asked: list[str]
) -> None:
    async def open_of_tree(found: Any, tree: Any) -> list[Any]:
        return [
            SimpleNamespace(session=of, named_request=name) for of, name in ((ROOT, "root"), (AGENT, "agent"))
        ]

    monkeypatch.setattr(resume, "open_requests_of", open_of_tree)
    head = SimpleNamespace(agent_id=agent_id, session=session, tree=ROOT)
    found: list[Any] = await resume.open_requests(cast(Any, None), cast(Any, head))
    assert found == asked
