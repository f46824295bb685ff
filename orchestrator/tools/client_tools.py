"""Tools that a session's client brings along, as the model is offered them, and as calls of them are read.

The worker runs nothing of them: the call waits for the client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import orjson

from orchestrator.core.calls import ClientToolWork
from orchestrator.core.calls.client_tool import MOST_ARGUMENT_BYTES
from orchestrator.core.client_tools import SEARCH, ClientTool
from orchestrator.core.commands import Immediate
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools import tool_search
from orchestrator.tools.arguments import json_object
from orchestrator.tools.specs import function_of_schema


def offered(state: State, taken: Collection[str]) -> Iterator[JsonObject]:
    """The tools of the session's client; a name that the worker knows itself stays the worker's.

    A task beside the conversation has none: it only reads, and nobody knows what a client's tool does.
    """
    if not _serves(state) or state.facts.client_tools is None:
        return
    free = [tool for tool in state.facts.client_tools.tools if tool.name not in taken]
    yield from (_offer(tool) for tool in free if not tool.deferred)
    if deferred := [tool for tool in free if tool.deferred]:
        yield tool_search.spec(deferred)
        yield from map(_offer, tool_search.loaded(state, deferred))


def _offer(tool: ClientTool) -> JsonObject:
    return function_of_schema(tool.name, tool.description, orjson.loads(tool.schema))


def called(state: State, call: Call) -> ClientTool | None:
    """The tool of the session's client that a call means."""
    brought = state.facts.client_tools
    if brought is None or not _serves(state) or call.item["type"] != "function_call":
        return None
    return brought.named(call.name)


def searches(state: State, call: Call) -> bool:
    """Whether a call is the search for tools of the session's client."""
    return call.name == SEARCH and call.item["type"] == "function_call" and bool(_deferred(state))


def searched(state: State, call: Call) -> Immediate:
    """The output of such a call; raises `BadArguments`."""
    return tool_search.searched(call, _deferred(state))


def _deferred(state: State) -> list[ClientTool]:
    brought = state.facts.client_tools
    if brought is None or not _serves(state):
        return []
    return [tool for tool in brought.tools if tool.deferred]


def assessed(state: State, call: Call, tool: ClientTool) -> ClientToolWork:
    """The call as the client is to be asked; raises `BadArguments` for what no JSON object is."""
    brought = state.facts.client_tools
    assert brought is not None
    given = orjson.dumps(json_object(call.item["arguments"], MOST_ARGUMENT_BYTES)).decode()
    return ClientToolWork(tool.tool, brought.client, brought.limit_ms, tool.namespace, given)


def _serves(state: State) -> bool:
    return state.task is None or state.task.branch is None
