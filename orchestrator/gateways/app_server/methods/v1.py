"""Conversations of version 1 of the protocol: made, listed, listened to, spoken to, interrupted.

Parameters are taken in camel and in snake case; answers are in camel case. Each method is served before the
handshake, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.broker.trees import MOST_LISTED as MOST_LISTED_AT_ONCE
from orchestrator.broker.trees import IndexPlace, Listed
from orchestrator.core.ids import InvalidSessionId, parse_session_id
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import BadSetting, NewThread
from orchestrator.gateways.app_server.messages import Code, RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.changes import tree_at_rest
from orchestrator.gateways.app_server.turn_params import EMPTY, Mode, NamedSettings
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.resume import past_events
from orchestrator.gateways.submit import OpRefused, submit_op, unread
from orchestrator.protocol import ops
from orchestrator.protocol.events import TURN_ENDS
from orchestrator.protocol.inputs import InputItem, InputItemField
from orchestrator.protocol.policy import (
    NO_EXTERNAL_SANDBOX,
    AskForApproval,
    ExternalSandbox,
    SandboxPolicyField,
)
from orchestrator.protocol.scalars import ReasoningEffort, ReasoningSummary
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.views.readable import readable_listed
from orchestrator.views.threads import Thread, path_at_birth, thread, threads

MOST_LISTED, USUAL_LISTED = 100, 25
MOST_ITEMS = 1_000
MOST_SOUGHT = 10_000
"""Sessions, the newest first, among which one is looked for that was made of a file."""
INTERRUPT_S = 30.0
"""Commands get ten seconds to end."""
TOLD_S = 1.0
"""The wait for the event by which a turn ended, once its session rests."""
_TAGS: Mapping[str, str] = {"localImage": "local_image"}


class V1Params(Params):
    """Parameters in either case."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


def _flat(item: JsonValue) -> JsonValue:
    """An item of input with its content beside the tag; version 1 has it in `data`."""
    if not isinstance(item, dict):
        return item
    data = item.get("data")
    flat = {**item, **(data if isinstance(data, dict) else {})}
    flat.pop("data", None)
    tag = flat.get("type")
    return {**flat, "type": _TAGS.get(tag, tag)} if isinstance(tag, str) else flat


def _said(items: tuple[InputItem, ...]) -> tuple[InputItem, ...]:
    if not items:
        raise PydanticCustomError("empty", "{why}", {"why": EMPTY})
    return items


Items = Annotated[
    tuple[Annotated[InputItemField, BeforeValidator(_flat)], ...],
    Field(max_length=MOST_ITEMS),
    AfterValidator(_said),
]


async def conversation(door: Door, id: str) -> SessionHead:
    """The session of a conversation that this principal may see; raises `RpcError`."""
    try:
        head = await door.client.head(parse_session_id(id))
    except InvalidSessionId:
        head = None
    if head is None:
        raise RpcError(f"conversation not found: {id[:100]}")
    return head


# ── making and finding ────────────────────────────────────────────────────────────────────────────


class NewConversation(NamedSettings, V1Params):
    """The settings of a new conversation, as far as its client names them."""

    profile: str | None = None
    sandbox: Mode | None = None
    config: dict[str, Any] | None = None
    base_instructions: str | None = None
    include_plan_tool: bool | None = None
    include_apply_patch_tool: bool | None = None

    def by_keys(self) -> dict[str, Any]:
        """The same, with the keys that version 1 alone names."""
        own = {
            "profile": self.profile,
            "tools.update_plan": self.include_plan_tool,
            "tools.apply_patch": self.include_apply_patch_tool,
        }
        return {**super().by_keys(), **{key: value for key, value in own.items() if value is not None}}


