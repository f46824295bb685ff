"""`dendro mcp-server`: sessions as tools of an MCP server, for any client of the protocol.

First the tools, their arguments and what they answer; then the server: which call leads to what, cancels,
and the end of a connection; last a turn, followed to its end: progress, requests as forms and their
answers, its outcome.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, assert_never

import anyio
import mcp.types as sdk
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator import requests
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, SessionId, parse_session_id
from orchestrator.core.record_json import whole
from orchestrator.gateways.client import AWAITING, PAUSED, QUARANTINED, Client, standing
from orchestrator.gateways.ndjson import READ_BYTES, Streams
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turn_follower import Aborted, Completed, End, Quarantined, Refused, TurnFollower
from orchestrator.protocol import ops
from orchestrator.protocol.bounds import JSON_BYTES, TEXT_BYTES, deeper_than
from orchestrator.protocol.codec import HEAD_BYTES, Frame, LineSplitter, OverlongLine
from orchestrator.protocol.events import Error, StreamError, UserMessage, WarningEvent
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonValue
from orchestrator.requests.approvals import AMENDMENT, shown_as
from orchestrator.requests.asks import REVISE
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views import SetAside, ViewError
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from orchestrator.views.sessions import LOOKED_THROUGH, Filter, listed_rows
from orchestrator.views.tree import TreeReader, message_summary

# ── door ──────────────────────────────────────────────────────────────────────────────────────────
# The MCP server: one client over its streams, its calls as sessions and turns.
#
# A call that the client cancels interrupts its turn. A client that goes ends nothing: its turns run on,
# and who started the server may wait for them with `rest`.


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────
# The tools of the MCP server: names, arguments with their bounds, and results.
#
# A client's arguments are a model's: each has a bound here, and what they may loosen is decided where a
# session is made.


MOST_CONFIG_KEYS = 50
MOST_CONFIG_DEPTH = 8
MOST_KEY = 200
MOST_LISTED = 100
MOST_PROMPT = TEXT_BYTES // 4
"""Characters: each has four bytes at most."""
Status = Literal["completed", "interrupted", "failed", "in_progress"]


class _Arguments(BaseModel):
    """Arguments of a tool; one that it does not know is an error, so that nothing is asked for in vain."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _said(prompt: str) -> str:
    if not prompt.strip():
        raise ValueError("it is empty: say what the agent is to do")
    return prompt


Prompt = Annotated[
    str, AfterValidator(_said), Field(max_length=MOST_PROMPT, json_schema_extra={"minLength": 1})
]


