"""Random lives of two sessions against a model of a few lines: what must hold whatever the order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orchestrator.broker.connection import Connection
from orchestrator.broker.records import (
    BrokerConfig,
    Claimed,
    CommitRequest,
    Committed,
    Fenced,
    Refused,
    Release,
)
from orchestrator.core.chain import GENESIS, Link, first_broken, payload_digest
from orchestrator.core.ids import SessionId
from tests.broker.actors import POOL, SHARD, Backend, created, step, submitted
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis

Result = TypeVar("Result")
WORKERS = st.sampled_from(["w1", "w2", "w3"])
WHICH = st.integers(0, 1)
LEASE_S = 6.0


class Expected:
    """The expected state of a session."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.sent: set[str] = set()
        self.applied: list[str] = []
        self.holder: str | None = None
        self.expires_s = 0.0
        self.owes = False
        self.last_commit = ""


class Lives(RuleBasedStateMachine):
    """Clients submit, workers claim, commit, stall and come back late; time passes."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.patch = redis_time(FakeClock())
        self.clock = self.patch.__enter__()
        client = StatedRedis()
        backend = Backend("double", lambda: Connection(client, client), lambda: [client], real=False)
        self.broker = backend.broker(BrokerConfig(lease_s=LEASE_S, max_tries=1_000_000))
        self.expected: dict[SessionId, Expected] = {}
        for _ in range(2):
            self.expected[self.run(created(self.broker))] = Expected()
        self.views: dict[str, tuple[Claimed, Claimed | Committed]] = {}
        self.last: dict[str, tuple[CommitRequest, Committed]] = {}
        self.count = 0

    def run(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(act)

    def session(self, which: int) -> SessionId:
        return list(self.expected)[which]

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    @rule(which=WHICH, repeat=st.booleans())
    def client_submits(self, which: int, repeat: bool) -> None:
        session = self.session(which)
        expected = self.expected[session]
        known = sorted(expected.sent)
        submission = known[0] if repeat and known else self.fresh("s")
        told = self.run(submitted(self.broker, session, submission))
        assert told.duplicate == (submission in expected.sent)
        if not told.duplicate:
            expected.sent.add(submission)
            expected.queue.append(submission)
            expected.owes = True

    @rule(seconds=st.sampled_from([0.5, 3.0, LEASE_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(worker=WORKERS)
    def worker_claims(self, worker: str) -> None:
        free = {s for s, e in self.expected.items() if e.owes and self._is_free(e)}
        found = self.run(self.broker.claims.claim(POOL, worker, self.fresh("c"), SHARD))
        assert (found is None) == (not free)
        if found is None:
            return
        assert found.claim.session in free
        expected = self.expected[found.claim.session]
        assert [entry.submission for entry in found.first] == expected.queue
        expected.holder, expected.expires_s = found.claim.claim_id, self.clock.time() + LEASE_S
        self.views[worker] = (found, found)

    @rule(worker=WORKERS, which=WHICH)
    def worker_claims_one(self, worker: str, which: int) -> None:
        session = self.session(which)
        expected = self.expected[session]
        found = self.run(self.broker.claims.claim_session(session, worker, self.fresh("c")))
        assert (found is not None) == (expected.owes and self._is_free(expected))
        if found is not None:
            expected.holder, expected.expires_s = found.claim.claim_id, self.clock.time() + LEASE_S
            self.views[worker] = (found, found)

    def _is_free(self, expected: Expected) -> bool:
        return expected.holder is None or self.clock.time() >= expected.expires_s

    @rule(worker=WORKERS)
    def worker_renews(self, worker: str) -> None:
        if worker not in self.views:
            return
        claim = self.views[worker][0].claim
        expected = self.expected[claim.session]
        answer = self.run(self.broker.claims.renew([claim]))[0]
        assert isinstance(answer, Fenced) == (expected.holder != claim.claim_id)
        if not isinstance(answer, Fenced):
            expected.expires_s = self.clock.time() + LEASE_S

    @rule(worker=WORKERS, consumed=st.integers(0, 3), release=st.sampled_from(["keep", "park", "yield"]))
    def worker_commits(self, worker: str, consumed: int, release: Release) -> None:
        if worker not in self.views:
            return
        held, at = self.views[worker]
        session = held.claim.session
        expected = self.expected[session]
        waiting = self.run(self.broker.logs.read_sq(session))[:consumed]
        payloads = [entry.submission.encode() for entry in waiting] or [b"-"]
        cursor = waiting[-1].id if waiting else None
        request = step(at, held.claim, self.fresh("k"), payloads, cursor=cursor, release=release)
        answer = self.run(self.broker.commits.commit(request))
        mine = expected.holder == held.claim.claim_id
        assert isinstance(answer, Committed) == mine
        assert not isinstance(answer, Refused)
        if not isinstance(answer, Committed):
            return
        self.views[worker] = (held, answer)
        self.last[worker] = (request, answer)
        expected.last_commit = request.commit_id
        expected.applied += [entry.submission for entry in waiting]
        del expected.queue[: len(waiting)]
        parks = release == "park" and not expected.queue
        assert answer.released == (parks or release == "yield")
        if answer.released:
            expected.holder = None
            expected.owes = not parks

    @rule(worker=WORKERS)
    def worker_sends_its_last_commit_again(self, worker: str) -> None:
        if worker not in self.last:
            return
        request, first = self.last[worker]
        again = self.run(self.broker.commits.commit(request))
        last_of_session = self.expected[request.claim.session].last_commit == request.commit_id
        assert isinstance(again, Committed) == last_of_session
        if isinstance(again, Committed):
            assert (again.seq, again.head, again.released) == (first.seq, first.head, first.released)

    @invariant()
    def nothing_is_lost_doubled_or_out_of_order(self) -> None:
        for session, expected in self.expected.items():
            entries = self.run(self.broker.logs.read_rollout(session))
            assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
            assert [e.payload.decode() for e in entries if e.payload != b"-"] == expected.applied
            links = [Link(e.seq, e.epoch, payload_digest(e.salt, e.payload), e.chain) for e in entries]
            assert first_broken(links, GENESIS) is None
            queued = self.run(self.broker.logs.read_sq(session))
            assert [e.submission for e in queued] == expected.queue

    @invariant()
    def what_owes_something_stands_in_exactly_one_place(self) -> None:
        keys = self.broker.keys
        for session, expected in self.expected.items():
            due = self.run(self.broker.command("ZSCORE", keys.due(SHARD, POOL), session)) is not None
            held = self.run(self.broker.command("ZSCORE", keys.leases(SHARD, POOL), session)) is not None
            assert (due, held) == (expected.owes and expected.holder is None, expected.holder is not None)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.broker.aclose())
            self.loop.close()
            self.patch.__exit__(None, None, None)


Lives.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLives = Lives.TestCase
