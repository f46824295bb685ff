"""Sign-in of browsers: codes, pasted tokens, the cookie, and how each of them ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from orchestrator.gateways.bearer_tokens import PrincipalLookUp, TokenWish, listed, new_token, revoke
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window import door
from orchestrator.gateways.window.door import MOST_WRONG, WRONG_S, Tries
from orchestrator.gateways.window.sign_in import NotSignedIn, Windows, new_code
from tests.runtime.harness import Harness
from tests.window.site import KEY, Site

pytestmark = pytest.mark.realredis


async def test_code_signs_in_once_as_the_machines_user(site: Site) -> None:
    code = await site.code()
    one, two = site.browser(), site.browser()
    answer = await one.post("login", {"code": code, "key": KEY})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert (told["who"], told["scope"], told["namespace"]) == ("ann@host", "admin", "")
    assert 0 < told["expiresAtMs"] - time.time() * 1000 <= 12 * 3_600_000
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("dendro=dendro_")
    for part in ("httponly", "samesite=strict", "path=/", "max-age=43"):
        assert part in cookie
    assert "secure" not in cookie
    assert (await one.call("window/state"))["who"] == "ann@host"
    status, _, text = await two.refused("login", {"code": code})
    assert status == 401
    assert "dendro token code" in text


async def test_of_two_who_come_with_one_code_at_once_one_is_signed_in(site: Site) -> None:
    code = await site.code()
    answers = await asyncio.gather(*(site.browser().post("login", {"code": code}) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 401, 401, 401, 401]
    assert len(await listed(site.harness.broker.requests)) == 1


async def test_code_of_a_scope_gives_no_more(site: Site) -> None:
    browser = site.browser()
    await browser.post("login", {"code": await site.code(Scope.READ), "key": KEY})
    assert (await browser.call("window/state"))["scope"] == "read"
    assert (await browser.refused("thread/start"))[0] == 403


async def test_redis_learns_no_code_and_no_cookie_and_forgets_a_code_after_ten_minutes(site: Site) -> None:
    code = await site.code()
    command: Any = site.harness.broker.command
    (name,) = await command("KEYS", "*code:*")
    assert code.encode() not in name
    assert code.encode() not in await command("GET", name)
    assert 590_000 < await command("PTTL", name) <= 600_000
    browser = site.browser()
    await browser.post("login", {"code": code, "key": KEY})
    secret = browser.client.cookies["dendro"].split("_", 2)[2]
    (record,) = (await site.harness.broker.requests.tokens()).values()
    assert secret.encode() not in record
    assert KEY.encode() not in record
    assert await command("KEYS", "*code:*") == []


async def test_pasted_token_gives_its_name_scope_and_namespace(site: Site) -> None:
    browser = await site.signed_in(Scope.APPROVE, "acme", "bo")
    state = await browser.call("window/state")
    assert (state["who"], state["scope"], state["namespace"]) == ("acme/bo", "approve", "acme")


async def test_browser_is_listed_as_somebodys_window_and_ends_with_the_token_it_came_from(
    harness: Harness,
) -> None:
    store, now = harness.broker.requests, [1_000]
    look_up = PrincipalLookUp(store, lambda: now[0])
    windows = Windows(store, look_up, lambda: now[0], os.urandom)
    text, parent = await new_token(store, TokenWish("ana", expires_ms=10_000), now[0], os.urandom)
    cookie, made = await windows.sign_in_by_token(text, KEY)
    assert made.window is not None
    assert (made.name, made.window.parent, made.expires_ms) == ("ana", parent.id, 10_000)
    assert await look_up.in_force() == {parent.id, made.id}
    assert await windows.record(cookie, KEY) == made
    assert await windows.record(cookie, KEY[:-1] + "x") is None
    assert await windows.record(text, KEY) is None
    assert await look_up(cookie) is None
    now[0] = 10_000
    assert await look_up.in_force() == frozenset()
    assert await windows.record(cookie, KEY) is None


async def test_revoking_a_token_removes_its_browsers_with_it_and_no_others(harness: Harness) -> None:
    store = harness.broker.requests
    look_up = PrincipalLookUp(store, lambda: 1_000)
    windows = Windows(store, look_up, lambda: 1_000, os.urandom)
    text, parent = await new_token(store, TokenWish("ana"), 1_000, os.urandom)
    other, _ = await new_token(store, TokenWish("bo"), 1_000, os.urandom)
    cookie, _ = await windows.sign_in_by_token(text)
    kept, kept_record = await windows.sign_in_by_token(other)
    assert await revoke(store, parent.id)
    assert not await revoke(store, parent.id)
    assert await windows.record(cookie, "") is None
    assert await windows.record(kept, "") == kept_record
    assert sorted(record.name for record in await listed(store)) == ["bo", "bo"]
    # A browser that was signed in while its token was revoked is nobody, either.
    await store.remove_tokens([record.id for record in await listed(store) if record.window is None])
    assert await windows.record(kept, "") is None
    assert await look_up.in_force() == frozenset()


async def test_browsers_that_are_over_leave_with_the_next_sign_in(harness: Harness) -> None:
    store, now = harness.broker.requests, [1_000]
    look_up = PrincipalLookUp(store, lambda: now[0])
    windows = Windows(store, look_up, lambda: now[0], os.urandom)
    for _ in range(3):
        await windows.sign_in_by_code(await new_code(store, Principal("ann@host"), Scope.READ, os.urandom))
    now[0] += 13 * 3_600_000
    await windows.sign_in_by_code(await new_code(store, Principal("ann@host"), Scope.READ, os.urandom))
    assert len(await listed(store)) == 1


async def test_record_of_an_earlier_version_is_read_as_it_was(harness: Harness) -> None:
    store = harness.broker.requests
    _, record = await new_token(store, TokenWish("ci"), 5, os.urandom)
    assert "window" not in orjson.loads((await store.tokens())[record.id])
    assert (await listed(store)) == [record]


@pytest.mark.parametrize("code", ["", "x", "A" * 22, "A" * 23, "é" * 22])
async def test_code_that_nobody_made_signs_nobody_in(harness: Harness, code: str) -> None:
    store = harness.broker.requests
    windows = Windows(store, PrincipalLookUp(store, lambda: 1), lambda: 1, os.urandom)
    with pytest.raises(NotSignedIn):
        await windows.sign_in_by_code(code)
    with pytest.raises(NotSignedIn):
        await windows.sign_in_by_token(code)


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"code": 7},
        {"code": "x", "token": "y"},
        {"code": "x", "key": 7},
        {"code": "x", "key": "short"},
        {"code": "x", "key": "k" * 129},
        {"token": ""},
    ],
)
async def test_sign_in_that_is_none_is_refused_by_its_member(site: Site, given: object) -> None:
    status, code, text = await site.browser().refused("login", given)
    assert (status, code) == (400, -32602)
    assert "code" in text or "key" in text


async def test_after_ten_wrong_tries_an_address_waits_a_minute(site: Site) -> None:
    site.now.append(100.0)
    browser = site.browser()
    for _ in range(10):
        assert (await browser.refused("login", {"code": "A" * 22}))[0] == 401
    answer = await browser.post("login", {"code": await site.code()})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "61"
    assert answer.json()["error"]["code"] == -32001
    # Who is signed in already is not concerned.
    program = site.program(await site.token())
    assert (await program.call("window/state"))["who"] == "ana"
    site.now[0] += 60
    assert (await browser.post("login", {"code": await site.code()})).status_code == 200


async def test_right_tries_are_not_counted(site: Site) -> None:
    site.now.append(100.0)
    for _ in range(12):
        assert (await site.browser().post("login", {"code": await site.code()})).status_code == 200


async def test_many_tries_at_once_are_no_way_around_the_bound(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those that wait with their bodies until all of them have come."""
    site.now.append(100.0)
    browser, checked, come, all_came = site.browser(), door._check_origin, list[None](), asyncio.Event()

    def check(request: Any) -> None:
        checked(request)
        come.append(None)
        if len(come) == 30:
            all_came.set()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"code": '
        await all_came.wait()
        yield orjson.dumps("A" * 22) + b"}"

    async def tries() -> int:
        headers = {"Content-Type": "application/json", **browser.headers}
        return (await browser.client.post("/api/login", content=body(), headers=headers)).status_code

    monkeypatch.setattr(door, "_check_origin", check)
    statuses = await asyncio.gather(*(tries() for _ in range(30)))
    assert sorted(statuses) == [401] * 10 + [429] * 20


