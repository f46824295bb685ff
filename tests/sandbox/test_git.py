"""Git over repositories that a stranger or an agent has made, and the code's ways to start programs."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

import orchestrator
import workers
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.home import without_links
from orchestrator.instructions.project import repository
from orchestrator.sandbox.git import GitFailed, git_environment, in_git_thread, irregular, run_git
from orchestrator.settings.sources import in_work_tree
from orchestrator.workspaces.branches import PushRefused, Repository, Work
from orchestrator.workspaces.host_folders import UnfitFolder, commit_of, host_folder
from tests.test_private_files import OTHERWISE

STARTS = {
    *(
        "run",
        "Popen",
        "call",
        "check_call",
        "check_output",
        "create_subprocess_exec",
        "create_subprocess_shell",
    ),
    *(
        "execv",
        "execve",
        "execvp",
        "execvpe",
        "execl",
        "execlp",
        "posix_spawn",
        "posix_spawnp",
        "system",
        "popen",
    ),
}
IN_OPEN = 0x20
OWNERS = {"subprocess", "asyncio", "os"}
_MAY_START = re.compile(rf"\b({'|'.join(OWNERS)})\.({'|'.join(STARTS)})\b")


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=Ann", "-c", "user.email=ann@example.invalid")
    done = subprocess.run(["git", *names, *words], cwd=folder, capture_output=True, check=True)
    return os.fsdecode(done.stdout).strip()


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves `ran` beside it."""
    program = tmp_path / "trap"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def planted(tmp_path: Path, trap: Path) -> Path:
    """A repository whose commit is missing, and is promised by a remote that is a program."""
    folder = tmp_path / "planted"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".git/refs/heads/main").write_text("1" * 40 + "\n")
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": f"ext::{trap}",
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
        "protocol.allow": "always",
        "gpg.program": str(trap),
        "log.showSignature": "true",
        "core.fsmonitor": str(trap),
        "core.sshCommand": str(trap),
    }.items():
        git(folder, "config", key, value)
    return folder


@pytest.fixture
def signed(planted: Path) -> str:
    """A branch of that repository whose commit is there, and signed."""
    tree = git(planted, "mktree")
    who = "A <a@b> 1 +0000"
    mark = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ\n -----END PGP SIGNATURE-----"
    text = f"tree {tree}\nauthor {who}\ncommitter {who}\n{mark}\n\nx\n"
    done = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=planted,
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    (planted / ".git/refs/heads/theirs").write_bytes(done.stdout)
    return done.stdout.decode().strip()


class Openings:
    """Tells of each start of a program, also of one that may write nothing: its file is opened."""

    def __init__(self, file: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._libc.inotify_add_watch(self._queue, os.fsencode(file), IN_OPEN) > 0

    def some(self) -> bool:
        """Whether there was one since the last look."""
        try:
            return bool(os.read(self._queue, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._queue)


@pytest.fixture
def started(trap: Path) -> Iterator[Openings]:
    found = Openings(trap)
    yield found
    found.close()


def take_down(monkeypatch: pytest.MonkeyPatch, walls: Iterable[str]) -> None:
    """Leaves out protections, so that each of the others is seen to hold alone."""
    if "confinement" in walls:
        monkeypatch.setattr("orchestrator.sandbox.git._start_confined", lambda start, _: start())
    if "settings" in walls:
        monkeypatch.setattr("orchestrator.sandbox.git._OBEY_NOTHING", ())
    ours = git_environment

    def fewer(*given: Any, **named: Any) -> dict[str, str]:
        return {name: value for name, value in ours(*given, **named).items() if name not in walls}

    monkeypatch.setattr("orchestrator.sandbox.git.git_environment", fewer)


LAZY, PROTOCOLS = "GIT_NO_LAZY_FETCH", "GIT_ALLOW_PROTOCOL"
ALL = ("confinement", "settings", LAZY, PROTOCOLS)


def ask_for_a_copy(planted: Path) -> None:
    assert commit_of(planted) == ("", None)


def ask_for_a_branch(planted: Path) -> None:
    folder = planted.parent / "made"
    folder.mkdir()
    with pytest.raises(PushRefused):
        Repository.at(planted, os.environ).push("main", folder, Work("s", "the root", "5" * 40, "1" * 40))


def ask_for_instructions(planted: Path) -> None:
    assert repository(planted).top == str(planted)
    assert in_work_tree(planted, os.environ)


ASKING = pytest.mark.parametrize("ask", [ask_for_a_copy, ask_for_a_branch, ask_for_instructions])


@ASKING
@pytest.mark.parametrize(
    "down",
    [(), ("confinement", LAZY), ("confinement", PROTOCOLS)],
    ids=["none is down", "only protocols stand", "only lazy fetches are refused"],
)
def test_repository_that_promises_its_commit_starts_nothing(
    planted: Path,
    started: Openings,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Path], None],
    down: tuple[str, ...],
) -> None:
    """A fetch would start the program that the repository names as its remote."""
    take_down(monkeypatch, down)
    ask(planted)
    assert not started.some()


