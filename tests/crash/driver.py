"""A crash run: sessions at work, workers killed at chosen points, and an account of it.

One worker stays alive all the time; the others are born to die. Sessions that a dead worker
held must be claimed by another within the lease and a little more, which is measured.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.broker.records import SessionHead
from orchestrator.core.birth import Birth
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.settings import SessionFacts, TreeRules, TurnSettings
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.stub import Pace, StubConfig, running
from orchestrator.wiring.deployment import Deployment, deployment
from tests.crash import tree_script
from tests.crash.audit import audit
from tests.crash.flows import Asked, FlowScript, config_of
from tests.crash.fork_server import ForkServer, WorkerProcess
from tests.crash.people import CAST, Person, watching
from tests.crash.points import OF_FLOWS, Point, choose
from tests.crash.tree_audit import standing, tree_as_of_now
from tests.crash.tree_script import TreeScript
from tests.crash.workload import Ledger, settings_environ
from tests.servers import RedisServer, start_redis

POOL = "crash"
PATIENCE_S = 6.0
"""A worker that has not reached its point by then is killed from outside, wherever it is."""
PATIENCE_OF_FLOWS_S = 20.0
"""The same for the points of processes and servers, which few calls pass."""
TAKEOVER_S = 10.0
POLL_S = 0.05
MODERATION_S = 120.0
REST_S = 60.0
SESSIONS, TREES = 10, 4
MOST_TOLD = 5
"""Violations of one moment: what is wrong stays wrong, and is found again after the next kill."""
ROOM = TreeRules(slots=6, spawned=5_000, budgets={"tokens": 10**12, "requests": 10**9})
"""Slots are scarce, as for users; budgets are kept, and never used up."""

_SCRIPTS = {(False, False): Ledger, (True, False): TreeScript, (False, True): FlowScript}
"""The model of a run, by whether it has trees and flows."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run."""

    kills: int = 200
    seed: int = 0
    victims: int = 3
    """Workers that are waiting to be killed, at any time."""
    trees: bool = False
    """Whether the sessions make agents."""
    flows: bool = False
    """Whether their agents ask people, and people plan, have work reviewed and run commands."""


@dataclass(frozen=True, slots=True)
class Play:
    """Parameters of a harness."""

    seed: int
    sessions: int
    trees: bool = False
    flows: bool = False


@dataclass(frozen=True, slots=True)
class House:
    """Where a harness stands: an empty folder, a server, the URL by which the deployment finds it."""

    folder: Path
    redis: RedisServer
    url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    """More settings of the workers and of the deployment."""


@dataclass
class Account:
    """Counts and violations of a run."""

    seed: int
    points: Counter[str] = field(default_factory=Counter)
    takeovers_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    tasks: int = 0
    commands: int = 0
    in_doubt: int = 0
    quarantined: int = 0
    entries: int = 0
    agents: int = 0
    processes: int = 0
    elicitations: int = 0
    wall_s: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.points.values())


@dataclass
class CrashHarness:
    """A server, a stub, a fork_server, and sessions with their people."""

    redis: RedisServer
    deployment: Deployment
    fork_server: ForkServer
    ledger: Ledger
    people: list[Person]

    async def sessions(self) -> list[SessionId]:
        """Everybody's session, and those of the agents below it."""
        broker = self.deployment.broker
        found: list[SessionId] = []
        for person in self.people:
            found.append(person.session)
            fields = await broker.trees.agents(TreeId(person.session))
            found += [SessionId(fields[name].decode()) for name in fields if name.startswith("s:")]
        return list(dict.fromkeys(found))

    async def held(self) -> list[SessionId]:
        """The sessions that somebody has a claim to."""
        broker = self.deployment.broker
        found: list[SessionId] = []
        for shard in range(broker.keys.shards):
            members: Any = await broker.command("ZRANGE", broker.keys.leases(shard, POOL), 0, -1)
            found += [SessionId(member.decode()) for member in members]
        return found


@asynccontextmanager
async def crash_harness(
    seed: int,
    config: dict[str, str] | None = None,
    sessions: int = 10,
    trees: bool = False,
    flows: bool = False,
) -> AsyncIterator[CrashHarness]:
    """Everything but workers, on a server of its own."""
    durable = {"appendonly": "yes", "appendfsync": "everysec"}
    with tempfile.TemporaryDirectory(prefix="dendro-crash-") as folder:
        place = Path(folder)
        with start_redis(place / "redis", config={**durable, **(config or {})}) as redis:
            house = House(place, redis, redis.url)
            async with harness_on(house, Play(seed, sessions, trees, flows)) as harness:
                yield harness


