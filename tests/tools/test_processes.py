"""Processes of `exec_command` on the real kernel: typed to, looked at, flooding, hard to kill."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.config_keys import SandboxSettings
from orchestrator.core.calls import Call, Exec, StdinWork, WriteStdin
from orchestrator.core.commands import Assessment, CallFinished, Immediate, ProcessEnd
from orchestrator.core.frozen import replace
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import Process, State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.probe import Preference, SandboxSupport, probe
from orchestrator.tools.exec import worker_processes
from orchestrator.tools.exec.command import Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.exec_command import WriteStdinTool
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

PATH = {"PATH": os.defpath + ":/usr/local/bin"}
EVERYWHERE = pytest.mark.parametrize("session", ["bubblewrap", "landlock", "none"], indirect=True)
CONFINED = pytest.mark.parametrize("session", ["bubblewrap"], indirect=True)


@dataclass
class Session:
    """A session's calls, made one after the other as a runner makes them."""

    toolbox: Toolbox
    folder: Path
    mode: str
    shown: list[JsonObject] = field(default_factory=list)
    made: int = 0

    @property
    def site(self) -> CallSite:
        settings = TurnSettings(str(self.folder), "never", {"mode": self.mode}, "gpt-5")
        task = Task(SubmissionId("u1"), "user", settings)
        state = State(task=task, facts=SessionFacts(unified_exec=True))
        return CallSite("c", state, self.shown.append, lasting_deltas=self.shown.append)

    async def assess(self, tool: str, **arguments: Any) -> Assessment:
        return await self.toolbox.assess(self._call(tool, arguments), self.site)

    async def start(self, cmd: str, **arguments: Any) -> CallFinished:
        given = {"yield_time_ms": 250, "login": False, **arguments}
        call = self._call("exec_command", {"cmd": cmd, **given})
        asked = await self.toolbox.assess(call, self.site)
        assert isinstance(asked, Exec)
        work = asked.work(sandboxed=self.mode != "danger-full-access")
        assert work.lasting is not None
        self.made += 1
        numbered = replace(work, lasting=replace(work.lasting, number=self.made))
        return await self.toolbox.run(replace(call, work=numbered), self.site)

    async def write(self, number: int, chars: str = "", yield_ms: int | None = None) -> CallFinished:
        call = self._call("write_stdin", {"session_id": number, "chars": chars})
        asked = await self.toolbox.assess(call, self.site)
        assert isinstance(asked, WriteStdin)
        wait = asked.yield_ms if yield_ms is None else yield_ms
        work = StdinWork(number, CallId("c1"), chars, wait, asked.max_tokens)
        return await self.toolbox.run(replace(call, work=work), self.site)

    async def says(self, number: int, *words: str, chars: str = "") -> str:
        """The output of looks at a process, until it holds the words."""
        output = ""
        async with asyncio.timeout(20):
            while not all(word in output for word in words):
                output += str((await self.write(number, chars, yield_ms=250)).output)
                chars = ""
        return output

    async def follow(self, number: int = 1) -> ProcessEnd:
        process = Process(number, CallId("c1"), SubmissionId("u1"), "cmd", "/", 1, "")
        return await self.toolbox.follow(process, "c")

    def _call(self, name: str, arguments: dict[str, Any]) -> Call:
        item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": json.dumps(arguments)}
        return Call(CallId("c1"), name, item)


@pytest.fixture(scope="module")
def machine() -> SandboxSupport:
    return probe()


@pytest.fixture
async def session(
    request: pytest.FixtureRequest, machine: SandboxSupport, tmp_path: Path
) -> AsyncIterator[Session]:
    mechanism = getattr(request, "param", "none")
    prefer: Preference = "landlock" if mechanism == "landlock" else "auto"
    mode = "danger-full-access" if mechanism == "none" else "workspace-write"
    supervisor = await Supervisor.start(SupervisorConfig(machine, prefer))
    supervisor.extend("c", time.clock_gettime(CLOCK_BOOTTIME) + 60)
    config = ToolConfig(machine, PATH, SandboxSettings(mechanism=prefer))
    made = Session(Toolbox(built_in(config, supervisor)), tmp_path, mode)
    asked = await made.assess("exec_command", cmd="true")
    if not isinstance(asked, Exec) or not (asked.confinable or mode == "danger-full-access"):
        pytest.skip(f"{mechanism} does not work here")
    yield made
    await made.toolbox.abandon("c")
    await supervisor.close()


def running(finished: CallFinished) -> None:
    assert finished.keeps
    assert finished.events == ()
    assert "Process running with session ID 1\nOutput:\n" in str(finished.output)


