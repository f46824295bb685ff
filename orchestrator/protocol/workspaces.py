"""The content that a portable folder begins with, as a client names it."""

from __future__ import annotations

from pydantic import model_validator

from orchestrator.protocol.wire import Flag, Maybe, Uint, WireModel

MOST_PATH = 4096
MOST_URL = 4096
MOST_NAME = 1024


class WorkspaceSource(WireModel):
    """The first content of a new session's folder, which any worker of its pool can make: one of four.

    `folder`: a folder on the machine of whoever makes the session, as it is now, changes and untracked files
    with it. `git`: a repository that a worker clones, at `ref`. `session`: the folder of another session,
    after the entry `at` of its log. `empty`: nothing.
    """

    folder: Maybe[str] = None
    git: Maybe[str] = None
    ref: Maybe[str] = None
    session: Maybe[str] = None
    at: Maybe[Uint] = None
    empty: Maybe[Flag] = None

    @model_validator(mode="after")
    def _one_of_four(self) -> WorkspaceSource:
        named = [self.folder is not None, self.git is not None, self.session is not None, bool(self.empty)]
        if sum(named) != 1:
            raise ValueError("one of folder, git, session and empty is required")
        if self.ref is not None and self.git is None:
            raise ValueError("ref: it is the ref of a repository, which `git` names")
        if self.at is not None and self.session is None:
            raise ValueError("at: it is an entry of a session, which `session` names")
        for name, text, most in (
            ("folder", self.folder, MOST_PATH),
            ("git", self.git, MOST_URL),
            ("ref", self.ref, MOST_NAME),
            ("session", self.session, MOST_NAME),
        ):
            if text is not None and not 0 < len(text.encode("utf-8", "replace")) <= most:
                raise ValueError(f"{name}: 1 to {most:,} bytes are taken")
        return self
