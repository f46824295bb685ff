"""Settings become births, and a worker's treatment of its providers."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config_keys import RedisSettings
from orchestrator.core.birth import Birth
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring import deployment
from orchestrator.wiring.deployment import EVERY_WORKER, portable_pool, session_pool, worker_pools
from orchestrator.wiring.new_sessions import guide, new_birth


def settings(folder: Path, *overrides: str) -> Settings:
    return load_settings(SettingsSources(folder, {"HOME": str(folder / "home")}, overrides=overrides))


def birth(folder: Path, *overrides: str) -> Birth:
    return new_birth(settings(folder, *overrides), Workspace(), 1_700_000_000_000, os.urandom)


def test_session_of_a_shared_pool_marks_its_folder(tmp_path: Path) -> None:
    mark = birth(tmp_path, "pool=default").facts.workspace
    assert mark is not None
    assert mark.path == str(tmp_path)
    assert Path(mark.file).read_text().strip() == mark.id


def test_session_of_one_host_leaves_its_folder_alone(tmp_path: Path) -> None:
    assert birth(tmp_path).facts.workspace is None
    assert list(tmp_path.iterdir()) == []


def test_worker_of_a_named_pool_serves_the_sessions_of_its_host_too(tmp_path: Path) -> None:
    own = settings(tmp_path)
    named = settings(tmp_path, 'worker.pools=["gpu"]')
    assert worker_pools(own) == (session_pool(own), "default")
    assert worker_pools(named) == ("gpu", session_pool(own))


def test_key_that_was_handed_to_a_process_pays_for_no_session_of_another_key(tmp_path: Path) -> None:
    def handed(key: str, *overrides: str) -> Settings:
        environ = {"HOME": str(tmp_path / "home"), "CODEX_API_KEY": key}
        overrides = ('model_providers.openai.env_key="CODEX_API_KEY"', *overrides)
        return load_settings(SettingsSources(tmp_path, environ, overrides=overrides))

    mine, yours, plain = handed("mine"), handed("yours"), settings(tmp_path)
    assert len({session_pool(one) for one in (mine, yours, plain)}) == 3
    assert "mine" not in session_pool(mine)
    assert worker_pools(mine) == (session_pool(mine),)
    assert worker_pools(handed("")) == worker_pools(plain)
    named = handed("mine", f'worker.pools=["{session_pool(yours)}"]')
    assert worker_pools(named) == (session_pool(yours), session_pool(mine))
    assert session_pool(handed("mine", "pool=gpu")) == "gpu"


def test_floors_of_waits_and_watchdogs_reach_a_new_tree(tmp_path: Path) -> None:
    rules = birth(tmp_path, "agents.await_floor_s=1", "agents.watchdog_floor_s=2").facts.tree_rules
    assert (rules.await_floor_s, rules.watchdog_floor_s) == (1, 2)


def test_a_new_tree_has_a_budget_of_requests_unless_told_otherwise(tmp_path: Path) -> None:
    assert birth(tmp_path).facts.tree_rules.budgets == {"requests": 10_000}
    assert birth(tmp_path, "agents.budget_requests=7").facts.tree_rules.budgets == {"requests": 7}


@pytest.mark.parametrize("dollars", ["0.29", "1.1", "2.3", "4.35", "0.000001", "8.2", "1234567.891234"])
def test_budget_in_dollars_is_to_the_millionth_what_was_written(tmp_path: Path, dollars: str) -> None:
    budgets = birth(tmp_path, f"agents.budget_cost={dollars}").facts.tree_rules.budgets
    assert budgets["cost"] == int(Decimal(dollars) * 1_000_000)


@pytest.mark.parametrize("seconds", ["1", "1.001", "4.35", "8.2", "16.1", "2.675"])
def test_times_of_settings_are_to_the_millisecond_what_was_written(tmp_path: Path, seconds: str) -> None:
    born = birth(tmp_path, f"agents.budget_wall_s={seconds}", f"approval_timeout_s={seconds}")
    wanted = int(Decimal(seconds) * 1_000)
    assert born.facts.tree_rules.budgets["wall"] == wanted
    assert born.facts.approval_timeout_ms == wanted


def test_each_limit_of_a_tree_is_the_one_of_its_setting(tmp_path: Path) -> None:
    keys = {
        "max_active_subagents": 3, "agents.max_spawned": 5, "agents.max_depth": 7, "agents.max_watchdogs": 11,
        "agents.await_floor_s": 13, "agents.watchdog_floor_s": 17, "agents.budget_tokens": 19,
        "agents.budget_cost": 23, "agents.budget_requests": 29, "agents.budget_wall_s": 31,
    }  # fmt: skip
    rules = birth(tmp_path, *(f"{key}={value}" for key, value in keys.items())).facts.tree_rules
    assert (rules.slots, rules.spawned, rules.depth, rules.watchdogs) == (3, 5, 7, 11)
    assert (rules.await_floor_s, rules.watchdog_floor_s) == (13, 17)
    assert rules.budgets == {"tokens": 19, "cost": 23_000_000, "requests": 29, "wall": 31_000}


@pytest.mark.parametrize("file", [None, "of the file"])
@pytest.mark.parametrize("own", [None, "of the setting"])
def test_instructions_of_the_setting_come_before_those_of_files(
    tmp_path: Path, own: str | None, file: str | None
) -> None:
    given = settings(tmp_path, *([] if own is None else [f'user_instructions="{own}"']))
    born = new_birth(given, Workspace(instructions=file), 1_700_000_000_000, os.urandom)
    assert born.user_instructions == ("\n\n".join(filter(None, (own, file))) or None)


@pytest.mark.parametrize("folder", ["home", "tmp"])
@pytest.mark.parametrize(
    "key",
    [
        "workspace.root='{}'",
        "receipts.state='{}'",
        "receipts.url='file://{}'",
        "upkeep.archive_url='file://{}'",
    ],
)
def test_instructions_are_read_below_a_folder_that_all_use_though_dendro_keeps_files_there(
    tmp_path: Path, key: str, folder: str
) -> None:
    shared, repository = tmp_path / folder, tmp_path / folder / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / "AGENTS.md").write_text("Read this.")
    environ = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}

    def read(path: Path) -> str | None:
        overrides = (key.format(path),)
        return (
            guide(load_settings(SettingsSources(tmp_path, environ, overrides=overrides)))
            .first(repository)
            .text
        )

    assert read(shared) == "Read this."
    assert read(repository) is None


TABLES = [
    'model_providers.openai.base_url="https://other.example/v1"',
    'model_providers.openai.query_params={ a = "1" }',
    'model_providers.openai.query_params={ a = "2" }',
    'model_providers.openai.http_headers={ a = "1" }',
    'model_providers.mine.base_url="https://other.example/v1"',
    'model_providers.mine.base_url="https://api.openai.com/v1"',
]
"""Tables of providers, any two of which would send a turn elsewhere."""


def test_sessions_of_other_tables_of_providers_have_a_pool_of_their_own_on_the_machine(
    tmp_path: Path,
) -> None:
    plain = session_pool(settings(tmp_path))
    pools = [session_pool(settings(tmp_path, table)) for table in TABLES]
    both = session_pool(settings(tmp_path, TABLES[0], TABLES[4]))
    assert len({plain, both, *pools}) == len(TABLES) + 2
    assert all(pool.startswith(f"{plain}:") for pool in (both, *pools))
    assert session_pool(settings(tmp_path, TABLES[4], TABLES[0])) == both, "in whatever order they stand"
    for alike in ("request_max_retries=7", 'model_providers.openai.name="x"', 'model="other"'):
        assert session_pool(settings(tmp_path, alike)) == plain
    for named in ("gpu", "default"):
        assert session_pool(settings(tmp_path, TABLES[0], f"pool={named}")) == named
    assert portable_pool(settings(tmp_path, TABLES[0])) == EVERY_WORKER
    assert portable_pool(settings(tmp_path, "pool=gpu")) == "gpu"
    own = settings(tmp_path, TABLES[0])
    assert worker_pools(own) == (plain, "default", session_pool(own)), "it goes on with others' sessions, too"


@pytest.mark.parametrize("patience_s", [0.5, 2.0, 3.0, 99.0])
def test_broker_of_little_patience_waits_no_longer_than_that_and_never_longer_than_usual(
    tmp_path: Path, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float, float]] = []

    def connect(redis: RedisSettings, name: str) -> SimpleNamespace:
        asked.append((redis.url or "", redis.connect_timeout_s, redis.command_timeout_s))
        return SimpleNamespace()

    monkeypatch.setattr(deployment, "connect", connect)
    monkeypatch.setattr(deployment, "Broker", lambda connection, *_: connection)
    given = settings(tmp_path, "redis.connect_timeout_s=2", "redis.command_timeout_s=3")
    outage: Any = object()
    connection: Any = deployment.open_broker(given, "redis://there", patience_s, outage)
    assert asked == [("redis://there", min(2.0, patience_s), min(3.0, patience_s))]
    assert connection.outage is outage