@CONFINED
async def test_model_types_to_an_interpreter_and_reads_what_it_answers(session: Session) -> None:
    running(await session.start("exec python3 -i -q", tty=True, yield_time_ms=1_000))
    assert "2\r\n" in await session.says(1, "2\r\n", chars="1+1\n")
    last = await session.write(1, "exit(3)\n", yield_ms=10_000)
    assert "Process exited with code 3" in str(last.output)
    assert last.over is not None
    assert (last.over.number, last.over.end.exit_code, last.over.end.process_id) == (1, 3, "1")
    assert "2\r\n" in last.over.end.aggregated_output
    assert str((await session.write(1)).output) == "no process 1 runs"


async def test_command_that_ends_in_time_is_an_ordinary_command(session: Session) -> None:
    finished = await session.start("echo hello; exit 4", yield_time_ms=30_000)
    assert not finished.keeps
    (end,) = finished.events
    assert (getattr(end, "exit_code", None), getattr(end, "stdout", "")) == (4, "hello\n")
    assert str(finished.output).endswith("Process exited with code 4\nOutput:\nhello\n")


@EVERYWHERE
async def test_ctrl_c_interrupts_the_program_and_not_its_sandbox(session: Session) -> None:
    running(await session.start("exec python3 -i -q", tty=True, yield_time_ms=1_000))
    await session.write(1, "import time; time.sleep(600)\n")
    assert "KeyboardInterrupt" in await session.says(1, "KeyboardInterrupt", chars="\x03")
    assert "42\r\n" in await session.says(1, "42\r\n", chars="6*7\n")


@CONFINED
async def test_program_without_a_terminal_has_no_input_and_one_with_it_has_its_own(session: Session) -> None:
    none = await session.start("test -t 0 || cat; echo over", yield_time_ms=30_000)
    assert str(none.output).endswith("code 0\nOutput:\nover\n")
    own = await session.start("test -t 0 && test -t 1 && (: </dev/tty) && stty size && echo $TERM", tty=True)
    assert "24 80\r\ndumb\r\n" in str(own.output), own.output


@EVERYWHERE
async def test_stubborn_program_that_forks_is_killed_whole(session: Session) -> None:
    stubborn = "trap '' TERM HUP INT; (trap '' TERM HUP; exec setsid sleep 611.5) & while :; do sleep 1; done"
    running(await session.start(stubborn, tty=True))
    async with asyncio.timeout(20):
        while not _alive("611.5"):
            await session.write(1, yield_ms=50)
    followed = asyncio.create_task(session.follow())
    session.toolbox.kill_process(1, "c")
    over = await followed
    assert over.end.exit_code == 137
    assert not _alive("611.5")


@CONFINED
async def test_follower_that_is_cancelled_kills_the_process_and_waits_for_the_proof(session: Session) -> None:
    running(await session.start("sleep 612.5 & sleep 612.5"))
    followed = asyncio.create_task(session.follow())
    await asyncio.sleep(0)
    followed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await followed
    assert not _alive("612.5")


async def test_end_that_nobody_sees_is_told_with_what_the_process_said_last(session: Session) -> None:
    running(await session.start("stty -echo; echo first; read line; sleep 0.2; echo $line; exit 5", tty=True))
    followed = asyncio.create_task(session.follow())
    await session.write(1, "last\n", yield_ms=0)
    over = await followed
    assert over.end.exit_code == 5
    assert "last" in over.unread
    assert "first" not in over.unread


async def test_look_at_the_end_takes_the_output_before_the_follower(session: Session) -> None:
    running(await session.start("read line; echo said $line; exit 6", tty=True))
    followed = asyncio.create_task(session.follow())
    await asyncio.sleep(0)
    last = await session.write(1, "words\n", yield_ms=20_000)
    assert "Process exited with code 6" in str(last.output)
    assert "said words" in str(last.output)
    assert (await followed).unread == ""


async def test_flood_is_read_and_held_within_bounds(session: Session) -> None:
    start = "echo begin; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end"
    finished = await session.start(start, yield_time_ms=30_000)
    assert not finished.keeps
    text = str(finished.output)
    assert len(text) <= 41_000
    assert text.split("Output:\n")[1].startswith("begin\n")
    assert text.endswith("end\n")
    assert "omitted" in text
    (end,) = finished.events
    assert len(getattr(end, "aggregated_output", "")) < (1 << 20) + 200


async def test_binary_output_becomes_text_that_can_be_sent(session: Session) -> None:
    finished = await session.start("printf '\\377\\000\\200ok'", yield_time_ms=30_000)
    assert str(finished.output).endswith("\ufffd\x00\ufffdok")
    json.loads(json.dumps(str(finished.output).encode("utf-8").decode()))


