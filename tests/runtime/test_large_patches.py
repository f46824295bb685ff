"""Patches of thousands of files, and of files that are too large: applied whole, or refused by the limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.blobs import references
from orchestrator.core.calls import Call
from orchestrator.core.commands import CallFinished
from orchestrator.core.ids import SessionId
from orchestrator.model.prompt import ItemDone
from orchestrator.requests import request_of
from orchestrator.runtime.loader import Cache
from orchestrator.runtime.runner import Ended
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.patch import writer
from orchestrator.tools.patch.plan import MOST_BYTES, MOST_FILES
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import built_in
from orchestrator.views.patterns import why_not_allowed
from orchestrator.wiring.worker_parts import ToolCalls
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import ends

SUPPORT = SandboxSupport(None, 0, ())
FILES = 5_000
SEVERAL = 2_000


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(SUPPORT))
    yield started
    await started.close()


@pytest.fixture
def armed(harness: Harness, supervisor: Supervisor) -> Harness:
    """A harness whose calls are run by the real tools."""
    tools = ToolCalls(harness.ports.texts, built_in(ToolConfig(SUPPORT, {}), supervisor))
    harness.ports = replace(harness.ports, tools=tools)
    return harness


def replace_tools(harness: Harness, tools: Any) -> Harness:
    harness.ports = replace(harness.ports, tools=tools)
    return harness


async def run(harness: Harness, supervisor: Supervisor, session: SessionId) -> Ended:
    claimed = await harness.claimed(session)
    supervisor.extend(claimed.claim.claim_id, time.clock_gettime(time.CLOCK_BOOTTIME) + 120)
    return await harness.runner(claimed).run()


def patch(*hunks: str) -> str:
    return "\n".join(("*** Begin Patch", *hunks, "*** End Patch"))


def asks(text: str, call_id: str = "p1") -> ItemDone:
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": text, "call_id": call_id}
    return ItemDone(item)


def adding(folder: Path, count: int = FILES) -> str:
    hunks = ((f"*** Add File: {folder}/d{n % 40}/f{n}", f"+a line of file {n}") for n in range(count))
    return patch(*(line for hunk in hunks for line in hunk))


def changing(folder: Path, count: int) -> str:
    hunks = (
        (f"*** Update File: {folder}/d{n % 40}/f{n}", f"-a line of file {n}", "+another")
        for n in range(count)
    )
    return patch(*(line for hunk in hunks for line in hunk))


async def test_a_patch_of_thousands_of_files_is_applied_and_told_in_bounded_events(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    session = await armed.session()
    armed.models.will([asks(adding(tmp_path)), ends()], [asks(changing(tmp_path, FILES), "p2"), ends()])
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    outputs = armed.models.outputs()
    assert [output.split('"')[3][:7] for output in outputs.values()] == ["Success"] * 2
    assert len(list(tmp_path.glob("*/f*"))) == FILES
    assert (tmp_path / "d0" / "f0").read_text() == "another\n"
    begun = await armed.logged_events(session, "patch_apply_begin")
    assert [len(event["changes"]) + event["changes_left_out"] for event in begun] == [FILES] * 2
    assert [event["success"] for event in await armed.logged_events(session, "patch_apply_end")] == [True] * 2
    assert max(len(entry.payload) for entry in await armed.log(session)) < 256 << 10
    # Both patches count from what was there before the first: no file.
    (_, diff) = [e for e in await armed.until(session, "task_complete") if e.type == "turn_diff"]
    assert diff.msg["unified_diff"].count("new file mode") == FILES
    assert await armed.digest(session) == await armed.live_digest(session)


async def test_files_of_middling_size_stand_beside_the_log(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    """Each file's content is short enough to stay in its entry, and all of them are not."""
    for number in range(300):
        (tmp_path / f"f{number}").write_text("x" * 4_000 + "\n")
    hunks = ((f"*** Delete File: {tmp_path}/f{number}",) for number in range(300))
    session = await armed.session()
    armed.models.will([asks(patch(*(line for hunk in hunks for line in hunk))), ends()])
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    assert "Success" in armed.models.outputs()["p1"]
    assert list(tmp_path.iterdir()) == []


