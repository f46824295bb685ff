"""Settings: who is heard, what is refused, and that the documentation says what the code does."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import config_keys
from orchestrator.config_keys import ModelPrice
from orchestrator.home import data_home, user_home
from orchestrator.settings import (
    Settings,
    SettingsError,
    SettingsSources,
    TrustList,
    layers,
    load_settings,
)
from orchestrator.settings.sources import KEYED_RECORDS, known_paths, variable

Load = Callable[..., Settings]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def load(tmp_path: Path, folder: Path) -> Load:
    """Loads settings as a process in `folder` would, whose user trusts the folder's file."""

    def loading(
        file: str | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Sequence[str] = (),
        **flags: object,
    ) -> Settings:
        sources = SettingsSources(
            cwd=folder,
            environ={"HOME": str(tmp_path / "user"), **(environ or {})},
            overrides=overrides,
            flags={name.replace("__", "."): value for name, value in flags.items()},
        )
        if file is not None:
            (folder / "dendro.toml").write_text(file)
            TrustList(sources.home).add(folder / "dendro.toml", file.encode(), 0)
        return load_settings(sources)

    return loading


# --- Defaults


def test_user_without_any_file_gets_working_defaults(load: Load, tmp_path: Path) -> None:
    found = load()
    assert found.home == tmp_path / "user/.local/share/dendro"
    assert found.config_file is None
    assert found.session_defaults.model == "gpt-5"
    assert found.session_defaults.approval_policy == "on-request"
    assert found.redis.url is None
    assert found.upkeep.archive_url == f"file://{found.home}/archive"
    assert found.model.providers["openai"].base_url == "https://api.openai.com/v1"
    assert found.warnings == ()


def test_session_in_a_git_repository_may_write_there_by_default(load: Load, folder: Path) -> None:
    assert load().session_defaults.sandbox.mode == "read-only"
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / "deep").mkdir()
    assert load().session_defaults.sandbox.mode == "workspace-write"
    assert load(cwd="deep").session_defaults.sandbox.mode == "workspace-write"
    assert load('sandbox_mode = "read-only"').session_defaults.sandbox.mode == "read-only"


def test_folder_that_is_named_by_a_link_is_the_one_that_it_leads_to(load: Load, folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    assert load(cwd="link").session_defaults.cwd == folder / "real"
    assert load(cwd="link/../link").session_defaults.cwd == folder / "real"
    assert load(cwd="real").session_defaults.cwd == folder / "real"


def test_session_of_a_linked_worktree_may_write_there_too(load: Load, folder: Path) -> None:
    main = folder.parent / "main"
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(main)]
    subprocess.run(["git", "init", "-q", main], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", folder], check=True, capture_output=True)
    assert (folder / ".git").is_file()
    assert load().session_defaults.sandbox.mode == "workspace-write"


@pytest.mark.parametrize("leftover", ["empty folder", "pointer to nowhere", "folder without a head"])
def test_a_git_entry_that_is_no_repository_permits_nothing(load: Load, folder: Path, leftover: str) -> None:
    git = folder.parent / ".git"
    if leftover == "pointer to nowhere":
        git.write_text("gitdir: /elsewhere\n")
    else:
        git.mkdir()
    if leftover == "folder without a head":
        (git / "refs").mkdir()
    assert load().session_defaults.sandbox.mode == "read-only"


def test_asking_git_runs_nothing_of_the_repository(load: Load, folder: Path) -> None:
    ran = folder.parent / "ran"
    subprocess.run(["git", "init", "-q", folder], check=True)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "alias.rev-parse", "core.editor"):
        subprocess.run(["git", "-C", folder, "config", key, f"!touch {ran}"], check=True)
    hook = folder / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    elsewhere = {"GIT_DIR": "/nowhere", "PATH": os.environ["PATH"]}
    assert load(environ=elsewhere).session_defaults.sandbox.mode == "workspace-write"
    assert not ran.exists()


def test_session_asks_for_the_machine_that_has_its_folder(load: Load) -> None:
    found = load()
    assert found.session_defaults.pool == f"host:{found.host.machine_id}"
    assert found.worker.pools == (found.session_defaults.pool, "default")


def test_machine_without_an_id_is_called_by_its_host_name(folder: Path) -> None:
    sources = SettingsSources(folder, {"HOME": "/h"}, machine_id_files=())
    assert load_settings(sources).host.machine_id == os.uname().nodename