@ASKING
def test_confinement_keeps_a_repository_from_harm_that_no_other_wall_keeps(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], None]
) -> None:
    take_down(monkeypatch, ("settings", LAZY, PROTOCOLS))
    ask(planted)
    assert not (tmp_path / "ran").exists()


def test_planted_repository_does_harm_where_no_wall_stands(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above would prove nothing."""
    take_down(monkeypatch, ALL)
    ask_for_a_copy(planted)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("down", [(), ALL], ids=["none is down", "all are down"])
def test_signature_of_a_branch_is_checked_by_no_program_of_the_repository(
    planted: Path,
    signed: str,
    started: Openings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    down: tuple[str, ...],
) -> None:
    take_down(monkeypatch, down)
    with pytest.raises(PushRefused, match="none of session"):
        Repository.at(planted, os.environ).push("theirs", tmp_path, Work("s", "a", "5" * 40, None))
    assert not started.some()


@pytest.mark.parametrize(("down", "runs"), [(("confinement",), False), (("confinement", "settings"), True)])
def test_settings_of_every_call_keep_git_from_checking_signatures(
    planted: Path,
    signed: str,
    started: Openings,
    monkeypatch: pytest.MonkeyPatch,
    down: tuple[str, ...],
    runs: bool,
) -> None:
    take_down(monkeypatch, down)
    run_git(planted, "log", "-1", signed)
    assert started.some() is runs


def test_git_of_the_product_writes_nothing(tmp_path: Path, trap: Path, started: Openings) -> None:
    """The second wall: a program that git is made to start all the same."""
    git(tmp_path, "init", "-q", str(tmp_path / "repo"))
    answer = run_git(tmp_path / "repo", "-c", f"alias.trap=!{trap}", "trap")
    assert answer.code != 0
    assert started.some(), "it is the confinement that is tried here"
    assert not (tmp_path / "ran").exists()
    assert run_git(tmp_path / "repo", "config", "a.b", "c").code != 0


@pytest.mark.parametrize("name", ["a", "a=b.enabled=true", "two\twords"])
def test_git_that_writes_runs_no_hook_that_a_configuration_names(tmp_path: Path, name: str) -> None:
    """From 2.54 on git runs `hook.NAME.command` for `hook.NAME.event`, wherever `core.hooksPath` leads."""
    git(tmp_path, "init", "-q", "repo")
    repo = tmp_path / "repo"
    git(repo, "config", f"hook.{name}.event", "reference-transaction")
    git(repo, "config", f"hook.{name}.command", "false")
    told = run_git(repo, "config", "--get", f"hook.{name}.enabled", writable=(repo / ".git",))
    assert told.text == "false"


def test_git_writes_nothing_where_nobody_can_switch_off_all_hooks(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "repo")
    hooks = "".join(f'[hook "h{n}"]\n\tevent = update\n\tcommand = false\n' for n in range(101))
    with (tmp_path / "repo/.git/config").open("a") as config:
        config.write(hooks)
    with pytest.raises(GitFailed, match="more than 100 hooks"):
        run_git(tmp_path / "repo", "write-tree", writable=(tmp_path / "repo/.git",))


@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs"])
def test_pipe_in_a_repository_is_named_at_once(tmp_path: Path, name: str) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / ".git" / name)
    with pytest.raises(UnfitFolder, match=rf"{name} is no file but a pipe"):
        commit_of(tmp_path)


def linked_work_tree(folder: Path, branch: str) -> tuple[Path, Path, Path]:
    """A linked work tree, its own folder, and the repository that it shares."""
    main, linked = folder / "main", folder / "linked"
    main.mkdir()
    git(main, "init", "-q", "-b", "first")
    git(main, "commit", "-q", "--allow-empty", "-m", "1")
    git(main, "worktree", "add", "-q", "-b", branch, str(linked))
    return linked, main / ".git/worktrees/linked", main / ".git"


def becomes_a_pipe(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reason why git is not started over a folder."""

    def started(*words: str) -> list[str]:
        raise AssertionError(f"git is started: {words}")

    monkeypatch.setattr("orchestrator.sandbox.git.git_words", started)
    with pytest.raises(GitFailed) as failed:
        run_git(folder, "rev-parse", "HEAD")
    return str(failed.value)


OWN = ("HEAD", "commondir", "config.worktree", "index")
SHARED = ("config", "packed-refs", "shallow", "info/exclude", "objects/info/alternates")


@pytest.mark.parametrize("branch", ["topic", "topics/new/ä"])
@pytest.mark.parametrize("name", [*OWN, *SHARED, "branch"])
def test_pipe_of_a_linked_work_tree_is_named_before_git_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, branch: str
) -> None:
    linked, own, common = linked_work_tree(tmp_path, branch)
    other = common / "refs/heads/first"
    other.unlink()
    os.mkfifo(other)
    assert irregular(linked / ".git") == "", "a branch that is not at work here is nothing to git"
    file = common / f"refs/heads/{branch}" if name == "branch" else (own if name in OWN else common) / name
    becomes_a_pipe(file)
    assert f"/{file.relative_to(common)} is no file but a pipe" in refused(linked, monkeypatch)


