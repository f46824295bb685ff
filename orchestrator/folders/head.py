"""The commit that a person's repository shows, read by git as a program from a repository that is trusted.

Only objects are read, by their ids. Nothing is fetched for a clone that lacks some: they are then missing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from orchestrator.folders.git_objects import EMPTY_TREE, Head, branch_name, object_id, tree_data
from orchestrator.folders.ignore import lines_of
from orchestrator.folders.known import UNSURE, File, Known
from orchestrator.folders.names import (
    COMMIT,
    FILE,
    FOLDER,
    LINK,
    MOST_LINK,
    PROGRAM,
    refused_link,
    refused_name,
)
from orchestrator.folders.packs import PackWriter
from orchestrator.folders.records import Bounds, FolderError

_MODES = {b"100644": FILE, b"100755": PROGRAM, b"120000": LINK, b"160000": COMMIT, b"100664": FILE}
_MOST_LINE = 16 * 1024


class Listed(NamedTuple):
    """A line of the commit's listing."""

    mode: int
    sha: bytes
    size: int
    path: bytes


def git_environment(repository: Path | None) -> dict[str, str]:
    """Variables under which git reads no configuration of the machine's, and asks and fetches nothing."""
    return {
        "PATH": ":".join(os.get_exec_path()),
        "GIT_DIR": str(repository) if repository is not None else os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def read_head(repository: Path, ref: str) -> Head | None:
    """The commit of `ref`, and the branch if it is one; None for a repository without a commit."""
    if ref.startswith("-"):
        raise FolderError("refused", f"{ref!r} is not the name of a branch or a commit")
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    commit = found.stdout.strip().decode()
    if len(commit) == 64:
        raise FolderError(
            "refused", f"{repository} has ids of SHA-256, which portable folders do not know yet"
        )
    if found.returncode != 0 or len(commit) != 40:
        if ref != "HEAD":
            raise FolderError("missing", f"the repository {repository} has no commit {ref!r}")
        return None
    return Head(bytes.fromhex(commit), _branch(repository, ref, commit))


def _branch(repository: Path, ref: str, commit: str) -> str:
    """The branch that `ref` is; of a commit, the one that the repository shows it on."""
    named = _git(repository, "rev-parse", "--symbolic-full-name", "--end-of-options", ref).stdout.strip()
    if not named.startswith(b"refs/heads/"):
        shown = _git(repository, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").stdout.strip()
        named = (
            _git(repository, "symbolic-ref", "--quiet", "HEAD").stdout.strip()
            if shown.decode() == commit
            else b""
        )
    return branch_name(named.removeprefix(b"refs/heads/"))


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *words],
            env=git_environment(repository),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise no_git() from error


def no_git() -> FolderError:
    """The error of a machine without git."""
    return FolderError(
        "failed", "git is not installed on this machine: install it, or have another worker do this"
    )


class HeadImport:
    """Writes a commit with its trees and files into a pack, and gives its files as a folder."""

    def __init__(self, repository: Path, head: Head, bounds: Bounds, writer: PackWriter) -> None:
        self._repository = repository
        self._head = head
        self._bounds = bounds
        self._writer = writer
        self._targets: dict[bytes, bytes] = {}
        self.too_large: list[Listed] = []
        """Files that the commit has and the pack has not."""

    def run(self) -> Known:
        """Everything; the folder has no names that a snapshot may not have."""
        listed = list(self._list())
        links = {line.sha for line in listed if line.mode == LINK and line.size <= MOST_LINK}
        wanted = {line.sha: line.size for line in listed if line.mode != COMMIT}
        self._copy(list(wanted), links)
        return self._folder(listed)

    def _list(self) -> Iterator[Listed]:
        most, total = self._bounds.max_files, 0
        words = ["git", "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", self._head.commit.hex()]
        with subprocess.Popen(
            words, env=git_environment(self._repository), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
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
                files += kind != b"tree"
                total += found.size
                if files > most or total > self._bounds.max_bytes:
                    process.kill()
                    raise FolderError(
                        "too_many_files" if files > most else "too_large",
                        f"the commit has more than {most:,} files or {self._bounds.max_bytes:,} bytes"
                        " (workspace.max_files, workspace.max_bytes): no workspace is made of it",
                    )
                if found.size > self._bounds.max_file:
                    self.too_large.append(found)
                elif found.mode:
                    yield found
        if process.returncode != 0:
            raise _unreadable(self._repository)

    def _copy(self, wanted: list[bytes], links: set[bytes]) -> None:
        """Copies objects by their ids: the commit and its root first, which no listing names."""
        commit = self._head.commit
        with subprocess.Popen(
            ["git", "cat-file", "--batch"],
            env=git_environment(self._repository),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
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
            if folder is None or refused_name(name) is not None:
                folders[line.path] = None
            elif line.mode == FOLDER:
                folders[line.path] = folder.folders[os.fsdecode(name)] = Known()
            elif line.mode == COMMIT:
                folder.links[os.fsdecode(name)] = line.sha
            elif line.mode != LINK or self._allowed(line):
                folder.files[os.fsdecode(name)] = File(UNSURE, line.size, 0, line.mode, line.sha)
        self._sum_up(root)
        return root

    def _allowed(self, line: Listed) -> bool:
        return refused_link(self._targets.get(line.sha, b""), line.path.count(b"/")) is None

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
    return FOLDER if kind == b"tree" else _MODES.get(text, FILE if kind == b"blob" else 0)


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


def excludes_of(environ: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """The rules of the person's own for a repository: `core.excludesFile`, then `.git/info/exclude`."""
    named = _answer(environ, folder, "config", "--type=path", "core.excludesFile")
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"))
    files = [
        named or home / "git" / "ignore",
        _answer(environ, folder, "rev-parse", "--git-path", "info/exclude"),
    ]
    return tuple(line for file in files if file is not None for line in _rule_lines(file))


def _answer(environ: Mapping[str, str], folder: Path, *words: str) -> Path | None:
    asked = subprocess.run(
        ["git", "-C", str(folder), *words], env=dict(environ), capture_output=True, check=False
    )
    name = os.fsdecode(asked.stdout.removesuffix(b"\n"))
    return folder / name if name else None


def _rule_lines(path: Path) -> Iterator[str]:
    if path.is_file():
        with path.open("rb") as file:
            yield from (os.fsdecode(line) for line in lines_of(file.read(64 * 1024)))
