"""The text that a model is told of a working folder: `AGENTS.md` files, then the skills that it may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Skills


@dataclass(frozen=True, slots=True)
class Guide:
    """The instructions of one machine's folders. Its methods block."""

    docs: ProjectDocs
    skills: Skills

    def first(self, cwd: Path, top: str | None = None) -> str | None:
        """The instructions of a new session: the person's own, the folder's, and its skills.

        `top` is the root of the folder's repository, where it is known.
        """
        docs, skills = self.docs.of_folder(cwd, top=top), self.skills.offer(str(cwd), top=top)
        return _joined([self.docs.of_person(), docs, skills])

    def further(self, cwd: str, known: Sequence[str]) -> str | None:
        """The instructions of a folder that a session comes to, without those of the `known` folders."""
        docs = self.docs.of_folder(Path(cwd), [Path(folder) for folder in known])
        return _joined([docs, self.skills.offer(cwd, known)])


def _joined(parts: Sequence[str | None]) -> str | None:
    return "\n\n".join(part for part in parts if part) or None