HEADS: dict[str, tuple[str, str]] = {
    "as git writes it": ("ref: refs/heads/first\n", "refs/heads/first"),
    "without a space": ("ref:refs/heads/first", "refs/heads/first"),
    "with more space": ("ref: \t refs/heads/first \n\n", "refs/heads/first"),
    "not of a branch": ("ref: refs/pull/1\n", "refs/pull/1"),
    "by one more": ("ref: refs/heads/to-1\n", "refs/heads/last"),
    "by two more": ("ref: refs/heads/to-2\n", "refs/heads/last"),
    "its own": ("ref: refs/bisect/bad\n", "refs/bisect/bad"),
}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_pipe_in_the_place_of_a_branch_is_named_however_head_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, linked: bool
) -> None:
    folder, own, common = linked_work_tree(tmp_path, "topic")
    if not linked:
        folder, own = common.parent, common
    written, name = HEADS[head]
    (own / "HEAD").write_text(written)
    (common / "refs/heads/to-2").write_text("ref: refs/heads/to-1\n")
    (common / "refs/heads/to-1").write_text("ref:refs/heads/last\n")
    becomes_a_pipe((own if head == "its own" else common) / name)
    assert f"/{name} is no file but a pipe" in refused(folder, monkeypatch)


def test_branch_that_leads_to_itself_is_no_pipe_and_git_says_so(tmp_path: Path) -> None:
    _, _, common = linked_work_tree(tmp_path, "topic")
    (common / "refs/heads/first").write_text("ref: refs/heads/first\n")
    assert irregular(common) == ""
    assert run_git(common.parent, "rev-parse", "--verify", "HEAD").code != 0


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 2200, "a\0b", "../../../x"])
def test_branch_that_no_file_can_have_is_no_pipe_and_git_says_so(tmp_path: Path, name: str) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/HEAD").write_text(f"ref: refs/heads/{name}\n")
    assert irregular(tmp_path / ".git") == ""
    assert run_git(tmp_path, "rev-parse", "--verify", "HEAD").code != 0


