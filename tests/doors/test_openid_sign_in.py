"""Sign-in at an OpenID issuer over the app-server: a real issuer, a browser's redirect, kept tokens."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import orjson
import pytest

from orchestrator.config_keys import Secret
from orchestrator.gateways import openid_sign_in
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.openid_sign_in import SignIn
from orchestrator.model.credentials import CredentialStore, Tokens
from orchestrator.model.issuer import Issuer
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.person_sign_in import sign_in, signed_in
from tests.doors.peer import connected, served
from tests.doors.ports import ports
from tests.doors.schema import assert_valid
from tests.issuer import CLIENT, issuer


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """An issuer, a gateway of the machine's user, and the store of the sign-in."""
    store = CredentialStore(tmp_path, "file")
    async with issuer() as at:
        signing = SignIn(Issuer(at.url), CLIENT, store, os.urandom)
        given = ports(credentials=store, sign_in=signing)
        async with served(given, notifications) as server, connected(server) as peer:
            await peer.greet()
            yield SimpleNamespace(at=at, peer=peer, store=store)
        await signing.cancel()


async def begun(place: SimpleNamespace) -> tuple[str, str, str]:
    """A sign-in: its id, the page that the person opens, and the redirect."""
    answer = await place.peer.call("account/login/start", {"type": "chatgpt"})
    assert_valid("LoginAccountResponse", answer)
    asked = dict(parse_qsl(urlsplit(answer["authUrl"]).query))
    return answer["loginId"], answer["authUrl"], asked["redirect_uri"]


async def redirected(redirect: str, query: dict[str, str]) -> int:
    async with httpx.AsyncClient(trust_env=False) as browser:
        return (await browser.get(f"{redirect}?{urlencode(query)}")).status_code


async def completed(place: SimpleNamespace) -> dict[str, Any]:
    told: dict[str, Any] = await place.peer.until("account/login/completed")
    assert_valid("AccountLoginCompletedNotification", told)
    return told


async def test_person_signs_in_with_a_browser_and_no_token_is_told(place: SimpleNamespace) -> None:
    id, url, redirect = await begun(place)
    asked = dict(parse_qsl(urlsplit(url).query))
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert await redirected(redirect, place.at.authorize(url)) == 200
    assert await completed(place) == {"loginId": id, "success": True, "error": None}
    assert (await place.peer.until("account/updated"))["authMode"] == "chatgpt"
    kept = place.store.read()
    assert isinstance(kept, Tokens)
    assert (kept.access, kept.refresh, kept.email) == ("access", "refresh-1", "ann@example.org")
    account = await place.peer.call("account/read")
    assert_valid("GetAccountResponse", account)
    assert account["account"]["email"] == "ann@example.org"
    assert b"refresh-1" not in orjson.dumps(place.peer.heard)


async def test_redirect_of_another_sign_in_is_refused_and_the_right_one_still_counts(
    place: SimpleNamespace,
) -> None:
    _, url, redirect = await begun(place)
    good = place.at.authorize(url)
    assert await redirected(redirect, {**good, "state": "other"}) == 400
    assert await redirected(redirect, {"code": good["code"]}) == 400
    assert await redirected(redirect.replace("/callback", "/x"), good) == 404
    assert place.store.read() is None
    assert await redirected(redirect, good) == 200
    assert (await completed(place))["success"]


async def test_code_that_the_issuer_does_not_know_signs_nobody_in(place: SimpleNamespace) -> None:
    _, url, redirect = await begun(place)
    await redirected(redirect, {**place.at.authorize(url), "code": "made up"})
    told = await completed(place)
    assert (told["success"], "400 (invalid_grant)" in told["error"]) == (False, True)
    assert place.store.read() is None


async def test_answer_to_another_sign_in_signs_nobody_in(place: SimpleNamespace) -> None:
    _, url, redirect = await begun(place)
    query = place.at.authorize(url)
    place.at.codes[query["code"]]["nonce"] = "another"
    await redirected(redirect, query)
    assert "another sign-in" in (await completed(place))["error"]
    assert place.store.read() is None


async def test_person_who_says_no_is_not_signed_in(place: SimpleNamespace) -> None:
    _, url, redirect = await begun(place)
    state = place.at.authorize(url)["state"]
    await redirected(redirect, {"error": "access_denied", "state": state})
    assert (await completed(place))["error"] == "the issuer refused: access_denied"


async def test_sign_in_that_is_cancelled_takes_no_code_any_more(place: SimpleNamespace) -> None:
    id, url, redirect = await begun(place)
    assert await place.peer.call("account/login/cancel", {"loginId": "x"}) == {"status": "notFound"}
    assert await place.peer.call("account/login/cancel", {"loginId": id}) == {"status": "canceled"}
    assert not (await completed(place))["success"]
    with pytest.raises(httpx.ConnectError):
        await redirected(redirect, place.at.authorize(url))


