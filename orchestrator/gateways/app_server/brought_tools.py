"""Tools that a client brings with `thread/start`, as it describes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.core.client_tools import MOST_TOOLS, BadTool, ClientTool, client_tool
from orchestrator.gateways.app_server.errors import bad_params
from orchestrator.gateways.app_server.method import Params


class FunctionGiven(Params):
    """A tool; one whose loading is deferred is offered to a model that has searched for it."""

    type: Literal["function"] = "function"
    name: str
    description: str
    input_schema: Any
    defer_loading: bool = False


class NamespaceGiven(Params):
    """Tools whose names begin with one name."""

    type: Literal["namespace"]
    name: str
    description: str
    tools: Annotated[tuple[FunctionGiven, ...], Field(max_length=MOST_TOOLS)]


ToolGiven = Annotated[FunctionGiven | NamespaceGiven, Field(discriminator="type")]


def tools_of(given: Sequence[FunctionGiven | NamespaceGiven]) -> tuple[ClientTool, ...]:
    """The tools that models are offered; raises `RpcError` for one that cannot be."""
    try:
        return tuple(_tools(given))
    except BadTool as error:
        raise bad_params(f"dynamicTools: {error}") from None


def _tools(given: Sequence[FunctionGiven | NamespaceGiven]) -> Iterator[ClientTool]:
    for each in given:
        inside = each.tools if isinstance(each, NamespaceGiven) else (each,)
        namespace = each.name if isinstance(each, NamespaceGiven) else None
        for tool in inside:
            yield client_tool(
                namespace, tool.name, tool.description, tool.input_schema, deferred=tool.defer_loading
            )
