"""A crash run's questions, plans, reviews, processes and servers: their model, and the people who take part.

As in `workload`, an answer of the model follows from its request alone. A word is one call: `ask` and
`input` put questions to the person, `propose` a plan; `serve` starts a process, `type` types to the newest
one; `permit` calls a server that asks the person. The people write down what they answered: the audit looks
for it in the output that the model reads.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.requests import call_id_of
from orchestrator.stub.answers import Call, Step, StubConversation, StubRequest
from orchestrator.views.event import Event
from tests.crash.people import Person
from tests.crash.workload import Ledger

WORDS = ("ask", "input", "propose", "exec", "slow", "serve type", "serve", "type", "permit", "permit")
SERVER = Path(__file__).with_name("gate_server.py")
TYPED = "typed"
"""The file, in the workspace, of the lines that processes have read."""
_RUNNING = re.compile(r"running with session ID (\d+)")
_OPTIONS = [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]
_PLAN = {"title": "Plan", "summary": "Do it.", "plan": {"plan": [{"step": "one", "status": "pending"}]}}


@dataclass
class FlowScript(Ledger):
    """The script of sessions that ask people."""

    name: str = "flows"
    _process: int = 1
    """The newest process that the request at hand tells of."""

    def step(self, conversation: StubConversation, request: StubRequest) -> Step:
        """As `Ledger` has it; plans and reviews count their calls anew, so ids have the errand's number."""
        number = int("".join(filter(str.isdigit, conversation.task.partition(":")[0])) or 0)
        told = _RUNNING.findall(orjson.dumps(request.body.get("input")).decode())
        self._process = int(told[-1]) if told else 1
        return super().step(replace(conversation, turn=1_000 * number + conversation.turn), request)

    def _word(self, word: str, session: str, turn: int) -> Step:
        asked = {"header": "Which", "question": "Which one?", "options": _OPTIONS}
        match word:
            case "ask":
                given = {"questions": [{**asked, "multiSelect": False}]}
                return Step(items=(Call("ask_user_question", given, f"c{turn}"),))
            case "input":
                given = {"questions": [{**asked, "id": "which"}]}
                return Step(items=(Call("request_user_input", given, f"c{turn}"),))
            case "propose":
                return Step(items=(Call("approve_plan", {"proposal": _PLAN}, f"c{turn}"),))
            case "serve":
                cmd = self._service(session, f"c{turn}")
                starts = {"cmd": cmd, "tty": True, "login": False, "yield_time_ms": 250}
                return Step(items=(Call("exec_command", starts, f"c{turn}"),))
            case "type":
                typing = {"session_id": self._process, "chars": f"{typed_by(session, f'c{turn}')}\n"}
                return Step(items=(Call("write_stdin", typing, f"c{turn}"),))
            case "permit":
                asked = {"session": session, "call": f"c{turn}"}
                return Step(items=(Call("mcp__gate__permit", asked, f"c{turn}"),))
            case _:
                return super()._word(word, session, turn)

    def _service(self, session: str, call_id: str) -> str:
        """A script that says what it reads; it leaves at some words, and where nobody types any more."""
        reads = f'echo "$line" >> {self.folder / TYPED} && echo "got $line"'
        leaves = 'case "$line" in *[05]) exit 3;; esac'
        loop = f"while read -r -t 3 line; do {reads}; {leaves}; done"
        return f"stty -echo; echo {session} {call_id} >> {self.path}; echo up; {loop}"


def typed_by(session: str, call_id: str) -> str:
    """The words that a call types."""
    return f"{session} {call_id}"


def config_of(ledger: Ledger) -> str:
    """The settings of the workers: the server that asks."""
    program = {"command": sys.executable, "args": ["-I", str(SERVER), str(ledger.path)]}
    lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in program.items()]
    return "\n".join(("[mcp_servers.gate]", *lines, ""))


@dataclass
class Asked(Person):
    """A person who plans, has work reviewed, runs commands, and answers what is asked."""

    told: dict[str, str] = field(default_factory=dict)
    """Call id → words of the person that its output has."""
    decisions: dict[str, str] = field(default_factory=dict)
    """A server's question → the person's decision."""

    async def errand(self) -> None:
        self._number += 1
        task = f"errand {self._number}: {' '.join(self.random.choices(WORDS, k=self.random.randint(1, 3)))}"
        match self.random.choice(("say", "say", "plan", "review", "run")):
            case "plan":
                await self.begin(ops.Plan.model_validate({"type": "plan", "plan_request": {"goal": task}}))
            case "review":
                request = {"prompt": f"errand {self._number}: exec slow", "user_facing_hint": "it"}
                await self.begin(ops.Review.model_validate({"type": "review", "review_request": request}))
            case "run":
                ran = f"sleep 0.1; echo {self._number}"
                await self.begin(ops.RunUserShellCommand(command=ran))
            case _:
                await self.ask(task)

    async def _react(self, event: Event) -> None:
        response: Any
        match event.type:
            case "ask_user_question_request":
                words = f"answer {len(self.acknowledged)}"
                response = {"type": "answered", "answers": {"Which": words}}
                await self._answer(event, "resolve_ask_user_question", response, words)
            case "request_user_input":
                words = f"answer {len(self.acknowledged)}"
                response = {"answers": {"which": {"answers": [words]}}}
                await self._answer(event, "user_input_answer", response, words)
            case "plan_approval_request":
                words = f"change {len(self.acknowledged)}"
                revised, approved = {"type": "revised", "feedback": words}, {"type": "approved"}
                response = self.random.choice((revised, approved, {"type": "rejected"}))
                decided = words if response is revised else str(response["type"])
                await self._answer(event, "resolve_plan_approval", response, decided)
            case "elicitation_request":
                words = self.decisions[event.msg["id"]] = self.random.choice(("accept", "decline", "cancel"))
                names = {"server_name": event.msg["server_name"], "request_id": event.msg["id"]}
                decision = {"type": "resolve_elicitation", **names, "decision": words}
                op = ops.ResolveElicitation.model_validate(decision)
                await self._submit(SubmissionId(f"answer-{len(self.acknowledged)}"), op)
            case _:
                await super()._react(event)

    async def _answer(self, event: Event, type: str, response: Any, words: str) -> None:
        call_id = call_id_of(event.msg)
        self.told[call_id] = words
        op = _OPS[type].model_validate({"type": type, "id": call_id, "response": response})
        await self._submit(SubmissionId(f"answer-{len(self.acknowledged)}"), op)


_OPS: dict[str, Any] = {
    "resolve_ask_user_question": ops.ResolveAskUserQuestion,
    "user_input_answer": ops.UserInputAnswer,
    "resolve_plan_approval": ops.ResolvePlanApproval,
}
