"""The text that a model is told of a working folder: `AGENTS.md` files, then the skills that it may use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Skills


@record
class Instructions:
    """The words for a model about a folder, and those for a person."""

    text: str | None = None
    warnings: tuple[str, ...] = ()
    """A line for each file that was left out."""


@record
class Guide:
    """The instructions of one machine's folders. Its methods block."""

    docs: ProjectDocs
    skills: Skills

    def first(self, cwd: Path, top: str | None = None) -> Instructions:
        """The instructions of a new session: the person's own, the folder's, and its skills.

        `top` is the root of the folder's repository, where it is known.
        """
        warnings: list[str] = []
        docs = self.docs.of_folder(cwd, warnings.append, top=top)
        skills = self.skills.offer(str(cwd), top=top)
        return Instructions(_joined([self.docs.of_person(), docs, skills]), tuple(warnings))

    def further(self, cwd: str, known: Sequence[str]) -> Instructions:
        """The instructions of a folder that a session comes to, without those of the `known` folders."""
        warnings: list[str] = []
        docs = self.docs.of_folder(Path(cwd), warnings.append, [Path(folder) for folder in known])
        return Instructions(_joined([docs, self.skills.offer(cwd, known)]), tuple(warnings))


def _joined(parts: Sequence[str | None]) -> str | None:
    return "\n\n".join(part for part in parts if part) or None
