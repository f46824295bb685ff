"""Ends of `dendro exec`: the turn's own, those by a signal; and which thread a run may go on with."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import Labels
from orchestrator.cli import exec as command
from orchestrator.cli.exec import (
    ORIGINATOR,
    SCHEMA_BYTES,
    _as_run,
    _check_pool,
    _originator,
    _schema,
    _until_stopped,
    _without_effect,
)
from orchestrator.core.ids import SessionId
from orchestrator.gateways.exec_json import ExecWriter
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.wiring import new_sessions
from orchestrator.wiring.deployment import worker_pools
from tests.views.test_threads import head

SESSIONS = [SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(7)]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


class Turn:
    """A turn that goes on until it is interrupted, if it hears that at all."""

    def __init__(self, hears: bool) -> None:
        self.hears = hears
        self.over = asyncio.Event()
        self.interrupts = 0

    async def hold(self) -> bool:
        await self.over.wait()
        return False

    async def interrupt(self) -> None:
        self.interrupts += 1
        if not self.hears:
            await asyncio.Event().wait()
        self.over.set()


class Worker:
    killed = 0

    def kill(self) -> None:
        self.killed += 1


async def stopped_by(number: signal.Signals, turn: Turn, worker: Worker | None) -> list[int]:
    """The signals that ended a run."""
    stopped: list[int] = []
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
    async with asyncio.timeout(20):
        code = await _until_stopped(cast(Any, turn), turn.hold(), cast(Any, worker), stopped)
    assert code is ExitCode.FAILED
    return stopped


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_interrupts_the_turn_and_the_run_ends_by_it(number: signal.Signals) -> None:
    turn, worker = Turn(hears=True), Worker()
    assert await stopped_by(number, turn, worker) == [number]
    assert (turn.interrupts, worker.killed) == (1, 0)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("brought", [True, False])
async def test_command_of_a_turn_that_does_not_end_dies_with_the_worker_that_the_run_brought(
    number: signal.Signals, brought: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STOP_S", 0)
    turn, worker = Turn(hears=False), Worker()
    assert await stopped_by(number, turn, worker if brought else None) == [number]
    assert (turn.interrupts, worker.killed) == (1, int(brought))


@pytest.mark.parametrize(("completed", "code"), [(True, ExitCode.DONE), (False, ExitCode.FAILED)])
async def test_run_that_nobody_stops_ends_as_its_turn_does(completed: bool, code: ExitCode) -> None:
    async def held() -> bool:
        return completed

    stopped: list[int] = []
    assert await _until_stopped(cast(Any, None), held(), None, stopped) is code
    assert stopped == []


SAID = {"title": "fix it", "updated_ms": 1, "unspoken": False}
HIDDEN: dict[str, dict[str, Any]] = {
    "ephemeral": {"labels": Labels(ephemeral=True)},
    "a tenant's": {"labels": Labels("acme")},
    "put away": {"shelved": True},
    "without a word": {"meta": {"unspoken": True, "updated_ms": 1}},
    "just opened": {"meta": {}},
}


@pytest.mark.parametrize("hidden", HIDDEN)
async def test_newest_thread_of_a_folder_is_one_that_lists_show_the_machines_user(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal begins a thread with every start; a tenant may work in the very same folder."""

    async def found_rows(*_: Any) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for session, changes in ((SESSIONS[0], HIDDEN[hidden]), (SESSIONS[1], {})):
            yield {"cwd": "/w"}, head(**{"meta": SAID, "session": session, **changes})

    monkeypatch.setattr(new_sessions, "found_rows", found_rows)
    assert await new_sessions.newest_in(cast(Any, None), "/w") == SESSIONS[1]


async def test_newest_thread_of_a_folder_is_its_root_that_changed_last_and_is_not_ephemeral(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("/w/below", 0), ("/elsewhere", 0), ("/w", 3), ("/w", 0), ("/w", 0), ("/", 0)]

    async def found_rows(*_: Any) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for number, (cwd, agent_id) in enumerate(rows):
            facts = {
                "session": SESSIONS[number],
                "agent_id": agent_id,
                "labels": Labels(ephemeral=number == 3),
            }
            yield {"cwd": cwd}, head(SAID, **facts)

    monkeypatch.setattr(new_sessions, "found_rows", found_rows)
    broker = cast(Any, None)
    found = {folder: await new_sessions.newest_in(broker, folder) for folder in ("/w", "/w/below", "/", "/x")}
    assert found == {"/w": SESSIONS[4], "/w/below": SESSIONS[0], "/": SESSIONS[5], "/x": None}


