"""The model stub as a process of its own, with a watch on it: `python -m bench.stub_process SCRIPT [PORT]`.

SCRIPT is a behaviour's name, a scenario file, `questions` (`questions`), `trees` or `slow-trees`
(`tree_script`), `chaos`, `peers`, or `soak:SECONDS`, which its model thinks (`proof`). `GET /marks` tells
when each request of a session was seen and when its last byte was given to the kernel, on CLOCK_MONOTONIC,
which all processes share; `GET /spent` how many requests that were, and their seconds in all. Ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import uvicorn
import uvloop
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.questions import QuestionScript
from bench.tree_script import TreeScript
from orchestrator.stub import Scenario, Script, behaviour, build_app
from proof.chaos_script import ChaosScript
from proof.peers_script import PeersScript
from proof.soak_script import SoakScript


class Watched:
    """The stub's application, with a note of each exchange's beginning and end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._marks: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._spent = {"requests": 0, "seconds": 0.0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = time.monotonic()
        asked = {"/marks": self._marks, "/spent": self._spent}.get(scope.get("path", ""))
        if scope["type"] != "http" or asked is not None:
            await Response(orjson.dumps(asked))(scope, receive, send)
            return
        session = _session(scope)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended = time.monotonic()
                self._marks[session].append((seen, ended))
                if scope["method"] == "POST":
                    self._spent["requests"] += 1
                    self._spent["seconds"] += ended - seen
            await send(message)

        await self._app(scope, receive, noted)


def _session(scope: Scope) -> str:
    return next((value.decode() for name, value in scope["headers"] if name == b"session_id"), "")


def _script(name: str) -> Script:
    if name.endswith("trees"):
        return TreeScript(slow=name.startswith("slow"))
    if name == "questions":
        return QuestionScript()
    if name.startswith("soak:"):
        return SoakScript(think_ms=float(name.removeprefix("soak:")) * 1000)
    if name == "chaos":
        return ChaosScript()
    if name == "peers":
        return PeersScript()
    return Scenario.read(Path(name)) if name.endswith(".json") else behaviour(name)


async def _serve(script: Script, port: int) -> None:
    config: Any = uvicorn.Config(
        Watched(build_app(script)),
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.01)
    bound = server.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{bound}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvloop.run(_serve(_script(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])))
