"""Tokens: made once, proved by their secret, over in time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

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
    damaged,
    in_force,
    listed,
    new_token,
    record_of,
    revoke,
)
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.window.sign_in import Windows


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


class Signing:
    """The same, for browsers."""

    def __init__(self, kept: Kept) -> None:
        self.token, self.tokens, self._kept = kept.token, kept.tokens, kept

    async def sign_in(self, token_id: str, record: bytes, code: None, gone: Sequence[str]) -> str:
        await self._kept.remove_tokens(gone)
        return "OK" if await self._kept.add_token(token_id, record) else "TAKEN"


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


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "owner"}, {"scope": None}, {"name": None}, {"sha256": "ä"}, {"sha256": 7},
        {"namespace": []}, {"created_ms": "5"}, {"expires_ms": "6"}, {"expires_ms": True},
        {"workspace": "cloud"}, {"window": [None, ""]}, {"window": 5}, {"window": ["", "", ""]},
        {"subject": 1}, {},
    ],
    ids=str,
)  # fmt: skip
async def test_token_whose_record_is_damaged_or_of_a_later_version_lets_nobody_in_and_no_other_one_ends(
    change: dict[str, Any],
) -> None:
    store, windows_key = Kept(), "k" * 22
    whole, _ = await new_token(store, TokenWish("ann"), 5, os.urandom)
    text, record = await new_token(store, TokenWish("ben", scope=Scope.ADMIN), 5, os.urandom)
    look_up = PrincipalLookUp(store, lambda: 6)
    windows = Windows(cast(Any, Signing(store)), look_up, lambda: 6, os.urandom)
    cookie, browser = await windows.sign_in_by_token(text, windows_key)
    kept = {**orjson.loads(store.records[record.id]), **change}
    store.records[record.id] = orjson.dumps(kept) if change else b"\xff"
    assert await look_up(text) is None
    assert await windows.record(cookie, windows_key) is None
    found = await look_up(whole)
    assert found is not None
    assert await look_up.in_force() == {found.token}
    assert [one.id for one in await listed(store)] == [found.token, browser.id]
    assert await damaged(store) == [record.id]
    # Browsers sign in still, and it can be taken away.
    assert await windows.sign_in_by_token(whole, windows_key)
    assert await revoke(store, record.id)
    assert await damaged(store) == []


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
