"""Parts of the system as they are built from settings, and what can be seen of them from outside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import httpx
import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import ProviderLimits
from orchestrator.broker.connection import Outage, connect
from orchestrator.broker.follow import BEGINNING as FIRST
from orchestrator.broker.records import Claim, Claimed, Renewed
from orchestrator.broker.redis_keys import Keys
from orchestrator.config_keys import ProviderSettings
from orchestrator.core.birth import Birth
from orchestrator.core.calls import Call, ExecWork
from orchestrator.core.calls.approval_policy import Ask, amendment
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.state import Answer, State, Task
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.model.connections import Connections
from orchestrator.model.model_client import HttpBudget, ModelClient, ModelClients, format_of
from orchestrator.model.provider_errors import ModelError
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.ops import AddToHistory
from orchestrator.protocol.wire import written
from orchestrator.rollouts.notary_state import NotaryState
from orchestrator.rollouts.signed_notes import own_private_key
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.loader import BEGINNING
from orchestrator.runtime.model_request import _asking, _Following, _prompt
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.renewal import Renewal, RenewalOutcome
from orchestrator.runtime.runner import Copies
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.side_work import SideWork
from orchestrator.runtime.worker import Worker
from orchestrator.sandbox.policy_paths import Confinement, resolve
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.settings import Settings
from orchestrator.terminal.notifications import Notifications, notifications
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.tool_context import CallSite
from orchestrator.tools.toolbox import Toolbox, built_in
from orchestrator.views.event import Event
from orchestrator.wiring import worker_parts as wired
from orchestrator.wiring.deployment import Deployment, broker_config, redis_url, worker_pools
from orchestrator.wiring.new_sessions import new_birth
from orchestrator.wiring.open_deployment import Opened
from tests.core.driver import Session, a_command
from tests.model.stubbed_client import prompt, raw_server
from workers.notary import Figures, notary_of
from workers.upkeep import Upkeep, upkeep_of
from workers.webhook import Webhook, webhook_of

URL = "redis://localhost:1"
TREE = SessionId("01996720-4a00-7000-8000-000000000001")
CLAIM = Claim(TREE, TreeId(TREE), "w1", "c1", 1, "default")
CLAIMED = Claimed(CLAIM, 0, b"", "0-0", "0-0", 0, AgentId(0), 0, 0, 1, ())
NOBODY: Any = None


# --- New sessions


def birth(settings: Settings) -> Birth:
    return new_birth(settings, Workspace(), 1_700_000_000_000, os.urandom)


def keeps_prompts(settings: Settings) -> bool:
    """Whether a client hands prompts on to the person's history."""
    nowhere = cast(Deployment, SimpleNamespace(broker=None, texts=None))
    return Opened(settings, nowhere).client().keeps(AddToHistory(text="x"))


def confinement(settings: Settings) -> Confinement:
    """The session's policy as the confinement of a command."""
    cwd = settings.session_defaults.cwd
    return resolve(birth(settings).settings.sandbox_policy, cwd, str(settings.host.temp_dir))


def is_asked(settings: Settings) -> bool:
    """Whether a person is asked before an unknown command."""
    return isinstance(a_command("make").judged(birth(settings).settings, frozenset()), Ask)


def session(settings: Settings) -> Session:
    """A new session whose first request has begun."""
    made = birth(settings)
    begun = Session(settings=made.settings.wire(), facts=made.facts.wire())
    begun.say("hello", "u1")
    begun.begin()
    return begun


# --- A worker


