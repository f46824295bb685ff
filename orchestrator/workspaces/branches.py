"""Branches of a person's repository from folders that sessions wrote.

The folder is hostile, the repository is the person's: git is never led through the folder. Its paths are
listed here, their contents are hashed as they are, without filters, and the tree is made of these names. So
no `.gitattributes`, no repository inside of it and no name of it has a say. Everything is done under an index
of its own; the person's files, index and other branches stay.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.sandbox.git import Answer, GitFailed, run_git

FILE, PROGRAM, LINK = 0o100644, 0o100755, 0o120000
"""Modes of git's trees."""
GIT_S = 300
TRAILER = "Dendro-Session"


class PushRefused(Exception):
    """A branch was not made, and nothing has changed; the text says why and what to do."""


@record
class Work:
    """A session's work, as the commit tells of it."""

    session: str
    agent: str
    snapshot: str
    began_with: str | None
    """The commit of the person's that the session began with; None where it began with no repository."""

    @property
    def message(self) -> str:
        trailers = f"{TRAILER}: {self.session}\nDendro-Snapshot: {self.snapshot}\n"
        return f"Work of {self.agent} of session {self.session}\n\n{trailers}"


@record
class Pushed:
    """A branch, and the commit that it is at."""

    branch: str
    commit: str
    new: bool
    """Whether the commit was made now; else the branch was there, with just these files."""


