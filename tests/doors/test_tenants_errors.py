"""Errors of a connection: a tenant is told each without paths and addresses, the machine's user whole."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.gateways.app_server import client_connection
from orchestrator.gateways.app_server.messages import Code, NotMeant, NotThere, RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, NoParams
from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.submit import OpRefused
from orchestrator.protocol.submission import MalformedSubmission
from tests.doors.peer import connected, served
from tests.doors.ports import ports

PATH = "/home/ann/secret/file.txt"
WORDS = f"it stands in {PATH}"
ERRORS: list[Exception] = [
    *(RpcError(WORDS, code) for code in Code),
    bad_params(WORDS),
    NotThere(WORDS),
    NotMeant(WORDS),
    NotPermitted(WORDS),
    OpRefused(WORDS),
    MalformedSubmission(WORDS),
    Unavailable(WORDS),
]


@pytest.mark.parametrize("waits", [True, False])
async def test_error_of_every_kind_tells_a_tenant_no_path(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Exception] = []

    async def fails(door: Any, params: Any) -> Any:
        raise raised[0]

    methods = {**METHODS, "fails": Method(NoParams, fails, Scope.READ, waits=waits)}
    monkeypatch.setattr(client_connection, "METHODS", methods)
    people = [Principal("ann"), Principal("acme/eve", "acme"), Principal("acme/bob", "acme", Scope.READ)]
    async with served(ports(), notifications) as server:
        for person in people:
            async with connected(server, person) as peer:
                await peer.greet()
                for error in ERRORS:
                    raised[:] = [error]
                    _, text = await peer.refused("fails")
                    assert (PATH in text) is not person.is_tenant, (person, error)
                    assert "it stands in" in text
