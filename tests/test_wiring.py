"""What settings become: births, and how a worker treats its providers."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

from orchestrator.broker.admission import Limits
from orchestrator.core.birth import Birth
from orchestrator.gateways.workspace import Workspace
from orchestrator.model.provider import Provider
from orchestrator.runtime.ports import ProviderPolicy
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.tables import ProviderSettings
from orchestrator.wiring import new_birth, session_pool, worker_pools
from orchestrator.wiring.worker import provider_policies, providers


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


def test_floors_of_waits_and_watchdogs_reach_a_new_tree(tmp_path: Path) -> None:
    rules = birth(tmp_path, "agents.await_floor_s=1", "agents.watchdog_floor_s=2").facts.tree_rules
    assert (rules.await_floor_s, rules.watchdog_floor_s) == (1, 2)


def test_a_new_tree_has_a_budget_of_requests_unless_told_otherwise(tmp_path: Path) -> None:
    assert birth(tmp_path).facts.tree_rules.budgets == {"requests": 10_000}
    assert birth(tmp_path, "agents.budget_requests=7").facts.tree_rules.budgets == {"requests": 7}


def test_limits_and_memory_of_a_provider_reach_its_requests(tmp_path: Path) -> None:
    table = "model_providers.azure"
    policies = provider_policies(
        settings(
            tmp_path,
            f'{table}.base_url="https://example.org/v1"',
            f"{table}.tokens_per_minute=1000",
            f"{table}.previous_response_id=true",
            f"{table}.parallel_tool_calls=true",
            "model_max_output_tokens=500",
        )
    )
    assert policies["azure"] == ProviderPolicy(Limits(None, 1_000), 500, True, True)
    assert policies["openai"] == ProviderPolicy(max_output_tokens=500)


def test_every_setting_of_a_provider_reaches_its_client(tmp_path: Path) -> None:
    """Fields of one name in both records: none keeps its default when the table says something else."""
    changed = {
        "base_url": '"http://x/v1"', "env_key": '"X"', "proxy": '"http://p:1"', "ca_file": '"/ca.pem"',
        "query_params": "{a = '1'}", "http_headers": "{b = '2'}", "max_response_bytes": "9000000",
        "request_max_retries": "9", "stream_max_retries": "9", "stream_idle_timeout_ms": "9000",
        "connect_timeout_s": "9",
    }  # fmt: skip
    overrides = [f"model_providers.x.{key}={value}" for key, value in changed.items()]
    provider = providers(settings(tmp_path, *overrides))["x"].provider
    plain = Provider(name="other", base_url="http://other/v1")
    shared = set(ProviderSettings.model_fields) & {each.name for each in fields(Provider)}
    unsaid = {"wire_api", "env_http_headers"}
    assert {name for name in shared - unsaid if getattr(provider, name) == getattr(plain, name)} == set()