def test_machine_id_itself_is_not_given_away(folder: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    (folder / "machine-id").write_text(secret + "\n")
    sources = SettingsSources(folder, {"HOME": "/h"}, machine_id_files=(folder / "machine-id",))
    machine_id = load_settings(sources).host.machine_id
    assert machine_id not in secret
    assert machine_id == load_settings(sources).host.machine_id


# --- Who is heard


def test_each_source_is_heard_before_the_weaker_ones(load: Load) -> None:
    file = 'model = "file"\nprofile = "p"\n[profiles.p]\nmodel = "profile"\n'
    environ = {"DENDRO_MODEL": "environment"}
    assert load('model = "file"').session_defaults.model == "file"
    assert load(file).session_defaults.model == "profile"
    assert load(file, environ).session_defaults.model == "environment"
    assert load(file, environ, ["model=override"]).session_defaults.model == "override"
    assert load(file, environ, ["model=override"], model="flag").session_defaults.model == "flag"
    assert load(file, environ, ["model=override"], model=None).session_defaults.model == "override"


def test_last_of_two_overrides_is_heard(load: Load) -> None:
    assert load(overrides=["model=one", "model=two"]).session_defaults.model == "two"


def test_named_file_is_read_instead_of_the_found_ones(load: Load, tmp_path: Path, folder: Path) -> None:
    (folder / "dendro.toml").write_text('model = "found"')
    (folder / "other.toml").write_text('model = "named"')
    sources = SettingsSources(folder, {"HOME": str(tmp_path)})
    assert load_settings(sources).session_defaults.model == "found"
    named = replace(sources, config_file=Path("other.toml"))
    assert load_settings(named).session_defaults.model == "named"
    with pytest.raises(SettingsError, match=r"missing\.toml.*cannot be read"):
        load_settings(replace(sources, config_file=Path("missing.toml")))


def test_file_of_the_home_folder_counts_beneath_the_folders(load: Load, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dendro.toml").write_text('model = "home"\napproval_policy = "untrusted"\n')
    environ = {"DENDRO_HOME": str(home)}
    assert load(environ=environ).session_defaults.model == "home"
    found = load('model = "project"', environ).session_defaults
    assert (found.model, found.approval_policy) == ("project", "untrusted")


def test_home_follows_the_base_directory_specification(load: Load, folder: Path) -> None:
    assert load(environ={"XDG_DATA_HOME": "/data"}).home == Path("/data/dendro")
    assert load(environ={"XDG_DATA_HOME": "data", "HOME": "/h"}).home == Path("/h/.local/share/dendro")
    assert load(environ={"DENDRO_HOME": "~/d", "HOME": "/h"}).home == Path("/h/d")
    assert load(environ={"DENDRO_HOME": "/x"}, home="mine").home == folder / "mine"


def test_profile_of_the_strongest_source_is_chosen(load: Load) -> None:
    file = 'profile = "a"\n[profiles.a]\nmodel = "a"\n[profiles.b]\nmodel = "b"\n[profiles.none]\n'
    assert load(file).session_defaults.model == "a"
    assert load(file, {"DENDRO_PROFILE": "b"}).session_defaults.model == "b"
    assert load(file, profile="none").session_defaults.model == "gpt-5"
    assert load(file, {"DENDRO_PROFILE": "b"}, overrides=["profile=none"]).session_defaults.model == "gpt-5"
    assert load(file, {"DENDRO_PROFILE": "none"}, profile="b").session_defaults.model == "b"
    with pytest.raises(SettingsError, match=r"profile = 'c': profiles here: a, b, none"):
        load(file, overrides=["profile=c"])


def test_profile_changes_single_keys_of_a_table(load: Load) -> None:
    found = load(
        'profile = "p"\n[sandbox_workspace_write]\nnetwork_access = true\nexclude_slash_tmp = true\n'
        "[profiles.p.sandbox_workspace_write]\nnetwork_access = false\n"
    ).session_defaults.sandbox
    assert not found.network_access
    assert found.exclude_slash_tmp


def test_empty_table_takes_nothing_away(load: Load) -> None:
    assert load("[model_providers.openai]\n").model.providers["openai"].env_key == "OPENAI_API_KEY"
    file = "profile = 'p'\n[shell_environment_policy.set]\nA = '1'\n[profiles.p.shell_environment_policy]\n"
    assert dict(load(file).sandbox.environment.set) == {"A": "1"}


def test_table_given_by_an_override_replaces_the_whole_table(load: Load) -> None:
    file = '[shell_environment_policy.set]\nA = "1"\n'
    one = load(file, overrides=["shell_environment_policy.set.B=2"])
    assert dict(one.sandbox.environment.set) == {"A": "1", "B": "2"}
    whole = load(file, overrides=['shell_environment_policy.set={ B = "2" }'])
    assert dict(whole.sandbox.environment.set) == {"B": "2"}


def test_empty_variable_counts_as_not_set(load: Load) -> None:
    assert load('model = "file"', {"DENDRO_MODEL": ""}).session_defaults.model == "file"


USUAL = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "SSL_CERT_FILE",
    "DENDRO_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def test_each_empty_variable_counts_as_not_set(load: Load) -> None:
    file = '[model_providers.openai]\nenv_http_headers = { A = "OF_A" }\n[mcp_servers.x]\nurl = "https://x"\n'
    file += 'bearer_token_env_var = "OF_X"\nenv_http_headers = { B = "OF_B" }\n'
    names = [
        *map(variable, known_paths()),
        *USUAL,
        *PROXIES,
        *map(str.upper, PROXIES),
        "OF_A",
        "OF_B",
        "OF_X",
    ]
    none, empty = load(file), load(file, dict.fromkeys(names, ""))
    assert empty.without_secrets() == none.without_secrets()
    assert (empty.warnings, empty.home, empty.host.runtime_dir) == ((), none.home, None)
    (server,), provider = empty.mcp_servers.values(), empty.model.providers["openai"]
    assert (provider.api_key, provider.secret_headers) == (None, {})
    assert (server.bearer_token, server.secret_headers) == (None, {})


def test_every_key_has_a_variable_of_its_own() -> None:
    variables = [variable(path) for path in known_paths()]
    assert len(variables) == len(set(variables))
    assert {"DENDRO_REDIS_URL", "DENDRO_UPKEEP_URL", "DENDRO_CHAIN_SECRET"} <= set(variables)


def test_limits_of_trees_are_heard_from_file_and_environment(load: Load) -> None:
    file = "max_active_subagents = 3\n[agents]\nbudget_tokens = 1000\nwatchdog_floor_s = 2"
    found = load(file, {"DENDRO_AGENTS_BUDGET_COST": "1.50"})
    assert (found.agents.slots, found.agents.budget_tokens, found.agents.budget_cost) == (3, 1000, 1.5)
    assert found.agents.watchdog_floor_s == 2
    assert found.warnings == ()


# --- Types


def test_typed_text_is_read_by_the_type_of_its_setting(load: Load) -> None:
    environ = {
        "DENDRO_MODEL": "5",
        "DENDRO_WORKER_CONCURRENCY": "32",
        "DENDRO_ROLLOUT_DELTAS": "true",
        "DENDRO_WORKER_POOLS": "gpu, default",
        "DENDRO_WORKER_QUANTUM_S": "5",
    }
    found = load(environ=environ, overrides=['worker.pools=["a", "b"]', "model_verbosity=low"])
    assert found.session_defaults.model == "5"
    assert found.session_defaults.verbosity == "low"
    assert found.worker.concurrency == 32
    assert found.worker.quantum_s == 5.0
    assert found.log.rollout_deltas is True
    assert found.worker.pools == ("a", "b")
    assert load(environ=environ).worker.pools == ("gpu", "default")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("true", "true"),
        ("false", "false"),
        ("1", "1"),
        ("-1.5", "-1.5"),
        ("0", "0"),
        ('"true"', "true"),
        ('"01"', "01"),
        ('""', ""),
    ],
)
def test_text_of_a_variable_is_what_was_written_for_it(load: Load, written: str, text: str) -> None:
    places: Mapping[str, Callable[[Settings], Mapping[str, str]]] = {
        "shell_environment_policy.set.A": lambda one: one.sandbox.environment.set,
        "mcp_servers.s.env.A": lambda one: one.mcp_servers["s"].env,
        "model_providers.openai.query_params.A": lambda one: one.model.providers["openai"].query_params,
        "model_providers.openai.http_headers.A": lambda one: one.model.providers["openai"].http_headers,
    }
    for key, found in places.items():
        server = 'mcp_servers.s.command = "x"\n'
        assert dict(found(load(f"{server}{key} = {written}\n"))) == {"A": text}
        assert dict(found(load(server, overrides=[f"{key}={written}"]))) == {"A": text}


