"""The place of a session's folder on this machine, where its commands see it under another path.

A portable folder has one path on every machine, and every agent of a tree sees its own copy there. So the
copies lie elsewhere, and a command's is mounted at that path, with a `/tmp` of its own. The worker itself has
no such mounts: what it reads or writes for a session, it looks up here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MOST_LINKS = 40
"""Links that one path may lead through, as in the kernel."""
TEMPORARY = Path("/tmp")
COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and the `/tmp` beside it: where commands see them, and where they are."""

    seen: Path
    """The folder's path for commands, events and models: `<root>/<tree>/<name>`."""
    here: Path
    """Its path on this machine, free of links."""
    temporary: Path
    """The folder that commands see as `/tmp`."""

    @classmethod
    def of(cls, root: Path, tree: str, session: str, name: str) -> Place:
        """The place of a session's folder below the root that all workers of its pool share."""
        copy = copy_of(root, session)
        return cls(root / tree / name, copy / "folder", copy / "tmp")

    def on_machine(self, path: Path) -> Path:
        """The path on this machine of what commands call `path`; links in it are not followed."""
        named = Path(os.path.normpath(path))
        for seen, here in ((self.seen, self.here), (TEMPORARY, self.temporary)):
            if named.is_relative_to(seen) and not named.is_relative_to(self.here.parent):
                return here / named.relative_to(seen)
        return named

    def followed(self, path: Path) -> Path:
        """The path on this machine that `path` leads to, every link followed as a command would follow it.

        Raises `OSError` (ELOOP) for links that do not end.
        """
        now = self.on_machine(path)
        for _ in range(MOST_LINKS):
            # A link that names the folder by its path for commands leads out of the copy, and back in.
            real = Path(os.path.realpath(now))
            now = self.on_machine(real)
            if now == real:
                return real
        raise OSError(40, os.strerror(40), str(path))

    def for_commands(self, path: Path) -> Path:
        """The name that commands have for a path on this machine."""
        for seen, here in ((self.seen, self.here), (TEMPORARY, self.temporary)):
            if path.is_relative_to(here):
                return seen / path.relative_to(here)
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path on this machine, links followed, is of the folder or its `/tmp`."""
        return path.is_relative_to(self.here) or path.is_relative_to(self.temporary)


def copy_of(root: Path, session: str) -> Path:
    """The folder of all that a machine keeps of a session's folder."""
    return root / COPIES / session
