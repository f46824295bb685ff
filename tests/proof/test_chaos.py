"""Rules of a chaos run: a run that is fine passes, and each rule refuses its spoiled one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.lab import lab
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from proof.chaos import Run, shrunk
from proof.chaos_defects import DEFECTS, PARTS, named
from proof.chaos_faults import (
    COMMON,
    FAULTS,
    FORGETS,
    KINDS,
    LENGTHS_S,
    MORE,
    Due,
    Nemesis,
    lost_by_failover,
    pairs,
    schedule,
)
from proof.chaos_rules import (
    LOSSES,
    RULES,
    SPOILED,
    Entry,
    Fault,
    Log,
    Mark,
    Promise,
    Record,
    Return,
    Shown,
    deaf,
    judge,
)
from proof.chaos_servers import TOPOLOGIES, Link, Servers, served, until_true
from tests.commit_seed import chosen

ROOT = Path(__file__).parents[2]


def log_of(*ids: str) -> Log:
    """A log of two entries and a turn with a command for each id."""
    entries, head = [], GENESIS
    for seq in (1, 2):
        head = next_chain(head, seq, 1, payload_digest(b"salt", b"%d" % seq))
        entries.append(Entry(seq, 1, b"salt", b"%d" % seq, head))
    told = tuple((type, id) for id in ids for type in ("task_started", "task_complete"))
    return Log(tuple(entries), head, told, frozenset(ids))


def fine() -> Record:
    """Two turns of one session; a third one's command was killed with its worker."""
    log = log_of("s/1", "s/2", "s/3")
    log = replace(log, ended_well=frozenset(("s/1", "s/2")))
    done = [Mark(f"s/{n}", what, n, n + at) for n in (1, 2) for what, at in (("begin", 0.0), ("end", 0.5))]
    return Record(
        tuple(Promise("s", f"s/{n}", float(n)) for n in (1, 2, 3)),
        {"s": log.told},
        (Fault("worker killed", "0", 3.1, 3.2),),
        (*done, Mark("s/3", "begin", 3, 3.0)),
        {"s": log},
        2.0,
        returns=(Return("s", "item", 1.0, 2.0, asked=True),),
        drained=(0.5,),
        parts=5,
    )


def test_run_that_is_fine_breaks_no_rule() -> None:
    assert judge(fine()).broken == []


