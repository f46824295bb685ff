"""Real servers: started, listed, called, shared, closed."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config_keys import McpServerSettings
from orchestrator.mcp.server_records import OfferedTool
from orchestrator.mcp.servers import Servers
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.sandbox.trusted_files import named_environment
from orchestrator.tools.mcp_tools import _program
from orchestrator.tools.tool_context import ToolConfig
from tests.mcp.serving import Fifo, Heard, bad, fifo, is_alive, published, servers, until

__all__ = ["fifo"]


async def test_a_published_server_is_started_listed_and_called(tmp_path: Path) -> None:
    heard = Heard()
    async with servers(published("time", "--local-timezone", "UTC")) as made:
        started = await made.start("s1", tmp_path, heard.report)
        assert (started.ready, started.failed) == (("time",), {})
        assert heard.starts == [("time", "starting"), ("time", "ready")]
        names = [each.full_name for each in made.offered(tmp_path)]
        assert names == ["mcp__time__convert_time", "mcp__time__get_current_time"]
        answer = await made.call(("time", "get_current_time"), {"timezone": "UTC"}, tmp_path, heard.ask)
    assert isinstance(answer.result, CallToolResult)
    assert answer.result.is_error is None
    assert isinstance(answer.output, str)
    assert json.loads(answer.output)["timezone"] == "UTC"


async def test_an_error_of_a_tool_is_its_result_and_no_failure_of_the_call(tmp_path: Path) -> None:
    heard = Heard()
    async with servers(published("time")) as made:
        answer = await made.call(("time", "get_current_time"), {"timezone": "Moon/Sea"}, tmp_path, heard.ask)
    assert isinstance(answer.result, CallToolResult)
    assert answer.result.is_error is True
    assert "Moon/Sea" in str(answer.output)


async def test_another_published_server_works_in_the_folder_of_the_session(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "new.txt").write_text("new")
    async with servers(published("git", trust_annotations=True)) as made:
        tools = {each.full_name: each.tool for each in (await _listed(made, tmp_path))}
        answer = await made.call(("git", "git_status"), {"repo_path": "."}, tmp_path, Heard().ask)
    assert "new.txt" in str(answer.output)
    assert "repo_path" in tools["mcp__git__git_status"].parameters["properties"]
    assert tools["mcp__git__git_status"].read_only
    assert not tools["mcp__git__git_commit"].read_only


async def _listed(made: Servers, folder: Path) -> Sequence[OfferedTool]:
    await made.start("s1", folder, Heard().report)
    return made.offered(folder)


async def test_sessions_of_one_folder_share_a_server_and_another_folder_has_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with servers(bad()) as made:
        for session, folder in (("s1", tmp_path), ("s2", tmp_path), ("s3", other)):
            await made.start(session, folder, Heard().report)
        seen = [await _environment(made, folder) for folder in (tmp_path, tmp_path, other)]
    assert seen[0]["pid"] == seen[1]["pid"] != seen[2]["pid"]
    assert [each["cwd"] for each in seen] == [str(tmp_path), str(tmp_path), str(other)]


async def _environment(made: Servers, folder: Path) -> dict[str, Any]:
    answer = await made.call(("bad", "environment"), None, folder, Heard().ask)
    assert isinstance(answer.result, CallToolResult)
    found: dict[str, Any] = json.loads(answer.result.content[0]["text"])
    return found


async def test_a_program_gets_the_environment_of_commands_and_what_its_table_names(tmp_path: Path) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "EDITOR": "vi",
        "MY_TOKEN": "hush",
        "OTHER_KEY": "hush",
        "DENDRO_X": "1",
    }
    server = bad(env={"GIVEN": "yes"}, env_vars=("MY_TOKEN",), given_env={"MY_TOKEN": "hush"})
    async with servers(server, environ=environ) as made:
        seen = await _environment(made, tmp_path)
    assert (seen["EDITOR"], seen["GIVEN"], seen["MY_TOKEN"]) == ("vi", "yes", "hush")
    assert not {"OTHER_KEY", "DENDRO_X"} & seen.keys()


async def test_python_server_imports_nothing_from_the_folder_of_the_session(tmp_path: Path) -> None:
    """An agent, or a stranger's repository, can have any module there, and the server is not confined."""
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the folder')")
    heard = Heard()
    async with servers(published("time", "--local-timezone", "UTC")) as made:
        await made.start("s1", tmp_path, heard.report)
    assert heard.starts == [("time", "starting"), ("time", "ready")]


async def test_server_finds_its_own_programs_not_where_sessions_write(tmp_path: Path) -> None:
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    environ = {"PATH": f"{bin}:/usr/bin:{tmp_path}:/bin:."}
    async with servers(bad(), bad(id="own", env={"PATH": str(bin)})) as made:
        answer = await made.call(("own", "environment"), None, tmp_path, Heard().ask)
    assert isinstance(answer.result, CallToolResult)
    assert json.loads(answer.result.content[0]["text"])["PATH"] == str(bin)
    async with servers(bad(), environ=environ) as made:
        assert (await _environment(made, tmp_path))["PATH"] == "/usr/bin:/bin"


