"""Methods of version 1 as its page names them: served before a handshake, with parameters in either case."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic.alias_generators import to_camel

from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import METHODS, v1
from orchestrator.gateways.app_server.write_items import notifications
from tests.doors.peer import connected, served
from tests.doors.ports import ports

PAGE = (Path(__file__).parents[2] / "docs/doors/json-rpc-v1.md").read_text()
NAMED = [name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.M) for name in re.findall(r"`(\w+)`", row)]
VALUES: dict[str, Any] = {
    "api_key": "k",
    "approval_policy": "never",
    "base_instructions": "b",
    "command": ("id",),
    "config": {"a": 1},
    "conversation_id": "c",
    "cursor": "x",
    "cwd": "/w",
    "effort": "low",
    "include_apply_patch_tool": True,
    "include_plan_tool": True,
    "include_token": True,
    "items": [{"type": "text", "text": "go"}],
    "login_id": "l",
    "model": "m",
    "overrides": {"model": "m"},
    "page_size": 3,
    "path": "/p",
    "profile": "p",
    "query": "q",
    "reasoning_effort": "low",
    "refresh_token": True,
    "rollout_path": "/r",
    "roots": ("/w",),
    "sandbox": "read-only",
    "sandbox_policy": {"mode": "read-only"},
    "subscription_id": "s",
    "summary": "concise",
    "timeout_ms": 5,
}


def test_page_names_every_method_that_is_served_before_the_handshake() -> None:
    assert len(NAMED) == len(set(NAMED))
    assert {*NAMED, "initialize"} == {name for name, one in METHODS.items() if one.before_initialize}


async def test_method_of_version_1_needs_no_handshake_and_each_other_one_does() -> None:
    async with served(ports(), notifications) as server, connected(server) as peer:
        for name in sorted(METHODS):
            if name == "initialize":
                continue
            wrong = {"conversationId": 7, **dict.fromkeys(map(to_camel, VALUES), 7)}
            answer = await peer.ask(name, wrong)
            refused = answer.get("error", {}).get("message") == "Not initialized"
            assert refused is (name not in NAMED), name


@pytest.mark.parametrize("name", NAMED)
def test_each_parameter_is_taken_in_either_case_and_means_the_same(name: str) -> None:
    params = METHODS[name].params
    given = {field: VALUES[field] for field in params.model_fields}
    snake = params.model_validate(given)
    camel = params.model_validate({to_camel(field): value for field, value in given.items()})
    assert snake == camel
    assert snake.model_fields_set == given.keys()


@pytest.mark.parametrize("later", range(4))
@pytest.mark.parametrize("ended", ["turn_aborted", "task_complete"])
async def test_interrupt_is_answered_by_the_event_also_where_the_session_rests_before_it_is_read(
    ended: str, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(door: Any, head: Any) -> str:
        for _ in range(later):
            await asyncio.sleep(0)
        return ended

    async def rests(door: Any, head: Any) -> None:
        return None

    async def conversation(door: Any, id: str) -> Any:
        return SimpleNamespace(at_rest=False, pool="p")

    for named, stand_in in (("_ended", ends), ("_at_rest", rests), ("conversation", conversation)):
        monkeypatch.setattr(v1, named, stand_in)
    asked = v1.OfConversation.model_validate({"conversationId": "c"})
    if ended == "turn_aborted":
        told = await v1.interrupt_conversation(cast(Any, None), asked)
        assert told == {"abortReason": "interrupted"}
    else:
        with pytest.raises(RpcError, match="its turn was just over"):
            await v1.interrupt_conversation(cast(Any, None), asked)
