"""A harness: a real server with the real scripts, scripted players, and a person at the door.

Waiting is for events of the EQ or for gates, never for time.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import orjson

from orchestrator.broker.blobs import Blobs, Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import BrokerConfig, Claimed, StoredEntry
from orchestrator.config_keys import LogSettings, RedisSettings, WorkerSettings
from orchestrator.core.birth import Birth
from orchestrator.core.entries import decode_entry
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.snapshot import digest
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.loader import BEGINNING as UNBORN
from orchestrator.runtime.loader import Cache, fold_entries
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.renewal import Renewal
from orchestrator.runtime.runner import Ended, Runner, RunnerConfig
from orchestrator.runtime.sq_entries import PatientTexts
from orchestrator.runtime.unserved_cancels import GRACE_MS
from orchestrator.runtime.worker import Worker, WorkerConfig
from orchestrator.views.event import Event
from tests.core.driver import RULES
from tests.runtime.connections import ScriptedConnection
from tests.runtime.players import FakeSupervisor, ScriptedModels, ScriptedTools

POOL = "harness"
SHARDS = 2
QUARANTINED = b'{"id":"","msg":{"type":"error","message":"quarantined"}}'
_numbers = itertools.count(1)


def broker_config(**changes: Any) -> BrokerConfig:
    given = BrokerConfig(shards=SHARDS, lease_s=60.0, quarantine_event=QUARANTINED)
    return replace(given, **changes)


@dataclass
class Harness:
    """A worker's ports, and a client beside it on a connection of its own."""

    url: str
    connection: ScriptedConnection
    ports: Ports
    client: Client
    broker: Broker
    """The person's own connection: nothing that a test does to the worker's is felt here."""
    models: ScriptedModels
    tools: ScriptedTools
    supervisor: FakeSupervisor
    cache: Cache = field(default_factory=Cache)
    cursors: dict[SessionId, EqCursor] = field(default_factory=dict)

    async def session(
        self,
        policy: str = "never",
        path: Path | None = None,
        shard: int = 1,
        client: Client | None = None,
        ephemeral: bool = False,
        **facts: Any,
    ) -> SessionId:
        """A new session of the harness's pool."""
        session = new_session_id(int(time.time() * 1000), shard, secrets.randbits(62))
        given = SessionFacts(
            session, TreeId(session), AgentId(0), POOL, rollout_path=str(path) if path else None, **facts
        )
        settings = TurnSettings("/tmp", policy, {"mode": "danger-full-access"}, "gpt-5")
        born = Birth(given, settings, "0", int(time.time() * 1000))
        return await (client or self.client).create(born, ephemeral=ephemeral)

    async def submit(self, session: SessionId, op: Any, id: str | None = None) -> str:
        """Submits an op; answers its id."""
        chosen = id or f"sub-{next(_numbers)}"
        await self.client.submit(session, Submission(SubmissionId(chosen), op))
        return chosen

    async def say(self, session: SessionId, text: str = "go", id: str | None = None) -> str:
        return await self.submit(
            session, ops.UserInput(items=cast(Any, ({"type": "text", "text": text},))), id
        )

    async def approve(self, session: SessionId, call_id: str, decision: str = "approved") -> str:
        return await self.submit(session, ops.ExecApproval(id=call_id, decision=cast(Any, decision)))

    async def approve_patch(self, session: SessionId, call_id: str, decision: str) -> str:
        return await self.submit(session, ops.PatchApproval(id=call_id, decision=cast(Any, decision)))

    async def claimed(self, session: SessionId, worker: str = "w1") -> Claimed:
        found = await self.ports.broker.claims.claim_session(session, worker, secrets.token_hex(4))
        assert found is not None, "the session is not claimable"
        return found

    def runner(self, claimed: Claimed, **config: Any) -> Runner:
        return Runner(self.ports, runner_config(config), claimed, self.cache)

    async def run(self, session: SessionId, **config: Any) -> Ended:
        """Claims the session and runs it to its end."""
        return await self.runner(await self.claimed(session), **config).run()

    def worker(
        self,
        name: str = "w1",
        times: WorkerSettings | None = None,
        connect_renewal: Callable[[], Broker] | None = None,
        **config: Any,
    ) -> Worker:
        """A whole worker over the harness's ports."""
        pools = config.pop("pools", (POOL,))
        reap_grace_ms = config.pop("reap_grace_ms", GRACE_MS)
        return Worker(
            self.ports,
            WorkerConfig(name, pools, runner_config(config), reap_grace_ms),
            lambda report: Renewal(
                connect_renewal or (lambda: open_broker(self.url)),
                times or WorkerSettings(),
                self.supervisor.extend,
                report,
            ),
        )

    async def until(self, session: SessionId, type: str, within_s: float = 30.0) -> list[Event]:
        """The session's events after the last call, up to the first of this type."""
        found: list[Event] = []
        async with asyncio.timeout(within_s):
            events = cast(Any, self.client.follow(session, self.cursors.get(session, BEGINNING)))
            async with aclosing(events):
                async for event in events:
                    found.append(event)
                    self.cursors[session] = event.cursor or self.cursors.get(session, BEGINNING)
                    if event.type == type:
                        return found
        raise AssertionError(f"no {type} came")

    async def log(self, session: SessionId) -> list[StoredEntry]:
        return list(await self.broker.logs.read_rollout(session, 0, 100_000))

    async def facts(self, session: SessionId, kind: str) -> list[Any]:
        """Payloads of the log's own facts of one kind."""
        decoded = [decode_entry(entry.payload) for entry in await self.log(session)]
        return [e.payload for e in decoded if e.type == "dendro" and e.payload["kind"] == kind]

    async def logged_events(self, session: SessionId, type: str = "") -> list[Any]:
        decoded = [decode_entry(entry.payload) for entry in await self.log(session)]
        return [e.payload for e in decoded if e.type == "event_msg" and type in ("", e.payload["type"])]

    async def replayed(self, session: SessionId) -> Position:
        """The state by the whole log alone."""

        async def entries() -> AsyncIterator[StoredEntry]:
            for entry in await self.log(session):
                yield entry

        return await fold_entries(self.ports, UNBORN, entries(), b"")

    async def digest(self, session: SessionId) -> str:
        return digest((await self.replayed(session)).state)

    async def live_digest(self, session: SessionId) -> str:
        """The state as the worker that last let go of the session had it."""
        head = await self.broker.logs.head(session)
        assert head is not None
        return str(orjson.loads(head.meta)["state_sha256"])


