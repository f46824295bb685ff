"""The run that the demo shows: a root and its agents, a death, requests to people, a change of orders.

The agents' parts are the stub's (`stub.tree`). Here are the followers, one an agent, all in one loop, and
what the demo itself does when they see something.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.broker.broker import Broker
from orchestrator.core.birth import Birth
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.demo.machines import DemoWorker
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import Submission
from orchestrator.requests import ChoicesRequest, CommandRequest, PlanDecisionRequest
from orchestrator.requests.approvals import command_text
from orchestrator.views.event import Event
from orchestrator.views.tree import TreeReader
from orchestrator.wiring.deployment import Deployment

PROMPT = "Survey this repository with agents that ask me, and merge what they find into REPORT.md."
OWN_FOLDERS = " Each of them has a folder of its own."
"""Follows the prompt where that is so: the model then lets its agents write."""
WHOLE_S = 55.0
REST_S = 10.0
POLL_S = 0.05
THINK_S = 1.0
"""The demo waits this long before it answers an approval, so that it is seen to be open."""


class DemoFailed(Exception):
    """Something that the demo is to show did not hold; the message says what."""


class DemoView(Protocol):
    """The view of the demo's spectators."""

    def event(self, who: str, event: Event) -> None:
        """Shows an event of an agent."""

    def note(self, text: str, style: str = "") -> None:
        """Shows a note of the demo."""

    async def draw(self, reader: TreeReader) -> None:
        """Keeps the picture of the tree up to date until it is cancelled."""

    async def draw_last(self, reader: TreeReader) -> None:
        """Draws the picture that stays."""


@dataclass(slots=True)
class Role:
    """An agent, as far as the spectators know."""

    number: int
    session: SessionId
    label: str
    path: str
    origin: str = ""
    redirected: bool = False
    """Its turn was aborted on the way."""

    @property
    def who(self) -> str:
        return f"{self.number} {self.label}"

    @property
    def generation(self) -> int:
        """1 for the root's own agents."""
        return self.path.count("/")


@dataclass(slots=True)
class Story:
    """The record of the demo's run, for the summary."""

    roles: dict[int, Role] = field(default_factory=dict)
    commands: int = 0
    in_doubt: int = 0
    killed: str = ""
    killed_at: float = 0.0
    lost: dict[int, int] = field(default_factory=dict)
    """Agents whose worker was killed, with their epoch then."""
    resumed: dict[int, float] = field(default_factory=dict)
    """Lost agents that another worker went on with, after so many seconds."""
    allowed: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    """Questions of agents."""
    planned: list[str] = field(default_factory=list)
    """Titles of plans that were approved."""
    finished: bool = False

    @property
    def root(self) -> SessionId:
        return self.roles[0].session

    @property
    def surveyors(self) -> list[Role]:
        """The agents that the root made for the repository's folders."""
        return [role for role in self.roles.values() if role.generation == 1 and role.label not in PARTS]


