"""The account over the app-server: a key goes in and never comes out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.config_keys import ProviderSettings, Secret
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.model.credentials import ApiKey, CredentialStore, Tokens
from tests.doors.peer import ANN, Peer, connected, served
from tests.doors.ports import ports
from tests.doors.schema import assert_valid

KEY = "sk-of-nobody"
LOGIN = {"type": "apiKey", "apiKey": KEY}
TENANT = Principal("eve", namespace="eve")


@asynccontextmanager
async def greeted(folder: Path | None, principal: Principal = ANN) -> AsyncIterator[Peer]:
    store = None if folder is None else CredentialStore(folder, "file")
    given = ports(credentials=store)
    async with (
        served(given, lambda session, change, root_turn: ()) as server,
        connected(server, principal) as peer,
    ):
        await peer.greet()
        yield peer


async def test_key_of_the_machines_user_is_kept_and_never_told(tmp_path: Path) -> None:
    async with greeted(tmp_path) as peer:
        before = await peer.call("account/read")
        assert_valid("GetAccountResponse", before)
        assert (before["account"], before["requiresOpenaiAuth"]) == (None, False)
        assert await peer.call("account/login/start", LOGIN) == {"type": "apiKey"}
        assert_valid("AccountLoginCompletedNotification", await peer.until("account/login/completed"))
        assert (await peer.until("account/updated"))["authMode"] == "apikey"
        after = await peer.call("account/read", {"refreshToken": True})
        assert_valid("GetAccountResponse", after)
        assert after["account"] == {"type": "apiKey"}
        assert CredentialStore(tmp_path, "file").read() == ApiKey(Secret(KEY))
        assert await peer.call("account/logout") == {}
        assert (await peer.call("account/read"))["account"] is None
        assert KEY.encode() not in orjson.dumps(peer.heard)


@pytest.mark.parametrize("key", ["", "a b", "a\r\nX-Evil: 1", "é", "k" * 5_000])
async def test_text_that_is_no_key_is_refused_without_a_word_of_it(tmp_path: Path, key: str) -> None:
    async with greeted(tmp_path) as peer:
        code, text = await peer.refused("account/login/start", {"type": "apiKey", "apiKey": key})
        assert code == Code.BAD_PARAMS
        assert not key or key not in text
        assert CredentialStore(tmp_path, "file").read() is None


@pytest.mark.parametrize("type", ["chatgpt", "chatgptDeviceCode", "amazonBedrock"])
async def test_sign_in_that_is_not_served_names_the_way_out(tmp_path: Path, type: str) -> None:
    async with greeted(tmp_path) as peer:
        code, text = await peer.refused("account/login/start", {"type": type})
        assert (code, "apiKey" in text) == (Code.REFUSED, True)
        assert ("auth.issuer" in text) == (type == "chatgpt")
        assert await peer.call("account/login/cancel", {"loginId": "x"}) == {"status": "notFound"}


async def test_tenants_and_those_of_lower_scope_neither_sign_in_nor_learn_of_it(tmp_path: Path) -> None:
    CredentialStore(tmp_path, "file").write(ApiKey(Secret(KEY)))
    async with greeted(tmp_path, TENANT) as peer:
        assert (await peer.call("account/read"))["account"] is None
        for method, params in (("account/login/start", LOGIN), ("account/logout", {})):
            assert (await peer.refused(method, params))[0] == Code.REFUSED
    async with greeted(tmp_path, Principal("bob", scope=Scope.APPROVE)) as peer:
        assert (await peer.refused("account/logout"))[0] == Code.REFUSED
    assert CredentialStore(tmp_path, "file").read() is not None


async def test_server_that_keeps_no_keys_says_who_does() -> None:
    async with greeted(None) as peer:
        assert (await peer.call("account/read"))["account"] is None
        _, text = await peer.refused("account/login/start", LOGIN)
        assert "whoever runs the workers" in text


async def test_limits_and_usage_are_valid_and_empty(tmp_path: Path) -> None:
    async with greeted(tmp_path) as peer:
        assert_valid("GetAccountRateLimitsResponse", await peer.call("account/rateLimits/read"))
        assert_valid("GetAccountTokenUsageResponse", await peer.call("account/usage/read"))


async def test_version_1_tells_the_sign_in_and_whether_one_is_needed_to_whoever_sees_the_machine(
    tmp_path: Path,
) -> None:
    store = CredentialStore(tmp_path, "file")
    store.write(Tokens(Secret("a"), "https://id.example.com", "dendro", email="ann@example.com"))
    provider = ProviderSettings(name="own", id="own", base_url="https://p.example.com", auth="login")
    reader = Principal("ci", scope=Scope.READ, token="t")
    for auth, needed in (("login", True), ("env", False)):
        one = provider.model_copy(update={"auth": auth})
        offer = SimpleNamespace(
            defaults=SimpleNamespace(model_provider="own"), models=SimpleNamespace(providers={"own": one})
        )
        given = ports(cast(Any, offer), credentials=store)
        async with served(given, lambda session, change, root_turn: ()) as server:
            for who, email in ((ANN, "ann@example.com"), (TENANT, None), (reader, None)):
                async with connected(server, who) as peer:
                    assert await peer.call("userInfo") == {"allegedUserEmail": email}
                    status = await peer.call("getAuthStatus", {"includeToken": True})
                    assert status["requiresOpenaiAuth"] is needed
                    assert ("authMethod" in status) is (email is not None)


@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize(
    ("who", "told"),
    [
        (ANN, True),
        # A token reaches over the network: its holder learns that there is a key, and not the key.
        (Principal("ann", token="t"), False),
        (Principal("bob", scope=Scope.APPROVE), True),
        (Principal("bob", scope=Scope.APPROVE, token="t"), False),
        (Principal("bob", scope=Scope.SUBMIT), None),
        (TENANT, None),
    ],
)
async def test_version_1_tells_the_kept_key_to_the_machines_user_alone_who_asks_for_it(
    who: Principal, told: bool | None, wanted: bool | None, tmp_path: Path
) -> None:
    CredentialStore(tmp_path, "file").write(ApiKey(Secret(KEY)))
    offer = SimpleNamespace(
        defaults=SimpleNamespace(model_provider="own"), models=SimpleNamespace(providers={})
    )
    given = ports(cast(Any, offer), credentials=CredentialStore(tmp_path, "file"))
    async with (
        served(given, lambda session, change, root_turn: ()) as server,
        connected(server, who) as peer,
    ):
        status = await peer.call("getAuthStatus", {"includeToken": wanted})
        assert status.get("authMethod") == (None if told is None else "apikey")
        assert status.get("authToken") == (KEY if told and wanted else None)
        assert (told and wanted) or KEY.encode() not in orjson.dumps(peer.heard)


@pytest.mark.parametrize(
    ("method", "params", "told", "mode"),
    [
        ("account/login/start", LOGIN, "account/updated", {"authMode": "apikey", "planType": None}),
        ("account/logout", {}, "account/updated", {"authMode": None, "planType": None}),
        ("loginApiKey", {"apiKey": KEY}, "authStatusChange", {"authMethod": "apikey"}),
        ("logoutChatGpt", {}, "authStatusChange", {"authMethod": None}),
    ],
)
async def test_each_change_of_the_sign_in_is_told_behind_its_answer(
    method: str, params: dict[str, Any], told: str, mode: dict[str, Any], tmp_path: Path
) -> None:
    async with greeted(tmp_path) as peer:
        await peer.call(method, params)
        assert peer.methods() == []
        assert await peer.until(told) == mode
        kept = CredentialStore(tmp_path, "file").read()
        assert (kept is None) is ("logout" in method)
