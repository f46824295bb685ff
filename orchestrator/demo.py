"""`dendro demo` without its drawing: a tree of agents that outlives a worker, and the proof that it did.

First its stage (a clone, a home of its own, the model stub and two workers), then the run (followers of all
agents, a worker that is killed, a request that is answered), last what the demo claims in the end and how
each claim is checked. Must not know how it is drawn.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.broker.broker import Broker
from orchestrator.core.birth import Birth
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, fold_tree, projected
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.principals import machine_user
from orchestrator.private_files import make_folder, open_file, write_file
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import Submission
from orchestrator.requests import ChoicesRequest, CommandRequest, PlanDecisionRequest
from orchestrator.requests.approvals import command_text
from orchestrator.rollouts.replay import fold_session
from orchestrator.rollouts.tree_log import differs, tree_log
from orchestrator.sandbox.git import run_git
from orchestrator.sandbox.probe import cannot_mount, probe
from orchestrator.sandbox.trusted_files import find_program
from orchestrator.settings import Settings
from orchestrator.views.event import Event
from orchestrator.views.tree import TreeReader
from orchestrator.wiring.deployment import Deployment
from orchestrator.wiring.open_deployment import Opened

# ── play ──────────────────────────────────────────────────────────────────────────────────────────
# The run that the demo shows: a root and its agents, a death, requests to people, a change of orders.
#
# The agents' parts are the stub's (`stub.scenario`). Here are the followers, one an agent, all in one
# loop, and what the demo itself does when they see something.


# ── machines ──────────────────────────────────────────────────────────────────────────────────────
# Machines that are processes of one computer, in mount and UTS namespaces of their own.
#
# Each has a host name, a machine id, and content of its own at paths that all of them have. They share
# the rest: the kernel, all other folders, and servers on loopback or on sockets.


KINDS = ("user", "mnt", "uts")
"""The namespaces that a machine has to itself, as /proc names them, in the order of entering."""
_OPTIONS = ("--user", "--map-root-user", "--mount", "--uts")
_BIRTH = """
set -e
name=$1 identity=$2
shift 2
mount --make-rprivate /
while [ "$1" != -- ]; do
    mount --bind "$1" "$2"
    shift 2
done
shift
for file in /etc/machine-id /var/lib/dbus/machine-id; do
    if [ -e "$file" ]; then mount --bind "$identity" "$file"; fi
