"""A session's events for a person's eyes, as they happen.

On a terminal, text streams as the model writes it; anywhere else every line is printed when
it is whole. Knows events and a console: neither where events come from, nor what to do next.
"""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

import orjson
from rich.console import Console

from orchestrator import requests
from orchestrator.broker.records import SessionHead, Summary
from orchestrator.core.counts import change_size, counted
from orchestrator.core.tokens import TokenInfo, Usage, context_left
from orchestrator.protocol import events as e
from orchestrator.protocol.agents import SubAgentOk
from orchestrator.protocol.commands import AddFile, DeleteFile, FileChange, UpdateFile
from orchestrator.protocol.events import TokenUsageInfo
from orchestrator.protocol.mcp import McpFailed
from orchestrator.protocol.plans import StepStatus
from orchestrator.protocol.review import ReviewOutputEvent
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.turn_items import PlanItem
from orchestrator.protocol.wire import written
from orchestrator.requests.approvals import Change, command_text
from orchestrator.terminal.faults import ExitCode, deleted
from orchestrator.terminal.text import json_for_stdout, one_line, plain, shown
from orchestrator.views import event_text
from orchestrator.views.agent_past import MAIL, message_line
from orchestrator.views.event import Event

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
        self._tokens: TokenUsageInfo | None = None
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
        told = event.told
        if self._show_text(told) or self._show_work(told) or self._show_task(told):
            return
        if event.type == MAIL:
            self.line(hung(message_line(event.msg)), "magenta")
        elif event.type == event_text.GIVEN:
            self.line(hung(event_text.given_line(event.msg)), "dim")
        elif event.kind is e.TurnAborted:
            # The reason may be one of a newer version.
            self.line(hung(f"the turn was {event.msg['reason']}"), "yellow")

    def _show_text(self, told: e.EventMsg) -> bool:
        """Shows what the model says, and as what; false for any other event."""
        match told:
            case e.AgentMessageDelta(delta=delta):
                self._stream("message", delta, "")
            case e.AgentMessage() if self._behind_plan:
                # Its beginning was streamed before the plan that it held.
                self._behind_plan = False
                self._end_line()
            case e.AgentMessage(message=message):
                self._whole("message", message, "")
            case e.ItemStarted(item=PlanItem() as item):
                self._plans.pop(item.id, None)
            case e.ItemCompleted(item=PlanItem() as item):
                self._proposed(item)
            case e.PlanDelta():
                self._plan_delta(told)
            case e.AgentReasoningDelta(delta=delta):
                self._stream("reasoning", delta, "dim italic")
            case e.AgentReasoning(text=text):
                self._whole("reasoning", text, "dim italic")
            case e.AgentReasoningSectionBreak() | e.TaskComplete() | e.ShutdownComplete():
                self._end_line()
            case e.PlanUpdate():
                self._plan(told)
            case e.EnteredReviewMode():
                self.line(f"reviews {one_line(event_text.review_asked_text(told))}", "bold")
            case e.ExitedReviewMode(review_output=output):
                self._reviewed(output)
            case _:
                return False
        return True

    def _show_work(self, told: e.EventMsg) -> bool:
        """Shows what tools and agents do; false for any other event."""
        match told:
            case e.ExecCommandBegin():
                self._command(told)
            case e.ExecCommandOutputDelta():
                self._output(told)
            case e.ExecCommandEnd():
                self._command_ended(told)
            case e.TerminalInteraction(process_id=process, stdin=typed):
                self.line(f"  process {process} ← {one_line(typed)}", "cyan")
            case e.PatchApplyBegin(changes=changes, changes_left_out=left_out):
                self.changes([_change(path, change) for path, change in changes.items()], left_out or 0)
            case e.PatchApplyEnd(success=False):
                why = told.stderr or event_text.whole_or_note(told.stdout)
                self.line(hung(f"the patch failed: {why}"), "red")
            case e.McpToolCallBegin():
                self.line(one_line(f"⚙ {event_text.mcp_call_text(told)}"), "bold cyan")
            case e.McpToolCallEnd(duration=took):
                self._tool_ended(*event_text.mcp_result_text(told), f" {_seconds(took):.1f}s")
            case e.DynamicToolCallRequest():
                self.line(one_line(f"⚙ {event_text.client_call_text(told)}"), "bold cyan")
            case e.DynamicToolCallResponse(success=good):
                self._tool_ended(good, event_text.client_result_text(told))
            case e.ViewImageToolCall(path=path):
                self.line(hung(f"looks at {path}"), "dim")
            case e.SubagentLifecycle():
                self._agent(told)
            case e.SubAgentToolCallBegin(invocation=asked):
                self.line(
                    hung(f"+ helper {asked.label}: {event_text.whole_or_note(asked.description)}"), "blue"
                )
            case e.SubAgentToolCallEnd(invocation=asked, result=result, outcome=outcome):
                mark = "✓" if isinstance(result, SubAgentOk) else "✗"
                self.line(hung(f"{mark} helper {asked.label} {outcome}"), "blue")
            case _:
                return False
        return True

    def _show_task(self, told: e.EventMsg) -> bool:
        """Shows how the task goes on; false for any other event."""
        match told:
            case e.Error(message=message):
                self.line(hung(f"error: {event_text.whole_or_note(message)}"), "bold red")
            case e.StreamError(message=message) | e.WarningEvent(message=message):
                self.line(hung(message), "yellow")
            case e.BackgroundEvent(message=message):
                self.line(hung(message), "dim")
            case e.ContextCompacted():
                self.line("the conversation was compacted", "dim")
            case e.ItemsInjected(count=count):
                self.line(f"{counted(count, 'message')} joined the conversation without a turn", "dim")
            case e.EnteredPlanMode(goal=goal):
                self.line(f"plans {one_line(goal)}", "bold")
            case e.ExitedPlanMode(plan_output=None):
                self.line("the planning session ended without a plan", "yellow")
            case e.McpStartupUpdate(server=server, status=McpFailed(error=error)):
                self.line(hung(f"the MCP server {server} did not start: {error}"), "yellow")
            case e.RequestResolved(agent_id=agent):
                self.line(hung(event_text.resolved_text(told, self.agent(agent or 0))), "dim")
            case e.TokenCount(info=info):
                self._tokens = info or self._tokens
            case _:
                return False
        return True

    def _agent(self, told: e.SubagentLifecycle) -> None:
        if told.subagent is not None and told.subagent.label:
            self._labels[told.subagent.agent_id] = told.subagent.label
        if text := event_text.lifecycle_text(told):
            self.line(hung(text), "blue")

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

    def _command(self, told: e.ExecCommandBegin) -> None:
        self._outputs[told.call_id] = _Output()
        self.line(hung(f"$ {command_text([*map(event_text.whole_or_note, told.command)])}"), "bold cyan")

    def _output(self, told: e.ExecCommandOutputDelta) -> None:
        output = self._outputs.get(told.call_id)
        if output is not None and self._streaming:
            for line in output.feed(told.stream, told.chunk):
                self.line(f"  {line}", "dim")

    def _command_ended(self, told: e.ExecCommandEnd) -> None:
        output = self._outputs.pop(told.call_id, None) or _Output()
        if not output.shown_lines and not output.partial:
            # Nothing streamed: elsewhere than on a terminal, or the deltas are gone.
            text = told.aggregated_output or told.stdout + told.stderr
            for line in output.feed("whole", text.encode("utf-8", "replace")):
                self.line(f"  {line}", "dim")
        for line in output.close():
            self.line(f"  {line}", "dim")
        if output.hidden_lines:
            self.line(f"  … {counted(output.hidden_lines, 'more line')}", "dim")
        code, took = told.exit_code, _seconds(told.duration)
        self.line(f"{'✓' if code == 0 else f'✗ exit {code}'} {took:.1f}s", "green" if code == 0 else "red")

    def _tool_ended(self, good: bool, text: str, took: str = "") -> None:
        output = _Output()
        for line in (*output.feed("whole", text.encode("utf-8", "replace")), *output.close()):
            self.line(f"  {line}", "dim")
        if output.hidden_lines:
            self.line(f"  … {counted(output.hidden_lines, 'more line')}", "dim")
        self.line(f"{'✓' if good else '✗'}{took}", "green" if good else "red")

    # ── plans that a message proposes ─────────────────────────────────────────────────────────

    def _plan_delta(self, told: e.PlanDelta) -> None:
        if self._streaming:
            self._behind_plan = self._behind_plan or self._streamed == "message"
            known = self._plans.get(told.item_id, "")
            if not known:
                self.line(PROPOSED, "bold yellow")
            self._plans[told.item_id] = known + told.delta
            self._stream("plan", told.delta, "yellow")

    def _proposed(self, item: PlanItem) -> None:
        """Shows the plan, unless just this was streamed: the finished item counts."""
        streamed = self._plans.pop(item.id, "")
        if streamed.strip() != item.text.strip():
            self.line(PROPOSED, "bold yellow")
            self.line(_indented(item.text, "  "), "yellow")

    # ── patches and plans ─────────────────────────────────────────────────────────────────────

    def changes(self, changes: Sequence[Change], left_out: int) -> None:
        """The files of a patch, each with its change; so many more are `left_out`."""
        for change in changes:
            moved = f" → {change.move_path}" if change.move_path else ""
            self.line(one_line(f"{CHANGE_MARKS.get(change.verb, '?')} {change.path}{moved}"), "bold magenta")
            lines = list(_change_lines(change))
            for line, style in lines[:DIFF_LINES]:
                self.line(f"  {line}", style)
            if len(lines) > DIFF_LINES:
                self.line(f"  … {counted(len(lines) - DIFF_LINES, 'more line')}", "dim")
        if left_out:
            are = "is" if left_out == 1 else "are"
            self.line(f"… {counted(left_out, 'more file')}, which {are} not shown", "bold yellow")

    def _plan(self, told: e.PlanUpdate) -> None:
        if told.explanation:
            self.line(_indented(told.explanation, "  "), "dim")
        for step in told.plan:
            text = f"  {STEP_MARKS.get(step.status, '·')} {one_line(step.step)}"
            self.line(text, "dim" if step.status is StepStatus.COMPLETED else "")

    def _reviewed(self, output: ReviewOutputEvent | None) -> None:
        if output is None:
            self.line("the review has no result", "yellow")
            return
        self.line(f"review: {one_line(event_text.review_verdict_text(output))}", "bold")
        if output.overall_explanation:
            self.line(_indented(output.overall_explanation, "  "))
        for finding in output.findings:
            urgent = finding.priority <= MENDED_BEFORE_MERGING
            self.line(
                f"  {one_line(event_text.finding_text(finding))}", "bold red" if urgent else "bold yellow"
            )
            self.line(_indented(finding.body, "    "))

    # ── figures ───────────────────────────────────────────────────────────────────────────────

    def figures(self, at_rest: Summary) -> str:
        """Tokens used and the share of the context left, by the events and by what the session's rest says.

        A turn that was interrupted tells of no tokens, and its request has used some.
        """
        used, left = at_rest.get("blended_total", 0), at_rest.get("context_left")
        if self._tokens is not None:
            sums = self._tokens.total_token_usage, self._tokens.last_token_usage
            total, last = (Usage.of(written(usage)) for usage in sums)
            if total.blended_total >= used:
                used = total.blended_total
                left = context_left(TokenInfo(total, last), self._tokens.model_context_window)
        share = f", {left:.0%} of the context left" if left is not None else ""
        return f"{counted(used, 'token')}{share}" if used else ""