async def new_conversation(door: Door, params: NewConversation) -> Result:
    """Makes a session; its events are told to listeners alone."""
    wish = NewThread(params.cwd, params.by_keys(), params.config or {})
    try:
        born = await door.ports.create(door.client, door.principal, wish)
    except BadSetting as error:
        raise bad_params(str(error)) from None
    door.conversations.warn(born.head.session, born.warnings)
    effort = {} if born.settings.effort is None else {"reasoningEffort": born.settings.effort}
    return {
        "conversationId": born.head.session,
        "model": born.settings.model,
        **effort,
        "rolloutPath": "" if door.principal.is_tenant else born.rollout_path,
    }


async def _path(door: Door, head: SessionHead) -> str:
    return thread(head).path or await path_at_birth(door.ports.found.broker.logs, head)


class ListConversations(V1Params):
    """A page of the list."""

    page_size: Annotated[int, Field(ge=1)] | None = None
    cursor: str | None = None


async def list_conversations(door: Door, params: ListConversations) -> Result:
    """The conversations of the client's namespace that people began, those that were used last first."""
    try:
        after = None if params.cursor is None else IndexPlace.parse(params.cursor)
    except ValueError as error:
        raise bad_params(f"cursor: {error}") from None
    limit = min(params.page_size or USUAL_LISTED, MOST_LISTED)
    wanted = Listed(door.client.namespace or "", sources=("cli", "exec"))
    broker = door.ports.found.broker
    page = await readable_listed(broker.trees, wanted, after, limit)
    found = await threads(broker, [head for _, head in page])
    more = {"nextCursor": str(page[-1][0])} if len(page) == limit else {}
    paths = [await _path(door, head) for _, head in page]
    return {"items": [_summary(*each) for each in zip(found, paths, strict=True)], **more}