done
hostname "$name"
exec "$@"
"""
_PAUSE_S = 0.005


@record
class LocalMachine:
    """A machine that is there for as long as a process of it runs."""

    name: str
    identity: Path
    """A file with its machine id."""
    folders: Sequence[tuple[Path, Path]]
    """Folders of its own, each with the path at which only this machine sees it."""

    def words(self, *command: str) -> list[str]:
        """The words of a command that makes the machine and runs in it, in one process."""
        pairs = (str(path) for pair in self.folders for path in pair)
        birth = ("/bin/sh", "-c", _BIRTH, "sh", self.name, str(self.identity), *pairs, "--")
        return [find_program("unshare") or "/usr/bin/unshare", *_OPTIONS, *birth, *command]

    def lacking(self) -> str:
        """The reason why no such machine can be had here; empty if one can."""
        try:
            done = subprocess.run(self.words("true"), cwd="/", capture_output=True, text=True, check=False)
        except OSError as error:
            return f"unshare: {error.strerror}"
        return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"


@record
class DemoWorker:
    """A worker, and the machine that it runs on."""

    process: subprocess.Popen[str]
    machine: str
    """Its name; empty for this machine itself."""

    def named(self) -> str:
        where = f" on machine {self.machine}" if self.machine else ""
        return f"worker {self.process.pid}{where}"

    def kill(self) -> None:
        """Ends it at once: with everything on its machine, where that is its own."""
        if self.machine:
            lose_machine(self.process.pid)
        self.process.kill()
        self.process.wait()


def machine_at(root: Path, name: str, folders: Sequence[tuple[str, Path]]) -> LocalMachine:
    """A machine whose own folders are made below `root`, each with the path that it has for the machine."""
    own = [(root / inside, path) for inside, path in folders]
    for folder, _ in own:
        make_folder(folder)
    identity = root / "machine-id"
    write_file(identity, f"{name:0<32}\n".encode())
    return LocalMachine(name, identity, own)


def lose_machine(pid: int, kept: Iterable[int] = ()) -> None:
    """Kills everything on the machine of a process at once, as a power failure does; its folders stay.

    Raises `ValueError` for this process's own machine.
    """
    namespace, spared = _namespace(pid), frozenset(kept)
    if namespace == _namespace(os.getpid()):
        raise ValueError(f"process {pid} is on no machine of its own")
    while running := [one for one in _in_namespace(namespace) if one not in spared]:
        for one in running:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        # A zombie runs no more; its parent, perhaps the caller, has still to ask for its end.
        if all(_state(one) in "ZX" for one in running):
            return
        time.sleep(_PAUSE_S)


def _namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/uts").readlink()


def _in_namespace(namespace: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/uts").readlink() == namespace:
                found.append(int(entry.name))
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X"


# ── play ────────────────────────────────────────────────────────────


PROMPT = "Survey this repository with agents that ask me, and merge what they find into REPORT.md."
OWN_FOLDERS = " Each of them has a folder of its own."
"""Follows the prompt where that is so: the model then lets its agents write."""
WHOLE_S = 55.0
REST_S = 10.0
POLL_S = 0.05
WINDOW_LINE = re.compile(r"window at (http://\S+)/#c=(\S+)")
THINK_S = 1.0
"""The demo waits this long before it answers an approval, so that it is seen to be open."""
SEEN_THINK_S, SEEN_WHOLE_S = 8.0, 120.0
"""The same where people look on in the window: long enough to answer there."""
LOOK_S = 0.3


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

    def __init__(
        self, opened: Deployment, workers: Sequence[DemoWorker], view: DemoView, *, seen: bool = False
    ) -> None:
        """`seen`: people look on in the window, and may answer before the demo does."""
        ports = ClientPorts(opened.broker, opened.texts, secrets.token_bytes)
        self._client = Client(ports, f"demo-{os.getpid()}", "the demo", by=machine_user().sender("demo"))
        self._broker: Broker = opened.broker
        self._workers = workers
        self._view = view
        self._think_s, self._whole_s = (SEEN_THINK_S, SEEN_WHOLE_S) if seen else (THINK_S, WHOLE_S)
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
            await asyncio.wait_for(asyncio.shield(self._over), self._whole_s)
        except TimeoutError:
            raise DemoFailed(f"the tree was not finished after {self._whole_s:.0f} s") from None
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

    async def _is_left(self, event: Event, call_id: str) -> bool:
        """Waits for a while; whether nobody has answered by then."""
        asker, until = (
            self.story.roles[event.msg.get("agent_id", 0)].session,
            time.monotonic() + self._think_s,
        )
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, LOOK_S))
            if all(one.key != call_id for one in await self._broker.requests.approvals(asker)):
                self._view.note(f"✓ agent {self._asker(event)} was answered in the window", "bold green")
                return False
        return True

    async def _answer(self, event: Event) -> None:
        """Answers a question at the root, by its first option."""
        who, request = self._asker(event), ChoicesRequest(event.msg)
        question = request.questions[0]
        asked, choice = question.question, question.labels[0]
        self._view.note(f"? agent {who} asks: {asked}", "bold yellow")
        self.story.answered.append(asked)
        if not await self._is_left(event, request.call_id):
            return
        await self._submit(request.replied({question.name: [choice]}))
        self._view.note(f"✓ agent {who} was told: {choice}", "bold green")

    async def _approve(self, event: Event) -> None:
        """Approves an agent's plan at the root."""
        who, request = self._asker(event), PlanDecisionRequest(event.msg)
        title = request.subject
        self._view.note(f"? agent {who} proposes a plan: {title}", "bold yellow")
        self.story.planned.append(title)
        if not await self._is_left(event, request.call_id):
            return
        await self._submit(request.decided(ReviewDecision.APPROVED))
        self._view.note(f"✓ the plan of agent {who} was approved", "bold green")

    async def _allow(self, event: Event) -> None:
        """Answers at the root, for every agent that asks for permission."""
        who, request = self._asker(event), CommandRequest(event.msg)
        command = command_text(request.command)
        self._view.note(f"? agent {who} asks to run: {command}", "bold yellow")
        self.story.allowed.append(command)
        if not await self._is_left(event, request.call_id):
            return
        await self._submit(request.decided(ReviewDecision.APPROVED))
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


# ── proof ─────────────────────────────────────────────────────────────────────────────────────────
# The demo's claims at its end, and the check of each claim.


REPORT = "REPORT.md"
FEWEST = 6


@record
class Statement:
    """Something that was shown, or was not; `detail` says what is wrong."""

    text: str
    true: bool
    detail: str = ""


@record
class Shown:
    """A command that the demo runs as a person would, and what it said."""

    words: str
    text: str
    failed: bool


