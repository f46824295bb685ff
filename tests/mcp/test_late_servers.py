"""Servers of a worker that seldom needs them: their SDK is imported by the first use alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.config_keys import McpServerSettings
from orchestrator.mcp.server_records import Report
from orchestrator.mcp.servers import Servers, ServersConfig
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring import worker_parts
from orchestrator.wiring.worker_parts import LateServers, mcp_toolbox, running_worker

HERE = Path("/here")
NAMED = {
    name: McpServerSettings(id=name, command="x", enabled=enabled)
    for name, enabled in (("b", True), ("a", True), ("off", False))
}


class Used:
    """Stands in for servers, and notes what is asked of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        async def late(*given: Any) -> str:
            self.asked.append((name, given))
            return name

        def now(*given: Any) -> str:
            self.asked.append((name, given))
            return name

        return now if name in ("offered", "known", "let_go") else late


def late_servers() -> tuple[LateServers, list[Used]]:
    made: list[Used] = []

    def opened() -> Servers:
        made.append(Used())
        return cast(Servers, made[-1])

    return LateServers(NAMED, opened), made


async def test_servers_that_nobody_needed_are_told_as_those_that_were_not_started() -> None:
    late, made = late_servers()
    servers = Servers(ServersConfig(NAMED, cast(Any, None), lambda text: text, "1"))
    assert list(late.known(HERE)) == list(servers.known(HERE))
    assert late.offered(HERE) == servers.offered(HERE) == ()
    late.let_go("s")
    await late.aclose()
    assert made == []
    await servers.aclose()


USES: dict[str, Callable[[LateServers], Awaitable[Any]]] = {
    "start": lambda late: late.start("s", HERE, cast(Report, None)),
    "up": lambda late: late.up(HERE),
    "find": lambda late: late.find("a__x", HERE),
    "call": lambda late: late.call(("a", "x"), None, HERE, cast(Any, None)),
}


@pytest.mark.parametrize("use", USES)
async def test_servers_are_opened_once_by_whatever_needs_them_first(use: str) -> None:
    late, made = late_servers()
    for _ in range(2):
        assert await USES[use](late) == use
    assert cast(Any, (late.offered(HERE), late.known(HERE))) == ("offered", "known")
    late.let_go("s")
    await late.aclose()
    (servers,) = made
    assert [name for name, _ in servers.asked] == [use, use, "offered", "known", "let_go", "aclose"]
    assert servers.asked[0][1] == servers.asked[1][1]
    assert servers.asked[4][1] == ("s",)


def settings_in(home: Path, *said: str) -> Settings:
    return load_settings(SettingsSources(home, {"HOME": str(home)}, overrides=said))


@pytest.mark.parametrize("late", [False, True])
async def test_worker_opens_its_servers_before_any_session_waits_unless_it_seldom_needs_them(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    monkeypatch.setattr(LateServers, "open", lambda self: opened.append(True))
    settings = settings_in(tmp_path, 'mcp_servers.a.command="x"')
    async with mcp_toolbox(settings, cast(Any, None), cast(Any, None), late=late) as tools:
        assert (tools is not None, opened) == (True, [True] * (not late))


class Opens(Exception):
    """A worker opens what it has of MCP servers."""


@pytest.mark.parametrize(("pools", "late"), [(None, False), (("p",), False), ((), True)])
async def test_worker_of_no_pool_alone_seldom_needs_servers(
    pools: tuple[str, ...] | None, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def deployment(*_: object, **more: object) -> AsyncIterator[None]:
        yield None

    def toolbox(*_: object, late: bool) -> None:
        raise Opens(late)

    monkeypatch.setattr(worker_parts, "deployment", deployment)
    monkeypatch.setattr(worker_parts, "mcp_toolbox", toolbox)
    with pytest.raises(Opens, match=str(late)):
        async with running_worker(settings_in(tmp_path), "redis://127.0.0.1:1", pools):
            pass
