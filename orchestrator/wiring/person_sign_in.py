"""The sign-in of this process's user, by its settings."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from orchestrator.config_keys import Secret
from orchestrator.model.credentials import ApiKey, CredentialStore, Tokens, patiently
from orchestrator.settings import Settings

if TYPE_CHECKING:
    # A door keeps a sign-in without the worker's HTTP client.
    from orchestrator.gateways.openid_sign_in import SignIn
    from orchestrator.model.model_client import SignedIn

AHEAD_S = 60.0
"""A token is refreshed so long before its end."""


def credential_store(settings: Settings) -> CredentialStore:
    """The place where the user's sign-in is kept."""
    return CredentialStore(settings.home, settings.auth.store)


def sign_in(settings: Settings) -> SignIn | None:
    """The sign-in at the issuer of the settings; None without one."""
    from orchestrator.gateways.openid_sign_in import SignIn
    from orchestrator.model.issuer import Issuer

    issuer, client_id = settings.auth.issuer, settings.auth.client_id
    if issuer is None or client_id is None:
        return None
    return SignIn(Issuer(issuer), client_id, credential_store(settings), os.urandom)


def signed_in(settings: Settings) -> SignedIn:
    """The look-up of the key of whoever has signed in; each request asks anew, for it may have changed."""
    store, refreshing = credential_store(settings), asyncio.Lock()

    async def key() -> Secret | None:
        kept = await patiently(store.read)
        match kept:
            case None:
                return None
            case ApiKey(key):
                return key
            case Tokens():
                return await _access(store, kept, refreshing)

    return key


async def _access(store: CredentialStore, kept: Tokens, refreshing: asyncio.Lock) -> Secret:
    """The access token, refreshed if it is about to end; the old one if the issuer does not answer."""
    if not _ends(kept):
        return kept.access
    from orchestrator.model.issuer import Issuer, IssuerError, tokens_of

    async with refreshing:
        now = await patiently(store.read)
        if not isinstance(now, Tokens) or not _ends(now) or now.refresh is None:
            return now.access if isinstance(now, Tokens) else kept.access
        form = {"grant_type": "refresh_token", "refresh_token": now.refresh, "client_id": now.client_id}
        try:
            answer = await Issuer(now.issuer).tokens(form)
            fresh = tokens_of(answer, now.issuer, now.client_id, before=now)
        except IssuerError:
            # Another worker may have been first; else the provider refuses, and says why.
            again = await patiently(store.read)
            return again.access if isinstance(again, Tokens) else now.access
        await patiently(lambda: store.write(fresh))
        return fresh.access


def _ends(tokens: Tokens) -> bool:
    return tokens.expires_at is not None and tokens.expires_at - AHEAD_S < time.time()
