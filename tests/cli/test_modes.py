"""Switches, personalities and modes of a session in whole processes: a client, a worker, a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import proto, requests

pytestmark = pytest.mark.realredis

SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}


def body(request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = request.get("body", request)
    return found


def offered(request: dict[str, Any]) -> dict[str, str]:
    """The offered tools, each with its type."""
    return {tool.get("name", tool["type"]): tool["type"] for tool in body(request)["tools"]}


def test_a_search_of_the_provider_is_told_under_its_own_id(machine: Machine) -> None:
    search = {"item": {**SEARCH, "action": {"type": "search", "query": "q"}}}
    with machine.model({"items": [search, {"text": "found"}]}) as user:
        with proto(user, "-c", "tools.web_search=true") as client:
            client.say("look it up")
            client.until("task_complete")
        told = [event["msg"] for event in client.all("web_search_begin", "web_search_end")]
        assert told[0] == {"type": "web_search_begin", "call_id": "ws_1"}
        assert (told[1]["call_id"], told[1]["query"], len(told)) == ("ws_1", "q", 2)
        assert "web_search" in offered(requests(user)[0])


def test_a_person_switches_tools_off_and_on(machine: Machine) -> None:
    words = ("-c", "tools.view_image=false", "-c", "tools.apply_patch_freeform=true")
    with machine.model(says("done")) as user:
        with proto(user, *words) as client:
            client.say("go")
            client.until("task_complete")
        found = offered(requests(user)[0])
    assert "view_image" not in found
    assert "web_search" not in found
    assert found["apply_patch"] == "custom"
