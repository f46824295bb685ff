"""A session driven in domain words: what a worker does around the core, without one.

`Session` decides commands and folds what they lead to, under real numbers and through the
stored form of each entry, as a commit does. It owns a clock that only moves when told.
Tests say what happens and read what was seen; they name no entry and no command class
unless that is what they are about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import ApplyPatch, AwaitWork, Call, Exec, RunnableWork, timer_of
from orchestrator.core.calls.exec import Shown
from orchestrator.core.commit_parts import (
    RETRY_TIMER,
    Approval,
    Timer,
    approval_timer,
    wait_timer,
    watchdog_timer,
)
from orchestrator.core.context import is_context
from orchestrator.core.decide import advance, decide
from orchestrator.core.decide.draft import Decision, Draft
from orchestrator.core.entries import Entry, decode_entry, encode_entry
from orchestrator.core.evolve import evolve, fold
from orchestrator.core.history import Item, for_model, message_text, user_message
from orchestrator.core.outstanding import CloseCalls, EndChildren, Work, outstanding
from orchestrator.core.settings import Rules, SessionFacts, TurnSettings
from orchestrator.core.snapshot import digest
from orchestrator.core.state import State, Task
from orchestrator.protocol.codec import parse_submission
from orchestrator.protocol.commands import AddFile, UnknownCommand
from orchestrator.protocol.events import ExecCommandEnd, PatchApplyEnd
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.ops import Op
from orchestrator.protocol.scalars import Duration

NOON_MS = 1_758_362_400_000
WORKSPACE = "/repo"
SETTINGS: Mapping[str, Any] = {
    "cwd": WORKSPACE,
    "approval_policy": "on-request",
    "sandbox_policy": {"mode": "workspace-write"},
    "model": "gpt-5",
}
FACTS: Mapping[str, Any] = {
    "session_id": "01996720-4a00-7000-8000-000000000001",
    "tree_id": "01996720-4a00-7000-8000-000000000001",
    "rollout_path": "/data/rollout.jsonl",
}
PIECES: Mapping[Work, c.Command] = {CloseCalls(): c.CloseCalls(), EndChildren(): c.EndChildren()}
"""Commands for the work that a state owes of an end that takes several commits."""
USAGE: Mapping[str, int] = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
RULES = Rules(parallel_safe=frozenset({"view_image", "spawn_subagent"}), repeatable=frozenset({"view_image"}))
"""The rules of a worker, as the built-in tools state them."""


_TOLD = re.compile(r"<(cwd|approval_policy|sandbox_mode)>(.*?)</\1>")


def op(type: str, /, **fields: Any) -> Op:
    """An op as a client's line makes it."""
    return parse_submission(orjson.dumps({"id": "x", "op": {"type": type, **fields}})).op


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def assistant(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}


