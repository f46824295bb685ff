"""Tokens: how clients from the network say who they are.

    dendro_<id>_<secret>

The id finds the record, the secret (256 bits) proves the right to it. Redis keeps the secret's SHA-256 only:
who reads Redis learns no token. A digest without salt and stretching does, because nobody guesses 256 bits.

A browser that signs in at the window gets a token of its own, which counts nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from orchestrator.core.frozen import record
from orchestrator.core.sender import OF_ISSUER
from orchestrator.gateways.principals import (
    HOME_NAMESPACE,
    WORKSPACE_KINDS,
    Principal,
    Scope,
    WorkspaceKind,
)
from orchestrator.model.issuer import BadIssuerToken, Issuer, IssuerError

SECRET_BYTES = 32
ID_BYTES = 5
MOST_NAME = 64
MOST_TEXT = 200
_TEXT = re.compile(r"dendro_([a-z2-7]{8})_([A-Za-z0-9_-]{43})")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class TokenStore(Protocol):
    """The records of tokens, wherever they are kept."""

    async def add_token(self, token_id: str, record: bytes) -> bool: ...
    async def token(self, token_id: str) -> bytes | None: ...
    async def tokens(self) -> dict[str, bytes]: ...
    async def remove_tokens(self, token_ids: Sequence[str]) -> int: ...


class BadToken(ValueError):
    """Something that a token cannot have; the message says what it may have."""


@record
class OfWindow:
    """The parts that the token of a browser has beside those of all tokens."""

    parent: str = ""
    """The id of the token that signed in, with which it ends; empty for a code's, and an issuer's."""
    key: str = ""
    """SHA-256 of what the page keeps, and sends beside the cookie; empty where it brought none."""


@record
class TokenRecord:
    """A token as it is kept and listed."""

    id: str
    digest: str
    """SHA-256 of the secret, in hexadecimal digits."""
    name: str
    namespace: str
    scope: Scope
    created_ms: int
    expires_ms: int | None = None
    workspace: WorkspaceKind | None = None
    """The kind of folder that its holder's sessions begin in; None: as the gateway's settings say."""
    window: OfWindow | None = None
    """That of a browser's token; None for all others."""
    subject: str = ""
    """The holder beyond this deployment, where a browser came with what names it."""

    def is_over(self, now_ms: int) -> bool:
        """Whether its time has passed."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def principal(self) -> Principal:
        """The one for whom it speaks."""
        # No name of a token looks like `user@host`, and a tenant's like nobody else's.
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return Principal(name, self.namespace, self.scope, self.id, self.workspace, self.subject)


@dataclass(frozen=True, slots=True)
class TokenWish:
    """A token as a person asks for it."""

    name: str
    namespace: str = HOME_NAMESPACE
    scope: Scope = Scope.SUBMIT
    expires_ms: int | None = None
    workspace: WorkspaceKind | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadToken(f"a token's name has 1 to {MOST_NAME} letters, digits and ._+-: {self.name!r}")
        if self.namespace and not NAME.fullmatch(self.namespace):
            raise BadToken(
                f"a namespace has 1 to {MOST_NAME} letters, digits and ._+-: {self.namespace!r}; empty is "
                "that of this machine's user"
            )


def workspace_kind(word: str | None) -> WorkspaceKind | None:
    """The kind of folder that a person named; raises `BadToken` that lists both."""
    for kind in WORKSPACE_KINDS:
        if kind == word:
            return kind
    if word is None:
        return None
    raise BadToken(f"{word!r} is no kind of folder: {', '.join(WORKSPACE_KINDS)}")


async def new_token(
    store: TokenStore, wish: TokenWish, now_ms: int, random_bytes: Callable[[int], bytes]
) -> tuple[str, TokenRecord]:
    """Makes a token; its text is nowhere else, so it is shown once."""
    secret = urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode()
    while True:
        token_id = b32encode(random_bytes(ID_BYTES)).decode().lower()
        record = TokenRecord(
            token_id,
            secret_digest(secret),
            wish.name,
            wish.namespace,
            wish.scope,
            now_ms,
            wish.expires_ms,
            wish.workspace,
        )
        if await store.add_token(token_id, encode_record(record)):
            return f"dendro_{token_id}_{secret}", record


async def listed(store: TokenStore) -> list[TokenRecord]:
    """All tokens that can be read, the oldest first, those that are over included."""
    kept = (await store.tokens()).items()
    found = [record for id, text in kept if (record := decode_record(id, text)) is not None]
    return sorted(found, key=lambda record: (record.created_ms, record.id))


async def damaged(store: TokenStore) -> list[str]:
    """The ids of tokens whose records cannot be read: nobody comes in with them."""
    return sorted(id for id, text in (await store.tokens()).items() if decode_record(id, text) is None)


async def record_of(store: TokenStore, text: str) -> TokenRecord | None:
    """The record of a token's text if the secret is right; it may be over."""
    match = _TEXT.fullmatch(text) if len(text) <= MOST_TEXT else None
    kept = await store.token(match[1]) if match else None
    if match is None or kept is None:
        return None
    record = decode_record(match[1], kept)
    if record is None or not hmac.compare_digest(record.digest, secret_digest(match[2])):
        return None
    return record


