"""A session's events for a person's eyes, as they happen.

On a terminal, text streams as the model writes it; anywhere else every line is printed when
it is whole. Knows events and a console: neither where events come from, nor what to do next.
"""

from __future__ import annotations

import base64
import codecs
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, assert_never

import orjson
from rich.console import Console

from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import change_size, counted
from orchestrator.core.tokens import TokenInfo, Usage, context_left
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Question,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.requests.approvals import command_text
from orchestrator.terminal.faults import ExitCode, deleted
from orchestrator.terminal.text import json_for_stdout, one_line, plain, shown
from orchestrator.views.event import Event
from orchestrator.views.event_text import (
    PLAN_ITEM,
    client_call_text,
    client_result_text,
    finding_text,
    lifecycle_text,
    mcp_call_text,
    mcp_result_text,
    resolved_text,
    review_asked_text,
    review_verdict_text,
)
from orchestrator.views.past import message_line

PROPOSED = "the agent proposes a plan:"
OUTPUT_LINES = 12
"""Lines of a command's output that are shown; the model gets more, the log keeps all."""
DIFF_LINES = 40
STEP_MARKS = {"completed": "✓", "in_progress": "▸", "pending": "·"}
CHANGE_MARKS = {"add": "A", "delete": "D", "update": "M"}
REMINDER_CHARS = 160
MENDED_BEFORE_MERGING = 1
"""The least urgent priority of findings that are not left for later."""


