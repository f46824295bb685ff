"""Personality and collaboration mode: what they make of a turn's settings, and what the model is told.

Both are told by developer messages, when a task begins whose settings differ from what was told last. The
system prompt stays as it is: a provider's copy of the conversation begins with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from orchestrator.core.frozen import replace
from orchestrator.core.history import INHERITED, Item, message_text
from orchestrator.core.settings import NAMED_BY_OPS, OF_TURNS, SettingsChanges, TurnSettings
from orchestrator.protocol import ops
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.scalars import CollaborationMode, ModeKind, Personality

PERSONALITY_TAG, MODE_TAG = "<personality>", "<collaboration_mode>"
MOST_INSTRUCTIONS: Final = 32 << 10
"""Bytes of a mode's developer instructions."""
_READ_ONLY: Final = {"mode": "read-only"}

_PERSONALITIES: Mapping[str, str] = {
    Personality.FRIENDLY: "Be friendly: warm, encouraging and patient. Say in plain words what you do and "
    "why, and share what went well. Stay honest about what did not.",
    Personality.PRAGMATIC: "Be pragmatic: direct and brief. Give results, decisions and open points first, "
    "and leave out praise, apologies and small talk.",
    Personality.NONE: "The personality that was asked for before is taken back: speak in your usual way.",
}

_MODES: Mapping[ModeKind, str] = {
    ModeKind.PLAN: "You are in plan mode. Explore and reason, and change nothing: the sandbox is read-only, "
    "and apply_patch and update_plan are not allowed. When the plan is ready, give it in your final message "
    "as one block. Its first line is <proposed_plan> and its last line </proposed_plan>, each tag exactly so "
    "and alone on its line, with the plan in Markdown between them. Use the tags in the final message only, "
    "never in messages before it and never in reasoning, and write at most one block in a turn. Make the "
    "plan one that somebody else can carry out without asking: goal, steps, files, risks, and how it is "
    "tested.",
    ModeKind.CODE: "You are in code mode: carry out what the user asks for, as far as the policies allow. "
    "Rules of a mode that was in force before hold no longer.",
    ModeKind.PAIR_PROGRAMMING: "You are in pair programming mode: work in small steps together with the "
    "user. Say what you are about to do and why, ask where there is a choice to make, and show each result "
    "before the next step. Rules of a mode that was in force before hold no longer.",
    ModeKind.EXECUTE: "You are in execute mode: work on your own until the task is done. Make reasonable "
    "assumptions instead of asking, and list them at the end. Rules of a mode that was in force before hold "
    "no longer.",
    ModeKind.CUSTOM: "You are in a mode of the user's own. Rules of a mode that was in force before hold no "
    "longer; follow the instructions of this conversation.",
}


# ── settings ──────────────────────────────────────────────────────────────────────────────────


def mode_fault(mode: CollaborationMode | None) -> str | None:
    """The reason why a mode cannot be taken; None if it can."""
    if mode is None:
        return None
    instructions = mode.settings.developer_instructions or ""
    if (size := len(instructions.encode("utf-8", "replace"))) > MOST_INSTRUCTIONS:
        return (
            "collaboration_mode.settings.developer_instructions: at most "
            f"{MOST_INSTRUCTIONS:,} bytes can be taken, and these have {size:,}"
        )
    return None


def with_mode(changes: SettingsChanges) -> SettingsChanges:
    """The changes with what a mode among them sets: its model and effort count before those beside it."""
    mode = changes.get("collaboration_mode")
    if mode is None:
        return changes
    settings = mode["settings"]
    return {**changes, "model": settings["model"], "effort": settings.get("reasoning_effort")}


def settings_named(op: ops.Op) -> SettingsChanges | None:
    """The settings that an operation names; None for one that brings no settings.

    What is absent is left alone, `effort: null` clears; a user turn always says its effort.
    """
    match op:
        case ops.UserInput(overrides=ops.OverrideTurnContext() as changed):
            return settings_named(changed)
        case ops.UserTurn():
            names, usual = OF_TURNS, {"effort": None}
        case ops.OverrideTurnContext() | ops.ConfigureSession():
            names, usual = NAMED_BY_OPS, {}
        case _:
            return None
    named = {**usual, **op.model_dump(mode="json", include=set(names))}
    return with_mode(cast(SettingsChanges, {name: named[name] for name in names if name in named}))


