"""The arguments of the subagent tools. Floors and caps are errors, never silently corrected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from orchestrator.core.agent_views import LABEL_CHARS, one_line
from orchestrator.tools.arguments import Arguments

WATCHDOG_MESSAGE = (
    "Where does your work stand? Say in a few sentences what is done, what comes next, and what blocks you; "
    "bring the plan up to date."
)
LOGS_BYTES = 64 << 10
MODEL_CHARS = 200
"""Characters of a model's name: every task's settings repeat it."""

AgentNumber = Annotated[int, Field(ge=0)]
ModelName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MODEL_CHARS)]


def _collapsed(text: str) -> str:
    return " ".join(text.split())


class _ChildArguments(Arguments):
    label: str | None = None
    model: ModelName | None = None
    sandbox_mode: str | None = None
    workspace: Literal["own", "shared"] | None = None

    @property
    def clean_label(self) -> str | None:
        return one_line(self.label, LABEL_CHARS)


class SpawnArguments(_ChildArguments):
    prompt: Annotated[str, StringConstraints(min_length=1)]


class ForkArguments(_ChildArguments):
    prompt: str = ""


class HelperArguments(Arguments):
    """Arguments of `spawn_subagent`, whose schema is stricter than the others': no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: Annotated[str, AfterValidator(_collapsed), StringConstraints(min_length=1)]
    label: str = ""
    model: ModelName | None = None

    @property
    def clean_label(self) -> str:
        """Lower-case ASCII words joined by `_`; a helper without a label has the tool's name for one."""
        joined = "_".join(self.label.lower().split())
        kept = "".join(char for char in joined if char.isascii() and (char.isalnum() or char in "-_"))
        return kept[:LABEL_CHARS] or "subagent"


class VariantsArguments(Arguments):
    goal: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SendArguments(Arguments):
    agent_id: AgentNumber
    prompt: str = ""
    label: str | None = None
    interrupt: bool = False


class MergeArguments(Arguments):
    agent_id: AgentNumber


class ListArguments(Arguments):
    all: bool = False


class AwaitArguments(Arguments):
    timeout_s: float | None = Field(default=None, ge=0)
    agent_ids: tuple[AgentNumber, ...] | None = None


class LogsArguments(Arguments):
    agent_id: AgentNumber
    limit: int = Field(default=5, ge=0)
    max_bytes: int | None = Field(default=None, ge=1)
    since_ms: int | None = None
    before_ms: int | None = None
    cursor: int | None = None
    """An entry number: what comes after it, oldest first."""


class WatchdogArguments(Arguments):
    agent_id: AgentNumber
    interval_s: float = 300.0
    message: str = WATCHDOG_MESSAGE
    cancel: bool = False


class CancelArguments(Arguments):
    agent_id: AgentNumber
    reason: str = ""


class PruneArguments(Arguments):
    agent_ids: tuple[AgentNumber, ...] | None = None
    all: bool = False
    completed_only: bool = True
