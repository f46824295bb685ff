"""Files of a command under names that the product reads or starts itself, outside of any sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import Call
from orchestrator.core.commands import Immediate
from orchestrator.core.settings import SessionFacts, TurnSettings, WorkspaceMark
from orchestrator.core.state import State, Task
from orchestrator.gateways.folder_facts import look_at, mark
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Guide, Skills
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import InputImage
from orchestrator.runtime.same_folder import check_workspace
from orchestrator.sandbox.limits import find_pids_cgroup
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.sandbox.trusted_files import (
    find_named_program,
    find_program,
    named_folders,
    own_link,
    program_environment,
    read_regular,
)
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.settings.sources import in_work_tree
from orchestrator.tools.patch.plan import DiskFiles
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in
from orchestrator.wiring.new_sessions import new_birth


def guide_of(home: Path) -> Guide:
    return Guide(ProjectDocs(home, 32 * 1024), Skills(home, home / "nobody", home / "none"))


SECRET = "swordfish-4711"
NOBODY = 65533
TERABYTE = 1 << 40


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Dendro's own folder, with a secret in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "password").write_text(SECRET)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def plant(path: Path, kind: str, home: Path) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "endless file":
            with path.open("wb") as file:
                file.truncate(TERABYTE)
        case "link to a hidden file":
            path.symlink_to(home / "password")
        case "link through a hidden folder":
            (path.parent / "way").symlink_to(home)
            path.symlink_to(path.parent / "way/password")


PLANTED = ["pipe", "device", "endless file", "link to a hidden file", "link through a hidden folder"]


async def viewed(workspace: Path, home: Path, name: str) -> Immediate:
    config = ToolConfig(SandboxSupport(None, 0, ()), {}, hidden=(home,))
    given = TurnSettings(str(workspace), "never", {"mode": "read-only"}, "gpt-5")
    item = {"type": "function_call", "name": "view_image", "call_id": "c1"}
    call = Call(CallId("c1"), "view_image", {**item, "arguments": orjson.dumps({"path": name}).decode()})
    site = CallSite("c", State(task=Task(SubmissionId("u1"), "user", given)), lambda _: None)
    found = await Toolbox(built_in(config, cast(Any, None))).assess(call, site)
    assert isinstance(found, Immediate)
    return found


@pytest.mark.parametrize("kind", PLANTED)
async def test_model_is_not_shown_what_it_put_in_the_place_of_an_image(
    kind: str, workspace: Path, home: Path
) -> None:
    plant(workspace / "a.png", kind, home)
    found = await viewed(workspace, home, "a.png")
    assert "could not be read" in found.output
    assert SECRET not in found.output


async def test_model_sees_an_image_also_by_a_link(workspace: Path, home: Path) -> None:
    (workspace / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (workspace / "a.png").symlink_to("b.png")
    found = await viewed(workspace, home, "a.png")
    assert found.output == (InputImage(image_url="data:image/png;base64,iVBORw0KGgo="),)


@pytest.mark.parametrize("kind", PLANTED)
def test_instructions_that_a_command_planted_hold_nobody_up_and_tell_no_secret(
    kind: str, workspace: Path, home: Path
) -> None:
    plant(workspace / "AGENTS.md", kind, home)
    told = look_at(workspace, guide_of(home)).instructions or ""
    assert SECRET not in told
    assert len(told) <= 32 * 1024


@pytest.mark.parametrize("kind", ["pipe", "device", "endless file"])
async def test_mark_that_a_command_planted_holds_nobody_up(kind: str, workspace: Path, home: Path) -> None:
    (workspace / ".dendro").mkdir()
    file = workspace / ".dendro/workspace"
    plant(file, kind, home)
    found = mark(workspace, "0123")
    assert found is None or found.id != "0123"
    fault = await check_workspace(
        SessionFacts(workspace=WorkspaceMark(str(workspace), str(file), "0123")), str(workspace)
    )
    assert fault is not None


def test_no_mark_is_written_where_a_link_leads(workspace: Path, home: Path) -> None:
    (workspace / ".dendro").symlink_to(home)
    assert mark(workspace, "0123") is None
    assert [path.name for path in home.iterdir()] == ["password"]


def test_file_without_an_end_is_no_file_for_a_patch(workspace: Path, home: Path) -> None:
    plant(workspace / "a", "endless file", home)
    with pytest.raises(OSError, match="too large for a patch"):
        DiskFiles().read(workspace / "a")


def test_reader_takes_no_more_than_it_asked_for(workspace: Path) -> None:
    (workspace / "a").write_text("abc")
    assert read_regular(workspace / "a", 2) == b"ab"


def planted(folder: Path, name: str = "git") -> Path:
    """A program that leaves a trace beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n: > {folder}/ran\n")
    program.chmod(0o755)
    return program


