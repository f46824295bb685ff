"""Every operation that a client may submit (`Op`).

A field that the client leaves out is `None`, or `UNSET` where `null` means something
else. Fields that are not listed are ignored; a tag that is not listed is an error that
`codec` raises.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import model_validator

from orchestrator.protocol import scalars
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.inputs import InjectedMessage, InputItemField
from orchestrator.protocol.items import DynamicToolResponse as DynamicToolResponseBody
from orchestrator.protocol.mcp import ElicitationAction, McpServerRefreshConfig, RequestId
from orchestrator.protocol.plans import (
    AskUserQuestionResponseField,
    PlanApprovalResponseField,
    PlanRequest,
    RequestUserInputResponse,
)
from orchestrator.protocol.policy import AskForApproval, DecisionField, SandboxPolicyField
from orchestrator.protocol.review import ReviewRequest
from orchestrator.protocol.wire import (
    UNSET,
    Flag,
    JsonValue,
    Maybe,
    OneOf,
    OpModel,
    Settable,
    Source,
    Uint,
    WhenTrue,
    WireModel,
    tags,
)

# ── workspaces ────────────────────────────────────────────────────────────────────────────────────
# The content that a portable folder begins with, as a client names it.


MOST_PATH = 4096
MOST_URL = 4096
MOST_NAME = 1024


class WorkspaceSource(WireModel):
    """The first content of a new session's folder, which any worker of its pool can make: one of four.

    `folder`: a folder on the machine of whoever makes the session, as it is now, changes and untracked files
    with it. `git`: a repository that a worker clones, at `ref`. `session`: the folder of another session,
    after the entry `at` of its log. `empty`: nothing.
    """

    folder: Maybe[str] = None
    git: Maybe[str] = None
    ref: Maybe[str] = None
    session: Maybe[str] = None
    at: Maybe[Uint] = None
    empty: Maybe[Flag] = None

    @model_validator(mode="after")
    def _one_of_four(self) -> WorkspaceSource:
        named = [self.folder is not None, self.git is not None, self.session is not None, bool(self.empty)]
        if sum(named) != 1:
            raise ValueError("one of folder, git, session and empty is required")
        if self.ref is not None and self.git is None:
            raise ValueError("ref: it is the ref of a repository, which `git` names")
        if self.at is not None and self.session is None:
            raise ValueError("at: it is an entry of a session, which `session` names")
        for name, text, most in (
            ("folder", self.folder, MOST_PATH),
            ("git", self.git, MOST_URL),
            ("ref", self.ref, MOST_NAME),
            ("session", self.session, MOST_NAME),
        ):
            if text is not None and not 0 < len(text.encode("utf-8", "replace")) <= most:
                raise ValueError(f"{name}: 1 to {most:,} bytes are taken")
        return self


# ── ops ───────────────────────────────────────────────────────────────────────────────────────────


class ConfigureSession(OpModel):
    """(Re)configures the session; a running task is aborted, the history stays.

    `item_events` and `workspace` are Dendro's own. With `workspace` the session that the first line of a
    connection makes has a portable folder.
    """

    stated_in = Source.OCTOBER_2025
    type: Literal["configure_session"] = "configure_session"
    model: Maybe[str] = None
    model_provider: Maybe[str] = None
    effort: Settable[scalars.ReasoningEffort] = UNSET
    summary: Maybe[scalars.ReasoningSummary] = None
    verbosity: Maybe[scalars.Verbosity] = None
    approval_policy: Maybe[AskForApproval] = None
    sandbox_policy: Maybe[SandboxPolicyField] = None
    cwd: Maybe[str] = None
    base_instructions: Maybe[str] = None
    user_instructions: Maybe[str] = None
    personality: Maybe[scalars.Personality] = None
    collaboration_mode: Maybe[scalars.CollaborationMode] = None
    item_events: Maybe[scalars.ItemEvents] = None
    session_id: Maybe[str] = None
    workspace: Maybe[WorkspaceSource] = None


class Interrupt(OpModel):
    """Stops the running task; expect `turn_aborted`.

    `tree` is Dendro's own: the tasks of all agents below stop as well. So is `expected_turn_id`: another
    turn, or none, is an `error`, and nothing is stopped.
    """

    type: Literal["interrupt"] = "interrupt"
    tree: WhenTrue[Flag] = False
    expected_turn_id: Maybe[str] = None


class OverrideTurnContext(OpModel):
    """Changes the settings of the turns to come; what is left out stays as it is."""

    type: Literal["override_turn_context"] = "override_turn_context"
    cwd: Maybe[str] = None
    approval_policy: Maybe[AskForApproval] = None
    sandbox_policy: Maybe[SandboxPolicyField] = None
    windows_sandbox_level: Maybe[scalars.WindowsSandboxLevel] = None
    model: Maybe[str] = None
    effort: Settable[scalars.ReasoningEffort] = UNSET
    summary: Maybe[scalars.ReasoningSummary] = None
    collaboration_mode: Maybe[scalars.CollaborationMode] = None
    personality: Maybe[scalars.Personality] = None


class UserInput(OpModel):
    """Something a person says, under the settings in force.

    Dendro's own: `delivery` says where it goes while a task runs; `expected_turn_id` lets it join that turn
    and no other. Either is answered: by `task_started` under the submission's id, `input_accepted`, or an
    `error`. `client_user_message_id` comes back as the `client_id` of `user_message`. `overrides` changes the
    settings of this turn and those after it, with the input or not at all; of input that joins a running
    turn, from the next one on.
    """

    type: Literal["user_input"] = "user_input"
    items: tuple[InputItemField, ...]
    final_output_json_schema: Maybe[JsonValue] = None
    last_response_id: Maybe[ResponseId] = None
    delivery: Maybe[scalars.Delivery] = None
    expected_turn_id: Maybe[str] = None
    client_user_message_id: Maybe[str] = None
    overrides: Maybe[OverrideTurnContext] = None


class UserTurn(OpModel):
    """Something a person says, with the settings of this turn and those after it.

    `delivery` and `client_user_message_id` are Dendro's own, as for `user_input`; where it joins a running
    turn, its settings hold from the next one on.
    """

    type: Literal["user_turn"] = "user_turn"
    items: tuple[InputItemField, ...]
    cwd: str
    approval_policy: AskForApproval
    sandbox_policy: SandboxPolicyField
    model: str
    effort: Maybe[scalars.ReasoningEffort] = None
    summary: scalars.ReasoningSummary
    final_output_json_schema: Maybe[JsonValue] = None
    collaboration_mode: Maybe[scalars.CollaborationMode] = None
    personality: Maybe[scalars.Personality] = None
    last_response_id: Maybe[ResponseId] = None
    delivery: Maybe[scalars.Delivery] = None
    client_user_message_id: Maybe[str] = None


class Shown(WireModel):
    """The words that a surface has put before the person who decides, as the client states them."""

    stated_in = Source.DENDRO
    text: str
    """Exactly the text that the surface rendered, or handed to a client that renders it."""
    surface: str
    """The surface: `terminal`, `app-server v1`, `app-server v2`, `mcp`, or a client's own word."""
    opened_ms: Uint
    """Since when it was shown there, in Unix milliseconds."""