class RunArguments(_Arguments):
    """Begins a new session, does what the prompt says, and answers when its turn is over."""

    prompt: Prompt = Field(description="What the agent is to do.")
    cwd: str | None = Field(
        None, description="Folder to work in: the server's own, or one below it.", max_length=4096
    )
    model: str | None = Field(None, description="Model, instead of the configured one.", max_length=200)
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] | None = Field(
        None, description="What commands may touch; never more than the server was started with."
    )
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] | None = Field(
        None, description="When a person is asked; never less than the server was started with."
    )
    config: dict[str, Any] | None = Field(
        None, description="Other settings by their keys, as in dendro.toml.", max_length=MOST_CONFIG_KEYS
    )

    @field_validator("config")
    @classmethod
    def _config_within_bounds(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        """The settings, which are read by the path of each of their keys."""
        if deeper_than(config, MOST_CONFIG_DEPTH):
            raise ValueError(f"nested deeper than {MOST_CONFIG_DEPTH} levels")
        if (size := len(orjson.dumps(config))) > JSON_BYTES:
            raise ValueError(f"at most {JSON_BYTES:,} bytes as JSON, this has {size:,}")
        if _has_long_key(config):
            raise ValueError(f"a key has at most {MOST_KEY} characters")
        return config


def _has_long_key(value: Any) -> bool:
    """Whether a key is longer than any setting's; each is repeated in the paths of all below it."""
    table = value if isinstance(value, dict) else {}
    return any(len(key) > MOST_KEY or _has_long_key(inner) for key, inner in table.items())


class ReplyArguments(_Arguments):
    """Gives a session its next prompt, and answers when that turn is over. It waits behind a running one."""

    thread_id: str = Field(description="The `threadId` that `run` or `threads` told.", max_length=100)
    prompt: Prompt = Field(description="What the agent is to do next.")


class ThreadsArguments(_Arguments):
    """Lists sessions, those that changed last first."""

    limit: int = Field(20, description="How many.", ge=1, le=MOST_LISTED)
    text: str = Field("", description="Only those whose name, title or folder has it.", max_length=200)
    archived: bool = Field(False, description="Those that were put away (archived), instead of the others.")


class TreeArguments(_Arguments):
    """Shows a session with all agents that it made: who works for whom, who waits for what."""

    thread_id: str = Field(description="A session of the tree.", max_length=100)


Arguments = RunArguments | ReplyArguments | ThreadsArguments | TreeArguments
_TOOLS: Mapping[str, type[Arguments]] = {
    "run": RunArguments,
    "reply": ReplyArguments,
    "threads": ThreadsArguments,
    "tree": TreeArguments,
}
_TURN = {
    "type": "object",
    "properties": {
        "threadId": {"type": "string", "description": "The session; `reply` goes on with it."},
        "turnId": {"type": "string"},
        "status": {"enum": ["completed", "interrupted", "failed"]},
    },
    "required": ["threadId", "turnId", "status"],
}


class UnknownTool(Exception):
    """A tool that the server does not have."""


class BadArguments(Exception):
    """Arguments that a tool does not take; the message says which, and what it takes."""


def listed() -> list[sdk.Tool]:
    """The tools as clients are told of them."""
    return [
        sdk.Tool(
            name=name,
            description=" ".join((arguments.__doc__ or "").split()),
            input_schema=_schema(arguments),
            output_schema=_TURN if name in ("run", "reply") else None,
            annotations=sdk.ToolAnnotations(read_only_hint=name in ("threads", "tree")),
        )
        for name, arguments in _TOOLS.items()
    ]


def _schema(arguments: type[Arguments]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema["properties"].values():
        field.pop("title", None)
    return schema


def parsed(name: str, arguments: Mapping[str, Any] | None) -> Arguments:
    """The checked arguments of a call; raises `UnknownTool` or `BadArguments`."""
    model = _TOOLS.get(name)
    if model is None:
        raise UnknownTool(f"no tool {name[:100]!r}; there are {', '.join(_TOOLS)}")
    try:
        return model.model_validate(dict(arguments or {}))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        known = ", ".join(model.model_fields)
        why = first["msg"].removeprefix("Value error, ")
        raise BadArguments(f"{where}: {why}; {name} takes {known}") from None


@record
class TurnOutcome:
    """The end of a turn, for a client."""

    thread_id: str
    turn_id: str
    status: Status
    text: str

    def result(self) -> sdk.CallToolResult:
        """The turn as a tool's result."""
        structured = {"threadId": self.thread_id, "turnId": self.turn_id, "status": self.status}
        return sdk.CallToolResult(
            content=[sdk.TextContent(type="text", text=self.text)],
            structured_content=structured,
            is_error=self.status == "failed",
        )


def refusal(text: str) -> sdk.CallToolResult:
    """The result of a call that could not be carried out."""
    return sdk.CallToolResult(content=[sdk.TextContent(type="text", text=text)], is_error=True)


# ── door ────────────────────────────────────────────────────────────


log = logging.getLogger("dendro.mcp_server")

MOST_TURNS = 64
"""Turns that one client may have under way."""
REST_POLL_S = 0.1
_GONE = (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError)
_LISTED = ("name", "title", "status", "cwd", "model", "created_ms", "updated_ms")
INSTRUCTIONS = (
    "Runs coding agents in sessions that outlive this server. `run` begins a session and answers when its "
    "turn is over; `reply` goes on with it by its threadId. Cancelling a call interrupts its turn."
)


class NotPermitted(Exception):
    """A session that the client may not have; the message names what a person can do."""


Create = Callable[[RunArguments], Awaitable[SessionId]]
"""Makes the session of a `run`; raises `NotPermitted`, or `ViewError` for settings that cannot be."""


@record
class Deployment:
    """The deployment that a door serves."""

    broker: Broker
    client: Client
    create: Create
    version: str


_Place: TypeAlias = tuple[SessionId, EqCursor]
"""The session of a turn, and where it stands before."""


class McpDoor:
    """Serves one client."""

    def __init__(self, there: Deployment) -> None:
        self._there = there
        self._client = there.client
        self._turns: dict[sdk.RequestId, FollowedTurn] = {}
        """The turns of calls that were not answered, by the call's id."""
        self._following: dict[asyncio.Task[TurnOutcome], FollowedTurn] = {}
        self._beginning = 0
        """The turns whose sessions are looked for, or whose prompts are on their way."""
        self._interrupts: set[asyncio.Task[None]] = set()

    def server(self) -> Server[Any]:
        """The SDK's server, for one connection."""
        server: Server[Any] = Server(
            "dendro",
            version=self._there.version,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        server.middleware.append(self._watch)
        return server

    async def serve(self, streams: Streams, line_limit: int) -> None:
        """Serves the client until it leaves, and its turns until they are at rest."""
        server = self.server()
        try:
            async with messages(streams, line_limit) as (received, sent):
                await server.run(received, sent, server.create_initialization_options())
            await self.rest()
        finally:
            await self.close()

    async def rest(self) -> None:
        """Returns when no turn of the client runs any more: each is over, or waits for a person."""
        while pending := {task: turn for task, turn in self._following.items() if not task.done()}:
            heads = [await self._client.head(turn.session) for turn in pending.values()]
            if all([head is None or await self._waits(head) for head in heads]):
                break
            await asyncio.wait(pending, timeout=REST_POLL_S, return_when=asyncio.FIRST_COMPLETED)

    async def _waits(self, head: SessionHead) -> bool:
        """Whether a turn goes on only if a person does something, also for an agent that it waits for."""
        if head.status in AWAITING:
            return not head.has_unread
        return bool(await standing(self._client, head) & {*AWAITING, PAUSED, QUARANTINED})

    async def close(self) -> None:
        """Lets go of every turn, as it is."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, *self._interrupts, return_exceptions=True)

    # ── messages ──────────────────────────────────────────────────────────────────────────────

    async def _list(self, context: ServerRequestContext[Any], params: object) -> sdk.ListToolsResult:
        return sdk.ListToolsResult(tools=listed())

    async def _watch(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Interrupts the turn of a call that the client cancels: the SDK only drops the call."""
        if ctx.method == CANCELLED:
            id = cancelled_request_id_from_params(ctx.params)
            turn = None if id is None else self._turns.pop(coerce_request_id(id), None)
            if turn is not None:
                task = asyncio.create_task(self._interrupt(turn))
                self._interrupts.add(task)
                task.add_done_callback(self._interrupts.discard)
        return await call_next(ctx)

    async def _interrupt(self, turn: FollowedTurn) -> None:
        stops: list[ops.Op] = [ops.Interrupt(expected_turn_id=turn.turn_id)]
        if not turn.begun:
            # It may wait behind another turn, which is none of this call's; or begin just now.
            stops.insert(0, ops.RemoveQueued(submission_id=turn.turn_id))
        try:
            for op in stops:
                await self._client.submit(turn.session, Submission(SubmissionId(new_submission_id()), op))
        except BrokerError as error:
            log.warning("session %s: its turn was not interrupted: %s", turn.session, error)

    async def _call(
        self, context: ServerRequestContext[Any], params: sdk.CallToolRequestParams
    ) -> sdk.CallToolResult:
        try:
            arguments = parsed(params.name, params.arguments)
        except UnknownTool as error:
            raise MCPError(code=sdk.INVALID_PARAMS, message=str(error)) from None
        except BadArguments as error:
            return refusal(str(error))
        if (said := context.session.client_params) is not None:
            self._client.calling_itself(said.client_info.name)
        try:
            return await self._carried_out(context, arguments)
        except (ViewError, NotPermitted, MalformedSubmission, BrokerError) as error:
            return refusal(str(error))
        except (ArchiveUnavailable, BrokenArchive) as error:
            return refusal(f"a log that this needs cannot be read to its end now: {error}")

    async def _carried_out(
        self, context: ServerRequestContext[Any], arguments: Arguments
    ) -> sdk.CallToolResult:
        match arguments:
            case RunArguments():
                return await self._turn(context, lambda: self._begun(arguments), arguments.prompt)
            case ReplyArguments():
                return await self._turn(context, lambda: self._found(arguments), arguments.prompt)
            case ThreadsArguments():
                return _shown({"threads": await self._threads(arguments)})
            case TreeArguments():
                return _shown(await self._tree(arguments))

    async def _begun(self, arguments: RunArguments) -> _Place:
        return await self._there.create(arguments), BEGINNING

    async def _found(self, arguments: ReplyArguments) -> _Place:
        head = await self._head(arguments.thread_id)
        if head.quarantined:
            raise SetAside(head.session)
        return head.session, EqCursor.at(head)

    async def _head(self, thread_id: str) -> SessionHead:
        """The session of an id, which parts of ids do not name here; raises `ViewError`.

        Of a session in a namespace that is not the client's it learns nothing.
        """
        head = None
        with suppress(InvalidSessionId):
            head = await self._client.head(parse_session_id(thread_id))
        if head is None:
            raise ViewError(f"no session {thread_id!r}; the tool threads lists those that there are")
        return head

    def _require_room(self) -> None:
        # Those that begin count, too: many calls may come before the session of the first is made.
        if self._beginning + sum(not task.done() for task in self._following) >= MOST_TURNS:
            raise NotPermitted(f"{MOST_TURNS} turns of this client run: wait until one is over")

    # ── turns ─────────────────────────────────────────────────────────────────────────────────

    async def _turn(
        self, context: ServerRequestContext[Any], place: Callable[[], Awaitable[_Place]], prompt: str
    ) -> sdk.CallToolResult:
        call = coerce_request_id(context.request_id if context.request_id is not None else "")
        self._require_room()
        self._beginning += 1
        try:
            session, cursor = await place()
            turn = FollowedTurn(self._client, session, new_submission_id(), _AtClient(context))
            # Noted first: a cancel that comes while the input is on its way must find its turn.
            self._turns[call] = turn
            following = await self._handed_in(turn, cursor, prompt)
        except asyncio.CancelledError:
            # The client's cancel is heard of behind the end of its call: `_watch` needs the turn then.
            raise
        except BaseException:
            self._turns.pop(call, None)
            raise
        finally:
            self._beginning -= 1
        # The turn is followed whether or not the client still waits for this call.
        await asyncio.wait((following,))
        self._turns.pop(call, None)
        return following.result().result()

    async def _handed_in(
        self, turn: FollowedTurn, cursor: EqCursor, prompt: str
    ) -> asyncio.Task[TurnOutcome]:
        """Hands in the prompt; the task that follows its turn."""
        op = ops.UserInput(items=(TextInput(text=prompt),), delivery=Delivery.QUEUE)
        await self._client.submit(turn.session, Submission(SubmissionId(turn.turn_id), op))
        following = asyncio.create_task(turn.outcome(cursor), name=f"turn:{turn.turn_id}")
        self._following[following] = turn
        following.add_done_callback(self._followed)
        return following

    def _followed(self, task: asyncio.Task[TurnOutcome]) -> None:
        turn = self._following.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "session %s: turn %s is not followed any more", turn.session, turn.turn_id, exc_info=error
            )

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    async def _threads(self, arguments: ThreadsArguments) -> list[dict[str, Any]]:
        wanted, own, found = Filter(text=arguments.text), self._client.namespace, list[dict[str, Any]]()
        rows = listed_rows(self._there.broker, LOOKED_THROUGH, shelved=arguments.archived)
        async for row, head in rows:
            if head.labels.ephemeral:
                continue
            if own in (None, head.labels.namespace) and wanted.wants(row):
                found.append({"threadId": head.session, **{name: row[name] for name in _LISTED}})
                if len(found) == arguments.limit:
                    break
        return found

    async def _tree(self, arguments: TreeArguments) -> dict[str, Any]:
        tree = (await self._head(arguments.thread_id)).tree
        try:
            picture = await TreeReader(self._there.broker, tree).picture()
        except UnknownSession as error:
            raise ViewError(str(error)) from error
        agents = [
            {
                "agentId": agent.agent_id,
                "parentAgentId": agent.parent,
                "threadId": agent.session,
                "label": agent.summary.get("label"),
                "status": agent.status,
                "waitsFor": agent.doing.waits_for or None,
                "tokens": agent.tokens,
                "last": agent.doing.last or None,
            }
            for agent in picture.agents.values()
        ]
        return {"treeId": tree, "agents": agents}


class _AtClient:
    """The person in front of the client that sent a call."""

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._context = context
        self._told = 0

    @property
    def can_be_asked(self) -> bool:
        session = self._context.session
        able = session.client_capabilities
        return able is not None and able.elicitation is not None and session.can_send_request

    async def tell(self, line: str) -> None:
        self._told += 1
        with suppress(*_GONE):
            await self._context.session.report_progress(self._told, message=line)

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        try:
            answer = await self._context.session.elicit_form(message, schema, self._context.request_id)
        except (*_GONE, ValidationError) as error:
            log.info("the client did not ask its person: %s", error)
            return None
        return answer.action, dict(answer.content or {})


def _shown(value: Mapping[str, Any]) -> sdk.CallToolResult:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return sdk.CallToolResult(
        content=[sdk.TextContent(type="text", text=text)], structured_content=dict(value)
    )


# ── wire ──────────────────────────────────────────────────────────────────────────────────────────
# The client's messages as the SDK's streams: one JSON-RPC message a line, each of a bounded length.
#
# In the place of the SDK's own transport, which reads a line of any length.


MOST_OPEN: Final = 256
"""Requests of one client that were not answered yet."""
CANCELLED: Final = "notifications/cancelled"
NO_MESSAGE: Final = (
    'this is no message of JSON-RPC 2.0: one has "jsonrpc": "2.0", a text as `method`, an object as `params` '
    "if any, and as `id` a text or a whole number of 64 bits"
)
_FIRST_ID = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*'
    rb'(0|-?[1-9][0-9]{0,17}|"[ !#-\[\]-~]{0,200}")[\s,}]'
)
_Inbound = MemoryObjectSendStream[SessionMessage | Exception]
_Outbound = MemoryObjectReceiveStream[SessionMessage]
Messages = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def messages(streams: Streams, line_limit: int) -> AsyncIterator[Messages]:
    """The messages from the client, which end when it leaves, and those to it."""
    inbound, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    async with inbound, received, sent, outbound, anyio.create_task_group() as group:
        calls = Calls()
        group.start_soon(_Reader(streams, inbound, calls).read, line_limit)
        group.start_soon(_write, streams, outbound, inbound, calls)
        try:
            yield received, sent
        finally:
            group.cancel_scope.cancel()


class Calls:
    """The client's requests that were not answered yet, each under an id of its own."""

    def __init__(self) -> None:
        self._open: set[RequestId] = set()

    def fault(self, id: RequestId) -> str | None:
        """The reason why a request cannot be taken under this id; else it is open from now on."""
        key = coerce_request_id(id)
        if key in self._open:
            return "a request with this id was not answered yet: give each request an id of its own"
        if len(self._open) >= MOST_OPEN:
            return f"{MOST_OPEN} requests of this client were not answered yet: wait until one is"
        self._open.add(key)
        return None

    def over(self, id: object) -> None:
        """Forgets a request that was answered or cancelled."""
        if (known := as_request_id(id)) is not None:
            self._open.discard(coerce_request_id(known))


@record
class _Reader:
    """The client's lines as messages; one that is none is answered, under its id if it shows one."""

    streams: Streams
    inbound: _Inbound
    calls: Calls

    async def read(self, line_limit: int) -> None:
        splitter = LineSplitter(line_limit)
        async with self.inbound:
            try:
                while data := await self.streams.read(READ_BYTES):
                    for line in splitter.feed(data):
                        await self._received(line)
                for line in splitter.close():
                    await self._received(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def _received(self, line: Frame) -> None:
        if isinstance(line, OverlongLine):
            fault = f"line {line.number}: longer than {line.limit} bytes; it was skipped"
            await self._refuse(_id_in(line.head), INVALID_REQUEST, fault)
            return
        try:
            value = orjson.loads(line.content)
        except orjson.JSONDecodeError as error:
            fault = f"line {line.number}: this is no JSON: {error}"
            await self._refuse(_id_in(line.content[:HEAD_BYTES]), PARSE_ERROR, fault)
            return
        await self._parsed(line.number, value)

    async def _parsed(self, number: int, value: JsonValue) -> None:
        given = value.get("id") if isinstance(value, dict) else None
        id = as_request_id(given)
        try:
            message = jsonrpc_message_adapter.validate_python(value, by_name=False)
        except ValueError:
            message = None
        if message is None or (id is None and isinstance(value, dict) and "id" in value):
            await self._refuse(id, INVALID_REQUEST, f"line {number}: {NO_MESSAGE}")
        elif isinstance(message, JSONRPCRequest) and (fault := self.calls.fault(message.id)) is not None:
            await self._refuse(id, INVALID_REQUEST, fault)
        else:
            if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
                self.calls.over((message.params or {}).get("requestId"))
            await self.inbound.send(SessionMessage(message))

    async def _refuse(self, id: RequestId | None, code: int, fault: str) -> None:
        answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": fault}}
        with suppress(OSError):
            await self.streams.write(orjson.dumps(answer) + b"\n")


def _id_in(head: bytes) -> RequestId | None:
    """The id of a message by its beginning, if it stands before all that the message says."""
    found = _FIRST_ID.match(head)
    return None if found is None else as_request_id(orjson.loads(found[1]))


async def _write(streams: Streams, outbound: _Outbound, inbound: _Inbound, calls: Calls) -> None:
    async with outbound:
        async for message in outbound:
            if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                calls.over(message.message.id)
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await streams.write(line.encode() + b"\n")
            except OSError as error:
                log.info("the client does not read any more: %s", error)
                # Else the server would go on reading a client that it cannot answer.
                await inbound.aclose()
                return


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────
# A turn that a client began, followed to its end.
#
# The turn is the session's: neither a client that leaves nor one that is slow ends it. What an agent asks
# goes to the client's person if the client can ask them, and stands in the fleet's queue meanwhile: the
# first answer counts, from wherever it comes.


TRIES = 3
"""How often a person is asked again whose answer answers nothing."""
MOST_PROGRESS = 500
"""Characters of a line of progress."""
Answer = tuple[str, dict[str, Any]]
"""`accept`, `decline` or `cancel`, and what was filled in."""


class Person(Protocol):
    """The client's side of one call."""

    @property
    def can_be_asked(self) -> bool:
        """Whether the client shows forms to a person."""
        ...

    async def tell(self, line: str) -> None:
        """Tells how the turn goes on."""
        ...

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        """Shows a form; None if the client could not."""
        ...


class FollowedTurn:
    """A turn under way."""

    def __init__(self, client: Client, session: SessionId, turn_id: str, person: Person) -> None:
        self.session = session
        self.turn_id = turn_id
        self._client = client
        self._person = person
        self._open = OpenRequests(session)
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._handed: dict[str, requests.Request] = {}
        """The requests that the client's person has answered, by the ids of the answers."""
        self._follower = TurnFollower(client, session, turn_id)

    @property
    def begun(self) -> bool:
        """Whether it is known to have begun; until then its prompt may wait behind another turn."""
        return self._follower.begun

    async def outcome(self, cursor: EqCursor) -> TurnOutcome:
        """Follows the session from `cursor` until the turn is over."""
        try:
            async for event in self._client.follow(self.session, cursor):
                self._open.receive(event)
                self._leave_answered()
                await self._tell_refused(event)
                await self._show(event)
                end = await self._follower.receive(event)
                if end is not None:
                    return self._outcome(end)
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)
        raise UnknownSession(self.session)

    def _outcome(self, end: End) -> TurnOutcome:
        error = self._follower.error
        match end:
            case Completed(None) if error:
                return self._over("failed", error)
            case Completed(answer):
                return self._over("completed", answer or "")
            case Aborted(reason):
                return self._over("interrupted", error or f"the turn was {reason}")
            case Refused(message):
                return self._over("failed", message)
            case Quarantined():
                return self._over("failed", str(SetAside(self.session)))
            case _:
                assert_never(end)

    def _over(self, status: Any, text: str) -> TurnOutcome:
        return TurnOutcome(self.session, self.turn_id, status, text)

    # ── progress ──────────────────────────────────────────────────────────────────────────────

    async def _show(self, event: Event) -> None:
        if isinstance(said := event.told, StreamError | WarningEvent):
            # Also why it stands still, as where the tree's budget is spent.
            await self._person.tell(shown(said.message)[:MOST_PROGRESS])
        elif event.id == self.turn_id and event.kind is not UserMessage:
            line = message_summary(event.msg)
            if line:
                await self._person.tell(shown(line)[:MOST_PROGRESS])
        for request in self._open:
            key = _key(request)
            if key not in self._asking:
                self._asking[key] = asyncio.create_task(self._ask(request), name=f"ask:{named(request)}")

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _leave_answered(self) -> None:
        """Takes forms back whose requests were answered elsewhere, or withdrawn."""
        still = {_key(request) for request in self._open}
        for key in [key for key in self._asking if key not in still]:
            self._asking.pop(key).cancel()

    async def _tell_refused(self, event: Event) -> None:
        """Tells that the session has refused an answer, such as an unsigned one."""
        request = self._handed.pop(event.id, None) if event.kind is Error else None
        if request is not None and _key(request) in self._asking and isinstance(told := event.told, Error):
            await self._person.tell(shown(whole(told.message))[:MOST_PROGRESS])
            await self._person.tell(_waits(request))

    async def _ask(self, request: requests.Request) -> None:
        form = form_of(request, int(time.time() * 1000)) if self._person.can_be_asked else None
        if form is None or not await self._answered(request, form):
            await self._person.tell(_waits(request))

    async def _answered(self, request: requests.Request, form: Form) -> bool:
        """Whether the client's person has answered."""
        message = form.message
        for _ in range(TRIES):
            answer = await self._person.ask(message, form.schema)
            match answer:
                case ("accept", content):
                    try:
                        op = form.read(content)
                    except ValueError as error:
                        message = f"{shown(str(error))}\n\n{form.message}"
                        continue
                case ("decline", _):
                    op = form.declined
                case _:
                    return False
            id = new_submission_id()
            self._handed[id] = request
            try:
                await self._client.submit(self.session, Submission(SubmissionId(id), op))
            except MalformedSubmission as error:
                message = f"{shown(str(error))}\n\n{form.message}"
                continue
            except BrokerError as error:
                log.warning("session %s: an answer was not handed in: %s", self.session, error)
                return False
            return True
        return False


def _waits(request: requests.Request) -> str:
    return f"waits for a person: dendro approvals lists {named(request)}"


def _key(request: requests.Request) -> tuple[str, str]:
    return request.session, request.call_id


# ── requests ──────────────────────────────────────────────────────────────────────────────────────
# An agent's request as a form for the person in front of the client, and what they fill in as an op.
#
# What a form cannot ask for stays in the fleet's queue: a secret, which the protocol forbids to ask for
# by a form, and what was not answered.


MOST_SHOWN = 16_000
"""Characters of a request that its form shows."""
_KEPT = "\n\t"
Content = Mapping[str, Any]


@record
class Form:
    """A form: its text, its fields, and the op that a filled in one is.

    `read` raises `ValueError` for contents that answer nothing.
    """

    message: str
    schema: dict[str, Any]
    read: Callable[[Content], ops.Op]
    declined: ops.Op
    """The op that says that the person declines to answer."""


def form_of(request: requests.Request, now_ms: int) -> Form | None:
    """The form of a request that is put now; None if it cannot be asked by one."""
    match request:
        case requests.ChoicesRequest() | requests.InputRequest():
            return _questions(request)
        case requests.PlanDecisionRequest():
            return _plan(request)
        case requests.ServerRequest():
            accept = request.responded(ElicitationAction.ACCEPT)
            asked = f"{request.where}.\n\n{request.subject}"
            return Form(shown(asked), _object({}), lambda _: accept, request.refused())
        case requests.CommandRequest() | requests.PatchRequest():
            return _approval(request, now_ms)
        case requests.ClientToolRequest() | requests.UnknownRequest():
            return None
        case _:
            assert_never(request)


def _approval(request: requests.CommandRequest | requests.PatchRequest, now_ms: int) -> Form:
    # A prefix of commands is nothing that a form has room to show.
    choices = {each.word: each.title for each in request.choices if each.word != AMENDMENT}
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": list(choices),
        "enumNames": list(choices.values()),
    }

    def read(content: Content) -> ops.Op:
        decision = str(content.get("decision"))
        if decision not in choices:
            raise ValueError(f"decision: one of {', '.join(choices)}")
        return request.answer(requests.Given(decision), seen)

    message, schema = shown(_asked(request)), _object({"decision": choice}, "decision")
    seen = shown_as(message, "mcp", now_ms)
    return Form(message, schema, read, request.refused(seen))