async def test_program_that_never_reads_is_typed_to_up_to_a_bound(session: Session) -> None:
    running(await session.start("stty raw -echo; sleep 613.5", tty=True, yield_time_ms=1_000))
    answers = [str((await session.write(1, "x" * 16_000, yield_ms=1)).output) for _ in range(8)]
    assert not answers[0].startswith("not typed")
    assert answers[-1].startswith("not typed: what was typed before still waits")


async def test_process_that_nobody_looks_at_is_killed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "UNSEEN_S", 0.3)
    running(await session.start("sleep 614.5"))
    over = await session.follow()
    assert over.end.exit_code == 137
    assert over.unread.startswith("killed: nobody looked at it for")


async def test_process_is_not_killed_while_a_call_waits_for_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "UNSEEN_S", 0.3)
    running(await session.start("sleep 1; echo done"))
    looked = await session.write(1, yield_ms=20_000)
    assert looked.over is not None
    assert (looked.over.end.exit_code, "done" in str(looked.output)) == (0, True)


async def test_worker_keeps_no_more_processes_than_it_can(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "MOST_ON_WORKER", 1)
    running(await session.start("sleep 615.5"))
    refused = await session.start("sleep 615.5")
    assert str(refused.output).startswith("not started: this worker keeps")
    assert not refused.keeps


async def test_command_in_its_first_look_has_a_place_among_the_processes_of_the_worker(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "MOST_ON_WORKER", 2)
    os.mkfifo(session.folder / "up")
    running(await session.start("sleep 616.5"))
    looking = asyncio.create_task(session.start("echo up > up; sleep 616.5", yield_time_ms=30_000))
    await asyncio.to_thread((session.folder / "up").read_text)
    refused = await session.start("true")
    assert str(refused.output).startswith("not started: this worker keeps")
    looking.cancel()
    await asyncio.wait({looking})
    # One that ended, or was cancelled, leaves its place.
    for _ in range(2):
        assert "exited with code 0" in str((await session.start("true", yield_time_ms=30_000)).output)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"cmd": ""}, "cmd: String should have at least 1 character"),
        ({"cmd": "ls", "shell": "/usr/bin/perl"}, "shell: '/usr/bin/perl' is none of bash, sh, zsh"),
        ({"cmd": "ls", "shell": "/srv/bash"}, "shell: '/srv/bash' is none of bash, sh, zsh"),
        ({"cmd": "ls", "yield_time_ms": -1}, "yield_time_ms: Input should be greater than or equal to 0"),
    ],
)
async def test_bad_arguments_are_answered(session: Session, arguments: dict[str, Any], why: str) -> None:
    found = await session.assess("exec_command", **arguments)
    assert isinstance(found, Immediate)
    assert why in str(found.output)


def _alive(mark: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:1] == [b"sleep"] and mark.encode() in words:
                return True
    return False


async def test_arguments_are_brought_within_their_bounds(session: Session) -> None:
    found = await session.assess("exec_command", cmd="ls", shell="/usr/bin/sh", login=False, yield_time_ms=0)
    assert isinstance(found, Exec)
    assert found.command == ("sh", "-c", "ls")
    assert found.lasting is not None
    assert (found.lasting.yield_ms, found.lasting.tty, found.lasting.max_tokens) == (250, False, 10_000)
    much = {"yield_time_ms": 10**9, "max_output_tokens": 10**9}
    most = await session.assess("exec_command", cmd="ls", **much)
    assert isinstance(most, Exec)
    assert most.lasting is not None
    assert (most.lasting.yield_ms, most.lasting.max_tokens) == (30_000, 10_000)
    for chars, least, longest in (("x", 250, 30_000), ("", 5_000, 300_000)):
        low = await session.assess("write_stdin", session_id=1, chars=chars)
        high = await session.assess("write_stdin", session_id=1, chars=chars, **much)
        assert isinstance(low, WriteStdin)
        assert isinstance(high, WriteStdin)
        assert (low.yield_ms, high.yield_ms, high.max_tokens) == (least, longest, 10_000)
    beyond = await session.assess("write_stdin", session_id=1, chars="x" * 16_385)
    assert isinstance(beyond, Immediate)
    assert "at most 16384 characters" in str(beyond.output)


class Lasting:
    """Stands where a process is, which says nothing."""

    unseen = False
    finished: Finished | None = None
    stopped = False

    async def stop(self) -> None:
        self.stopped = True

    async def wait(self, seconds: float) -> None:
        return

    def take(self) -> bytes:
        return b""