class AnswerSignature(WireModel):
    """A person's signature under an answer: Ed25519 over `dendro-answer/2` (docs/protocol/bundle.md)."""

    stated_in = Source.DENDRO
    answered_ms: Uint
    """When it was signed, in Unix milliseconds."""
    sig: str
    """64 bytes in base64."""
    key: str
    """The verifier key, or the beginning of it: `name+hex key id`."""


class ExecApproval(OpModel):
    """Decides about a command; `id` is the call's id or the turn's. `shown`, `signature` are Dendro's own."""

    type: Literal["exec_approval"] = "exec_approval"
    id: str
    decision: DecisionField
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class PatchApproval(OpModel):
    """Decides about a patch; `id` is the call's id or the turn's. `shown`, `signature` are Dendro's own."""

    type: Literal["patch_approval"] = "patch_approval"
    id: str
    decision: DecisionField
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class ResolveElicitation(OpModel):
    """Answers a question of an MCP server; `request_id` is the `id` of the request.

    `shown`, `signature` are Dendro's own.
    """

    stated_in = Source.JANUARY_2026
    type: Literal["resolve_elicitation"] = "resolve_elicitation"
    server_name: str
    request_id: RequestId
    decision: ElicitationAction
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class UserInputAnswer(OpModel):
    """Answers `request_user_input`; also read as `request_user_input_response`.

    `shown`, `signature` are Dendro's own.
    """

    stated_in = Source.JANUARY_2026
    type: Literal["user_input_answer"] = "user_input_answer"
    id: str
    response: RequestUserInputResponse
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class DynamicToolResponse(OpModel):
    """Hands in the result of a tool that the client runs itself."""

    stated_in = Source.JANUARY_2026
    type: Literal["dynamic_tool_response"] = "dynamic_tool_response"
    id: str
    response: DynamicToolResponseBody
    agent_id: Maybe[Uint] = None