def _change(path: str, change: FileChange) -> Change:
    match change:
        case UpdateFile(unified_diff=diff, move_path=moved):
            return Change(
                change.type, path, event_text.whole_or_note(diff), event_text.whole_or_note(moved or "")
            )
        case AddFile(content=content) | DeleteFile(content=content):
            return Change(change.type, path, event_text.whole_or_note(content))
        case _:
            assert_never(change)


def _change_lines(change: Change) -> Iterator[tuple[str, str]]:
    if change.verb == "update":
        # Made visible first: a text has more ends of lines than a diff, and a piece of an addition looks like
        # what stays.
        for line in plain(change.text).splitlines():
            yield line, "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        return
    mark, style = ("+", "green") if change.verb == "add" else ("-", "red")
    for line in plain(change.text).splitlines():
        yield f"{mark}{line}", style


def hung(text: str) -> str:
    """The text with its further lines set in: one of a model's must not look like another line of ours."""
    return plain(text).replace("\n", "\n  ")


def _indented(text: str, margin: str) -> str:
    return "\n".join(margin + line for line in plain(text).splitlines())


def _seconds(duration: Duration) -> float:
    return duration.secs + duration.nanos / 1e9


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def show_request(live: Live, request: requests.Request) -> str:
    """Shows which agent asks, the command with its folder or the patch, and the reason; answers that text."""
    with live.keeping() as lines:
        _show_request(live, request)
    return "\n".join(lines)