def test_relative_folders_count_from_where_they_were_written(
    load: Load, tmp_path: Path, folder: Path
) -> None:
    home, key = tmp_path / "home", "sandbox_workspace_write"
    home.mkdir()
    (home / "dendro.toml").write_text(
        f'{key}.writable_roots = ["data", "~/x", "/abs"]\nprofiles.p.{key}.writable_roots = ["own", "~/x"]\n'
    )
    environ = {"DENDRO_HOME": str(home), "HOME": "/h"}
    roots = load(environ=environ).session_defaults.sandbox.writable_roots
    assert roots == (home / "data", Path("/h/x"), Path("/abs"))
    typed = load(environ=environ, overrides=[f'{key}.writable_roots=["data"]'])
    assert typed.session_defaults.sandbox.writable_roots == (folder / "data",)
    # A profile is of the file that it stands in, whoever chooses it.
    chosen = (
        load(environ=environ, profile="p"),
        load(environ=environ, overrides=["profile=p"]),
        load(environ=environ | {"DENDRO_PROFILE": "p"}),
    )
    for found in chosen:
        assert found.session_defaults.sandbox.writable_roots == (home / "own", Path("/h/x"))


def test_instructions_come_from_a_file_or_from_the_key(load: Load, folder: Path) -> None:
    (folder / "prompt.md").write_text("Be brief.\n")
    assert load('model_instructions_file = "prompt.md"').session_defaults.base_instructions == "Be brief.\n"
    both = 'base_instructions = "Here."\nexperimental_instructions_file = "prompt.md"'
    assert load(both).session_defaults.base_instructions == "Here."
    for key in ("model_instructions_file", "experimental_instructions_file"):
        for file, override in ((f'{key} = "prompt.md"', ""), ("", f"{key}=prompt.md")):
            found = load(file, overrides=[override] if override else ())
            assert (found.session_defaults.base_instructions, found.warnings) == ("Be brief.\n", ())
    with pytest.raises(SettingsError, match="model_instructions_file"):
        load('model_instructions_file = "missing.md"')