def mode_kind(settings: TurnSettings) -> ModeKind:
    """The mode in force; `default` is a newer name of `code`, and one that nobody knows counts as that."""
    if settings.collaboration_mode is None:
        return ModeKind.CODE
    named = settings.collaboration_mode.get("mode")
    return next((kind for kind in _MODES if kind == named), ModeKind.CODE)


def plans(settings: TurnSettings) -> bool:
    """Whether a task under these settings only plans."""
    return settings.collaboration_mode is not None and mode_kind(settings) is ModeKind.PLAN


def asks_by_input(settings: TurnSettings) -> bool:
    """Whether a turn under these settings is offered `request_user_input`, and not `ask_user_question`."""
    return mode_kind(settings) in (ModeKind.PLAN, ModeKind.PAIR_PROGRAMMING)


def plan_item_id(turn_id: str) -> str:
    """The id of the plan that a turn proposes."""
    return f"{turn_id}-plan"


def task_settings(settings: TurnSettings) -> TurnSettings:
    """The settings of a task that begins, as its model is told them: one that only plans writes nothing."""
    return replace(settings, sandbox_policy=_READ_ONLY) if plans(settings) else settings


def child_settings(settings: TurnSettings) -> TurnSettings:
    """The settings that an agent inherits: a mode is agreed with a person, what it narrowed stays narrow."""
    return replace(settings, collaboration_mode=None) if settings.collaboration_mode else settings


# ── what the model is told ────────────────────────────────────────────────────────────────────


def not_told(history: Iterable[Item], settings: TurnSettings) -> Sequence[Message]:
    """The messages that a task which begins owes its model: what is in force, if it was not told last."""
    personality, mode = settings.personality, settings.collaboration_mode
    if personality is None and mode is None:
        return ()
    told_personality, told_mode = _told(history)
    owed = []
    if mode is not None and (text := _mode_text(settings)) != (told_mode or _untold_mode(settings)):
        owed.append(_developer(text))
    speaks = personality not in (None, Personality.NONE) or told_personality is not None
    if speaks and (text := _personality_text(personality or Personality.NONE)) != told_personality:
        owed.append(_developer(text))
    return owed


def standing_modes(settings: TurnSettings) -> Sequence[Message]:
    """The messages that a compacted conversation begins with, so that all that is in force is told in it."""
    return not_told((), settings)


def back_to_code() -> Message:
    """The message to a fork whose conversation was held in a mode that it does not inherit."""
    return _developer(_wrapped(MODE_TAG, _MODES[ModeKind.CODE]))


def is_of_modes(item: Item) -> bool:
    """Whether an item tells the model of a personality or a mode."""
    return item.get("role") == "developer" and message_text(item).startswith((PERSONALITY_TAG, MODE_TAG))


def _told(history: Iterable[Item]) -> tuple[str | None, str | None]:
    """The last messages about personality and mode; of an inherited conversation it is not known."""
    personality = mode = None
    for item in history:
        if is_of_modes(item):
            text = message_text(item)
            if text.startswith(MODE_TAG):
                mode = text
            else:
                personality = text
        elif item.get("type") == INHERITED:
            personality = mode = INHERITED
    return personality, mode


def _untold_mode(settings: TurnSettings) -> str | None:
    """The text that need not be said where no mode was told: a session begins in code mode."""
    return _wrapped(MODE_TAG, _MODES[ModeKind.CODE]) if mode_kind(settings) is ModeKind.CODE else None


def _mode_text(settings: TurnSettings) -> str:
    own = ((settings.collaboration_mode or {}).get("settings") or {}).get("developer_instructions")
    words = own if isinstance(own, str) and own.strip() else _MODES[mode_kind(settings)]
    return _wrapped(MODE_TAG, words)


def _personality_text(personality: str) -> str:
    return _wrapped(PERSONALITY_TAG, _PERSONALITIES.get(personality, _PERSONALITIES[Personality.NONE]))


def _wrapped(tag: str, words: str) -> str:
    return f"{tag}\n{words}\n</{tag[1:]}"


def _developer(text: str) -> Message:
    return Message(role="developer", content=(InputText(text=text),))
