"""The server of one process: its connections, and the sessions that they hear."""

from __future__ import annotations

from orchestrator.gateways.app_server.connection import Connection
from orchestrator.gateways.app_server.live import LiveThreads, Write
from orchestrator.gateways.app_server.ports import Ports
from orchestrator.gateways.app_server.write_notifications import notifications
from orchestrator.gateways.wires.wire import Wire


class AppServer:
    """Serves any number of connections; what one of them does holds up no other."""

    def __init__(self, ports: Ports, write: Write = notifications) -> None:
        self._ports = ports
        self._threads = LiveThreads(ports, write)

    def connection(self, wire: Wire) -> Connection:
        """A connection, to be served."""
        return Connection(self._ports, self._threads, wire)

    async def serve(self, wire: Wire) -> None:
        """Serves one connection until its client has left."""
        await self.connection(wire).serve()

    async def close(self) -> None:
        """Follows no session any more."""
        await self._threads.close()
