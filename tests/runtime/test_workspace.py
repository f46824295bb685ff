"""A worker looks at the session's folder before anything runs there, and says what it misses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.core.ids import SessionId
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings, WorkspaceMark
from orchestrator.core.state import State
from orchestrator.gateways.folder_facts import MARK_FILE, MARK_FOLDER, mark
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.same_folder import MOMENT_S, FolderFaults, RecentChecks, check_workspace
from tests.broker.actors import holder_died
from tests.core.driver import Session, op
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends
from tests.runtime.test_processes import serves


def marked(folder: Path, said: str | None, expected: str = "0123") -> SessionFacts:
    """A session whose folder should say `expected`, and says something else (or nothing)."""
    file = folder / "mark"
    if said is not None:
        file.write_text(f"{said}\n")
    return SessionFacts(workspace=WorkspaceMark(str(folder), str(file), expected))


async def test_folder_with_its_mark_fits(tmp_path: Path) -> None:
    assert await check_workspace(marked(tmp_path, "0123"), str(tmp_path)) is None


async def test_long_mark_that_a_person_wrote_fits_where_the_session_was_made(tmp_path: Path) -> None:
    (tmp_path / MARK_FOLDER).mkdir()
    (tmp_path / MARK_FOLDER / MARK_FILE).write_text("m" * 300)
    made = mark(tmp_path, "unused")
    assert made is not None
    assert await check_workspace(SessionFacts(workspace=made), str(tmp_path)) is None


async def test_another_folder_at_the_same_path_is_told_by_both_ids_and_the_remedy(tmp_path: Path) -> None:
    fault = await check_workspace(marked(tmp_path, "4567"), str(tmp_path))
    assert fault is not None
    assert "should say 0123, and it says 4567" in fault
    assert "mount the same folder" in fault
    assert "write the id back" in fault


async def test_folder_without_a_mark_is_another_one(tmp_path: Path) -> None:
    fault = await check_workspace(marked(tmp_path, None), str(tmp_path))
    assert fault is not None
    assert "it cannot be read (No such file or directory)" in fault


async def test_link_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").symlink_to("elsewhere")
    fault = await check_workspace(SessionFacts(), str(tmp_path / "work"))
    assert fault is not None
    assert f"through the link '{tmp_path / 'work'}', which a command may have put there" in fault


async def test_unmarked_folder_only_has_to_exist(tmp_path: Path) -> None:
    assert await check_workspace(SessionFacts(), str(tmp_path)) is None
    fault = await check_workspace(SessionFacts(), str(tmp_path / "gone"))
    assert fault is not None
    assert "is not on this worker's machine" in fault
    assert await check_workspace(SessionFacts(), "") is not None


async def test_name_that_is_too_long_for_a_folder_is_told_as_one_that_is_not_there(tmp_path: Path) -> None:
    told = await check_workspace(SessionFacts(), str(tmp_path / ("x" * 5_000)))
    assert told is not None
    assert "is not on this worker's machine" in told


async def test_a_folder_in_order_is_looked_at_once_in_a_moment_and_a_faulty_one_each_time() -> None:
    now, found, looked = 0.0, None, 0

    async def check(_: SessionFacts, __: str) -> str | None:
        nonlocal looked
        looked += 1
        return found

    recent = RecentChecks(check, lambda: now)
    assert [await recent(SessionFacts(), "/a") for _ in range(3)] == [None] * 3
    assert looked == 1
    await recent(SessionFacts(), "/b")
    await recent(SessionFacts(workspace=WorkspaceMark("/a", "/a/mark", "0123")), "/a")
    assert looked == 3, "another folder, or the same under another mark, is another matter"
    now, found = MOMENT_S, "gone"
    assert [await recent(SessionFacts(), "/a") for _ in range(2)] == ["gone"] * 2
    assert looked == 5


async def test_task_in_the_wrong_folder_fails_and_nothing_runs(harness: Harness, tmp_path: Path) -> None:
    session = await harness.session(workspace=marked(tmp_path, "4567").workspace)
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.prompts == []
    (error,) = await harness.logged_events(session, "error")
    assert "should say 0123" in error["message"]
    (complete,) = await harness.logged_events(session, "task_complete")
    assert complete["last_agent_message"] is None


async def test_session_goes_on_when_its_folder_is_there_again(harness: Harness, tmp_path: Path) -> None:
    session = await harness.session(workspace=marked(tmp_path, None).workspace)
    await harness.say(session)
    await harness.run(session)
    (tmp_path / "mark").write_text("0123\n")
    await harness.say(session)
    await harness.run(session)
    assert len(harness.models.prompts) == 1


async def test_folder_is_looked_at_once_for_a_claim(harness: Harness) -> None:
    looks: list[str] = []

    async def counted(facts: SessionFacts, cwd: str) -> str | None:
        looks.append(cwd)
        return None

    harness.ports = replace(harness.ports, workspace=counted)
    harness.models.will([calls("c1"), ends()], [calls("c2"), calls("c3"), ends()])
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert harness.tools.started == {"c1": 1, "c2": 1, "c3": 1}
    assert looks == ["/tmp"]


async def test_command_approved_on_a_machine_without_the_folder_does_not_run(
    harness: Harness, tmp_path: Path
) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    session = await harness.session("untrusted", workspace=marked(tmp_path, "0123").workspace)
    await harness.say(session)
    await harness.run(session)
    (tmp_path / "mark").write_text("4567\n")
    await harness.approve(session, "c1")
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {}
    assert len(harness.models.prompts) == 1
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert end["stderr"].startswith("not run: ")
    assert len(await harness.logged_events(session, "error")) == 1


async def test_patch_of_a_lost_worker_is_not_judged_by_another_folder(
    harness: Harness, tmp_path: Path
) -> None:
    session = await harness.session(workspace=marked(tmp_path, "0123").workspace)
    harness.models.will([calls("p1", name="apply_patch"), ends()])
    harness.tools.verdicts["p1"] = "all"
    await harness.say(session)
    await half_done(harness, session, "p1")
    (tmp_path / "mark").write_text("4567\n")
    await harness.run(session)
    (end,) = await harness.logged_events(session, "patch_apply_end")
    assert not end["success"]
    assert "in doubt" in end["stderr"]


async def half_done(harness: Harness, session: SessionId, call_id: str) -> None:
    """A worker dies while the call runs."""
    harness.tools.gates[call_id] = Gate()
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began(call_id).wait()
    runner.lose()
    assert await running is Ended.LOST
    await holder_died(harness.broker, session)


async def test_folder_that_is_mended_while_a_process_keeps_the_claim_is_looked_at_again(
    harness: Harness,
) -> None:
    """The error says to create it and to send the input again: that has to be enough."""
    missing = {"/other"}

    async def check(facts: SessionFacts, cwd: str) -> str | None:
        return f"{cwd} is not there" if cwd in missing else None

    harness.ports = replace(harness.ports, workspace=check)
    session = await harness.session()
    runner, running = await serves(harness, session)
    await harness.submit(session, ops.OverrideTurnContext(cwd="/other"))
    for expected in (2, 2, 3):
        if expected == 3:
            missing.clear()
        await harness.say(session)
        runner.notify()
        await harness.until(session, "task_complete")
        assert len(harness.models.prompts) == expected
    errors = await harness.logged_events(session, "error")
    assert [error["message"] for error in errors] == ["/other is not there"] * 2
    harness.tools.processes[1].open()
    assert await running is Ended.PARKED


async def test_each_folder_of_a_claim_is_looked_at_and_one_in_order_once() -> None:
    looks, faults = list[str](), {"/a": "gone", "/b": "gone"}

    async def check(facts: SessionFacts, cwd: str) -> str | None:
        looks.append(cwd)
        return faults.get(cwd)

    found = FolderFaults(check)

    async def fault(cwd: str, **facts: Any) -> str | None:
        given = TurnSettings(cwd, "never", {"mode": "read-only"}, "m")
        return await found.fault(State(settings=given, facts=SessionFacts(**facts)))

    assert [await fault(cwd) for cwd in ("/a", "/c", "/a", "/c", "/b")] == [
        "gone",
        None,
        "gone",
        None,
        "gone",
    ]
    faults.clear()
    assert [await fault(cwd) for cwd in ("/a", "/b", "/c")] == [None] * 3
    faults |= {"/a": "gone again", "/c": "gone"}
    assert [await fault(cwd) for cwd in ("/a", "/b", "/c")] == [None] * 3
    assert looks == ["/a", "/c", "/a", "/b", "/a", "/b"]
    assert await fault("/d", portable=PortableFolder("/root", "name")) is None
    assert looks[-1] == "/b"


async def test_folder_that_is_looked_at_is_that_of_the_task_and_not_of_the_next_one() -> None:
    looks: list[str] = []

    async def check(facts: SessionFacts, cwd: str) -> str | None:
        looks.append(cwd)
        return None

    session = Session()
    session.say("go")
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    assert await FolderFaults(check).fault(session.state) is None
    assert looks == [session.task.settings.cwd]
    assert session.state.settings.cwd == "/elsewhere"
