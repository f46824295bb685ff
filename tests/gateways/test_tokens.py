"""Tokens: made once, proved by their secret, over in time."""

from __future__ import annotations

import os
from collections.abc import Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateways.bearer_tokens import (
    BadToken,
    OfWindow,
    PrincipalLookUp,
    TokenRecord,
    TokenWish,
    in_force,
    listed,
    new_token,
    record_of,
)
from orchestrator.gateways.principals import NotPermitted, Principal, Scope


class Kept:
    """Records of tokens in memory."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}

    async def add_token(self, token_id: str, record: bytes) -> bool:
        return self.records.setdefault(token_id, record) is record

    async def token(self, token_id: str) -> bytes | None:
        return self.records.get(token_id)

    async def tokens(self) -> dict[str, bytes]:
        return dict(self.records)

    async def remove_tokens(self, token_ids: Sequence[str]) -> int:
        return sum(self.records.pop(id, None) is not None for id in token_ids)


async def test_holder_of_a_token_is_known_by_name_namespace_and_scope() -> None:
    store = Kept()
    text, record = await new_token(store, TokenWish("ci", "acme", Scope.APPROVE), 5, os.urandom)
    assert await PrincipalLookUp(store, lambda: 6)(text) == Principal(
        "acme/ci", "acme", Scope.APPROVE, record.id
    )


async def test_token_tells_the_kind_of_folder_and_an_older_one_leaves_it_to_the_gateway() -> None:
    store, look_up = Kept(), PrincipalLookUp
    text, record = await new_token(store, TokenWish("ci", workspace="portable"), 5, os.urandom)
    holder = await look_up(store, lambda: 6)(text)
    assert holder is not None
    assert holder.workspace == "portable"
    older = {
        name: value for name, value in orjson.loads(store.records[record.id]).items() if name != "workspace"
    }
    store.records[record.id] = orjson.dumps(older)
    holder = await look_up(store, lambda: 6)(text)
    assert holder is not None
    assert holder.workspace is None


async def test_redis_learns_no_token() -> None:
    store = Kept()
    text, record = await new_token(store, TokenWish("ci"), 5, os.urandom)
    secret = text.split("_", 2)[2]
    assert len(secret) >= 43
    assert secret.encode() not in store.records[record.id]


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"), lambda t: t + "A", str.upper]
)
async def test_token_with_another_secret_is_unknown(change: object) -> None:
    store = Kept()
    text, _ = await new_token(store, TokenWish("ci"), 5, os.urandom)
    assert callable(change)
    assert await record_of(store, change(text)) is None


async def test_token_of_one_id_and_anothers_secret_is_unknown() -> None:
    store = Kept()
    one, _ = await new_token(store, TokenWish("one"), 5, os.urandom)
    two, _ = await new_token(store, TokenWish("two"), 5, os.urandom)
    mixed = "_".join((*one.split("_", 2)[:2], two.split("_", 2)[2]))
    assert await record_of(store, mixed) is None


async def test_token_counts_until_its_time_is_over_or_it_is_revoked() -> None:
    store, now = Kept(), [5]
    look_up = PrincipalLookUp(store, lambda: now[0])
    text, record = await new_token(store, TokenWish("ci", expires_ms=10), 5, os.urandom)
    other, kept = await new_token(store, TokenWish("kept"), 6, os.urandom)
    assert await look_up.in_force() == {record.id, kept.id}
    now[0] = 10
    assert await look_up(text) is None
    assert await look_up.in_force() == {kept.id}
    await store.remove_tokens((kept.id,))
    assert await look_up(other) is None
    assert [each.name for each in await listed(store)] == ["ci"]


async def test_two_tokens_never_share_an_id() -> None:
    store, drawn = Kept(), [b"\1" * 32, b"\2" * 5, b"\3" * 32, b"\2" * 5, b"\4" * 5]
    for name in ("one", "two"):
        await new_token(store, TokenWish(name), 5, lambda count: drawn.pop(0))
    assert sorted(each.name for each in await listed(store)) == ["one", "two"]


@pytest.mark.parametrize("name", ["", "a b", "root@host", "x" * 65, "-x", "acme/anna", "a\nb"])
def test_name_that_could_be_somebody_elses_is_refused(name: str) -> None:
    with pytest.raises(BadToken):
        TokenWish(name)
    with pytest.raises(BadToken):
        TokenWish("ci", name or " ")


@given(st.text(max_size=300))
async def test_any_text_is_looked_up_without_a_fault(text: str) -> None:
    assert await record_of(Kept(), text) is None


def test_scopes_hold_those_before_them_and_a_refusal_names_the_one_that_is_missing() -> None:
    reader = Principal("r", scope=Scope.READ)
    assert [scope.word for scope in Scope if Principal("a", scope=Scope.APPROVE).may(scope)] == [
        "read",
        "submit",
        "approve",
    ]
    with pytest.raises(NotPermitted, match="needs the scope submit, and r has read"):
        reader.require(Scope.SUBMIT, "turn/start")


def test_token_of_a_browser_counts_as_long_as_the_one_that_it_came_from() -> None:
    def token(id: str, until_ms: int | None = None, *, of: str | None = None) -> TokenRecord:
        window = None if of is None else OfWindow(of)
        return TokenRecord(id, "", "ann", "", Scope.READ, 1, until_ms, window=window)

    records = [
        token("whole"), token("over", 10), token("till later", 11),
        token("by code", of=""), token("by code, over", 10, of=""),
        token("of whole", of="whole"), token("of over", of="over"), token("of later", 12, of="till later"),
        token("of none", of="revoked"), token("of whole, over", 10, of="whole"),
        token("of a browser", of="by code"),
    ]  # fmt: skip
    counting = {record.id for record in in_force(records, 10)}
    assert counting == {"whole", "till later", "by code", "of whole", "of later"}