class PrincipalLookUp:
    """Finds the principal of a token that is known and in force."""

    def __init__(self, store: TokenStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    async def __call__(self, text: str) -> Principal | None:
        """The principal; None for a token that is unknown, revoked or over, and for a browser's."""
        record = await record_of(self._store, text)
        if record is None or record.window is not None or record.is_over(self._now_ms()):
            return None
        return record.principal

    async def in_force(self) -> frozenset[str]:
        """The ids of all tokens that count now."""
        return frozenset(record.id for record in in_force(await listed(self._store), self._now_ms()))


def in_force(records: Collection[TokenRecord], now_ms: int) -> list[TokenRecord]:
    """Those that count: a browser's ends with the token that it came from."""
    there = {record.id for record in records if record.window is None and not record.is_over(now_ms)}
    return [
        record
        for record in records
        if record.id in there
        or (
            record.window is not None
            and not record.is_over(now_ms)
            and (not record.window.parent or record.window.parent in there)
        )
    ]


async def revoke(store: TokenStore, token_id: str) -> bool:
    """Removes a token, and those of the browsers that signed in with it; False if there was none.

    One whose record cannot be read is removed, too.
    """
    windows = [
        record.id
        for record in await listed(store)
        if record.window is not None and record.window.parent == token_id
    ]
    there = await store.token(token_id) is not None
    await store.remove_tokens((token_id, *windows))
    return there


def secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def encode_record(record: TokenRecord) -> bytes:
    return orjson.dumps(
        {
            "sha256": record.digest,
            "name": record.name,
            "namespace": record.namespace,
            "scope": record.scope.word,
            "created_ms": record.created_ms,
            "expires_ms": record.expires_ms,
            "workspace": record.workspace,
            **({} if (window := record.window) is None else {"window": [window.parent, window.key]}),
            **({"subject": record.subject} if record.subject else {}),
        }
    )


def decode_record(token_id: str, kept: bytes) -> TokenRecord | None:
    """A token as it was kept; None for a record that is damaged, or that a later version wrote."""
    try:
        value = orjson.loads(kept)
        record = TokenRecord(
            token_id,
            value["sha256"],
            value["name"],
            value["namespace"],
            Scope.of_word(value["scope"]),
            value["created_ms"],
            value["expires_ms"],
            workspace_kind(value.get("workspace")),
            OfWindow(*value["window"]) if "window" in value else None,
            value.get("subject", ""),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    window = record.window or OfWindow()
    texts = (record.digest, record.name, record.namespace, record.subject, window.parent, window.key)
    times = (record.created_ms, 0 if record.expires_ms is None else record.expires_ms)
    whole = all(type(one) is str for one in texts) and all(type(one) is int for one in times)
    return record if whole and record.digest.isascii() else None


# ── issuer tokens ─────────────────────────────────────────────────────────────────────────────────
# Bearer tokens of an OpenID issuer: their holders are principals, as those of Dendro's own tokens are.
#
# A token says by its claims what its holder may do: `scope` has `dendro:read`, `dendro:submit`,
# `dendro:approve` or `dendro:admin`, `dendro_namespace` may name a tenant's namespace, and
# `dendro_workspace` the kind of folder of new sessions. Without such a scope it opens nothing: an
# issuer's tokens are made for other programs, too.


PREFIX: Final = "dendro:"
NAMESPACE: Final = "dendro_namespace"
WORKSPACE: Final = "dendro_workspace"
OWN: Final = "dendro_"
"""The begin of Dendro's own tokens."""
MOST_REMEMBERED: Final = 10_000
_SUBJECT = re.compile(r"[A-Za-z0-9._+@|:/=-]{1,128}")
log = logging.getLogger("dendro.gateway")


class IssuerTokens:
    """Finds the principals of tokens, Dendro's own and those of an issuer."""

    def __init__(
        self, own: PrincipalLookUp, issuer: Issuer, audience: str, now_s: Callable[[], float]
    ) -> None:
        self._own = own
        self._issuer = issuer
        self._audience = audience
        self._now_s = now_s
        self._until: dict[str, float] = {}
        """The ids of tokens that were presented, with the seconds of the epoch at which they end."""

    async def __call__(self, text: str) -> Principal | None:
        """The principal; None for a token that does not count."""
        if text.startswith(OWN):
            return await self._own(text)
        try:
            claims = await self._issuer.claims(text, self._audience)
            principal = principal_of(claims, _id(text))
        except BadIssuerToken as error:
            log.info("a token of the issuer was refused", extra={"why": str(error)})
            return None
        except IssuerError as error:
            log.warning("the issuer's keys cannot be had", extra={"why": str(error)})
            return None
        self._remember(principal.token, float(claims["exp"]))
        return principal

    def _remember(self, token: str, until: float) -> None:
        now = self._now_s()
        if len(self._until) >= MOST_REMEMBERED:
            self._until = {id: end for id, end in self._until.items() if end > now}
        self._until[token] = until

    def until_ms(self, token: str) -> int | None:
        """The end of a token of the issuer that was presented; None for all others."""
        end = self._until.get(token)
        return None if end is None else int(end * 1000)

    async def in_force(self) -> frozenset[str]:
        """The ids of all tokens that count now."""
        now = self._now_s()
        return await self._own.in_force() | {id for id, end in self._until.items() if end > now}


def principal_of(claims: Mapping[str, Any], token: str) -> Principal:
    """The one for whom a token speaks; raises `BadIssuerToken`."""
    subject, namespace = str(claims["sub"]), claims.get(NAMESPACE, HOME_NAMESPACE)
    if not _SUBJECT.fullmatch(subject):
        raise BadIssuerToken("its subject has other characters than a name may have, or too many")
    if not isinstance(namespace, str) or (namespace and not NAME.fullmatch(namespace)):
        raise BadIssuerToken(f"its {NAMESPACE} is no name of a namespace")
    workspace = claims.get(WORKSPACE)
    if workspace is not None and workspace not in WORKSPACE_KINDS:
        raise BadIssuerToken(f"its {WORKSPACE} is none of {', '.join(WORKSPACE_KINDS)}")
    name = f"{OF_ISSUER}{subject}"
    named, issued = f"{namespace}/{name}" if namespace else name, f"{claims.get('iss', '')}|{subject}"
    return Principal(named, namespace, _scope(claims), token, workspace, issued)


def _scope(claims: Mapping[str, Any]) -> Scope:
    said = claims.get("scope", claims.get("scp", ""))
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    scopes = [scope for scope in Scope if PREFIX + scope.word in words]
    if not scopes:
        raise BadIssuerToken(f"its scope has none of {', '.join(PREFIX + scope.word for scope in Scope)}")
    return max(scopes)


def _id(text: str) -> str:
    return f"openid-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:32]}"
