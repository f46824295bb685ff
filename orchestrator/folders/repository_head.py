"""The commit that a person's repository shows, read by git as a program from a repository that is trusted.

Only objects are read, by their ids. Nothing is fetched for a clone that lacks some: they are then missing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from orchestrator.folders import names
from orchestrator.folders.git_objects import EMPTY_TREE, Head, branch_name, object_id, tree_data
from orchestrator.folders.ignore import MOST_BYTES, TooManyRules, lines_of
from orchestrator.folders.outcomes import Bounds, FolderError
from orchestrator.folders.packs import PackWriter
from orchestrator.folders.stat_cache import UNSURE, File, Known
from orchestrator.sandbox.git import (
    Answer,
    GitFailed,
    git_environment,
    git_words,
    irregular,
    run_git,
    run_git_here,
)
from orchestrator.sandbox.trusted_files import read_regular

_MODES = {
    b"100644": names.FILE,
    b"100755": names.PROGRAM,
    b"120000": names.LINK,
    b"160000": names.COMMIT,
    b"100664": names.FILE,
}
_MOST_LINE = 16 * 1024
_GIT_S = 10.0


class Listed(NamedTuple):
    """A line of the commit's listing."""

    mode: int
    sha: bytes
    size: int
    path: bytes


def read_head(repository: Path, ref: str) -> Head | None:
    """The commit of `ref`, and the branch if it is one; None for a repository without a commit."""
    if fault := irregular(repository):
        raise FolderError("refused", fault)
    if ref.startswith("-"):
        raise FolderError("refused", f"{ref!r} is not the name of a branch or a commit")
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    commit = found.out.strip().decode()
    if len(commit) == 64:
        raise FolderError(
            "refused", f"{repository} has ids of SHA-256, which portable folders do not know yet"
        )
    if found.code != 0 or len(commit) != 40:
        if ref != "HEAD":
            raise FolderError("missing", f"the repository {repository} has no commit {ref!r}")
        return None
    return Head(bytes.fromhex(commit), _branch(repository, ref, commit))