@pytest.mark.parametrize(
    ("command", "arguments", "imports"),
    [
        ("python", ("-m", "server"), True),
        ("/opt/x/bin/python3.12", ("-u", "-Xutf8", "-mserver"), True),
        ("pypy3", ("-uc", "import server"), True),
        ("python3.13t", ("-m", "server"), True),
        ("python3-dbg", ("-m", "server"), True),
        ("python", ("-Im", "server"), True),
        ("python", ("-B", "-s", "-m", "server"), True),
        ("python", ("-OX", "dev", "-m", "server"), True),
        ("python", ("-X", "dev", "-W", "error", "-c", "import server"), True),
        ("python", ("-X", "-m", "-m", "server"), True),
        ("python2.7", ("-Q", "new", "-m", "server"), True),
        ("pypy3", ("--jit", "off", "-m", "server"), True),
        ("python", ("-", "server.py"), True),
        ("python", ("--", "-", "server.py"), True),
        ("python", ("-i",), True),
        ("python", (), True),
        ("python", ("-X", "-m", "server.py"), False),
        ("python", ("-OX", "-m", "server.py"), False),
        ("python", ("-Xm", "server.py", "-m"), False),
        ("python", ("-W", "-c", "server.py", "-c"), False),
        ("python", ("--check-hash-based-pycs", "-m", "server.py"), False),
        ("python", ("--", "-m", "server"), False),
        ("python", ("-u", "--", "server.py", "-m"), False),
        ("python", ("-Wm", "server.py"), False),
        ("python", ("server.py", "-m"), False),
        ("python", ("--version", "server.py"), False),
        ("pythonic", ("-m", "server"), False),
        ("uvx", ("-m",), False),
    ],
)
def test_python_that_would_import_from_its_folder_is_told_from_others(
    command: str, arguments: tuple[str, ...], imports: bool
) -> None:
    server = McpServerSettings(id="x", command=command, args=arguments)
    config = ToolConfig(SandboxSupport(None, 0, ()), {"PATH": "/bin"})
    made = _program(server, Path("/w"), config)
    assert ("PYTHONSAFEPATH" in made.env) is imports


def test_each_option_of_python_that_takes_a_value_is_known() -> None:
    # The one who knows its options is Python itself.
    told = subprocess.run([sys.executable, "--help"], check=True, capture_output=True, text=True).stdout
    options = set(re.findall(r"^(--?[\w-]+) \S+ *:", told, re.MULTILINE)) - {"-c", "-m"}
    assert options >= {"-W", "-X", "--check-hash-based-pycs"}
    for option in options:
        assert "PYTHONSAFEPATH" in named_environment(("python", option, "x", "-m", "server"), "/bin"), option
        assert "PYTHONSAFEPATH" not in named_environment(("python", option, "-m", "x.py"), "/bin"), option


async def test_a_server_that_no_session_holds_is_closed_and_started_anew_when_it_is_called(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with servers(bad(), idle_s=0.05) as made:
        await made.start("s1", tmp_path, Heard().report)
        await made.start("s2", other, Heard().report)
        held, let_go = [(await _environment(made, folder))["pid"] for folder in (tmp_path, other)]
        made.let_go("s2")
        await until(lambda: not is_alive(let_go))
        assert is_alive(held)
        assert (await _environment(made, other))["pid"] != let_go


async def test_servers_of_a_folder_that_a_session_has_left_are_closed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with servers(bad(), idle_s=0.05) as made:
        await made.start("s1", tmp_path, Heard().report)
        left = (await _environment(made, tmp_path))["pid"]
        await made.start("s1", other, Heard().report)
        held = (await _environment(made, other))["pid"]
        async with asyncio.timeout(20):
            await until(lambda: not is_alive(left))
            assert is_alive(held)
            made.let_go("s1")
            await until(lambda: not is_alive(held))


async def test_every_program_has_ended_when_the_worker_has(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        await made.start("s1", tmp_path, Heard().report)
        pid = (await _environment(made, tmp_path))["pid"]
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_only_the_tools_that_the_settings_name_are_offered(tmp_path: Path) -> None:
    server = bad(enabled_tools=("echo", "sleep", "none"), disabled_tools=("sleep",))
    async with servers(server, bad(id="off", enabled=False)) as made:
        started = await made.start("s1", tmp_path, Heard().report)
        assert started.ready == ("bad",)
        assert [each.full_name for each in made.offered(tmp_path)] == ["mcp__bad__echo"]
        assert await made.find("mcp__bad__sleep", tmp_path) is None
        refused = await made.call(("off", "echo"), {}, tmp_path, Heard().ask)
    assert "there is no MCP server off here" in str(refused.output)


async def test_a_worker_that_has_just_taken_a_session_over_finds_its_tools(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        found = await made.find("mcp__bad__echo", tmp_path)
        assert found is not None
        assert (found.server, found.name) == ("bad", "echo")
        assert await made.find("mcp__bad__none", tmp_path) is None


async def test_a_server_whose_tools_change_is_listed_again_before_the_next_request(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        await made.start("s1", tmp_path, Heard().report)
        await made.call(("bad", "change"), None, tmp_path, Heard().ask)
        await made.start("s1", tmp_path, Heard().report)
        names = [each.full_name for each in made.offered(tmp_path)]
    assert names == ["mcp__bad__change", "mcp__bad__fresh"]


async def test_a_cancelled_call_is_told_to_the_server_which_serves_the_next_one(
    tmp_path: Path, fifo: Fifo
) -> None:
    async with servers(bad("good", str(fifo.path))) as made:
        call = asyncio.create_task(made.call(("bad", "sleep"), None, tmp_path, Heard().ask))
        assert await fifo.word() == "sleeping"
        call.cancel()
        assert await fifo.word() == "cancelled True"
        await asyncio.wait({call})
        assert call.cancelled()
        answer = await made.call(("bad", "echo"), {"a": 1}, tmp_path, Heard().ask)
    assert '{\\"a\\": 1}' in str(answer.output)
