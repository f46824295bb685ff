"""Events about a session: its configuration, its file, lookups, review mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from orchestrator.protocol.catalog import CustomPrompt, HistoryEntry, ListedModel, SkillsListEntry
from orchestrator.protocol.policy import AskForApproval, SandboxPolicyField
from orchestrator.protocol.review import ReviewOutputEvent, ReviewTargetField
from orchestrator.protocol.scalars import ReasoningEffort
from orchestrator.protocol.wire import EventModel, Maybe, Source, Uint

if TYPE_CHECKING:
    from orchestrator.protocol.events import EventField


class SessionConfigured(EventModel):
    """The session is ready; the first event, with id `""` unless an op asked for it."""

    type: Literal["session_configured"] = "session_configured"
    session_id: str
    forked_from_id: Maybe[str] = None
    model: str
    thread_name: Maybe[str] = None
    model_provider_id: Maybe[str] = None
    approval_policy: Maybe[AskForApproval] = None
    sandbox_policy: Maybe[SandboxPolicyField] = None
    cwd: Maybe[str] = None
    reasoning_effort: Annotated[Maybe[ReasoningEffort | str], Field(union_mode="left_to_right")] = None
    """A word that is none of the listed ones is a newer provider's."""
    history_log_id: Uint = 0
    history_entry_count: Uint = 0
    initial_messages: Maybe[tuple[EventField, ...]] = None
    rollout_path: Maybe[str] = None


class ThreadNameUpdated(EventModel):
    """The session has a new name."""

    stated_in = Source.JANUARY_2026
    type: Literal["thread_name_updated"] = "thread_name_updated"
    thread_id: str
    thread_name: Maybe[str] = None


class ConversationPath(EventModel):
    """Where the session's rollout file is."""

    type: Literal["conversation_path"] = "conversation_path"
    conversation_id: str
    path: str


class GetHistoryEntryResponse(EventModel):
    """An entry of the shared history of prompts, if there is one at that place."""

    type: Literal["get_history_entry_response"] = "get_history_entry_response"
    offset: Uint
    log_id: Uint
    entry: Maybe[HistoryEntry] = None


class ListCustomPromptsResponse(EventModel):
    """The saved prompts."""

    type: Literal["list_custom_prompts_response"] = "list_custom_prompts_response"
    custom_prompts: tuple[CustomPrompt, ...]


class ListModelsResponse(EventModel):
    """The models that are known, the default first; no document gives `list_models` an answer."""

    stated_in = Source.DENDRO
    type: Literal["list_models_response"] = "list_models_response"
    models: tuple[ListedModel, ...]


class ListSkillsResponse(EventModel):
    """The skills, folder by folder."""

    stated_in = Source.DECEMBER_2025
    type: Literal["list_skills_response"] = "list_skills_response"
    skills: tuple[SkillsListEntry, ...]


class SkillsUpdateAvailable(EventModel):
    """The skills on disk have changed."""

    stated_in = Source.JANUARY_2026
    type: Literal["skills_update_available"] = "skills_update_available"


class EnteredReviewMode(EventModel):
    """A review began; the fields are those of its request."""

    type: Literal["entered_review_mode"] = "entered_review_mode"
    prompt: Maybe[str] = None
    target: Maybe[ReviewTargetField] = None
    user_facing_hint: Maybe[str] = None


class ExitedReviewMode(EventModel):
    """A review is over; `null` if it was stopped."""

    type: Literal["exited_review_mode"] = "exited_review_mode"
    review_output: ReviewOutputEvent | None = None