async def test_pipe_that_a_configuration_includes_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.sandbox.git.PATIENCE_S", 0.5)
    git(tmp_path, "init", "-q")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / ".git/config").open("a") as config:
        config.write(f"[include]\n\tpath = {tmp_path}/pipe\n")
    with pytest.raises(GitFailed, match="names a file that never ends"):
        await in_git_thread(run_git, tmp_path, "rev-parse", "HEAD")
    began = time.monotonic()
    with pytest.raises(GitFailed, match="names a file that never ends"):
        run_git(tmp_path, "rev-parse", "HEAD")
    assert time.monotonic() - began < 0.4, "it is not asked again so soon"


def test_copy_begins_at_no_other_folder_that_a_repository_names(tmp_path: Path) -> None:
    inner = tmp_path / "person/work"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    git(inner, "config", "core.worktree", str(tmp_path / "person"))
    settings = WorkspaceSettings(root=tmp_path / "root")
    assert host_folder(inner, settings, None, os.environ).top == inner.resolve()


def calls() -> Iterator[tuple[Path, ast.Call, ast.AST]]:
    for package in (orchestrator, workers):
        for file in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            if not _MAY_START.search(text := file.read_text()):
                continue
            tree = ast.parse(text)
            for node in ast.walk(tree):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (
                        owner in OWNERS and name in STARTS and (owner, name) != ("asyncio", "run")
                    ):
                        yield file, node, tree


def bare(node: ast.expr) -> bool:
    """Whether a command line begins with a word that PATH decides about."""
    match node:
        case ast.Constant(value=str(word)):
            return not word.startswith("/")
        case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
            return bare(first)
        case ast.BoolOp(values=values):
            return any(bare(value) for value in values)
    return False


def test_no_program_is_started_by_a_bare_name() -> None:
    found = []
    for file, call, tree in calls():
        lines = [call.args[0]] if call.args else []
        if lines and isinstance(lines[0], ast.Name):
            name = lines[0].id
            lines += [
                it.value
                for it in ast.walk(tree)
                if isinstance(it, ast.Assign)
                and any(isinstance(one, ast.Name) and one.id == name for one in it.targets)
            ]
        found += [f"{file}:{call.lineno}" for line in lines if bare(line)]
    assert found == []


STARTED = {
    "orchestrator/broker/embedded.py": 3,
    "orchestrator/broker/server_guard.py": 1,
    "orchestrator/demo.py": 4,
    "orchestrator/doctor.py": 1,
    "orchestrator/folders/repository_head.py": 1,
    "orchestrator/folders/keeper.py": 1,
    "orchestrator/runtime/burial.py": 1,
    "orchestrator/sandbox/git.py": 1,
    "orchestrator/sandbox/limits.py": 1,
    "orchestrator/sandbox/probe.py": 2,
    "orchestrator/sandbox/trusted_files.py": 3,
    "orchestrator/terminal/notifications.py": 1,
    "orchestrator/tools/commands/bash.py": 1,
    "orchestrator/tools/exec/supervisor_process.py": 5,
    "orchestrator/tools/mcp_tools.py": 1,
    "orchestrator/tools/exec/supervisor.py": 1,
    "orchestrator/tools/folder_setup.py": 1,
    "orchestrator/tools/images.py": 1,
    "orchestrator/tools/shell.py": 3,
    "orchestrator/tools/toolbox.py": 1,
    "orchestrator/views/patterns.py": 1,
    "orchestrator/workspaces/service.py": 1,
    "workers/forked.py": 1,
}
"""How often each file of the code starts a program, forks, or looks for a program by PATH."""