class Play:
    """A run of the demo."""

    def __init__(self, opened: Deployment, workers: Sequence[DemoWorker], view: DemoView) -> None:
        ports = ClientPorts(opened.broker, opened.texts, secrets.token_bytes)
        self._client = Client(ports, f"demo-{os.getpid()}", "the demo")
        self._broker: Broker = opened.broker
        self._workers = workers
        self._view = view
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None]
        self._sent = 0
        self.story = Story()

    async def run(self, birth: Birth, prompt: str = PROMPT) -> Story:
        """Runs from the first submission until all sessions of the tree have come to rest."""
        self._over = asyncio.get_running_loop().create_future()
        session = await self._client.create(birth)
        self._meet(Role(0, session, "root", "0"))
        reader = TreeReader(self._broker, TreeId(session))
        self._start(self._view.draw(reader))
        await self._submit(ops.UserInput(items=(TextInput(text=prompt),)))
        try:
            await asyncio.wait_for(asyncio.shield(self._over), WHOLE_S)
        except TimeoutError:
            raise DemoFailed(f"the tree was not finished after {WHOLE_S:.0f} s") from None
        finally:
            await self._at_rest()
            await self._stop()
            await self._view.draw_last(reader)
        return self.story

    # ── spectators ────────────────────────────────────────────────────────────────────────────

    def _meet(self, role: Role) -> None:
        if role.number not in self.story.roles:
            self.story.roles[role.number] = role
            self._start(self._follow(role))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    async def _stop(self) -> None:
        while self._tasks:
            for task in self._tasks:
                # Python 3.11 may forget a cancellation that meets the end of a wait (bpo-37658).
                task.cancel()
            await asyncio.wait(self._tasks, timeout=POLL_S)

    async def _follow(self, role: Role) -> None:
        async for event in self._client.follow(role.session):
            await self._tell_takeover(role)
            if role.number == 0 or event.kind is not ev.SubagentLifecycle:
                # What the root does not see of its tree, its agents' own queues only repeat.
                self._view.event(role.who, event)
            await self._act(role, event)

    async def _act(self, role: Role, event: Event) -> None:
        """The demo's cues."""
        match event.told:
            case ev.SubagentLifecycle(event=LifecycleChange.CREATED, subagent=SubagentSummary() as agent) if (
                role.number == 0
            ):
                self._meet(_role_of(agent))
            case ev.ExecCommandBegin():
                self.story.commands += 1
                await self._kill_holder_of(role)
            case ev.ExecCommandEnd(exit_code=-1):
                self.story.in_doubt += 1
            case ev.ExecApprovalRequest() if role.number == 0:
                self._start(self._allow(event))
            case ev.AskUserQuestionRequest() if role.number == 0:
                self._start(self._answer(event))
            case ev.PlanApprovalRequest() if role.number == 0:
                self._start(self._approve(event))
            case ev.TurnAborted():
                role.redirected = True
            case ev.TaskComplete(last_agent_message=answer) if role.number == 0 and not self._over.done():
                self.story.finished = bool(answer)
                self._over.set_result(None)
            case _:
                pass

    async def _submit(self, op: ops.Op) -> None:
        self._sent += 1
        await self._client.submit(self.story.root, Submission(SubmissionId(f"demo-{self._sent}"), op))

    # ── requests to people ────────────────────────────────────────────────────────────────────

    def _asker(self, event: Event) -> str:
        return self.story.roles[event.msg.get("agent_id", 0)].who

    async def _answer(self, event: Event) -> None:
        """Answers a question at the root, by its first option."""
        who, request = self._asker(event), ChoicesRequest(event.msg)
        question = request.questions[0]
        asked, choice = question.question, question.labels[0]
        self._view.note(f"? agent {who} asks: {asked}", "bold yellow")
        await asyncio.sleep(THINK_S)
        await self._submit(request.replied({question.name: [choice]}))
        self.story.answered.append(asked)
        self._view.note(f"✓ agent {who} was told: {choice}", "bold green")

    async def _approve(self, event: Event) -> None:
        """Approves an agent's plan at the root."""
        who, request = self._asker(event), PlanDecisionRequest(event.msg)
        title = request.subject
        self._view.note(f"? agent {who} proposes a plan: {title}", "bold yellow")
        await asyncio.sleep(THINK_S)
        await self._submit(request.decided(ReviewDecision.APPROVED))
        self.story.planned.append(title)
        self._view.note(f"✓ the plan of agent {who} was approved", "bold green")

    async def _allow(self, event: Event) -> None:
        """Answers at the root, for every agent that asks for permission."""
        who, request = self._asker(event), CommandRequest(event.msg)
        command = command_text(request.command)
        self._view.note(f"? agent {who} asks to run: {command}", "bold yellow")
        await asyncio.sleep(THINK_S)
        await self._submit(request.decided(ReviewDecision.APPROVED))
        self.story.allowed.append(command)
        self._view.note(f"✓ allowed for agent {who}, at the root", "bold green")

    # ── the death ─────────────────────────────────────────────────────────────────────────────

    async def _kill_holder_of(self, role: Role) -> None:
        """Once: when an agent of the second generation (or any, where there is none) runs a command."""
        deep = any(other.generation > 1 for other in self.story.roles.values())
        if self.story.killed or not role.number or (role.generation < 2 and not self._last_chance(deep)):
            return
        head = await self._client.head(role.session)
        holder = self._process(head.holder if head else None)
        if holder is None or head is None:
            return
        name = head.holder
        await asyncio.to_thread(holder.kill)
        self.story.killed, self.story.killed_at = holder.named(), time.monotonic()
        for other in self.story.roles.values():
            found = await self._client.head(other.session)
            if found is not None and found.holder == name:
                self.story.lost[other.number] = found.epoch
        lost = ", ".join(self.story.roles[number].who for number in sorted(self.story.lost))
        whole = ", and all that ran there" if holder.machine else ""
        self._view.note(f"✗ {holder.named()}, which held {lost}: killed with SIGKILL{whole}", "bold red")

    def _last_chance(self, deep: bool) -> bool:
        """Whether no second generation is to be expected: a folder's surveyor would make one."""
        return not deep and not self.story.surveyors

    def _process(self, holder: str | None) -> DemoWorker | None:
        return next(
            (worker for worker in self._workers if holder and f"-{worker.process.pid}-" in holder), None
        )

    async def _tell_takeover(self, role: Role) -> None:
        """An event of a later claim is the other worker's; one of an earlier claim was still on its way."""
        epoch = self.story.lost.get(role.number)
        if epoch is None or role.number in self.story.resumed:
            return
        head = await self._client.head(role.session)
        if head is None or head.epoch == epoch:
            return
        after = time.monotonic() - self.story.killed_at
        self.story.resumed[role.number] = after
        holder = self._process(head.holder)
        took = holder.named() if holder else "the other worker"
        self._view.note(f"↺ {took} took over agent {role.who} after {after:.1f} s", "bold green")

    async def _at_rest(self) -> None:
        """Files and digests are written when a session has come to rest, a moment after its last event."""
        busy = list(self.story.roles.values())

        async def parked() -> bool:
            while busy:
                head = await self._client.head(busy[0].session)
                if head is not None and not head.parked:
                    return False
                # A worker that found nothing left to do has made no event.
                await self._tell_takeover(busy.pop(0))
            return True

        if not await self._client.until([role.session for role in busy], parked, REST_S):
            self._view.note(f"agent {busy[0].who} has not come to rest", "bold red")


PARTS = frozenset({"asker", "waiter", "failing", "historian"})
"""Agents that are there in every repository; the others survey its folders."""


def _role_of(agent: SubagentSummary) -> Role:
    label = agent.label or agent.origin
    return Role(agent.agent_id, SessionId(agent.session_id), label, agent.agent_path or "", agent.origin)
