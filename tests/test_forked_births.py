"""The fork of a session: the switches and settings of its source, and those that its maker names."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.core.birth import Birth, ForkedFrom
from orchestrator.core.settings import SessionFacts, WorkspaceMark
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.new_sessions import FACT_KEYS, TURN_KEYS, forked_birth, new_birth
from tests.settings_at_work import TREE, session

SWITCHES = {
    "base_instructions": ("base_instructions", "Be brief.", "Be long."),
    "on_user_input": ("on_user_input", "steer", "replace"),
    "approval_timeout_s": ("approval_timeout_ms", "60", "90"),
    "agents.enabled": ("agents", "false", "true"),
    "tools.web_search": ("web_search", "true", "false"),
    "tools.view_image": ("view_image", "false", "true"),
    "tools.update_plan": ("update_plan", "false", "true"),
    "tools.apply_patch": ("apply_patch", "false", "true"),
    "tools.apply_patch_freeform": ("patch_freeform", "true", "false"),
    "tools.unified_exec": ("unified_exec", "true", "false"),
}
"""Keys of what a session is made with: the fact, a value that is not the default, and another one."""
ALL = tuple(f"{key}={value}" for key, (_, value, _) in SWITCHES.items())


def settings(folder: Path, *overrides: str) -> Settings:
    sources = SettingsSources(folder, {"HOME": str(folder / "user")}, overrides=overrides)
    return load_settings(sources)


def born(made_with: Settings) -> Birth:
    return new_birth(made_with, Workspace(), 1_700_000_000_000, os.urandom)


def forked(source: Settings, now: Settings) -> tuple[SessionFacts, SessionFacts, SessionFacts]:
    """The facts of the source, of its fork, and of a session that is made now without a source."""
    state, own = session(source).state, born(now)
    return state.facts, forked_birth(now, ForkedFrom(TREE, 9, "", state), own).facts, own.facts


def test_each_switch_of_a_session_is_named_here(tmp_path: Path) -> None:
    usual, switched = born(settings(tmp_path)).facts, born(settings(tmp_path, *ALL)).facts
    known = {fact for fact, _, _ in SWITCHES.values()}
    assert all(getattr(usual, fact) != getattr(switched, fact) for fact in known)
    assert {spec.name for spec in fields(SessionFacts) if spec.type in ("bool", bool)} <= known


def test_each_fact_that_a_fork_takes_over_has_a_key_by_which_the_command_line_names_it() -> None:
    assert FACT_KEYS.keys() == {fact for fact, _, _ in SWITCHES.values()}
    assert all(key in FACT_KEYS[fact] for key, (fact, _, _) in SWITCHES.items())


def test_fork_has_each_switch_that_its_source_was_made_with(tmp_path: Path) -> None:
    for source, now in ((ALL, ()), ((), ALL)):
        # Settings of a file count for what is made now, and the command line names none of them.
        later = settings(tmp_path, *now)
        made_now = replace(later, named=frozenset())
        taken, fork, _ = forked(settings(tmp_path, *source), made_now)
        for fact, _, _ in SWITCHES.values():
            assert getattr(fork, fact) == getattr(taken, fact), fact


@pytest.mark.parametrize("key", SWITCHES)
def test_fork_has_the_switch_that_the_command_line_names_and_the_others_of_its_source(
    key: str, tmp_path: Path
) -> None:
    named, _, value = SWITCHES[key]
    source, fork, own = forked(settings(tmp_path, *ALL), settings(tmp_path, f"{key}={value}"))
    assert getattr(fork, named) == getattr(own, named) != getattr(source, named)
    for fact in {fact for fact, _, _ in SWITCHES.values()} - {named}:
        assert getattr(fork, fact) == getattr(source, fact), fact


# ── the settings of its turns ─────────────────────────────────────────────────────────────────────

OTHER_PROVIDERS = (
    'model_providers.one={name="one",base_url="http://127.0.0.1:1/v1"}',
    'model_providers.two={name="two",base_url="http://127.0.0.1:2/v1"}',
)
TURNS = {
    "approval_policy": ("approval_policy", '"never"', '"untrusted"'),
    "sandbox_mode": ("sandbox_policy", '"workspace-write"', '"read-only"'),
    "sandbox_workspace_write.network_access": ("sandbox_policy", "true", "false"),
    "model": ("model", '"m1"', '"m2"'),
    "model_provider": ("model_provider", '"one"', '"two"'),
    "model_reasoning_effort": ("effort", '"low"', '"high"'),
    "model_reasoning_summary": ("summary", '"concise"', '"detailed"'),
    "model_verbosity": ("verbosity", '"low"', '"high"'),
    "model_context_window": ("window", "50_000", "60_000"),
    "personality": ("personality", '"friendly"', '"pragmatic"'),
    "item_events": ("item_events", '"all"', '"plan"'),
}
"""Keys of a turn's settings: the setting, a value, and another one."""
THEN = (*OTHER_PROVIDERS, *(f"{key}={value}" for key, (_, value, _) in TURNS.items()))
NOW = (*OTHER_PROVIDERS, *(f"{key}={value}" for key, (_, _, value) in TURNS.items()))


