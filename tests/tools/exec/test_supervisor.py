"""Commands under the supervisor: what they give back, and what ends them."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from orchestrator.sandbox import git
from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.sandbox.probe import NoConfinement, SandboxSupport
from orchestrator.tools.exec.running_command import KEPT_BYTES
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig, SupervisorLost
from orchestrator.tools.exec.supervisor_process import IGNORED_SIGNALS, KILL_SIGNAL
from tests.supervisors import booting, impatient

from .conftest import MakeCommand
from .witness import Witness, marked

MARK = f"7{os.getpid()}"
"""A number of seconds to sleep that no other process sleeps: it is found in its command line."""
LEAVE_BEHIND = f"setsid sh -c 'sh -c \"echo up > fifo; exec sleep {MARK}\" {MARK} &' & "
"""A grandchild in a session of its own, an orphan by the time that it says it is up."""
MOST_RESTING = 4
SHIM = "echo $PPID"
"""Of a command that nothing confines."""

pytestmark = pytest.mark.sandbox


def ignore(stream: str, data: bytes) -> None:
    """A sink for tests that look at the end only."""


def now() -> float:
    return time.clock_gettime(CLOCK_BOOTTIME)


def test_process_imports_next_to_nothing() -> None:
    """Each fork for a command has what the process has imported."""
    heavy = {"typing", "re", "pathlib", "dataclasses", "inspect", "subprocess", "shutil", "asyncio", "json"}
    script = (
        "import sys; sys.path.append(sys.argv[1]); import orchestrator.tools.exec.supervisor_process; "
        "print(*sys.modules)"
    )
    words = [sys.executable, "-I", "-S", "-c", script, str(Path(__file__).parents[3])]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert heavy & set(done.stdout.split()) == set()


async def killed(supervisor: Supervisor) -> None:
    """Kills the supervisor's process, and returns when that was heard of."""
    os.kill(supervisor.pid, 9)
    while supervisor.alive:
        await asyncio.sleep(0)


async def stopped(pid: int) -> None:
    """Returns when the process stands still."""
    async with asyncio.timeout(20):
        while Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2][0] != "T":
            await asyncio.sleep(0)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def until_up(fifo: Path) -> None:
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(fifo.read_text) == "up\n"