@dataclass(slots=True)
class _Output:
    """The shown part of a running command's output."""

    shown_lines: int = 0
    hidden_lines: int = 0
    partial: str = ""
    decoders: dict[str, codecs.IncrementalDecoder] = field(default_factory=dict)

    def feed(self, stream: str, data: bytes) -> Iterator[str]:
        """The lines that are whole now and may still be shown."""
        decoder = self.decoders.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
        *lines, self.partial = (self.partial + decoder.decode(data)).split("\n")
        yield from self._allowed(lines)

    def close(self) -> Iterator[str]:
        """The last line, if no newline ended it."""
        rest, self.partial = self.partial, ""
        yield from self._allowed([rest] if rest else [])

    def _allowed(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            if self.shown_lines < OUTPUT_LINES:
                self.shown_lines += 1
                yield line
            else:
                self.hidden_lines += 1


class Live:
    """Shows one session's events on a console."""

    def __init__(self, console: Console, streaming: bool | None = None) -> None:
        self._console = console
        self._streaming = console.is_terminal if streaming is None else streaming
        self._streamed = ""
        """The kind of text that is on the open line: what its final event need not repeat."""
        self._outputs: dict[str, _Output] = {}
        self._tokens: Mapping[str, Any] | None = None
        self._labels: dict[int, str] = {}
        self._plans: dict[str, str] = {}
        """The streamed text of plans that are being proposed, by their items."""
        self._behind_plan = False
        """Whether the message that holds such a plan was streamed up to it."""
        self._kept: list[str] | None = None
        """The lines that are shown while somebody keeps them."""

    def know(self, labels: Mapping[int, str]) -> None:
        """Adds labels of agents that were created before the events that are shown."""
        self._labels.update(labels)

    def agent(self, number: int) -> str:
        """An agent as a person speaks of it."""
        label = self._labels.get(number)
        return f"agent {number} ({one_line(label)})" if label else f"agent {number}"

    def show(self, event: Event) -> None:
        """Prints what there is to see of an event."""
        message = event.msg
        match event.type:
            case "agent_message_delta":
                self._stream("message", message["delta"], "")
            case "agent_message" if self._behind_plan:
                # Its beginning was streamed before the plan that it held.
                self._behind_plan = False
                self._end_line()
            case "agent_message":
                self._whole("message", message["message"], "")
            case "item_started" | "item_completed" if message["item"].get("type") == PLAN_ITEM:
                self._plan_item(message["item"], done=event.type == "item_completed")
            case "plan_delta":
                self._plan_delta(message)
            case "agent_reasoning_delta":
                self._stream("reasoning", message["delta"], "dim italic")
            case "agent_reasoning":
                self._whole("reasoning", message["text"], "dim italic")
            case "agent_reasoning_section_break" | "task_complete" | "shutdown_complete":
                self._end_line()
            case "exec_command_begin":
                self._command(message)
            case "exec_command_output_delta":
                self._output(message)
            case "exec_command_end":
                self._command_ended(message)
            case "terminal_interaction":
                self.line(f"  process {message['process_id']} ← {one_line(message['stdin'])}", "cyan")
            case "patch_apply_begin":
                self.changes(message)
            case "patch_apply_end" if not message["success"]:
                self.line(_hung(f"the patch failed: {message['stderr'] or message['stdout']}"), "red")
            case "mcp_tool_call_begin":
                self.line(one_line(f"⚙ {mcp_call_text(message)}"), "bold cyan")
            case "mcp_tool_call_end":
                good, text = mcp_result_text(message)
                self._tool_ended(good, text, f" {_seconds(message['duration']):.1f}s")
            case "dynamic_tool_call_request":
                self.line(one_line(f"⚙ {client_call_text(message)}"), "bold cyan")
            case "dynamic_tool_call_response":
                self._tool_ended(bool(message["success"]), client_result_text(message))
            case "plan_update":
                self._plan(message)
            case "entered_plan_mode":
                self.line(f"plans {one_line(message['goal'])}", "bold")
            case "exited_plan_mode" if message.get("plan_output") is None:
                self.line("the planning session ended without a plan", "yellow")
            case "entered_review_mode":
                self.line(f"reviews {one_line(review_asked_text(message))}", "bold")
            case "exited_review_mode":
                self._reviewed(message.get("review_output"))
            case "token_count":
                self._tokens = message.get("info") or self._tokens
            case "subagent_lifecycle":
                self._agent(message)
            case _:
                if (remark := _remark(event.type, message, self.agent)) is not None:
                    text, style = remark
                    self.line(_hung(text), style)

    def _agent(self, message: Mapping[str, Any]) -> None:
        known = message.get("subagent") or {}
        if known.get("label"):
            self._labels[known["agent_id"]] = known["label"]
        text = lifecycle_text(message)
        if text:
            self.line(_hung(text), "blue")

    # ── lines ─────────────────────────────────────────────────────────────────────────────────

    def line(self, text: str, style: str = "") -> None:
        """A line of its own; whatever was streaming ends first."""
        self._end_line()
        if self._kept is not None:
            self._kept.append(plain(text))
        self._console.print(shown(text, style), soft_wrap=True, highlight=False)

    @contextmanager
    def keeping(self) -> Iterator[list[str]]:
        """The lines that are shown meanwhile."""
        lines: list[str] = []
        self._kept = lines
        try:
            yield lines
        finally:
            self._kept = None

    def _end_line(self) -> None:
        if self._streamed:
            self._console.print()
            self._streamed = ""

    def _stream(self, kind: str, delta: str, style: str) -> None:
        if not self._streaming:
            return
        if self._streamed != kind:
            self._end_line()
            self._streamed = kind
        self._console.print(shown(delta, style), end="", soft_wrap=True, highlight=False)

    def _whole(self, kind: str, text: str, style: str) -> None:
        if self._streamed == kind:
            self._end_line()
        else:
            self.line(text, style)

    # ── commands ──────────────────────────────────────────────────────────────────────────────

    def _command(self, message: Mapping[str, Any]) -> None:
        self._outputs[message["call_id"]] = _Output()
        self.line(_hung(f"$ {command_text(message['command'])}"), "bold cyan")

    def _output(self, message: Mapping[str, Any]) -> None:
        output = self._outputs.get(message["call_id"])
        if output is not None and self._streaming:
            for line in output.feed(message["stream"], base64.b64decode(message["chunk"])):
                self.line(f"  {line}", "dim")

    def _command_ended(self, message: Mapping[str, Any]) -> None:
        output = self._outputs.pop(message["call_id"], None) or _Output()
        if not output.shown_lines and not output.partial:
            # Nothing streamed: elsewhere than on a terminal, or the deltas are gone.
            text = message.get("aggregated_output") or message["stdout"] + message["stderr"]
            for line in output.feed("whole", text.encode("utf-8", "replace")):
                self.line(f"  {line}", "dim")
        for line in output.close():
            self.line(f"  {line}", "dim")
        if output.hidden_lines:
            self.line(f"  … {counted(output.hidden_lines, 'more line')}", "dim")
        code, took = message["exit_code"], _seconds(message["duration"])
        self.line(f"{'✓' if code == 0 else f'✗ exit {code}'} {took:.1f}s", "green" if code == 0 else "red")

    def _tool_ended(self, good: bool, text: str, took: str = "") -> None:
        output = _Output()
        for line in (*output.feed("whole", text.encode("utf-8", "replace")), *output.close()):
            self.line(f"  {line}", "dim")
        if output.hidden_lines:
            self.line(f"  … {counted(output.hidden_lines, 'more line')}", "dim")
        self.line(f"{'✓' if good else '✗'}{took}", "green" if good else "red")

    # ── plans that a message proposes ─────────────────────────────────────────────────────────

    def _plan_delta(self, message: Mapping[str, Any]) -> None:
        if self._streaming:
            self._behind_plan = self._behind_plan or self._streamed == "message"
            known = self._plans.get(message["item_id"], "")
            if not known:
                self.line(PROPOSED, "bold yellow")
            self._plans[message["item_id"]] = known + message["delta"]
            self._stream("plan", message["delta"], "yellow")

    def _plan_item(self, item: Mapping[str, Any], *, done: bool) -> None:
        """Shows the plan, unless just this was streamed: the finished item counts."""
        streamed = self._plans.pop(item["id"], "")
        if done and streamed.strip() != item["text"].strip():
            self.line(PROPOSED, "bold yellow")
            self.line(_indented(item["text"], "  "), "yellow")

    # ── patches and plans ─────────────────────────────────────────────────────────────────────

    def changes(self, message: Mapping[str, Any]) -> None:
        """The files of a patch, each with its change."""
        for path, change in message["changes"].items():
            moved = f" → {change['move_path']}" if change.get("move_path") else ""
            self.line(one_line(f"{CHANGE_MARKS.get(change['type'], '?')} {path}{moved}"), "bold magenta")
            lines = list(_change_lines(change))
            for line, style in lines[:DIFF_LINES]:
                self.line(f"  {line}", style)
            if len(lines) > DIFF_LINES:
                self.line(f"  … {counted(len(lines) - DIFF_LINES, 'more line')}", "dim")
        if left_out := message.get("changes_left_out"):
            are = "is" if left_out == 1 else "are"
            self.line(f"… {counted(left_out, 'more file')}, which {are} not shown", "bold yellow")

    def _plan(self, message: Mapping[str, Any]) -> None:
        if message.get("explanation"):
            self.line(_indented(message["explanation"], "  "), "dim")
        for step in message["plan"]:
            done = step["status"] == "completed"
            text = f"  {STEP_MARKS.get(step['status'], '·')} {one_line(step['step'])}"
            self.line(text, "dim" if done else "")

    def _reviewed(self, output: Mapping[str, Any] | None) -> None:
        if output is None:
            self.line("the review has no result", "yellow")
            return
        self.line(f"review: {one_line(review_verdict_text(output))}", "bold")
        if output["overall_explanation"]:
            self.line(_indented(output["overall_explanation"], "  "))
        for finding in output["findings"]:
            urgent = finding["priority"] <= MENDED_BEFORE_MERGING
            self.line(f"  {one_line(finding_text(finding))}", "bold red" if urgent else "bold yellow")
            self.line(_indented(finding["body"], "    "))

    # ── figures ───────────────────────────────────────────────────────────────────────────────

    def figures(self, at_rest: Mapping[str, Any]) -> str:
        """Tokens used and the share of the context left, by the events and by what the session's rest says.

        A turn that was interrupted tells of no tokens, and its request has used some.
        """
        used, left = int(at_rest.get("blended_total") or 0), at_rest.get("context_left")
        if self._tokens is not None:
            total, last = (Usage.of(self._tokens[f"{name}_token_usage"]) for name in ("total", "last"))
            if total.blended_total >= used:
                used = total.blended_total
                left = context_left(TokenInfo(total, last), self._tokens.get("model_context_window"))
        share = f", {left:.0%} of the context left" if left is not None else ""
        return f"{counted(used, 'token')}{share}" if used else ""


def _remark(kind: str, message: Mapping[str, Any], agent: Callable[[int], str]) -> tuple[str, str] | None:
    """The line of an event that is told in one, and its style; None for an event that is not."""
    match kind:
        case "error":
            return f"error: {message['message']}", "bold red"
        case "stream_error" | "warning":
            return f"{message['message']}", "yellow"
        case "background_event":
            return message["message"], "dim"
        case "view_image_tool_call":
            return f"looks at {message['path']}", "dim"
        case "context_compacted":
            return "the conversation was compacted", "dim"
        case "items_injected":
            return f"{counted(message['count'], 'message')} joined the conversation without a turn", "dim"
        case "turn_aborted":
            return f"the turn was {message['reason']}", "yellow"
        case "agent_mail":
            return message_line(message), "magenta"
        case "sub_agent_tool_call_begin":
            asked = message["invocation"]
            return f"+ helper {asked['label']}: {asked['description']}", "blue"
        case "sub_agent_tool_call_end":
            mark = "✓" if "Ok" in message["result"] else "✗"
            return f"{mark} helper {message['invocation']['label']} {message['outcome']}", "blue"
        case "mcp_startup_update" if message["status"]["state"] == "failed":
            return f"the MCP server {message['server']} did not start: {message['status']['error']}", "yellow"
        case "request_resolved":
            return resolved_text(message, agent(message.get("agent_id") or 0)), "dim"
        case _:
            return None


def _change_lines(change: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if change["type"] == "update":
        for line in change["unified_diff"].splitlines():
            yield line, "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        return
    mark, style = ("+", "green") if change["type"] == "add" else ("-", "red")
    for line in plain(change.get("content", "")).splitlines():
        yield f"{mark}{line}", style


def _hung(text: str) -> str:
    """The text with its further lines set in: one of a model's must not look like another line of ours."""
    return plain(text).replace("\n", "\n  ")


def _indented(text: str, margin: str) -> str:
    return "\n".join(margin + line for line in plain(text).splitlines())


def _seconds(duration: Mapping[str, int]) -> float:
    return duration["secs"] + duration["nanos"] / 1e9


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def show_request(live: Live, request: Request) -> str:
    """Shows which agent asks, the command with its folder or the patch, and the reason; answers that text."""
    with live.keeping() as lines:
        _show_request(live, request)
    return "\n".join(lines)


def _show_request(live: Live, request: Request) -> None:
    who = live.agent(request.agent_id) if request.agent_id else "the agent"
    live.line(f"? {one_line(request.heading(who))}", "bold yellow")
    match request:
        case ChoicesRequest() | InputRequest():
            _show_questions(live, request.questions)
        case PlanDecisionRequest():
            from orchestrator.core.modes import plan_text
            from orchestrator.protocol.plans import PlanProposal

            live.line(_indented(plan_text(PlanProposal.model_validate(request.proposal)), "  "))
        case ServerRequest():
            live.line(f"  {request.where}", "yellow")
            live.line("  " + plain(request.message).replace("\n", "\n  │ "), "bold")
        case CommandRequest():
            _show_place(live, request)
            if variables := request.variables_text:
                live.line(f"  with {one_line(variables)}", "bold yellow")
            live.line("  " + command_text(request.command).replace("\n", "\n  │ "), "bold")
            if prefix := request.prefix_text:
                live.line(f"  p: run in this session whatever begins with {one_line(prefix)}", "yellow")
        case PatchRequest():
            _show_place(live, request)
            live.changes(request.event)
        case ClientToolRequest() | UnknownRequest():
            live.line(f"  {one_line(request.subject)}", "bold")
        case _:
            assert_never(request)
    for reason in request.reasons:
        live.line(f"  {one_line(reason)}", "yellow")


def _show_place(live: Live, request: CommandRequest | PatchRequest) -> None:
    live.line(f"  {one_line(request.where)}", "bold red" if request.outside else "yellow")


def _show_questions(live: Live, questions: Sequence[Question]) -> None:
    for question in questions:
        live.line(f"  {one_line(question.header)}: {one_line(question.question)}", "bold")
        for number, option in enumerate(question.options, 1):
            means = f"  {one_line(option.description)}" if option.description else ""
            live.line(f"    {number}  {one_line(option.label)}{means}")
        if question.several:
            live.line("    several may be chosen", "dim")


def reminder(request: Request) -> str:
    """The open question in one line, for when other events have moved it out of sight."""
    who = f"agent {request.agent_id}" if request.agent_id else "the agent"
    where = " OUTSIDE THE SANDBOX" if request.outside else ""
    match request:
        case ChoicesRequest() | InputRequest():
            text = f"{who} asks {request.subject}"
        case PlanDecisionRequest():
            text = f"{who} proposes a plan: {request.subject}"
        case ServerRequest():
            text = f"the MCP server {request.subject}"
        case CommandRequest():
            text = f"{who} wants to run{where}: {command_text(request.command)}"
        case PatchRequest():
            text = f"{who} wants to change{where}: {', '.join(request.paths)}"
        case ClientToolRequest() | UnknownRequest():
            text = f"{who} waits: {request.subject}"
        case _:
            assert_never(request)
    return _cut(one_line(text))


def _cut(shown: str) -> str:
    return shown if len(shown) <= REMINDER_CHARS else shown[: REMINDER_CHARS - 1] + "…"


class LiveView:
    """On the console. Remarks of our own go to stderr unless a terminal shows both together."""

    def __init__(
        self, console: Console | None = None, *, streaming: bool | None = None, whole: bool = False
    ) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(self._console, streaming)
        self._whole = whole
        """Whether the session's input is shown as well: not to the person who has just typed it."""
        self._began = time.monotonic()

    def event(self, event: Event) -> None:
        if self._whole and event.type == "user_message":
            self._live.line(f"» {event.msg['message']}", "bold")
        self._live.show(event)

    def know(self, labels: Mapping[int, str]) -> None:
        """Labels of the tree's agents."""
        self._live.know(labels)

    def ask(self, request: Request) -> str:
        return show_request(self._live, request)

    def note(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.line(text, "dim")
        else:
            print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """The last line: what it cost, and how to go on; nothing does that `gone`, which was deleted."""
        took = f"{time.monotonic() - self._began:.1f} s"
        meta = orjson.loads(at_rest.meta) if at_rest is not None and at_rest.meta else {}
        parts = [part for part in (self._live.figures(meta), took) if part]
        if gone:
            parts.append(deleted(session))
        elif code in (ExitCode.DONE, ExitCode.INTERRUPTED):
            if change := meta.get("change"):
                parts.append(f"{change_size(**change)}: dendro diff {session}")
            parts.append(f"dendro run --resume {session}")
        self.note(" · ".join(parts))


class JsonView:
    """Events as NDJSON on stdout, and nothing else there."""

    def event(self, event: Event) -> None:
        line = orjson.dumps({"id": event.id, "msg": event.msg})
        sys.stdout.buffer.write(json_for_stdout(line) + b"\n")
        sys.stdout.buffer.flush()

    def ask(self, request: Request) -> str:
        """The request is an event like any other; `event` is not called for it."""
        return ""

    def note(self, text: str) -> None:
        print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """Prints what no event has shown."""
        if gone:
            self.note(deleted(session))
