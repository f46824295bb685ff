"""Jobs of a pool, done within their bounds: commands under the sandbox, looks at repositories and files."""

from __future__ import annotations

import asyncio
import base64
import heapq
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, assert_never

from pydantic import ValidationError

from orchestrator.config_keys import SANDBOX_MODES, SandboxPolicy
from orchestrator.core.frozen import record
from orchestrator.protocol import jobs
from orchestrator.protocol.wire import written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.git import repository_above
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import InvalidPolicy, resolve
from orchestrator.sandbox.probe import NoConfinement
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.tool_context import ToolConfig

FILES_S = 10.0
T = TypeVar("T")


@record
class Workbench:
    """Does jobs; a door's worker is another process, so a job and its answer are bytes."""

    commands: Commands

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Lets what runs under a job's claim live until then."""
        self.commands.supervisor.extend(claim, deadline_boottime)

    async def do(self, payload: bytes, claim: str) -> bytes:
        """The answer to a job. Cancelling it kills what it runs, and waits for the proof."""
        try:
            result = await self._result(jobs.JOB.validate_json(payload), claim)
        except ValidationError as error:
            result = jobs.JobFailed(
                message=f"this worker does not know such a job: {error.errors()[0]['msg']}"
            )
        except JobRefused as error:
            result = jobs.JobFailed(message=str(error), refused=True)
        except TimeoutError:
            result = jobs.JobFailed(
                message=f"the files did not answer within {FILES_S:.0f} s; check the mount"
            )
        except OSError as error:
            place = f"{error.filename}: " if error.filename is not None else ""
            result = jobs.JobFailed(message=f"{place}{error.strerror or error}")
        except ValueError as error:
            # A name that no file can have.
            result = jobs.JobFailed(message=str(error))
        return jobs.JOB_RESULT.dump_json(result)

    async def _result(self, job: jobs.Job, claim: str) -> jobs.JobResult:
        hidden = self.commands.config.hidden
        match job:
            case jobs.RunCommand():
                return await self.commands.run(job, claim)
            case jobs.DiffToRemote():
                return await self.commands.diff_to_remote(job, claim)
            case jobs.ReadFile(path=path):
                return await _looked(lambda: read_file(path, hidden))
            case jobs.ReadDirectory(path=path):
                return await _looked(lambda: read_directory(path, hidden))
            case jobs.GetMetadata(path=path):
                return await _looked(lambda: metadata(path, hidden))
            case jobs.SearchFiles(query=query, roots=roots):
                return await _looked(lambda: search(query, roots, hidden))
            case _:
                assert_never(job)


async def _looked(look: Callable[[], T]) -> T:
    async with asyncio.timeout(FILES_S):
        return await asyncio.to_thread(look)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────
# Looks at files and folders of the worker's machine, but for what is hidden from commands.
#
# Blocking: each look has a thread and a time limit of whoever calls.


FILE_BYTES = 8 << 20
MOST_ENTRIES = 10_000


def read_file(path: str, hidden: Iterable[Path]) -> jobs.FileContent:
    content = read_regular(_absolute(path), FILE_BYTES + 1, hidden)
    if len(content) > FILE_BYTES:
        raise JobRefused(f"{path} has more than {FILE_BYTES:,} bytes")
    return jobs.FileContent(data_base64=base64.b64encode(content).decode("ascii"))


def read_directory(path: str, hidden: Iterable[Path]) -> jobs.Directory:
    folder = _shown(path, hidden)
    entries: list[jobs.Entry] = []
    with os.scandir(folder) as found:
        for one in found:
            if len(entries) == MOST_ENTRIES:
                raise JobRefused(f"{path} has more than {MOST_ENTRIES:,} entries")
            entries.append(
                jobs.Entry(file_name=_text(one.name), is_directory=one.is_dir(), is_file=one.is_file())
            )
    return jobs.Directory(entries=tuple(sorted(entries, key=lambda entry: entry.file_name)))


def metadata(path: str, hidden: Iterable[Path]) -> jobs.Metadata:
    place = _shown(path, hidden)
    itself, target = place.lstat(), place.stat()
    return jobs.Metadata(
        is_directory=stat.S_ISDIR(target.st_mode),
        is_file=stat.S_ISREG(target.st_mode),
        is_symlink=stat.S_ISLNK(itself.st_mode),
        # Linux tells Python no time of birth: 0 says that it is not known.
        created_at_ms=0,
        modified_at_ms=target.st_mtime_ns // 1_000_000,
    )