def function_call(call_id: str, name: str = "shell", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def a_command(*words: str, **judged: Any) -> Exec:
    """A command that nobody knows to be safe; `judged` says otherwise."""
    argv = words or ("make", "test")
    cmd = " ".join(argv)
    fields = {"cwd": WORKSPACE, "parsed_cmd": (UnknownCommand(cmd=cmd),), "key": cmd, **judged}
    return Exec(command=argv, **fields)


def a_patch(*paths: str, outside: Iterable[str] = ()) -> ApplyPatch:
    names = paths or (f"{WORKSPACE}/a.txt",)
    return ApplyPatch(
        patch="*** Begin Patch",
        cwd=WORKSPACE,
        changes={name: AddFile(content="one\n") for name in names},
        summary="Success. Updated the following files:\n" + "".join(f"A {name}\n" for name in names),
        record=tuple((name, None, "abc") for name in names),
        outside=tuple(outside),
        baselines={"set": dict.fromkeys(names), "drop": []},
    )


def sandboxed(call: Call) -> bool:
    """Whether the call, which runs or may be approved, is confined."""
    assert isinstance(call.work, RunnableWork)
    return call.work.sandboxed


def exec_end(call_id: str, exit_code: int = 0) -> ExecCommandEnd:
    """The event that closes a command's run, as the tool writes it."""
    return ExecCommandEnd(
        call_id=CallId(call_id),
        stdout="ok\n",
        stderr="",
        aggregated_output="ok\n",
        exit_code=exit_code,
        duration=Duration(secs=0, nanos=0),
        formatted_output="ok\n",
    )


def patch_end(call_id: str, success: bool = True) -> PatchApplyEnd:
    return PatchApplyEnd(call_id=CallId(call_id), stdout="", stderr="", success=success)


@dataclass(frozen=True, slots=True)
class Seen:
    """The visible effects of a command."""

    decision: Decision

    @property
    def entries(self) -> list[Entry]:
        return [encoded.entry for encoded in self.decision.entries]

    @property
    def events(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(entry.id, entry.payload) for entry in self.entries if entry.type == e.EVENT_MSG]

    @property
    def types(self) -> list[str]:
        return [message["type"] for _, message in self.events]

    def one(self, type: str) -> Mapping[str, Any]:
        """The only event of this type."""
        found = [message for _, message in self.events if message["type"] == type]
        assert len(found) == 1, f"{len(found)} events of type {type} among {self.types}"
        return found[0]

    def id_of(self, type: str) -> str:
        return next(id for id, message in self.events if message["type"] == type)

    def all(self, type: str) -> list[Mapping[str, Any]]:
        return [message for _, message in self.events if message["type"] == type]


@dataclass
class Session:
    """A session and the worker that holds it."""

    rules: Rules = RULES
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 1
    now_ms: int = NOON_MS
    state: State = field(default_factory=State)
    lines: list[bytes] = field(default_factory=list)
    """The rollout, as stored."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Large values that stand beside it."""
    seen: list[Seen] = field(default_factory=list)
    timers: dict[str, Timer] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    exports: int = 0
    told_by_test: bool = False
    """Whether a test itself wrote what the model was told first of where it works."""
    _ids: int = 0

    def __post_init__(self) -> None:
        settings = TurnSettings.of({**SETTINGS, **self.settings})
        facts = SessionFacts.of({**FACTS, **self.facts})
        self.record(e.fact(f.Configured(settings, facts)))

    # --- the log ---------------------------------------------------------------------

    @property
    def seq(self) -> int:
        return len(self.lines)

    def record(self, *entries: Entry) -> None:
        """Appends entries as a commit does: numbered, stored, folded."""
        for entry in entries:
            encoded = encode_entry(entry, self.now_ms, self.blobs)
            self.lines.append(encoded.line)
            self.state = evolve(self.state, encoded.entry, self.seq)

    def take(self, decision: Decision) -> None:
        """Appends a decision's entries as a commit does; its state is the one that their fold gives."""
        self.blobs |= decision.blobs
        for encoded in decision.entries:
            self.lines.append(encoded.line)
            self.state = evolve(self.state, encoded.entry, self.seq)
        assert decision.state == self.state

    def text_of(self, digest: str) -> str | None:
        data = self.blobs.get(digest)
        return None if data is None else data.decode()

    def replayed(self) -> State:
        """The state that a fold over the stored rollout gives."""
        return fold(State(), map(decode_entry, self.lines), 1)

    def happens(self, command: c.Command) -> Seen:
        """Decides a command at this moment, under this claim, and commits the decision."""
        decision = decide(self.state, command, c.Moment(self.now_ms, self.epoch, self.seq, self.rules))
        self.take(decision)
        self._upkeep(decision)
        self.seen.append(Seen(decision))
        return self.seen[-1]

    def _upkeep(self, decision: Decision) -> None:
        self._is_at_its_fixpoint()
        for id in decision.timers_clear:
            self.timers.pop(id, None)
        for timer in decision.timers_set:
            self.timers[timer.id] = timer
        for call_id in decision.approvals_close:
            self.approvals.pop(call_id, None)
        for opened in decision.approvals_open:
            self.approvals[opened.key] = opened
        self.exports += decision.export
        self._keeps_what_it_waits_for()

    def _keeps_what_it_waits_for(self) -> None:
        """Checks that each timer, and each request before people, is one that the session waits for."""
        task, tree = self.state.task, self.state.tree
        waits = {watchdog_timer(id): one.generation for id, one in tree.watchdogs.items()}
        asked: dict[str, int | None] = {}
        if task is not None:
            waits |= {RETRY_TIMER: task.wait} if task.wait else {}
            asked = {call.call_id: timer_of(call.work) for call in task.requests}
            asked |= {one.id: one.timer for one in task.elicitations if not one.decision}
            waits |= {approval_timer(id): timer for id, timer in asked.items() if timer is not None}
            waits |= {
                wait_timer(call.call_id): call.work.timer
                for call in task.calls.begun
                if isinstance(call.work, AwaitWork)
            }
        assert set(self.approvals) <= set(asked), "people are shown what nobody waits for"
        whole = task is None or not task.stopping
        assert not whole or set(self.approvals) == set(asked), "people are not shown all that is asked"
        for id, timer in self.timers.items():
            match id:
                case "budget":
                    assert tree.paused, "a timer of a budget that nobody waits for"
                case "folder":
                    assert self.state.workspace.unsaved is not None, "a timer of a folder that is stored"
                case "reap":
                    assert tree.ending_children, "a timer of agents that have all ended"
                case "reap-below":
                    pass
                case _:
                    assert waits.get(id) == timer.generation, f"timer {id} is nobody's"

    def _is_at_its_fixpoint(self) -> None:
        """Checks that the decision leaves nothing to follow from the state by itself."""
        moment = c.Moment(self.now_ms, self.epoch, self.seq, self.rules)
        draft = Draft(self.state, moment)
        advance(draft)
        assert draft.decision() == Draft(self.state, moment).decision()

    # --- what people do --------------------------------------------------------------

    def submit(self, op: Op, id: str = "", **fields: Any) -> Seen:
        """An op under `id` (a fresh one if none is given), seen with the whole log written."""
        self._ids += 1
        command = c.Submitted(SubmissionId(id or f"s{self._ids}"), op, **{"seq": self.seq, **fields})
        return self.happens(command)

    def say(self, words: str, id: str = "", **fields: Any) -> Seen:
        return self.submit(op("user_input", items=[text(words)], **fields), id)

    def interrupt(self) -> Seen:
        return self.submit(op("interrupt"))

    def compact(self, id: str = "") -> Seen:
        return self.submit(op("compact"), id)

    def shutdown(self, id: str = "bye") -> Seen:
        return self.submit(op("shutdown"), id)

    def decides(self, target: str, decision: Any, kind: str = "exec", **fields: Any) -> Seen:
        """Answers an approval under a call's id or a turn's."""
        return self.submit(op(f"{kind}_approval", id=target, decision=decision), **fields)

    # --- what the worker reports -----------------------------------------------------

    def begin(self) -> int:
        """The request that is owed goes out; its number."""
        self.happens(c.BeginRequest())
        self._knows_where_it_works()
        return self.request_n

    def _knows_where_it_works(self) -> None:
        """Checks that what the model was told last of where it works is so, as far as it was told."""
        task = self.state.task
        if self.told_by_test or task is None or task.request is None or task.request.purpose != "turn":
            return
        told: dict[str, str] = {}
        for one in map(message_text, filter(is_context, self.shown())):
            told |= dict(_TOLD.findall(one))
        mode = task.settings.sandbox_policy["mode"]
        force = {"cwd": task.settings.cwd, "approval_policy": task.settings.approval_policy}
        known = {name: value for name, value in {**force, "sandbox_mode": mode}.items() if name in told}
        assert told == known, "the model is told otherwise of where it works"

    def item(self, item: Mapping[str, Any], item_id: str = "", *, begun: bool = False) -> Seen:
        return self.happens(c.ItemCompleted(self.request_n, item, item_id, begun))

    def calls(self, *call_ids: str, name: str = "shell") -> None:
        """The model asks for calls."""
        for call_id in call_ids:
            self.item(function_call(call_id, name))

    def ends(self, response_id: str = "", usage: Mapping[str, Any] | None = USAGE, **fields: Any) -> Seen:
        """The response is complete."""
        n = self.request_n
        return self.happens(c.ResponseCompleted(n, response_id or f"resp-{n}", usage, **fields))

    def breaks(self, kind: Any = "stream", message: str = "connection reset", **fields: Any) -> Seen:
        return self.happens(c.ResponseBroken(self.request_n, kind, message, **fields))

    def answers(self, words: str, response_id: str = "") -> Seen:
        """A whole turn: the request goes out, a message comes back, nothing more is asked for."""
        self.begin()
        return self.answers_now(words, response_id)

    def answers_now(self, words: str, response_id: str = "") -> Seen:
        """The request that is in flight is answered with a message, and nothing more is asked for."""
        self.item(assistant(words))
        return self.ends(response_id)

    def asks_for(self, *call_ids: str, name: str = "shell") -> Seen:
        """A whole response that asks for calls."""
        self.begin()
        self.calls(*call_ids, name=name)
        return self.ends()

    def assessed(self, call_id: str, assessment: c.Assessment) -> Seen:
        return self.happens(c.CallAssessed(call_id, assessment))

    def runs(self, call_id: str, *words: str) -> Seen:
        """A safe command is assessed, and so it starts."""
        return self.assessed(call_id, a_command(*(words or ("ls",)), safe=True))

    def finishes(self, call_id: str, output: Any = "ok", **fields: Any) -> Seen:
        return self.happens(c.CallFinished(call_id, output, **fields))

    def stopped(self, **elapsed_s: float) -> Seen:
        """All that ran is proved to have ended."""
        return self.happens(c.Stopped(elapsed_s))

    def ends_all(self) -> int:
        """Brings all that ends in pieces to its end; returns the number of further pieces."""
        pieces = 0
        while (piece := next((PIECES[work] for work in self.owes() if work in PIECES), None)) is not None:
            self.happens(piece)
            pieces += 1
        return pieces

    def is_taken_over(self, shown: Mapping[str, Shown] | None = None, /, **judgements: str) -> Seen:
        """The worker dies; the next claim finds what it left, and what its commands had `shown`."""
        self.epoch += 1
        turns: dict[str, str] = {process.call_id: process.turn for process in self.state.processes.living}
        if (task := self.state.task) is not None:
            turns |= {call.call_id: task.id for call in task.running}
        by_turn = {(turns[call_id], call_id): one for call_id, one in (shown or {}).items()}
        return self.happens(c.TookOver(judgements, shown=by_turn))

    def fires(self, id: str, generation: int | None = None) -> Seen:
        """A timer's time comes."""
        timer = self.timers.pop(id, None)
        if generation is None:
            assert timer is not None, f"no timer {id}; set: {sorted(self.timers)}"
            self.now_ms = max(self.now_ms, timer.at_ms)
            generation = timer.generation
        return self.happens(c.TimerFired(id, generation))

    # --- what can be read ------------------------------------------------------------

    @property
    def task(self) -> Task:
        assert self.state.task is not None, "no task holds the session"
        return self.state.task

    @property
    def request_n(self) -> int:
        assert self.task.request is not None, "no request is in flight"
        return self.task.request.n

    def call(self, call_id: str) -> Call:
        call = self.task.call(call_id)
        assert call is not None, f"no call {call_id}"
        return call

    @property
    def status(self) -> str:
        return self.state.status

    @property
    def digest(self) -> str:
        return digest(self.state)

    def owes(self) -> tuple[Work, ...]:
        return outstanding(self.state, self.rules, self.epoch)

    @property
    def events(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [event for seen in self.seen for event in seen.events]

    @property
    def types(self) -> list[str]:
        """The types of all events so far."""
        return [message["type"] for _, message in self.events]

    def shown(self) -> list[Item]:
        """The conversation as the next request would carry it."""
        return for_model(self.state.conversation)

    def texts(self) -> list[str]:
        """The conversation in short: messages as they read, calls and outputs by id."""
        return [_short(item) for item in self.shown()]

    def output_of(self, call_id: str) -> Any:
        """The one output that the model reads for a call."""
        outputs = [
            item["output"]
            for item in self.shown()
            if item.get("call_id") == call_id and item["type"].endswith("_output")
        ]
        assert len(outputs) == 1, f"{len(outputs)} outputs of {call_id}"
        return outputs[0]


def _short(item: Item) -> str:
    match item.get("type"):
        case "message":
            return message_text(item)
        case "function_call" | "custom_tool_call" | "local_shell_call":
            return f"call {item.get('call_id')}"
        case "function_call_output" | "custom_tool_call_output":
            return f"output {item['call_id']}: {item['output']}"
        case kind:
            return str(kind)


__all__ = ["NOON_MS", "Seen", "Session", "assistant", "op", "text", "user_message"]
