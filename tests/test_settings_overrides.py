"""Overrides of Codex's own clients: what of theirs is ours under another name, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.settings import SettingsError, SettingsSources, load_settings
from orchestrator.settings.sources import MOST_OVERRIDES, of_object, translated


def loaded(*overrides: str) -> Any:
    return load_settings(SettingsSources(Path("/"), {"HOME": "/nobody"}, overrides=overrides))


def test_client_sets_the_address_of_the_provider_by_the_name_that_it_knows() -> None:
    settings = loaded(*translated(['openai_base_url="http://127.0.0.1:1/v1"', "model=gpt-5.5"]))
    assert settings.model.providers["openai"].base_url == "http://127.0.0.1:1/v1"
    assert settings.session_defaults.model == "gpt-5.5"
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("mode", "searches"), [('"live"', True), ("cached", True), ("disabled", False), ("true", True)]
)
def test_client_switches_the_search_by_its_mode(mode: str, searches: bool) -> None:
    assert loaded(*translated([f"web_search={mode}"])).tools.web_search is searches


@pytest.mark.parametrize("told", [("true",), ("false",), ("true", "false"), ("false", "true")])
def test_last_word_switches_notifications_all_on_or_all_off(told: tuple[str, ...]) -> None:
    found = loaded(*(f"tui.notifications={word}" for word in told)).front.notifications
    assert found == (("agent-turn-complete", "approval-requested") if told[-1] == "true" else ())


@pytest.mark.parametrize("override", ["web_search=sometimes", "web_search=[1]", "no value", "=1", "a.=1"])
def test_override_that_says_nothing_is_refused(override: str) -> None:
    with pytest.raises(SettingsError):
        translated([override])


def test_unknown_key_of_a_client_is_a_warning() -> None:
    [warning] = loaded(*translated(['cyber_mode="on"'])).warnings
    assert warning.startswith("-c: unknown key cyber_mode")


def test_request_sets_dotted_and_nested_keys_alike() -> None:
    dotted = of_object({"sandbox_workspace_write.network_access": True, "tools.web_search": None})
    nested = of_object({"sandbox_workspace_write": {"network_access": True}})
    assert dotted == nested == ("sandbox_workspace_write.network_access=true",)
    assert loaded(*dotted).session_defaults.sandbox.network_access


def test_names_of_a_request_stay_one_part_each() -> None:
    server = {"command": "serve", "args": ["--name", 'a "b"\n\x7f'], "env": {"A.B": "1"}}
    [found] = loaded(*of_object({"mcp_servers": {"files-1": server}})).mcp_servers.values()
    assert (found.id, found.command, found.args) == ("files-1", "serve", ("--name", 'a "b"\n\x7f'))
    assert found.env == {"A.B": "1"}


def test_key_of_a_request_that_holds_a_value_too_is_refused() -> None:
    with pytest.raises(SettingsError, match="a key, dotted as in the file"):
        of_object({"model=gpt-5": 1})


def test_request_with_more_keys_than_a_person_writes_is_refused() -> None:
    assert len(of_object({f"k{number}": 1 for number in range(MOST_OVERRIDES)})) == MOST_OVERRIDES
    with pytest.raises(SettingsError, match="257 keys: at most 256"):
        of_object({f"k{number}": 1 for number in range(MOST_OVERRIDES + 1)})


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=6,
)


@given(st.text('abc-_é.="', min_size=1), VALUES)
def test_value_of_a_request_arrives_as_it_was_sent(name: str, value: Any) -> None:
    texts = of_object({"table": {name: value}})
    table: dict[str, Any] = {}
    for text in texts:
        merged(table, tomllib.loads(text))
    assert table == {"table": {name: value}}


def merged(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merged(into[name], value)
        else:
            into[name] = value