def _show_request(live: Live, request: requests.Request) -> None:
    who = live.agent(request.agent_id) if request.agent_id else "the agent"
    live.line(f"? {one_line(request.heading(who))}", "bold yellow")
    match request:
        case requests.ChoicesRequest() | requests.InputRequest():
            _show_questions(live, request.questions)
        case requests.PlanDecisionRequest():
            from orchestrator.core.modes import plan_text
            from orchestrator.protocol.plans import PlanProposal

            live.line(_indented(plan_text(PlanProposal.model_validate(request.proposal)), "  "))
        case requests.ServerRequest():
            live.line(f"  {one_line(request.where)}", "yellow")
            live.line("  " + plain(request.message).replace("\n", "\n  │ "), "bold")
        case requests.CommandRequest():
            _show_place(live, request)
            if variables := request.variables_text:
                live.line(f"  with {one_line(variables)}", "bold yellow")
            live.line("  " + command_text(request.command).replace("\n", "\n  │ "), "bold")
            if prefix := request.prefix_text:
                live.line(f"  p: run in this session whatever begins with {one_line(prefix)}", "yellow")
        case requests.PatchRequest():
            _show_place(live, request)
            live.changes(request.changes, request.left_out)
        case requests.ClientToolRequest() | requests.UnknownRequest():
            live.line(f"  {one_line(request.subject)}", "bold")
        case _:
            assert_never(request)
    for reason in request.reasons:
        live.line(f"  {one_line(reason)}", "yellow")


