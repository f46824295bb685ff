"""Lists of open requests: the oldest first over all shards, of one tree or of all, and of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.open_requests import Requests
from orchestrator.broker.records import OpenApproval
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.views.approvals import open_requests_of

SHARDS = 3
ONE, TWO, OTHER, THEIRS, GONE = (SessionId(f"0199a2b4-0000-7000-8000-{n:012}") for n in range(1, 6))
TREES = {ONE: TreeId(ONE), TWO: TreeId(ONE), OTHER: TreeId(OTHER), THEIRS: TreeId(THEIRS)}
ENDS = {session: number for number, session in enumerate(TREES, 7)}
NAMESPACES = {THEIRS: "acme"}
EVENT = {"type": "exec_approval_request", "call_id": "c", "command": ["make"], "cwd": "/w"}


class Connection:
    """A Redis whose shards have these hashes of open requests."""

    def __init__(self, *pages: dict[str, int]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    async def commands(self, rows: Sequence[tuple[str, str]]) -> list[dict[bytes, bytes]]:
        self.asked = [key for _, key in rows]
        found = [self.pages[int(key)] for key in self.asked]
        return [{name.encode(): b"%d:{}" % at for name, at in page.items()} for page in found]


def requests_of(*pages: dict[str, int]) -> tuple[Requests, Connection]:
    made, connection = object.__new__(Requests), Connection(*pages)
    keys = SimpleNamespace(approvals=str, shard_of=lambda session: 0)
    for name, value in (("_connection", connection), ("keys", keys)):
        object.__setattr__(made, name, value)
    return made, connection


async def test_requests_of_several_shards_are_listed_by_the_time_of_their_asking() -> None:
    for first, second, third in permutations((10, 20, 30)):
        made, _ = requests_of(
            {f"{ONE}:b": first, f"{ONE}:a": first + 5}, {f"{TWO}:c": second}, {f"{OTHER}:d:e": third}
        )
        listed = await made.approvals_of(range(SHARDS))
        assert [one.opened_ms for one in listed] == sorted((first, first + 5, second, third))
        assert {one.key for one in listed} == {"a", "b", "c", "d:e"}


class Found:
    """A deployment with open requests, in the order of their asking."""

    def __init__(self) -> None:
        event = orjson.dumps({"event": EVENT})
        order = [THEIRS, TWO, GONE, ONE, OTHER, TWO]
        self.opened = [OpenApproval(session, f"c{at}", event, at) for at, session in enumerate(order)]
        self.shards: list[int] = []
        requests = SimpleNamespace(
            config=SimpleNamespace(shards=SHARDS),
            keys=SimpleNamespace(shard_of=lambda tree: 2),
            approvals_of=self._approvals_of,
        )
        self.broker = SimpleNamespace(requests=requests, logs=SimpleNamespace(heads=self._heads))

    async def _approvals_of(self, shards: Sequence[int]) -> list[OpenApproval]:
        self.shards = list(shards)
        return self.opened

    async def _heads(self, sessions: Sequence[SessionId], damaged: Any) -> list[Any]:
        return [
            SimpleNamespace(
                session=session,
                tree=TREES[session],
                seq=ENDS[session],
                pool=f"pool of {session}",
                labels=SimpleNamespace(namespace=NAMESPACES.get(session, "")),
            )
            for session in sessions
            if session in TREES
        ]

    async def large_texts(self, tree: TreeId, digests: Any) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(
    ("tree", "namespace", "listed", "shards"),
    [
        (None, None, [0, 1, 3, 4, 5], [0, 1, 2]),
        (None, "", [1, 3, 4, 5], [0, 1, 2]),
        (None, "acme", [0], [0, 1, 2]),
        (None, "beta", [], [0, 1, 2]),
        (ONE, None, [1, 3, 5], [2]),
        (ONE, "", [1, 3, 5], [2]),
        (ONE, "acme", [], [2]),
        (OTHER, None, [4], [2]),
        (THEIRS, "", [], [2]),
        (THEIRS, "acme", [0], [2]),
    ],
)
async def test_requests_of_a_tree_or_of_the_fleet_are_those_of_a_namespace_in_their_order(
    tree: SessionId | None, namespace: str | None, listed: list[int], shards: list[int]
) -> None:
    found = Found()
    asked = await open_requests_of(cast(Any, found), None if tree is None else TreeId(tree), namespace)
    assert [(one.session, one.call_id, one.opened_ms) for one in asked] == [
        (found.opened[at].session, f"c{at}", at) for at in listed
    ]
    assert all((one.seq, one.pool) == (ENDS[one.session], f"pool of {one.session}") for one in asked)
    assert found.shards == shards