async def test_claim_that_is_given_up_ends_each_of_its_processes_and_none_of_another() -> None:
    kept = worker_processes.LiveProcesses()
    made = {(claim, number): Lasting() for claim in ("c", "d", "cc") for number in (1, 2, 3)}
    for (claim, number), process in made.items():
        kept.add(claim, number, cast(Any, process))
    await kept.abandon("c")
    assert {key for key, process in made.items() if process.stopped} == {("c", 1), ("c", 2), ("c", 3)}
    assert [kept.get("c", number) for number in (1, 2, 3)] == [None] * 3
    left = {key: cast(Any, kept.get(*key)) for key in made}
    assert all(left[key] is process for key, process in made.items() if not process.stopped)


@pytest.mark.parametrize("unseen", [True, False])
async def test_last_look_tells_whether_its_process_was_killed_because_nobody_had_looked(unseen: bool) -> None:
    kept, process = worker_processes.LiveProcesses(), Lasting()
    process.unseen, process.finished = unseen, Finished(exit_code=137, stderr=b"bye", killed=True)
    kept.add("c", 4, cast(Any, process))
    call = Call(CallId("c9"), "write_stdin", {}, work=StdinWork(4, CallId("c1"), "", 250, 100))
    done = await WriteStdinTool(kept).run(call, CallSite("c", State(), lambda _: None))
    assert done.over is not None
    assert (done.over.number, done.over.end.call_id, done.over.end.exit_code) == (4, "c1", 137)
    assert done.over.end.stderr == (worker_processes.UNSEEN if unseen else "bye")


class Typed(Lasting):
    """The same, with a terminal."""

    takes = True

    def __init__(self, said: bytes = b"") -> None:
        self.typed: list[bytes] = []
        self.said = said

    def write(self, data: bytes) -> bool:
        self.typed.append(data)
        return self.takes

    def take(self) -> bytes:
        said, self.said = self.said, b""
        return said


async def looks(kept: worker_processes.LiveProcesses, claim: str, number: int, chars: str) -> CallFinished:
    call = Call(CallId("c9"), "write_stdin", {}, work=StdinWork(number, CallId("c1"), chars, 250, 100))
    return await WriteStdinTool(kept).run(call, CallSite(claim, State(), lambda _: None))


@pytest.mark.parametrize("chars", ["", "a", "é\n", "\x03", "\ud800"])
async def test_words_go_to_the_process_of_that_number_of_that_session_alone(chars: str) -> None:
    kept = worker_processes.LiveProcesses()
    made = {(claim, number): Typed(f"{claim}{number}".encode()) for claim in "cd" for number in (1, 2)}
    for (claim, number), process in made.items():
        kept.add(claim, number, cast(Any, process))
    done = await looks(kept, "d", 2, chars)
    assert str(done.output).endswith("running with session ID 2\nOutput:\nd2")
    assert done.over is None
    typed = [chars.encode("utf-8", "replace")] if chars else []
    assert {key: process.typed for key, process in made.items()} == {
        key: (typed if key == ("d", 2) else []) for key in made
    }
    # What was read is not read again, and of a number that nobody has nothing is.
    assert str((await looks(kept, "d", 2, "")).output).endswith("Output:\n")
    for claim, number in (("d", 3), ("e", 2)):
        assert str((await looks(kept, claim, number, chars)).output) == f"no process {number} runs"


@pytest.mark.parametrize("takes", [True, False])
async def test_model_is_told_that_its_words_were_not_typed(takes: bool) -> None:
    kept, process = worker_processes.LiveProcesses(), Typed(b"said")
    process.takes = takes
    kept.add("c", 1, cast(Any, process))
    assert str((await looks(kept, "c", 1, "x")).output).startswith("not typed: ") is not takes
    assert not str((await looks(kept, "c", 1, "")).output).startswith("not typed: ")


async def test_process_that_has_ended_is_read_once_and_leaves_room_for_another() -> None:
    kept, process = worker_processes.LiveProcesses(), Typed(b"bye")
    process.finished = Finished(exit_code=4)
    kept.add("c", 1, cast(Any, process))
    last = await looks(kept, "c", 1, "")
    assert str(last.output).endswith("Process exited with code 4\nOutput:\nbye")
    assert str((await looks(kept, "c", 1, "")).output) == "no process 1 runs"
    assert kept.get("c", 1) is None


