"""Ends of set-ups as people read them, and commands that set-ups are; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import FolderSetup, PortableFolder, SessionFacts
from orchestrator.core.state import State
from orchestrator.sandbox.policy_paths import InvalidPolicy
from orchestrator.sandbox.probe import NoConfinement, SandboxSupport
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import SupervisorLost
from orchestrator.tools.folder_setup import NO_FOLDER, OUTPUT_BYTES, SetupRunner
from orchestrator.tools.tool_context import CallSite, ToolConfig

SUPPORT = SandboxSupport("/usr/bin/bwrap", 0, ())


class Runs:
    """A supervisor whose commands end as a test says."""

    def __init__(self, end: Finished | Exception) -> None:
        self.end = end
        self.asked: list[Command] = []

    async def run(self, command: Command, output: Any) -> Finished:
        self.asked.append(command)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


async def ended(root: Path, end: Finished | Exception, setup: FolderSetup | None) -> tuple[Any, Runs]:
    supervisor = Runs(end)
    runner = SetupRunner(ToolConfig(SUPPORT, {"PATH": "/usr/bin:/bin"}), cast(Any, supervisor))
    facts = SessionFacts(
        session_id=SessionId("s"),
        tree_id=TreeId("t"),
        portable=PortableFolder(str(root), "work", setup=setup),
    )
    return await runner.run(CallSite("claim", State(facts=facts), lambda _: None)), supervisor


@pytest.mark.parametrize("origin", ["", "tools/setup.sh"])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        (Finished(3, aggregated=b"out\nerr\n"), "ended with exit code 3. It said:\nout\nerr"),
        (Finished(3), "ended with exit code 3"),
        (Finished(137, killed=True), "ended with exit code 137"),
        (Finished(0, killed=True), "ended with exit code 0"),
        (
            Finished(0, error="2 processes could not be killed"),
            "ended with exit code 0. It said:\n2 processes",
        ),
        (Finished(-1, error="no such folder"), "did not run. It said:\nno such folder"),
        (
            Finished(124, timed_out=True, duration_s=1.5, aggregated=b"waiting\n"),
            "did not end within 1.5 s (`workspace.setup_timeout_s`). It said:\ncommand timed out",
        ),
        (NoConfinement("nothing confines here"), "did not run. It said:\nnothing confines here"),
        (SupervisorLost("it is gone"), "did not run. It said:\nit is gone"),
        (InvalidPolicy("no policy"), "did not run. It said:\nno policy"),
    ],
)
async def test_set_up_that_failed_says_how(
    tmp_path: Path, origin: str, end: Finished | Exception, how: str
) -> None:
    told, _ = await ended(tmp_path, end, FolderSetup("x", timeout_ms=1500, origin=origin))
    assert told.outcome == "failed"
    assert told.message.startswith(f"{origin or 'its script'} {how}")


async def test_set_up_that_is_done_has_its_time_and_no_words(tmp_path: Path) -> None:
    told, _ = await ended(tmp_path, Finished(0, aggregated=b"much\n", duration_s=2.5), FolderSetup("x"))
    assert (told.outcome, told.seconds, told.message) == ("done", 2.5, "")


async def test_session_without_a_set_up_runs_none(tmp_path: Path) -> None:
    told, supervisor = await ended(tmp_path, Finished(0), None)
    assert (told.outcome, told.message, supervisor.asked) == ("failed", NO_FOLDER, [])


@pytest.mark.parametrize("network", [True, False])
async def test_set_up_is_the_script_that_was_recorded_within_its_own_time(
    tmp_path: Path, network: bool
) -> None:
    script = "echo 'é' && cat <<E\n$0\nE\n"
    _, supervisor = await ended(tmp_path, Finished(0), FolderSetup(script, network, timeout_ms=2_001))
    (command,) = supervisor.asked
    assert command.argv[1:] == ("-c", script, "setup")
    assert (command.claim, command.timeout_s, command.confinement.network) == ("claim", 2.001, network)


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
@pytest.mark.parametrize("more", [0, 1])
async def test_failed_set_up_shows_the_end_of_its_output_up_to_a_bound(
    tmp_path: Path, letter: str, more: int
) -> None:
    size = len(letter.encode())
    said = "\n" + "-" * (OUTPUT_BYTES % size + more) + letter * (OUTPUT_BYTES // size) + "\n\n"
    told, _ = await ended(tmp_path, Finished(1, aggregated=said.encode()), FolderSetup("x"))
    shown = told.message.partition(" It said:\n")[2]
    if not more:
        assert shown == said.strip()
    else:
        assert shown.startswith("[...] ")
        kept = shown.removeprefix("[...] ")
        assert said.strip().endswith(kept)
        assert OUTPUT_BYTES - size < len(kept.encode()) <= OUTPUT_BYTES
