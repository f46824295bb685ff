"""The statuses of a session, as doors tell them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from orchestrator.core.frozen import record


class ActiveFlag(StrEnum):
    """A reason why an active session waits."""

    APPROVAL = "waiting_on_approval"
    USER_INPUT = "waiting_on_user_input"


@record
class Idle:
    """No turn runs."""


@record
class Active:
    """A turn runs; flags say whether it waits for a person."""

    flags: tuple[ActiveFlag, ...] = ()


@record
class Broken:
    """The last turn failed."""


Status: TypeAlias = Idle | Active | Broken
