"""A log leaves the window as a file: the one that `dendro export` makes, for those who may have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.bearer_tokens import revoke
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.window import door
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.export import Tally, exported, header_of
from tests.doors.test_app_server_turns import ports_of
from tests.runtime.players import ends, message
from tests.window.site import Browser, Site

pytestmark = pytest.mark.realredis


async def _said(site: Site) -> SessionId:
    """A session in which something was said, at rest."""
    session = await site.harness.session()
    await site.harness.say(session, "hello")
    site.harness.models.will([message("it is done"), ends()])
    await site.harness.run(session)
    return session


async def _file(browser: Browser, asked: dict[str, Any]) -> httpx.Response:
    return await browser.post("export", asked)


async def test_a_log_is_sent_as_the_command_writes_it(site: Site) -> None:
    session = await _said(site)
    ports = ports_of(site.harness)
    head = await site.harness.broker.logs.head(session)
    assert head is not None
    for full in (False, True):
        wanted = b"".join([lines async for lines in exported(ports.found, head, full, Tally())])
        if full:
            wanted = header_of(head, ports.key_id).encode(ports.found.secret) + b"\n" + wanted
        browser = await site.signed_in(Scope.ADMIN if full else Scope.APPROVE)
        answer = await _file(browser, {"threadId": session, "full": full})
        assert answer.content == wanted
        name = f"{'session' if full else 'rollout'}-{session}.jsonl"
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert answer.headers["cache-control"] == "no-store"


async def test_a_log_is_for_those_who_may_see_the_machine(site: Site) -> None:
    session = await _said(site)
    asked = {"threadId": session}
    reader, approver = await site.signed_in(Scope.SUBMIT), await site.signed_in(Scope.APPROVE)
    tenant = await site.signed_in(Scope.ADMIN, "team")
    assert (await site.browser().refused("export", asked))[0] == 401
    assert "needs the scope approve" in (await reader.refused("export", asked))[2]
    status, _, text = await approver.refused("export", {**asked, "full": True})
    assert (status, "needs the scope admin" in text) == (403, True)
    assert (await tenant.refused("export", asked))[0] == 403
    assert (await approver.refused("export", {"threadId": "0190a4c0-0000-7000-8000-000000000000"}))[0] == 404
    wrong_ones: list[Any] = [{}, [], {"threadId": 7}, {"threadId": "x" * 2_000}, {**asked, "full": []}]
    for wrong in wrong_ones:
        assert (await approver.refused("export", wrong))[0] == 400
    assert (await approver.refused("export", asked, **{"Sec-Fetch-Site": "cross-site"}))[0] == 403


async def test_an_export_that_breaks_off_is_no_whole_file(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, browser = await _said(site), await site.signed_in()

    async def broken(*_: Any) -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise RolloutError("entry 3 is missing")

    monkeypatch.setattr(door, "exported", broken)
    with pytest.raises(httpx.RemoteProtocolError):
        await _file(browser, {"threadId": session})
    assert (await browser.call("window/state"))["who"] == "ana"


async def test_two_exports_at_once_are_served_and_a_third_one_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, browser, goes_on = await _said(site), await site.signed_in(), asyncio.Event()
    begun = asyncio.Queue[None]()

    async def slow(*_: Any) -> AsyncIterator[bytes]:
        begun.put_nowait(None)
        await goes_on.wait()
        yield b"{}\n"

    monkeypatch.setattr(door, "exported", slow)
    async with asyncio.TaskGroup() as group:
        two = [group.create_task(_file(browser, {"threadId": session})) for _ in range(2)]
        for _ in two:
            await begun.get()
        status, _, text = await browser.refused("export", {"threadId": session})
        goes_on.set()
    assert (status, "wait for one to end" in text) == (429, True)
    assert [one.result().content for one in two] == [b"{}\n", b"{}\n"]
    assert (await _file(browser, {"threadId": session})).content == b"{}\n"


@pytest.mark.parametrize("end", ["breaks off", "its window leaves", "its token ends"])
async def test_export_that_ends_early_leaves_its_place_to_another_each_time(
    end: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, browser = await _said(site), await site.signed_in()
    begun, ended = asyncio.Queue[None](), asyncio.Queue[None]()

    async def early(*_: Any) -> AsyncIterator[bytes]:
        try:
            begun.put_nowait(None)
            yield b"{}\n"
            if end == "breaks off":
                raise RolloutError("entry 3 is missing")
            await asyncio.Event().wait()
        finally:
            ended.put_nowait(None)

    async def whole(*_: Any) -> AsyncIterator[bytes]:
        yield b"{}\n"

    for _ in range(door.MOST_AT_ONCE + 1):
        monkeypatch.setattr(door, "exported", early)
        token = await site.token()
        asking = asyncio.ensure_future(_file(site.program(token), {"threadId": session}))
        await begun.get()
        if end == "its window leaves":
            asking.cancel()
        elif end == "its token ends":
            assert await revoke(site.harness.broker.requests, token.split("_")[1])
            await site.watch.look()
        await ended.get()
        with pytest.raises((httpx.RemoteProtocolError, asyncio.CancelledError)):
            await asking
        monkeypatch.setattr(door, "exported", whole)
        assert (await _file(browser, {"threadId": session})).content == b"{}\n"
    assert site.window._exports == 0