def test_policy_is_written_as_the_protocol_has_it(load: Load) -> None:
    found = load('sandbox_mode = "workspace-write"\n[sandbox_workspace_write]\nwritable_roots = ["/data"]\n')
    assert found.session_defaults.sandbox.wire() == {
        "mode": "workspace-write",
        "writable_roots": ["/data"],
        "network_access": False,
        "exclude_tmpdir_env_var": False,
        "exclude_slash_tmp": False,
    }
    full = load('sandbox_mode = "danger-full-access"').session_defaults.sandbox
    assert full.wire() == {"mode": "danger-full-access"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            'approval_policy = "sometimes"',
            r'approval_policy = "sometimes": allowed are "untrusted", "on-failure"',
        ),
        ("model = 5", "model = 5: a string in quotes"),
        ('model = ""', 'model = "": a name of 1 to 1,000 characters'),
        ('plan_model = " "', 'plan_model = " ": a name of 1 to'),
        (f"review_model = '{'m' * 1_001}'", "a name of 1 to 1,000 characters"),
        ("[worker]\nconcurrency = 0", "worker.concurrency = 0: at least 1"),
        ("[worker]\nconcurrency = 1.5", "worker.concurrency = 1.5: a whole number"),
        ("[worker]\nconcurrency = true", "worker.concurrency = True: a whole number"),
        ("[worker]\nquantum_s = nan", "worker.quantum_s = nan: at least 0.1"),
        ("[worker]\nquantum_s = inf", "worker.quantum_s = inf: at least 0.1, and finite"),
        (
            "[agents]\nbudget_tokens = 9007199254740993",
            "budget_tokens = 9007199254740993: at most 1e+15",
        ),
        (
            "[agents]\nbudget_tokens = 1000000000000001",
            "budget_tokens = 1000000000000001: at most 1e+15",
        ),
        (
            "[agents]\nbudget_requests = 1000000000000001",
            "budget_requests = 1000000000000001: at most 1e+15",
        ),
        (
            "[agents]\nmax_spawned = 1000000000000001",
            "max_spawned = 1000000000000001: at most 1e+15",
        ),
        ("[agents]\nbudget_wall_s = 1e300", "agents.budget_wall_s = 1e+300: at most 1e+12"),
        ("[agents]\nbudget_wall_s = 1000000000001", "agents.budget_wall_s = 1000000000001: at most 1e+12"),
        ("[agents]\nmax_depth = 33", "agents.max_depth = 33: at most 32"),
        ("[agents]\nbudget_cost = 1e10", "agents.budget_cost = 10000000000.0: at most 1e+09"),
        ("[worker]\nconcurrency = 9007199254740993", "worker.concurrency = 9007199254740993: at most 10000"),
        (
            "[upkeep]\narchive_url = '/srv/archive'",
            '"/srv/archive": a folder as file:///PATH, or',
        ),
        ("[upkeep]\narchive_url = 'archive'", 'archive_url = "archive": a folder as file:///PATH, or'),
        (
            "[upkeep]\narchive_url = 'file://srv/x'",
            "a folder as file:///PATH, or an object store such as s3://",
        ),
        (
            "[upkeep]\narchive_url = 'local:///x'",
            "a folder as file:///PATH, or an object store such as s3://",
        ),
        ("[receipts]\nurl = '/srv/register'", 'receipts.url = "/srv/register": a folder as file:///PATH, or'),
        ('[tui]\nnotifications = ["x"]', "true, false, or a list of agent-turn-complete, approval-requested"),
        ("[model_providers.openai]\nbase_url = 'http:///v1'", "an http:// or https:// URL"),
        ("[redis]\nshards = 8", "redis.shards = 8: at least 16"),
        ('[redis]\nprefix = "a{b}"', 'redis.prefix = "a{b}": must match'),
        ("[worker]\npools = 'default'", 'worker.pools = "default": a list'),
        ("rollout_deltas = 1", "rollout_deltas = 1: true or false"),
        ("profile = 'p'\n[profiles]\np = 3", "profiles.p = a value: a table of settings"),
        ("model.name = 'gpt-5'", "model = a table: a single value"),
        ("worker.lease_s = 4", "worker.lease_s = 2.0, 4.0, 4.0: each must be smaller"),
        ('model_provider = "nobody"', "model_provider = 'nobody': providers here: openai"),
        ("[model_providers.mine]\nname = 'x'\n", None),
        (
            "model_provider = 'mine'\n[model_providers.mine]\nname = 'x'\n",
            "mine.base_url = '': an http:// or",
        ),
        ("request_max_retries = 101", "request_max_retries = 101: at most 100"),
        ("stream_idle_timeout_ms = 0", "stream_idle_timeout_ms = 0: at least 1"),
        ("[shell_environment_policy.set]\nA = [1]", "set.A = (hidden): a table of strings"),
        (
            "[chain]\nsecret = 'x'",
            "chain.key_id = '': a chain secret needs a name: set this key, or DENDRO_CHAIN_KEY_ID",
        ),
        ("model = ", "not TOML"),
    ],
)
def test_unusable_value_is_refused_with_what_is_allowed(load: Load, file: str, message: str | None) -> None:
    if message is None:
        load(file)
        return
    with pytest.raises(SettingsError) as refused:
        load(file)
    assert message in str(refused.value)
    assert refused.value.where


