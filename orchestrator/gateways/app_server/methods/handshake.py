"""The handshake: who the client is, what it can do, what it does not want to hear; who a page's reader is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.gateways.app_server.door import ClientInfo, Door
from orchestrator.gateways.app_server.greeting import NAME_CHARS, greeting, user_agent
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.method import Method, NoParams, Params, Result
from orchestrator.gateways.principals import Scope

NO_HOME = Path("/")
"""In the place of the home folder, for a tenant: clients expect an absolute path."""


class ClientInfoParams(Params):
    """A client's name and version."""

    name: str
    title: str | None = None
    version: str


class Capabilities(Params):
    """Abilities of a client; others are not looked at."""

    experimental_api: bool = False
    opt_out_notification_methods: tuple[str, ...] | None = None


class InitializeParams(Params):
    """The first request of a connection."""

    client_info: ClientInfoParams
    capabilities: Capabilities | None = None
    protocol_version: str | None = None
    """Clients of version 1 that take the server for one of MCP name it."""


async def initialize(door: Door, params: InitializeParams) -> Result:
    """Notes the client; a second time is refused."""
    if door.info is not None:
        raise RpcError("Already initialized")
    asked = params.capabilities or Capabilities()
    client = params.client_info
    info = ClientInfo(
        client.name[:NAME_CHARS],
        client.version[:NAME_CHARS],
        asked.experimental_api,
        frozenset(asked.opt_out_notification_methods or ()),
    )
    door.introduced(info)
    home = NO_HOME if door.principal.is_tenant else door.ports.home
    told = greeting(info.name, door.ports.version, home)
    if params.protocol_version is None:
        return told
    server = {
        "name": "dendro",
        "title": "Dendro",
        "version": door.ports.version,
        "user_agent": told["userAgent"],
    }
    mcp = {"protocolVersion": params.protocol_version[:NAME_CHARS], "capabilities": {}, "serverInfo": server}
    return {**told, **mcp}


def named_agent(door: Door) -> str:
    """The server's name for itself, to a client that may not have named itself yet."""
    return user_agent(door.info.name if door.info is not None else "dendro", door.ports.version)


async def window_state(door: Door, _: NoParams) -> Result:
    """The first thing that a page reads: who looks, how far the rights go, and which server answers."""
    principal, ports = door.principal, door.ports
    return {
        "who": principal.name,
        "scope": principal.scope.word,
        "namespace": principal.namespace,
        "version": ports.version,
        "now": ports.now_ms(),
        "serverId": ports.server_id,
        "features": list(ports.features),
    }


METHODS: Mapping[str, Method] = {
    "initialize": Method(InitializeParams, initialize, Scope.READ, before_initialize=True),
    "window/state": Method(NoParams, window_state, Scope.READ),
}