READ = {
    "orchestrator/broker/embedded.py": 5,
    "orchestrator/broker/scripts.py": 1,
    "orchestrator/broker/server_guard.py": 4,
    "orchestrator/cli/bundle.py": 1,
    "orchestrator/cli/exec.py": 2,
    "orchestrator/cli/export.py": 1,
    "orchestrator/cli/invocation.py": 1,
    "orchestrator/cli/main.py": 2,
    "orchestrator/cli/notary.py": 2,
    "orchestrator/core/calls/patch.py": 1,
    "orchestrator/demo.py": 5,
    "orchestrator/folders/build.py": 5,
    "orchestrator/folders/copy.py": 3,
    "orchestrator/folders/repository_head.py": 1,
    "orchestrator/folders/keeper.py": 1,
    "orchestrator/folders/keeper_process.py": 1,
    "orchestrator/folders/merge.py": 9,
    "orchestrator/folders/packs.py": 2,
    "orchestrator/folders/scan.py": 5,
    "orchestrator/folders/store.py": 1,
    "orchestrator/gateways/app_server/door.py": 1,
    "orchestrator/gateways/wires/authentication.py": 3,
    "orchestrator/gateways/folder_facts.py": 1,
    "orchestrator/gateways/window/pages.py": 1,
    "orchestrator/instructions/project.py": 2,
    "orchestrator/instructions/skills.py": 1,
    "orchestrator/model/credentials.py": 1,
    "orchestrator/private_files.py": 4,
    "orchestrator/rollouts/bundle_members.py": 5,
    "orchestrator/rollouts/bundle_writer.py": 1,
    "orchestrator/rollouts/deletion.py": 2,
    "orchestrator/rollouts/object_store.py": 3,
    "orchestrator/rollouts/replay.py": 2,
    "orchestrator/rollouts/signed_notes.py": 1,
    "orchestrator/rollouts/verify.py": 2,
    "orchestrator/rollouts/witnesses.py": 1,
    "orchestrator/runtime/burial.py": 1,
    "orchestrator/runtime/machine_files.py": 1,
    "orchestrator/runtime/same_folder.py": 1,
    "orchestrator/sandbox/confine.py": 1,
    "orchestrator/sandbox/git.py": 3,
    "orchestrator/sandbox/kernel.py": 1,
    "orchestrator/sandbox/landlock.py": 1,
    "orchestrator/sandbox/limits.py": 3,
    "orchestrator/sandbox/policy_paths.py": 2,
    "orchestrator/sandbox/trusted_files.py": 4,
    "orchestrator/settings/layers.py": 2,
    "orchestrator/settings/load.py": 2,
    "orchestrator/settings/private_home.py": 1,
    "orchestrator/settings/folder_trust.py": 2,
    "orchestrator/stub/scenario.py": 1,
    "orchestrator/stub/server.py": 1,
    "orchestrator/terminal/demo_view.py": 1,
    "orchestrator/terminal/chat.py": 1,
    "orchestrator/tools/exec/supervisor_process.py": 3,
    "orchestrator/tools/exec/held_objects.py": 7,
    "orchestrator/tools/exec/supervisor.py": 1,
    "orchestrator/tools/image_process.py": 2,
    "orchestrator/tools/images.py": 1,
    "orchestrator/tools/job_bench.py": 1,
    "orchestrator/tools/patch/plan.py": 3,
    "orchestrator/tools/patch/writer.py": 10,
    "orchestrator/tools/exec_policy.py": 1,
    "orchestrator/views/audit_who.py": 2,
    "orchestrator/wiring/deployment.py": 1,
    "orchestrator/wiring/portable.py": 2,
    "orchestrator/wiring/worker_parts.py": 3,
    "orchestrator/wiring/new_threads.py": 3,
    "orchestrator/workspaces/branches.py": 2,
    "orchestrator/workspaces/copies.py": 3,
    "orchestrator/workspaces/claimed_folder.py": 1,
    "orchestrator/workspaces/pack_keys.py": 2,
    "orchestrator/workspaces/stored_packs.py": 2,
    "workers/forked.py": 1,
    "workers/notary.py": 1,
}
"""How often each file of the code reads a file or a link, by these words."""

