"""A turn's settings: records of each wire, of the log and of the file name what the list of them says."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel

import orchestrator
from orchestrator.cli.run import Wish, _override
from orchestrator.config_keys import SESSION_KEYS, SessionDefaults
from orchestrator.core.frozen import replace
from orchestrator.core.lines import ContextLine, encode_line, read_context
from orchestrator.core.modes import settings_named
from orchestrator.core.settings import (
    GUARDED,
    NAMED_BY_OPS,
    NEW_SETTINGS,
    OF_TURNS,
    TURN_SETTINGS,
    SettingsChanges,
    TurnSettings,
)
from orchestrator.gateways.app_server.turn_params import NamedSettings, TurnSettingsParams, settings_json
from orchestrator.gateways.permissions import Policies
from orchestrator.protocol import ops
from orchestrator.protocol.codec import TurnContext
from orchestrator.protocol.policy import AskForApproval, ReadOnly
from orchestrator.protocol.scalars import (
    CollaborationMode,
    CollaborationSettings,
    ModeKind,
    Personality,
    ReasoningEffort,
    ReasoningSummary,
)
from orchestrator.protocol.wire import written
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.terminal.origin import Origin
from orchestrator.wiring.new_sessions import TURN_KEYS

SETTINGS_OF: Mapping[type[BaseModel], tuple[str, ...]] = {
    ops.ConfigureSession: NAMED_BY_OPS,
    ops.OverrideTurnContext: OF_TURNS,
    ops.UserTurn: OF_TURNS,
    TurnContext: OF_TURNS,
    TurnSettingsParams: OF_TURNS,
}
"""Each record of the protocol that names settings, with those that the list says it names."""
WHOLE = TurnSettings(
    "/w",
    "never",
    {"mode": "read-only"},
    "m",
    effort="high",
    summary="concise",
    personality="friendly",
    collaboration_mode={
        "mode": "plan",
        "settings": {"model": "m", "reasoning_effort": "high", "developer_instructions": None},
    },
)
"""Settings of which a turn brings each along."""


@pytest.mark.parametrize("model", SETTINGS_OF, ids=lambda model: model.__name__)
def test_record_of_the_protocol_names_the_settings_that_the_list_says(model: type[BaseModel]) -> None:
    named = {name for name in model.model_fields if name in TURN_SETTINGS}
    assert named == set(SETTINGS_OF[model])


def test_changes_may_name_each_setting_that_some_operation_names() -> None:
    assert tuple(SettingsChanges.__annotations__) == NAMED_BY_OPS


def test_file_has_a_key_for_each_setting_but_the_mode_of_collaboration() -> None:
    assert TURN_SETTINGS.keys() - TURN_KEYS.keys() == {"collaboration_mode"}
    assert {name for name in TURN_SETTINGS if name in SESSION_KEYS} <= set(SessionDefaults.model_fields)


def test_line_before_a_request_tells_each_setting_of_turns_and_no_other() -> None:
    told = encode_line(ContextLine.of(WHOLE))
    assert tuple(told) == OF_TURNS
    assert TurnSettings.of(read_context({**told, "verbosity": "high"}).changes()) == WHOLE


def test_user_turn_and_override_of_the_same_settings_change_the_same() -> None:
    turn = ops.UserTurn(
        items=(),
        cwd="/w",
        approval_policy=AskForApproval.NEVER,
        sandbox_policy=ReadOnly(),
        model="m",
        effort=ReasoningEffort.HIGH,
        summary=ReasoningSummary.CONCISE,
        personality=Personality.FRIENDLY,
        collaboration_mode=CollaborationMode(
            mode=ModeKind.PLAN,
            settings=CollaborationSettings(model="m", reasoning_effort=ReasoningEffort.HIGH),
        ),
    )
    override = ops.OverrideTurnContext(**{name: getattr(turn, name) for name in OF_TURNS})
    began = TurnSettings("/", "untrusted", {"mode": "danger-full-access"}, "other")
    for op in (turn, override, ops.UserInput(items=(), overrides=override)):
        assert began.changed(settings_named(op) or {}) == WHOLE
    assert tuple(settings_named(turn) or {}) == OF_TURNS


def test_operation_without_settings_brings_none() -> None:
    assert settings_named(ops.UserInput(items=())) is None
    assert settings_named(ops.Compact()) is None
    assert settings_named(ops.OverrideTurnContext()) == {}


def test_settings_that_early_logs_have_not_are_stated_only_where_they_are_set() -> None:
    stated = TurnSettings("/", "never", {"mode": "read-only"}, "m").wire()
    assert stated.keys() == TURN_SETTINGS.keys() - NEW_SETTINGS.keys()


def test_client_of_version_2_is_told_each_setting_that_its_turn_may_bring() -> None:
    spelled = {spec.alias or name for name, spec in TurnSettingsParams.model_fields.items()}
    assert spelled <= settings_json(WHOLE).keys()


def test_thread_begins_with_settings_under_the_keys_of_the_file() -> None:
    named = {"cwd": "/w", "model": "m", "approvalPolicy": "never", "sandbox": "read-only"}
    params = NamedSettings.model_validate(named)
    assert params.by_keys() == {"model": "m", "approval_policy": "never", "sandbox_mode": "read-only"}
    changed = settings_named(params.override() or ops.Compact())
    assert changed == {
        "cwd": "/w",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "m",
    }


def test_policies_of_a_person_bound_each_guarded_setting() -> None:
    loose, own = {"mode": "danger-full-access"}, Policies("untrusted", {"mode": "read-only"}, "/")
    looser: Mapping[str, object] = {"approval_policy": AskForApproval.NEVER, "sandbox_policy": loose}
    assert looser.keys() == GUARDED
    for name, value in looser.items():
        op = ops.OverrideTurnContext.model_validate({name: value})
        assert not own.changed(op).within(own)


def test_no_other_class_lists_the_settings_of_turns() -> None:
    """A record with three of them is one of those that are held against the list, or of a client's own."""
    known = {model.__name__ for model in SETTINGS_OF} | {
        "TurnSettings",
        "SettingsChanges",
        "SessionDefaults",  # what the file calls them
        "SessionConfigured",  # the event that tells of a session
        "RunArguments",  # the MCP tool's own names
        "NamedSettings",  # version 1 and 2 of the app-server, as a thread begins
        "SendUserTurn",  # version 1's user turn
    }
    root = Path(orchestrator.__file__).parent
    found = {
        made.name
        for file in root.rglob("*.py")
        if "approval_policy" in (text := file.read_text())
        for made in ast.walk(ast.parse(text))
        if isinstance(made, ast.ClassDef) and len(_fields(made) & TURN_SETTINGS.keys()) >= 3
    }
    assert found <= known