def _branch(repository: Path, ref: str, commit: str) -> str:
    """The branch that `ref` is; of a commit, the one that the repository shows it on."""
    named = _git(repository, "rev-parse", "--symbolic-full-name", "--end-of-options", ref).out.strip()
    if not named.startswith(b"refs/heads/"):
        shown = _git(repository, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.strip()
        named = (
            _git(repository, "symbolic-ref", "--quiet", "HEAD").out.strip()
            if shown.decode() == commit
            else b""
        )
    return branch_name(named.removeprefix(b"refs/heads/"))


def _git(repository: Path, *words: str) -> Answer:
    try:
        return run_git_here(words, git_environment(repository), Path("/"), _GIT_S)
    except GitFailed as error:
        raise FolderError("failed", str(error)) from error


def _started(repository: Path, *words: str, stdin: int) -> subprocess.Popen[bytes]:
    try:
        argv = git_words(*words)
    except GitFailed as error:
        raise FolderError("failed", str(error)) from error
    return subprocess.Popen(argv, env=git_environment(repository), stdin=stdin, stdout=subprocess.PIPE)


class HeadImport:
    """Writes a commit with its trees and files into a pack, and gives its files as a folder."""

    def __init__(self, repository: Path, head: Head, bounds: Bounds, writer: PackWriter) -> None:
        self._repository = repository
        self._head = head
        self._bounds = bounds
        self._writer = writer
        self._targets: dict[bytes, bytes] = {}
        self.left: list[tuple[Listed, str]] = []
        """Parts of the commit that the folder has not, each with the reason."""

    def run(self) -> Known:
        """Everything; the folder has no names that a snapshot may not have."""
        listed = list(self._list())
        links = {line.sha for line in listed if line.mode == names.LINK and line.size <= names.MOST_LINK}
        wanted = {line.sha: line.size for line in listed if line.mode != names.COMMIT}
        self._copy(list(wanted), links)
        return self._folder(listed)

    def _list(self) -> Iterator[Listed]:
        most, total = self._bounds.max_files, 0
        words = ("ls-tree", "-r", "-t", "-l", "-z", "--full-tree", self._head.commit.hex())
        with _started(self._repository, *words, stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            files = 0
            for line in _records(process.stdout):
                meta, _, path = line.partition(b"\t")
                mode_text, kind, sha, size = meta.split()
                found = Listed(
                    _mode(mode_text, kind),
                    bytes.fromhex(sha.decode()),
                    int(size) if size.isdigit() else 0,
                    path,
                )
                if kind == b"tree" and path.count(b"/") >= names.MOST_DEPTH:
                    # Its files stand in the index of every folder that is made: none could be.
                    process.kill()
                    text = f"the commit has folders more than {names.MOST_DEPTH} deep"
                    raise FolderError("refused", f"{text}: no workspace is made of it")
                files += kind != b"tree"
                is_left_out = found.size > self._bounds.max_file
                total += 0 if is_left_out else found.size
                if files > most or total > self._bounds.max_bytes:
                    process.kill()
                    raise FolderError(
                        "too_many_files" if files > most else "too_large",
                        f"the commit has more than {most:,} files or {self._bounds.max_bytes:,} bytes"
                        " (workspace.max_files, workspace.max_bytes): no workspace is made of it",
                    )
                if is_left_out:
                    self.left.append((found, "larger than workspace.max_file"))
                elif found.mode:
                    yield found
        if process.returncode != 0:
            raise _unreadable(self._repository)

    def _copy(self, wanted: list[bytes], links: set[bytes]) -> None:
        """Copies objects by their ids: the commit and its root first, which no listing names."""
        commit = self._head.commit
        with _started(self._repository, "cat-file", "--batch", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                data = self._one(process.stdin, process.stdout, commit)
                root = bytes.fromhex(data[5:45].decode())
                for sha in (root, *wanted):
                    if sha != EMPTY_TREE:
                        data = self._one(process.stdin, process.stdout, sha)
                        if sha in links:
                            self._targets[sha] = data
            except BaseException:
                process.kill()
                raise

    def _one(self, asked: IO[bytes], answers: IO[bytes], sha: bytes) -> bytes:
        asked.write(sha.hex().encode() + b"\n")
        asked.flush()
        head = answers.readline(200).split()
        if len(head) != 3:
            raise _unreadable(self._repository)
        kind, size = head[1].decode(), int(head[2])
        data = answers.read(size)
        answers.read(1)
        if object_id(kind, data) != sha:
            raise _unreadable(self._repository)
        self._writer.add(kind, sha, data)
        return data

    def _folder(self, listed: list[Listed]) -> Known:
        root = Known()
        folders: dict[bytes, Known | None] = {b"": root}
        for line in listed:
            above, _, name = line.path.rpartition(b"/")
            folder = folders.get(above)
            if folder is None:
                folders[line.path] = None
            elif (why := self._refused(line, name)) is not None:
                folders[line.path] = None
                self.left.append((line, why))
            elif line.mode == names.FOLDER:
                folders[line.path] = folder.folders[os.fsdecode(name)] = Known()
            elif line.mode == names.COMMIT:
                folder.links[os.fsdecode(name)] = line.sha
            else:
                folder.files[os.fsdecode(name)] = File(UNSURE, line.size, 0, line.mode, line.sha)
        self._sum_up(root)
        return root

    def _refused(self, line: Listed, name: bytes) -> str | None:
        """The reason why no snapshot may have it."""
        if line.mode != names.LINK:
            return names.refused_name(name)
        target = self._targets.get(line.sha, b"")
        return names.refused_name(name) or names.refused_link(target, line.path.count(b"/"))

    def _sum_up(self, folder: Known) -> None:
        for below in folder.folders.values():
            self._sum_up(below)
        folder.sum_up()
        data = tree_data(folder.entries())
        folder.tree = object_id("tree", data)
        if data:
            # Another one than the commit's only where it has a name or a link that no snapshot may have.
            self._writer.add("tree", folder.tree, data)


def _mode(text: bytes, kind: bytes) -> int:
    return names.FOLDER if kind == b"tree" else _MODES.get(text, names.FILE if kind == b"blob" else 0)


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    """Parts of a stream, each ended by a zero byte."""
    rest = b""
    while chunk := stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
        if len(rest) > _MOST_LINE:
            raise FolderError("refused", "the commit has a path that is too long: no workspace is made of it")


def _unreadable(repository: Path) -> FolderError:
    text = (
        f"the commit of {repository} cannot be read whole (a partial or damaged clone?): fetch what it lacks"
    )
    return FolderError("damaged", text)


def excludes_of(
    environ: Mapping[str, str], repository: Path | None, hidden: Iterable[Path] = ()
) -> tuple[str, ...]:
    """The rules of the person's own for a repository: `core.excludesFile`, then its `info/exclude`.

    The file is named by the person's own configuration alone: a repository's is an agent's or a stranger's,
    and what it names would be read aloud. Nothing below `hidden` is read. Raises `FolderError` for a file
    that cannot be read whole, because what it hides must not be copied.
    """
    kept = tuple(hidden)
    words = ("config", "--global", "--includes", "--type=path", "--get", "core.excludesFile")
    try:
        named = os.fsdecode(run_git(Path("/"), *words, person=environ).out.removesuffix(b"\n"))
    except GitFailed as error:
        raise FolderError("failed", str(error)) from error
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"))
    lines = list(_rule_lines(Path("/", named) if named else home / "git" / "ignore", kept, None))
    if repository is not None:
        lines += _rule_lines(repository / "info" / "exclude", kept, repository)
    return tuple(lines)


def _rule_lines(path: Path, hidden: tuple[Path, ...], below: Path | None) -> list[str]:
    try:
        lines = lines_of(read_regular(path, MOST_BYTES + 1, hidden, below))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except (OSError, TooManyRules) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FolderError(
            "refused", f"{path} names what git ignores, and is not read ({why}): correct or remove it"
        ) from error
    return [os.fsdecode(line) for line in lines]
