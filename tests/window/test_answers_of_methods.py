"""Methods over HTTP without a Redis: each error has its status, and a tenant reads no path in any of them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from orchestrator.broker.errors import QueueFull, Unavailable, UnknownSession
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.messages import Code, NotMeant, NotThere, RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, NoParams
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.submit import OpRefused
from orchestrator.gateways.window import door
from orchestrator.gateways.window.door import Window, WindowPorts
from orchestrator.gateways.window.pages import File, Pages
from orchestrator.gateways.wires.authentication import TokenWatch
from orchestrator.protocol.submission import MalformedSubmission
from tests.doors.ports import ports

PATH = "/home/ann/secret/file.txt"
PAGES = Pages(File(b"", "text/html"), {}, [])
WORDS = f"it stands in {PATH}"
PEOPLE = {
    "ann": Principal("ann", token="a"),
    "eve": Principal("acme/eve", "acme", Scope.ADMIN, "e"),
    "bob": Principal("acme/bob", "acme", Scope.READ, "b"),
}
ERRORS: list[tuple[Exception, int, int]] = [
    (bad_params(WORDS), 400, Code.BAD_PARAMS),
    (MalformedSubmission(WORDS), 400, Code.BAD_PARAMS),
    (NotMeant(WORDS), 403, Code.REFUSED),
    (NotPermitted(WORDS), 403, Code.REFUSED),
    (NotThere(WORDS), 404, Code.REFUSED),
    (RpcError(WORDS, Code.UNKNOWN_METHOD), 404, Code.UNKNOWN_METHOD),
    (UnknownSession(SessionId("s")), 404, Code.REFUSED),
    (RpcError(WORDS), 409, Code.REFUSED),
    (OpRefused(WORDS), 409, Code.REFUSED),
    (QueueFull(SessionId("s"), 3, 3), 409, Code.REFUSED),
    (Unavailable(WORDS), 503, Code.INTERNAL),
    (RuntimeError(WORDS), 500, Code.INTERNAL),
]


async def _look_up(token: str) -> Principal | None:
    return PEOPLE.get(token)


async def _all_count() -> frozenset[str]:
    return frozenset(each.token for each in PEOPLE.values())


def browser(monkeypatch: pytest.MonkeyPatch, raises: Exception) -> httpx.AsyncClient:
    """A client of a window one of whose methods fails so."""

    async def fails(of: Any, params: Any) -> Any:
        raise raises

    monkeypatch.setattr(door, "METHODS", {"fails": Method(NoParams, fails, Scope.READ)})
    threads = cast(Any, SimpleNamespace())
    given = WindowPorts(ports(), threads, _look_up, cast(Any, None), TokenWatch(_all_count), lambda: True)
    app = cast(Any, Window(given, PAGES))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:4600")


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize(("error", "status", "code"), ERRORS, ids=lambda one: type(one).__name__)
async def test_error_of_each_kind_has_its_status_and_code_and_tells_a_tenant_no_path(
    error: Exception, status: int, code: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(monkeypatch, error) as client:
        answer = await client.post("/api/fails", json={}, headers={"Authorization": f"Bearer {who}"})
    told = answer.json()["error"]
    assert (answer.status_code, told["code"]) == (status, code)
    # What no code foresees, and what Redis says, is told to nobody.
    shows = WORDS in str(error) and status < 500 and not PEOPLE[who].is_tenant
    assert (PATH in told["message"]) is shows
    assert told["message"]


async def test_fault_inside_the_server_is_told_by_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "dendro.window")
    async with browser(monkeypatch, RuntimeError(WORDS)) as client:
        answer = await client.post("/api/fails", json={}, headers={"Authorization": "Bearer ann"})
    assert "its log says why" in answer.json()["error"]["message"]
    assert any(record.exc_info and WORDS in str(record.exc_info[1]) for record in caplog.records)