def _fields(made: ast.ClassDef) -> set[str]:
    stated = (each.target for each in made.body if isinstance(each, ast.AnnAssign))
    return {target.id for target in stated if isinstance(target, ast.Name)}


# ── a session that goes on ────────────────────────────────────────────────────────────────────────

ON_THE_LINE: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "nothing": ((), {}),
    "a model": (('model="m2"',), {"model": "m2"}),
    "a sandbox": (
        ('sandbox_mode="workspace-write"', "sandbox_workspace_write.network_access=true"),
        {"sandbox_policy": {"mode": "workspace-write", "network_access": True}},
    ),
    "approvals": (('approval_policy="never"',), {"approval_policy": "never"}),
    "an effort": (('model_reasoning_effort="high"',), {"effort": "high"}),
    "a personality": (('personality="friendly"',), {"personality": "friendly"}),
    "what no turn has": (("worker.concurrency=3", 'pool="gpu"'), {}),
}


@pytest.mark.parametrize("wanted", ON_THE_LINE)
@pytest.mark.parametrize("resume", ["0199a2b4", None])
def test_session_that_goes_on_has_what_the_command_line_names_and_nothing_else_of_the_files(
    wanted: str, resume: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "dendro.toml"
    file.write_text('model = "of the file"\nsandbox_mode = "danger-full-access"\n')
    overrides, named = ON_THE_LINE[wanted]
    sources = SettingsSources(cwd=tmp_path, environ={"HOME": str(tmp_path)}, overrides=overrides)
    settings = load_settings(replace(sources, config_file=file))
    told = _override(settings, Wish("go on", Origin(resume=resume), (), json=False))
    if resume is None or not named:
        assert told is None
        return
    assert told is not None
    assert written(told).items() >= {"type": "override_turn_context"}.items()
    found = {name: value for name, value in written(told).items() if name != "type"}
    assert found.keys() == named.keys()
    for name, value in named.items():
        assert found[name] == value or found[name].items() >= dict(value).items()  # type: ignore[call-overload]


def test_profile_of_the_command_line_changes_no_folder_of_a_session_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "dendro.toml"
    file.write_text('[profiles.fast]\nmodel = "m2"\n')
    for more, folder in (((), None), ((f'cwd="{tmp_path}"',), str(tmp_path))):
        overrides = ('profile="fast"', *more)
        sources = SettingsSources(cwd=tmp_path, environ={"HOME": str(tmp_path)}, overrides=overrides)
        settings = load_settings(replace(sources, config_file=file))
        told = _override(settings, Wish("go on", Origin(resume="0199a2b4"), (), json=False))
        assert told is not None
        assert (told.model, told.cwd) == ("m2", folder)