async def claims(found: Opened, story: Story, workspace: Path, shown: Sequence[Shown]) -> list[Statement]:
    """The demo's claims, checked against Redis, the clone, and the commands that were run behind the play."""
    tree = TreeId(story.root)
    registry = projected(await found.broker.trees.agents(tree))
    wrong = differs(fold_tree(await tree_log(found.broker, tree)), registry)
    return [
        Statement("the root finished", story.finished),
        _crowd(story, folders=_has_folders(workspace)),
        _ends(story, registry.agents),
        Statement("an agent asked for permission, and was answered at the root", bool(story.allowed)),
        Statement("an agent asked a question, and got its answer", bool(story.answered)),
        Statement("an agent had its plan approved before it began", bool(story.planned)),
        Statement(
            "a worker was killed, and another one went on with all that it held",
            bool(story.lost) and story.lost.keys() <= story.resumed.keys(),
        ),
        _report(story, workspace / REPORT),
        *([_merged(story, workspace, shown)] if shown else []),
        await _replays(found, story),
        Statement("the tree's log, folded, gives the registry", not wrong, wrong),
    ]


def _has_folders(workspace: Path) -> bool:
    return any(path for path in workspace.glob("[!.]*/*") if path.is_file())


def _crowd(story: Story, *, folders: bool) -> Statement:
    agents = [role for role in story.roles.values() if role.number]
    deep = max((role.generation for role in agents), default=0)
    forks = sum(role.origin == "fork" for role in agents)
    text = f"{counted(len(agents), 'agent')} worked, {counted(deep, 'generation')} of them, {forks} by a fork"
    enough = not folders or (len(agents) >= FEWEST and deep >= 2)
    return Statement(text, bool(agents and forks and enough))


def _ends(story: Story, agents: Mapping[int, Agent]) -> Statement:
    """Checks the ends: one agent fails, one is redirected, all the others end well."""
    wrong = [role.who for number, role in story.roles.items() if number and not _ended_well(role, agents)]
    text = "every agent came to its end: one failed, one was redirected, the others are done"
    return Statement(text, not wrong, ", ".join(wrong))


def _ended_well(role: Role, agents: Mapping[int, Agent]) -> bool:
    agent = agents.get(role.number)
    if agent is None:
        return False
    expected = ("failed",) if role.label == "failing" else ("idle", "ready")
    return agent.status in expected and role.redirected == (role.label == "waiter")


def _report(story: Story, report: Path) -> Statement:
    """The report has a chapter for each agent of the root."""
    text = report.read_text() if report.is_file() else ""
    own = [role for role in story.roles.values() if role.generation == 1]
    missing = [role.who for role in own if f"(agent {role.number})" not in text]
    return Statement(
        f"{REPORT} was written, with all that they reported", bool(text) and not missing, ", ".join(missing)
    )


def _merged(story: Story, workspace: Path, shown: Sequence[Shown]) -> Statement:
    """The notes that agents wrote in folders of their own are in the clone, and every pack is whole."""
    wrote = story.surveyors
    missing = [role.who for role in wrote if not (workspace / f"survey/{role.label}.md").is_file()]
    failed = [each.words for each in shown if each.failed]
    count = counted(len(wrote), "agent")
    text = f"what {count} wrote in folders of their own was merged, applied to the clone, and verified"
    return Statement(text, not missing and not failed, ", ".join([*missing, *failed]))


async def _replays(found: Opened, story: Story) -> Statement:
    """Replays every session of the tree, as `dendro replay` does."""
    different = []
    for role in story.roles.values():
        head = await found.broker.logs.head(role.session)
        if head is None or not (await fold_session(found, head, None)).matches:
            different.append(role.who)
    text = f"a replay of each of the {len(story.roles)} logs gives the live state"
    return Statement(text, not different, ", ".join(different))


# ── stage ─────────────────────────────────────────────────────────────────────────────────────────
# The demo's environment: a clone, a home of its own, a model stub, and two machines with a worker each.


START_S = 20.0
CLONE_S = 120.0
MACHINES = ("north", "south")
WORKSPACES = "workspaces"
SMALL_PROJECT = {
    "README.md": "# A small project\n\nTODO: say what it is for.\n",
    "hello/main.py": "from hello.words import GREETING\n\nprint(GREETING)\n",
    "hello/words.py": 'GREETING = "hello"\n',
    "tests/test_words.py": "from hello.words import GREETING\n\n\ndef test_greets():\n    assert GREETING\n",
}


