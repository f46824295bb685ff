"""`AGENTS.md`: what a person, and then each folder of a repository, tells every agent.

The person's own file comes first, then those from the repository's root down to the working folder, so that
the nearest is read last. In each folder `AGENTS.override.md` stands in for `AGENTS.md`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.home import without_links
from orchestrator.sandbox.git import GitFailed, git_fault, repository_above, run_git
from orchestrator.sandbox.policy_paths import git_link
from orchestrator.sandbox.trusted_files import LeadsOut, read_regular

INSTRUCTIONS_FILE = "AGENTS.md"
OVERRIDE_FILE = "AGENTS.override.md"


@record
class ProjectDocs:
    """The rule by which the files of folders are found."""

    home: Path
    """Dendro's own folder: the person's file lies in it, and no link of a repository may lead there."""
    most_bytes: int
    """Bytes that are read of all files of a repository, and of the person's own; 0 reads none."""
    fallbacks: tuple[str, ...] = ()
    """Names that are looked for in a folder without `AGENTS.md`, in this order."""
    hidden: tuple[Path, ...] = ()
    """Keys and stores that commands do not see, and that no link of a repository may lead to."""

    def of_person(self) -> str | None:
        """The instructions in the home folder."""
        names = (OVERRIDE_FILE, INSTRUCTIONS_FILE)
        return _joined(
            _texts([self.home], names, self.most_bytes, lambda file, limit: read_regular(file, limit))
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are looked for in each folder, in this order."""
        return (OVERRIDE_FILE, INSTRUCTIONS_FILE, *self.fallbacks)

    def of_contents(self, folders: Sequence[str], contents: Mapping[str, bytes]) -> str | None:
        """The instructions in folders that are not on this machine, outermost first.

        `contents` are files by their paths `folder/name`, and by `name` alone in the outermost one, "".
        """
        texts, left = [], self.most_bytes
        for folder in folders:
            paths = (f"{folder}/{name}" if folder else name for name in self.names)
            found = next((contents[path] for path in paths if path in contents), b"")
            texts.append(_text(found, left))
            left -= len(texts[-1].encode())
        return _joined(texts)

    def of_folder(
        self, cwd: Path, warn: Callable[[str], None], known: Sequence[Path] = (), top: str | None = None
    ) -> str | None:
        """The instructions of `cwd` and the folders around it, without those that the `known` folders have.

        `warn` gets a line for each file that is left out because a link leads out of the repository.
        Blocking: without `top` it asks `git` for the repository's root.
        """
        told = {folder for other in known for folder in from_root(other)}
        around = from_root(cwd, top)

        def read(file: Path, limit: int) -> bytes:
            try:
                return read_regular(file, limit, (self.home, *self.hidden), below=around[0])
            except LeadsOut:
                warn(_left_out(file, around[0], self.home))
                raise

        return _joined(_texts([it for it in around if it not in told], self.names, self.most_bytes, read))


def _left_out(file: Path, root: Path, home: Path) -> str:
    """The warning about a link, with paths as an event can carry them: names need not be UTF-8."""
    text = (
        f"{file} was left out of the instructions: it is a link that leads out of {root}. Put a file there, "
        f"or a link that stays inside; your own instructions go into {home / INSTRUCTIONS_FILE}"
    )
    return text.encode("utf-8", "backslashreplace").decode()


def _texts(
    folders: Iterable[Path], names: Sequence[str], most_bytes: int, read: Callable[[Path, int], bytes]
) -> list[str]:
    texts, left = [], most_bytes
    for folder in folders:
        text = _first(folder, names, left, read)
        left -= len(text.encode())
        texts.append(text)
    return texts


def _first(folder: Path, names: Sequence[str], limit: int, read: Callable[[Path, int], bytes]) -> str:
    """The beginning of the first file that the folder has; empty if it has none, or it says nothing."""
    for name in names if limit > 0 else ():
        try:
            content = read(folder / name, limit)
        except OSError:
            continue
        return _text(content, limit)
    return ""


def _text(content: bytes, limit: int) -> str:
    """The beginning of a file, in at most so many bytes: for one that is no text stand three."""
    # Half a character at the cut is no text of the file.
    read = content[:limit].decode("utf-8", "replace").removesuffix("\ufffd")
    return read.encode()[:limit].decode("utf-8", "ignore").strip()


def _joined(texts: Iterable[str]) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


# ── repository ────────────────────────────────────────────────────────────────────────────────────
# The repository around a folder, as `git` tells of it, with nothing of its configuration obeyed.


def git(cwd: Path, *words: str) -> str:
    """The output of a git command that only reads; empty if it fails, or if there is no git."""
    try:
        return run_git(cwd, *words).text
    except (GitFailed, OSError, ValueError):
        return ""


@record
class Repository:
    """The repository around a folder; empty texts where there is none."""

    top: str = ""
    commit: str = ""
    branch: str = ""
    origin: str = ""
    fault: str = ""
    """News of the repository for people: why git knows none here, or why commands may not write."""


def repository(cwd: Path) -> Repository:
    """Asks git, in two processes side by side. Blocking: some 3 ms."""
    with ThreadPoolExecutor(1) as beside:
        origin = beside.submit(git, cwd, "config", "--get", "remote.origin.url")
        told = git(cwd, "rev-parse", "--show-toplevel", "HEAD", "--symbolic-full-name", "HEAD").split("\n")
        if len(told) == 3:
            top, commit, ref = told
            branch = ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""
        else:
            # Without a commit git tells nothing at once; and a folder's name may have two lines.
            top, commit = git(cwd, "rev-parse", "--show-toplevel"), git(cwd, "rev-parse", "HEAD")
            branch = git(cwd, "symbolic-ref", "--quiet", "--short", "HEAD")
        return Repository(top, commit, branch, origin.result(), git_link(cwd) or ("" if top else _fault(cwd)))


def _fault(cwd: Path) -> str:
    """An empty `.git` is none: one is mounted in its place while commands run."""
    place = repository_above(cwd)
    if place is None or not (place.is_file() or os.path.lexists(place / "HEAD")):
        return git_fault(cwd)
    try:
        why = git_fault(cwd) or run_git(cwd, "rev-parse", "--git-dir").why
    except (GitFailed, OSError, ValueError) as error:
        why = str(error)
    return f"{place} counts as no repository, so nothing is known of its commit and branch: {why}"


def from_root(cwd: Path, top: str | None = None) -> Sequence[Path]:
    """The folders from the repository's root down to `cwd`; outside of a repository `cwd` alone.

    `top` is the root as git has told it; None asks git. One that is not where the nearest `.git` lies does
    not count: a stranger's configuration can name any folder (`core.worktree`).
    """
    folder = without_links(cwd)
    if top is None:
        top = git(folder, "rev-parse", "--show-toplevel")
    place = repository_above(folder)
    if not top or place is None or place.parent != Path(top):
        return [folder]
    chain = [folder, *folder.parents]
    return chain[chain.index(place.parent) :: -1]
