"""A session that waits for the one machine with its unsaved changes: who says so, and who gives them up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from orchestrator.broker.worker_state import MachineFacts, WorkerState, encoded
from orchestrator.cli.invocation import opened
from orchestrator.cli.sessions import _remarks
from orchestrator.core.ids import SessionId, new_session_id
from orchestrator.doctor import check_fleet
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.views.sessions import Filter, trees_listed, wants_worker
from orchestrator.views.workers import fleet_stats
from orchestrator.wiring.open_deployment import Opened
from tests.cli.machine import Machine
from tests.cli.planted import planted_tree

SESSION = new_session_id(1_790_000_000_000, 3, 7_919)


@pytest.fixture
async def found(machine: Machine) -> AsyncIterator[Opened]:
    settings = load_settings(SettingsSources(cwd=machine.folder, environ=machine.environ))
    async with opened(settings) as found:
        yield found


async def unsaved(found: Opened, *fields: str) -> SessionId:
    """A session that is due, and whose machine is not there."""
    (session,) = await planted_tree(found, [SESSION])
    keys = found.broker.keys
    told = ("copy_on", "m1", "unsaved", "1", "epoch", "4", *fields)
    await found.broker.command("HSET", keys.session(session), *told)
    await found.broker.command("ZADD", keys.due(keys.shard_of(session), "default"), 1, session)
    return session


async def test_person_reads_which_machine_a_session_waits_for_and_how_to_give_that_up(found: Opened) -> None:
    session = await unsaved(found)
    listing = await trees_listed(found.broker, Filter(), 9, all=False)
    assert listing.trees[0].root["unsaved_on"] == "m1"
    told = "\n".join(_remarks(listing))
    assert f"{session} waits for a worker on machine m1" in told
    assert f"dendro revoke {session} --abandon-unsaved" in told
    head = await found.broker.logs.head(session)
    assert head is not None
    needs = wants_worker(head, (await found.broker.logs.serving([head]))[session])
    assert needs == "a worker of pool default on machine m1, which alone has its unsaved changes"
    fleet = await fleet_stats(found.broker)
    assert [pool.parked for pool in fleet.pools] == [{"unsaved": 1}]
    assert fleet.waiting == {"m1": [session]}


async def test_operator_reads_in_the_figures_and_at_the_doctor_which_machine_is_missed(
    found: Opened, machine: Machine
) -> None:
    session = await unsaved(found)
    drawn = machine.run("stats").stdout
    assert f"1 session due, and left to machine m1, where no worker is: {session}" in drawn
    assert f"dendro revoke {session} --abandon-unsaved" in drawn
    assert json.loads(machine.run("stats", "--json").stdout)["waiting"] == {"m1": [session]}
    full = MachineFacts(machine_id="m2", workspaces="/w", unfit="the disk is full: make room")
    state = WorkerState(("default",), 0, 1, facts=full)
    await found.broker.claims.heartbeat("w-m2", encoded(state))
    findings = [finding for finding in await check_fleet(found.settings) if finding.name != "upkeep process"]
    assert [finding.name for finding in findings] == ["workers", "workers", "sessions"]
    assert "w-m2: it leaves portable sessions to workers of other machines: the disk" in findings[-2].detail
    assert session in findings[-1].detail
    assert "start `dendro worker` on m1" in findings[-1].remedy


async def test_session_whose_changes_were_given_up_waits_for_no_machine(found: Opened) -> None:
    await unsaved(found, "abandoned", "ada")
    listing = await trees_listed(found.broker, Filter(), 9, all=False)
    assert listing.trees[0].root["unsaved_on"] is None
    assert "machine m1" not in "\n".join(_remarks(listing))


async def test_person_gives_unsaved_changes_up_and_is_told_what_follows(
    found: Opened, machine: Machine
) -> None:
    session = await unsaved(found)
    done = machine.run("revoke", session[-12:], "--abandon-unsaved")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{session}: the changes that only machine m1 has are given up")
    who = await found.broker.command("HGET", found.broker.keys.session(session), "abandoned")
    assert "@" in str(who)
    await found.broker.command("HSET", found.broker.keys.session(session), "unsaved", "")
    again = machine.run("revoke", session, "--abandon-unsaved")
    assert again.returncode == 1
    assert "has no unsaved changes: nothing was given up" in again.stderr
