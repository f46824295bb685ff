"""The settings in force as a session's log has them: all that counts, and no secret in any place."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from orchestrator import config_keys
from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
from orchestrator.settings.load import HIDDEN, bare
from orchestrator.settings.sources import KEYED_RECORDS

NAMED: dict[type[config_keys.Table], str] = {
    config_keys.ProviderSettings: "model_providers.x",
    config_keys.McpServerSettings: "mcp_servers.x",
}
REQUIRED = {
    config_keys.ProviderSettings: 'model_providers.x.base_url="https://x.example/v1"',
    config_keys.McpServerSettings: 'mcp_servers.x.url="https://x.example/mcp"',
}
PROGRAM = 'mcp_servers.x.command="server"'


def load(*overrides: str, **environ: str) -> Settings:
    environ = {"HOME": "/nowhere", "DENDRO_HOME": "/nowhere/home", **environ}
    return load_settings(SettingsSources(Path("/tmp"), environ, overrides=overrides))


def told(*overrides: str, **environ: str) -> str:
    return load(*overrides, **environ).without_secrets()


# ── no secret ─────────────────────────────────────────────────────────────────────────────────────

USERS = ["ann:hush@", "ann:hush-1%2F@", ":hush@", "hush@", "ann@corp:hush@", "hush@corp:x@", "a:hush@b:hush@"]
AT = ["https://{}x.example/v1", "https://{}x.example:8443/a@b/c"]
ADDRESSES = [
    "model_providers.x.base_url",
    "model_providers.x.proxy",
    "mcp_servers.x.url",
    "mcp_servers.x.proxy",
]
ADDRESSES += ["redis.url", "upkeep.url", "upkeep.archive_url", "receipts.url"]


def others(key: str) -> list[str]:
    """The keys that a table needs beside this one."""
    return [
        said for said in REQUIRED.values() if said.startswith(key[:14]) and not said.startswith(f"{key}=")
    ]


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("key", ADDRESSES)
def test_no_user_of_any_address_is_told(key: str, user: str, at: str) -> None:
    address = at.format(user)
    if key.startswith(("upkeep.archive", "receipts")):
        address = address.replace("https", "s3")
    text = told(*others(key), f"{key}={json.dumps(address)}")
    assert "hush" not in text
    assert "x.example" in text or key in ("redis.url", "upkeep.url") or key.endswith("proxy")


@pytest.mark.parametrize("name", ["key", "api-key", "access_token", "sig", "Secret", "a%70i_key", "X-Auth"])
@pytest.mark.parametrize(
    "at", ["?{}=hush", "?a=1&{}=hush", "?{}=hush&b=2", "?{}=hush#c", "?{0}=hush&{0}=hush"]
)
@pytest.mark.parametrize("key", ["model_providers.x.base_url", "mcp_servers.x.url"])
def test_no_parameter_that_is_a_secret_is_told_and_others_are(key: str, at: str, name: str) -> None:
    query = at.format(name)
    text = told(*others(key), f'{key}="https://x.example/v1{query}"')
    assert "hush" not in text
    assert f"{name}={HIDDEN}" in text
    for other in ("a=1", "b=2", "#c"):
        assert (other in text) is (other in query)


SECRET_TABLES = [
    "shell_environment_policy.set",
    "mcp_servers.x.env",
    "mcp_servers.x.http_headers",
    "model_providers.x.http_headers",
    "model_providers.x.query_params",
]


@pytest.mark.parametrize("name", ["API_KEY", "PLAIN", "A.b"])
@pytest.mark.parametrize("table", SECRET_TABLES)
def test_values_of_tables_that_may_hold_secrets_are_hidden_and_their_names_told(
    table: str, name: str
) -> None:
    beside = [PROGRAM] if table.endswith("env") else list(REQUIRED.values())
    text = told(*beside, f'{table}."{name}"="hush"', f'{table}.OTHER="hush-2"')
    assert "hush" not in text
    assert f'"{name}": "{HIDDEN}"' in text
    assert f'"OTHER": "{HIDDEN}"' in text


def test_no_value_of_the_environment_is_told() -> None:
    overrides = [
        *REQUIRED.values(),
        'model_providers.x.env_key="MINE"',
        'model_providers.x.env_http_headers.X="TEAM"',
        'mcp_servers.x.bearer_token_env_var="BEARER"',
        'mcp_servers.x.env_http_headers.Y="TEAM"',
        'mcp_servers.y.command="server"',
        'mcp_servers.y.env_vars=["TEAM"]',
    ]
    names = ("MINE", "TEAM", "BEARER", "OPENAI_API_KEY", "CODEX_API_KEY", "ANY_OTHER", "DENDRO_CHAIN_SECRET")
    text = told(*overrides, 'chain.key_id="k"', **{name: f"hush-{name}" for name in names})
    assert "hush" not in text
    for name in names[:3]:
        assert f'"{name}"' in text, "its name is told"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--token=hush", "-v"], [f"--token={HIDDEN}", "-v"]),
        (["--api-key", "hush", "x"], ["--api-key", HIDDEN, "x"]),
        (["-v", "--password", "hush"], ["-v", "--password", HIDDEN]),
        (["--auth", "--other", "x"], ["--auth", "--other", "x"]),
        (["--token", "hush", "--secret", "hush"], ["--token", HIDDEN, "--secret", HIDDEN]),
        (["--token=", "x"], [f"--token={HIDDEN}", "x"]),
        (["https://ann:hush@x/y", "--url=https://ann:hush@x"], [f"https://{HIDDEN}@x/y", f"--url=https://{HIDDEN}@x"]),
        (["run", "-c", "a=b"], ["run", "-c", "a=b"]),
        (["token", "x"], ["token", "x"]),
    ],
)  # fmt: skip
def test_arguments_of_a_server_are_told_but_for_secret_ones(words: list[str], shown: list[str]) -> None:
    text = told(PROGRAM, f"mcp_servers.x.args={json.dumps(words)}")
    assert json.loads(text)["mcp_servers"]["x"]["args"] == shown


# ── all that counts ───────────────────────────────────────────────────────────────────────────────


def values_of(spec: Any) -> list[str]:
    """Values that a field of this type may have, as a command line says them."""
    hint = bare(spec.annotation)
    least, most = config_keys.limits_of(spec)
    if hint is bool:
        return ["true", "false"]
    if get_origin(hint) is Literal:
        return [json.dumps(value) for value in get_args(hint)]
    if hint in (int, float):
        number = (least or 0) + 1
        return [
            str(int(number)),
            str(int(number) + 3),
            str(most or 1_000_000_000),
            str(int(least or 0) + 2**27),
        ]
    if get_origin(hint) is tuple:
        return ['["a", "b"]', json.dumps([*get_args(get_args(hint)[0])][:1]), "[]"]
    if hint is Path:
        return ['"/some/where"', '"/else/where"']
    return [
        '"other"',
        '"https://y.example/z"',
        '"https://w.example"',
        '"s3://y/z"',
        '{ a = "free" }',
        '{ home = "off" }',
        '"redis://y"',
    ]


KEYS = [
    (record, f"{NAMED[record]}.{spec.key or name}" if record in NAMED else spec.key or name, name)
    for record in (*KEYED_RECORDS, *NAMED)
    for name, spec in config_keys.settings_of(record)
]
BESIDE = {
    "auth.issuer": 'auth.client_id="x"', "auth.client_id": 'auth.issuer="https://x.example"',
    "chain.secret": 'chain.key_id="k"', "gateway.tls_certificate": 'gateway.tls_key="/k"',
    "gateway.tls_key": 'gateway.tls_certificate="/c"', "gateway.token_audience": 'gateway.token_issuer="https://x"',
    "gateway.token_issuer": 'gateway.token_audience="x"', "redis.cluster": 'upkeep.url="redis://x"',
    "worker.lease_s": "worker.trust_s=3", "worker.renew_s": "worker.trust_s=3.9",
    "worker.trust_s": "worker.renew_s=0.5", "model_provider": 'model_providers.other.base_url="https://x"',
    "webhook.secret": 'webhook.url="https://x"',
}  # fmt: skip
"""A key that some settings need beside them."""
UNTOLD = {"approvals.signers"}
"""Settings whose values have a form that no other has; a test of their own tries them."""


@pytest.mark.parametrize(("record", "key", "name"), KEYS, ids=[key for _, key, _ in KEYS])
def test_every_setting_changes_what_is_told(record: type[config_keys.Table], key: str, name: str) -> None:
    """A reader of the log sees whether two workers had the same settings."""
    beside = [BESIDE[key]] if key in BESIDE else []
    if record in REQUIRED:
        programs = key.endswith((".args", ".env", ".env_vars", ".cwd", ".command"))
        beside += [PROGRAM] if programs and not key.endswith(".command") else []
        beside += [] if programs or key in REQUIRED[record] else [REQUIRED[record]]
    texts = set[str]()
    for value in values_of(record.model_fields[name]):
        try:
            found = load(*beside, f"{key}={value}")
        except SettingsError:
            continue
        if not any(" x is left out" in warning for warning in found.warnings):
            texts.add(found.without_secrets())
    with suppress(SettingsError):
        texts.add(told(*beside))
    assert len(texts) > 1 or key in UNTOLD, f"{key} is not told"
