"""Tools that a session's client brings along, as the model is offered them, and as calls of them are read.

The worker runs nothing of them: the call waits for the client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import orjson

from orchestrator.core.calls import ClientToolWork
from orchestrator.core.calls.client_tool import MOST_ARGUMENT_BYTES
from orchestrator.core.client_tools import ClientTool
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.bounds import JSON_DEPTH, deeper_than
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.specs import function_of_schema


def offered(state: State, taken: Collection[str]) -> Iterator[JsonObject]:
    """The tools of the session's client; a name that the worker knows itself stays the worker's.

    A task beside the conversation has none: it only reads, and nobody knows what a client's tool does.
    """
    if _serves(state) and state.facts.client_tools is not None:
        yield from (_offer(tool) for tool in state.facts.client_tools.tools if tool.name not in taken)


def _offer(tool: ClientTool) -> JsonObject:
    return function_of_schema(tool.name, tool.description, orjson.loads(tool.schema))


def called(state: State, call: Call) -> ClientTool | None:
    """The tool of the session's client that a call means."""
    brought = state.facts.client_tools
    if brought is None or not _serves(state) or call.item["type"] != "function_call":
        return None
    return brought.named(call.name)


def assessed(state: State, call: Call, tool: ClientTool) -> ClientToolWork:
    """The call as the client is to be asked; raises `BadArguments` for what no JSON object is."""
    text, brought = call.item["arguments"], state.facts.client_tools
    assert brought is not None
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MOST_ARGUMENT_BYTES:
        raise BadArguments(f"{size:,} bytes of arguments: at most {MOST_ARGUMENT_BYTES:,} are taken")
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"failed to parse function arguments: {error}") from error
    if not isinstance(value, dict):
        raise BadArguments("failed to parse function arguments: they are no JSON object")
    if deeper_than(value, JSON_DEPTH):
        raise BadArguments(f"the arguments are nested deeper than {JSON_DEPTH} levels")
    given = orjson.dumps(value).decode()
    return ClientToolWork(tool.tool, brought.client, brought.limit_ms, tool.namespace, given)


def _serves(state: State) -> bool:
    return state.task is None or state.task.branch is None