def test_each_setting_of_a_turn_that_a_key_sets_is_named_here() -> None:
    assert {"cwd", *(name for name, _, _ in TURNS.values())} == TURN_KEYS.keys()
    assert {key.partition(".")[0] for key in TURNS} <= {key for keys in TURN_KEYS.values() for key in keys}


@pytest.mark.parametrize("named", [(), *((key,) for key in TURNS), tuple(TURNS), ("profile",)])
def test_fork_has_the_settings_that_the_command_line_names_and_the_others_of_then(
    named: tuple[str, ...], tmp_path: Path
) -> None:
    source, now = session(settings(tmp_path, *THEN)).state, settings(tmp_path, *NOW)
    own = born(now)
    for name in {name for name, _, _ in TURNS.values()} - {"item_events"}:
        assert getattr(own.settings, name) != getattr(source.settings, name), name
    made = forked_birth(replace(now, named=frozenset(named)), ForkedFrom(TREE, 9, "", source), own)
    new = {name for key, (name, _, _) in TURNS.items() if key in named or "profile" in named}
    for name, _, _ in TURNS.values():
        wanted = own.settings if name in new else source.settings
        # A window of then is not the other model's.
        forgets = name == "window" and "model" in new and name not in new
        assert getattr(made.settings, name) == (None if forgets else getattr(wanted, name)), name


MARK, OWN_MARK = WorkspaceMark("/there", "f", "1"), WorkspaceMark("/here", "f", "2")


@pytest.mark.parametrize("pool", ["gpu", "cpu"])
@pytest.mark.parametrize(
    ("named", "own_folder", "own_words", "own_pool"),
    [
        ((), False, False, False),
        (("model",), False, False, False),
        (("user_instructions",), False, True, False),
        (("pool",), False, False, True),
        (("cwd",), True, False, True),
        (("cwd", "pool", "user_instructions"), True, True, True),
        (("profile",), True, False, True),
    ],
)
def test_fork_works_where_its_source_did_unless_the_command_line_names_a_folder_or_pool(
    named: tuple[str, ...], own_folder: bool, own_words: bool, own_pool: bool, pool: str, tmp_path: Path
) -> None:
    """In the folder of then, by the pool that has it, with its mark, its commit and its instructions."""
    now, state = settings(tmp_path), session(settings(tmp_path)).state
    own = born(now)
    own = replace(
        own,
        facts=replace(own.facts, pool="cpu", workspace=OWN_MARK),
        settings=replace(own.settings, cwd="/here"),
        git={"branch": "here"},
        user_instructions="Of now.",
    )
    source = replace(
        state,
        facts=replace(state.facts, pool=pool, workspace=MARK),
        settings=replace(state.settings, cwd="/there"),
        meta=replace(state.meta, instructions="Of then.", git={"branch": "there"}),
    )
    made = forked_birth(replace(now, named=frozenset(named)), ForkedFrom(TREE, 9, "", source), own)
    assert made.settings.cwd == ("/here" if own_folder else "/there")
    assert made.git == {"branch": "here" if own_folder else "there"}
    assert made.user_instructions == ("Of now." if own_words else "Of then.")
    assert made.facts.pool == ("cpu" if own_pool else pool)
    stays = not own_folder and made.facts.pool == pool
    assert made.facts.workspace == (MARK if stays else OWN_MARK)


def test_fork_of_a_session_of_this_machine_goes_to_the_pool_that_has_its_keys_and_tables(
    tmp_path: Path,
) -> None:
    now, state = settings(tmp_path), session(settings(tmp_path)).state
    here = f"host:{now.host.machine_id}"
    for pool, wanted in ((here, "own"), (f"{here}:tables", "own"), ("host:another", "host:another")):
        own = born(now)
        own = replace(own, facts=replace(own.facts, pool="own"))
        source = replace(state, facts=replace(state.facts, pool=pool))
        made = forked_birth(replace(now, named=frozenset()), ForkedFrom(TREE, 9, "", source), own)
        assert made.facts.pool == wanted