def _asked(request: requests.CommandRequest | requests.PatchRequest) -> str:
    where = f"{request.where}."
    why = "".join(f"\n\n{reason}" for reason in request.reasons)
    if isinstance(request, requests.CommandRequest):
        return f"Allow this command?\n\n{where}\n\n{request.subject}\n\nin {request.cwd}{why}"
    files = "\n".join(f"{change.verb} {change.name}\n{change.text}" for change in request.changes)
    return f"Allow this change of files?\n\n{where}\n\n{files}{why}"


def _plan(request: requests.PlanDecisionRequest) -> Form:
    words = [each.word for each in request.choices]
    fields = {
        "decision": {"type": "string", "title": "Decision", "enum": words},
        "feedback": {"type": "string", "title": REVISE.text},
    }

    def read(content: Content) -> ops.Op:
        word, feedback = str(content.get("decision")), str(content.get("feedback") or "")
        if word not in words or (word == REVISE.word and not feedback.strip()):
            raise ValueError("decision: approved, rejected, or revise with feedback")
        return request.answer(requests.Given(word, feedback if word == REVISE.word else ""))

    text = "\n\n".join(part.text for part in request.body)
    message = shown(f"Approve this plan?\n\n{text}")
    return Form(message, _object(fields, "decision"), read, request.refused())