@record
class Repository:
    """A repository of the person's."""

    folder: Path
    environ: Mapping[str, str]
    places: tuple[Path, ...]
    """Its `.git` folders, all that git may write here."""

    @classmethod
    def at(cls, folder: Path, environ: Mapping[str, str]) -> Repository:
        """The repository that a folder is in; raises `PushRefused`."""
        asked = cls(folder, environ, ())._run(
            "rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir", known=(0, 128)
        )
        if asked.code:
            raise PushRefused(f"{folder} is in no git repository: a branch needs one; `cd` into yours")
        return cls(folder, environ, tuple(Path(os.fsdecode(line)) for line in asked.out.splitlines()))

    def check(self, branch: str) -> None:
        """Raises `PushRefused` for a name that is none, and for a branch that somebody works on."""
        if (
            branch.startswith("-")
            or self._run("check-ref-format", "--branch", branch, known=(0, 1, 128)).code
        ):
            raise PushRefused(f"{branch!r} is no name for a branch: give another one with --branch")
        if f"branch refs/heads/{branch}\n" in self._says("worktree", "list", "--porcelain"):
            raise PushRefused(
                f"{branch} is checked out: its files would not follow. Name another branch with --branch, "
                "or merge the work into them with `dendro apply`"
            )

    def push(self, branch: str, folder: Path, work: Work) -> Pushed:
        """Makes the branch, or adds a commit to one that the same session made; raises `PushRefused`."""
        tip = self._tip(branch)
        # Its text as it is: `git log` would check signatures by a program that the repository names.
        if tip is not None and f"{TRAILER}: {work.session}\n" not in self._says("cat-file", "commit", tip):
            raise PushRefused(
                f"the branch {branch} is there, and its newest commit is none of session {work.session}: "
                "name another one with --branch"
            )
        tree = self._tree(folder)
        if tip is not None and self._says("rev-parse", f"{tip}^{{tree}}").strip() == tree:
            return Pushed(branch, tip, False)
        parent = tip or self._known(work.began_with)
        commit = self._committed(tree, parent, work.message)
        # The old value is named: a branch that has moved meanwhile is refused.
        self._run("update-ref", "-m", "dendro push", f"refs/heads/{branch}", commit, tip or "0" * len(commit))
        return Pushed(branch, commit, True)

    def _tip(self, branch: str) -> str | None:
        found = self._run("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}", known=(0, 1))
        return found.out.decode().strip() or None

    def _known(self, commit: str | None) -> str | None:
        if commit is None:
            return None
        if self._run("cat-file", "-e", f"{commit}^{{commit}}", known=(0, 1, 128)).code:
            raise PushRefused(
                f"this repository has no commit {commit}, which the session began with: run the command in "
                "the repository that it was made from, or fetch that commit first"
            )
        return commit

    def _committed(self, tree: str, parent: str | None, message: str) -> str:
        parents = ("-p", parent) if parent else ()
        done = self._run("commit-tree", *parents, tree, input=message.encode(), known=(0, 128))
        if done.code == 0:
            return done.out.decode().strip()
        if self._run("var", "GIT_COMMITTER_IDENT", known=(0, 128)).code:
            raise PushRefused(
                "git does not know in whose name to commit, so no branch was made. Tell it who you are, then "
                'push again: git config --global user.name "Your Name"; '
                "git config --global user.email you@example.com"
            )
        raise PushRefused(_refusal("commit-tree", done))

    def _tree(self, folder: Path) -> str:
        """The id of the folder's tree, with all that it names in the repository."""
        with tempfile.TemporaryDirectory(prefix="dendro-index-") as spool:
            index = {"GIT_INDEX_FILE": str(Path(spool, "index"))}
            lines = list(self._lines(folder))
            done = self._run("update-index", "-z", "--index-info", input=b"".join(lines), environ=index)
            if self._run("ls-files", "-z", environ=index).out.count(b"\0") != len(lines):
                # It leaves out what no tree may have, and succeeds.
                why = done.complaint.decode("utf-8", "replace").strip()[-500:]
                raise PushRefused(f"git does not take all paths of the folder, so no branch was made: {why}")
            return self._run("write-tree", environ=index).out.decode().strip()

    def _lines(self, folder: Path) -> Iterator[bytes]:
        """The lines of an index for the folder's files."""
        files = sorted(_files(folder))
        # A path with a line break cannot stand in a list of lines, and of one that ends in a carriage return
        # git would take the file without it.
        listed = [file for file, mode in files if mode != LINK and _is_a_line(str(file))]
        lines = b"".join(os.fsencode(file) + b"\n" for file in listed)
        told = self._run("hash-object", "-w", "--no-filters", "--stdin-paths", input=lines).out.split()
        blobs = dict(zip(listed, told, strict=True))
        for file, mode in files:
            blob = blobs.get(file) or self._blob(
                os.fsencode(file.readlink()) if mode == LINK else file.read_bytes()
            )
            yield b"%o %s\t%s\0" % (mode, blob, os.fsencode(file.relative_to(folder)))

    def _blob(self, content: bytes) -> bytes:
        return self._run("hash-object", "-w", "--stdin", input=content).out.strip()

    def _says(self, *words: str) -> str:
        return self._run(*words).out.decode("utf-8", "replace")

    def _run(
        self,
        *words: str,
        input: bytes = b"",
        environ: Mapping[str, str] | None = None,
        known: Sequence[int] = (0,),
    ) -> Answer:
        """Runs git in the person's repository, in the person's name; raises `PushRefused` if it fails.

        An agent may have written that repository's configuration.
        """
        spool = () if environ is None else tuple(Path(it).parent for it in environ.values())
        try:
            done = run_git(
                self.folder,
                *words,
                person=self.environ,
                more=environ,
                input=input,
                seconds=GIT_S,
                writable=(*self.places, *spool),
            )
        except GitFailed as error:
            raise PushRefused(f"{error}. No branch was made") from None
        if done.code not in known:
            raise PushRefused(_refusal(words[0], done))
        return done


def _is_a_line(path: str) -> bool:
    return "\n" not in path and not path.endswith("\r")


def _refusal(word: str, done: Answer) -> str:
    return f"git {word} refused: {done.complaint.decode('utf-8', 'replace').strip()[-500:]}"


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files and links below a folder that we have made, with git's modes; its own repository left out."""
    for below, folders, files in os.walk(folder):
        if Path(below) == folder and ".git" in folders:
            folders.remove(".git")
        for file in (Path(below, name) for name in (*files, *folders)):
            mode = file.lstat().st_mode
            if stat.S_ISLNK(mode):
                yield file, LINK
            elif stat.S_ISREG(mode):
                yield file, PROGRAM if mode & stat.S_IXUSR else FILE