@dataclass
class Recorder:
    """Stands where Redis, supervisors and models are; it keeps what it is asked for."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    clustered: bool = False

    @property
    def claims(self) -> Recorder:
        return self

    async def confirmed(self, *args: Any) -> bool:
        self.calls.append(args)
        return True

    async def renew(self, claims: Sequence[Claim], reached: Sequence[int]) -> list[Renewed]:
        self.calls.append(("renew", len(claims)))
        return [Renewed("0-0", 0) for _ in claims]

    async def heartbeat(self, name: str, state: bytes, *, pools: Sequence[str] = ()) -> bool:
        self.calls.append(("heartbeat", orjson.loads(state)))
        return False

    async def run_each(self, calls: Sequence[Any]) -> list[Any]:
        self.calls.extend(tuple(call.args) for call in calls)
        raise asyncio.CancelledError

    def extend(self, claim: str, deadline: float) -> None:
        self.calls.append((claim, deadline))

    async def run(self, command: Command, shown: Any) -> Finished:
        self.commands.append(command)
        for n in range(50):
            shown("stdout", b"%d\n" % n * 2_000)
        return Finished(exit_code=0)


class Unread:
    """The texts of a session that has no long ones."""

    def get(self, digest: str) -> str | None:
        return None


def ports(settings: Settings, **changes: Any) -> Ports:
    given = {"broker": Recorder(), "texts": cast(Any, Unread()), "models": NOBODY, "tools": toolbox(settings)}
    return Ports(model_settings=settings.model, **cast(Any, given | changes))


def toolbox(settings: Settings, supervisor: Recorder | None = None) -> Toolbox:
    support = SandboxSupport("/usr/bin/bwrap", 0, ())
    return Toolbox(built_in(wired.tool_config(settings, URL, support), cast(Any, supervisor or Recorder())))


def runner_config(settings: Settings, broker: Any = None) -> Any:
    return wired._worker_config(settings, cast(Any, broker or Recorder()), (), toolbox(settings)).runner


def tools_offered(settings: Settings) -> list[str]:
    specs = toolbox(settings).specs(session(settings).state)
    return [str(spec.get("name", spec["type"])) for spec in specs]


def is_confinable(settings: Settings) -> bool:
    """Whether a command can be confined on a machine that has bubblewrap alone."""
    state = session(settings).state
    call = Call(CallId("c1"), "shell", {"type": "function_call", "arguments": '{"command": ["make"]}'})
    assessed = asyncio.run(toolbox(settings).assess(call, CallSite("c", state, lambda _: None)))
    return bool(cast(Any, assessed).confinable)


def ran(settings: Settings) -> tuple[Command, int]:
    """The command that a supervisor is asked to run, and the number of its deltas."""
    made, deltas, supervisor = birth(settings), list[dict[str, Any]](), Recorder()
    work = ExecWork(("make",), ("make",), "/", (), None, {})
    call = Call(CallId("c1"), "shell", {"type": "function_call"}, work=work)
    task = Task(SubmissionId("u1"), "user", made.settings)
    site = CallSite("c", State(facts=made.facts, task=task), deltas.append)
    asyncio.run(toolbox(settings, supervisor).run(call, site))
    return supervisor.commands[0], len(deltas)


def rule_kept(settings: Settings) -> str:
    """The owner's rules after a command ran whose approval allows a prefix."""
    made = birth(settings)
    call_id, turn = CallId("c1"), SubmissionId("u1")
    work = ExecWork(("touch",), ("touch", "x"), "/", (), None, {}, proposed=("touch",))
    call = Call(call_id, "shell", {"type": "function_call"}, work=work)
    answers = (Answer(call_id, turn, amendment(("touch",)), "ann"),)
    state = State(facts=made.facts, task=Task(turn, "user", made.settings), answers=answers)
    asyncio.run(toolbox(settings).run(call, CallSite("c", state, lambda _: None)))
    file = settings.home / "rules" / "default.rules"
    return file.read_text() if file.exists() else ""


def is_forbidden(settings: Settings) -> bool:
    """Whether the rules of the project forbid a command."""
    folder = settings.session_defaults.cwd
    (folder / ".git").mkdir(exist_ok=True)
    (folder / ".dendro/rules").mkdir(parents=True, exist_ok=True)
    (folder / ".dendro/rules/a.rules").write_text('prefix_rule(pattern=["make"], decision="forbidden")')
    state = session(settings).state
    call = Call(CallId("c1"), "shell", {"type": "function_call", "arguments": '{"command": ["make"]}'})
    assessed = asyncio.run(toolbox(settings).assess(call, CallSite("c", state, lambda _: None)))
    return cast(Any, assessed).strict_rule is not None


def command(settings: Settings) -> Command:
    return ran(settings)[0]


def variables(settings: Settings) -> set[str]:
    return set(command(settings).env)


def context(settings: Settings, **changes: Any) -> RunnerContext:
    config = replace(runner_config(settings), others_wait=lambda: True)
    made = RunnerContext.of(ports(settings, **changes), config, CLAIMED)
    made.journal.position = replace(BEGINNING, state=session(settings).state)
    return made


def snapshot_is_due(settings: Settings, seq: int) -> bool:
    return Copies(context(settings)).snapshot_due(seq)


def gives_way(settings: Settings, after_s: float) -> bool:
    now = [0.0]
    there = context(settings, monotonic=lambda: now[0])
    work = SideWork(there, Arrivals(there))
    now[0] = after_s
    work.look_at_time()
    return work.leaving()


