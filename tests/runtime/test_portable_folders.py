"""A runner and a portable folder: made before what needs it, recorded before what changed it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.commands import FolderFailed, FolderUnsaved
from orchestrator.core.entries import decode_entry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import PortableFolder, SessionFacts
from orchestrator.core.state import State
from orchestrator.core.workspace import Unsaved, Workspace
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.runtime import side_work
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.side_work import FolderWork
from tests.runtime.connections import Gate
from tests.runtime.folders import ScriptedFolders
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends
from tests.runtime.test_worker_claims import at_work


@pytest.fixture
def folders(harness: Harness) -> ScriptedFolders:
    made = ScriptedFolders()
    harness.ports = dataclasses.replace(harness.ports, folders=made)
    return made


async def portable(harness: Harness) -> SessionId:
    return await harness.session(portable=PortableFolder("/workspaces", "repo"))


async def kinds(harness: Harness, session: SessionId) -> list[str]:
    decoded = [decode_entry(entry.payload) for entry in await harness.log(session)]
    return [entry.payload["kind"] for entry in decoded if entry.type == "dendro"]


async def running(harness: Harness, session: SessionId, **config: Any) -> tuple[Any, asyncio.Task[Ended]]:
    runner = harness.runner(await harness.claimed(session), **config)
    return runner, asyncio.create_task(runner.run())


async def test_session_that_only_talks_has_no_folder(harness: Harness, folders: ScriptedFolders) -> None:
    session = await portable(harness)
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert folders.asked == ["release"]


async def test_folder_is_made_then_written_then_recorded_before_the_call_ends(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    asked = [each for each in folders.asked if not each.startswith("recorded")]
    assert asked == ["make", "writing", "changed c1", "release"]
    assert folders.asked[-2] == "recorded s1 resting"
    found = await kinds(harness, session)
    done = [place for place, kind in enumerate(found) if kind == "call"][-1]
    assert found[done - 1] == "workspace"
    assert found.index("workspace_made") < found.index("call")


async def test_what_a_process_wrote_before_a_look_saw_its_end_is_recorded_before_the_look_ends(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    harness.models.will([calls("c1", "exec_command"), ends()], [calls("w1", "write_stdin"), ends()])
    looks = harness.tools.gates["w1"] = Gate()
    await harness.say(session)
    _, task = await running(harness, session)
    await looks.reached.wait()
    asked = len(folders.asked)
    folders.writes()
    looks.open()
    await harness.until(session, "exec_command_end")
    # Only now does the worker hear of the end by itself.
    harness.tools.processes[1].open()
    assert await task is Ended.PARKED
    assert folders.asked[asked] == "changed w1"
    found = await kinds(harness, session)
    over, saved = found.index("process_over"), [n for n, kind in enumerate(found) if kind == "workspace"]
    assert len(saved) == 2
    assert saved[-1] < over


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_what_processes_wrote_between_tasks_is_recorded_before_their_ends_are_told(
    harness: Harness, folders: ScriptedFolders, count: int
) -> None:
    session = await portable(harness)
    for n in range(1, count + 1):
        harness.models.will([calls(f"c{n}", "exec_command"), ends()])
    await harness.say(session)
    _, task = await running(harness, session)
    await harness.until(session, "task_complete")
    for number in range(count, 0, -1):
        folders.writes()
        harness.tools.processes[number].open()
        await harness.until(session, "exec_command_end")
    assert await task is Ended.PARKED
    found = await kinds(harness, session)
    assert found.count("process_over") == count
    assert found.count("workspace") == 2 * count, "as each was left, and at the end of each"
    overs = [place for place, kind in enumerate(found) if kind == "process_over"]
    assert [found[place - 1] for place in overs] == ["workspace"] * count


@pytest.mark.parametrize("closes", [True, False])
async def test_what_a_process_wrote_that_is_stopped_is_recorded_before_its_end_is_told(
    harness: Harness, folders: ScriptedFolders, closes: bool
) -> None:
    """By a shutdown, or by its worker, which leaves."""
    session = await portable(harness)
    harness.models.will([calls("c1", "exec_command"), ends()])
    await harness.say(session)
    async with at_work(harness.worker(drain_grace_s=600.0)):
        await harness.until(session, "task_complete")
        folders.writes()
        if closes:
            await harness.submit(session, ops.Shutdown())
            await harness.until(session, "shutdown_complete")
    assert harness.tools.killed == ["process 1"]
    found = await kinds(harness, session)
    saved = [place for place, kind in enumerate(found) if kind == "workspace"]
    assert len(saved) == 2
    assert saved[-1] < found.index("process_over")


async def test_runner_that_breaks_in_its_folder_lets_go_of_it(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(folders, "recorded", breaks)
    session = await portable(harness)
    harness.models.will([calls("c1")])
    await harness.say(session)
    with pytest.raises(RuntimeError, match="a defect"):
        await harness.run(session)
    assert folders.asked[-1] == "release"


async def test_interrupted_command_leaves_what_it_did_to_the_folder_recorded(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner, task = await running(harness, session)
    await harness.tools.began("c1").wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    assert await task is Ended.PARKED
    assert "changed c1 within 1" in folders.asked
    found = await kinds(harness, session)
    assert found.index("stopping") < found.index("workspace") < found.index("task_ended")


async def test_command_that_its_leaving_worker_kills_is_recorded_first(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.tools.began("c1").wait()
    runner.drain()
    assert await task is Ended.YIELDED
    found = await kinds(harness, session)
    assert found[-2:] == ["workspace", "call"]


async def test_interrupt_of_a_command_that_its_leaving_worker_has_killed_waits_for_what_it_did(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session, folders.stopping = await portable(harness), Gate()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.tools.began("c1").wait()
    runner.drain()
    await folders.stopping.reached.wait()
    await harness.submit(session, ops.Interrupt())
    await harness.submit(session, ops.SetThreadName(name="behind it"))
    runner.notify()
    await harness.until(session, "thread_name_updated")
    folders.stopping.open()
    assert await task is Ended.PARKED
    found = await kinds(harness, session)
    assert found.index("stopping") < found.index("workspace") < found.index("task_ended")


async def test_tool_that_breaks_down_leaves_what_it_did_recorded(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    harness.models.will([calls("c1"), ends()])
    harness.tools.fails["c1"] = RuntimeError("broken")
    await harness.say(session)
    await harness.run(session)
    assert "changed c1" in folders.asked
    assert "RuntimeError" in harness.models.outputs()["c1"]


async def test_interrupt_stops_the_making_of_a_folder(harness: Harness, folders: ScriptedFolders) -> None:
    session = await portable(harness)
    folders.making = asyncio.Event()
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    runner, task = await running(harness, session)
    await folders.began_making.wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    assert await task is Ended.PARKED
    assert harness.tools.started == {}
    assert "workspace_made" not in await kinds(harness, session)


async def test_leaving_worker_keeps_the_session_until_it_has_stopped_making_the_folder(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    folders.making, folders.unmaking = asyncio.Event(), Gate()
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await folders.began_making.wait()
    runner.drain()
    await folders.unmaking.reached.wait()
    await harness.submit(session, ops.SetThreadName(name="later"))
    runner.notify()
    await harness.until(session, "thread_name_updated")
    assert await harness.broker.claims.claim_session(session, "w2", "other") is None
    folders.unmaking.open()
    assert await task is Ended.YIELDED
    assert folders.asked == ["make", "release"]


async def test_machine_that_cannot_make_the_folder_gives_the_session_back(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    folders.fails = [FolderFailed("m1", "no space left", elsewhere=True)]
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.YIELDED
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"c1": 1}


async def test_claim_is_kept_until_the_store_takes_the_changes(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "FIRST_TRY_S", 0.01)
    session, folders.away = await portable(harness), True
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    _, task = await running(harness, session)
    await harness.until(session, "task_complete")
    folders.tried.clear()
    await folders.tried.wait()
    assert not task.done()
    folders.away = False
    assert await task is Ended.PARKED
    assert (await kinds(harness, session))[-1] == "workspace"
    warned = await harness.logged_events(session, "warning")
    assert len(warned) == 1


async def test_claim_is_given_up_when_the_store_stays_away_and_taken_up_where_the_changes_are(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "FIRST_TRY_S", 0.01)
    session, folders.away = await portable(harness), True
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    assert (await harness.facts(session, "workspace_unsaved"))[-1]["trying"] is False
    folders.away = False
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    assert "has" in folders.asked
    found = await kinds(harness, session)
    assert "workspace_rolled_back" not in found
    assert found[-1] == "workspace" or "workspace" in found


async def test_changes_of_another_machine_that_no_store_had_are_told_as_lost(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "FIRST_TRY_S", 0.01)
    session, folders.away = await portable(harness), True
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    folders.machine = "m2"
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    assert (await harness.facts(session, "workspace_rolled_back"))[0]["lost"] == ["c1"]
    assert any("c1" in warned["message"] for warned in await harness.logged_events(session, "warning"))


async def place(harness: Harness, session: SessionId) -> object:
    """The place of the folder, as claims read it."""
    names = ("copy_on", "unsaved", "failed_on", "abandoned")
    return await harness.broker.command("HMGET", harness.broker.keys.session(session), *names)


async def test_claims_read_where_the_folder_is_from_the_commits_that_make_and_save_it(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "FIRST_TRY_S", 0.01)
    session, folders.away = await portable(harness), True
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    assert await place(harness, session) == [b"m1", b"1", b"", b""]
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.unsaved_on == "m1"
    folders.away = False
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await place(harness, session) == [b"m1", b"", b"", b""]


async def test_session_without_a_portable_folder_has_no_place(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await place(harness, session) == [None] * 4


async def test_machine_that_could_not_make_the_folder_is_named_to_claims(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    folders.fails = [FolderFailed("m1", "no space left", elsewhere=True)]
    harness.models.will([calls("c1")])
    await harness.say(session)
    assert await harness.run(session) is Ended.YIELDED
    assert await place(harness, session) == [b"", b"", b"m1", b""]


async def test_each_machine_that_could_not_make_the_folder_is_named_until_one_has_made_it(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await portable(harness)
    folders.fails = [FolderFailed(name, "no space left", elsewhere=True) for name in ("m1", "m2")]
    harness.models.will([calls("c1"), ends()], [ends()])
    await harness.say(session)
    for name in ("m1", "m2"):
        folders.machine = name
        assert await harness.run(session) is Ended.YIELDED
        assert await place(harness, session) == [b"", b"", name.encode(), b""]
    folders.machine = "m3"
    assert await harness.run(session) is Ended.PARKED
    assert await place(harness, session) == [b"m3", b"", b"", b""]


async def test_changes_that_a_person_gave_up_are_gone_where_they_were_and_the_log_says_who(
    harness: Harness, folders: ScriptedFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "FIRST_TRY_S", 0.01)
    session, folders.away = await portable(harness), True
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, hold_s=0.0) is Ended.PARKED
    assert (await harness.broker.trees.abandon_unsaved(session, "ada@desk")).state == "free"
    assert await harness.run(session) is Ended.PARKED
    (rolled,) = await harness.facts(session, "workspace_rolled_back")
    assert (rolled["lost"], rolled["by"]) == (["c1"], "ada@desk")
    assert any("ada@desk" in warned["message"] for warned in await harness.logged_events(session, "warning"))
    assert await place(harness, session) == [b"", b"", b"", b""]


@pytest.mark.parametrize(
    ("portable", "made_under", "asked"),
    [(True, 2, ["changed c1"]), (True, 1, []), (True, 0, []), (False, 2, []), (False, 0, [])],
)
async def test_only_a_portable_folder_that_this_claim_made_is_recorded(
    harness: Harness, folders: ScriptedFolders, *, portable: bool, made_under: int, asked: list[str]
) -> None:
    folder = PortableFolder("/workspaces", "repo") if portable else None
    session = SessionId("s")
    state = State(
        facts=SessionFacts(session, TreeId(session), portable=folder), workspace=Workspace(epoch=made_under)
    )
    claim, journal = SimpleNamespace(session=session, epoch=2), SimpleNamespace(state=state)
    context: Any = SimpleNamespace(ports=harness.ports, claim=claim, journal=journal)
    arrivals: Any = SimpleNamespace()
    await FolderWork(context, arrivals).record((CallId("c1"),))
    assert folders.asked == asked


class Outages:
    """The work of one claim whose store is away now and then; each pause lasts as long as it says."""

    def __init__(self, hold_s: float) -> None:
        self.folders, self.now, self.pauses = ScriptedFolders(), 0.0, list[float]()
        self.told: list[Any] = []
        self.in_pause: Callable[[], None] = lambda: None
        self.journal = SimpleNamespace(state=State())
        ports = SimpleNamespace(folders=self.folders, sleep=self._sleep, monotonic=lambda: self.now)
        claim, config = SimpleNamespace(session=SessionId("s"), epoch=1), SimpleNamespace(hold_s=hold_s)
        context: Any = SimpleNamespace(ports=ports, claim=claim, journal=self.journal, config=config)
        arrivals: Any = SimpleNamespace(push=self.told.append)
        self.work = FolderWork(context, arrivals)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.in_pause()

    @property
    def unsaved(self) -> Unsaved | None:
        found: Unsaved | None = self.journal.state.workspace.unsaved
        return found

    def goes(self) -> None:
        """The store goes away, and the log says so."""
        self.folders.away = True
        self.folders.writes()
        news = Unsaved(round(self.now * 1000), "m1", snapshot=SnapshotId(f"u{self.folders._written}"))
        self._has(news)

    def comes_back(self) -> None:
        """The end of a call has had the changes saved."""
        self.folders.away, self.folders._written = False, 0
        self._has(None)

    def _has(self, unsaved: Unsaved | None) -> None:
        facts = SessionFacts(SessionId("s"), TreeId("s"), portable=PortableFolder("/workspaces", "repo"))
        self.journal.state = State(facts=facts, workspace=Workspace(epoch=1, unsaved=unsaved))

    async def tries(self) -> bool:
        """The store is tried once more; whether the worker gives up."""
        assert self.unsaved is not None
        await self.work._save(self.unsaved)
        return any(isinstance(news, FolderUnsaved) and not news.trying for news in self.told)


@pytest.mark.parametrize("lasted", [1, 3, 6])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_each_outage_of_the_store_under_one_claim_has_a_time_and_pauses_of_its_own(
    before: int, lasted: int
) -> None:
    outages = Outages(hold_s=100.0)
    for _ in range(before):
        outages.goes()
        for _ in range(lasted):
            assert not await outages.tries()
        outages.comes_back()
        outages.now += 1000.0
    outages.goes()
    began, outages.pauses[:] = outages.now, []
    while not await outages.tries():
        assert outages.now - began <= 100.0
    assert outages.now - began > 100.0
    assert outages.pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert await outages.tries(), "the time stays over for this outage"
    assert outages.pauses[-1] == 30.0


@pytest.mark.parametrize("later", [0.0, 1000.0])
async def test_outage_that_begins_in_the_pause_of_another_one_has_a_time_of_its_own(later: float) -> None:
    outages = Outages(hold_s=100.0)
    outages.goes()
    for _ in range(5):
        assert not await outages.tries()

    def another() -> None:
        outages.comes_back()
        outages.now += later
        outages.goes()
        outages.in_pause = lambda: None

    outages.in_pause = another
    assert not await outages.tries()
    began, outages.pauses[:] = outages.now, []
    while not await outages.tries():
        pass
    assert outages.now - began > 100.0
    assert outages.pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
