"""Personality and collaboration mode: what they make of a turn's settings, and what the model is told.

Both are told by developer messages, when a task begins whose settings differ from what was told last. The
system prompt stays as it is: a provider's copy of the conversation begins with it.

Behind them: plans as people and models read them, plan blocks in a model's text, and how a child runs under
less than its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from pydantic import ValidationError

from orchestrator.config_keys import SANDBOX_MODES
from orchestrator.core.context import is_context, is_role
from orchestrator.core.frozen import replace
from orchestrator.core.history import INHERITED, Item, message_text
from orchestrator.core.review import object_in
from orchestrator.core.settings import NAMED_BY_OPS, OF_TURNS, SettingsChanges, TurnSettings
from orchestrator.protocol import ops
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.plans import PlanOutputEvent, PlanProposal, UpdatePlanArgs
from orchestrator.protocol.scalars import CollaborationMode, ModeKind, Personality
from orchestrator.protocol.wire import JsonMapping, JsonObject, written

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


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


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


# ── what the model is told ────────────────────────────────────────────────────────────────────────


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


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────
# Plans as people and models read them, and an approved one in the requests of the task that follows it.


MOST_STEPS: Final = 64
PLANNED_OPENING: Final = "The user ran a planning session for: "
_RESULT: Final = "\n\nResult: "
PLAN_TAG: Final = "<approved_plan>"
_TOLD: Final = (
    f"{PLAN_TAG}\nThe user approved this plan in a planning session. Unless they say otherwise now, carry it "
    "out step by step, and say so where you have to leave it.\n\n{plan}\n</approved_plan>"
)


def plan_text(plan: PlanOutputEvent | PlanProposal) -> str:
    """A plan as people read it: title, summary, explanation, steps with numbers."""
    steps = "\n".join(f"{n}. {step.step}" for n, step in enumerate(plan.plan.plan, 1))
    parts = (plan.title, plan.summary, plan.plan.explanation or "", steps)
    return "\n\n".join(part.strip() for part in parts if part.strip())


def session_told(goal: str, result: str) -> str:
    """The words by which the conversation knows of a planning session."""
    return f"{PLANNED_OPENING}{goal}{_RESULT}{result}."


def goal_in(text: str) -> str:
    """The goal of the planning session that a message tells of; empty if it tells of none."""
    opening, _, _ = text.rpartition(_RESULT)
    return opening.removeprefix(PLANNED_OPENING) if text.startswith(PLANNED_OPENING) else ""


def variant(answer: str, title: str, why: str) -> JsonObject:
    """The plan that a helper has answered; any other text, or `why` there is none, is an explanation."""
    plan = object_in(answer)
    try:
        found = PlanProposal.model_validate({"summary": "", **plan, "title": title}, extra="ignore")
    except ValidationError:
        found = None
    if found is None or not 1 <= len(found.plan.plan) <= MOST_STEPS:
        found = PlanProposal(title=title, summary="", plan=UpdatePlanArgs(explanation=answer or why, plan=()))
    return written(found)


def with_plan(conversation: Sequence[Item], plan: JsonMapping) -> list[Item]:
    """The conversation with an approved plan behind the context that it begins with.

    The message is in no log: a compaction can neither sum it up nor take it away.
    """
    text = _TOLD.format(plan=plan_text(PlanOutputEvent.model_validate(plan)))
    message = Message(role="developer", content=(InputText(text=text),))
    place = _behind_context(conversation)
    return [*conversation[:place], written(message), *conversation[place:]]


def _behind_context(conversation: Iterable[Item]) -> int:
    place = 0
    for item in conversation:
        if not (is_context(item) or is_role(item) or is_of_modes(item)):
            break
        place += 1
    return place


# ── tagged ────────────────────────────────────────────────────────────────────────────────────────
# Plan blocks in a model's text: `<proposed_plan>` and `</proposed_plan>`, each alone on its line.
#
# A text comes in pieces of any length, and any cut of it gives the same parts. At the beginning of a line
# characters are held as long as the line may still become the tag that is looked for; the first one that
# disproves it sets all of them free. Blanks around a tag do not matter. An opening tag inside a block is
# the plan's own text, and so is a closing tag outside of one the message's.


OPEN, CLOSE = "<proposed_plan>", "</proposed_plan>"
MOST_HELD: Final = 256
"""Characters of a line that may be a tag, blanks counted: what is held stays small."""


@dataclass(slots=True)
class Normal:
    """Text of the message itself. Not frozen: one is made of each piece, and freezing doubles its cost."""

    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """A block begins."""


@dataclass(slots=True)
class Plan:
    """Text of a block. Not frozen, as `Normal` is not."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """A block is over."""


Part: TypeAlias = Normal | Start | Plan | End
_START, _END = Start(), End()


class TagParser:
    """The parts of one message, as its text comes."""

    __slots__ = ("_held", "_inside", "_kind", "_passing")

    def __init__(self) -> None:
        self._inside = False
        self._kind: type[Normal | Plan] = Normal
        """Of the text that comes now."""
        self._held = ""
        """The beginning of a line that may still become a tag."""
        self._passing = False
        """Whether the rest of the line is text, whatever comes."""

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain once `text` has come.

        Most pieces have no tag in them, and no more is done for these than to see that.
        """
        if self._passing:
            if "\n" not in text:
                return [self._kind(text)] if text else []
        elif self._held:
            text, self._held = self._held + text, ""
        if "<" not in text:
            rest = text[text.rfind("\n") + 1 :]
            if not rest.isspace():
                self._passing = bool(rest)
                return [self._kind(text)] if text else []
        return self._lines(text)

    def _lines(self, text: str) -> list[Part]:
        """Reads line by line; the last of them has no end yet."""
        parts: list[Part] = []
        at = text.find("\n") + 1 if self._passing else 0
        self._passing = False
        begun, last = 0, text.rfind("\n") + 1
        while (found := text.find(self._tag, at, last)) >= 0:
            line = max(at, text.rfind("\n", at, found) + 1)
            at = text.find("\n", found) + 1
            if self._is_tag(text[line : at - 1]):
                self._text(parts, text[begun:line])
                self._turn(parts)
                begun = at
        rest = text[last:]
        if self._may_be_tag(rest):
            self._held, rest = rest, ""
        else:
            self._passing = True
        self._text(parts, text[begun:last] + rest)
        return parts

    def finish(self) -> list[Part]:
        """The parts that the end of the message makes certain; an open block ends with it."""
        parts: list[Part] = []
        held, self._held = self._held, ""
        if self._is_tag(held):
            self._turn(parts)
        else:
            self._text(parts, held)
        if self._inside:
            self._turn(parts)
        return parts

    @property
    def _tag(self) -> str:
        return CLOSE if self._inside else OPEN

    def _is_tag(self, line: str) -> bool:
        return len(line) <= MOST_HELD and line.strip() == self._tag

    def _may_be_tag(self, line: str) -> bool:
        return len(line) <= MOST_HELD and (self._tag.startswith(line.lstrip()) or self._is_tag(line))

    def _text(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(self._kind(text))

    def _turn(self, parts: list[Part]) -> None:
        parts.append(_END if self._inside else _START)
        self._inside = not self._inside
        self._kind = Plan if self._inside else Normal


@dataclass(frozen=True, slots=True)
class Proposal:
    """A finished message: what it says beside its blocks, and the plan in them; None without a block."""

    said: str
    plan: str | None


def proposal(text: str) -> Proposal:
    """Reads a whole message; several blocks are one plan, joined by lines."""
    if OPEN not in text:
        return Proposal(_trimmed(text), None)
    parser = TagParser()
    parts = [*parser.feed(text), *parser.finish()]
    blocks = list(_blocks(parts))
    said = "".join(part.text for part in parts if isinstance(part, Normal))
    return Proposal(_trimmed(said), "\n".join(blocks) if blocks else None)


def _blocks(parts: Iterable[Part]) -> Iterable[str]:
    block = ""
    for part in parts:
        if isinstance(part, Plan):
            block += part.text
        elif isinstance(part, End):
            yield block.removesuffix("\n").removesuffix("\r")
            block = ""


def _trimmed(text: str) -> str:
    """The text without blank lines at its two ends; empty if it has no others."""
    if not text.strip():
        return ""
    begun = text[: len(text) - len(text.lstrip())].rfind("\n") + 1
    return text[begun:].rstrip()


# ── narrowing ─────────────────────────────────────────────────────────────────────────────────────
# Narrowing: a child runs under what its parent's turn has, or less.
#
# The turn counts, not what the session was started with: a turn that was narrowed to read-only makes
# read-only children.


_RANK = {mode: rank for rank, mode in enumerate(SANDBOX_MODES)}
_WORDS = {
    "read": "read-only",
    "readonly": "read-only",
    "workspace": "workspace-write",
    "workspacewrite": "workspace-write",
    "danger": "danger-full-access",
    "fullaccess": "danger-full-access",
    "dangerfullaccess": "danger-full-access",
}


class Widening(ValueError):
    """A child was to get more than its parent's turn has, or something that nobody knows."""


def sandbox_mode(text: str) -> str:
    """The mode that a model's word means; case, `_`, `-` and spaces do not matter."""
    folded = "".join(letter for letter in text.lower() if letter not in "_- ")
    mode = _WORDS.get(folded)
    if mode is None:
        raise Widening(f"unknown sandbox_mode {text!r}: read-only, workspace-write or danger-full-access")
    return mode


def narrowed(parent: TurnSettings, mode: str | None, model: str | None) -> TurnSettings:
    """The child's settings; raises `Widening` with what was asked for and what the parent has."""
    settings = parent if model is None else parent.changed({"model": model})
    if mode is None:
        return settings
    wanted, has = sandbox_mode(mode), parent.sandbox_policy["mode"]
    if _RANK[wanted] > _RANK.get(has, 0):
        raise Widening(
            f"an agent may not get more than its parent: {wanted} was asked for, {has} is in force"
        )
    return replace(settings, sandbox_policy=_policy(parent.sandbox_policy, wanted))


def _policy(parent: JsonMapping, mode: str) -> JsonMapping:
    if mode == parent["mode"]:
        return parent
    return {"mode": mode}


def helper_settings(parent: TurnSettings, model: str | None) -> TurnSettings:
    """The settings of a helper: read-only, and no approval is ever asked for."""
    settings = narrowed(parent, "read-only", model)
    return replace(settings, approval_policy="never")
