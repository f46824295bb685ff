"""Approvals: may this command run, may this patch be written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from orchestrator.core.frozen import record
from orchestrator.protocol import ops
from orchestrator.protocol.policy import (
    ApprovedExecpolicyAmendment,
    Decision,
    ExecpolicyAmendment,
    ReviewDecision,
)
from orchestrator.protocol.wire import JsonMapping
from orchestrator.requests.person_request import Choice, Given, Place, RequestBase, Section

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp

MOST_SHOWN: Final = 64 << 10
"""Characters of a request as one of Dendro's surfaces has shown it."""
AMENDMENT: Final = "amendment"
YES: Final = Choice("approved", "yes", "Allow")
ALWAYS: Final = Choice(
    "approved_for_session",
    "always in this session",
    "Allow, and do not ask again in this session",
    lasts=True,
)
NO: Final = Choice("denied", "no", "Refuse; the agent goes on")
QUIT: Final = Choice("abort", "quit the turn", "Refuse, and stop the turn")

_ODD_SPACES: Final = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]")
"""Spaces that end no word for a shell: `ls\u00a0-l` is one name, and looks like two words."""


def command_text(command: Sequence[str]) -> str:
    """A command as a person would type it; `bash -lc SCRIPT` is its script."""
    match command:
        case ["bash" | "sh" | "/bin/bash" | "/bin/sh", "-c" | "-lc", script]:
            shown = script
        case _:
            shown = shlex.join(command)
    return _ODD_SPACES.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def shown_as(text: str, surface: str, opened_ms: int) -> ops.Shown:
    """The words of a surface, for an approval; a longer text than fits is cut, and says so."""
    if len(text) > MOST_SHOWN:
        cut = f"\n… {len(text):,} characters in all"
        text = text[: MOST_SHOWN - len(cut)] + cut
    return ops.Shown(text=text.encode("utf-8", "replace").decode(), surface=surface, opened_ms=opened_ms)