class ResolveAskUserQuestion(OpModel):
    """Answers `ask_user_question_request`; `shown`, `signature` are Dendro's own."""

    stated_in = Source.DECEMBER_2025
    type: Literal["resolve_ask_user_question"] = "resolve_ask_user_question"
    id: str
    response: AskUserQuestionResponseField
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class Plan(OpModel):
    """Starts a planning session."""

    stated_in = Source.DECEMBER_2025
    type: Literal["plan"] = "plan"
    plan_request: PlanRequest


class ResolvePlanApproval(OpModel):
    """Answers `plan_approval_request`; `shown`, `signature` are Dendro's own."""

    stated_in = Source.DECEMBER_2025
    type: Literal["resolve_plan_approval"] = "resolve_plan_approval"
    id: str
    response: PlanApprovalResponseField
    agent_id: Maybe[Uint] = None
    shown: Maybe[Shown] = None
    signature: Maybe[AnswerSignature] = None


class AddToHistory(OpModel):
    """Appends a text to the history of prompts that all sessions share."""

    type: Literal["add_to_history"] = "add_to_history"
    text: str


class GetHistoryEntryRequest(OpModel):
    """Asks for one entry of that history."""

    type: Literal["get_history_entry_request"] = "get_history_entry_request"
    offset: Uint
    log_id: Uint


class GetPath(OpModel):
    """Asks for the session's rollout file; answered by `conversation_path`."""

    type: Literal["get_path"] = "get_path"


class ListMcpTools(OpModel):
    """Asks for the tools of MCP servers."""

    type: Literal["list_mcp_tools"] = "list_mcp_tools"


class RefreshMcpServers(OpModel):
    """Starts MCP servers anew from a configuration."""

    stated_in = Source.JANUARY_2026
    type: Literal["refresh_mcp_servers"] = "refresh_mcp_servers"
    config: McpServerRefreshConfig


class ListCustomPrompts(OpModel):
    """Asks for the saved prompts."""

    type: Literal["list_custom_prompts"] = "list_custom_prompts"


class ListSkills(OpModel):
    """Asks for the skills of folders, or of the session's folder if none is named."""

    stated_in = Source.DECEMBER_2025
    type: Literal["list_skills"] = "list_skills"
    cwds: WhenTrue[tuple[str, ...]] = ()
    force_reload: WhenTrue[Flag] = False


class ListModels(OpModel):
    """Asks for the models that may be chosen."""

    stated_in = Source.JANUARY_2026
    type: Literal["list_models"] = "list_models"


class Compact(OpModel):
    """Has the model summarise the conversation, and goes on from the summary."""

    type: Literal["compact"] = "compact"


class SetThreadName(OpModel):
    """Names the session for people."""

    stated_in = Source.JANUARY_2026
    type: Literal["set_thread_name"] = "set_thread_name"
    name: str


