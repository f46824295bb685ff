"""The app-server of Codex, which Dendro replaces: a thread for each conversation, all of one process."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peers.wire import MOST_LINE, Peer, folder, model, serve, variant

PROGRAM, NUMBERS = "@openai/codex-linux-*/vendor/*/bin/codex", itertools.count(1)
MODES = {"unconfined": "danger-full-access", "confined": "workspace-write"}


class Codex(Peer):
    async def restart(self) -> None:
        # Not by the script of npm: it is a process more, beside which the server outlives a kill.
        argv = [*map(str, Path(os.environ["PEER_NODE"]).glob(PROGRAM)), "app-server"]
        self._process: Any = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1, limit=MOST_LINE)
        self._waits: dict[Any, asyncio.Future[Any]] = {}
        self._listening = asyncio.create_task(self._listen(self._process.stdout))
        await self._call("initialize", clientInfo={"name": "peers", "version": "1"})

    async def _listen(self, lines: Any) -> None:
        while line := await lines.readline():
            message = json.loads(line)
            ended = message["params"]["threadId"] if message.get("method") == "turn/completed" else None
            if wait := self._waits.pop(ended or message.get("id"), None):
                wait.set_result(message)

    async def _call(self, method: str, **params: Any) -> Any:
        message = {"id": next(NUMBERS), "method": method, "params": params}
        answer = self._waits[message["id"]] = asyncio.Future()
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        return (await answer)["result"]

    async def turn(self, id: str, text: str) -> str:
        if not id:
            mode = {"sandbox": MODES[variant()], "approvalPolicy": "never", "cwd": str(folder() / "ws")}
            id = (await self._call("thread/start", **mode))["thread"]["id"]
        ended = self._waits[id] = asyncio.Future()
        await self._call("turn/start", threadId=id, input=[{"type": "text", "text": text}])
        turn = (await ended)["params"]["turn"]
        assert turn["status"] == "completed", turn
        return id

    async def resume(self, id: str) -> int:
        found = await self._call("thread/resume", threadId=id)
        return sum(len(turn["items"]) for turn in found["thread"]["turns"])

    async def kill(self) -> bool:
        self._process.kill()
        return True


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The server, on what an earlier one has left in the folder."""
    os.environ["CODEX_HOME"] = str(folder() / "home")
    config = Path(__file__).with_name("config.toml").read_text().replace("MODEL", model())
    (folder() / "home/config.toml").write_text(config)
    peer = Codex()
    await peer.restart()
    yield peer
    await peer.kill()


if __name__ == "__main__":
    serve(opened)