async def test_signing_out_ends_the_cookie_and_clears_it(site: Site) -> None:
    browser = await site.signed_in()
    cookie = browser.client.cookies["dendro"]
    answer = await browser.post("logout")
    assert answer.status_code == 200
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert (await browser.refused("window/state"))[0] == 401
    assert (await browser.refused("window/state", Cookie=f"dendro={cookie}"))[0] == 401
    program = site.program(await site.token())
    assert (await program.refused("logout"))[0] == 409


async def test_no_secret_of_a_sign_in_stands_in_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    code, token = await site.code(), await site.token()
    browser = site.browser()
    await browser.post("login", {"code": code, "key": KEY})
    await browser.post("login", {"token": token, "key": KEY})
    await browser.refused("login", {"token": token + "x"})
    ours = "\n".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records if record.name[:6] == "dendro"
    )
    assert "signed in" in ours
    for secret in (code, token, KEY, browser.client.cookies["dendro"]):
        assert secret not in ours


def test_right_try_takes_no_wrong_one_back_and_other_addresses_do_not_wait() -> None:
    now = [5.0]
    tries = Tries(lambda: now[0])
    for _ in range(MOST_WRONG - 1):
        tries.count("here")
        now[0] += 1
    tries.forgive("here", tries.count("here"))
    assert tries.wait_s("here") == 0
    tries.count("here")
    assert tries.wait_s("here") > 0
    assert tries.wait_s("there") == 0
    now[0] += WRONG_S
    assert tries.wait_s("here") == 0


@pytest.mark.parametrize("most", [1, 2, 3])
def test_addresses_that_tried_last_are_kept_in_mind_and_no_more_of_them(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.MOST_ADDRESSES == 10_000
    monkeypatch.setattr(door, "MOST_ADDRESSES", most)
    tries = Tries(lambda: 0.0)
    for _ in range(MOST_WRONG):
        for number in range(most):
            tries.count(f"10.0.0.{number}")
    assert [tries.wait_s(f"10.0.0.{number}") > 0 for number in range(most)] == [True] * most
    # It tries again, and so it is not the oldest any more.
    tries.count("10.0.0.0")
    tries.count("10.0.0.99")
    kept = [f"10.0.0.{number}" for number in range(most + 1) if tries.wait_s(f"10.0.0.{number}") > 0]
    oldest = 1 if most > 1 else 0
    assert kept == [f"10.0.0.{number}" for number in range(most) if number != oldest]
    assert len(tries._at) == most