def _shown(path: str, hidden: Iterable[Path]) -> Path:
    """The path, if it leads to nothing that is hidden from commands."""
    place = _absolute(path)
    real = place.resolve()
    if any(real.is_relative_to(folder.resolve()) for folder in hidden):
        raise PermissionError(13, "Permission denied", path)
    return place


def _absolute(path: str) -> Path:
    place = Path(path)
    if not place.is_absolute():
        raise JobRefused(f"{path}: give an absolute path")
    return place


def _text(name: str) -> str:
    """A file's name as text; bytes that are none become marks."""
    return os.fsencode(name).decode("utf-8", "replace")


# ── search ────────────────────────────────────────────────────────────────────────────────────────
# Files by the letters of their paths: a query's letters in their order, with others between.
#
# Letters that follow each other, begin a word or stand in the file's own name count more. Bounded: of a
# large folder only so many paths are looked at.


MOST_PATHS = 50_000
MOST_DEPTH = 32
MOST_FOUND = 50
LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "target"})
"""Folders that hold no work of people."""
BEGINS, FOLLOWS, NAMES, ANY = 32, 24, 8, 16
_BREAKS = "/_-. "


def search(query: str, roots: Iterable[str], hidden: Iterable[Path]) -> jobs.FoundFiles:
    """The best files and folders below some roots; an empty query finds nothing."""
    letters = query.casefold()
    if not letters:
        return jobs.FoundFiles(files=())
    concealed = tuple(folder.resolve() for folder in hidden)
    found = (
        match
        for root in roots
        for path, is_file in _paths(Path(root), concealed)
        if (match := _match(letters, root, path, is_file=is_file)) is not None
    )
    best = heapq.nsmallest(MOST_FOUND, found, key=lambda one: (-one.score, one.path, one.root))
    return jobs.FoundFiles(files=tuple(best))


def _paths(root: Path, hidden: tuple[Path, ...]) -> Iterator[tuple[str, bool]]:
    """Paths below a root, the nearest first, and whether each is a file."""
    if not root.is_absolute():
        return
    left, level = MOST_PATHS, [root]
    for _ in range(MOST_DEPTH):
        below: list[Path] = []
        for folder in level:
            if any(folder.resolve().is_relative_to(one) for one in hidden):
                continue
            for entry in _entries(folder):
                if not left:
                    return
                left -= 1
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name in LEFT_OUT:
                    continue
                yield os.fsencode(os.path.relpath(entry.path, root)).decode("utf-8", "replace"), not is_folder
                if is_folder:
                    below.append(Path(entry.path))
        level = below


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        # What may not be read is not found.
        return []


def _match(letters: str, root: str, path: str, *, is_file: bool) -> jobs.FoundFile | None:
    places = _places(letters, path)
    if places is None:
        return None
    name = path.rpartition("/")[2]
    return jobs.FoundFile(
        root=root,
        path=path,
        match_type="file" if is_file else "directory",
        file_name=name,
        score=_score(places, path, len(path) - len(name)),
        indices=tuple(places),
    )


def _places(letters: str, path: str) -> list[int] | None:
    """The places of the letters, the last that fit: a file's own name is nearer to what is meant."""
    places: list[int] = []
    folded = path.casefold()
    at = len(folded)
    for letter in reversed(letters):
        at = folded.rfind(letter, 0, at)
        if at < 0:
            return None
        places.append(at)
    if len(folded) != len(path):
        # A letter that folds into two has moved all places behind it.
        own = [place for place, letter in enumerate(path) for _ in letter.casefold()]
        places = list(dict.fromkeys(own[place] for place in places))
    return places[::-1]


