"""Restate: its server, and the service in a process of its own; no telemetry."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import httpx

from peers.servers import free_ports
from peers.wire import Peer, folder, serve

PROGRAM = "@restatedev/restate-server-linux-x64/bin/restate-server"


class Durable(Peer):
    """Objects of the server; the service can be killed and started again."""

    def __init__(self, http: httpx.AsyncClient, service: str) -> None:
        self._http, self._at = http, service

    async def turn(self, id: str, text: str) -> str:
        id = id or uuid4().hex
        (await self._http.post(f"/talk/{id}/turn", json=text)).raise_for_status()
        return id

    async def resume(self, id: str) -> int:
        return int((await self._http.post(f"/talk/{id}/length")).raise_for_status().json())

    async def kill(self) -> bool:
        self._service.kill()
        self._service.wait()
        return True

    async def restart(self) -> None:
        argv = [sys.executable, "-P", "-m", "peers.restate.service", self._at]
        self._service = subprocess.Popen(argv)
        while self._service.poll() is None:
            await asyncio.sleep(0.05)
            with suppress(OSError):
                _, writer = await asyncio.open_connection(*self._at.split(":"))
                writer.close()
                break


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Server and service, on what an earlier server has left in the folder."""
    ingress, admin, fabric, service = (f"127.0.0.1:{port}" for port in free_ports(4))
    named = {"INGRESS__BIND_ADDRESS": ingress, "ADMIN__BIND_ADDRESS": admin, "BIND_ADDRESS": fabric}
    named |= {"DISABLE_TELEMETRY": "true", "NODE_NAME": "peer", "LISTEN_MODE": "tcp", "LOG_FILTER": "error"}
    environ = {**os.environ, **{f"RESTATE_{name}": value for name, value in named.items()}}
    argv = [os.path.join(os.environ["PEER_NODE"], PROGRAM), "--no-logo", "--base-dir", str(folder() / "kept")]
    server = subprocess.Popen(argv, env=environ)
    async with httpx.AsyncClient(base_url=f"http://{ingress}", trust_env=False, timeout=60.0) as http:
        peer = Durable(http, service)
        await peer.restart()
        deployment = {"uri": f"http://{service}", "force": True}
        for _ in range(600):
            await asyncio.sleep(0.05)
            with suppress(httpx.TransportError):
                if (await http.post(f"http://{admin}/deployments", json=deployment)).is_success:
                    break
        yield peer
        await peer.kill()
    server.terminate()
    server.wait()


if __name__ == "__main__":
    serve(opened)