@pytest.mark.parametrize("count", [2, 3])
async def test_of_sign_ins_that_begin_at_once_the_last_one_alone_waits(
    place: SimpleNamespace, count: int
) -> None:
    signing = SignIn(Issuer(place.at.url), CLIENT, place.store, os.urandom)
    ends: list[tuple[str, str | None]] = []

    def told(id: str, error: str | None) -> None:
        ends.append((id, error))

    for _ in range(2):
        ends.clear()
        begun = await asyncio.gather(*(signing.begin(told) for _ in range(count)))
        assert [error for _, error in ends] == ["the sign-in was canceled"] * (count - 1)
        (last,) = [one for one in begun if one.id not in {id for id, _ in ends}]
        for one in begun:
            redirect = dict(parse_qsl(urlsplit(one.url).query))["redirect_uri"]
            if one is not last:
                with pytest.raises(httpx.ConnectError):
                    await redirected(redirect, place.at.authorize(one.url))
        assert not await signing.cancel("another")
        assert await signing.cancel(last.id)
        assert ends[-1] == (last.id, "the sign-in was canceled")
        assert not await signing.cancel()
    assert place.store.read() is None


@pytest.mark.parametrize("wrong", [62, 63, 64])
async def test_sign_in_takes_so_many_requests_and_the_next_one_begins_to_count_anew(wrong: int) -> None:
    assert openid_sign_in.MOST_REDIRECTS == 64
    for _ in range(2):
        code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serve = openid_sign_in._redirects(code, "state")

        async def asked(query: str) -> bytes:
            reader, sent = asyncio.StreamReader(), bytearray()
            reader.feed_data(f"GET /callback?{query} HTTP/1.1\r\n\r\n".encode())
            writer = SimpleNamespace(
                write=sent.extend, drain=nothing, close=lambda: None, wait_closed=nothing
            )
            await serve(reader, cast(Any, writer))  # noqa: B023
            return bytes(sent[:12])

        for _ in range(wrong):
            assert await asked("state=other&code=mine") == b"HTTP/1.1 400"
        good = await asked("state=state&code=mine")
        assert good == (b"HTTP/1.1 200" if wrong < 64 else b"HTTP/1.1 429")
        assert code.done() is (wrong < 64)
        # A code counts once.
        assert await asked("state=state&code=yours") == (b"HTTP/1.1 400" if wrong < 63 else b"HTTP/1.1 429")
        assert not code.done() or code.result() == "mine"


@pytest.mark.parametrize(
    "line", ["GET http://[::1 HTTP/1.1", "GET //[x/callback?state=s HTTP/1.1", "GET", ""]
)
async def test_request_for_what_is_no_page_of_the_sign_in_is_answered(line: str) -> None:
    code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    assert openid_sign_in._answered(f"{line}\r\n\r\n".encode(), code, "s")[0] == 404
    assert not code.done()


async def nothing() -> None: ...


async def test_issuer_that_is_away_is_named_at_once(place: SimpleNamespace) -> None:
    place.at.down = True
    _, text = await place.peer.refused("account/login/start", {"type": "chatgpt"})
    assert "answered 503" in text


async def test_client_of_version_1_signs_in_the_same_way(place: SimpleNamespace) -> None:
    begun = await place.peer.call("loginChatGpt")
    asked = dict(parse_qsl(urlsplit(begun["authUrl"]).query))
    await redirected(asked["redirect_uri"], place.at.authorize(begun["authUrl"]))
    done = await place.peer.until("loginChatGptComplete")
    assert done == {"loginId": begun["loginId"], "success": True, "error": None}
    assert "account/login/completed" not in place.peer.methods()


# ── the worker's side ─────────────────────────────────────────────────────────────────────────


async def test_token_that_is_about_to_end_is_refreshed_once_and_kept(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    settings = load_settings(SettingsSources(tmp_path, environ, overrides=("auth.store=file",)))
    assert sign_in(settings) is None
    store, key = CredentialStore(tmp_path, "file"), signed_in(settings)
    async with issuer() as at:
        old = Tokens(Secret("old"), at.url, CLIENT, Secret("refresh-1"), time.time() + 30, "ann@example.org")
        store.write(replace(old, expires_at=time.time() + 3_600))
        assert await key() == "old"
        store.write(old)
        assert [await key(), await key()] == ["fresh", "fresh"]
        kept = store.read()
        assert isinstance(kept, Tokens)
        assert (kept.refresh, kept.email) == ("refresh-1+", "ann@example.org")
        assert at.asked.count("/token") == 1
        at.down = True
        store.write(old)
        assert await key() == "old"


async def test_token_is_refreshed_again_and_again_by_an_issuer_that_keeps_the_refresh_token(
    tmp_path: Path,
) -> None:
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    settings = load_settings(SettingsSources(tmp_path, environ, overrides=("auth.store=file",)))
    store, key = CredentialStore(tmp_path, "file"), signed_in(settings)
    async with issuer() as at:
        at.rotates = False
        store.write(
            Tokens(Secret("old"), at.url, CLIENT, Secret("refresh-1"), time.time() + 30, "ann@example.org")
        )
        for times in (1, 2, 3):
            assert await key() == "fresh"
            assert at.asked.count("/token") == times
            kept = store.read()
            assert isinstance(kept, Tokens)
            assert (kept.refresh, kept.email) == ("refresh-1", "ann@example.org")
            store.write(replace(kept, expires_at=time.time() + 30))
