"""A portable folder: where its commands see it, where it is, and what of the machine they do not see."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config_keys import EnvironmentPolicy
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.policy_paths import Confinement, InvalidPolicy, Place, resolve
from orchestrator.sandbox.probe import NoConfinement, SandboxSupport, choose, probe
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

WRITABLE = {"mode": "workspace-write"}
SUPPORT = probe()
needs_bubblewrap = pytest.mark.skipif(SUPPORT.bubblewrap is None, reason="bubblewrap does not work here")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return made(tmp_path / "home/workspaces", "first", "work")


def made(root: Path, session: str, content: str) -> Place:
    place = Place.of(root, "tree", session, "project")
    place.here.mkdir(parents=True)
    place.temporary.mkdir()
    (place.here / "file").write_text(content)
    place.seen.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(SUPPORT))
    started.extend("claim", time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
    try:
        yield started
    finally:
        await started.close()


def confined(policy: Mapping[str, Any], place: Place, tmp_path: Path) -> Confinement:
    return resolve(policy, place.here, None, hidden=(tmp_path / "home",), place=place)


async def run(supervisor: Supervisor, script: str, confinement: Confinement, cwd: Path) -> Finished:
    env = command_environment(os.environ, EnvironmentPolicy(), confinement)
    command = Command("claim", "call", ("bash", "-c", script), cwd, env, confinement)
    return await supervisor.run(command, lambda stream, data: None)


@needs_bubblewrap
@pytest.mark.sandbox
async def test_command_works_in_the_folder_under_its_path_for_every_machine(
    supervisor: Supervisor, place: Place, tmp_path: Path
) -> None:
    confinement = confined(WRITABLE, place, tmp_path)
    done = await run(supervisor, "pwd; cat file; echo more > new", confinement, place.here)
    assert done.stdout.decode() == f"{place.seen}\nwork", done
    assert (place.here / "new").read_text() == "more\n"


@needs_bubblewrap
@pytest.mark.sandbox
async def test_agents_of_a_tree_see_their_own_folder_at_one_path_and_not_each_others(
    supervisor: Supervisor, place: Place, tmp_path: Path
) -> None:
    other = made(tmp_path / "home/workspaces", "second", "other work")
    script = f"cat {place.seen}/file; cat {other.here}/file; ls {place.here.parents[1]}"
    first, second = await asyncio.gather(
        *(run(supervisor, script, confined(WRITABLE, each, tmp_path), each.here) for each in (place, other))
    )
    assert (first.stdout, second.stdout) == (b"work", b"other work")


@needs_bubblewrap
@pytest.mark.sandbox
async def test_command_sees_no_copy_of_others_wherever_the_root_is(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        place, other = made(root, "first", "work"), made(root, "second", "other work")
        for policy in (WRITABLE, {"mode": "read-only"}):
            confinement = resolve(policy, place.here, None, hidden=(root / "copies",), place=place)
            done = await run(
                supervisor, f"cat file; cat {other.here}/file; ls {root}/copies", confinement, place.here
            )
            assert done.stdout == b"work", done
    finally:
        shutil.rmtree(root)


@needs_bubblewrap
@pytest.mark.sandbox
async def test_each_copy_has_a_tmp_of_its_own(supervisor: Supervisor, place: Place, tmp_path: Path) -> None:
    other = made(tmp_path / "home/workspaces", "second", "")
    confinements = [confined(WRITABLE, each, tmp_path) for each in (place, other)]
    await run(supervisor, "echo mine > /tmp/note; echo x > ${TMPDIR:-/tmp}/t", confinements[0], place.here)
    seen = await run(supervisor, "ls /tmp; cat /tmp/note", confinements[1], other.here)
    again = await run(supervisor, "cat /tmp/note", confinements[0], place.here)
    assert b"note" not in seen.stdout
    assert again.stdout == b"mine\n"


@needs_bubblewrap
@pytest.mark.sandbox
async def test_command_of_a_read_only_session_writes_neither_folder_nor_tmp(
    supervisor: Supervisor, place: Place, tmp_path: Path
) -> None:
    confinement = confined({"mode": "read-only"}, place, tmp_path)
    done = await run(supervisor, "cat file; echo x > new; echo x > /tmp/x", confinement, place.here)
    assert done.stdout == b"work"
    assert not (place.here / "new").exists()
    assert not (place.temporary / "x").exists()


@needs_bubblewrap
@pytest.mark.sandbox
async def test_repository_of_the_folder_is_read_only_for_its_commands(
    supervisor: Supervisor, place: Place, tmp_path: Path
) -> None:
    (place.here / ".git/refs").mkdir(parents=True)
    (place.here / ".git/HEAD").write_text("ref: refs/heads/main\n")
    confinement = confined(WRITABLE, place, tmp_path)
    await run(
        supervisor, "mkdir .git/hooks; echo x > .git/HEAD; rm -rf .git; mv .git x", confinement, place.here
    )
    assert (place.here / ".git/HEAD").read_text() == "ref: refs/heads/main\n"
    assert not (place.here / ".git/hooks").exists()


@needs_bubblewrap
@pytest.mark.sandbox
async def test_command_with_full_access_has_the_folder_in_its_place(
    supervisor: Supervisor, place: Place, tmp_path: Path
) -> None:
    confinement = resolve({"mode": "danger-full-access"}, place.here, None, place=place)
    script = f"pwd; cat file; echo x > {tmp_path}/outside; echo y > $PWD/../project/inside"
    (place.here / "sub").mkdir()
    done = await run(supervisor, script, confinement, place.here)
    assert done.stdout.decode() == f"{place.seen}\nwork", done
    assert (place.here / "inside").read_text() == "y\n"


def test_machine_without_bubblewrap_runs_no_command_of_a_portable_folder(place: Place) -> None:
    confinement = resolve(WRITABLE, place.here, None, place=place)
    bare = SandboxSupport(None, 5, ("bubblewrap: no bwrap on PATH",), can_mount=True)
    for each in (confinement, replace(confinement, mode="danger-full-access")):
        with pytest.raises(NoConfinement, match="Install bubblewrap"):
            choose(bare, each)
    with pytest.raises(NoConfinement, match="asks for landlock") as refused:
        choose(replace(bare, bubblewrap="/usr/bin/bwrap"), confinement, "landlock")
    assert "does not work" not in str(refused.value)


@pytest.mark.parametrize("root", ["/data", "../elsewhere", "/home"])
@pytest.mark.parametrize("before", [[], ["sub"], ["sub", "."]])
def test_writable_root_outside_of_the_folder_is_refused(place: Place, root: str, before: list[str]) -> None:
    for roots in ([*before, root], [root, *before]):
        with pytest.raises(InvalidPolicy, match="would be lost"):
            resolve({**WRITABLE, "writable_roots": roots}, place.here, None, place=place)
    inside = resolve({**WRITABLE, "writable_roots": before}, place.here, None, place=place)
    assert inside.writable_roots == (place.here, place.temporary)


def test_tmp_stays_closed_where_the_policy_says_so(place: Place) -> None:
    closed = resolve({**WRITABLE, "exclude_slash_tmp": True}, place.here, "/var/tmp", place=place)
    assert closed.writable_roots == (place.here,)


def test_worker_follows_links_as_a_command_would(place: Place) -> None:
    (place.here / "sub").mkdir()
    (place.here / "absolute").symlink_to(place.seen / "sub")
    (place.here / "relative").symlink_to("absolute")
    (place.here / "temporary").symlink_to("/tmp/x")
    (place.here / "out").symlink_to("/etc")
    assert place.followed(place.seen / "relative/new") == place.here / "sub/new"
    assert place.followed(place.seen / "temporary/y") == place.temporary / "x/y"
    assert place.followed(place.seen / "out/passwd") == Path("/etc/passwd")
    assert not place.holds(place.followed(place.seen / "out/passwd"))
    assert place.on_machine(place.seen / "a/../b") == place.here / "b"
    assert place.on_machine(Path("/srv/a/../b")) == Path("/srv/b")


def test_links_in_a_circle_end(place: Place) -> None:
    (place.here / "a").symlink_to(place.seen / "b")
    (place.here / "b").symlink_to(place.seen / "a")
    with pytest.raises(OSError, match="symbolic links"):
        place.followed(place.seen / "a")