@asynccontextmanager
async def harness_on(house: House, play: Play) -> AsyncIterator[CrashHarness]:
    """Everything but workers, on the servers of a house."""
    folder, workspace, home = house.folder, house.folder / "workspace", house.folder / "home"
    workspace.mkdir()
    home.mkdir()
    ledger = _SCRIPTS[play.trees, play.flows](workspace)
    if play.flows:
        own = home / "dendro"
        own.mkdir()
        (own / "dendro.toml").write_text(config_of(ledger))
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(running(StubConfig(ledger, pace=Pace(delta_delay_ms=4))))
        environ = {**settings_environ(home, house.url, stub.base_url, POOL), **house.environ}
        settings = load_settings(SettingsSources(workspace, environ))
        opened = await stack.enter_async_context(deployment(settings, house.url))
        fork_server = await stack.enter_async_context(
            ForkServer.open(workspace, environ, folder / "workers.log", servers=play.flows)
        )
        people = [await _person(opened, folder, play, number) for number in range(play.sessions)]
        await stack.enter_async_context(_nobody_left_at_work())
        yield CrashHarness(house.redis, opened, fork_server, ledger, people)


@asynccontextmanager
async def _nobody_left_at_work() -> AsyncIterator[None]:
    """Ends the tasks that a failure left inside of it.

    They would go on when the connections are closed, and open new ones that nobody closes:
    the warning of it lands in whatever test runs when the garbage is collected.
    """
    before = asyncio.all_tasks()
    try:
        yield
    finally:
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _person(opened: Deployment, folder: Path, play: Play, number: int) -> Person:
    random, character, trees = Random(f"{play.seed}/{number}"), CAST[number % len(CAST)], play.trees
    if play.flows:
        # Nobody interrupts: every request is to be settled by words.
        character = replace(character, interrupts=0.0)
    ports = ClientPorts(opened.broker, opened.texts, secrets.token_bytes)
    client = Client(ports, f"person-{number}", f"person {number}")
    at_ms = int(time.time() * 1000)
    session = new_session_id(at_ms, number, secrets.randbits(62))
    path = folder / "sessions" / "2026" / "01" / "01" / f"rollout-{session}.jsonl"
    facts = SessionFacts(
        session,
        TreeId(session),
        AgentId(0),
        POOL,
        rollout_path=str(path),
        agents=trees,
        tree_rules=ROOM if trees else TreeRules(),
        unified_exec=play.flows,
    )
    cwd = str(folder / "workspace")
    settings = TurnSettings(cwd, character.policy, {"mode": character.mode}, "gpt-5")
    await client.create(Birth(facts, settings, "0", at_ms))
    if trees:
        return Person(
            client, session, character, random, errands=tree_script.errand, last_words="tree 0: gather exec"
        )
    return (Asked if play.flows else Person)(client, session, character, random)


async def crash(options: Options) -> Account:
    """Executes a run and audits it."""
    account, began = Account(options.seed), time.monotonic()
    sessions = TREES if options.trees else SESSIONS
    made = crash_harness(options.seed, sessions=sessions, trees=options.trees, flows=options.flows)
    async with made as harness:
        await harness.fork_server.start()
        enough = asyncio.Event()
        async with watching(harness.people) as watchers:
            lives = [asyncio.create_task(person.live(enough)) for person in harness.people]
            await _first_to_fail(_kill_all(harness, options, account), *watchers, *lives)
            enough.set()
            everyone = asyncio.gather(*lives)
            await _first_to_fail(_within(MODERATION_S, everyone), *watchers)
            await rested(harness)
        await _settle(harness, account)
    account.wall_s = time.monotonic() - began
    return account


async def _first_to_fail(main: Any, *beside: asyncio.Task[Any]) -> None:
    """Waits for `main`; what fails beside it fails at once."""
    task = asyncio.ensure_future(main)
    pending = {task, *beside}
    while not task.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for ended in done - {task}:
            ended.result()
    await task


async def _within(seconds: float, work: Any) -> None:
    async with asyncio.timeout(seconds):
        await work


async def _kill_all(harness: CrashHarness, options: Options, account: Account) -> None:
    random, left = Random(options.seed), iter(range(options.kills))
    takeovers: list[asyncio.Task[None]] = []

    async def slot() -> None:
        for _ in left:
            point = choose(random, flows=options.flows)
            victim = await harness.fork_server.start(point)
            account.points[await _death_of(victim, random)] += 1
            takeovers.extend(await _watch_takeovers(harness, victim, account))

    async with asyncio.TaskGroup() as slots:
        for _ in range(options.victims):
            slots.create_task(slot())
    await asyncio.gather(*takeovers)


