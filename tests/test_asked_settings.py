"""Settings that a program asks for in the name of a model: never beyond what the person has set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.cli.serve import AskedSessions
from orchestrator.gateways.mcp_server import NotPermitted, RunArguments
from orchestrator.settings import Settings, SettingsSources


def asked(folder: Path, *overrides: str, **arguments: Any) -> Settings:
    """The settings of the session that a `run` gets, under a person's own."""
    environ = {"HOME": str(folder), "DENDRO_HOME": str(folder / "h"), "PATH": "/usr/bin:/bin"}

    def sources(flags: Mapping[str, object]) -> SettingsSources:
        return SettingsSources(folder, environ, overrides=overrides, flags=flags)

    sessions = AskedSessions(cast(Any, None), sources, cast(Any, None), folder)
    return sessions._settings(RunArguments(prompt="go", **arguments))


def test_run_may_choose_a_model_and_a_folder_and_be_stricter(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    settings = asked(
        tmp_path,
        "sandbox_mode=workspace-write",
        cwd="below",
        model="gpt-5-mini",
        sandbox="read-only",
        approval_policy="untrusted",
        config={"model_reasoning_effort": "high", "agents": {"max_depth": 1}},
    )
    defaults = settings.session_defaults
    assert (defaults.cwd, defaults.model) == (tmp_path / "below", "gpt-5-mini")
    assert (defaults.sandbox.mode, defaults.approval_policy) == ("read-only", "untrusted")
    assert (defaults.effort, settings.agents.depth) == ("high", 1)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"sandbox": "danger-full-access"}, "sandbox_mode"),
        ({"sandbox": "workspace-write"}, "sandbox_mode"),
        ({"approval_policy": "never"}, "approval_policy"),
        ({"config": {"sandbox_mode": "danger-full-access"}}, "sandbox_mode"),
        ({"config": {"redis.url": "redis://evil"}}, "redis.url"),
        ({"config": {"redis": {"url": "redis://evil"}}}, "redis.url"),
        ({"config": {"notify": ["touch", "/tmp/x"]}}, "notify"),
        ({"config": {"model_providers.openai.base_url": "http://evil"}}, "model_providers.openai.base_url"),
        ({"config": {"mcp_servers": {"x": {"command": "sh"}}}}, "mcp_servers.x.command"),
        ({"config": {"profile": "wild"}}, "profile"),
        (
            {"config": {"sandbox_workspace_write.network_access": True}},
            "sandbox_workspace_write.network_access",
        ),
        ({"config": {"home": "/tmp/x"}}, "home"),
        ({"config": {"cwd": "/"}}, "cwd"),
        ({"config": {"sandbox_mode": "read-only", "sandbox_mode.x": 1}}, "sandbox_mode"),
    ],
)
def test_run_may_not_loosen_what_the_person_has_set(
    tmp_path: Path, arguments: dict[str, Any], key: str
) -> None:
    with pytest.raises(NotPermitted, match="only a person may set") as refused:
        asked(tmp_path, **arguments)
    assert key in str(refused.value)


def test_run_may_have_what_the_person_started_the_server_with(tmp_path: Path) -> None:
    loose = ("sandbox_mode=danger-full-access", "approval_policy=never")
    settings = asked(tmp_path, *loose, sandbox="workspace-write", approval_policy="never")
    assert settings.session_defaults.sandbox.mode == "workspace-write"
    assert settings.session_defaults.approval_policy == "never"


@pytest.mark.parametrize("cwd", ["..", "/", "below/../..", "link"])
def test_run_may_not_leave_the_servers_folder(tmp_path: Path, cwd: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("/usr")
    with pytest.raises(NotPermitted, match="is outside of"):
        asked(tmp_path, cwd=cwd)


def test_run_in_a_folder_that_is_none_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NotPermitted, match="nowhere is no folder"):
        asked(tmp_path, cwd="nowhere")


@pytest.mark.parametrize("cwd", ["a\0b", "a" * 300])
def test_run_in_a_folder_that_cannot_be_is_told_so(tmp_path: Path, cwd: str) -> None:
    with pytest.raises(NotPermitted, match="is no folder"):
        asked(tmp_path, cwd=cwd)


def test_run_with_a_value_that_cannot_be_is_told_what_can(tmp_path: Path) -> None:
    with pytest.raises(NotPermitted, match="model_reasoning_effort"):
        asked(tmp_path, config={"model_reasoning_effort": "endless"})
