"""Bearer tokens of an OpenID issuer: signatures, audiences, ends and scopes, and the keys that change."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, cast

import jwt
import pytest

from orchestrator.broker.open_requests import person_of
from orchestrator.gateways import bearer_tokens
from orchestrator.gateways.bearer_tokens import (
    NAMESPACE,
    IssuerTokens,
    PrincipalLookUp,
    TokenWish,
    new_token,
    principal_of,
)
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window.sign_in import Windows
from orchestrator.model.issuer import Issuer
from tests.issuer import TestIssuer, issuer

SUBMIT = {"scope": "openid dendro:submit"}


class Records:
    """Dendro's own tokens, in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def add_token(self, token_id: str, record: bytes) -> bool:
        return self.kept.setdefault(token_id, record) is record

    async def token(self, token_id: str) -> bytes | None:
        return self.kept.get(token_id)

    async def tokens(self) -> dict[str, bytes]:
        return self.kept

    async def remove_tokens(self, token_ids: Sequence[str]) -> int:
        return sum(self.kept.pop(id, None) is not None for id in token_ids)


@pytest.fixture
async def at() -> AsyncIterator[TestIssuer]:
    async with issuer() as at:
        yield at


class Clock:
    """Seconds of the epoch, which a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def look_up(at: TestIssuer, clock: Clock | None = None) -> IssuerTokens:
    clock = clock or Clock()
    own = PrincipalLookUp(Records(), lambda: int(clock() * 1000))
    return IssuerTokens(own, Issuer(at.url, clock), "dendro", clock)


@pytest.mark.parametrize("namespace", ["", "acme"])
@pytest.mark.parametrize("subject", ["ann", "ann@one", "ann@two", "a/b@c", "openid:ann@x"])
def test_each_subject_of_an_issuer_is_a_person_of_their_own(subject: str, namespace: str) -> None:
    """The part behind an `@` belongs to the subject, and is no machine."""
    claims = {"sub": subject, "scope": "dendro:read", **({NAMESPACE: namespace} if namespace else {})}
    name = principal_of(claims, "t").name
    assert person_of(name) == name
    assert name.removeprefix(f"{namespace}/" if namespace else "") == f"openid:{subject}"


async def test_holder_of_an_issuers_token_is_a_principal_with_the_highest_scope_that_it_names(
    at: TestIssuer,
) -> None:
    found = look_up(at)
    ann = await found(at.token(scope="dendro:read dendro:approve"))
    assert ann is not None
    assert (ann.name, ann.namespace, ann.scope) == ("openid:ann", "", Scope.APPROVE)
    assert ann.token in await found.in_force()
    tenant = await found(at.token(scp=["dendro:submit"], dendro_namespace="acme"))
    assert tenant is not None
    assert (tenant.name, tenant.namespace, tenant.scope) == ("acme/openid:ann", "acme", Scope.SUBMIT)
    assert (ann.workspace, tenant.workspace) == (None, None)
    apart = await found(at.token(scope="dendro:submit", dendro_workspace="portable"))
    assert apart is not None
    assert apart.workspace == "portable"


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"exp": None},
        {"nbf": 1 << 40},
        {"sub": None},
        {"sub": "a\nb"},
        {"sub": ""},
        {"sub": "s" * 200},
        {"scope": "openid email"},
        {"scope": "dendro:root"},
        {"scope": {"dendro:admin": True}},
        {"dendro_namespace": "a/b"},
        {"dendro_namespace": 7},
        {"dendro_workspace": "cloud"},
        {"dendro_workspace": ["portable"]},
    ],
)
async def test_token_that_was_not_made_for_this_gateway_opens_nothing(
    at: TestIssuer, claims: dict[str, Any]
) -> None:
    assert await look_up(at)(at.token(**{**SUBMIT, **claims})) is None


async def test_token_that_the_issuer_did_not_sign_opens_nothing(at: TestIssuer) -> None:
    found, good = look_up(at), at.token(**SUBMIT)
    claims = {"iss": at.url, "aud": "dendro", "sub": "ann", "exp": int(time.time()) + 60, **SUBMIT}
    public = str(at._public("k1")["x"])
    forged = [
        jwt.encode(claims, "", "none", headers={"kid": "k1"}),
        jwt.encode(claims, public.ljust(32), "HS256", headers={"kid": "k1"}),
        good[:-4] + "AAAA",
        ".".join([*good.split(".")[:2], ""]),
        "x.y.z",
        "",
        "é",
        "a" * 20_000,
    ]
    other = TestIssuer(at.url)
    other.rotate("k1")
    for text in (*forged, other.token(**SUBMIT)):
        assert await found(text) is None
    assert await found(good) is not None


async def test_key_that_the_issuer_changed_is_fetched_and_made_up_ones_are_not_fetched_for(
    at: TestIssuer,
) -> None:
    clock = Clock()
    found = look_up(at, clock)
    old = at.token(**SUBMIT)
    assert await found(old) is not None
    at.rotate("k2")
    clock.ahead += 11
    assert await found(at.token(**SUBMIT)) is not None
    assert await found(old) is None
    stranger = TestIssuer(at.url)
    stranger.rotate("k3")
    for _ in range(20):
        assert await found(stranger.token(**SUBMIT)) is None
    assert at.asked.count("/keys") == 2


async def test_known_keys_count_while_the_issuer_is_away(at: TestIssuer) -> None:
    clock = Clock()
    found = look_up(at, clock)
    assert await found(at.token(**SUBMIT)) is not None
    at.down = True
    clock.ahead += 4_000
    assert await found(at.token(exp=int(time.time()) + 5_000, **SUBMIT)) is not None
    assert await look_up(at)(at.token(**SUBMIT)) is None


async def test_token_is_in_force_until_its_time_is_over(at: TestIssuer) -> None:
    clock = Clock()
    found = look_up(at, clock)
    ann = await found(at.token(**SUBMIT))
    assert ann is not None
    clock.ahead += 301
    assert await found.in_force() == frozenset()


@pytest.mark.parametrize(
    "lies",
    [
        {"issuer": "https://evil.example"},
        {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": None},
        {"jwks_uri": 5},
    ],
)
async def test_issuer_whose_document_cannot_be_believed_opens_nothing(
    at: TestIssuer, lies: dict[str, Any]
) -> None:
    at.lies = lies
    assert await look_up(at)(at.token(**SUBMIT)) is None


async def test_dendros_own_tokens_count_beside_the_issuers(at: TestIssuer) -> None:
    found = look_up(at)
    text, record = await new_token(found._own._store, TokenWish("ci"), 0, bytes)
    assert await found(text) == Principal("ci", "", Scope.SUBMIT, record.id)
    assert at.asked == []


class Browsers(Records):
    """The same, with the browsers that are signed in."""

    async def add_code(self, digest: str, rights: bytes, kept_ms: int) -> None: ...

    async def code(self, digest: str) -> bytes | None:
        return None

    async def sign_in(
        self, token_id: str, record: bytes, code: tuple[str, bytes] | None, gone: Sequence[str]
    ) -> Literal["OK", "USED", "TAKEN"]:
        return "OK" if await self.add_token(token_id, record) else "TAKEN"


async def test_browser_that_signed_in_with_an_issuers_token_is_signed_in_until_that_one_ends(
    at: TestIssuer,
) -> None:
    clock, ends = Clock(), int(time.time()) + 300
    windows = Windows(Browsers(), look_up(at, clock), lambda: int(clock() * 1000), os.urandom)
    cookie, made = await windows.sign_in_by_token(at.token(exp=ends, **SUBMIT))
    assert made.expires_ms == ends * 1000
    assert await windows.record(cookie, "") == made
    clock.ahead += 301
    assert await windows.record(cookie, "") is None


@pytest.mark.parametrize("most", [1, 3, 100])
async def test_each_of_several_tokens_counts_until_its_own_end_however_many_were_presented(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are over are forgotten; one that counts never is, or its connections would end."""
    assert bearer_tokens.MOST_REMEMBERED == 10_000
    monkeypatch.setattr(bearer_tokens, "MOST_REMEMBERED", most)
    now, ends = [0.0], {"a": 10, "b": 20, "c": 30, "d": 40}

    class Known:
        async def claims(self, text: str, audience: str) -> dict[str, Any]:
            return {"sub": text, "scope": "dendro:submit", "exp": ends[text]}

    own = PrincipalLookUp(Records(), lambda: int(now[0] * 1000))
    found = IssuerTokens(own, cast(Any, Known()), "dendro", lambda: now[0])
    ids = {}
    for text in ("b", "a", "c", "b"):
        holder = await found(text)
        assert holder is not None
        ids[text] = holder.token
    assert await found.in_force() == {ids["a"], ids["b"], ids["c"]}
    for now[0], over in ((9.5, ""), (10.0, "a"), (15.0, "a"), (20.0, "ab")):
        assert await found.in_force() == {id for text, id in ids.items() if text not in over}
    now[0] = 15.0
    last = await found("d")
    assert last is not None
    assert await found.in_force() == {ids["b"], ids["c"], last.token}
    assert [found.until_ms(ids[text]) for text in "bc"] == [20_000, 30_000]
    assert found.until_ms(last.token) == 40_000
    assert found.until_ms(ids["a"]) == (10_000 if most == 100 else None)
    assert found.until_ms("dendro's own") is None
