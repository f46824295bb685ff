"""Settings of the person's sign-in at model providers."""

from __future__ import annotations

from typing import Literal

from orchestrator.tables.base import Table, setting


class AuthSettings(Table):
    """Sign-in: where the key or the tokens of providers with `auth = "login"` are kept."""

    store: Literal["auto", "keyring", "file"] = setting("auto", "auth.store")
    """Where a sign-in is kept: the system's keyring, a file in the home folder that its owner alone may read,
    or (`auto`) the keyring if there is one, and else the file."""