FOLLOWED = {
    "orchestrator/broker/embedded.py": 5,
    "orchestrator/cli/witness.py": 1,
    "orchestrator/cli/checkout.py": 1,
    "orchestrator/cli/exec.py": 3,
    "orchestrator/cli/export.py": 2,
    "orchestrator/cli/remove.py": 2,
    "orchestrator/cli/serve.py": 2,
    "orchestrator/cli/sessions.py": 1,
    "orchestrator/demo.py": 3,
    "orchestrator/doctor.py": 2,
    "orchestrator/folders/build.py": 1,
    "orchestrator/folders/copy.py": 3,
    "orchestrator/folders/keeper.py": 1,
    "orchestrator/folders/merge.py": 2,
    "orchestrator/folders/scan.py": 1,
    "orchestrator/gateways/window/pages.py": 1,
    "orchestrator/gateways/wires/authentication.py": 2,
    "orchestrator/home.py": 1,
    "orchestrator/instructions/project.py": 1,
    "orchestrator/instructions/skills.py": 3,
    "orchestrator/private_files.py": 1,
    "orchestrator/rollouts/bundle_members.py": 1,
    "orchestrator/rollouts/deletion.py": 1,
    "orchestrator/rollouts/verify.py": 1,
    "orchestrator/runtime/machine_files.py": 1,
    "orchestrator/sandbox/git.py": 1,
    "orchestrator/sandbox/limits.py": 1,
    "orchestrator/sandbox/policy_paths.py": 3,
    "orchestrator/sandbox/probe.py": 1,
    "orchestrator/sandbox/trusted_files.py": 8,
    "orchestrator/settings/private_home.py": 5,
    "orchestrator/settings/sources.py": 4,
    "orchestrator/settings/folder_trust.py": 1,
    "orchestrator/terminal/origin.py": 1,
    "orchestrator/tools/exec/supervisor_process.py": 1,
    "orchestrator/tools/exec/held_objects.py": 1,
    "orchestrator/tools/exec/supervisor.py": 2,
    "orchestrator/tools/job_bench.py": 9,
    "orchestrator/tools/apply_patch.py": 1,
    "orchestrator/tools/patch/plan.py": 5,
    "orchestrator/tools/patch/writer.py": 1,
    "orchestrator/tools/exec_policy.py": 2,
    "orchestrator/tools/shell.py": 6,
    "orchestrator/wiring/worker_parts.py": 4,
    "orchestrator/wiring/new_threads.py": 4,
    "orchestrator/workspaces/branches.py": 1,
    "orchestrator/workspaces/copies.py": 6,
    "orchestrator/workspaces/host_folders.py": 9,
    "orchestrator/workspaces/pack_keys.py": 1,
    "workers/forked.py": 1,
}
"""How often each file of the code lists a folder, or looks where a path leads."""

FORKS = {"fork", "forkpty", "spawn", "spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp", "which"}
READERS = {"read_text", "read_bytes", "read_regular", "readlink"}


@lru_cache(maxsize=1)
def nodes_of(text: str) -> Sequence[ast.Import | ast.ImportFrom | ast.Call]:
    """The imports and calls of a source, which is counted by several rules one behind the other."""
    wanted = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, wanted)]


