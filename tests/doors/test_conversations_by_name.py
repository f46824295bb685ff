"""Conversations that version 1 names: by id, by the file of their rollout, by the file they were made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.trees import IndexPlace, Listed
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import v1

FILE = "/home/ann/.codex/sessions/rollout-of-another-program.jsonl"


def session(number: int) -> SessionId:
    return SessionId(f"0199a2b4-0000-7000-8000-{number:012}")


@dataclass
class Fleet:
    """Sessions by their ids, and the lists that the index has of them."""

    heads: dict[SessionId, Any] = field(default_factory=dict)

    def has(self, number: int, **facts: Any) -> SessionId:
        id, shown = session(number), {"namespace": "", "source": "cli", "archived": False, "file": FILE}
        shown |= facts
        meta = orjson.dumps({"model": "m", "imported_from": shown["file"]} if shown["file"] else {})
        labels = SimpleNamespace(namespace=shown["namespace"], source=shown["source"])
        self.heads[id] = SimpleNamespace(
            session=id, created_ms=number, meta=meta, labels=labels, shelved=shown["archived"]
        )
        return id

    async def listed_heads(
        self, wanted: Listed, after: IndexPlace | None, limit: int, damaged: Any
    ) -> list[Any]:
        found = [
            (IndexPlace(head.created_ms, head.session), head)
            for head in sorted(self.heads.values(), key=lambda one: -one.created_ms)
            if head.labels.namespace == wanted.namespace
            and head.labels.source in wanted.sources
            and head.shelved is wanted.shelved
        ]
        return [one for one in found if after is None or one[0].at_ms < after.at_ms][:limit]

    def door(self, namespace: str = "") -> Any:
        async def head(id: SessionId) -> Any:
            found = self.heads.get(id)
            return found if found is not None and found.labels.namespace == namespace else None

        broker = SimpleNamespace(trees=self)
        ports = SimpleNamespace(found=SimpleNamespace(broker=broker))
        return cast(Any, SimpleNamespace(client=SimpleNamespace(head=head, namespace=namespace), ports=ports))


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("source", ["cli", "exec"])
@pytest.mark.parametrize("beside", [0, 1_200])
async def test_conversation_is_found_by_id_by_its_file_and_by_the_file_it_was_made_of_wherever_lists_show_it(
    archived: bool, source: str, beside: int
) -> None:
    fleet = Fleet()
    wanted = fleet.has(1, archived=archived, source=source)
    for number in range(2, beside + 2):
        fleet.has(number, file="", archived=archived, source=source)
    fleet.has(beside + 5, namespace="acme")
    for named in (wanted, f"/home/ann/rollout-2026-01-01T00-00-00-{wanted}.jsonl", FILE):
        assert (await v1._named(fleet.door(), named)).session == wanted


@pytest.mark.parametrize("archived", [True, False])
async def test_newest_of_those_made_of_one_file_is_meant_and_one_that_is_listed_before_one_put_away(
    archived: bool,
) -> None:
    fleet = Fleet()
    fleet.has(1)
    newest = fleet.has(2)
    fleet.has(3, archived=True)
    fleet.has(4, file="/home/ann/another.jsonl")
    assert (await v1._named(fleet.door(), FILE)).session == newest


async def test_client_of_a_namespace_learns_of_no_session_by_a_path_of_the_machine() -> None:
    fleet = Fleet()
    fleet.has(1)
    fleet.has(2, namespace="acme")
    with pytest.raises(RpcError, match="of no session here"):
        await v1._named(fleet.door("acme"), FILE)


@pytest.mark.parametrize("size", [1, 2, 3, 7, None])
@pytest.mark.parametrize("namespace", ["", "acme"])
async def test_list_has_each_conversation_of_the_namespace_once_whichever_door_began_it_and_none_put_away(
    namespace: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def threads(broker: Any, heads: list[Any]) -> list[Any]:
        return heads

    async def path(door: Any, head: Any) -> str:
        return ""

    monkeypatch.setattr(v1, "threads", threads)
    monkeypatch.setattr(v1, "_path", path)
    monkeypatch.setattr(v1, "_summary", lambda thread, path: {"conversationId": thread.session})
    fleet, wanted = Fleet(), list[SessionId]()
    each = list(product(("", "acme"), ("cli", "exec"), (True, False)))
    for number, (space, source, archived) in enumerate([*each, *each], 1):
        made = fleet.has(number, namespace=space, source=source, archived=archived)
        wanted = [made, *wanted] if space == namespace and not archived else wanted
    found, cursor = list[SessionId](), None
    while True:
        asked = v1.ListConversations.model_validate({"pageSize": size, "cursor": cursor})
        page = await v1.list_conversations(fleet.door(namespace), asked)
        assert len(page["items"]) <= (size or v1.USUAL_LISTED)
        found += [one["conversationId"] for one in page["items"]]
        if (cursor := page.get("nextCursor")) is None:
            break
    assert found == wanted
