"""The handshake: who the client is, what it can do, and what it does not want to hear."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from orchestrator.gateways.app_server.door import ClientInfo, Door
from orchestrator.gateways.app_server.errors import RpcError
from orchestrator.gateways.app_server.method import Method, Params, Result

PROTOCOL_LEVEL = "0.169.0"
"""The version of the recorded peer whose protocol is served: clients look for it."""
NAME_CHARS = 200


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


async def initialize(door: Door, params: InitializeParams) -> Result:
    """Notes the client; a second time is refused."""
    if door.info is not None:
        raise RpcError("Already initialized")
    told = params.capabilities or Capabilities()
    client = params.client_info
    door.info = ClientInfo(
        client.name[:NAME_CHARS],
        client.version[:NAME_CHARS],
        told.experimental_api,
        frozenset(told.opt_out_notification_methods or ()),
    )
    os, machine = platform.system(), platform.machine()
    return {
        "userAgent": f"{door.info.name}/{PROTOCOL_LEVEL} (dendro {door.ports.version}; {os}; {machine})",
        "codexHome": str(door.ports.home),
        "platformFamily": "unix",
        "platformOs": os.lower(),
    }


METHODS: Mapping[str, Method] = {
    "initialize": Method(InitializeParams, initialize, before_initialize=True),
}