def origins(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The meaning of each name of a file's imports: also of `from subprocess import run as go`."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {it.asname or it.name: it.name for it in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {it.asname or it.name: f"{node.module}.{it.name}" for it in node.names}
    return found


def starts(text: str) -> int:
    """How often a source starts a program, forks or looks for one."""
    known, found = origins(nodes_of(text)), 0
    for node in nodes_of(text):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            owner, _, name = f"{known.get(first, first)}{dot}{rest}".rpartition(".")
            named = owner in OWNERS | {"pty", "shutil", "asyncio.subprocess"} and name in STARTS | FORKS
            found += named and (owner, name) != ("asyncio", "run")
    return found


def readings(text: str) -> int:
    """How often a source reads a file or a link by the usual words; what only writes is not counted."""
    found = 0
    for node in nodes_of(text):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            modes = (
                one.value
                for one in [*node.args, *(it.value for it in node.keywords)]
                if isinstance(one, ast.Constant)
            )
            writes = any(
                isinstance(one, str) and one.strip("rbt") and set(one) <= set("rwaxbt+") for one in modes
            )
            found += name in READERS or (name == "open" and not writes)
    return found


LISTS = {"scandir", "listdir", "iterdir", "glob", "rglob", "walk", "fwalk", "realpath"}


def followings(text: str) -> int:
    """How often a source lists a folder, or looks where a path leads."""
    calls = [node for node in nodes_of(text) if isinstance(node, ast.Call)]
    named = [(node.func.attr, node.args) for node in calls if isinstance(node.func, ast.Attribute)]
    words = [word.id for call in calls for word in (call.func, *call.args) if isinstance(word, ast.Name)]
    led = words.count(without_links.__name__)
    return led + sum(name in LISTS or (name == "resolve" and not given) for name, given in named)


def table() -> dict[str, set[str]]:
    """The files that the table of SECURITY.md names, by what they do."""
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    _, _, rest = page.partition("### What Dendro itself starts, reads, follows and makes")
    found: dict[str, set[str]] = {}
    for row in rest.partition("\n### ")[0].splitlines():
        if row.startswith("| `"):
            files, does = row.split(" | ")[:2]
            found.setdefault(does, set()).update(re.findall(r"`([^`]+\.py)`", files))
    return found


@cache
def counted() -> Mapping[Callable[[str], int], dict[str, int]]:
    """How often each rule finds something in each file of the code where it does."""
    root = Path(str(orchestrator.__file__)).parents[1]
    found: dict[Callable[[str], int], dict[str, int]] = {starts: {}, readings: {}, followings: {}}
    for package in ("orchestrator", "workers"):
        for file in sorted((root / package).rglob("*.py")):
            text, name = file.read_text(), str(file.relative_to(root))
            for of, times in found.items():
                if number := of(text):
                    times[name] = number
    return found


@pytest.mark.parametrize(
    ("of", "known", "verb"),
    [(starts, STARTED, "starts"), (readings, READ, "reads"), (followings, FOLLOWED, "follows")],
    ids=["starts a program", "reads a file", "follows a path"],
)
def test_security_names_each_place_that(of: Callable[[str], int], known: dict[str, int], verb: str) -> None:
    """A new call wants a look at who may have written what it starts or reads, and a row of the table."""
    assert counted()[of] == known
    assert sorted(set(known) - table()[verb]) == []


def test_security_names_each_place_that_makes_a_file_past_the_private_way() -> None:
    assert sorted(set(OTHERWISE) - table()["makes"]) == []


def test_security_names_no_place_that_is_gone() -> None:
    root = Path(str(orchestrator.__file__)).parents[1]
    assert [name for names in table().values() for name in sorted(names) if not (root / name).is_file()] == []


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess as s\ns.run(a)",
        "from subprocess import Popen as go\ngo(a)",
        "import os\nos.fork()",
        "from os import execv\nexecv(a, b)",
        "import pty\npty.spawn(a)",
        "import shutil\nshutil.which(a)",
        "import asyncio\nasyncio.create_subprocess_exec(a)",
    ],
)
def test_ways_to_start_a_program_are_seen(line: str) -> None:
    assert starts(line) == 1


@pytest.mark.parametrize(
    "line",
    [
        "os.scandir(a)",
        "os.path.realpath(a)",
        "folder.resolve()",
        "folder.rglob('*')",
        "os.fwalk(a)",
        "without_links(a)",
        "from orchestrator.home import without_links\nmap(without_links, a)",
    ],
)
def test_ways_to_follow_a_path_are_seen(line: str) -> None:
    assert followings(line) == 1
    assert followings("resolve(message, texts)") == 0