@pytest.mark.parametrize("override", ["model", "=5", "a b=1", "", "a\nb=1"])
def test_override_that_is_none_is_refused_with_an_example(load: Load, override: str) -> None:
    with pytest.raises(SettingsError, match="-c key=value"):
        load(overrides=[override])


def test_pool_of_odd_bytes_is_refused_wherever_it_is_named(load: Load) -> None:
    odd = "gpu\udcff"
    for named in (
        {"environ": {"DENDRO_POOL": odd}},
        {"overrides": [f"pool={odd}"]},
        {"worker__pools": [odd]},
    ):
        with pytest.raises(SettingsError, match=r"pools? = .*: valid Unicode"):
            load(**named)


def test_error_names_the_source_that_is_to_blame(load: Load, folder: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(str(folder / "dendro.toml"))):
        load("worker.concurrency = 0")
    with pytest.raises(SettingsError, match="DENDRO_WORKER_CONCURRENCY"):
        load(environ={"DENDRO_WORKER_CONCURRENCY": "none"})
    with pytest.raises(SettingsError, match=r"^command line"):
        load(worker__concurrency=0)
    with pytest.raises(SettingsError, match=r"dendro\.toml \[profiles\.p\]"):
        load('profile = "p"\n[profiles.p]\nmodel_verbosity = "loud"')


# --- Providers


def test_recorded_file_of_the_peer_sets_the_chosen_provider(load: Load) -> None:
    found = load(
        'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
        "request_max_retries = 2\nstream_max_retries = 2\nstream_idle_timeout_ms = 3000\n"
    )
    provider = found.model.providers["openai"]
    assert (provider.request_max_retries, provider.stream_max_retries) == (2, 2)
    assert provider.stream_idle_timeout_s == 3.0
    assert found.warnings == ()


def test_own_table_of_a_provider_is_heard_before_shared_keys_of_equal_right(load: Load) -> None:
    file = (
        "request_max_retries = 1\nmodel_provider = 'mine'\n"
        "[model_providers.mine]\nbase_url = 'http://localhost:1/v1'\nrequest_max_retries = 7\n"
    )
    assert load(file).model.providers["mine"].request_max_retries == 7
    assert load(file).model.providers["openai"].request_max_retries == 4
    assert load(file, overrides=["request_max_retries=9"]).model.providers["mine"].request_max_retries == 9


def test_keys_and_headers_are_taken_from_the_environment_and_never_shown(load: Load) -> None:
    file = (
        "model_provider = 'mine'\n[model_providers.mine]\nbase_url = 'https://host/v1/'\nenv_key = 'MINE'\n"
        "http_headers = { Extra = 'hush-1' }\nenv_http_headers = { X-Team = 'TEAM', X-No = 'NO' }\n"
    )
    environ = {
        "MINE": "hush-2",
        "TEAM": "hush-3",
        "DENDRO_CHAIN_SECRET": "hush-4",
        "DENDRO_CHAIN_KEY_ID": "k1",
        "DENDRO_REDIS_URL": "redis://:hush-5@host",
    }
    found = load(file, environ)
    provider = found.model.providers["mine"]
    assert provider.api_key == "hush-2"
    assert dict(provider.secret_headers) == {"X-Team": "hush-3"}
    assert provider.base_url == "https://host/v1"
    assert found.chain.key == "hush-4"
    assert found.upkeep.url == "redis://:hush-5@host"
    assert "hush" not in repr(found)


def test_secret_is_not_in_the_error_about_it(load: Load) -> None:
    with pytest.raises(SettingsError) as refused:
        load(environ={"DENDRO_CHAIN_SECRET": "hush" * 20, "DENDRO_CHAIN_KEY_ID": "k1"})
    assert "hush" not in str(refused.value)


NAMED: dict[type[config_keys.Table], str] = {
    config_keys.ProviderSettings: "model_providers.x",
    config_keys.McpServerSettings: "mcp_servers.x",
}
HIDDEN = [
    (
        f"{NAMED[record]}.{name}" if record in NAMED else spec.key or name,
        str(record.model_fields[name].annotation),
    )
    for record in (*KEYED_RECORDS, *NAMED)
    for name, spec in config_keys.settings_of(record)
    if not record.model_fields[name].repr
]
"""The keys whose values may be secrets, and their types."""


