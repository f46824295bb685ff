"""An OpenID issuer over HTTP: its document, its keys, the claims of its tokens, and its token endpoint.

Keys are fetched when a token names one that is not known, and no more often than `KEYS_APART_S` allows: who
makes tokens up makes nobody fetch. Only signatures with a public key count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from orchestrator.config_keys import Secret
from orchestrator.model.credentials import Tokens

if TYPE_CHECKING:
    import httpx
    from jwt import PyJWK

DOCUMENT = "/.well-known/openid-configuration"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MOST_TOKEN = 16 << 10
MOST_ANSWER = 1 << 20
TIMEOUT_S = 10.0
FRESH_S = 3_600.0
"""The age at which the document and the keys are fetched anew."""
KEYS_APART_S = 10.0
LEEWAY_S = 30
"""Clocks differ."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class IssuerError(Exception):
    """An issuer did not answer as it should; the message says what it did, and holds no token."""


class BadIssuerToken(Exception):
    """A token that does not count; the message says why, and nothing of the token."""


def checked_url(url: str, what: str) -> str:
    """An address of an issuer's; raises `IssuerError` for one that is neither encrypted nor on loopback."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            return url
    raise IssuerError(f"{what} is {url[:200]!r}: https is needed anywhere but on loopback")


class Issuer:
    """An issuer, as a process uses it."""

    def __init__(self, url: str, now: Callable[[], float] = time.time) -> None:
        self.url = url.rstrip("/")
        self._now = now
        self._document: tuple[float, Mapping[str, Any]] | None = None
        self._keys: dict[str, PyJWK] = {}
        self._keys_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def endpoint(self, name: str) -> str:
        """An address from the issuer's document; raises `IssuerError`."""
        async with self._fetching:
            return await self._endpoint(name)

    async def _endpoint(self, name: str) -> str:
        if self._document is None or self._now() - self._document[0] > FRESH_S:
            found = await _fetched(checked_url(self.url, "the issuer") + DOCUMENT)
            if str(found.get("issuer", "")).rstrip("/") != self.url:
                raise IssuerError(f"the document of {self.url} is that of another issuer")
            self._document = self._now(), found
        address = self._document[1].get(name)
        if not isinstance(address, str):
            raise IssuerError(f"{self.url} names no {name}")
        return checked_url(address, name)

    async def claims(self, token: str, audience: str) -> Mapping[str, Any]:
        """The claims of a token that is this issuer's, for this audience, and in force.

        Raises `BadIssuerToken`, and `IssuerError` where its keys cannot be fetched.
        """
        import jwt

        if len(token) > MOST_TOKEN:
            raise BadIssuerToken(f"a token has at most {MOST_TOKEN:,} characters")
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise BadIssuerToken(f"{type(error).__name__}: {error}"[:200]) from None
        if str(claims["iss"]).rstrip("/") != self.url:
            raise BadIssuerToken("it is another issuer's")
        return claims

    async def _key(self, kid: str) -> PyJWK:
        async with self._fetching:
            age = self._now() - self._keys_at
            if age > FRESH_S or (kid not in self._keys and age > KEYS_APART_S):
                await self._fetch_keys()
        if (found := self._keys.get(kid)) is None:
            raise BadIssuerToken("no key of the issuer has signed it")
        return found

    async def _fetch_keys(self) -> None:
        """Replaces the keys; those that are known count on while the issuer does not answer."""
        from jwt import PyJWK, PyJWTError

        self._keys_at = self._now()
        try:
            found = (await _fetched(await self._endpoint("jwks_uri"))).get("keys")
            if not isinstance(found, list):
                raise IssuerError(f"{self.url} answered no list of keys")
        except IssuerError:
            if not self._keys:
                self._keys_at = float("-inf")
                raise
            return
        keys: dict[str, PyJWK] = {}
        for each in found:
            try:
                if each.get("kty") != "oct" and each.get("use", "sig") == "sig":
                    keys[str(each.get("kid", ""))] = PyJWK(each)
            except (PyJWTError, AttributeError, LookupError, TypeError, ValueError):
                # A kind of key that this version does not know signs nothing here.
                continue
        self._keys = keys

    async def tokens(self, form: Mapping[str, str]) -> Mapping[str, Any]:
        """The answer of the token endpoint to a grant; raises `IssuerError`, which quotes no code."""
        return await _fetched(await self.endpoint("token_endpoint"), form)


def tokens_of(
    answer: Mapping[str, Any], issuer: str, client_id: str, email: object = None, before: Tokens | None = None
) -> Tokens:
    """The tokens of a token endpoint's answer; raises `IssuerError` for one without."""
    access, refresh, lasts = (answer.get(name) for name in ("access_token", "refresh_token", "expires_in"))
    if not isinstance(access, str) or not access.isascii() or not access.isprintable() or " " in access:
        raise IssuerError("the issuer's answer has no access token that can be sent")
    kept = Secret(refresh) if isinstance(refresh, str) else before.refresh if before else None
    ends = time.time() + float(lasts) if isinstance(lasts, int | float) else None
    shown = str(email)[:200] if isinstance(email, str) else before.email if before else None
    return Tokens(Secret(access), issuer, client_id, kept, ends, shown)


async def _fetched(url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    import httpx

    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream("GET" if form is None else "POST", url, data=form) as answer,
        ):
            body = await _bounded(answer)
            if answer.status_code != 200:
                raise IssuerError(f"{url} answered {answer.status_code}{_why(body)}")
        found = orjson.loads(body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise IssuerError(f"{url} was not reached: {type(error).__name__}") from None
    except orjson.JSONDecodeError:
        raise IssuerError(f"{url} answered no JSON") from None
    if not isinstance(found, dict):
        raise IssuerError(f"{url} answered no JSON object")
    return found


async def _bounded(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MOST_ANSWER:
            raise IssuerError(f"an issuer's answer has more than {MOST_ANSWER:,} bytes")
    return bytes(body)


def _why(body: bytes) -> str:
    """The kind of an OAuth error (RFC 6749, 5.2); its description may quote what was sent."""
    try:
        kind = orjson.loads(body).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    return f" ({kind[:60]})" if isinstance(kind, str) else ""
