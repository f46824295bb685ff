"""A session whose provider is asked by another protocol from one process to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conversation import Scene, hold, scene
from tests.acceptance.wires import CHAT, RESPONSES

OPEN_DOORS = 'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+alpha\n*** End Patch\n"
MODEL: list[dict[str, Any]] = [
    {"items": [{"reasoning": "**Looking** first"}, {"custom_call": "apply_patch", "input": PATCH}]},
    {"items": [{"text": "written"}]},
    {"items": [{"reasoning": "thinking aloud"}, {"call": "shell", "args": {"command": ["true"]}}]},
    {"items": [{"text": "run"}]},
    {"items": [{"text": "the end"}]},
]


@pytest.mark.slow
async def test_a_session_goes_on_where_its_provider_is_asked_by_the_other_protocol(tmp_path: Path) -> None:
    async with scene(tmp_path, OPEN_DOORS, MODEL) as place:
        for number, wire in enumerate((RESPONSES, CHAT, RESPONSES)):
            await turn(place, number, wire)
    first, _, over_chat, _, last = place.held.requests
    assert ["input" in first, "messages" in over_chat, "input" in last] == [True] * 3

    said = [(message["role"], names(message)) for message in over_chat["messages"]]
    assert said[2:] == [
        ("user", []),
        ("assistant", ["apply_patch"]),
        ("tool", []),
        ("assistant", []),
        ("user", []),
    ]
    kinds = [(item["type"], item.get("role", item.get("name"))) for item in last["input"]]
    assert kinds[1:] == [
        ("message", "user"),
        ("reasoning", None),
        ("custom_tool_call", "apply_patch"),
        ("custom_tool_call_output", None),
        ("message", "assistant"),
        ("message", "user"),
        ("function_call", "shell"),
        ("function_call_output", None),
        ("message", "assistant"),
        ("message", "user"),
    ]
    raw = [line["payload"] for line in place.held.rollout if line["payload"].get("type") == "reasoning"]
    assert [bool(item.get("encrypted_content")) for item in raw] == [True, False]


async def turn(place: Scene, number: int, wire: str) -> None:
    """Holds a turn with a process that asks by this protocol."""
    table = f'[model_providers.openai]\nwire_api = "{wire}"\n'
    (place.setup.data / "dendro.toml").write_text(OPEN_DOORS + table)
    ids = [e["msg"]["session_id"] for e in place.held.events if e["msg"]["type"] == "session_configured"]
    end = {"type": "task_complete"}
    async with place.proto(*(["--resume", ids[0]] if ids else [])) as proto:
        lines: list[dict[str, Any]] = [
            {"eq": {"id": "", "msg": {"type": "session_configured"}}},
            {
                "sq": {
                    "id": f"s{number}",
                    "op": {"type": "user_input", "items": [{"type": "text", "text": "go"}]},
                }
            },
            {"eq": {"id": f"s{number}", "msg": end}},
            {"sq": {"id": f"bye{number}", "op": {"type": "shutdown"}}},
            {"eq": {"id": f"bye{number}", "msg": {"type": "shutdown_complete"}}},
        ]
        assert await hold(proto, lines, place.setup.bindings()) == 0


def names(message: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls", ())]