async def test_command_reports_its_streams_and_its_exit_code(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    heard: list[tuple[str, bytes]] = []
    finished = await supervisor.run(
        command("sh", "-c", "echo out; echo err >&2; exit 3"), lambda *it: heard.append(it)
    )
    assert (finished.exit_code, finished.stdout, finished.stderr) == (3, b"out\n", b"err\n")
    assert sorted(finished.aggregated.splitlines()) == [b"err", b"out"]
    assert sorted(heard) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    assert (finished.timed_out, finished.killed, finished.error) == (False, False, None)


async def test_command_that_dies_of_a_signal_exits_with_128_and_its_number(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    assert (await supervisor.run(command("sh", "-c", "kill -TERM $$"), ignore)).exit_code == 143


async def test_program_folder_or_right_that_is_missing_is_named(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    absent = await supervisor.run(command("no-such-program"), ignore)
    assert (absent.exit_code, absent.error) == (-1, "No such file or directory (os error 2)")
    plain = await supervisor.run(command("/etc/passwd"), ignore)
    assert plain.error == "Permission denied (os error 13)"
    rightless = await supervisor.run(command("true", claim="another"), ignore)
    assert rightless.error == "the right to run this command has ended"


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_words_that_no_program_can_be_given_are_refused(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    empty = await supervisor.run(command(), ignore)
    assert (empty.exit_code, empty.error) == (-1, "the command is empty")
    for word in ("a\0b", "lone \ud800"):
        finished = await supervisor.run(command("echo", word), ignore)
        assert finished.exit_code == -1
        assert finished.error == "the command could not be started (program): Invalid argument"


async def test_missing_working_folder_is_named(
    supervisor: Supervisor, command: MakeCommand, mechanism: str
) -> None:
    finished = await supervisor.run(command("true", cwd=Path("/no/such/folder")), ignore)
    assert finished.exit_code == -1
    assert finished.error == "the working directory cannot be entered: No such file or directory"


async def test_command_starts_in_its_own_folder_below_the_sessions(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path
) -> None:
    folder = tmp_path / "below"
    folder.mkdir()
    finished = await supervisor.run(command("pwd", cwd=folder), ignore)
    assert finished.stdout.decode() == f"{folder}\n"


async def test_command_gets_only_the_environment_it_is_given(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    finished = await supervisor.run(command("env", env={"PATH": os.defpath, "A": "ü 1"}), ignore)
    assert dict(line.split("=", 1) for line in finished.stdout.decode().splitlines()).items() >= {
        ("A", "ü 1"),
        ("PATH", os.defpath),
    }
    assert b"PYTHON" not in finished.stdout


async def test_command_line_longer_than_a_socket_buffer_arrives(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    words = ["x" * 100_000] * 8
    finished = await supervisor.run(command("sh", "-c", 'printf %s "$@" | wc -c', "sh", *words), ignore)
    assert finished.stdout.strip() == b"800000"


async def test_endless_output_is_capped_and_never_waited_for(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    finished = await supervisor.run(
        command("sh", "-c", "echo first; yes | head -c 8000000; echo last"), ignore
    )
    assert finished.exit_code == 0
    assert b"\n[... %d bytes dropped ...]\n" % (8_000_011 - KEPT_BYTES) in finished.stdout
    assert finished.stdout.startswith(b"first\n")
    assert finished.stdout.endswith(b"y\nlast\n")
    assert len(finished.aggregated) < KEPT_BYTES + 100


async def test_timeout_ends_the_command_with_124_and_keeps_its_output(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    killed: list[str] = []
    supervisor.killed = killed.append
    finished = await supervisor.run(command("sh", "-c", "echo so far; sleep 60", timeout_s=1.5), ignore)
    assert (finished.exit_code, finished.timed_out, finished.killed) == (124, True, False)
    assert killed == ["timeout"]
    assert finished.stdout == b"so far\n"
    assert 1.5 <= finished.duration_s < 30


async def test_background_process_that_holds_the_pipes_does_not_hold_the_call(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} cat fifo; exit 5"), ignore)
    )
    finished = await running
    assert finished.exit_code == 5
    assert finished.duration_s < 30
    assert marked(MARK) == []


async def test_killing_a_claim_leaves_no_descendant_and_spares_the_others(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    supervisor.extend("other", now() + 60)
    other = asyncio.create_task(supervisor.run(command("sleep", "60", claim="other"), ignore))
    mine = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
    )
    await until_up(fifo)
    assert len(marked(MARK)) >= 2
    await supervisor.kill("claim")
    assert marked(MARK) == []
    finished = await mine
    assert (finished.exit_code, finished.killed, finished.error) == (137, True, None)
    assert not other.done()
    await supervisor.kill("other")
    assert (await other).killed


async def test_cancelling_returns_when_every_descendant_is_dead(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
    )
    await until_up(fifo)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(MARK) == []


async def test_command_dies_at_the_deadline_that_was_written_last(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    supervisor.extend("claim", now() + 30)
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
    )
    await until_up(fifo)
    deadline = now() + 0.3
    supervisor.extend("claim", deadline)
    finished = await running
    assert now() >= deadline
    assert (finished.exit_code, finished.killed) == (137, True)
    assert marked(MARK) == []
    again = await supervisor.run(command("true"), ignore)
    assert again.error == "the right to run this command has ended"


async def test_claim_that_ran_no_command_yet_may_run_one_as_long_as_it_was_extended_last(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    supervisor.extend("late", now() - 1)
    supervisor.extend("late", now() + 60)
    supervisor.extend("over", now() - 1)
    assert (await supervisor.run(command("true", claim="late"), ignore)).exit_code == 0
    ended = await supervisor.run(command("true", claim="over"), ignore)
    assert ended.error == "the right to run this command has ended"


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_supervisor_that_slept_past_a_deadline_starts_nothing_that_was_asked_for_behind_it(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path
) -> None:
    await supervisor.run(command("true"), ignore)
    deadline = now() + 0.5
    supervisor.extend("claim", deadline)
    # It has read the deadline when it has done what it was asked for behind it.
    assert (await supervisor.run(command("true"), ignore)).exit_code == 0
    os.kill(supervisor.pid, signal.SIGSTOP)
    await stopped(supervisor.pid)
    asked = asyncio.create_task(supervisor.run(command("touch", "started"), ignore))
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(deadline - now() + 0.05, passed.set_result, None)
    await passed
    os.kill(supervisor.pid, signal.SIGCONT)
    assert (await asked).error == "the right to run this command has ended"
    assert not (tmp_path / "started").exists()


async def filled(supervisor: Supervisor) -> None:
    """Makes the socket small, stops who reads it, and returns when that stands still."""
    supervisor._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    os.kill(supervisor.pid, signal.SIGSTOP)
    await stopped(supervisor.pid)


async def until_waiting(supervisor: Supervisor, messages: int) -> None:
    async with asyncio.timeout(20):
        while len(supervisor._unsent) < messages:
            await asyncio.sleep(0)


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_more_commands_than_the_socket_has_room_for_run_when_it_has(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    fds = descriptors(os.getpid())
    await filled(supervisor)
    commands = [
        asyncio.create_task(supervisor.run(command("sh", "-c", f"exit {n}"), ignore)) for n in range(20)
    ]
    await until_waiting(supervisor, 10)
    await asyncio.to_thread(supervisor.extend, "late", now() + 60)
    os.kill(supervisor.pid, signal.SIGCONT)
    done = await asyncio.gather(*commands)
    assert [finished.exit_code for finished in done] == [*range(20)]
    assert (await supervisor.run(command("true", claim="late"), ignore)).exit_code == 0
    assert descriptors(os.getpid()) == fds


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_deadline_goes_before_the_commands_that_wait_for_room(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    supervisor.extend("claim", now() + 60)
    assert (await supervisor.run(command("true"), ignore)).exit_code == 0
    await filled(supervisor)
    commands = [asyncio.create_task(supervisor.run(command("true"), ignore)) for _ in range(12)]
    await until_waiting(supervisor, 3)
    # The last one counts, from whatever thread: every command that waits has lost its right.
    await asyncio.to_thread(supervisor.extend, "claim", now() + 90)
    await asyncio.to_thread(supervisor.extend, "claim", now() - 1)
    os.kill(supervisor.pid, signal.SIGCONT)
    lost = [done.error or done.killed for done in await asyncio.gather(*commands)]
    assert all(lost[-3:])
    assert supervisor._overtaking == {}


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_some_ten_commands_are_on_their_way_to_a_supervisor_at_once(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    os.kill(supervisor.pid, signal.SIGSTOP)
    await stopped(supervisor.pid)
    commands = [asyncio.create_task(supervisor.run(command("true"), ignore)) for _ in range(40)]
    await until_waiting(supervisor, 20)
    os.kill(supervisor.pid, signal.SIGCONT)
    assert {done.exit_code for done in await asyncio.gather(*commands)} == {0}


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_commands_that_wait_for_room_are_killed_by_what_was_sent_behind_them(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    await filled(supervisor)
    commands = [asyncio.create_task(supervisor.run(command("sleep", MARK), ignore)) for _ in range(12)]
    await until_waiting(supervisor, 3)
    killing = asyncio.create_task(supervisor.kill("claim"))
    await asyncio.sleep(0)
    os.kill(supervisor.pid, signal.SIGCONT)
    await killing
    assert {finished.killed for finished in await asyncio.gather(*commands)} == {True}
    assert marked(MARK) == []


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_commands_that_wait_for_room_end_with_a_supervisor_that_dies(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    fds = descriptors(os.getpid())
    await filled(supervisor)
    commands = [asyncio.create_task(supervisor.run(command("sleep", MARK), ignore)) for _ in range(12)]
    await until_waiting(supervisor, 3)
    os.kill(supervisor.pid, 9)
    assert {finished.exit_code for finished in await asyncio.gather(*commands)} == {-1}
    assert marked(MARK) == []
    assert descriptors(os.getpid()) <= fds


async def test_extending_keeps_the_command_alive_past_its_first_deadline(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    first = now() + 0.4
    supervisor.extend("claim", first)
    running = asyncio.create_task(supervisor.run(command("sh", "-c", "cat fifo"), ignore))
    await asyncio.to_thread(supervisor.extend, "claim", first + 60)
    past_first = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(first - now() + 0.1, past_first.set_result, None)
    await past_first
    await asyncio.to_thread(fifo.write_text, "up\n")
    assert (await running).stdout == b"up\n"


async def test_fork_bomb_meets_its_limit_and_dies_whole(
    supervisor: Supervisor, command: MakeCommand, machine: SandboxSupport
) -> None:
    if machine.pids_cgroup is None and os.geteuid() == 0:
        pytest.skip("no pids cgroup can be made, and RLIMIT_NPROC does not bind root")
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 60"
    limits = Limits(processes=60)
    finished = await supervisor.run(command("bash", "-c", bomb, timeout_s=2.0, limits=limits), ignore)
    assert finished.timed_out
    assert finished.error is None
    assert b"fork" in finished.stderr
    assert finished.duration_s < 30
    assert (await supervisor.run(command("true"), ignore)).exit_code == 0


def children(pid: int) -> list[int]:
    return [*map(int, Path("/proc", str(pid), "task", str(pid), "children").read_text().split())]


def descriptors(pid: int) -> int:
    return len(list(Path("/proc", str(pid), "fd").iterdir()))


def held(pids: list[int]) -> list[int]:
    """A pidfd of each of the processes that is still there."""
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def have_ended(pidfds: list[int]) -> bool:
    """Waits for the end of each."""
    return all(select.select([pidfd], [], [], 20.0)[0] for pidfd in pidfds)


async def test_two_hundred_commands_leave_no_zombie_and_no_descriptor(
    supervisor: Supervisor, command: MakeCommand, machine: SandboxSupport
) -> None:
    await supervisor.run(command("true"), ignore)
    (shim,) = children(supervisor.pid)
    fds = [descriptors(pid) for pid in (os.getpid(), supervisor.pid, shim)]
    for _ in range(10):
        done = await asyncio.gather(*(supervisor.run(command("true"), ignore) for _ in range(20)))
        assert {finished.exit_code for finished in done} == {0}
    for _ in range(20):
        await supervisor.run(command("true"), ignore)
    async with asyncio.timeout(20):
        while len(left := children(supervisor.pid)) > MOST_RESTING:
            await asyncio.sleep(0)
    assert descriptors(os.getpid()) == fds[0]
    assert descriptors(supervisor.pid) <= fds[1] + MOST_RESTING
    assert max(map(descriptors, left)) <= fds[2] + 4, "but for those of a command that has just ended"
    if machine.pids_cgroup is not None:
        cgroups = list(Path(machine.pids_cgroup).glob(f"dendro-{supervisor.pid}-*"))
        assert len(cgroups) <= MOST_RESTING + 1, "each shim keeps one"


async def test_guard_on_a_missing_repository_is_gone_after_the_last_command(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path, mechanism: str
) -> None:
    if mechanism == "none":
        pytest.skip("full access guards nothing")
    os.mkfifo(tmp_path / "fifo")
    long = asyncio.create_task(supervisor.run(command("sh", "-c", "cat fifo; mkdir .git/x"), ignore))
    await asyncio.gather(*(supervisor.run(command("true"), ignore) for _ in range(4)))
    await asyncio.to_thread((tmp_path / "fifo").write_text, "go\n")
    assert (await long).exit_code == 1
    assert not (tmp_path / ".git").exists()


@pytest.mark.parametrize("gone", ["folder", "folder of several", "file in its place"])
async def test_command_does_not_run_where_the_folder_of_a_guard_has_gone(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path, mechanism: str, gone: str
) -> None:
    """It could make the folder again, with a repository whose programs the person's next git would run."""
    if mechanism == "none":
        pytest.skip("full access guards nothing")
    if gone == "file in its place":
        (tmp_path / "sub").write_text("")
    there = (tmp_path / ".git",) if gone == "folder of several" else ()
    asked = command("sh", "-c", "touch ran; rm -f sub; mkdir -p sub/.git")
    guards = (*there, tmp_path / "sub/.git")
    asked = replace(asked, confinement=replace(asked.confinement, missing=guards))
    async with asyncio.timeout(20):
        finished = await supervisor.run(asked, ignore)
    assert (finished.exit_code, finished.killed) == (-1, False)
    assert finished.error == "the command could not be started (guard): No such file or directory"
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / ".git").exists()
    after = await supervisor.run(command("echo", "hello"), ignore)
    assert after.stdout == b"hello\n"


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_orphans_of_a_killed_shim_fall_to_the_supervisor(
    supervisor: Supervisor, command: MakeCommand, fifo: Path, machine: SandboxSupport
) -> None:
    script = f"{LEAVE_BEHIND} cat fifo; kill -9 $PPID; sleep {MARK}"
    limits = Limits(processes=100, memory_bytes=256 << 20)
    finished = await supervisor.run(command("sh", "-c", script, limits=limits), ignore)
    assert finished.error == "the command's shim was killed before it could report"
    assert marked(MARK) == []
    assert supervisor.alive
    left = [Path(it) for it in (machine.pids_cgroup, machine.memory_cgroup) if it is not None]
    assert [it for parent in left for it in parent.glob(f"dendro-{supervisor.pid}-*")] == []


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shim_that_has_proved_the_end_of_its_command_takes_one_of_another_claim(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    supervisor.extend("other", now() + 60)
    shims = set()
    for claim in ("claim", "other") * 4:
        shims.add((await supervisor.run(command("sh", "-c", SHIM, claim=claim), ignore)).stdout)
    # A command may be asked for before the supervisor has heard of the end of the ones before.
    assert len(shims) <= 4


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_command_that_kills_a_shim_which_had_others_before_ends_alone(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    supervisor.extend("other", now() + 60)
    other = asyncio.create_task(supervisor.run(command("sh", "-c", "cat fifo", claim="other"), ignore))
    for _ in range(3):
        await supervisor.run(command("true"), ignore)
    finished = await supervisor.run(command("sh", "-c", f"kill -9 $PPID; sleep {MARK}", MARK), ignore)
    assert finished.error == "the command's shim was killed before it could report"
    assert marked(MARK) == []
    assert (await supervisor.run(command("sh", "-c", "exit 6"), ignore)).exit_code == 6
    await asyncio.to_thread(fifo.write_text, "up\n")
    assert (await other).stdout == b"up\n"


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shim_that_was_to_kill_its_command_takes_no_other(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    late = await supervisor.run(command("sh", "-c", f"{SHIM}; sleep 60", timeout_s=0.2), ignore)
    assert late.timed_out
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{SHIM}; echo up > fifo; sleep 60"), ignore)
    )
    await until_up(fifo)
    await supervisor.kill("claim")
    ended = await running
    assert ended.killed
    after = {(await supervisor.run(command("sh", "-c", SHIM), ignore)).stdout for _ in range(4)}
    assert after & {late.stdout, ended.stdout} == set()


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shims_without_a_command_end_with_their_supervisor(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    await asyncio.gather(*(supervisor.run(command("true"), ignore) for _ in range(3)))
    resting = held(children(supervisor.pid))
    os.kill(supervisor.pid, 9)
    assert resting
    assert have_ended(resting)


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shims_without_a_command_end_after_some_time(
    machine: SandboxSupport, command: MakeCommand
) -> None:
    with booting(impatient):
        supervisor = await Supervisor.start(SupervisorConfig(machine))
    try:
        supervisor.extend("claim", now() + 60)
        await supervisor.run(command("true"), ignore)
        assert have_ended(held(children(supervisor.pid)))
        assert (await supervisor.run(command("sh", "-c", "exit 6"), ignore)).exit_code == 6
    finally:
        await supervisor.close()


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shim_that_was_killed_while_it_had_no_command_costs_none(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    await supervisor.run(command("true"), ignore)
    resting = held(children(supervisor.pid))
    for pidfd in resting:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert have_ended(resting)
    assert (await supervisor.run(command("sh", "-c", "exit 6"), ignore)).exit_code == 6


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_command_has_the_limits_that_are_asked_for_it_whatever_the_ones_before_had(
    machine: SandboxSupport, command: MakeCommand
) -> None:
    bare = await Supervisor.start(SupervisorConfig(replace(machine, memory_cgroup=None)))
    try:
        bare.extend("claim", now() + 60)
        seen = []
        for mib in (256, 512, 256, None, 512):
            limits = Limits(memory_bytes=None if mib is None else mib << 20)
            finished = await bare.run(command("bash", "-c", "ulimit -H -d; ulimit -c", limits=limits), ignore)
            seen.append(finished.stdout.decode().split())
    finally:
        await bare.close()
    assert seen == [[limit, "0"] for limit in ("262144", "524288", "262144", "unlimited", "524288")]


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_command_is_in_its_cgroups_from_its_beginning_and_its_shim_is_in_none_of_them(
    supervisor: Supervisor, command: MakeCommand, machine: SandboxSupport
) -> None:
    if machine.pids_cgroup is None or machine.memory_cgroup is None:
        pytest.skip("; ".join(machine.why))
    limits = Limits(processes=100, memory_bytes=256 << 20)
    for _ in range(2):
        # The shim leaves as soon as the program is there, which may come to this before.
        script = "cat /proc/$$/cgroup; while grep -q dendro- /proc/$PPID/cgroup; do :; done"
        finished = await supervisor.run(command("sh", "-c", script, limits=limits), ignore)
        own = finished.stdout.decode()
        assert own.count(f"dendro-{supervisor.pid}-") == len({machine.pids_cgroup, machine.memory_cgroup})
        assert not finished.timed_out


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_command_starts_in_a_session_of_its_own_with_signals_as_programs_expect_them(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    script = "cut -d' ' -f6 /proc/$$/stat; echo $$; grep -E '^Sig(Blk|Ign)' /proc/self/status"
    session, pid, blocked, ignored = (await supervisor.run(command("sh", "-c", script), ignore)).stdout.split(
        b"\n"
    )[:4]
    assert int(session) == int(pid)
    assert int(blocked.split()[1], 16) == 0
    of_shims = {*IGNORED_SIGNALS, KILL_SIGNAL, signal.SIGCHLD}
    assert [number for number in of_shims if int(ignored.split()[1], 16) >> (number - 1) & 1] == []


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_shims_kill_their_command_when_the_supervisor_is_killed(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
    )
    await until_up(fifo)
    os.kill(supervisor.pid, 9)
    finished = await running
    assert (finished.exit_code, finished.killed, finished.error) == (137, True, None)
    assert marked(MARK) == []
    assert not supervisor.alive


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_a_supervisor_that_answers_nothing_is_killed_with_what_it_keeps_and_replaced(
    machine: SandboxSupport, command: MakeCommand, fifo: Path, mechanism: str
) -> None:
    supervisor = await Supervisor.start(SupervisorConfig(machine, silence_s=1.0))
    supervisor.extend("claim", now() + 60)
    try:
        running = asyncio.create_task(
            supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
        )
        await until_up(fifo)
        stopped = supervisor.pid
        os.kill(stopped, signal.SIGSTOP)
        assert (await running).killed
        assert marked(MARK) == []
        # Long enough to be asked about: what the one before did not answer is not held against this one.
        assert (await supervisor.run(command("sleep", "0.6"), ignore)).exit_code == 0
        assert supervisor.pid != stopped
    finally:
        await supervisor.close()


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_a_supervisor_that_died_is_replaced_by_one_that_knows_who_may_run(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    await supervisor.run(command("true"), ignore)
    died = supervisor.pid
    await killed(supervisor)
    supervisor.extend("other", now() + 60)
    supervisor.extend("past", now() - 1)
    both = (supervisor.run(command("true", claim=claim), ignore) for claim in ("claim", "other"))
    assert [finished.exit_code for finished in await asyncio.gather(*both)] == [0, 0]
    assert supervisor.alive
    assert supervisor.pid != died
    assert (await supervisor.run(command("true", claim="past"), ignore)).exit_code == -1
    assert not Path("/proc", str(died)).exists(), "it is not left as a zombie"


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_a_supervisor_that_cannot_be_replaced_says_so_each_time_and_is_tried_again(
    supervisor: Supervisor, command: MakeCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed(supervisor)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    for _ in range(2):
        with pytest.raises(SupervisorLost, match=r"no other could be started: .*/nowhere/python"):
            await supervisor.run(command("true"), ignore)
    monkeypatch.undo()
    assert (await supervisor.run(command("true"), ignore)).exit_code == 0


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_a_supervisor_that_was_closed_starts_no_other(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    await supervisor.close()
    with pytest.raises(SupervisorLost, match="the worker leaves"):
        await supervisor.run(command("true"), ignore)


class Undertaker:
    """A worker that has the supervisor bury its sessions; `word` is where that would be said."""

    def __init__(self) -> None:
        self.word, self._writing = os.pipe2(os.O_CLOEXEC)
        self.descriptors = (os.pidfd_open(os.getpid()), git.ends()[0], self._writing)

    def forbid(self) -> None:
        raise AssertionError("nothing was running")

    def close(self) -> None:
        for descriptor in (self.word, self._writing, self.descriptors[0]):
            os.close(descriptor)


async def test_worker_that_leaves_while_its_supervisor_has_no_room_for_words_does_not_wait_for_its_own_death(
    machine: SandboxSupport,
) -> None:
    worker = Undertaker()
    supervisor = await Supervisor.start(SupervisorConfig(machine, burial=worker))
    try:
        await filled(supervisor)
        for ident in range(12):
            supervisor._send("kill", ident)
        asked = time.monotonic()
        leaving = asyncio.create_task(supervisor.close())
        await until_waiting(supervisor, 3)
        os.kill(supervisor.pid, signal.SIGCONT)
        await leaving
        # Killed by its worker, it would have -9: that waits for it no less than it waits for that.
        assert (supervisor._process.returncode, time.monotonic() - asked < 4.0) == (0, True)
    finally:
        worker.close()


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_signals_of_terminals_and_service_managers_do_not_end_commands(
    supervisor: Supervisor, command: MakeCommand, fifo: Path
) -> None:
    running = asyncio.create_task(
        supervisor.run(command("sh", "-c", f"{LEAVE_BEHIND} sleep {MARK}", MARK), ignore)
    )
    await until_up(fifo)
    children = Path("/proc", str(supervisor.pid), "task", str(supervisor.pid), "children").read_text().split()
    for pid in (supervisor.pid, *map(int, children)):
        for number in (1, 2, 3, 15):
            os.kill(pid, number)
    witness = Witness(MARK)
    assert witness.all_alive()
    witness.close()
    await supervisor.kill("claim")
    assert (await running).killed


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_machine_without_confinement_runs_nothing_confined(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path
) -> None:
    bare = await Supervisor.start(SupervisorConfig(SandboxSupport(None, 0, ("nothing here",))))
    try:
        bare.extend("claim", now() + 60)
        confined = Confinement(mode="read-only", cwd=tmp_path)
        with pytest.raises(NoConfinement, match="nothing here"):
            await bare.run(command("true", confinement=confined), ignore)
        assert (await bare.run(command("true"), ignore)).exit_code == 0
    finally:
        await bare.close()


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
async def test_supervisor_stays_small(supervisor: Supervisor, command: MakeCommand) -> None:
    """Each command forks it: a heavy import would be paid for with every start."""
    await supervisor.run(command("true"), ignore)
    maps = Path("/proc", str(supervisor.pid), "maps").read_text()
    assert "pydantic" not in maps
    resident_kib = int(Path("/proc", str(supervisor.pid), "statm").read_text().split()[1]) * 4
    assert resident_kib < 20_000


@pytest.mark.parametrize("mechanism", ["none"], indirect=True)
def test_supervisor_serves_a_worker_on_uvloop(
    command: MakeCommand, machine: SandboxSupport, mechanism: str
) -> None:
    async def on_uvloop() -> None:
        supervisor = await Supervisor.start(SupervisorConfig(machine))
        try:
            supervisor.extend("claim", now() + 60)
            jobs = [
                supervisor.run(command("sh", "-c", "yes | head -c 300000; exit 4"), ignore) for _ in range(5)
            ]
            done = await asyncio.gather(*jobs)
            assert {(finished.exit_code, len(finished.stdout)) for finished in done} == {(4, 300_000)}
            assert (await supervisor.run(command("sleep", "9", timeout_s=0.1), ignore)).timed_out
        finally:
            await supervisor.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(on_uvloop())
