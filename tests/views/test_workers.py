"""Workers as people see them: silent, draining, with a clock that is off, older than others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.broker.claims import machine_state, others_fit
from orchestrator.broker.records import Heard, PoolQueue
from orchestrator.broker.worker_state import SILENT_MS, MachineFacts, Pace, WorkerState, decoded, encoded
from orchestrator.gateways.submit import PATIENCE_S, UNSERVED_S, patience
from orchestrator.views import ViewError
from orchestrator.views.workers import SeenWorker, fleet_stats, named_worker, seen_workers, waits_for

NOW = 1_800_000_000_000
FACTS = MachineFacts("build-3", 4711, "0.1.0", 7, NOW - 60_000, NOW, 0.5)
STATE = WorkerState(("default",), 2, 8, facts=FACTS)


def seen(*states: WorkerState, ago_ms: int = 0) -> list[SeenWorker]:
    heard = [Heard(f"w{n}", encoded(state), NOW - ago_ms) for n, state in enumerate(states)]
    return seen_workers(heard, NOW)


@pytest.mark.parametrize(
    "state",
    [STATE, replace(STATE, draining=True, paces={"gpu": Pace(1.5, 2, 3)}), replace(STATE, facts=None)],
)
def test_state_of_a_worker_is_read_as_it_was_sent(state: WorkerState) -> None:
    assert decoded(encoded(state)) == state


@pytest.mark.parametrize("payload", [b"", b'{"pools":["gpu"],"held":1,"room":2,"of_a_newer_version":[1]}'])
def test_state_of_another_version_is_read(payload: bytes) -> None:
    assert decoded(payload).facts is None


@pytest.mark.parametrize(
    "payload",
    [
        b"no heartbeat",
        b"\xff",
        b"[1]",
        b'"gpu"',
        b'{"pools":3,"held":"2","room":null,"draining":"no","paces":[1]}',
        b'{"pools":[1],"paces":{"gpu":7},"machine_id":5,"workspaces":["/w"],"unfit":0}',
        b'{"core":"new","clock_ms":"now","load":"much","machine":"there"}',
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_heartbeat_that_is_none_hides_no_other_worker(place: int, payload: bytes) -> None:
    """Each claim of what is left to a machine reads all of them: one would end it for the whole fleet."""
    fit = replace(STATE, facts=replace(FACTS, machine_id="m1", workspaces="/w"))
    heard = [Heard("whole", encoded(fit), NOW)]
    heard.insert(place, Heard("damaged", payload, NOW))
    workers = {worker.name: worker for worker in seen_workers(heard, NOW)}
    assert (workers["whole"].state, workers["whole"].remarks) == (fit, ())
    damaged = workers["damaged"].state
    assert (damaged.pools, damaged.held, damaged.room, damaged.draining) == ((), 0, 0, False)
    assert not machine_state(heard, NOW, "default", "m1").gone
    assert others_fit(heard, NOW, "default", "m2")


def test_worker_that_misses_three_heartbeats_is_silent() -> None:
    then = replace(STATE, facts=replace(FACTS, clock_ms=NOW - SILENT_MS))
    (there,), (silent,) = seen(then, ago_ms=SILENT_MS - 1), seen(then, ago_ms=SILENT_MS)
    assert (there.status, there.remarks) == ("serving", ())
    assert silent.status == "silent"
    assert "others take its sessions" in silent.remarks[0]


def test_worker_that_drains_says_so() -> None:
    (worker,) = seen(replace(STATE, draining=True))
    assert worker.status == "draining"


@pytest.mark.parametrize(("off_ms", "told"), [(1_000, False), (-1_001, True), (1_001, True)])
def test_clock_that_is_off_by_more_than_a_second_is_named(off_ms: int, told: bool) -> None:
    (worker,) = seen(replace(STATE, facts=replace(FACTS, clock_ms=NOW + off_ms)))
    assert any("clock" in remark for remark in worker.remarks) is told


def test_worker_whose_machine_makes_no_folders_says_why_and_what_follows() -> None:
    (worker,) = seen(replace(STATE, facts=replace(FACTS, unfit="no room: make some")))
    assert worker.remarks == ("it leaves portable sessions to workers of other machines: no room: make some",)


def test_worker_that_is_older_than_another_is_named() -> None:
    older, newer, unknown = seen(
        STATE, replace(STATE, facts=replace(FACTS, core=8)), replace(STATE, facts=None)
    )
    assert newer.remarks == ()
    for worker in (older, unknown):
        assert "older than another worker" in worker.remarks[0]


def test_silent_worker_makes_no_other_one_old() -> None:
    newer = Heard("w1", encoded(replace(STATE, facts=replace(FACTS, core=8))), NOW - SILENT_MS)
    there, _ = seen_workers([Heard("w0", encoded(STATE), NOW), newer], NOW)
    assert there.remarks == ()


def test_worker_is_named_by_the_beginning_of_its_name_if_that_is_one_alone() -> None:
    workers = seen(*[STATE] * 12)
    assert named_worker(workers, "w3").name == "w3"
    assert named_worker(workers, "w1").name == "w1", "a whole name is meant"
    with pytest.raises(ViewError, match="no worker is named x"):
        named_worker(workers, "x")
    with pytest.raises(ViewError, match="w may be any of w0, w1"):
        named_worker(workers, "w")


def test_worker_whose_root_of_workspaces_differs_from_most_of_its_pool_is_named() -> None:
    def under(root: str, *pools: str) -> WorkerState:
        return replace(STATE, pools=pools or ("default",), facts=replace(FACTS, workspaces=root))

    first, second, other, apart, unknown = seen(
        *(under("/srv/a"), under("/srv/a"), under("/srv/b"), under("/srv/c", "gpu"), under(""))
    )
    (said,) = other.remarks
    assert "its workspace.root is /srv/b, and /srv/a is that of most workers of pool default" in said
    assert [each.remarks for each in (first, second, apart, unknown)] == [(), (), (), ()]


def test_silent_worker_has_no_root_that_others_are_held_to() -> None:
    facts = [replace(FACTS, workspaces=root) for root in ("/srv/a", "/srv/a", "/srv/b")]
    heard = [
        Heard(f"w{n}", encoded(replace(STATE, facts=each)), NOW - (SILENT_MS if n < 2 else 0))
        for n, each in enumerate(facts)
    ]
    assert seen_workers(heard, NOW)[2].remarks == ()


@pytest.mark.parametrize(
    ("own", "usual", "said"), [(1, 2, True), (1, 1, False), (2, 2, False), (2, 1, False)]
)
def test_root_of_workspaces_is_named_where_more_workers_of_a_pool_have_another_one(
    own: int, usual: int, said: bool
) -> None:
    for roots in (["/srv/own"] * own + ["/srv/usual"] * usual, ["/srv/usual"] * usual + ["/srv/own"] * own):
        workers = seen(*(replace(STATE, facts=replace(FACTS, workspaces=root)) for root in roots))
        told = [bool(each.remarks) for each, root in zip(workers, roots, strict=True) if root == "/srv/own"]
        assert told == [said] * own


def test_worker_of_several_pools_is_told_once_that_its_root_differs() -> None:
    def under(root: str) -> WorkerState:
        return replace(STATE, pools=("default", "gpu"), facts=replace(FACTS, workspaces=root))

    *_, other = seen(under("/srv/a"), under("/srv/a"), under("/srv/b"))
    assert len(other.remarks) == 1


class Fleet:
    """The claims of a fleet with these workers, of which the last one is silent."""

    def __init__(self, *states: WorkerState) -> None:
        self.heard = [Heard(f"w{n}", encoded(state), NOW) for n, state in enumerate(states)]
        self.heard[-1] = replace(self.heard[-1], heard_ms=NOW - SILENT_MS)
        self.claims = self.requests = self.logs = self

    async def workers(self) -> list[Heard]:
        return self.heard

    async def server_ms(self) -> int:
        return NOW

    async def queue_of(self, pool: str) -> PoolQueue:
        return PoolQueue(1, 2, 3)

    async def count_open_requests(self) -> int:
        return 4

    async def count_sessions(self) -> int:
        return 5


async def test_figures_of_a_pool_are_those_of_its_workers_that_take_sessions_and_all_that_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = Pace(1.5, 2, 3)
    serving = replace(STATE, pools=("cpu", "gpu"), paces={"cpu": pace, "gpu": pace})
    draining = replace(STATE, pools=("gpu",), draining=True, paces={"gpu": pace})
    silent = replace(STATE, pools=("gpu", "old"), paces={"gpu": pace})

    async def rows(broker: object, most: int) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for pool, status, unsaved in (
            *(("cpu", "idle", ""), ("cpu", "running", ""), ("cpu", "closed", "")),
            *(("cpu", "due", "build-3"), ("cpu", "due", ""), ("parked", "idle", "")),
        ):
            head = SimpleNamespace(pool=pool, unsaved_on=unsaved, session=f"of {pool}")
            yield {"status": status, "nobody_serves": status == "due"}, head

    monkeypatch.setattr("orchestrator.views.workers.found_rows", rows)
    found = await fleet_stats(cast(Any, Fleet(serving, draining, silent)))
    assert [one.pool for one in found.pools] == ["cpu", "gpu", "old", "parked"]
    by_pool = {one.pool: one for one in found.pools}
    assert {pool: (one.workers, one.slots) for pool, one in by_pool.items()} == {
        **dict.fromkeys(("cpu", "gpu"), (1, STATE.room)),
        **dict.fromkeys(("old", "parked"), (0, 0)),
    }
    # A worker that drains works still; what a silent one did last is nobody's pace.
    assert (by_pool["gpu"].pace.claims_per_s, by_pool["cpu"].pace.claims_per_s) == (3.0, 1.5)
    assert by_pool["cpu"].parked == {"closed": 1, "idle": 1, "unsaved": 1}
    assert by_pool["parked"].parked == {"idle": 1}
    assert found.waiting == {"build-3": ["of cpu"]}
    assert (found.workers, found.silent, found.draining, found.looked) == (3, 1, 1, 6)


POOLS = ("cpu", "gpu")
SOME_STATES = st.builds(
    lambda pools, room, draining, rate: WorkerState(
        tuple(sorted(pools)), 1, room, draining, {pool: Pace(rate, rate, rate) for pool in pools}, FACTS
    ),
    st.sets(st.sampled_from(POOLS), min_size=1),
    st.integers(0, 9),
    st.booleans(),
    st.integers(0, 9),
)
SOME_ROWS = st.lists(
    st.tuples(
        st.sampled_from((*POOLS, "parked")),
        st.sampled_from(("idle", "closed", "running", "due", "lost")),
        st.booleans(),
        st.sampled_from(("", "build-1", "build-2")),
    ),
    max_size=12,
)
"""Of each session its pool, its status, whether nobody serves it, and the machine with its unsaved folder."""


@given(SOME_ROWS, st.lists(SOME_STATES, max_size=3), SOME_STATES)
async def test_figures_are_those_of_all_sessions_and_workers_however_many_are_alike(
    sessions: list[tuple[str, str, bool, str]], heard: list[WorkerState], silent: WorkerState
) -> None:
    async def rows(broker: object, most: int) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        for number, (pool, status, unserved, machine) in enumerate(sessions):
            head = SimpleNamespace(pool=pool, unsaved_on=machine, session=f"s{number}")
            yield {"status": status, "nobody_serves": unserved}, head

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("orchestrator.views.workers.found_rows", rows)
        found = await fleet_stats(cast(Any, Fleet(*heard, silent)))
    left = [
        (pool, machine, f"s{number}")
        for number, (pool, status, unserved, machine) in enumerate(sessions)
        if status not in ("idle", "closed") and unserved and machine
    ]
    assert found.waiting == {
        machine: [session for _, at, session in left if at == machine]
        for machine in {at for _, at, _ in left}
    }
    resting = [(pool, status) for pool, status, *_ in sessions if status in ("idle", "closed")]
    pools = {pool for state in (*heard, silent) for pool in state.pools} | {pool for pool, *_ in sessions}
    assert [one.pool for one in found.pools] == sorted(pools)
    for one in found.pools:
        of_it = [state for state in heard if one.pool in state.pools]
        serving = [state for state in of_it if not state.draining]
        assert (one.workers, one.slots) == (len(serving), sum(state.room for state in serving))
        rate = sum(state.paces[one.pool].tokens_per_min for state in of_it)
        assert (one.pace.claims_per_s, one.pace.turns_per_s, one.pace.tokens_per_min) == (rate, rate, rate)
        counted = Counter(status for pool, status in resting if pool == one.pool)
        counted["unsaved"] = sum(pool == one.pool for pool, *_ in left)
        assert one.parked == +counted
    draining = sum(state.draining for state in heard)
    assert (found.workers, found.silent, found.draining) == (len(heard) + 1, 1, draining)
    assert found.looked == len(sessions)


@given(st.lists(st.sampled_from(["s1", "s2", "s3", "s4", "s5", "s6", "s7"]), min_size=1, unique=True))
def test_sessions_that_wait_for_a_machine_are_counted_and_named_up_to_five(sessions: list[str]) -> None:
    what, remedy = waits_for("build-1", sessions)
    named = [session for session in sessions if f"{session}" in what.partition(": ")[2]]
    assert named == sessions[:5]
    assert what.endswith("…") == (len(sessions) > 5)
    assert what.startswith(f"{len(sessions)} session")
    assert f"dendro revoke {sessions[0]} --abandon-unsaved" in remedy


@pytest.mark.parametrize(
    ("heard", "waits"),
    [
        ([], UNSERVED_S),
        ([Heard("w", encoded(STATE), NOW)], PATIENCE_S),
        ([Heard("w", encoded(replace(STATE, pools=("gpu",))), NOW)], UNSERVED_S),
        ([Heard("w", encoded(replace(STATE, draining=True)), NOW)], UNSERVED_S),
        ([Heard("w", encoded(STATE), NOW - SILENT_MS - 1)], UNSERVED_S),
    ],
)
async def test_person_waits_for_an_answer_only_where_a_worker_may_give_one(
    heard: list[Heard], waits: float
) -> None:
    class Claims:
        async def workers(self) -> list[Heard]:
            return heard

        async def server_ms(self) -> int:
            return NOW

    found = SimpleNamespace(broker=SimpleNamespace(claims=Claims()))
    assert await patience(cast(Any, found), ["default"]) == waits