def grace_s(settings: Settings) -> float:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def drain() -> None:
        there = context(settings, sleep=sleep)
        await SideWork(there, Arrivals(there))._cut_short()

    asyncio.run(drain())
    return slept[0]


def becomes_of(settings: Settings, delta: ev.EventModel) -> str | None:
    """Class that a model's delta is handed on as: part of the log, or event alone; None if it is not."""
    there = context(settings)
    arrivals = Arrivals(there)
    SideWork(there, arrivals)._delta(written(delta))
    return type(arrivals.inbox[0][0]).__name__ if arrivals.inbox else None


def heartbeat(settings: Settings) -> dict[str, Any]:
    """The heartbeat that a worker sends the others."""
    broker = Recorder()

    async def sleep(seconds: float) -> None:
        raise asyncio.CancelledError

    async def beat() -> None:
        config = wired._worker_config(settings, cast(Any, broker), worker_pools(settings), toolbox(settings))
        worker = Worker(ports(settings, broker=broker, sleep=sleep), config, lambda _: NOBODY)
        await worker._heartbeat()

    with suppress(asyncio.CancelledError):
        asyncio.run(beat())
    return cast(dict[str, Any], broker.calls[0][1])


@dataclass
class Renewing:
    """A worker's renewal on a clock of its own, with one claim."""

    supervisor: Recorder = field(default_factory=Recorder)
    broker: Recorder = field(default_factory=Recorder)
    now: float = 100.0

    def of(self, settings: Settings) -> Renewal:
        outage = Outage(lambda _: None, time.monotonic)
        made = wired._renewal(settings, URL, cast(Any, self.supervisor).extend, lambda _: None, outage)
        made._clock = lambda: self.now
        made.tick()
        made.hold(CLAIM, self.now, lambda: 7)
        return made

    def extended(self, settings: Settings) -> tuple[Any, ...]:
        """Until when the supervisor lets the claim's commands live."""
        self.of(settings)
        return self.supervisor.calls[0]

    def next_round_s(self, settings: Settings) -> float:
        """How long a worker waits behind a round that took no time."""
        made = self.of(settings)
        asyncio.run(made.renew(cast(Any, self.broker)))
        return made.pause_s

    def renewed(self, settings: Settings, silence_s: float = 0.0) -> list[RenewalOutcome]:
        made = self.of(settings)
        self.now += silence_s
        return asyncio.run(made.renew(cast(Any, self.broker)))


def lease_asked_for(settings: Settings) -> int:
    """The milliseconds for which a renewal asks Redis."""
    wire = Recorder()

    async def renew() -> None:
        await Broker(cast(Any, wire), broker_config(settings), time.monotonic).claims.renew([CLAIM])

    with suppress(asyncio.CancelledError):
        asyncio.run(renew())
    return int(wire.calls[0][-2])


def confirmation(settings: Settings) -> tuple[Any, ...] | None:
    """The arguments of the request to replicas before a command runs; None if nobody asks them."""
    broker = Recorder()
    confirm = runner_config(settings, broker).confirm_effects
    if confirm is None:
        return None
    assert asyncio.run(confirm(CLAIM, 3))
    return broker.calls[0][2:]


def connection(settings: Settings, option: str) -> float:
    """An option of every connection to Redis."""
    pool = cast(Any, connect(settings.redis.at(URL))._client).connection_pool
    return float(pool.connection_kwargs[option])


def answered_by_private_server(settings: Settings, option: str) -> str:
    """A configuration value of the private server, which is started for it."""

    async def ask(url: str) -> str:
        redis = connect(settings.redis.at(url))
        try:
            return bytes((await redis.command("CONFIG", "GET", option))[1]).decode()
        finally:
            await redis.aclose()

    with redis_url(settings) as url:
        return asyncio.run(ask(url))


def server(settings: Settings) -> str:
    with redis_url(settings) as url:
        return url


def keys(settings: Settings) -> Keys:
    """The names of Redis's keys, as the broker has them."""
    return Broker(cast(Any, Recorder()), broker_config(settings), time.monotonic).keys


def key(settings: Settings) -> tuple[str, bytes]:
    """With what a runner keys the chain of a log."""
    made = runner_config(settings).chain_key
    return (made.id, made.secret) if made else ("", b"")


def told(settings: Settings) -> Webhook:
    """The owner's server as upkeep calls it."""
    found = webhook_of(settings.webhook, NOBODY)
    assert found is not None
    return found


def init_notary(settings: Settings) -> str:
    """The name that a notary's state is made for."""
    with office(settings) as state:
        return state.name