async def test_who_is_asked_about_a_patch_that_is_not_shown_whole_is_told_so(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    session = await armed.session("untrusted")
    armed.models.will(
        [asks(adding(tmp_path, SEVERAL)), ends()], [asks(changing(tmp_path, SEVERAL), "p2"), ends()]
    )
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    (asked,) = await armed.logged_events(session, "apply_patch_approval_request")
    shown, left_out = len(asked["changes"]), asked["changes_left_out"]
    assert shown + left_out == SEVERAL
    assert asked["reach"]["why"] == f"2,000 files change, and {left_out:,} of them are not shown"
    assert "more than it shows" in why_not_allowed(f"{tmp_path}/*", request_of(asked))
    assert list(tmp_path.iterdir()) == []
    await armed.approve_patch(session, "p1", "approved_for_session")
    assert await run(armed, supervisor, session) is Ended.PARKED
    assert len(list(tmp_path.glob("*/f*"))) == SEVERAL
    # Files that were not shown were not approved: a second patch of them is asked about again.
    assert len(await armed.logged_events(session, "apply_patch_approval_request")) == 2


async def test_a_takeover_judges_a_patch_whose_record_stands_beside_the_log(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    session, tools, writing = await armed.session(), armed.ports.tools, Gate()

    class Dying:
        """The tools of a worker that dies when it is to write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tools, name)

        async def run(self, call: Call, site: CallSite) -> CallFinished:
            await writing.wait()
            raise AssertionError

    armed.models.will([asks(adding(tmp_path, SEVERAL)), ends()])
    await armed.say(session)
    runner = replace_tools(armed, Dying()).runner(await armed.claimed(session))
    running = asyncio.create_task(runner.run())
    await writing.reached.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    replace_tools(armed, tools)
    begun = (await armed.facts(session, "call"))[-1]
    assert begun["phase"] == "running"
    assert list(references(begun["spec"]["record"]))
    await armed.broker.command("ZADD", armed.broker.keys.pool(1, "harness")[1], 1, session)
    armed.cache = Cache()
    assert await run(armed, supervisor, session) is Ended.PARKED
    assert "Success" in armed.models.outputs()["p1"], "nothing had been written, so it is run again"


@pytest.mark.parametrize(
    "hunk", ["*** Delete File: {}", "*** Update File: {}\n-a\n+b", "*** Add File: {}\n+a"]
)
async def test_a_file_over_the_limit_is_refused_by_name_before_anything_is_written(
    armed: Harness, supervisor: Supervisor, tmp_path: Path, hunk: str
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(writer.MOST_BYTES + 1)
    session = await armed.session()
    armed.models.will([asks(patch(f"*** Add File: {tmp_path}/a", "+a", hunk.format(large))), ends()])
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    told = armed.models.outputs()["p1"]
    assert f"{large}: File too large for a patch (over 64 MiB)" in told
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    assert len(armed.models.prompts) == 2


async def test_more_files_than_a_patch_may_change_are_refused_at_once(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    session = await armed.session()
    armed.models.will([asks(adding(tmp_path, MOST_FILES + 1)), ends()])
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    assert "at most 10,000 files, this one changes 10,001; send it in parts" in armed.models.outputs()["p1"]
    assert list(tmp_path.iterdir()) == []


async def test_more_bytes_than_a_patch_may_read_are_refused(
    armed: Harness, supervisor: Supervisor, tmp_path: Path
) -> None:
    count = MOST_BYTES // writer.MOST_BYTES + 1
    for number in range(count):
        with (tmp_path / f"f{number}").open("wb") as file:
            file.truncate(writer.MOST_BYTES)
    session = await armed.session()
    armed.models.will([asks(patch(*(f"*** Delete File: {tmp_path}/f{n}" for n in range(count)))), ends()])
    await armed.say(session)
    assert await run(armed, supervisor, session) is Ended.PARKED
    assert "at most 268,435,456 bytes together" in armed.models.outputs()["p1"]
    assert len(list(tmp_path.iterdir())) == count