@pytest.mark.parametrize(("key", "type"), HIDDEN, ids=[key for key, _ in HIDDEN])
def test_value_that_may_be_a_secret_is_in_no_error_and_no_warning_about_it(
    key: str, type: str, load: Load
) -> None:
    table, name = ("", "") if key.count(".") < 2 else (key.rpartition(".")[0], "base_url")
    name = "url" if table.startswith("mcp_servers") else name
    server = f'{table}.{name} = "https://x"\n' if table else ""
    unusable = ['["hush-1"]', '{ hush-2 = "hush-3" }', '{ a = ["hush-4"] }', '{ a = { b = "hush-5" } }']
    for value in unusable[2:] if "Mapping" in type else unusable:
        for file, overrides in ((f"{server}{key} = {value}", []), (server, [f"{key}={value}"])):
            try:
                said = str(load(file, overrides=overrides).warnings)
            except SettingsError as error:
                said = str(error)
            assert key.rpartition(".")[2] in said
            assert "hush" not in said.replace("hush-2", "")


def test_usual_variables_set_the_openai_provider(load: Load) -> None:
    environ = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    provider = load("[model_providers.openai]\nbase_url = 'https://file/v1'", environ).model.providers[
        "openai"
    ]
    assert provider.api_key == "key"
    assert provider.base_url == "http://127.0.0.1:9/v1"


OF_VARIABLES = """
[model_providers.openai]
base_url = 'https://host/v1'
env_http_headers = { X-Team = 'TEAM' }
[mcp_servers.a]
url = 'https://host/mcp'
bearer_token_env_var = 'TOKEN'
env_http_headers = { X-Team = 'TEAM' }
"""


def test_secret_that_a_header_bears_is_what_stands_between_the_blanks_around_it(load: Load) -> None:
    """A file of variables that was written on Windows ends its lines with one character more."""
    environ = {"OPENAI_API_KEY": "sk-1\r", "TOKEN": " sk-2\n", "TEAM": "blue \r\n"}
    found = load(OF_VARIABLES, environ)
    provider, server = found.model.providers["openai"], found.mcp_servers["a"]
    assert (provider.api_key, provider.secret_headers) == ("sk-1", {"X-Team": "blue"})
    assert (server.bearer_token, server.secret_headers) == ("sk-2", {"X-Team": "blue"})
    blank = load(OF_VARIABLES, dict.fromkeys(environ, " \n")).model.providers["openai"]
    assert (blank.api_key, blank.unset_key, blank.secret_headers) == (None, "OPENAI_API_KEY", {})


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "TOKEN", "TEAM"])
@pytest.mark.parametrize("value", ["sk-hush\nsk-2", "sk-hush\x00", "sk\x1b[2Jhush"])
def test_secret_that_no_header_can_bear_is_named_by_its_variable(load: Load, name: str, value: str) -> None:
    what = f"environment variable {name}: a line break or another control character in it"
    if name == "TOKEN":
        (said,) = load(OF_VARIABLES, {name: value}).warnings
    else:
        with pytest.raises(SettingsError) as refused:
            load(OF_VARIABLES, {name: value})
        said = str(refused.value)
    assert what in said
    assert "hush" not in said


@pytest.mark.parametrize("key", ["http_headers", "env_http_headers"])
@pytest.mark.parametrize(
    ("header", "sent"),
    [("X-A = 'b\tc'", True), ("'X A' = 'b'", False), ("'' = 'b'", False), ('X-A = "b\\nc"', False)],
)
def test_header_that_cannot_be_sent_is_refused(load: Load, key: str, header: str, sent: bool) -> None:
    table = f"{key} = {{ {header} }}"
    file = f"[model_providers.openai]\n{table}\n[mcp_servers.a]\nurl = 'https://host/mcp'\n{table}\n"
    if sent:
        assert set(load(file).mcp_servers) == {"a"}
        return
    with pytest.raises(SettingsError, match=rf"model_providers\.openai\.{key} = .*names of letters"):
        load(file)
    (left_out,) = load(file.partition("[mcp")[1] + file.partition("[mcp")[2]).warnings
    assert re.search(rf"mcp_servers\.a\.{key} = .*names of letters", left_out)


def test_provider_that_only_the_peer_can_use_is_left_out_until_chosen(load: Load) -> None:
    file = "[model_providers.chat]\nbase_url = 'http://x/v1'\nwire_api = 'odd'\n"
    found = load(file)
    assert set(found.model.providers) == {"openai"}
    assert "provider chat is left out" in found.warnings[0]
    with pytest.raises(SettingsError, match="wire_api"):
        load(file, overrides=["model_provider=chat"])


