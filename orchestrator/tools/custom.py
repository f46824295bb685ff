"""Tools that the program around Dendro brings along; docs/extending.md writes one step by step.

The worker calls them in its own event loop, without a sandbox: whom the program trusts with a tool, it trusts
with itself. What the model says to them is bounded here, as is what they say to the model, and nothing that
they raise ends a session.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from orchestrator.core.agent_views import one_line
from orchestrator.core.calls import Call, Custom, CustomWork
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.state import State
from orchestrator.protocol.mcp import text_result
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.tools.arguments import json_object
from orchestrator.tools.exec.command import for_model
from orchestrator.tools.exec.output_deltas import ShownOutput
from orchestrator.tools.tool import Judgement, Tool, function, task_of, unsupported
from orchestrator.tools.tool_context import CallSite, on_machine

log = logging.getLogger("dendro.tools")
PAYLOAD_BYTES = 64 << 10
"""Bytes of JSON that a model may give to a tool, and that a tool may keep for its run."""
OFFER_BYTES = 64 << 10
"""Bytes of a tool's description and schema: every request of a session carries them."""
SUMMARY_CHARS = 200
RESERVED: Final = "mcp__"
"""The beginning of names that tools of MCP servers have."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_JUDGEMENTS: Final[frozenset[Judgement]] = frozenset({"none", "all", "in_doubt"})


@record
class ToolPlace:
    """The session and the agent that a call belongs to."""

    session: SessionId
    tree: TreeId
    agent_id: AgentId
    cwd: str
    """The folder of the agent's task; what the tool does there is confined by nothing."""
    sandbox_mode: str
    """The sandbox of the task's commands: a tool that only reads may be all that `read-only` permits."""


@record
class ToolRequest:
    """A call that has something to run, as its tool has assessed it."""

    payload: JsonObject
    """The input of `run`: JSON of at most 64 KiB, which stands in the session's log."""
    summary: str
    """A line for people that says what the call will do."""
    ask: str | None = None
    """The reason why a person has to approve the call first; None: it runs at once."""
    repeatable: bool = False
    """Whether the call may run again if the worker is lost while it runs: it only reads."""


class CustomTool:
    """A tool of the program's own: a subclass gives `name`, `description`, `assess` and `run`."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue] = {}
    """The properties of its arguments, each a JSON Schema."""
    required: Sequence[str] = ()
    parallel_safe = False
    """Whether its calls may run together with others of one response."""
    timeout_s = 600.0
    """Seconds until a run is cancelled."""

    async def assess(self, arguments: JsonObject, place: ToolPlace) -> str | ToolRequest:
        """The output at once, or what is to run; reads, and starts nothing. `ValueError`: bad arguments."""
        raise NotImplementedError

    async def run(self, payload: JsonObject, place: ToolPlace, write: Callable[[str], None]) -> str:
        """Does it, and returns what the model reads; `write` shows people output meanwhile.

        It is cancelled when the turn is stopped: it has to end then, and leave nothing running.
        """
        raise NotImplementedError

    async def judge(self, payload: JsonObject) -> Judgement:
        """Judges what a run left whose worker was lost: `none`, `all`, or `in_doubt`."""
        return "in_doubt"


def custom_tools(tools: Sequence[CustomTool], taken: Collection[str], max_deltas: int) -> tuple[Tool, ...]:
    """The program's tools, by names that are not `taken`; raises `ValueError` for one that cannot be."""
    names = [tool.name for tool in tools]
    for tool in tools:
        fault = _fault(tool, taken, names)
        if fault is not None:
            raise ValueError(f"tools: {tool.name!r} {fault}")
    return tuple(_Custom(tool, max_deltas) for tool in tools)


def _fault(tool: CustomTool, taken: Collection[str], names: Sequence[str]) -> str | None:
    if not isinstance(tool.name, str) or _NAME.fullmatch(tool.name) is None:
        return "is no name for a tool: take 1 to 64 letters, digits, `_` and `-`"
    if tool.name in taken:
        return "is the name of a built-in tool: give yours another name"
    if tool.name.startswith(RESERVED):
        return f"begins as tools of MCP servers do ({RESERVED}): give yours another name"
    if names.count(tool.name) > 1:
        return "is the name of two of your tools: give one of them another name"
    try:
        size = len(orjson.dumps(_offer(tool)))
    except TypeError as error:
        return f"has a description or parameters that are no JSON: {error}"
    if size > OFFER_BYTES:
        return f"has {size:,} bytes of description and parameters: at most {OFFER_BYTES:,} can be offered"
    return None


def _offer(tool: CustomTool) -> JsonObject:
    return function(tool.name, tool.description, dict(tool.parameters), list(tool.required))


