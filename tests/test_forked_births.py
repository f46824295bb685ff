"""The fork of a session: the switches that its source was made with, and those that its maker names."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.core.birth import Birth, ForkedFrom
from orchestrator.core.settings import SessionFacts
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.new_sessions import FACT_KEYS, forked_birth, new_birth
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