def _questions(request: requests.ChoicesRequest | requests.InputRequest) -> Form | None:
    asked = request.questions
    if any(each.secret for each in asked):
        return None
    fields = {each.name: _field(each) for each in asked}

    def read(content: Content) -> ops.Op:
        said = {each: str(content.get(each.name) or "") for each in asked}
        given = {each: text for each, text in said.items() if text.strip() or not each.may_be_left}
        return request.replied({each.name: each.texts(text) for each, text in given.items()})

    required = [each.name for each in asked if not each.may_be_left]
    lines = "\n".join(f"{each.header}: {each.question}{_choices(each)}" for each in asked)
    return Form(shown(lines), _object(fields, *required), read, request.refused())


def _field(question: requests.Question) -> dict[str, Any]:
    # A text, also where there are options: people may say something else.
    return {
        "type": "string",
        "title": shown(question.header),
        "description": shown(question.question),
    }


def _choices(question: requests.Question) -> str:
    several = " (several: separated by commas)" if question.several else ""
    numbered = "".join(f"\n  {number}. {label}" for number, label in enumerate(question.labels, 1))
    return f"{several}{numbered}"


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def named(request: requests.Request) -> str:
    """The call of a request, with its agent, as `dendro approvals` lists it."""
    return f"{request.agent_id or 0}:{request.call_id}"


def shown(text: str) -> str:
    """A text with nothing in it that steers what a person sees, cut where it is long."""
    cut = (
        text
        if len(text) <= MOST_SHOWN
        else f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN} characters more"
    )
    return "".join(char if char in _KEPT or not _steers(char) else f"\\u{ord(char):04x}" for char in cut)


def _steers(char: str) -> bool:
    """Whether it is a control, a bidirectional override or the like, or a lone surrogate."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs")
