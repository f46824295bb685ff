"""The first server of the page about MCP, as a reader would try it."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/mcp.md"


def test_reader_adds_a_server_and_an_agent_calls_it(machine: Machine) -> None:
    if find_spec("mcp_server_time") is None:
        pytest.skip("the server mcp-server-time is not installed")
    first, *_ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    home = Path(machine.environ["DENDRO_HOME"])
    home.mkdir()
    (home / "dendro.toml").write_text(first)
    call = {"call": "mcp__time__get_current_time", "args": {"timezone": "Asia/Tokyo"}}
    programs = f"{Path(sys.executable).parent}:{machine.environ['PATH']}"
    with machine.under(PATH=programs).model({"items": [call]}, says("It is late.")) as user:
        done = user.run("run", "What time is it in Tokyo?")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0] == '⚙ time: get_current_time {"timezone":"Asia/Tokyo"}'
    assert '    "timezone": "Asia/Tokyo",' in shown
    assert shown[-1] == "It is late."
