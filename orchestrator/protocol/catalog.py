"""Catalogues that a client may read: history entries, custom prompts, models, skills."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.protocol.wire import Flag, JsonValue, Maybe, Source, Uint, WireModel


class HistoryEntry(WireModel):
    """A line of the history of prompts that all sessions share."""

    conversation_id: str
    ts: Uint
    text: str


class CustomPrompt(WireModel):
    """A prompt that a person saved under a name."""

    name: str
    path: str
    content: str
    description: Maybe[str] = None
    argument_hint: Maybe[str] = None


class ListedModel(WireModel):
    """A model that the worker's settings or the session name.

    Without `model_provider` it is known for its price alone, whoever serves it.
    """

    stated_in = Source.DENDRO
    model: str
    model_provider: Maybe[str] = None
    is_default: Flag
    context_window: Maybe[Uint] = None


class SkillScope(StrEnum):
    """Where a skill comes from."""

    USER = "user"
    REPO = "repo"
    SYSTEM = "system"
    ADMIN = "admin"


class SkillMetadata(WireModel):
    """A skill as a client lists it."""

    stated_in = Source.DECEMBER_2025
    name: str
    description: str
    path: str
    scope: SkillScope
    short_description: Maybe[str] = None
    interface: Maybe[JsonValue] = None
    dependencies: Maybe[JsonValue] = None
    enabled: Maybe[Flag] = None


class SkillErrorInfo(WireModel):
    """A skill that could not be read, and why."""

    stated_in = Source.DECEMBER_2025
    path: str
    message: str


class SkillsListEntry(WireModel):
    """The skills of one folder."""

    stated_in = Source.DECEMBER_2025
    cwd: str
    skills: tuple[SkillMetadata, ...]
    errors: tuple[SkillErrorInfo, ...] = ()
