"""Tokens: how clients from the network say who they are.

    dendro_<id>_<secret>

The id finds the record, the secret (256 bits) proves the right to it. Redis keeps the secret's SHA-256 only:
who reads Redis learns no token. A digest without salt and stretching does, because nobody guesses 256 bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import orjson

from orchestrator.core.frozen import record
from orchestrator.gateways.principals import (
    HOME_NAMESPACE,
    WORKSPACE_KINDS,
    Principal,
    Scope,
    WorkspaceKind,
)

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
    async def remove_token(self, token_id: str) -> bool: ...


class BadToken(ValueError):
    """Something that a token cannot have; the message says what it may have."""


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

    def is_over(self, now_ms: int) -> bool:
        """Whether its time has passed."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def principal(self) -> Principal:
        """The one for whom it speaks."""
        # No name of a token looks like `user@host`, and a tenant's like nobody else's.
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return Principal(name, self.namespace, self.scope, self.id, self.workspace)


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
            _digest(secret),
            wish.name,
            wish.namespace,
            wish.scope,
            now_ms,
            wish.expires_ms,
            wish.workspace,
        )
        if await store.add_token(token_id, _encode(record)):
            return f"dendro_{token_id}_{secret}", record


async def listed(store: TokenStore) -> list[TokenRecord]:
    """All tokens, the oldest first, those that are over included."""
    found = [_decode(token_id, record) for token_id, record in (await store.tokens()).items()]
    return sorted(found, key=lambda record: (record.created_ms, record.id))


async def record_of(store: TokenStore, text: str) -> TokenRecord | None:
    """The record of a token's text if the secret is right; it may be over."""
    match = _TEXT.fullmatch(text) if len(text) <= MOST_TEXT else None
    kept = await store.token(match[1]) if match else None
    if match is None or kept is None:
        return None
    record = _decode(match[1], kept)
    return record if hmac.compare_digest(record.digest, _digest(match[2])) else None


class PrincipalLookUp:
    """Finds the principal of a token that is known and in force."""

    def __init__(self, store: TokenStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    async def __call__(self, text: str) -> Principal | None:
        """The principal; None for a token that is unknown, revoked or over."""
        record = await record_of(self._store, text)
        return record.principal if record is not None and not record.is_over(self._now_ms()) else None

    async def in_force(self) -> frozenset[str]:
        """The ids of all tokens that count now."""
        now = self._now_ms()
        return frozenset(record.id for record in await listed(self._store) if not record.is_over(now))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _encode(record: TokenRecord) -> bytes:
    return orjson.dumps(
        {
            "sha256": record.digest,
            "name": record.name,
            "namespace": record.namespace,
            "scope": record.scope.word,
            "created_ms": record.created_ms,
            "expires_ms": record.expires_ms,
            "workspace": record.workspace,
        }
    )


def _decode(token_id: str, kept: bytes) -> TokenRecord:
    value = orjson.loads(kept)
    return TokenRecord(
        token_id,
        value["sha256"],
        value["name"],
        value["namespace"],
        Scope.of_word(value["scope"]),
        value["created_ms"],
        value["expires_ms"],
        value.get("workspace"),
    )
