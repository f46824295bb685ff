"""The kinds of tasks, how they end, and what requests to the model are for: words of facts and the state."""

from __future__ import annotations

from typing import Literal

TaskKind = Literal["user", "compact", "plan", "review", "shell"]
StopReason = Literal["failed", "interrupted", "replaced", "canceled"]
"""Why a task is stopped; a stopped task has ended so."""
Outcome = Literal["completed", "failed", "interrupted", "replaced", "canceled"]
Purpose = Literal["turn", "compact"]
"""The purpose of a model request."""
