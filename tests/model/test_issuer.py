"""An issuer as a process uses it: which of its keys count, and when it is asked for them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from orchestrator.config_keys import Secret
from orchestrator.model import issuer as issuer_module
from orchestrator.model.credentials import Tokens
from orchestrator.model.issuer import (
    DOCUMENT,
    FRESH_S,
    KEYS_APART_S,
    BadIssuerToken,
    Issuer,
    IssuerError,
    tokens_of,
)

URL = "https://issuer.example"
PRIVATE = {kid: ec.generate_private_key(ec.SECP256R1()) for kid in ("k1", "k2", "k3")}


def public(kid: str, **more: Any) -> dict[str, Any]:
    return {**json.loads(ECAlgorithm.to_jwk(PRIVATE[kid].public_key())), "kid": kid, "use": "sig", **more}


def token(kid: str = "k1", **claims: Any) -> str:
    usual = {"iss": URL, "aud": "dendro", "sub": "ann", "exp": int(time.time()) + 100_000}
    return jwt.encode(usual | claims, PRIVATE[kid], "ES256", headers={"kid": kid})


class Answers:
    """Stands where the issuer is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[Any] = [public("k1")]
        self.document = {"issuer": URL, "jwks_uri": f"{URL}/keys", "token_endpoint": f"{URL}/token"}
        self.away = False
        self.asked: list[str] = []
        self.now = 0.0
        monkeypatch.setattr(issuer_module, "_fetched", self.fetched)
        self.issuer = Issuer(URL, lambda: self.now)

    async def fetched(self, url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        self.asked.append(url.removeprefix(URL))
        if self.away:
            raise IssuerError("away")
        return self.document if url.endswith(DOCUMENT) else {"keys": self.keys}

    async def takes(self, text: str) -> bool:
        try:
            claims = await self.issuer.claims(text, "dendro")
        except BadIssuerToken:
            return False
        return bool(claims["sub"] == "ann")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


OTHERS: list[Any] = [
    {"kty": "oct", "kid": "k3", "k": "c2VjcmV0"},
    public("k3", use="enc"),
    {"kty": "of a later version", "kid": "k3"},
    {"kty": "EC", "crv": "of a later version", "kid": "k3", "x": "AA", "y": "AA"},
    {"kty": "EC", "crv": "P-256", "kid": "k3"},
    {"kty": "RSA", "kid": "k3", "n": 5, "e": ["AQAB"]},
    {"kty": ["EC"], "kid": "k3"},
    "no key",
    {},
]


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_key_that_signs_nothing_counts_for_nothing_and_spoils_no_other(
    at: Answers, other: Any, place: int
) -> None:
    at.keys = [public("k1"), public("k2")]
    at.keys.insert(place, other)
    assert [await at.takes(token(kid)) for kid in ("k1", "k2", "k3")] == [True, True, False]


@pytest.mark.parametrize("since_s", [0.0, KEYS_APART_S, KEYS_APART_S + 1])
async def test_new_key_is_fetched_once_the_last_fetch_is_long_enough_ago(at: Answers, since_s: float) -> None:
    assert await at.takes(token("k1"))
    at.keys = [public("k2")]
    at.now += since_s
    late = since_s > KEYS_APART_S
    assert await at.takes(token("k2")) is late
    # One that was taken away counts as long as nobody has looked.
    assert await at.takes(token("k1")) is not late
    assert at.asked.count("/keys") == (2 if late else 1)


@pytest.mark.parametrize("since_s", [FRESH_S, FRESH_S + 1])
async def test_key_that_was_taken_away_counts_no_longer_than_keys_are_fresh(
    at: Answers, since_s: float
) -> None:
    assert await at.takes(token("k1"))
    at.keys = [public("k2")]
    at.now += since_s
    assert await at.takes(token("k1")) is (since_s <= FRESH_S)


async def test_issuer_that_is_away_at_first_is_asked_again_and_later_its_keys_count_meanwhile(
    at: Answers,
) -> None:
    at.away = True
    for _ in range(2):
        with pytest.raises(IssuerError):
            await at.takes(token("k1"))
    at.away = False
    assert await at.takes(token("k1"))
    at.away = True
    at.now += FRESH_S + 1
    for _ in range(3):
        assert await at.takes(token("k1"))
        assert not await at.takes(token("k2"))
    asked = len(at.asked)
    at.now += KEYS_APART_S + 1
    assert not await at.takes(token("k2"))
    assert len(at.asked) == asked + 1


@pytest.mark.parametrize("keys", [None, 5, "k1", {"k1": public("k1")}])
async def test_answer_that_is_no_list_of_keys_takes_none_away(at: Answers, keys: Any) -> None:
    given, at.keys = at.keys, keys
    with pytest.raises(IssuerError, match="no list of keys"):
        await at.takes(token())
    at.keys = given
    assert await at.takes(token())
    at.keys = keys
    at.now += FRESH_S + 1
    assert await at.takes(token())


@pytest.mark.parametrize(("over_s", "counts"), [(-60, True), (10, True), (60, False)])
async def test_token_counts_a_little_beyond_its_end_since_clocks_differ(
    at: Answers, over_s: int, counts: bool
) -> None:
    assert await at.takes(token(exp=int(time.time()) - over_s)) is counts


@pytest.mark.parametrize(("name", "counts"), [(URL, True), (f"{URL}/", True), (f"{URL}/x", False)])
async def test_token_names_its_issuer_with_or_without_a_slash_behind_it(
    at: Answers, name: str, counts: bool
) -> None:
    assert await at.takes(token(iss=name)) is counts


@pytest.mark.parametrize(
    "document",
    [
        {"jwks_uri": "http://issuer.example/keys"},
        {"issuer": "https://another.example"},
        {"jwks_uri": None},
        {"jwks_uri": "https://[::1/keys"},
    ],
)
async def test_document_that_leads_elsewhere_is_not_believed(at: Answers, document: dict[str, Any]) -> None:
    at.document |= document
    with pytest.raises(IssuerError):
        await at.takes(token())
    assert "/keys" not in at.asked


BEFORE = Tokens(Secret("old"), URL, "c", Secret("refresh-0"), 1.0, "ann@example.org")


@pytest.mark.parametrize("before", [None, BEFORE])
@pytest.mark.parametrize("refresh", ["refresh-1", None])
@pytest.mark.parametrize("lasts", [60, 1.5, None, "60"])
@pytest.mark.parametrize("email", ["bob@example.org", None, 7])
def test_what_an_answer_leaves_out_stays_as_it_was(
    before: Tokens | None, refresh: str | None, lasts: Any, email: Any
) -> None:
    answer = {"access_token": "new", "refresh_token": refresh, "expires_in": lasts}
    found = tokens_of(answer, URL, "c", email, before)
    assert found.access == "new"
    assert found.refresh == (refresh or (before.refresh if before else None))
    assert found.email == (email if isinstance(email, str) else before.email if before else None)
    if isinstance(lasts, int | float):
        assert found.expires_at is not None
        assert 0 < found.expires_at - time.time() <= lasts
    else:
        assert found.expires_at is None


@pytest.mark.parametrize("access", [None, 7, "é", "a b", "a\nb", "a\x00"])
def test_answer_without_a_token_that_can_be_sent_is_an_error(access: Any) -> None:
    with pytest.raises(IssuerError, match="no access token that can be sent"):
        tokens_of({"access_token": access}, URL, "c")