def test_names_with_dots_stay_whole(load: Load) -> None:
    found = load(
        '[model_prices."gpt-5.1"]\ninput = 1.25\noutput = 10\n', overrides=['model_prices."gpt-5.1".input=2']
    )
    assert found.model.prices["gpt-5.1"] == ModelPrice(input=2.0, output=10.0)


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://host/v1", {"HTTPS_PROXY": "http://proxy:1"}, "http://proxy:1"),
        ("https://host/v1", {"https_proxy": "http://low:1", "HTTPS_PROXY": "http://up:1"}, "http://low:1"),
        ("http://host/v1", {"HTTPS_PROXY": "http://proxy:1"}, None),
        ("http://host/v1", {"ALL_PROXY": "http://proxy:1"}, "http://proxy:1"),
        ("https://a.host/v1", {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "x,.host"}, None),
        ("https://a.host/v1", {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "*"}, None),
        ("https://ahost/v1", {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "host"}, "http://proxy:1"),
        ("http://127.0.0.1:9/v1", {"HTTP_PROXY": "http://proxy:1"}, None),
        ("https://host/v1", {"HTTPS_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("https://host/v1", {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "host:443"}, None),
        ("https://host:8443/v1", {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "host:443"}, "http://proxy:1"),
        ("http://10.1.2.3/v1", {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://11.1.2.3/v1", {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "10.0.0.0/8"}, "http://proxy:1"),
        ("http://[fd00::1]:8080/v1", {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "fd00::/8"}, None),
        ("http://[fd00::1]/v1", {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "fd00::1"}, None),
    ],
)
def test_provider_is_reached_through_the_proxy_that_other_programs_take(
    load: Load, url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert load(environ={"OPENAI_BASE_URL": url, **environ}).model.providers["openai"].proxy == proxy


@pytest.mark.parametrize("excepted", ["Host.Example:443", "HOST.example", ".EXAMPLE", "*.Example"])
def test_exceptions_from_proxies_are_names_in_any_letters(load: Load, excepted: str) -> None:
    environ = {"OPENAI_BASE_URL": "https://Host.example/v1", "HTTPS_PROXY": "http://proxy:1"}
    for name, others in (("NO_PROXY", excepted), ("no_proxy", f"a, {excepted} ,b")):
        assert load(environ={**environ, name: others}).model.providers["openai"].proxy is None


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "0443"])
def test_port_that_is_none_excepts_nothing(load: Load, number: str) -> None:
    environ = {"OPENAI_BASE_URL": "https://host/v1", "HTTPS_PROXY": "http://proxy:1"}
    found = load(environ={**environ, "NO_PROXY": f"host:{number}"})
    assert found.model.providers["openai"].proxy == "http://proxy:1"


KEYS = [
    ("env_key = 'KEY'", {"KEY": "k"}),
    ("auth = 'login'", {}),
    ("http_headers = { X-A = 'b', authorization = 'Bearer x' }", {}),
    ("env_http_headers = { X-A = 'NO', AUTHORIZATION = 'KEY' }", {"KEY": "Bearer k"}),
]
"""Ways in which requests to a provider bear a key, with what the environment holds."""


@pytest.mark.parametrize("user", ["ann:hush@", "ann@", ":hush@"])
@pytest.mark.parametrize(("key", "environ"), KEYS)
def test_address_with_a_user_is_refused_beside_a_key_whose_place_it_would_take(
    load: Load, key: str, environ: dict[str, str], user: str
) -> None:
    table = f"base_url = 'https://{user}host/v1'\n{key}\n"
    file = f"model_provider = 'b'\n[model_providers.b]\n{table}"
    with pytest.raises(SettingsError) as refused:
        load(file, environ)
    assert re.search(
        r"model_providers\.b\.base_url = \(hidden\): no user .* beside a key", str(refused.value)
    )
    assert "hush" not in str(refused.value)
    # Unchosen, it is left out; without a key, or without the user, it is taken.
    (left_out,) = load(f"[model_providers.b]\n{table}", environ).warnings
    assert left_out.startswith("provider b is left out: ")
    assert "b" in load(file.replace(f"{key}\n", ""), environ).model.providers
    assert "b" in load(file.replace(user, ""), environ).model.providers
    if key != "auth = 'login'" and "x" not in key:
        assert "b" in load(file, {}).model.providers, "the variable is not set"


TOKENS = [
    ("bearer_token_env_var = 'KEY'", {"KEY": "k"}),
    ("http_headers = { X-A = 'b', authorization = 'Bearer x' }", {}),
    ("env_http_headers = { X-A = 'NO', AUTHORIZATION = 'KEY' }", {"KEY": "Bearer k"}),
]


@pytest.mark.parametrize("user", ["ann:hush@", "ann@", ":hush@"])
@pytest.mark.parametrize(("token", "environ"), TOKENS)
def test_mcp_server_whose_address_has_a_user_is_left_out_beside_a_token(
    load: Load, token: str, environ: dict[str, str], user: str
) -> None:
    file = f"[mcp_servers.b]\nurl = 'https://{user}host/mcp'\n{token}\n[mcp_servers.c]\ncommand = 'x'\n"
    found = load(file, environ)
    assert set(found.mcp_servers) == {"c"}
    (left_out,) = found.warnings
    assert re.search(r"b\.url = \(hidden\): no user .* beside a token", left_out)
    assert set(load(file.replace(f"{token}\n", ""), environ).mcp_servers) == {"b", "c"}
    assert set(load(file.replace(user, ""), environ).mcp_servers) == {"b", "c"}


UNFIT_USERS = ["a%3Ahush:x@", "ł:hush@", "ann:%C5%82hush@", "ann:hu\tsh@", "ann:hu sh@x:port "]


@pytest.mark.parametrize("user", UNFIT_USERS)
@pytest.mark.parametrize(("table", "key"), [("model_providers.openai", "base_url"), ("mcp_servers.a", "url")])
def test_address_whose_user_cannot_be_sent_is_refused_and_the_user_not_told(
    load: Load, user: str, table: str, key: str
) -> None:
    def said(address: str) -> str:
        try:
            return str(load(f'[{table}]\n{key} = "{address}"\n').warnings)
        except SettingsError as error:
            return str(error)

    refusal = said(f"https://{user}host/v1")
    assert f"{table}.{key}" in refusal
    assert "a user in it has no colon" in refusal
    assert "hush" not in refusal.replace("hu sh", "hush").replace("hu\tsh", "hush")
    assert said("https://ann%40x:h%C3%BCsh@host/v1") == "()"


def test_each_variable_that_the_pages_name_is_known(load: Load) -> None:
    """Beside those of settings, which have a test of their own."""
    pages = "\n".join(file.read_text() for file in (Path(__file__).parent.parent / "docs").glob("*.md"))
    named = set(re.findall(r"\bDENDRO_[A-Z_]+[A-Z]\b", pages))
    assert {"DENDRO_HOME", "DENDRO_PROGRAMS"} <= named
    settings = {variable(path) for path in known_paths()}
    for name in sorted(named - settings - {"DENDRO_A_B"}):
        assert load(environ={name: ""}).warnings == (), name


def test_own_proxy_of_a_provider_is_heard_first(load: Load) -> None:
    file = "[model_providers.openai]\nproxy = 'http://own:1'\nca_file = 'ca.pem'\n"
    provider = load(file, {"HTTPS_PROXY": "http://proxy:1", "SSL_CERT_FILE": "/ca"}).model.providers["openai"]
    assert provider.proxy == "http://own:1"
    assert provider.ca_file is not None
    assert provider.ca_file.name == "ca.pem"


def test_cluster_needs_a_single_server_for_upkeep(load: Load) -> None:
    with pytest.raises(SettingsError, match=r"upkeep\.url"):
        load("[redis]\nurl = 'redis://node:7000'\ncluster = true\n")
    found = load("[redis]\nurl = 'redis://node:7000'\ncluster = true\n[upkeep]\nurl = 'redis://one'\n")
    assert found.redis.cluster


# --- Warnings


def test_unknown_key_is_a_warning_that_guesses_what_was_meant(load: Load, folder: Path) -> None:
    found = load(
        "modle = 'x'\n[worker]\nconcurency = 3\n[tui]\ntheme = 'dark'\n[zzz]\n", {"DENDRO_MODLE": "x"}
    )
    assert found.warnings == (
        f"{folder / 'dendro.toml'}: unknown key modle (did you mean model?)",
        f"{folder / 'dendro.toml'}: unknown key worker.concurency (did you mean worker.concurrency?)",
        f"{folder / 'dendro.toml'}: tui has no effect here",
        "environment: unknown variable DENDRO_MODLE (did you mean DENDRO_MODEL?)",
    )


TABLES = ("", "worker.", "shell_environment_policy.", "model_providers.openai.", "mcp_servers.x.", "agents.")


@pytest.mark.parametrize("table", TABLES)
def test_unknown_key_is_named_with_its_source_wherever_it_stands(
    table: str, load: Load, folder: Path
) -> None:
    """In the own file, in a chosen profile, behind `-c`: whoever mistypes a key hears of it."""
    place, server = str(folder / "dendro.toml"), 'mcp_servers.x.command = "true"\n'
    stated = load(f"{table}zzzzz = 1\n{server}")
    profile = load(f'profile = "p"\n{server}profiles.p.{table}zzzzz = 1\nprofiles.q.{table}yyyyy = 1\n')
    typed = load(server, overrides=[f"{table}zzzzz=1"])
    for found, where in ((stated, place), (profile, f"{place} [profiles.p]"), (typed, "-c")):
        assert [told.partition(" (did you mean")[0] for told in found.warnings] == [
            f"{where}: unknown key {table}zzzzz"
        ]


def test_profiles_that_were_not_chosen_are_not_judged(load: Load) -> None:
    file = "[profiles.old]\nmodle = 'x'\napproval_policy = 'sometimes'\n"
    assert load(file).warnings == ()
    with pytest.raises(SettingsError, match="approval_policy"):
        load(file, profile="old")


@pytest.mark.parametrize("given", [None, "", "relative"])
def test_home_that_is_no_whole_path_is_that_of_the_users_account(given: str | None) -> None:
    environ = {} if given is None else {"HOME": given}
    account = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_home(environ) == account
    assert data_home(None, environ, Path("/here")) == account / ".local/share/dendro"
    assert user_home({"HOME": "/home/ann"}) == Path("/home/ann")


@pytest.mark.parametrize("read", [layers.read_config, layers.read_folder_file])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_configuration_file_has_a_mebibyte_and_no_byte_more(
    tmp_path: Path, read: Callable[[Path], bytes], more: int
) -> None:
    file, size = tmp_path / "dendro.toml", layers.FILE_LIMIT_BYTES + more
    file.write_bytes(b"#" * size)
    if more <= 0:
        assert len(read(file)) == size
        return
    with pytest.raises(SettingsError, match="larger than 1024 KiB"):
        read(file)
