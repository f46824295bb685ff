"""Browsers that sign in: the rights of what they came with, for twelve hours at most, and each end alone."""

from __future__ import annotations

import os
import time
from base64 import b32decode, b32encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from orchestrator.gateways.bearer_tokens import IssuerTokens, PrincipalLookUp, TokenWish, new_token, revoke
from orchestrator.gateways.principals import WORKSPACE_KINDS, Principal, Scope, WorkspaceKind
from orchestrator.gateways.window.sign_in import NotSignedIn, Windows, new_code
from orchestrator.model.issuer import Issuer
from tests.gateways.test_issuer_tokens import Clock, Records
from tests.issuer import TestIssuer, issuer

HOUR_S = 3_600
KEY = "k" * 43
ANN = Principal("ann@host", subject="uid:7@host")


class Store(Records):
    """The tokens, the browsers and the codes of a deployment, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[str, bytes] = {}

    async def add_code(self, digest: str, rights: bytes, kept_ms: int) -> None:
        self.codes[digest] = rights

    async def code(self, digest: str) -> bytes | None:
        return self.codes.get(digest)

    async def sign_in(
        self, token_id: str, record: bytes, code: tuple[str, bytes] | None, gone: Sequence[str]
    ) -> Literal["OK", "USED", "TAKEN"]:
        if code is not None and code[0] not in self.codes:
            return "USED"
        if not await self.add_token(token_id, record):
            return "TAKEN"
        if code is not None:
            del self.codes[code[0]]
        await self.remove_tokens(gone)
        return "OK"


class Deployment:
    """A deployment whose tokens are its own and those of an issuer."""

    def __init__(self, at: TestIssuer) -> None:
        self.at, self.clock, self.store = at, Clock(), Store()
        own = PrincipalLookUp(self.store, self.now_ms)
        self.tokens = IssuerTokens(own, Issuer(at.url, self.clock), "dendro", self.clock)
        self.windows = Windows(self.store, self.tokens, self.now_ms, os.urandom)

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    async def token(
        self,
        kind: str,
        namespace: str = "",
        scope: Scope = Scope.SUBMIT,
        workspace: WorkspaceKind | None = None,
        lasts_s: int | None = None,
    ) -> str:
        if kind == "own":
            ends = None if lasts_s is None else int(time.time() + lasts_s) * 1000
            wish = TokenWish("ana", namespace, scope, ends, workspace)
            return (await new_token(self.store, wish, self.now_ms(), os.urandom))[0]
        claims: dict[str, Any] = {"scope": f"dendro:{scope.word}"}
        claims |= {"dendro_namespace": namespace} if namespace else {}
        claims |= {"dendro_workspace": workspace} if workspace else {}
        claims |= {"exp": int(time.time() + lasts_s)} if lasts_s else {}
        return self.at.token(**claims)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with issuer() as at:
        yield Deployment(at)


@pytest.mark.parametrize("kind", ["own", "issuer"])
async def test_browser_has_all_rights_of_the_token_that_it_came_with_and_no_others(
    deployment: Deployment, kind: str
) -> None:
    for namespace in ("", "acme"):
        for scope in Scope:
            for workspace in (None, *WORKSPACE_KINDS):
                text = await deployment.token(kind, namespace, scope, workspace)
                holder = await deployment.tokens(text)
                assert holder is not None
                cookie, made = await deployment.windows.sign_in_by_token(text, KEY)
                found = await deployment.windows.record(cookie, KEY)
                assert found == made
                assert replace(found.principal, token="") == replace(holder, token="")
                assert bool(found.principal.subject) is (kind == "issuer")
                assert found.principal.token not in ("", holder.token)
                assert (found.principal.workspace, found.principal.scope) == (workspace, scope)


@pytest.mark.parametrize("scope", Scope)
async def test_browser_that_came_with_a_code_is_the_machines_user_with_the_codes_scope(
    deployment: Deployment, scope: Scope
) -> None:
    code = await new_code(deployment.store, ANN, scope, os.urandom)
    cookie, made = await deployment.windows.sign_in_by_code(code, KEY)
    found = await deployment.windows.record(cookie, KEY)
    assert found is not None
    assert found.principal == replace(ANN, scope=scope, token=made.id)
    with pytest.raises(NotSignedIn):
        await deployment.windows.sign_in_by_code(code, KEY)


@pytest.mark.parametrize(
    ("kind", "lasts_h", "ends_h"),
    [("code", 0, 12), ("own", 0, 12), ("own", 13, 12), ("own", 1, 1), ("issuer", 13, 12), ("issuer", 1, 1)],
)
async def test_browser_is_signed_in_for_twelve_hours_and_no_longer_than_its_token_counts(
    deployment: Deployment, kind: str, lasts_h: int, ends_h: int
) -> None:
    if kind == "code":
        code = await new_code(deployment.store, ANN, Scope.READ, os.urandom)
        cookie, made = await deployment.windows.sign_in_by_code(code, KEY)
    else:
        text = await deployment.token(kind, lasts_s=lasts_h * HOUR_S or None)
        cookie, made = await deployment.windows.sign_in_by_token(text, KEY)
    deployment.clock.ahead += ends_h * HOUR_S - 60
    assert await deployment.windows.record(cookie, KEY) == made
    assert made.id in await deployment.tokens.in_force()
    deployment.clock.ahead += 61
    assert await deployment.windows.record(cookie, KEY) is None
    assert made.id not in await deployment.tokens.in_force()


@pytest.mark.parametrize("kind", ["own", "issuer"])
async def test_browser_that_signs_out_or_is_revoked_ends_alone(deployment: Deployment, kind: str) -> None:
    text = await deployment.token(kind)
    browsers = [await deployment.windows.sign_in_by_token(text, KEY) for _ in range(3)]
    await deployment.windows.sign_out(browsers[0][1].id)
    assert await revoke(deployment.store, browsers[1][1].id)
    counts = [await deployment.windows.record(cookie, KEY) for cookie, _ in browsers]
    assert counts == [None, None, browsers[2][1]]
    holder = await deployment.tokens(text)
    assert holder is not None
    assert await deployment.tokens.in_force() == {holder.token, browsers[2][1].id}


@pytest.mark.parametrize("by", ["code", "token"])
async def test_browser_whose_id_is_anothers_gets_another_one(by: str) -> None:
    store = Store()
    own = PrincipalLookUp(store, lambda: 0)
    token, record = await new_token(store, TokenWish("ana"), 0, os.urandom)
    code = await new_code(store, ANN, Scope.READ, os.urandom)
    ids = [b32decode(record.id.upper()), b"12345"]
    windows = Windows(store, own, lambda: 0, lambda size: ids.pop(0) if size == 5 else os.urandom(size))
    sign_in = windows.sign_in_by_code(code) if by == "code" else windows.sign_in_by_token(token)
    cookie, made = await sign_in
    assert ids == []
    assert made.id == b32encode(b"12345").decode().lower()
    assert await windows.record(cookie, "") == made
    assert await own(token) == record.principal, "the other one counts as before"