@dataclass(frozen=True, slots=True)
class _Approval(RequestBase):
    """The common part of approvals."""

    @property
    def place(self) -> Place | None:
        reach, folder = self._reach, str(self.event.get("cwd") or "")
        if reach is not None:
            return Place(str(reach["text"]), not reach["sandboxed"], folder, str(reach.get("machine") or ""))
        where = f" (in {folder})" if folder else ""
        text = f"where it would run{where} is not recorded: an older version of Dendro has asked"
        return Place(text, outside=False, folder=folder)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (YES, ALWAYS, NO, QUIT)

    def answer(self, given: Given, shown: ops.Shown | None = None) -> AnswerOp:
        return self.decided(ReviewDecision(self._word(given)), shown)

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        return self.decided(ReviewDecision.DENIED, shown)

    @property
    def _why(self) -> tuple[Section, ...]:
        return tuple(Section("text", "Why", reason) for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class CommandRequest(_Approval):
    """May this command run? Also a call of a tool, whose name and arguments stand as the command."""

    kind: ClassVar[Literal["command"]] = "command"
    tag: ClassVar[Literal["exec_approval_request"]] = "exec_approval_request"

    @property
    def command(self) -> list[str]:
        """The program and its arguments."""
        return list(self.event["command"])

    @property
    def cwd(self) -> str | None:
        """The folder that it runs in."""
        return self.event.get("cwd")

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that the model sets for it."""
        return self.event.get("env") or {}

    @property
    def variables_text(self) -> str:
        """The variables as a shell would read them; empty if it sets none."""
        said = "".join(f"{name}={shlex.quote(value)} " for name, value in self.variables.items())
        return said.replace("\n", "␊")

    @property
    def told(self) -> str:
        """The same, with the variables behind where it runs: such clients are shown the bare command."""
        said = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in self.variables_text)
        variables = [f"with the variables {said.strip()}"] if said else []
        return "; ".join((self.where, *variables, *self.reasons))

    @property
    def prefix(self) -> tuple[str, ...]:
        """The beginning of commands that an answer may allow from now on; empty if none is proposed."""
        return tuple(self.event.get("proposed_execpolicy_amendment") or ())

    @property
    def prefix_text(self) -> str:
        """The prefix as a command line."""
        return shlex.join(self.prefix)

    @property
    def amendment(self) -> ApprovedExecpolicyAmendment | None:
        """The decision that allows the prefix; None if none is proposed."""
        if not self.prefix:
            return None
        proposed = ExecpolicyAmendment(proposed_execpolicy_amendment=self.prefix)
        return ApprovedExecpolicyAmendment(approved_execpolicy_amendment=proposed)

    def heading(self, who: str = "the agent") -> str:
        return f"{who} wants to run a command"

    @property
    def subject(self) -> str:
        return f"{self.variables_text}{command_text(self.command)}"

    @property
    def place(self) -> Place | None:
        place = super(CommandRequest, self).place
        if self._reach is not None or self.sandboxed is None or place is None:
            return place
        where = "in the sandbox" if self.sandboxed else "OUTSIDE THE SANDBOX"
        text = f"{where}, in {self.cwd}: an older version has asked, and no more is recorded"
        return Place(text, not self.sandboxed, place.folder)

    @property
    def body(self) -> tuple[Section, ...]:
        parts = (
            Section("code", "Variables", self.variables_text),
            Section("code", "Command", command_text(self.command)),
            Section("text", "Folder", self.cwd or ""),
        )
        return (*(part for part in parts if part.text), *self._why)

    @property
    def choices(self) -> tuple[Choice, ...]:
        if not self.prefix:
            return (YES, ALWAYS, NO, QUIT)
        title = f"Allow, and in this session whatever begins with {self.prefix_text}"
        return (YES, Choice(AMENDMENT, "prefix", title, lasts=True), ALWAYS, NO, QUIT)

    def answer(self, given: Given, shown: ops.Shown | None = None) -> AnswerOp:
        if self._word(given) == AMENDMENT and self.amendment is not None:
            return self.decided(self.amendment, shown)
        return super(CommandRequest, self).answer(given, shown)

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        return ops.ExecApproval(id=self.call_id, decision=decision, agent_id=self.agent_id, shown=shown)


@record
class Change:
    """A change of one file by a patch."""

    verb: str
    """`add`, `delete` or `update`."""
    path: str
    text: str
    """The unified diff of an update, else the content."""
    move_path: str = ""

    @property
    def name(self) -> str:
        """The path, and behind it the one to which the file moves."""
        return f"{self.path} → {self.move_path}" if self.move_path else self.path


@dataclass(frozen=True, slots=True)
class PatchRequest(_Approval):
    """May this patch be written?"""

    kind: ClassVar[Literal["patch"]] = "patch"
    tag: ClassVar[Literal["apply_patch_approval_request"]] = "apply_patch_approval_request"

    @property
    def changes(self) -> list[Change]:
        """The changes that the request shows."""
        return [_change(path, change) for path, change in self.event["changes"].items()]

    @property
    def left_out(self) -> int:
        """So many files more are changed than it shows."""
        return self.event.get("changes_left_out") or 0

    @property
    def paths(self) -> list[str]:
        """The paths that it changes, as far as it shows them."""
        return list(self.event["changes"])

    @property
    def all_paths(self) -> list[str]:
        """The shown paths, and behind them the paths to which it moves files."""
        return [*self.paths, *(change.move_path for change in self.changes if change.move_path)]

    @property
    def by_link(self) -> bool:
        """Whether a link leads from one of its paths to elsewhere."""
        return bool((self._reach or {}).get("by_link"))

    def heading(self, who: str = "the agent") -> str:
        return f"{who} wants to change files"

    @property
    def subject(self) -> str:
        return " ".join(change.name for change in self.changes)

    @property
    def body(self) -> tuple[Section, ...]:
        diffs = [Section("diff", f"{change.verb} {change.name}", change.text) for change in self.changes]
        more = [Section("text", "Not shown", f"{self.left_out:,} files more")] if self.left_out else []
        return (*diffs, *more, *self._why)

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        return ops.PatchApproval(id=self.call_id, decision=decision, agent_id=self.agent_id, shown=shown)


def _change(path: str, change: JsonMapping) -> Change:
    verb = str(change.get("type") or next(iter(change), "change"))
    inner = change.get(verb)
    inner = inner if isinstance(inner, Mapping) else change
    text = next((str(inner[name]) for name in ("unified_diff", "content") if inner.get(name)), "")
    moved = inner.get("move_path") or change.get("move_path") or ""
    return Change(verb, path, text, str(moved))
