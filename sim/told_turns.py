"""The turns that a session's log tells of, read a second time: what clients are to be shown of them.

Shares nothing with the fold that doors use but the names of events and facts. How a turn ended is read from
the fact of its end, and how a request was settled from the answer, where the doors' fold goes by events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.core.blobs import resolve
from orchestrator.core.compaction import COMPACTED_MESSAGE
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry
from orchestrator.views.turns import turn_records as r

OUTCOMES = {"completed": "completed", "failed": "failed"}
"""How a turn is told that ended so; any other end is an interruption."""
APPROVALS = ("exec_approval_request", "apply_patch_approval_request")
ABOUT_AGENTS = {
    "subagent_spawn": "spawn",
    "subagent_fork": "spawn",
    "subagent_send_message": "send_input",
    "subagent_await": "wait",
    "subagent_cancel": "close",
    "subagent_list": "list",
    "subagent_logs": "",
    "subagent_watchdog": "",
    "subagent_prune": "",
}
"""Calls about agents, by what they are told as; '' is a tool of its own name."""
Told = tuple[Any, ...]


@dataclass(eq=False)
class LoggedTurn:
    """A turn, as far as it is compared."""

    id: str
    kind: str = ""
    status: str = "in_progress"
    fault: str = ""
    began: str = ""
    ended: str = ""
    """The times of its entries, as the log has them."""
    said: list[str] = field(default_factory=list)
    """The words of people, in their order."""
    shown: list[Told] = field(default_factory=list)
    """Messages of the model, plans, reviews and compactions, in their order."""
    thoughts: list[str] = field(default_factory=list)
    calls: dict[str, list[Any]] = field(default_factory=dict)
    """By their ids, in the order in which they began: the kind, the status, and what is told of each."""
    asked: set[str] = field(default_factory=set)
    """Requests to people that are open."""

    def told(self) -> Told:
        """The turn as it is compared."""
        calls = {
            id: tuple(call) if call[0] != "own tool" else (call[0], _simple(call[1]), *call[2:])
            for id, call in self.calls.items()
        }
        return self.id, self.status, self.fault, self.said, self.shown, self.thoughts, calls


def whole(entry: Entry, text: Callable[[str], str | None]) -> Entry:
    """An entry with its large texts put back."""
    return Entry(entry.type, resolve(dict(entry.payload), text), entry.id)


def as_told(turn: r.Turn) -> Told:
    """A turn of the doors, in the form in which it is compared."""
    said: list[str] = []
    shown: list[Told] = []
    thoughts: list[str] = []
    calls: dict[str, Told] = {}
    for item in turn.items:
        match item:
            case r.UserMessage():
                said.append("".join(str(one.get("text") or "") for one in item.content))
            case r.AgentMessage():
                if item.text != COMPACTED_MESSAGE:
                    shown.append(("message", item.text))
            case r.Plan():
                shown.append(("plan", item.text))
            case r.EnteredReview() | r.ExitedReview():
                shown.append((type(item).__name__,))
            case r.ContextCompaction() if item.completed_ms is not None:
                shown.append(("compaction",))
            case r.Reasoning():
                thoughts += [*item.summary, *item.content]
            case r.CommandExecution():
                calls[item.id] = (
                    "command",
                    str(item.status),
                    item.exit_code,
                    item.output,
                    tuple(item.command),
                )
            case r.FileChange():
                calls[item.id] = ("patch", str(item.status), tuple(change.path for change in item.changes))
            case r.McpToolCall():
                calls[item.id] = ("tool", str(item.status), item.server, item.tool)
            case r.DynamicToolCall():
                calls[item.id] = ("own tool", _simple(item.status), item.tool)
            case r.CollabToolCall():
                sessions = tuple(sorted(item.receivers))
                calls[item.id] = ("agents", str(item.status), str(item.tool), item.prompt, sessions)
            case _:
                pass
    fault = turn.fault.message if turn.fault is not None else ""
    return turn.id, str(turn.status), fault, said, shown, thoughts, calls


class TurnReader:
    """A log, entry by entry."""

    def __init__(self, session: str) -> None:
        self.turns: list[LoggedTurn] = []
        self._session = session
        self._open: LoggedTurn | None = None
        self._kind = ""
        self._said_in: list[LoggedTurn] = []
        """The turn of each word of people that was not taken back."""
        self._ended_with: dict[str, LoggedTurn] = {}
        """The turn that each response has ended."""
        self._goes_on_from = ""
        """The response of the turn from which the next one goes on, where that is not the last one."""
        self._processes: dict[str, LoggedTurn] = {}
        """The turns of calls that may go on behind them."""

    def read(self, entry: Entry) -> None:
        """Takes the next entry, whose large texts were put back."""
        payload = entry.payload
        if entry.type == DENDRO:
            self._fact(payload)
        elif entry.type == EVENT_MSG:
            event = getattr(self, f"_{payload['type']}", None)
            if event is not None:
                event(payload, entry.id)
        elif entry.type == RESPONSE_ITEM and self._open is not None:
            self._item(self._open, payload)

    def leaves(self) -> None:
        """The log ends here, and another one that was forked from it goes on."""
        self._open = None
        self._processes.clear()

    def _fact(self, fact: Mapping[str, Any]) -> None:
        turn = self._open
        match fact["kind"]:
            case "task":
                self._kind = fact["task"]
            case "task_ended" if self.turns:
                # Its event stands before it.
                self._over(self.turns[-1], OUTCOMES.get(fact["outcome"], "interrupted"))
            case "rewound":
                self._goes_on_from = fact["response_id"]
            case "answer" if turn is not None and fact.get("agent_id") is None:
                self._settled(turn, fact["call_id"], fact["decision"])
            case _:
                pass

    # ── turns ─────────────────────────────────────────────────────────────────────────────────

    def _task_started(self, message: Mapping[str, Any], id: str) -> None:
        if self._goes_on_from:
            # The others were left: the conversation does not have them any more.
            last = self._ended_with.get(self._goes_on_from)
            self.turns = self.turns[: self.turns.index(last) + 1] if last in self.turns else []
            self._said_in = [turn for turn in self._said_in if turn in self.turns]
            self._goes_on_from = ""
        self._open = LoggedTurn(id, self._kind)
        self.turns.append(self._open)

    def _task_complete(self, message: Mapping[str, Any], id: str) -> None:
        self._open = None

    def _turn_aborted(self, message: Mapping[str, Any], id: str) -> None:
        self._open = None

    def _over(self, turn: LoggedTurn, status: str) -> None:
        turn.status = status
        if status != "failed":
            turn.fault = ""
        rest = "interrupted" if status == "interrupted" else "failed"
        for call_id, call in turn.calls.items():
            if call[1] == "in_progress" and call_id not in self._processes:
                call[1] = "declined" if call_id in turn.asked else rest
        turn.asked.clear()

    def _error(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and id == self._open.id:
            self._open.fault = message["message"]

    def _thread_rolled_back(self, message: Mapping[str, Any], id: str) -> None:
        """Words go, the last ones first; a turn of which some went is not told of any more."""
        self._goes_on_from = ""
        for _ in range(message["num_turns"]):
            turn = self._said_in.pop() if self._said_in else None
            if turn in self.turns:
                del self.turns[self.turns.index(turn) :]

    # ── what is said ──────────────────────────────────────────────────────────────────────────

    def _token_count(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and (response := message.get("response_id")):
            self._ended_with[response] = self._open

    def _user_message(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and message.get("kind") in (None, "plain"):
            self._open.said.append(message["message"])
            self._said_in.append(self._open)

    def _agent_message(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and message["message"] != COMPACTED_MESSAGE:
            self._open.shown.append(("message", message["message"]))

    def _agent_reasoning(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None:
            self._open.thoughts.append(message["text"])

    _agent_reasoning_raw_content = _agent_reasoning

    def _item_completed(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and message["item"]["type"] == "Plan":
            self._open.shown.append(("plan", message["item"]["text"]))

    def _context_compaction(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None and message["phase"] == "done":
            self._open.shown.append(("compaction",))

    def _entered_review_mode(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None:
            self._open.shown.append(("EnteredReview",))

    def _exited_review_mode(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None:
            self._open.shown.append(("ExitedReview",))

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def _begins(self, call_id: str, *told: Any) -> None:
        """A call begins, unless it had: what was asked about goes on as it was told last."""
        turn = self._open
        if turn is None:
            return
        known = turn.calls.get(call_id)
        if known is None or known[1] != "in_progress" or known[0] != told[0]:
            turn.calls[call_id] = [told[0], "in_progress", *told[1:]]

    def _asks(self, message: Mapping[str, Any]) -> bool:
        """Takes a request of the session's own."""
        own = message.get("session_id") in (None, self._session)
        if own and self._open is not None:
            self._open.asked.add(_call_id(message))
        return own

    def _exec_approval_request(self, message: Mapping[str, Any], id: str) -> None:
        if self._asks(message):
            self._begins(message["call_id"], "command", None, None, tuple(message["command"]))

    def _apply_patch_approval_request(self, message: Mapping[str, Any], id: str) -> None:
        if self._asks(message):
            self._begins(message["call_id"], "patch", tuple(sorted(message["changes"])))

    def _dynamic_tool_call_request(self, message: Mapping[str, Any], id: str) -> None:
        if self._asks(message):
            self._begins(_call_id(message), "own tool", message["tool"])

    def _exec_command_begin(self, message: Mapping[str, Any], id: str) -> None:
        call_id = message["call_id"]
        self._begins(call_id, "command", None, None, tuple(message["command"]))
        if self._open is not None:
            self._open.asked.discard(call_id)
            self._open.calls[call_id][4] = tuple(message["command"])
            if message.get("process_id") is not None:
                self._processes[call_id] = self._open

    def _exec_command_end(self, message: Mapping[str, Any], id: str) -> None:
        call_id = message["call_id"]
        turn = self._processes.pop(call_id, self._open)
        call = None if turn is None else turn.calls.get(call_id)
        if call is not None and call[1] == "in_progress":
            output = message["aggregated_output"] or message["stdout"] + message["stderr"]
            code = message["exit_code"]
            call[1:4] = ["completed" if code == 0 else "failed", code, output or None]

    def _patch_apply_begin(self, message: Mapping[str, Any], id: str) -> None:
        self._begins(message["call_id"], "patch", tuple(sorted(message["changes"])))
        if self._open is not None:
            self._open.asked.discard(message["call_id"])

    def _patch_apply_end(self, message: Mapping[str, Any], id: str) -> None:
        self._ends("patch", message["call_id"], message["success"])

    def _mcp_tool_call_begin(self, message: Mapping[str, Any], id: str) -> None:
        asked = message["invocation"]
        self._begins(message["call_id"], "tool", asked["server"], asked["tool"])

    def _mcp_tool_call_end(self, message: Mapping[str, Any], id: str) -> None:
        given = message["result"]
        given = given.get("Ok") if isinstance(given, dict) and given.keys() <= {"Ok", "Err"} else given
        self._ends("tool", message["call_id"], isinstance(given, dict) and not given.get("isError"))

    def _sub_agent_tool_call_begin(self, message: Mapping[str, Any], id: str) -> None:
        self._begins(message["call_id"], "agents", "spawn", message["invocation"]["prompt"], ())

    def _sub_agent_tool_call_end(self, message: Mapping[str, Any], id: str) -> None:
        self._ends("agents", message["call_id"], "Err" not in message["result"])

    def _dynamic_tool_call_response(self, message: Mapping[str, Any], id: str) -> None:
        if self._open is not None:
            self._open.asked.discard(message["call_id"])
        self._ends("own tool", message["call_id"], message["success"])

    def _ends(self, kind: str, call_id: str, done: object) -> None:
        call = None if self._open is None else self._open.calls.get(call_id)
        if call is not None and call[:2] == [kind, "in_progress"]:
            call[1] = "completed" if done else "failed"

    def _settled(self, turn: LoggedTurn, call_id: str, decision: str) -> None:
        """A decision of a person, or of a timer; a refused call does not begin."""
        if call_id not in turn.asked:
            return
        turn.asked.discard(call_id)
        call = turn.calls.get(call_id)
        allows = decision.startswith(("approved", "amended"))
        if call is not None and call[0] in ("command", "patch") and not allows and call[1] == "in_progress":
            call[1] = "declined"

    def _item(self, turn: LoggedTurn, item: Mapping[str, Any]) -> None:
        """Calls about agents, of which the conversation's items alone tell."""
        call_id, name = item.get("call_id"), item.get("name")
        if item.get("type") == "function_call" and name in ABOUT_AGENTS:
            asked = _parsed(item["arguments"])
            kind = ABOUT_AGENTS[name]
            if kind == "send_input" and asked.get("interrupt") is True:
                kind = "interrupt"
            told = ("agents", kind, asked.get("prompt"), ()) if kind else ("own tool", name)
            turn.calls[str(call_id)] = [told[0], "in_progress", *told[1:]]
        elif item.get("type") == "function_call_output" and (call := turn.calls.get(str(call_id))):
            if call[0] not in ("agents", "own tool") or call[1] != "in_progress":
                return
            output = item.get("output")
            result = _parsed(output if isinstance(output, str) else _text(output))
            call[1] = "completed" if result else "failed"
            if call[0] == "agents":
                call[4] = tuple(sorted(set(_sessions(call[2], result))))


def _simple(status: str) -> str:
    """The status of a tool that knows no refusal, and no interruption."""
    return "failed" if status in ("declined", "interrupted") else str(status)


def _call_id(message: Mapping[str, Any]) -> str:
    """The call of a request; that of a client's tool is spelt otherwise."""
    return str(message.get("call_id", message.get("callId")))


def _text(parts: Any) -> str:
    return "\n".join(str(part.get("text") or "") for part in parts or ())


def _parsed(text: Any) -> Mapping[str, Any]:
    """An object of JSON; empty for anything else."""
    try:
        found = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _sessions(kind: str, result: Mapping[str, Any]) -> Sequence[str]:
    """The agents that a result tells of."""
    rows: Iterable[Mapping[str, Any]] = {
        "wait": result.get("ready"),
        "list": result.get("sessions"),
    }.get(kind) or ([result] if kind not in ("wait", "list") else ())
    return [row["session_id"] for row in rows if isinstance(row.get("session_id"), str)]
