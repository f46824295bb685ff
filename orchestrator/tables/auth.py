"""Settings of the person's sign-in at model providers."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from orchestrator.tables.base import ISSUER, Table, conflict, setting


class AuthSettings(Table):
    """Sign-in: where the key or the tokens of providers with `auth = "login"` come from, and are kept."""

    issuer: str | None = setting(None, "auth.issuer", pattern=ISSUER)
    """OpenID issuer at which a person signs in (`account/login/start` with `chatgpt`, `loginChatGpt`), in
    place of a key. `https://`, or `http://` on loopback."""

    client_id: str | None = setting(None, "auth.client_id")
    """Id of Dendro as a public client of that issuer, with `http://127.0.0.1/callback` (any port) as its
    redirect."""

    store: Literal["auto", "keyring", "file"] = setting("auto", "auth.store")
    """Where a sign-in is kept: the system's keyring, a file in the home folder that its owner alone may read,
    or (`auto`) the keyring if there is one, and else the file."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.issuer is None) != (self.client_id is None):
            raise conflict("auth.issuer, auth.client_id", "one of them", "both or none")
        return self