@record
class Stage:
    """The folder in which the demo runs, and the command line by which its processes start."""

    folder: Path
    outer: Settings
    dendro: Sequence[str]
    """The command line of `dendro`."""

    @property
    def workspace(self) -> Path:
        return self.folder / "checkout"

    def run(self, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a `dendro` command as a person would, to be shown."""
        return subprocess.run(
            [*self.dendro, *words], env=environ, cwd=self.workspace, capture_output=True, text=True
        )


def check_by_example(stage: Stage, environ: dict[str, str], example: Path, bundle: str) -> Shown:
    """Checks a bundle by the checker for strangers, which has nothing of Dendro's."""
    done = subprocess.run(
        [sys.executable, "-I", str(example), bundle],
        env=environ,
        cwd=stage.workspace,
        capture_output=True,
        text=True,
    )
    told = f"python examples/{example.name} {bundle}"
    return Shown(told, done.stdout + done.stderr, done.returncode != 0)


@record
class Site:
    """The machines that the demo can have here, and the folders that its agents can have."""

    machines: tuple[LocalMachine, ...] = ()
    """None: both workers run on this machine."""
    lacking: str = ""
    """The reason why there are none."""
    shared: str = ""
    """The reason why all agents work in one folder; empty if each has its own."""


def site(stage: Stage) -> Site:
    """Two machines with folders of their own, or what this computer has of that."""
    root = stage.folder / WORKSPACES
    make_folder(root)
    shared = cannot_mount(probe(), stage.outer.sandbox.mechanism)
    made = tuple(machine_at(stage.folder / name, name, [(WORKSPACES, root)]) for name in MACHINES)
    lacking = next((why for machine in made if (why := machine.lacking())), "")
    return Site(() if lacking else made, lacking, shared)


def clone(stage: Stage, around: Path) -> str:
    """Clones the repository around a folder, and answers where that is.

    Where there is none, it makes a small one of its own and answers nothing.
    """
    made = (stage.folder,)
    if source := run_git(around, "rev-parse", "--show-toplevel").text:
        cloning = ("clone", "--quiet", "--no-hardlinks", source, str(stage.workspace))
        done = run_git(stage.folder, *cloning, writable=made, allow="file", seconds=CLONE_S)
        if done.code == 0 and any(stage.workspace.glob("[!.]*")):
            return source
    shutil.rmtree(stage.workspace, ignore_errors=True)
    stage.workspace.mkdir()
    for name, text in SMALL_PROJECT.items():
        path = stage.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        named = ("-c", "user.name=Dendro", "-c", "user.email=dendro@localhost")
        done = run_git(stage.workspace, *named, *words, writable=made)
        if done.code:
            raise DemoFailed(f"git {words[0]} failed: {done.why}")
    return ""


def environ(stage: Stage, base_url: str) -> dict[str, str]:
    """A home of its own: neither the user's sessions nor the user's settings are touched."""
    kept = {name: value for name, value in stage.outer.host.environ.items() if not name.startswith("DENDRO_")}
    return {
        **kept,
        "DENDRO_HOME": str(stage.folder / "home"),
        "DENDRO_UPKEEP_ARCHIVE_URL": (stage.folder / "archive").as_uri(),
        "DENDRO_WORKSPACE_ROOT": str(stage.folder / WORKSPACES),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "the stub needs none",
    }


@contextmanager
def _process(
    words: list[str],
    environ: dict[str, str],
    stage: Stage,
    stdout: int = subprocess.DEVNULL,
    machine: LocalMachine | None = None,
) -> Iterator[subprocess.Popen[str]]:
    log = os.fdopen(open_file(stage.folder / f"{words[0]}.log", os.O_WRONLY | os.O_APPEND), "a")
    words = [*stage.dendro, *words]
    process = subprocess.Popen(
        words if machine is None else machine.words(*words),
        env=environ,
        cwd=stage.workspace,
        stderr=log,
        text=True,
        start_new_session=True,
        stdout=stdout,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@contextmanager
def stub(stage: Stage) -> Iterator[str]:
    words = ["model-stub", "--behaviour", "tree", "--think-ms", "250", "--delta-delay-ms", "40"]
    environment = environ(stage, "http://127.0.0.1:9/v1")
    with _process(words, environment, stage, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        if not base_url.startswith("http"):
            raise DemoFailed(f"the model stub did not start: {base_url or 'it said nothing'}")
        yield base_url


@contextmanager
def worker(
    environ: dict[str, str], stage: Stage, machine: LocalMachine | None = None
) -> Iterator[DemoWorker]:
    with _process(["worker"], environ, stage, machine=machine) as process:
        yield DemoWorker(process, machine.name if machine else "")


@contextmanager
def window(environ: dict[str, str], stage: Stage) -> Iterator[tuple[str, str]]:
    """`dendro window` beside the demo's workers: its address, and the code that signs in once."""
    words = ["window", "--no-worker", "--listen", "http://127.0.0.1:0"]
    with _process(words, environ, stage) as process:
        until = time.monotonic() + START_S
        while not (said := WINDOW_LINE.search((stage.folder / "window.log").read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise DemoFailed(
                    "the window did not start; its log is window.log in the folder that --keep keeps"
                )
            time.sleep(POLL_S)
        yield said[1], said[2]


async def both_alive(opened: Deployment, workers: Sequence[DemoWorker]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            alive = {state.worker for state in await opened.broker.claims.workers()}
            if all(any(f"-{worker.process.pid}-" in name for name in alive) for worker in workers):
                return
            for worker in workers:
                if worker.process.poll() is not None:
                    raise DemoFailed(f"a worker ended at its start with {worker.process.returncode}")
            await asyncio.sleep(0.05)
