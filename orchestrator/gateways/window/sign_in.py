"""The sign-in of a browser at the window, by a code or by a token that somebody pasted.

A code has 128 bits, counts once and for ten minutes; Redis has its SHA-256. What a browser gets is a token
of its own, with the rights of what it came from. It counts at the window alone, and beside the key that the
page brought where it did: cookies know no ports, so whatever else listens on this machine may see it.
"""

from __future__ import annotations

import hmac
import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import orjson

from orchestrator.core.frozen import record
from orchestrator.gateways.bearer_tokens import (
    ID_BYTES,
    SECRET_BYTES,
    IssuerTokens,
    OfWindow,
    PrincipalLookUp,
    TokenRecord,
    TokenStore,
    decode_record,
    encode_record,
    in_force,
    listed,
    record_of,
    secret_digest,
)
from orchestrator.gateways.principals import HOME_NAMESPACE, Principal, Scope, WorkspaceKind


class WindowStore(TokenStore, Protocol):
    """The records of tokens, and the codes that sign browsers in."""

    async def add_code(self, digest: str, rights: bytes, kept_ms: int) -> None: ...
    async def code(self, digest: str) -> bytes | None: ...
    async def sign_in(
        self, token_id: str, record: bytes, code: tuple[str, bytes] | None, gone: Sequence[str]
    ) -> Literal["OK", "USED", "TAKEN"]: ...


CODE_BYTES: Final = 16
CODE_MS: Final = 10 * 60_000
WINDOW_MS: Final = 12 * 3_600_000
"""A browser is signed in for so long."""
_CODE = re.compile(r"[A-Za-z0-9_-]{22}")
KEY = re.compile(r"[A-Za-z0-9_-]{22,128}")
"""Texts that a page may bring as its key."""


class NotSignedIn(Exception):
    """A code or token that signs nobody in; the message says what would."""


async def new_code(
    store: WindowStore, user: Principal, scope: Scope, random_bytes: Callable[[int], bytes]
) -> str:
    """A code that signs a browser in once, as this user of the machine, with this scope."""
    code = urlsafe_b64encode(random_bytes(CODE_BYTES)).rstrip(b"=").decode()
    rights = {"who": user.name, "scope": scope.word, "subject": user.subject}
    await store.add_code(secret_digest(code), orjson.dumps(rights), CODE_MS)
    return code


@record
class _Rights:
    """The rights of a browser, from the code or token that it came with."""

    name: str
    namespace: str
    scope: Scope
    until_ms: int
    workspace: WorkspaceKind | None = None
    parent: str = ""
    code: tuple[str, bytes] | None = None
    subject: str = ""


class Windows:
    """The browsers that are signed in."""

    def __init__(
        self,
        store: WindowStore,
        tokens: PrincipalLookUp | IssuerTokens,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._now_ms = now_ms
        self._random_bytes = random_bytes

    async def sign_in_by_code(self, code: str, key: str = "") -> tuple[str, TokenRecord]:
        """The token of a new browser; raises `NotSignedIn`."""
        digest = secret_digest(code) if _CODE.fullmatch(code) else ""
        kept = await self._store.code(digest) if digest else None
        if kept is None:
            raise NotSignedIn(USED_CODE)
        value, until = orjson.loads(kept), self._now_ms() + WINDOW_MS
        scope, subject = Scope.of_word(value["scope"]), value.get("subject", "")
        rights = _Rights(value["who"], HOME_NAMESPACE, scope, until, code=(digest, kept), subject=subject)
        return await self._made(rights, key)

    async def sign_in_by_token(self, text: str, key: str = "") -> tuple[str, TokenRecord]:
        """The same, with a token of Dendro or of its issuer."""
        until, own = self._now_ms() + WINDOW_MS, await record_of(self._store, text)
        holder = await self._tokens(text)
        if holder is None:
            raise NotSignedIn("the token is not known, or its time is over: dendro token new makes one")
        ends = own.expires_ms if own is not None else self._until_ms(holder.token)
        name = holder.name.removeprefix(f"{holder.namespace}/") if holder.namespace else holder.name
        rights = _Rights(
            name,
            holder.namespace,
            holder.scope,
            until if ends is None else min(until, ends),
            holder.workspace,
            own.id if own is not None else "",
            subject=holder.subject,
        )
        return await self._made(rights, key)

    def _until_ms(self, token: str) -> int | None:
        return self._tokens.until_ms(token) if isinstance(self._tokens, IssuerTokens) else None

    async def _made(self, rights: _Rights, key: str) -> tuple[str, TokenRecord]:
        secret = urlsafe_b64encode(self._random_bytes(SECRET_BYTES)).rstrip(b"=").decode()
        now, all_of_them = self._now_ms(), await listed(self._store)
        counting = {one.id for one in in_force(all_of_them, now)}
        gone = [one.id for one in all_of_them if one.window is not None and one.id not in counting]
        while True:
            token_id = b32encode(self._random_bytes(ID_BYTES)).decode().lower()
            made = TokenRecord(
                token_id,
                secret_digest(secret),
                rights.name,
                rights.namespace,
                rights.scope,
                now,
                rights.until_ms,
                rights.workspace,
                OfWindow(rights.parent, secret_digest(key) if key else ""),
                rights.subject,
            )
            match await self._store.sign_in(token_id, encode_record(made), rights.code, gone):
                case "OK":
                    return f"dendro_{token_id}_{secret}", made
                case "USED":
                    raise NotSignedIn(USED_CODE)
                case "TAKEN":
                    continue

    async def record(self, cookie: str, key: str) -> TokenRecord | None:
        """The token of a browser that counts, by its cookie and the key beside it."""
        found, now = await record_of(self._store, cookie), self._now_ms()
        if found is None or found.window is None or found.is_over(now):
            return None
        if found.window.key and not hmac.compare_digest(found.window.key, secret_digest(key)):
            return None
        if not (parent := found.window.parent):
            return found
        kept = await self._store.token(parent)
        above = None if kept is None else decode_record(parent, kept)
        return None if above is None or above.is_over(now) else found

    async def sign_out(self, token_id: str) -> None:
        """Ends a browser's token."""
        await self._store.remove_tokens((token_id,))


USED_CODE: Final = (
    "the code is not known, was used, or is older than ten minutes: dendro token code makes another"
)
