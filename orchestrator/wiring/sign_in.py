"""The sign-in of this process's user, by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.model.credentials import ApiKey, CredentialStore, Tokens, patiently
from orchestrator.settings import Settings
from orchestrator.tables import Secret

if TYPE_CHECKING:
    # A door keeps a sign-in without the worker's HTTP client.
    from orchestrator.runtime.providers import SignedIn


def credential_store(settings: Settings) -> CredentialStore:
    """The place where the user's sign-in is kept."""
    return CredentialStore(settings.home, settings.auth.store)


def signed_in(settings: Settings) -> SignedIn:
    """The look-up of the key of whoever has signed in; each request asks anew, for it may have changed."""
    store = credential_store(settings)

    async def key() -> Secret | None:
        kept = await patiently(store.read)
        match kept:
            case None:
                return None
            case ApiKey(key):
                return key
            case Tokens(access=access):
                return access

    return key