@pytest.mark.parametrize(
    ("key", "pool", "named", "goes_on"),
    [
        ("", "another", (), True),
        ("hush", "its own", (), True),
        ("hush", "another", (), False),
        ("hush", "another", ("another",), True),
        ("hush", "another", ("third",), False),
        ("hush", "another", ("third", "another"), True),
    ],
)
def test_key_that_was_handed_over_pays_for_its_own_pool_and_for_those_that_are_named(
    key: str, pool: str, named: tuple[str, ...], goes_on: bool, tmp_path: Path
) -> None:
    environ = {"HOME": str(tmp_path), **({"CODEX_API_KEY": key} if key else {})}
    overrides = ['model_providers.openai.env_key="CODEX_API_KEY"'] if key else []
    overrides += [f"worker.pools={list(named)!r}"] if named else []
    settings = load_settings(SettingsSources(tmp_path, environ, overrides=overrides))
    own = worker_pools(settings)[0] if pool == "its own" else pool
    head = cast(Any, SimpleNamespace(session=SESSIONS[0], pool=own))
    if goes_on:
        _check_pool(settings, head)
        return
    with pytest.raises(Fault, match="was begun under another key") as refused:
        _check_pool(settings, head)
    assert "-c 'worker.pools=[\"another\"]'" in str(refused.value)


def test_folders_of_the_command_line_may_be_written_beside_those_of_the_settings(tmp_path: Path) -> None:
    overrides = ["sandbox_mode=workspace-write", 'sandbox_workspace_write.writable_roots=["/srv/kept"]']
    settings = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path)}, overrides=overrides))
    run = _as_run(settings, (tmp_path / "one", tmp_path / "below" / ".." / "two"))
    roots = run.session_defaults.sandbox.writable_roots
    assert list(roots) == [Path("/srv/kept"), tmp_path / "one", tmp_path / "two"]
    assert _as_run(settings, ()).session_defaults.sandbox == settings.session_defaults.sandbox
    assert "sandbox_mode" in run.named
    plain = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path)}))
    named = [bool(_as_run(plain, folders).named & {"sandbox_mode"}) for folders in ((), (tmp_path,))]
    assert named == [False, True], "a thread that goes on may write there, too"


def test_each_key_of_the_command_line_that_has_no_effect_is_an_item_and_those_of_files_are_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warnings = ("-c: unknown key one", "dendro.toml: unknown key two", "-c: unknown key three")
    told = _without_effect(cast(Any, SimpleNamespace(warnings=warnings)))
    lines = list(ExecWriter().opened(SESSIONS[0], told))
    assert lines[0] == {"type": "thread.started", "thread_id": SESSIONS[0]}
    assert [(line["type"], line["item"]["id"], line["item"]["message"]) for line in lines[1:]] == [
        ("item.completed", "item_0", "-c: unknown key one"),
        ("item.completed", "item_1", "-c: unknown key three"),
    ]
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("unknown key")) == ("", 1)
    assert "dendro.toml: unknown key two" in captured.err


@pytest.mark.parametrize("more", [0, 1])
def test_file_of_a_schema_holds_a_mebibyte_and_no_byte_more(tmp_path: Path, more: int) -> None:
    file, text = tmp_path / "schema", '{"title":"é"}'
    file.write_text(text + " " * (SCHEMA_BYTES + more - len(text.encode())))
    if not more:
        assert _schema(file) == {"title": "é"}
        return
    with pytest.raises(Fault, match="a JSON object of at most 1,048,576 bytes"):
        _schema(file)


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{", '{"a":NaN}'])
def test_file_that_is_no_schema_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "schema"
    file.write_text(text)
    with pytest.raises(Fault, match=r"/schema is no JSON Schema"):
        _schema(file)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        (None, False),
        ("", False),
        ("x", True),
        ("codex_sdk_ts", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("\u00e9", False),
        ("a\x1bb", False),
        ("a\nb", False),
    ],
)
def test_program_that_started_a_run_is_named_if_it_has_a_name_of_one_short_line(
    tmp_path: Path, name: str | None, taken: bool
) -> None:
    environ = {"HOME": str(tmp_path), **({} if name is None else {ORIGINATOR: name})}
    assert _originator(load_settings(SettingsSources(tmp_path, environ))) == (name if taken else None)