@pytest.mark.parametrize("unseen", [True, False])
@pytest.mark.parametrize("error", ["it broke", None])
@pytest.mark.parametrize("said", [b"last words", b""])
async def test_end_that_nobody_saw_says_why_it_ended_and_what_was_said_last(
    unseen: bool, error: str | None, said: bytes
) -> None:
    class Ended(Typed):
        async def ended(self) -> Finished:
            return Finished(exit_code=9, error=error)

    kept, process = worker_processes.LiveProcesses(), Ended(said)
    process.unseen = unseen
    kept.add("c", 3, cast(Any, process))
    recorded = Process(3, CallId("c1"), SubmissionId("u1"), "cmd", "/", 1, "")
    over = await worker_processes.follow(kept, recorded, "c")
    notes = [worker_processes.UNSEEN if unseen else "", error or "", said.decode()]
    assert over.unread == "\n".join(filter(None, notes))
    assert (over.number, over.end.call_id, over.end.exit_code, over.end.process_id) == (3, "c1", 9, "3")
    assert kept.get("c", 3) is None
    # A worker that does not keep it says so.
    unknown = await worker_processes.follow(kept, recorded, "c")
    assert (unknown.end.exit_code, unknown.unread) == (-1, "")
    assert "this worker does not keep the process" in unknown.end.formatted_output


class Endless:
    """A supervisor whose command ends when it is killed."""

    async def run(self, command: Any, output: Any, grip: Any) -> Finished:
        killed = asyncio.Event()
        grip.bind(killed.set, None)
        await killed.wait()
        return Finished(exit_code=137, killed=True)


async def test_half_an_hour_begins_anew_with_the_end_of_each_look() -> None:
    shown = cast(Any, type("Shown", (), {"add": lambda *_: None, "close": lambda _: None})())
    command = cast(Any, type("Asked", (), {"tty": False, "call_id": "c1"})())
    process = worker_processes.LiveProcess(cast(Any, Endless()), command, shown)
    await process.wait(0)
    for waited_s, over in ((worker_processes.UNSEEN_S - 60, False), (120.0, True)):
        process._looked_at -= waited_s
        looking = asyncio.create_task(process.wait(3600))
        await asyncio.sleep(0)
        process._forgotten()
        assert not process.unseen, "a call waits for it"
        looking.cancel()
        await asyncio.wait({looking})
        process._forgotten()
        assert not process.unseen, "the look has just ended"
        process._looked_at -= worker_processes.UNSEEN_S if over else worker_processes.UNSEEN_S - 60
        process._forgotten()
        assert process.unseen is over
    assert (await process.ended()).exit_code == 137


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
async def test_as_many_letters_are_typed_at_once_as_may_be(letter: str, more: int) -> None:
    given = json.dumps({"session_id": 1, "chars": letter * (16_384 + more)})
    item = {"type": "function_call", "call_id": "c1", "name": "write_stdin", "arguments": given}
    site = CallSite("c", State(facts=SessionFacts(unified_exec=True)), lambda _: None)
    tools = Toolbox((WriteStdinTool(worker_processes.LiveProcesses()),))
    found = await tools.assess(Call(CallId("c1"), "write_stdin", item), site)
    assert isinstance(found, Immediate if more else WriteStdin)


class Speaker:
    """A supervisor whose command says what the test does, and ends when it is told to."""

    def __init__(self) -> None:
        self.say: Any = None
        self.over = asyncio.Event()

    async def run(self, command: Any, output: Any, grip: Any) -> Finished:
        self.say = output
        await self.over.wait()
        return Finished(exit_code=0)


LETTERS = ["é", "€", "😀"]


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("letter", LETTERS)
async def test_letter_that_comes_in_two_parts_is_read_whole_by_the_second_look(
    letter: str, first: int
) -> None:
    data = letter.encode()
    first = min(first, len(data) - 1)
    speaker = Speaker()
    shown = cast(Any, type("Shown", (), {"add": lambda *_: None, "close": lambda _: None})())
    command = cast(Any, type("Asked", (), {"tty": False, "call_id": "c1"})())
    process = worker_processes.LiveProcess(cast(Any, speaker), command, shown)
    await process.wait(0)
    speaker.say("stdout", b"a" + data[:first])
    assert process.take() == b"a"
    assert process.take() == b""
    speaker.say("stdout", data[first:] + b"b")
    assert process.take() == data + b"b"
    # What is no letter waits for nothing, nor does what a program said last.
    for said in (b"\xff", b"\x80\x80\x80\x80", b"\xc3\xa9\x80", data):
        speaker.say("stdout", said)
        assert process.take() == said
    speaker.say("stdout", data[:first])
    speaker.over.set()
    await process.ended()
    assert process.take() == data[:first]