def _score(places: list[int], path: str, name_at: int) -> int:
    points = 0
    for number, at in enumerate(places):
        begins = at == 0 or path[at - 1] in _BREAKS
        follows = number > 0 and places[number - 1] == at - 1
        points += (
            ANY + (BEGINS if begins else 0) + (FOLLOWS if follows else 0) + (NAMES if at >= name_at else 0)
        )
    return max(0, points - len(path) // 8)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────
# Commands of jobs, under the supervisor and the sandbox: any, and those that tell a repository's changes.


DIFF_BYTES = 4 << 20
UNTRACKED = 500
GIT_S = 20.0
READ_ONLY: Mapping[str, Any] = {"mode": "read-only"}
_GIT = (
    "git",
    "--no-optional-locks",
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"),
    *("-c", "core.quotePath=false"),
)
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv")


@record
class Commands:
    """The means of a worker to run commands that belong to no session."""

    config: ToolConfig
    supervisor: Supervisor
    own: SandboxPolicy
    """The worker's own policy: the most that a job gets."""

    async def run(self, job: jobs.RunCommand, claim: str) -> jobs.CommandResult:
        """Runs a job's command; raises `JobRefused` if it may not run, or cannot."""
        cwd = folder_of(job.cwd)
        policy = written(job.sandbox_policy) if job.sandbox_policy is not None else None
        allowed = permitted(policy, self.own, cwd)
        finished = await self._finished(job.command, claim, cwd, allowed, job.timeout_ms / 1000, job.env)
        texts = (finished.stdout, finished.stderr)
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
        if finished.exit_code == -1:
            raise JobRefused(finished.error or "it was stopped before it began")
        return jobs.CommandResult(exit_code=finished.exit_code, stdout=stdout, stderr=stderr)

    async def _finished(
        self,
        argv: Sequence[str],
        claim: str,
        cwd: Path,
        policy: Mapping[str, Any],
        timeout_s: float,
        env: Mapping[str, str],
        keep: bytearray | None = None,
    ) -> Finished:
        config = self.config
        try:
            confinement = resolve(
                policy,
                cwd,
                config.environ.get("TMPDIR"),
                hidden=config.hidden,
                read_only=config.read_only,
                trusted=config.trusted(),
                unix_sockets=config.sandbox.unix_sockets,
            )
            inherited = command_environment(config.environ, config.sandbox.environment, confinement)
            command = Command(
                claim=claim,
                call_id=claim,
                argv=tuple(argv),
                cwd=cwd,
                env={**inherited, **env},
                confinement=confinement,
                timeout_s=timeout_s,
                limits=Limits(config.sandbox.max_processes, config.sandbox.max_memory_bytes),
            )
            return await self.supervisor.run(command, lambda stream, data: _keep(keep, stream, data))
        except (NoConfinement, SupervisorLost, InvalidPolicy) as error:
            raise JobRefused(str(error)) from error

    # ── git ───────────────────────────────────────────────────────────────────────────────────

    async def diff_to_remote(self, job: jobs.DiffToRemote, claim: str) -> jobs.DiffResult:
        """The changes since the last commit that a remote has; raises `JobRefused` where there is none."""
        cwd = folder_of(job.cwd)
        found = await self._git(claim, cwd, "rev-parse", "--show-toplevel", "HEAD")
        if found is None:
            raise JobRefused(f"{job.cwd} is in no git repository with a commit")
        top, sha = found.decode("utf-8", "surrogateescape").split("\n")[:2]
        place = repository_above(cwd)
        if place is None or place.parent != Path(top):
            # A stranger's configuration may: files of that folder would be shown as changes.
            raise JobRefused(f"{job.cwd}: its repository names another folder as its own (core.worktree)")
        base = await self._last_on_a_remote(claim, Path(top), sha)
        diff = await self._git(claim, Path(top), *_DIFF, base, "--") or b""
        diff += await self._untracked(claim, Path(top), DIFF_BYTES - len(diff))
        return jobs.DiffResult(sha=base, diff=diff.decode("utf-8", "replace"))

    async def _last_on_a_remote(self, claim: str, top: Path, sha: str) -> str:
        remotes = await self._git(claim, top, "for-each-ref", "--count=1", "refs/remotes")
        if not remotes:
            raise JobRefused(f"{top} has no branch of a remote to compare with")
        lines = await self._git(claim, top, "rev-list", "--boundary", "HEAD", "--not", "--remotes") or b""
        ours = lines.decode("ascii", "replace").split()
        edges = [line[1:] for line in ours if line.startswith("-")]
        if ours and not edges:
            raise JobRefused(f"{top} has no commit in common with a remote")
        return edges[0] if edges else sha

    async def _untracked(self, claim: str, top: Path, room: int) -> bytes:
        """The files that git does not know, as changes; raises `JobRefused` for more than `room` bytes."""
        names = await self._git(claim, top, "ls-files", "--others", "--exclude-standard", "-z") or b""
        files = [name.decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name]
        if len(files) > UNTRACKED:
            raise JobRefused(f"{len(files):,} files are not tracked, and at most {UNTRACKED} are compared")
        diff = b""
        for file in files if room >= 0 else ():
            words = (*_DIFF, "--no-index", "--", "/dev/null", file)
            diff += await self._git(claim, top, *words, differs=True) or b""
            if len(diff) > room:
                break
        if len(diff) > room:
            raise JobRefused(f"the changes have more than {DIFF_BYTES:,} bytes")
        return diff

    async def _git(self, claim: str, cwd: Path, *words: str, differs: bool = False) -> bytes | None:
        """The output of a git command that only reads; None if it failed."""
        kept = bytearray()
        done = await self._finished((*_GIT, *words), claim, cwd, READ_ONLY, GIT_S, {}, kept)
        if done.timed_out or done.killed:
            raise JobRefused(f"git did not answer within {GIT_S:.0f} s")
        return bytes(kept) if done.exit_code in ((0, 1) if differs else (0,)) else None


def _keep(kept: bytearray | None, stream: str, data: bytes) -> None:
    """Keeps what a command writes, a little more than may be answered: then it is known to be too much."""
    if kept is not None and stream == "stdout":
        kept += data[: DIFF_BYTES + 1 - len(kept)] if len(kept) <= DIFF_BYTES else b""


def folder_of(text: str | None) -> Path:
    """The folder that a job names; raises `JobRefused` for none."""
    path = Path(text) if text else Path.cwd()
    if not path.is_absolute():
        raise JobRefused(f"{text}: give an absolute path")
    if not path.is_dir():
        raise JobRefused(f"{text}: no such folder on this worker's machine")
    return path.resolve()


# ── policy ────────────────────────────────────────────────────────────────────────────────────────
# The policy of a job: never more than the worker's own sandbox policy gives.


FULL_ACCESS = SANDBOX_MODES[-1]
UNCHOSEN = "workspace-write"
"""The most that a worker gives whose owner has chosen no mode."""


class JobRefused(Exception):
    """A job that this worker may not do, or cannot; the message is for the asker."""


def permitted(asked: Mapping[str, Any] | None, own: SandboxPolicy, cwd: Path) -> dict[str, Any]:
    """The policy for a job; raises `JobRefused` where it asks for more than the worker gives."""
    most = own.mode if own.chosen else UNCHOSEN
    if asked is None:
        return {**own.wire(), "mode": most, **_kept_read_only(most, own)}
    # A sandbox outside of Dendro is where its session is, and that is not here.
    mode = asked["mode"] if asked["mode"] in SANDBOX_MODES else SANDBOX_MODES[0]
    if SANDBOX_MODES.index(mode) > SANDBOX_MODES.index(most):
        raise JobRefused(f"it asks for {mode}, and this worker gives {most} at most: set sandbox_mode there")
    if most == FULL_ACCESS or mode == SANDBOX_MODES[0]:
        return {**asked, "mode": mode}
    if asked.get("network_access") and not own.network_access:
        key = "sandbox_workspace_write.network_access"
        raise JobRefused(f"it asks for the network, which this worker does not give: set {key} there")
    for root in asked.get("writable_roots") or ():
        if not _lies_in(Path(cwd, root), (cwd, *own.writable_roots)):
            key = "sandbox_workspace_write.writable_roots"
            raise JobRefused(
                f"it asks to write below {root}, which this worker does not give: set {key} there"
            )
    return {**asked, "mode": mode, **_kept_read_only(mode, own)}


def _kept_read_only(mode: str, own: SandboxPolicy) -> dict[str, bool]:
    """The temporary folders that no job writes, whatever it asks for: clients name them in every policy."""
    named = {"exclude_tmpdir_env_var": own.exclude_tmpdir_env_var, "exclude_slash_tmp": own.exclude_slash_tmp}
    return {flag: True for flag, kept in named.items() if kept and mode == UNCHOSEN}


def _lies_in(path: Path, roots: tuple[Path, ...]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(root.resolve()) for root in roots)
