"""Programs under the supervisor that serve the worker over their pipes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchestrator.tools.mcp_tools import Program, RunningProgram, running_program
from tests.mcp.serving import bad, is_alive, servers_and_supervisor, supervisor, until
from tests.mcp.test_bad_servers import call, works


def program(*argv: str, folder: Path, unread: int = 1 << 20) -> Program:
    return Program(argv, folder, {"PATH": os.environ["PATH"]}, unread, 100)


async def line(running: RunningProgram) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = await running.read()
        assert more, running.last_words()
        data += more
    return data


async def test_program_answers_and_ends_by_itself_when_its_input_ends(tmp_path: Path) -> None:
    end = f"read line; cat > {tmp_path / 'end'}; echo ended >> {tmp_path / 'end'}"
    async with supervisor() as kept:
        async with running_program(kept, program("cat", folder=tmp_path)) as running:
            await running.write(b"hello\n")
            assert await line(running) == b"hello\n"
        async with running_program(kept, program("sh", "-c", f"echo; {end}", folder=tmp_path)) as running:
            await line(running)
            await running.write(b"first\nall of it\n")
    assert (tmp_path / "end").read_text() == "all of it\nended\n"


async def test_nothing_that_a_program_started_is_left_behind(tmp_path: Path) -> None:
    script = "setsid sleep 1000 & echo $!; trap '' TERM; while :; do sleep 1000; done"
    async with supervisor() as kept:
        async with running_program(kept, program("bash", "-c", script, folder=tmp_path)) as running:
            child = int(await line(running))
            assert is_alive(child)
        assert not is_alive(child)


async def test_program_that_does_not_read_holds_up_its_writer_alone_and_its_end_frees_it(
    tmp_path: Path,
) -> None:
    async with supervisor() as kept:
        script = "echo $$; exec sleep 1000"
        async with running_program(kept, program("sh", "-c", script, folder=tmp_path)) as running:
            pid = int(await line(running))
            writing = asyncio.create_task(running.write(b"x" * (1 << 20)))
            await asyncio.wait({writing}, timeout=0.05)
            assert not writing.done()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(BrokenPipeError):
                await writing
            assert await running.read() == b""
            assert running.last_words() == "it ended with the code 137"


async def test_program_that_writes_more_than_anybody_reads_is_ended(tmp_path: Path) -> None:
    yes = program("yes", folder=tmp_path, unread=100_000)
    async with supervisor() as kept, running_program(kept, yes) as running:
        # Nobody reads until it has ended.
        await until(lambda: "it wrote" in running.last_words())
        assert running.last_words() == "it wrote more than 100,000 bytes that were not read yet"
        assert len(await running.read()) <= 100_000
        assert await running.read() == b""


async def test_program_that_writes_errors_without_end_is_ended(tmp_path: Path) -> None:
    noisy = program("sh", "-c", "yes >&2", folder=tmp_path)
    async with supervisor() as kept, running_program(kept, noisy) as running:
        assert await running.read() == b""
        assert "bytes of errors within 10 s" in running.last_words()


async def test_end_of_the_standard_error_says_why_a_program_ended(tmp_path: Path) -> None:
    async with supervisor() as kept:
        script = "echo " + "x" * 200 + " >&2; echo the reason >&2; exit 3"
        async with running_program(kept, program("sh", "-c", script, folder=tmp_path)) as running:
            assert await running.read() == b""
            said = running.last_words()
    assert said.startswith("it ended with the code 3; its last words: xxx")
    assert said.endswith("\nthe reason")
    assert len(said) < 160


async def test_servers_die_with_their_supervisor_and_the_next_call_has_both_anew(tmp_path: Path) -> None:
    async with servers_and_supervisor(bad()) as (made, kept):
        assert await works(made, tmp_path)
        os.kill(kept.pid, signal.SIGKILL)
        lost = await call(made, "sleep", tmp_path)
        assert isinstance(lost.result, str)
        assert await works(made, tmp_path)