class _Custom(Tool):
    """A program's tool among those of the worker."""

    def __init__(self, tool: CustomTool, max_deltas: int) -> None:
        self._tool = tool
        self._max_deltas = max_deltas
        self._schema = _offer(tool)
        self.names = (tool.name,)
        self.parallel_safe = tool.parallel_safe

    def offered(self, state: State) -> JsonObject | None:
        # A helper only reads; what a tool does, its sandbox does not know.
        return self._schema if state.facts.helper_call is None else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "function_call" or site.state.facts.helper_call is not None:
            return unsupported(call)
        arguments, place = json_object(call.item["arguments"], PAYLOAD_BYTES), _place(site)
        try:
            with _tame(self._tool.name):
                return _assessment(self._tool.name, await self._assessed(arguments, place), place)
        except ToolFailed as failure:
            return Immediate(str(failure))

    async def _assessed(self, arguments: JsonObject, place: ToolPlace) -> str | ToolRequest:
        try:
            return await self._tool.assess(arguments, place)
        except ValueError as error:
            return f"{self._tool.name}: {error}"

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        work = call.work
        if not isinstance(work, CustomWork):
            return await super().run(call, site)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            output = await self._ran(call, work, site)
        except ToolFailed as failure:
            output = str(failure)
            failed = work.broken_off(call.call_id, output, loop.time() - began)
            return CallFinished(call.call_id, output, (failed,))
        end = work.end(call.call_id, text_result(output), loop.time() - began)
        return CallFinished(call.call_id, output, (end,))

    async def _ran(self, call: Call, work: CustomWork, site: CallSite) -> str:
        shown = ShownOutput(call.call_id, site.deltas, self._max_deltas)

        def write(text: str) -> None:
            shown.add("stdout", text.encode("utf-8", "replace"))

        limit = asyncio.timeout(self._tool.timeout_s)
        try:
            with _tame(self._tool.name, limit):
                async with limit:
                    return _text(await self._tool.run(work.payload, _place(site), write))
        finally:
            shown.close()

    async def judge(self, call: Call, claim: str) -> Judgement:
        if not isinstance(call.work, CustomWork):
            return "in_doubt"
        try:
            with _tame(self._tool.name):
                found = await self._tool.judge(call.work.payload)
                return found if found in _JUDGEMENTS else "in_doubt"
        except ToolFailed:
            # The trace is in the worker's log; of the call nothing is known.
            return "in_doubt"


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


class ToolFailed(Exception):
    """A program's tool raised, or gave back what nobody can use; the message is the call's output."""


@contextmanager
def _tame(name: str, limit: asyncio.Timeout | None = None) -> Iterator[None]:
    """Turns whatever a tool raises into `ToolFailed`, but for a cancel that is the worker's own."""
    try:
        yield
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_told_to_end():
            raise
        if limit is not None and limit.expired():
            raise ToolFailed(f"{name} was stopped: it ran for longer than its time limit") from error
        log.exception("the tool %s failed", name)
        raise ToolFailed(_shortened(f"{name} failed: {type(error).__name__}: {error}")) from error


def _is_told_to_end() -> bool:
    """Whether somebody has cancelled what runs; else the tool waited for something that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _place(site: CallSite) -> ToolPlace:
    facts, settings = site.state.facts, task_of(site.state).settings
    mode = str(settings.sandbox_policy["mode"])
    folder = str(on_machine(facts, Path(settings.cwd)))
    return ToolPlace(facts.session_id, facts.tree_id, facts.agent_id, folder, mode)


def _assessment(name: str, assessed: str | ToolRequest, place: ToolPlace) -> Assessment:
    if not isinstance(assessed, ToolRequest):
        return Immediate(_text(assessed))
    data = orjson.dumps(assessed.payload)
    if len(data) > PAYLOAD_BYTES:
        raise ValueError(f"its request has {len(data):,} bytes, at most {PAYLOAD_BYTES:,} can be kept")
    payload = orjson.loads(data)
    if not isinstance(payload, dict):
        raise TypeError(f"its request is a {type(assessed.payload).__name__}, and no JSON object")
    return Custom(
        name,
        payload,
        one_line(assessed.summary, SUMMARY_CHARS) or name,
        place.cwd,
        ask=None if assessed.ask is None else one_line(assessed.ask, SUMMARY_CHARS) or name,
        repeatable=bool(assessed.repeatable),
    )


def _text(output: object) -> str:
    if not isinstance(output, str):
        raise TypeError(f"it returned a {type(output).__name__}, and no text")
    return _shortened(output)


def _shortened(text: str) -> str:
    return for_model(text.encode("utf-8", "replace"))