def notary_metrics(port: int | None) -> bool:
    """Whether a port is tried for a notary's figures."""
    tried: list[int] = []

    @asynccontextmanager
    async def listens(health: object, host: str, port: int) -> AsyncIterator[str]:
        tried.append(port)
        yield host

    async def serve() -> None:
        with patch("workers.notary.listening", listens):
            async with Figures().served(port):
                pass

    asyncio.run(serve())
    return bool(tried)


def notary_interval(settings: Settings) -> int:
    """The milliseconds after which a notary states a log that grows."""
    with office(settings) as state:
        broker = Broker(cast(Any, Recorder()), broker_config(settings), time.monotonic)
        return notary_of(settings, Opened(settings, Deployment(broker, NOBODY, NOBODY)), state).interval_ms


@contextmanager
def office(settings: Settings) -> Iterator[NotaryState]:
    """A new state of a notary."""
    told = settings.receipts
    assert told.key_file is not None
    key = own_private_key(told.key_file).public_key().public_bytes_raw().hex()
    with TemporaryDirectory() as folder:
        NotaryState.create(Path(folder), told.name or "unnamed", key)
        state = NotaryState.open(Path(folder))
        yield state
        state.close()


def upkeep(settings: Settings) -> Upkeep:
    return upkeep_of(settings, NOBODY, URL)


def called(settings: Settings) -> list[str]:
    """Texts that the terminal is sent when a turn is complete."""
    sent: list[str] = []
    told = replace(notifications(settings, "s", sent.append, None), bell=sent.append)
    asyncio.run(_completes(told))
    return sent


async def _completes(told: Notifications) -> None:
    told.receive(Event("t1", {"type": "task_complete", "last_agent_message": "done"}, FIRST))
    await told.end()


def program_ran(settings: Settings) -> bool:
    """Whether the person's program was started; it leaves a file in the data folder."""
    called(settings)
    return (settings.home / "ran").is_file()


# --- Providers


def provider(settings: Settings) -> ProviderSettings:
    return settings.model.providers[settings.model.provider]


def request(settings: Settings) -> httpx.Request:
    """A request as it goes to the wire, in the form in which its parts are easily asked for."""
    client = ModelClient(provider(settings))
    return httpx.Request("POST", str(client._url), headers=client._headers)


def connect_timeout_s(settings: Settings) -> float:
    return Connections(provider(settings))._connect_s


def retries(settings: Settings) -> tuple[int, int]:
    return ModelClients(settings.model.providers).retries(settings.model.provider)


def limits(settings: Settings) -> ProviderLimits:
    """Limits that the fleet's count is asked to keep to."""
    asking = fleet_asked(settings)
    return asking.limits if asking else ProviderLimits()


def proxied(settings: Settings) -> str | None:
    """The proxy that a connection of the provider's goes through."""
    proxy = Connections(provider(settings))._proxy
    return proxy.host if proxy else None


def body(settings: Settings) -> dict[str, Any]:
    """The body of a session's first request."""
    state = session(settings).state

    async def build() -> dict[str, Any]:
        following = _Following(ports(settings), state, lambda _: None, lambda _: None, HttpBudget(0))
        table = provider(settings)
        return format_of(table).body(await _prompt(following, None), table)

    return asyncio.run(build())


def role_of_developer(settings: Settings) -> str:
    """The role under which a request shows a developer's message."""
    table, message = provider(settings), {"type": "message", "role": "developer", "content": "x"}
    body = format_of(table).body(prompt(input=[message]), table)
    return str(body["messages"][-1]["role"])


def fleet_asked(settings: Settings) -> Any:
    """The question to the fleet's limits before the first request; None if there are none."""
    state = session(settings).state
    following = _Following(ports(settings), state, lambda _: None, lambda _: None, HttpBudget(0))
    return _asking(following, prompt())


def failure(settings: Settings, reply: bytes) -> str:
    """Why a request to a server that answers so and then says nothing more comes to its end."""

    async def ask() -> str:
        async with raw_server(reply) as server:
            there = provider(settings).model_copy(update={"base_url": server.url})
            async with ModelClient(there) as client:
                try:
                    [event async for event in client.stream(prompt(), HttpBudget(0))]
                except ModelError as error:
                    return str(error)
        return ""

    return asyncio.run(ask())


def buries(settings: Settings) -> bool:
    """Whether sessions of the worker would be given to others at its death."""
    found = wired._burial(settings, URL)
    if found is None:
        return False
    found.close()
    return True