def test_each_rule_judges_something_and_refuses_its_spoiled_run() -> None:
    assert set(judge(fine()).judged) == {rule.__name__ for rule in RULES} == set(SPOILED)
    assert deaf(fine()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_spoiled_run_is_refused_by_its_rule_alone(rule: object) -> None:
    name = rule.__name__  # type: ignore[attr-defined]
    assert {line.partition(":")[0] for line in judge(SPOILED[name](fine())).broken} == {name}


def test_rule_that_judged_nothing_fails_the_run() -> None:
    assert "begun_once: judged nothing" in judge(replace(fine(), done=())).broken
    assert judge(replace(fine(), seen={}), seldom=frozenset(("live_as_replayed",))).broken == []


def test_what_redis_was_made_to_forget_may_be_lost_and_begun_again() -> None:
    record = fine()
    told = tuple(event for event in record.logs["s"].told if event[1] != "s/3")
    spoiled = replace(record, logs={"s": replace(record.logs["s"], told=told)})
    again = replace(spoiled, seen={}, done=(*record.done, Mark("s/3", "begin", 9, 5.0)))
    seldom = frozenset(("live_as_replayed",))
    assert len(judge(again, seldom=seldom).broken) == 2
    forgets = Fault(FORGETS, "0", 3.5, 4.0, loses=LOSSES)
    assert judge(replace(again, injected=(forgets,)), seldom=seldom).broken == []


def test_two_commands_may_be_there_at_once_right_behind_a_server_that_forgot_their_holder() -> None:
    marks = [
        ("s/4", "begin", 4, 20.0),
        ("s/4", "begin", 5, 21.0),
        ("s/4", "end", 4, 21.5),
        ("s/4", "end", 5, 22.0),
    ]
    record = replace(fine(), done=(*fine().done, *(Mark(*mark) for mark in marks)))
    assert any(line.startswith("none_beside") for line in judge(record).broken)
    forgets = replace(record, injected=(Fault(FORGETS, "0", 20.5, 20.9, loses=LOSSES),))
    assert not any(line.startswith(("none_beside", "begun_once")) for line in judge(forgets).broken)


def test_follower_that_was_told_that_redis_went_back_counts_what_it_is_told_from_then_on() -> None:
    shown = Shown("the beginning")
    for event, place in (("task_started", 1), ("task_complete", 2), ("task_started", 3)):
        shown.takes(event, "s/1", place)
    shown.begins_anew()
    shown.takes("task_started", "s/1", None)
    shown.comes_back()
    assert (shown.events, shown.place) == ([], 3)
    shown.begins_anew()
    for event in ("task_started", "session_configured", "task_complete"):
        shown.takes(event, "s/1", None)
    shown.takes("task_started", "s/2", 9)
    shown.takes("exec_command_begin", "s/2", None)
    shown.comes_back()
    assert shown.events == [("task_started", "s/1"), ("task_complete", "s/1"), ("task_started", "s/2")]
    assert shown.place == 9


def test_follower_that_missed_an_event_or_was_told_one_twice_is_refused() -> None:
    told = log_of("s/1", "s/2", "s/3").told
    for seen in (told[:-1], told[1:], (*told[:1], *told), told[::-1]):
        assert any(
            line.startswith("live_as_replayed") for line in judge(replace(fine(), seen={"s": seen})).broken
        )


def test_failover_may_lose_what_the_docs_say_of_its_servers_and_no_more() -> None:
    assert lost_by_failover("cluster", asked=True, waits=False) == ()
    assert lost_by_failover("sentinel", asked=True, waits=True) == ("promises",)
    assert lost_by_failover("sentinel", asked=True, waits=False) == LOSSES
    for topology in ("sentinel", "cluster"):
        assert lost_by_failover(topology, asked=False, waits=True) == ("promises",)
    assert set(lost_by_failover("sentinel", asked=False, waits=False)) == {"promises", "begins"}
    assert set(lost_by_failover("cluster", asked=False, waits=False)) == set(LOSSES)


def test_what_a_failover_forgot_under_wait_was_never_begun() -> None:
    again = replace(fine(), done=(*fine().done, Mark("s/3", "begin", 9, 5.0)))
    failover = Fault(
        "primary killed", "0", 2.5, 6.0, loses=lost_by_failover("sentinel", asked=False, waits=True)
    )
    told = [line.partition(":")[0] for line in judge(replace(again, injected=(failover,))).broken]
    assert told == ["begun_once"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_schedule_of_several_servers_has_their_faults_as_well(topology: str) -> None:
    plan = schedule(2, 480.0, topology)
    assert {due.kind for due in plan} == {*KINDS, *MORE[topology]} <= set(FAULTS)
    assert schedule(3, 480.0, topology) != plan


def test_schedule_may_have_some_kinds_of_faults_far_more_often() -> None:
    usual, often = (
        sum(due.kind == "network away" for seed in range(5) for due in schedule(seed, 100.0, often=kinds))
        for kinds in ((), ("network away",))
    )
    assert 0 < 4 * usual < often


def test_schedule_that_fails_is_made_small() -> None:
    plan = schedule(5, 120.0)
    first, then = plan[10], plan[70]
    tried = []

    def fails(faults: Sequence[Due]) -> bool:
        tried.append(len(faults))
        kinds = [(due.kind, due.at) for due in faults]
        return (first.kind, first.at) in kinds and (then.kind, then.at) in kinds

    assert shrunk(plan, fails) == [replace(first, lasts=LENGTHS_S[0]), replace(then, lasts=LENGTHS_S[0])]
    assert len(tried) < len(plan)
    assert shrunk(plan[:1], lambda faults: False) == plan[:1]


def test_schedule_of_a_refused_run_is_kept_to_be_repeated(tmp_path: Path) -> None:
    run = Run.of_seed("sentinel", 7, 60.0, "HEAD")
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run
    assert run.only(run.faults[:2]).seconds < 20.0


async def test_link_leads_to_the_port_that_a_server_tells_by_a_way_of_its_own() -> None:
    said = (
        b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n%d\r\n",
        b"*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n",
        b"-MOVED 5 127.0.0.1:%d\r\n",
    )

    async def tells(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"".join(line % 45678 for line in said) + b"45678\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(tells, "127.0.0.1", 0)
    async with server, Link(server.sockets[0].getsockname(), told={45678: 0}).open() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"PING\r\n")
        assert await reader.read() == b"".join(line % link.port for line in said) + b"45678\r\n"
        writer.close()


@pytest.mark.realredis
@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES[1:])
async def test_primary_that_is_cut_off_is_replaced_and_follows_when_it_is_back(topology: str) -> None:
    with lab() as place:
        async with served(place, topology, always=True, waits=True) as servers:
            first = await servers.primary(0)
            servers.cut_off(first)
            assert await first.says("PING")

            async def replaced() -> bool:
                return first not in await servers.primaries()

            assert await until_true(30.0, replaced)
            servers.heal()
            await servers.whole()
            assert first not in await servers.primaries()


def test_schedule_is_the_seeds_alone_and_has_every_pair_of_the_commonest_kinds() -> None:
    assert schedule(4, 60.0) == schedule(4, 60.0) != schedule(5, 60.0)
    for seed in range(6):
        plan = schedule(seed, 480.0)
        assert {due.kind for due in plan} - {FORGETS} == set(KINDS)
        assert any(due.kind == FORGETS for due in plan) is bool(seed % 2)
        found = pairs([Fault(due.kind, str(due.target), due.at, due.at + due.lasts) for due in plan])
        assert set(found) >= set(combinations(sorted(COMMON), 2))
        assert len(plan) >= 300


@pytest.mark.slice
@pytest.mark.timeout(400)
def test_deployment_keeps_its_promises_under_faults_that_the_commit_draws() -> None:
    """Real processes: they are what is tried."""
    servers = TOPOLOGIES[chosen("servers of chaos", len(TOPOLOGIES))]
    seed = str(chosen("chaos", 4))
    run_is_fine("--seconds", "6", "--runs", "1", "--seed", seed, "--servers", servers)


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deployment_keeps_its_promises_under_faults() -> None:
    """Real processes: they are what is tried."""
    run_is_fine("--seconds", "60", "--runs", "2", "--servers", *TOPOLOGIES)


def run_is_fine(*words: str) -> None:
    argv = [sys.executable, "-m", "proof.chaos", *words]
    ran = subprocess.run(argv, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_planted_defect_changes_one_place_and_is_some_rules_to_find(tmp_path: Path) -> None:
    rules = {rule.__name__ for rule in RULES}
    for defect in DEFECTS:
        place = tmp_path / defect.name / defect.path
        place.parent.mkdir(parents=True)
        place.write_text((ROOT / defect.path).read_text(encoding="utf-8"), encoding="utf-8")
        defect.plant(tmp_path / defect.name)
        assert place.read_text(encoding="utf-8") != (ROOT / defect.path).read_text(encoding="utf-8")
        if defect.path.endswith(".py"):
            compile(place.read_bytes(), defect.path, "exec")
        assert set(defect.finds) <= rules
        assert defect.servers in TOPOLOGIES
        assert defect.path.split("/")[0] in PARTS
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


def test_a_planted_defect_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no such defect: nothing"):
        named(["nothing"])


@pytest.mark.parametrize("silent", [0, 1])
async def test_slot_stays_where_a_server_does_not_say_who_it_is(silent: int) -> None:
    said: list[tuple[int, str]] = []

    def server(number: int) -> Any:
        async def says(*words: Any, **_: Any) -> Any:
            said.append((number, words[1]))
            slots = [[0, 8_191, [b"", 7_000]], [8_192, 16_383, [b"", 7_001]]]
            ids = None if number == silent else b"id"
            return {"SLOTS": slots, "MYID": ids}.get(words[1])

        return SimpleNamespace(
            name=f"redis{number}", fronts=[SimpleNamespace(port=7_000 + number)], says=says
        )

    servers = Servers("cluster", waits=False, redis=cast(Any, [server(0), server(1)]))
    assert await servers.move(5) == 0
    assert {word for _, word in said} == {"SLOTS", "MYID"}


def test_command_that_outlives_one_which_began_behind_it_has_run_beside_it() -> None:
    marks = [("a", "begin", 20.0), ("b", "begin", 21.0), ("b", "end", 21.5), ("a", "end", 22.0)]
    record = replace(fine(), done=tuple(Mark(f"s/{id}", what, ord(id), at) for id, what, at in marks))
    assert "none_beside: commands s/a and s/b of s ran at once" in judge(record).broken
    killed = replace(record, done=record.done[:-1])
    assert not any(line.startswith("none_beside") for line in judge(killed).broken)


async def test_failover_between_two_faults_may_lose_what_one_of_a_fault_may() -> None:
    serves = ["redis0"]

    async def whole() -> None:
        pass

    async def primaries() -> list[Any]:
        return [SimpleNamespace(name=name) for name in serves]

    servers = SimpleNamespace(kind="cluster", waits=False, whole=whole, primaries=primaries)
    nemesis = Nemesis(cast(Any, SimpleNamespace(servers=servers, absent={})), lambda _: None)
    await nemesis.inject([])
    serves[:] = ["redis1"]
    await nemesis.inject([])
    await nemesis.inject([])
    (failover,) = nemesis.unasked
    assert (failover.loses, nemesis.injected) == (LOSSES, [])
    assert nemesis.counts == {"failovers that no fault asked for": 1}
    assert failover.began < failover.ended


def test_network_of_a_worker_and_of_a_gateway_is_away_for_each_length() -> None:
    names = [f"{part} {n}" for part in ("worker", "gateway") for n in range(2)]
    parts = {name: SimpleNamespace(link=name.split()[0]) for name in names}
    nemesis = Nemesis(cast(Any, SimpleNamespace(parts=parts)), lambda _: None)
    dues = [Due(0.0, "network away", target, lasts) for target in range(2) for lasts in LENGTHS_S]
    away = {(cast(str, nemesis.link(due)), due.lasts) for due in dues}
    assert away == {(name, lasts) for name in ("worker", "gateway") for lasts in LENGTHS_S}
