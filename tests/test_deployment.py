"""Settings become births, and a worker's treatment of its providers."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.birth import Birth
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import session_pool, worker_pools
from orchestrator.wiring.new_sessions import new_birth


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