class Undo(OpModel):
    """Takes the workspace back to its state before the last turn."""

    stated_in = Source.JANUARY_2026
    type: Literal["undo"] = "undo"


class ThreadRollback(OpModel):
    """Drops the last user turns from the model's history."""

    stated_in = Source.JANUARY_2026
    type: Literal["thread_rollback"] = "thread_rollback"
    num_turns: Uint


class InjectItems(OpModel):
    """Adds messages to the conversation without a turn; answered by `items_injected`.

    While a person's turn runs, they join it with its next request; not those in the model's name, which
    would pass for its answer.
    """

    stated_in = Source.DENDRO
    type: Literal["inject_items"] = "inject_items"
    items: tuple[InjectedMessage, ...]


class RemoveQueued(OpModel):
    """Takes an input out of those that wait for the running task's end; answered by `queue_changed`.

    A `warning` under the input's own id tells its sender.
    """

    stated_in = Source.DENDRO
    type: Literal["remove_queued"] = "remove_queued"
    submission_id: str


class UpdateQueued(OpModel):
    """Says something else in the place of an input that waits; answered by `queue_changed`.

    The input keeps its id, its place and its settings.
    """

    stated_in = Source.DENDRO
    type: Literal["update_queued"] = "update_queued"
    submission_id: str
    items: tuple[InputItemField, ...]


class ReorderQueue(OpModel):
    """Gives the inputs that wait another order: all of them are named; answered by `queue_changed`."""

    stated_in = Source.DENDRO
    type: Literal["reorder_queue"] = "reorder_queue"
    submission_ids: tuple[str, ...]


class Review(OpModel):
    """Starts a code review."""

    type: Literal["review"] = "review"
    review_request: ReviewRequest


class RunUserShellCommand(OpModel):
    """Runs a command line that the person typed."""

    stated_in = Source.JANUARY_2026
    type: Literal["run_user_shell_command"] = "run_user_shell_command"
    command: str


class MessageAgent(OpModel):
    """Says something to an agent of the tree, the root (0) too; it reads it when its current turn is over.

    With `interrupt` what it does is stopped first. Only a root takes it.
    """

    stated_in = Source.DENDRO
    type: Literal["message_agent"] = "message_agent"
    agent_id: Uint
    text: str
    interrupt: WhenTrue[Flag] = False


class CancelAgent(OpModel):
    """Ends an agent and everything below it, for good. Only a root takes it.

    It is over when the agent's status is `canceled`; the event's `cancel` tells how surely.
    """

    stated_in = Source.DENDRO
    type: Literal["cancel_agent"] = "cancel_agent"
    agent_id: Uint
    reason: Maybe[str] = None


class Shutdown(OpModel):
    """Closes the session and its tree; `shutdown_complete` is the last event."""

    type: Literal["shutdown"] = "shutdown"


Op: TypeAlias = (
    ConfigureSession
    | Interrupt
    | UserInput
    | UserTurn
    | OverrideTurnContext
    | ExecApproval
    | PatchApproval
    | ResolveElicitation
    | UserInputAnswer
    | DynamicToolResponse
    | ResolveAskUserQuestion
    | Plan
    | ResolvePlanApproval
    | AddToHistory
    | GetHistoryEntryRequest
    | GetPath
    | ListMcpTools
    | RefreshMcpServers
    | ListCustomPrompts
    | ListSkills
    | ListModels
    | Compact
    | SetThreadName
    | Undo
    | ThreadRollback
    | InjectItems
    | RemoveQueued
    | ReorderQueue
    | UpdateQueued
    | Review
    | RunUserShellCommand
    | MessageAgent
    | CancelAgent
    | Shutdown
)

OP_SYNONYMS = {"request_user_input_response": "user_input_answer"}
OpField = Annotated[Op, OneOf(synonyms=OP_SYNONYMS)]
OPS = tags(get_args(Op))
"""Every op by its wire tag."""