def test_program_that_an_agent_can_write_is_not_started_by_the_product(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a folder that is no session's: the PATH of a worker names environments of any project."""
    evil, good = workspace / ".venv/bin", tmp_path / "good"
    for folder in (evil, good):
        planted(folder)
    (tmp_path / "link").symlink_to(workspace)
    parts = [".", ".venv/bin", "", str(evil), str(tmp_path / "link/.venv/bin"), str(good)]
    monkeypatch.setenv("PATH", ":".join(parts))
    for cwd in (workspace, tmp_path, Path("/")):
        monkeypatch.chdir(cwd)
        monkeypatch.delenv("DENDRO_PROGRAMS", raising=False)
        assert find_program("git") is None
        look_at(workspace, guide_of(tmp_path / "home"))
        monkeypatch.setenv("DENDRO_PROGRAMS", str(good))
        assert find_program("git") == str(good / "git")
        assert program_environment()["PATH"] == str(good)
    assert not (evil / "ran").exists()


def test_programs_of_the_system_are_found_behind_those_of_a_project(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = planted(workspace / ".venv/bin").parent
    monkeypatch.setenv("PATH", f"{evil}:/usr/local/bin:/usr/bin:/bin")
    found = find_program("git")
    assert found is not None
    assert not found.startswith(str(evil))
    (workspace / ".git").mkdir()
    in_work_tree(workspace, dict(os.environ))
    find_pids_cgroup()
    assert not (evil / "ran").exists()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder beside those of the system, while this process is nobody's."""
    folder = Path(tempfile.mkdtemp(dir="/opt"))
    folder.chmod(0o755)
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._REMEMBER_S", 1e-9)
    os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize(("owner", "found"), [(0, True), (NOBODY + 1, False), (NOBODY, False)])
def test_program_of_another_user_is_not_started_by_the_product(
    owner: int, found: bool, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder on PATH that another user owns holds tomorrow what that user likes."""
    monkeypatch.chdir("/")
    os.seteuid(0)
    os.chown(planted(shared), 0, 0)
    os.chown(shared, owner, 0)
    os.seteuid(NOBODY)
    assert find_program("git", str(shared)) == (str(shared / "git") if found else None)


def test_link_of_the_system_into_a_project_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = planted(tmp_path / "project")
    bin = tmp_path / "usr/bin"
    bin.mkdir(parents=True)
    (bin / "git").symlink_to(evil)
    monkeypatch.setattr("orchestrator.sandbox.trusted_files.SYSTEM_FOLDERS", frozenset({str(bin)}))
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._never", list)
    assert find_program("git", str(bin)) is None


def test_program_of_a_person_is_not_taken_from_a_project(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._temporary", list)
    project, tools = tmp_path / "project", tmp_path / "home/tools"
    (project / ".git").mkdir(parents=True)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    for folder in (project / "bin", tmp_path / "venv/bin", workspace / "bin", tools):
        planted(folder, "npx")
    path = f"bin:{project}/bin:{tmp_path}/venv/bin:{workspace}/bin:{tools}"
    assert find_named_program("npx", path, (workspace,)) == str(tools / "npx")
    assert find_named_program(str(project / "bin/npx"), path) == str(project / "bin/npx")


def _project(at: Path, mark: str = ".git") -> Path:
    (at / "tools").mkdir(parents=True)
    (at / mark).touch()
    return at / "tools"


def _link(at: Path, to: Path) -> Path:
    at.symlink_to(to)
    return at


def _tools(at: Path) -> Path:
    at.mkdir(parents=True)
    return at


WORK: dict[str, Callable[[Path], Path]] = {
    "of a repository": lambda at: _project(at / "p"),
    "of a repository around": lambda at: _tools(_project(at / "p") / "a/b"),
    "that a link in a repository leads to": lambda at: _link(_project(at / "p") / "l", _tools(at / "out")),
    "a link into a repository": lambda at: _link(at / "l", _project(at / "p")),
    "beside an environment's mark": lambda at: _project(at / "p", "pyvenv.cfg"),
    "deep in an environment": lambda at: _tools(_project(at / "p", "pyvenv.cfg") / "a/b"),
    "of an environment that is hidden": lambda at: _project(at / "home/.v", "pyvenv.cfg"),
    "a link to an environment": lambda at: _link(at / "l", _project(at / ".v", "pyvenv.cfg")),
    "of modules": lambda at: _tools(at / "home/node_modules/.bin"),
    "the first that is worked in": lambda at: _tools(at / "first"),
    "below the second": lambda at: _tools(at / "second/bin"),
    "a link into the second": lambda at: _link(at / "l", _tools(at / "second/bin")),
    "below the second as it is named by a link": lambda at: _link(
        at / "second", _tools(at / "real")
    ).resolve(),
    "the current one": lambda at: _tools(at / "here/bin"),
    "a temporary one": lambda at: _tools(at / "temp/bin"),
}
"""Folders of programs that whoever works in a project can write."""

OWN: dict[str, Callable[[Path], Path]] = {
    "of the home": lambda at: _tools(at / "home/bin"),
    "of a home that is a repository": lambda at: _project(at / "home"),
    "of a manager of versions that is a repository": lambda at: _project(at / "home/.nvm"),
    "beside a project": lambda at: _tools(_project(at / "p").parent.with_name("other")),
    "with the beginning of a name that is worked in": lambda at: _tools(at / "first-of-all"),
}
"""Folders of programs that are the person's."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing is a project's or temporary yet."""
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._TEMPORARY", ())
    for name in ("TMPDIR", "TMP", "TEMP", "DENDRO_PROGRAMS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("variable", ["TMPDIR", "TMP", "TEMP"])
def test_folder_of_work_on_a_persons_path_holds_no_program(
    machine: Path, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(machine / "temp"))
    folder = WORK[kind](machine)
    work = (machine / "first", machine / "second")
    own = _tools(machine / "home/own")
    said = f"{folder}::bin:{own}:/usr/bin"
    assert named_folders(said, work) == [str(own), "/usr/bin"]
    monkeypatch.setenv("DENDRO_PROGRAMS", f"relative:{folder}")
    assert named_folders(said, work) == [str(folder), str(own), "/usr/bin"], "a person has vouched for it"


@pytest.mark.parametrize("kind", OWN)
def test_folder_of_a_person_on_their_path_holds_programs(machine: Path, kind: str) -> None:
    folder = OWN[kind](machine)
    assert named_folders(str(folder), (machine / "first", machine / "second")) == [str(folder)]


def _beside(folder: Path, change: Callable[[Path], object]) -> None:
    """Changes a folder of root's, in which there is a program, as root."""
    os.seteuid(0)
    try:
        change(folder)
    finally:
        os.seteuid(NOBODY)


def _moved(folder: Path, to: str) -> Path:
    """The program behind a link to it."""
    there = folder / to
    there.parent.mkdir(exist_ok=True)
    (folder / "git").rename(there)
    (folder / "git").symlink_to(to)
    return there


def _twice_moved(folder: Path) -> Path:
    """The program behind a link to a link to it."""
    there = _moved(folder, "in/there")
    there.rename(folder / "end")
    there.symlink_to("../end")
    return there


CHANGEABLE: dict[str, Callable[[Path], object]] = {
    "a file of this user's": lambda at: os.chown(at / "git", NOBODY, 0),
    "a file that all write": lambda at: (at / "git").chmod(0o757),
    "a folder that all write": lambda at: at.chmod(0o757),
    "a link to a file of this user's": lambda at: os.chown(_moved(at, "there"), NOBODY, 0),
    "a link into a folder of this user's": lambda at: os.chown(_moved(at, "in/there").parent, NOBODY, 0),
    "a link of a link": lambda at: os.chown(_twice_moved(at).parent, NOBODY, 0),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("kind", ["nothing", "a link of root's", *CHANGEABLE])
def test_program_that_can_be_changed_at_any_step_of_its_way_is_not_started_by_the_product(
    kind: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    _beside(shared, planted)
    _beside(shared, CHANGEABLE.get(kind, lambda at: kind == "nothing" or _moved(at, "in/there")))
    found = find_program("git", str(shared))
    assert found == (None if kind in CHANGEABLE else str(shared / "git"))


def test_first_link_of_ones_own_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of the machine's may lead to it, and its target may be named from where it lies."""
    for folder in ("system", "own", "end/deep"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "system/first").symlink_to("../own")
    (tmp_path / "own/second").symlink_to(tmp_path / "end/./deep/..")
    writes = {str(tmp_path / "own"), str(tmp_path / "end")}
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._may_write", lambda path: path in writes)
    assert own_link(tmp_path / "system/first/second/deep") == tmp_path / "own/second"
    assert own_link(tmp_path / "system/first/absent") is None
    assert own_link(tmp_path / "end/deep") is None
    writes.add(str(tmp_path / "system"))
    assert own_link(tmp_path / "system/first/second") == tmp_path / "system/first"
    writes.clear()
    (tmp_path / "own/round").symlink_to("round")
    assert own_link(tmp_path / "own/round") == tmp_path / "own/round", "it never ends"


def test_product_starts_nothing_that_a_repository_names(workspace: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", "gpg.program", "diff.external"):
        subprocess.run(["git", "-C", str(workspace), "config", name, str(program)], check=True)
    hook = workspace / ".git/hooks/post-index-change"
    hook.write_text(program.read_text())
    hook.chmod(0o755)
    assert look_at(workspace, guide_of(tmp_path / "home")).git["branch"]
    mark(workspace, "0123")
    assert not ran.exists()


def test_repository_without_a_git_folder_is_none_for_the_product(workspace: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(workspace)], check=True)
    assert look_at(workspace, guide_of(tmp_path / "home")).git == {}


def pipe_as_head(folder: Path) -> None:
    (folder / "HEAD").unlink()
    os.mkfifo(folder / "HEAD")


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda folder: (folder / "config").write_text("[core\n"), "bad config line 1"),
        (lambda folder: (folder / "HEAD").write_text("nothing\n"), "not a git repository"),
        (pipe_as_head, "HEAD is no file but a pipe"),
    ],
)
def test_person_is_told_of_a_repository_that_counts_as_none(
    workspace: Path, tmp_path: Path, break_it: Callable[[Path], object], why: str
) -> None:
    """The words are a warning at the session's beginning, and in its log."""
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    assert look_at(workspace, guide_of(tmp_path / "home")).warnings == ()
    break_it(workspace / ".git")
    settings = load_settings(SettingsSources(workspace, {"DENDRO_HOME": str(tmp_path / "home")}))
    birth = new_birth(settings, look_at(workspace, guide_of(tmp_path / "home")), 0, os.urandom)
    (warning,) = birth.warnings
    assert f"{workspace}/.git counts as no repository" in warning
    assert why in warning


def test_empty_git_folder_is_no_news(workspace: Path, tmp_path: Path) -> None:
    (workspace / ".git").mkdir()
    assert look_at(workspace, guide_of(tmp_path / "home")).warnings == ()
