"""Tools of clients in a worker's toolbox: when they are offered, and how calls of them are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Call, ClientToolWork
from orchestrator.core.calls.ask import MOST_ARGUMENT_BYTES
from orchestrator.core.client_tools import SEARCH, TAKEN, ClientTools, client_tool, client_tools
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.frozen import replace
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.client_tool_calls import offered
from orchestrator.tools.tool_context import ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in
from tests.core.driver import Session, function_call, op, text
from tests.core.tree_driver import Agent, a_tree

TOOLS = built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), cast(Any, None))
TOOLBOX = Toolbox(TOOLS)
PROVIDERS_OWN = "web_search"


def brought() -> ClientTools:
    found = client_tools("mine", 1_000, [client_tool("shop", "lookup", "Looks.", {"properties": {}})])
    assert found is not None
    return found


def working(kind: str = "user_input", **fields: Any) -> State:
    session = Session(facts={"client_tools": brought().wire()})
    session.submit(op(kind, **(fields or {"items": [text("go")]})), "u1")
    return session.state


@dataclass
class Site:
    state: State


async def assess(arguments: str, state: State | None = None) -> Assessment:
    item = function_call("c1", "shop__lookup", arguments)
    call = Call(CallId("c1"), "shop__lookup", item)
    return await TOOLBOX.assess(call, cast(Any, Site(state or working())))


def test_names_that_clients_may_not_take_are_those_of_the_tools_that_there_are() -> None:
    assert {name for tool in TOOLS for name in tool.names} | {PROVIDERS_OWN, SEARCH} == TAKEN


def test_tool_is_offered_under_its_namespace_with_arguments_that_are_an_object() -> None:
    (offer,) = offered(working(), ())
    assert (offer["name"], offer["parameters"]) == ("shop__lookup", {"type": "object", "properties": {}})
    assert offer in TOOLBOX.specs(working())


def test_name_that_the_worker_knows_itself_stays_the_workers() -> None:
    assert list(offered(working(), {"shop__lookup"})) == []


async def test_task_beside_the_conversation_has_no_tools_of_clients() -> None:
    beside = working("plan", plan_request={"goal": "g"})
    assert list(offered(beside, ())) == []
    assert isinstance(await assess("{}", beside), Immediate)


def a_helper_of(parent: Agent) -> Agent:
    tree = parent.tree
    assert tree is not None
    number = tree.next_id()
    parent.asks("h", "spawn_subagent", c.Helper(tree.spec(number, "read it", label="reader"), "Reads"))
    return tree.agents[number]


AGENTS: dict[str, Callable[[Agent], Agent]] = {
    "spawn": lambda parent: parent.spawns("look it up"),
    "fork": lambda parent: parent.forks("look it up"),
    "helper": a_helper_of,
}
"""The ways in which agents are made."""


@pytest.mark.parametrize("way", AGENTS)
async def test_agent_has_no_tools_of_its_roots_client_however_it_was_made(way: str) -> None:
    tree = a_tree(facts={"client_tools": brought().wire()})
    assert "shop__lookup" in [spec["name"] for spec in offered(tree.root.state, ())]
    child = AGENTS[way](tree.root)
    tree.settle()
    family = [child] if way == "helper" else [child, AGENTS[way](child)]
    tree.settle()
    for agent in family:
        facts = replace(agent.state.facts, client_tools=brought())
        # An earlier version has made agents with them.
        for state in (agent.state, replace(agent.state, facts=facts)):
            assert list(offered(state, ())) == []
            said = await assess("{}", state)
            assert isinstance(said, Immediate)
            assert str(said.output).startswith("unsupported call: shop__lookup")
        assert agent.state.facts.client_tools is None


async def test_call_is_assessed_as_one_that_waits_for_the_client() -> None:
    wanted = ClientToolWork("lookup", "mine", 1_000, "shop", '{"id":1}')
    assert await assess(' {"id": 1} ') == wanted


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("[1]", "no JSON object"),
        ("{", "failed to parse"),
        (f'{{"a": "{"x" * MOST_ARGUMENT_BYTES}"}}', "at most 65,536"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper than 64 levels"),
    ],
    ids=["list", "cut", "large", "deep"],
)
async def test_arguments_that_no_client_could_use_are_refused_before_one_is_asked(
    arguments: str, told: str
) -> None:
    refused = await assess(arguments)
    assert isinstance(refused, Immediate)
    assert told in str(refused.output)