async def _death_of(victim: WorkerProcess, random: Random) -> str:
    """Waits for the victim's death, or brings it about; answers where it died."""
    assert victim.point is not None
    place = victim.point.name
    patience_s = PATIENCE_OF_FLOWS_S if place in OF_FLOWS else PATIENCE_S
    try:
        await asyncio.wait_for(asyncio.shield(victim.ended), patience_s * random.uniform(0.5, 1.0))
    except TimeoutError:
        victim.kill_group()
        place = "anywhere, from outside"
    if await victim.ended != -signal.SIGKILL:
        raise AssertionError(f"a worker ended by itself with {await victim.ended}")
    return place


async def _watch_takeovers(
    harness: CrashHarness, victim: WorkerProcess, account: Account
) -> list[asyncio.Task[None]]:
    account.violations += _standing(harness, account)
    held = [head for head in await _heads(harness, await harness.held()) if _held_by(head, victim)]
    return [asyncio.create_task(_taken_over(harness, head, time.monotonic(), account)) for head in held]


def _standing(harness: CrashHarness, account: Account) -> list[str]:
    """Violations in the trees now, in the middle of the run."""
    with closing(harness.redis.client()) as redis:
        trees = [tree_as_of_now(redis, harness.deployment.broker, TreeId(p.session)) for p in harness.people]
    found = [
        f"tree {tree.id}, after {account.kills} kills: {text}" for tree in trees for text in standing(tree)
    ]
    return found[:MOST_TOLD]


def _held_by(head: SessionHead, worker: WorkerProcess) -> bool:
    return head.holder is not None and f"-{worker.pid}-" in head.holder


async def _taken_over(harness: CrashHarness, lost: SessionHead, died_at: float, account: Account) -> None:
    while True:
        head = await harness.people[0].client.head(lost.session)
        assert head is not None
        if head.quarantined:
            # Five workers in a row died on it before they could write: it is set aside, as it should be.
            account.quarantined += 1
            await harness.deployment.broker.trees.revoke(lost.session)
            return
        if head.epoch > lost.epoch:
            break
        await asyncio.sleep(POLL_S)
    took_s = time.monotonic() - died_at
    account.takeovers_s.append(took_s)
    if took_s > TAKEOVER_S:
        account.violations.append(f"{lost.session} was taken over after {took_s:.1f} s")


async def _heads(harness: CrashHarness, sessions: list[SessionId]) -> list[SessionHead]:
    heads = [await harness.deployment.broker.logs.head(session) for session in sessions]
    return [head for head in heads if head is not None]


async def rested(harness: CrashHarness) -> None:
    """Returns when nobody holds a session, nothing is due, and every event was shown."""
    people = {person.session: person for person in harness.people}
    async with asyncio.timeout(REST_S):
        while not all(_rests(people, head) for head in await _heads(harness, await harness.sessions())):
            await asyncio.sleep(POLL_S)


def _rests(people: Mapping[SessionId, Person], head: SessionHead) -> bool:
    person = people.get(head.session)
    if person is not None:
        last = person.events[-1].cursor if person.events else None
        if last is None or last.n != head.eq_n:
            return False
    return head.holder is None and head.cursor == head.sq_tip and head.status == "idle"


async def violations(harness: CrashHarness) -> list[str]:
    """Every violation, in words, once the workers have left; what ends one of them badly is one too.

    Not before: whoever lets a session rest tells so first, and then writes its file.
    """
    ended = [
        f"a worker that was told to leave ended with {code}"
        for code in await harness.fork_server.emptied()
        if code
    ]
    return ended + await audit(harness.deployment, harness.people, harness.ledger)


async def _settle(harness: CrashHarness, account: Account) -> None:
    account.violations += await violations(harness)
    account.commands = len(harness.ledger.executions())
    account.in_doubt = len(harness.ledger.told)
    account.tasks = sum(op == "user_input" for p in harness.people for op in p.acknowledged.values())
    heads = await _heads(harness, await harness.sessions())
    account.entries = sum(head.seq for head in heads)
    account.agents = len(heads) - len(harness.people)
    told = Counter(event.type for person in harness.people for event in person.events)
    account.processes, account.elicitations = told["terminal_interaction"], told["elicitation_request"]


def session_of(harness: CrashHarness, number: int = 0) -> SessionId:
    return harness.people[number].session


__all__ = [
    "Account",
    "CrashHarness",
    "House",
    "Options",
    "Play",
    "Point",
    "crash",
    "crash_harness",
    "harness_on",
    "rested",
    "session_of",
    "violations",
]
