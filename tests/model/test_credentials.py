"""A person's sign-in: kept where nobody else reads it, told by no error, and used by the requests to come."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

from orchestrator.config_keys import ProviderSettings, Secret
from orchestrator.model.credentials import ApiKey, CredentialError, CredentialStore, Tokens
from orchestrator.model.model_client import HttpBudget, ModelClient, ModelClients
from orchestrator.model.provider_errors import FatalKind, FatalModelError

KEY = Secret("sk-of-nobody")
TOKENS = Tokens(Secret("at"), "https://issuer.example", "dendro", Secret("rt"), 99.5, "ann@example.com")


class Keyring(KeyringBackend):
    """A keyring in memory; a locked one refuses."""

    priority = 1

    def __init__(self, *, locked: bool = False) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.locked = locked

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked(f"locked: {KEY}")
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.mark.parametrize("credential", [ApiKey(KEY), TOKENS])
def test_sign_in_is_read_again_from_a_file_for_its_owner_alone(
    tmp_path: Path, credential: ApiKey | Tokens
) -> None:
    store = CredentialStore(tmp_path / "home", "file")
    assert store.read() is None
    store.write(credential)
    (file,) = (tmp_path / "home").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert store.read() == credential
    store.forget()
    assert (store.read(), list((tmp_path / "home").iterdir())) == (None, [])


def test_file_that_others_may_read_is_not_used_and_the_error_says_no_secret(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, "file")
    store.write(ApiKey(KEY))
    file = tmp_path / "credentials.json"
    file.chmod(0o644)
    with pytest.raises(CredentialError, match="chmod 600"):
        store.read()
    file.chmod(0o600)
    file.write_text(f'{{"type": "api_key", "kay": "{KEY}"}}')
    with pytest.raises(CredentialError, match="sign in again") as error:
        store.read()
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("mode", "owner", "used"),
    [
        (0o600, 0, True),
        (0o400, 0, True),
        (0o640, 0, False),
        (0o604, 0, False),
        (0o620, 0, False),
        (0o600, 1, False),
    ],
)
def test_file_is_used_if_it_is_its_owners_and_nobody_else_has_a_right_to_it(
    tmp_path: Path, mode: int, owner: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CredentialStore(tmp_path, "file")
    store.write(ApiKey(KEY))
    (tmp_path / "credentials.json").chmod(mode)
    user = os.getuid() + owner
    monkeypatch.setattr("orchestrator.model.credentials.os.getuid", lambda: user)
    if used:
        assert store.read() == ApiKey(KEY)
        return
    with pytest.raises(CredentialError, match="may be read by others than its owner"):
        store.read()


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "credentials.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CredentialError, match="cannot be read"):
        CredentialStore(tmp_path, "file").read()


def test_sign_in_goes_to_the_keyring_and_leaves_no_file(tmp_path: Path) -> None:
    CredentialStore(tmp_path, "file").write(ApiKey(KEY))
    keyring = Keyring()
    store = CredentialStore(tmp_path, keyring=keyring)
    assert store.read() == ApiKey(KEY)
    store.write(TOKENS)
    assert (store.read(), list(tmp_path.iterdir()), len(keyring.kept)) == (TOKENS, [], 1)
    store.forget()
    assert keyring.kept == {}


def test_sign_in_is_forgotten_wherever_it_is_kept(tmp_path: Path) -> None:
    """A machine that gets a keyring later has one in both places."""
    CredentialStore(tmp_path, "file").write(ApiKey(KEY))
    kept = Keyring()
    kept.set_password("dendro", str(tmp_path), '{"type": "api_key", "key": "sk-other"}')
    store = CredentialStore(tmp_path, keyring=kept)
    store.forget()
    assert (store.read(), CredentialStore(tmp_path, "file").read()) == (None, None)


def test_locked_keyring_is_an_error_that_quotes_nothing(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="unlock it") as error:
        CredentialStore(tmp_path, keyring=Keyring(locked=True)).read()
    assert KEY not in str(error.value)


def test_sign_in_is_in_no_text_of_its_own() -> None:
    assert KEY not in repr(ApiKey(KEY))
    assert "rt" not in repr(TOKENS).split("issuer=")[0]


def provider() -> ProviderSettings:
    return ProviderSettings(id="x", base_url="http://x/v1", auth="login")


async def test_requests_carry_the_key_of_whoever_has_signed_in_last() -> None:
    keys = [Secret("one"), Secret("two")]

    async def signed_in() -> Secret | None:
        return keys.pop(0)

    models = ModelClients({"x": provider()}, signed_in=signed_in)
    client = models._client("x")
    for key in ("one", "two"):
        client.use_key(await models._login_key("x"))
        assert client._fixed_headers()["Authorization"] == f"Bearer {key}"
    await models.aclose()


async def test_sign_in_is_sent_whatever_key_the_environment_holds_and_to_its_own_provider_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, str]] = []

    async def asked(client: ModelClient, prompt: object, budget: object) -> AsyncIterator[object]:
        sent.append((client.provider.id, client._fixed_headers()["Authorization"]))
        yield None

    monkeypatch.setattr(ModelClient, "stream", asked)
    keys = iter((Secret("one"), Secret("two")))

    async def signed_in() -> Secret | None:
        return next(keys)

    held = {"env_key": "K", "api_key": Secret("of-the-environment")}
    by_login = provider().model_copy(update=held)
    by_key = ProviderSettings(id="y", base_url="http://y/v1").model_copy(update=held)
    models = ModelClients({"x": by_login, "y": by_key}, signed_in=signed_in)
    for name in ("x", "y", "x", "y"):
        assert [event async for event in models.stream(name, cast(Any, None), HttpBudget(0))] == [None]
    kept = ("y", "Bearer of-the-environment")
    assert sent == [("x", "Bearer one"), kept, ("x", "Bearer two"), kept]
    await models.aclose()


async def test_request_of_nobody_who_has_signed_in_fails_with_the_way_out() -> None:
    async def nobody() -> Secret | None:
        return None

    for models in (ModelClients({"x": provider()}, signed_in=nobody), ModelClients({"x": provider()})):
        with pytest.raises(FatalModelError, match="account/login/start") as error:
            await models._login_key("x")
        assert error.value.kind is FatalKind.UNAUTHORIZED
