"""Events as tenants get them: nothing that Dendro says of the machine names a path or an address."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import Labels, StoredEvent
from orchestrator.gateways.bursts import bursts_of
from orchestrator.gateways.bursts import for_tenant as burst_for_tenant
from orchestrator.gateways.resume import past_events
from orchestrator.views.event import Message, for_tenant, without_places
from tests.views.test_thread_log import Logs, event, fact, log_of
from tests.views.test_threads import CHILD, ROOT

AWAY = (
    "model provider openai cannot be reached at http://10.1.2.3:6391/v1: Cannot connect to host "
    "models.internal:6391 ssl:default [Connect call failed ('10.1.2.3', 6391)]; check the network"
)
RULES = "rules about commands: /home/ann/.dendro/rules/bad.rules: line 1: not readable"
MACHINE = ("/home", ".dendro", "10.1.2.3", "6391", "internal", "secret-tool/")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RULES, "rules about commands: …/bad.rules: line 1: not readable"),
        ("see https://user:key@host.example/a?b=c, and ws://[::1]:4500/x.", "see …, and …."),
        ("cannot reach [fe80::1]:443 or db-1.internal:6379", "cannot reach … or …"),
        ("('::1', 80, 0, 0)", "…"),
        ("in ~/.ssh/id and '/etc/x'", "in …/id and '…/x'"),
        ("thread/list, and/or 3/4 at 12:30, line 3:12", "thread/list, and/or 3/4 at 12:30, line 3:12"),
    ],
)
def test_words_of_dendro_lose_paths_and_addresses_and_nothing_else(text: str, told: str) -> None:
    assert without_places(text) == told


TOOL = "the program /home/secret-tool/x is not there"
ERROR = {"type": "error", "message": AWAY}
SAID: list[dict[str, Any]] = [
    ERROR,
    {"type": "stream_error", "message": AWAY, "additional_details": AWAY},
    {"type": "warning", "message": RULES},
    {"type": "background_event", "message": RULES},
    {"type": "conversation_path", "path": "/home/ann/x.jsonl"},
    {
        "type": "session_configured",
        "rollout_path": "/home/x",
        "initial_messages": [{"type": "error", "message": AWAY}],
    },
    {
        "type": "mcp_startup_update",
        "server": "s",
        "status": {"state": "failed", "error": "no /home/secret-tool/x"},
    },
    {
        "type": "mcp_startup_complete",
        "ready": [],
        "failed": [{"server": "s", "error": "no /home/secret-tool/x"}],
    },
    {
        "type": "list_skills_response",
        "skills": [
            {
                "cwd": "/w",
                "skills": [{"name": "a", "path": "/home/ann/.dendro/skills/a/SKILL.md", "scope": "user"}],
                "errors": [
                    {"path": "/home/ann/.dendro/skills/b/SKILL.md", "message": "no /home/ann/.dendro/y"}
                ],
            }
        ],
    },
    {"type": "list_custom_prompts_response", "custom_prompts": [{"name": "p", "path": "/home/ann/p.md"}]},
]


def with_twice(value: Any) -> Any:
    """The same with each member of a list twice: what holds for the first holds for all."""
    if isinstance(value, list):
        return [with_twice(each) for each in (*value, *value)]
    return {name: with_twice(each) for name, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "message",
    [*SAID, *map(with_twice, SAID)],
    ids=[*(each["type"] for each in SAID), *(f"{each['type']}, all twice" for each in SAID)],
)
def test_event_that_tells_of_the_machine_tells_a_tenant_nothing_of_it(message: dict[str, Any]) -> None:
    told = str(for_tenant(message))
    assert [word for word in MACHINE if word in told] == []
    assert any(word in str(message) for word in MACHINE), "or the example says nothing"


@pytest.mark.parametrize("message", SAID, ids=[each["type"] for each in SAID])
def test_each_of_several_is_told_to_a_tenant_as_it_would_be_alone(message: dict[str, Any]) -> None:
    assert for_tenant(with_twice(message)) == with_twice(for_tenant(message))


def test_words_of_agents_and_commands_are_the_tenants_own() -> None:
    for message in (
        {"type": "agent_message", "message": RULES},
        {"type": "exec_command_begin", "command": ["cat", "/etc/x"], "cwd": "/w"},
        {"type": "user_message", "message": AWAY},
    ):
        assert for_tenant(message) is message


def test_live_error_reaches_a_tenant_without_the_providers_address() -> None:
    payload = orjson.dumps({"id": "1", "msg": {"type": "error", "message": AWAY}})
    stored = StoredEvent(1, payload, 1, "0" * 8)
    (burst,) = bursts_of([stored], Message)
    assert b"10.1.2.3" in burst.lines(None, 0)
    assert b"10.1.2.3" not in burst_for_tenant(burst).lines(None, 0)


@pytest.mark.parametrize(("namespace", "shown"), [("acme", False), ("", True)])
async def test_error_of_a_turn_is_read_from_a_tenants_log_without_the_address(
    namespace: str, shown: bool
) -> None:
    logs = Logs()
    lines = [event("task_started", "t"), event("error", "t", message=AWAY), event("task_complete", "t")]
    logs.add(ROOT, lines, labels=Labels(namespace))
    log = await log_of(logs)
    [turn] = [await log.turn(stretch) async for stretch in log.back()]
    assert turn is not None
    assert ("10.1.2.3" in str(turn)) is shown


@pytest.mark.parametrize(("namespace", "shown"), [("acme", False), ("", True)])
async def test_conversation_that_a_tenant_resumes_has_no_paths_in_its_past_not_that_of_its_source_either(
    namespace: str, shown: bool
) -> None:
    logs, labels = Logs(), Labels(namespace)
    source = logs.add(CHILD, [event("warning", message=RULES), event("error", message=AWAY)], labels=labels)
    parent = {"session": CHILD, "seq": source.seq, "chain": source.head.hex()}
    forked = fact("forked", parent=parent, content=[])
    fork = logs.add(ROOT, [forked, event("background_event", message=RULES)], labels=labels)
    told = await past_events(cast(Any, logs), fork)
    assert [message["type"] for message in told] == ["warning", "error", "background_event"]
    for message, place in zip(told, ("/home/ann", "10.1.2.3", "/home/ann"), strict=True):
        assert (place in message["message"]) is shown