def _show_place(live: Live, request: requests.CommandRequest | requests.PatchRequest) -> None:
    live.line(f"  {one_line(request.where)}", "bold red" if request.outside else "yellow")


def _show_questions(live: Live, questions: Sequence[requests.Question]) -> None:
    for question in questions:
        live.line(f"  {one_line(question.header)}: {one_line(question.question)}", "bold")
        for number, option in enumerate(question.options, 1):
            means = f"  {one_line(option.description)}" if option.description else ""
            live.line(f"    {number}  {one_line(option.label)}{means}")
        if question.several:
            live.line("    several may be chosen", "dim")


def reminder(request: requests.Request) -> str:
    """The open question in one line, for when other events have moved it out of sight."""
    who = f"agent {request.agent_id}" if request.agent_id else "the agent"
    where = " OUTSIDE THE SANDBOX" if request.outside else ""
    match request:
        case requests.ChoicesRequest() | requests.InputRequest():
            text = f"{who} asks {request.subject}"
        case requests.PlanDecisionRequest():
            text = f"{who} proposes a plan: {request.subject}"
        case requests.ServerRequest():
            text = f"the MCP server {request.subject}"
        case requests.CommandRequest():
            text = f"{who} wants to run{where}: {command_text(request.command)}"
        case requests.PatchRequest():
            text = f"{who} wants to change{where}: {', '.join(request.paths)}"
        case requests.ClientToolRequest() | requests.UnknownRequest():
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
        if self._whole and isinstance(told := event.told, e.UserMessage):
            self._live.line(hung(f"» {event_text.whole_or_note(told.message)}"), "bold")
        self._live.show(event)

    def know(self, labels: Mapping[int, str]) -> None:
        """Labels of the tree's agents."""
        self._live.know(labels)

    def ask(self, request: requests.Request) -> str:
        return show_request(self._live, request)

    def note(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.line(text, "dim")
        else:
            print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """The last line: what it cost, and how to go on; nothing does that `gone`, which was deleted."""
        took = f"{time.monotonic() - self._began:.1f} s"
        meta = at_rest.summary if at_rest is not None else Summary()
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

    def ask(self, request: requests.Request) -> str:
        """The request is an event like any other; `event` is not called for it."""
        return ""

    def note(self, text: str) -> None:
        print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """Prints what no event has shown."""
        if gone:
            self.note(deleted(session))
