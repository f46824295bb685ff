"""A worker's ports, each of them able to be the last thing that it touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from unittest import mock

from orchestrator.broker.connection import Connection, ScriptCall, connect
from orchestrator.broker.records import LogPlace, StoredEntry
from orchestrator.core.calls import Call, McpWork, PatchWork, StdinWork
from orchestrator.core.commands import Assessment, CallFinished, ProcessEnd, SetupEnded
from orchestrator.core.ids import SessionId
from orchestrator.core.state import Process, State
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Item, ModelEvent, Prompt
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts import rollout_file as export
from orchestrator.rollouts.rollout_file import FilePorts
from orchestrator.runtime.ports import Models, Ports, Tools
from orchestrator.tools.tool_context import AskPerson, CallSite, DeltaSink
from orchestrator.wiring import worker_parts
from tests.crash.points import DURING_PATCH, HELD_PATCH, Doom, Point
from tests.supervisors import booting, deadly, holding

DEPLOYMENT = import_module("orchestrator.wiring.deployment")
"""The module, whose name its package gives to a function."""

HOLD = "hold"
"""The FIFO, in the worker's folder, that holds the writer of a patch."""
ASKED_S = 0.03
"""Enough for a question to be told; whether the person has answered by then is part of the game, too."""
_KINDS: dict[type, str] = {PatchWork: "patch", McpWork: "server", StdinWork: "typing"}
"""The name of a call's points, where it is not a command's."""
SENT_S = 0.002
"""Enough for the bytes to leave; whether the answer came back in that time is part of the game."""


class DeadlyConnection(Connection):
    """Dies around scripts and commands."""

    def __init__(self, inner: Connection, doom: Doom) -> None:
        self._inner = inner
        self._doom = doom
        self.clustered = inner.clustered

    async def _around(self, name: str, send: Callable[[], Awaitable[Any]]) -> Any:
        self._doom.at(f"before:{name}")
        if self._doom.near(f"sent:{name}"):
            await asyncio.wait({asyncio.ensure_future(send())}, timeout=SENT_S)
            self._doom.strike()
        reply = await send()
        self._doom.at(f"after:{name}")
        return reply

    async def run(self, call: ScriptCall) -> list[Any]:
        reply: list[Any] = await self._around(call.script.name, lambda: self._inner.run(call))
        return reply

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        name = calls[0].script.name
        replies: list[list[Any]] = await self._around(name, lambda: self._inner.run_all(calls))
        return replies

    async def command(self, *args: Any) -> Any:
        return await self._around(str(args[0]), lambda: self._inner.command(*args))

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._inner.commands(rows)

    async def together(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._inner.together(rows)

    async def wait(self, *args: Any) -> Any:
        return await self._inner.wait(*args)

    async def aclose(self) -> None:
        await self._inner.aclose()


class DeadlyTools:
    """Dies around calls: before, while their output comes, between their effect and its record."""

    def __init__(self, inner: Tools, doom: Doom) -> None:
        self._inner = inner
        self._doom = doom

    async def prepare(self, state: State, show: DeltaSink) -> None:
        await self._inner.prepare(state, show)

    def release(self, session: SessionId) -> None:
        self._inner.release(session)

    async def of_servers(self, state: State, server: str | None = None) -> dict[str, McpTool]:
        return await self._inner.of_servers(state, server)

    def specs(self, state: State) -> Sequence[Item]:
        return self._inner.specs(state)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        return await self._inner.assess(call, site)

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        kind = _KINDS.get(type(call.work), "command")
        self._doom.at(f"before:{kind}")

        def shown(message: JsonObject) -> None:
            self._doom.at("during:command")
            site.deltas(message)

        finished = await self._inner.run(call, replace(site, deltas=shown, ask=self._asking(site.ask)))
        self._doom.at(f"after:{kind}")
        return finished

    def _asking(self, ask: AskPerson | None) -> AskPerson | None:
        if ask is None:
            return None

        async def asking(call_id: CallId, server: str, words: str) -> ElicitationAction:
            self._doom.at("before:question")
            if self._doom.near("during:question"):
                await asyncio.wait({asyncio.ensure_future(ask(call_id, server, words))}, timeout=ASKED_S)
                self._doom.strike()
            decision = await ask(call_id, server, words)
            self._doom.at("after:question")
            return decision

        return asking

    async def judge(self, call: Call, claim: str) -> str:
        verdict = await self._inner.judge(call, claim)
        self._doom.at("after:judge")
        return verdict

    async def set_up(self, site: CallSite) -> SetupEnded:
        return await self._inner.set_up(site)

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        over = await self._inner.follow(process, claim)
        self._doom.at("after:process")
        return over

    def kill_process(self, number: int, claim: str) -> None:
        self._inner.kill_process(number, claim)

    async def abandon(self, claim: str) -> None:
        await self._inner.abandon(claim)


class DeadlyModels:
    """Dies around and within streams."""

    def __init__(self, inner: Models, doom: Doom) -> None:
        self._inner = inner
        self._doom = doom

    def retries(self, provider: str) -> tuple[int, int]:
        return self._inner.retries(provider)

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        self._doom.at("before:stream")
        async with aclosing(cast(Any, self._inner.stream(provider, prompt, budget))) as events:
            async for event in events:
                yield event
                self._doom.at("during:stream")
        self._doom.at("after:stream")


class DeadlyFile(export.RolloutFile):
    """Dies around the export, or in the middle of a line of it."""

    doom: Doom

    async def bring_up_to(self, ports: FilePorts, end: LogPlace, fresh: Sequence[StoredEntry] = ()) -> int:
        self.doom.at("before:export")
        if self.doom.near("torn:export"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b'{"timestamp":"2026-')
            self.doom.strike()
        through = await super().bring_up_to(ports, end, fresh)
        self.doom.at("after:export")
        return through


@contextmanager
def deadly_parts(doom: Doom, folder: Path) -> Iterator[None]:
    """Inside, the worker that is composed from settings gets these ports; it works in `folder`."""

    def deadly_ports(**parts: Any) -> Ports:
        tools, models = DeadlyTools(parts.pop("tools"), doom), DeadlyModels(parts.pop("models"), doom)
        return Ports(**parts, tools=tools, models=models)

    DeadlyFile.doom = doom
    with (
        mock.patch.object(DEPLOYMENT, "connect", lambda *given: DeadlyConnection(connect(*given), doom)),
        mock.patch.object(worker_parts, "Ports", deadly_ports),
        _deadly_supervisor(doom.point, folder),
        mock.patch("orchestrator.runtime.runner.RolloutFile", DeadlyFile),
    ):
        yield


def _deadly_supervisor(point: Point | None, folder: Path) -> AbstractContextManager[None]:
    """The supervisor's process that writes a patch: it kills its worker, or waits, at the given point."""
    match point:
        case Point(name, nth) if name == DURING_PATCH:
            return booting(deadly, nth)
        case Point(name, nth) if name == HELD_PATCH:
            return booting(holding, str(folder / HOLD), nth)
        case _:
            return nullcontext()