def runner_config(config: Mapping[str, Any]) -> RunnerConfig:
    """With settings among the fields; not validated, so that a test may have what no person may ask for."""
    worker = {name: value for name, value in config.items() if name in WorkerSettings.model_fields}
    log = {name: value for name, value in config.items() if name in LogSettings.model_fields}
    own = {"rules": RULES, **config}
    return RunnerConfig(
        worker=WorkerSettings.model_construct(**worker),
        log=LogSettings.model_construct(**log),
        **{name: value for name, value in own.items() if name not in worker.keys() | log.keys()},
    )


def open_broker(url: str, **config: Any) -> Broker:
    return Broker(
        connect(RedisSettings(url=url, connect_timeout_s=1.0, command_timeout_s=2.0)),
        broker_config(**config),
        time.monotonic,
    )


@asynccontextmanager
async def hasty_broker(url: str) -> AsyncIterator[Broker]:
    """A broker whose leases have run out as soon as they are given."""
    broker = open_broker(url, lease_s=0.0)
    try:
        yield broker
    finally:
        await broker.aclose()


@asynccontextmanager
async def opened(url: str, **config: Any) -> AsyncIterator[Harness]:
    """A harness on an empty server."""
    connection = ScriptedConnection(connect(RedisSettings(url=url, command_timeout_s=5.0)))
    broker = Broker(connection, broker_config(**config), time.monotonic)
    await broker.open()
    beside = open_broker(url, **config)
    plain = connect(RedisSettings(url=url))
    models, tools, supervisor = ScriptedModels(), ScriptedTools(), FakeSupervisor()
    ports = Ports(broker, PatientTexts(Blobs(connection, broker.keys), asyncio.sleep), models, tools)
    person = ClientPorts(beside, Texts(Blobs(plain, broker.keys)), secrets.token_bytes)
    try:
        yield Harness(
            url,
            connection,
            ports,
            Client(person, f"client-{next(_numbers)}", "ann"),
            beside,
            models,
            tools,
            supervisor,
        )
    finally:
        await broker.aclose()
        await beside.aclose()
        await plain.aclose()