def _summary(thread: Thread, path: str) -> JsonObject:
    at = datetime.fromtimestamp(thread.created_ms / 1000, UTC)
    return {
        "conversationId": thread.id,
        "path": path,
        "preview": thread.preview,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


class ArchiveConversation(V1Params):
    """A conversation, and where its rollout's file is or would be."""

    conversation_id: str
    rollout_path: str | None = None


async def archive_conversation(door: Door, params: ArchiveConversation) -> Result:
    """Puts a conversation away from the lists; its log stays. One at work is refused."""
    head = await conversation(door, params.conversation_id)
    await tree_at_rest(door, head)
    if not await door.ports.found.broker.trees.enlist(head.session, shelve=True):
        raise RpcError("an agent is listed with its root: archive that")
    for each in door.doors_of(head.session):
        # A client of version 1 alone knows no threads.
        if each is not door or head.session in door.subscriptions:
            each.notify("thread/archived", {"threadId": head.session})
    return {}


class ResumeConversation(V1Params):
    """A conversation by its rollout's file or its id, and settings that change with it."""

    path: str | None = None
    conversation_id: str | None = None
    overrides: NewConversation | None = None


async def resume_conversation(door: Door, params: ResumeConversation) -> Result:
    """Comes back to a conversation under its own id; the events so far are told first."""
    named = params.conversation_id or params.path
    if not named:
        raise bad_params("path: name the rollout's file, or a conversation's id")
    head = await _named(door, named)
    if params.overrides is not None and (change := params.overrides.override()) is not None:
        await door.client.submit(head.session, Submission(door.new_turn_id(), change))
    said = await past_events(door.ports.found, head)
    history = await door.client.history()
    model = (params.overrides.model if params.overrides else None) or _model(head)
    configured = {
        "sessionId": head.session,
        "model": model,
        "historyLogId": history.log_id,
        "historyEntryCount": history.count,
        "initialMessages": said,
        "rolloutPath": await _path(door, head),
    }
    door.notify("sessionConfigured", configured)
    return {"conversationId": head.session, "model": model, "initialMessages": said}


async def _named(door: Door, named: str) -> SessionHead:
    """The session that a path or an id names; raises `RpcError`, for a file of no session with the way there.

    A door reads no file: one that another program wrote is brought in where it lies, and found by its path.
    """
    try:
        return await conversation(door, _id_in(named))
    except RpcError:
        if _id_in(named) == named:
            raise
    if (found := await _imported(door, named)) is not None:
        return found
    raise RpcError(
        f"conversation not found: {named[:200]}: its rollout is of no session here; `dendro import FILE` "
        "on the machine that has it makes it one, which resumeConversation finds by the file's path, or by "
        "the id that it prints"
    )


async def _imported(door: Door, path: str) -> SessionHead | None:
    """The newest session that was imported from a file; a tenant's client learns no path of a machine."""
    if door.client.namespace:
        return None
    named = orjson.dumps({"imported_from": path})[1:-1]
    kept, away = (Listed(sources=("cli", "exec"), shelved=away, order="creation") for away in (False, True))
    return await _newest(door, kept, named) or await _newest(door, away, named)


async def _newest(door: Door, wanted: Listed, named: bytes) -> SessionHead | None:
    """The newest session of a list whose summary has a member."""
    after, broker = None, door.ports.found.broker
    for _ in range(MOST_SOUGHT // MOST_LISTED_AT_ONCE):
        page = await readable_listed(broker.trees, wanted, after, MOST_LISTED_AT_ONCE)
        if (found := next((head for _, head in page if named in head.meta), None)) is not None:
            return found
        if not page:
            return None
        after = page[-1][0]
    return None


def _id_in(named: str) -> str:
    """The id that the name of a rollout's file ends with; a text that is no path may be one itself."""
    if "/" not in named and not named.endswith(".jsonl"):
        return named
    return "-".join(PurePath(named).stem.split("-")[-5:])


def _model(head: SessionHead) -> str:
    return head.summary.get("model") or ""


class GetSummary(V1Params):
    """A conversation by its id or its rollout's file."""

    conversation_id: str | None = None
    rollout_path: str | None = None


async def get_summary(door: Door, params: GetSummary) -> Result:
    """A conversation as lists have it."""
    named = params.conversation_id or params.rollout_path or ""
    head = await (conversation if params.conversation_id else _named)(door, named)
    (found,) = await threads(door.ports.found.broker, [head])
    return {"summary": {**_summary(found, await _path(door, head)), "modelProvider": found.model_provider}}


# ── listening ─────────────────────────────────────────────────────────────────────────────────────


class OfConversation(V1Params):
    """A conversation."""

    conversation_id: str


async def add_listener(door: Door, params: OfConversation) -> Result:
    """Tells the client of a conversation from now on."""
    head = await conversation(door, params.conversation_id)
    if door.conversations.full:
        raise RpcError("this connection listens to as much as it may: remove a listener", Code.OVERLOADED)
    try:
        return {"subscriptionId": await door.conversations.listen(head)}
    except UnknownSession:
        raise RpcError(f"conversation not found: {params.conversation_id[:100]}") from None


class RemoveListener(V1Params):
    """A listener."""

    subscription_id: str


async def remove_listener(door: Door, params: RemoveListener) -> Result:
    """Tells the client no more."""
    if not door.conversations.stop(params.subscription_id):
        raise RpcError(f"subscription not found: {params.subscription_id[:100]}")
    return {}


# ── speaking ──────────────────────────────────────────────────────────────────────────────────────


class SendUserMessage(V1Params):
    """Words under the settings in force."""

    conversation_id: str
    items: Items


async def send_user_message(door: Door, params: SendUserMessage) -> Result:
    """Hands words to a conversation; answered when they are kept."""
    head = await conversation(door, params.conversation_id)
    op = ops.UserInput(items=params.items)
    await door.goes_on(head)
    await door.client.submit(head.session, Submission(door.new_turn_id(), op))
    return {}


class SendUserTurn(V1Params):
    """Words with the settings of their turn and those after it."""

    conversation_id: str
    items: Items
    cwd: str
    approval_policy: AskForApproval
    sandbox_policy: SandboxPolicyField
    model: str
    effort: ReasoningEffort | None = None
    summary: ReasoningSummary = ReasoningSummary.AUTO


async def send_user_turn(door: Door, params: SendUserTurn) -> Result:
    """Hands a turn to a conversation; answered when it is kept."""
    if isinstance(params.sandbox_policy, ExternalSandbox):
        raise bad_params(f"sandboxPolicy: {NO_EXTERNAL_SANDBOX}")
    head = await conversation(door, params.conversation_id)
    op = ops.UserTurn(**dict(params))
    await door.goes_on(head)
    await door.client.submit(head.session, Submission(door.new_turn_id(), op))
    return {}


async def interrupt_conversation(door: Door, params: OfConversation) -> Result:
    """Stops the running turn; answered behind the event that tells of it."""
    head = await conversation(door, params.conversation_id)
    if head.at_rest:
        raise RpcError("nothing runs in this conversation")
    ended = await _ended_or_over(door, head)
    if ended is None:
        raise RpcError(unread(head), Code.INTERNAL)
    if ended != "turn_aborted":
        raise RpcError("nothing runs in this conversation: its turn was just over")
    return {"abortReason": "interrupted"}


async def _ended_or_over(door: Door, head: SessionHead) -> str | None:
    """The same; "" for a session that has come to rest without such an event: its turn was over before."""
    ending = asyncio.create_task(_ended(door, head))
    resting = asyncio.create_task(_at_rest(door, head))
    try:
        await asyncio.wait((ending, resting), return_when=asyncio.FIRST_COMPLETED)
        # The event stands before the rest in Redis, and may be read behind it.
        await asyncio.wait((ending,), timeout=TOLD_S)
        return await ending if ending.done() else ""
    except OpRefused as error:
        raise RpcError(str(error)) from None
    finally:
        for task in (ending, resting):
            task.cancel()
        await asyncio.gather(ending, resting, return_exceptions=True)


async def _at_rest(door: Door, head: SessionHead) -> None:
    """Waits until a session has read what it was handed, and rests, or is gone."""

    async def rests() -> bool:
        now = await door.client.head(head.session)
        return now is None or (now.sq_tip != head.sq_tip and now.at_rest)

    await door.client.until([head.session], rests)


async def _ended(door: Door, head: SessionHead) -> str | None:
    """The type of the event that ended the turn; None if none came in time."""
    if not door.conversations.hears(head.session):
        told = await submit_op(
            door.client, head.session, ops.Interrupt(), lambda event, _: event.kind in TURN_ENDS, INTERRUPT_S
        )
        return None if told.answer is None else told.answer.type
    ending = door.conversations.end_of_turn(head.session)
    await door.client.submit(head.session, Submission(door.new_turn_id(), ops.Interrupt()))
    try:
        async with asyncio.timeout(INTERRUPT_S):
            return await ending
    except TimeoutError:
        return None


def _method(params: type[Params], answer: Any, scope: Scope, *, waits: bool = False) -> Method:
    return Method(params, answer, scope, waits=waits, before_initialize=True)


METHODS: Mapping[str, Method] = {
    "newConversation": _method(NewConversation, new_conversation, Scope.SUBMIT),
    "listConversations": _method(ListConversations, list_conversations, Scope.READ),
    "resumeConversation": _method(ResumeConversation, resume_conversation, Scope.SUBMIT),
    "archiveConversation": _method(ArchiveConversation, archive_conversation, Scope.SUBMIT),
    "getConversationSummary": _method(GetSummary, get_summary, Scope.READ),
    "addConversationListener": _method(OfConversation, add_listener, Scope.READ),
    "removeConversationListener": _method(RemoveListener, remove_listener, Scope.READ),
    "sendUserMessage": _method(SendUserMessage, send_user_message, Scope.SUBMIT),
    "sendUserTurn": _method(SendUserTurn, send_user_turn, Scope.SUBMIT),
    "interruptConversation": _method(OfConversation, interrupt_conversation, Scope.SUBMIT, waits=True),
}
