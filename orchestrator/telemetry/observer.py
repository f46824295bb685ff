"""The moments of a session's life that a worker reports, and who may listen.

A worker without an observer reports nothing and pays one comparison a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from orchestrator.broker.records import Claim, Claimed, Settlement
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import record
from orchestrator.core.state import State

StreamMoment = Literal["sent", "coming", "completed"]
"""The moments of a model request: it was sent; events of its answer come; its last one has."""


@record
class CommittedStep:
    """A step of a session that Redis has confirmed."""

    claim: Claim
    before: State
    after: State
    entries: Sequence[Entry]
    settlements: Sequence[Settlement]
    seq: int
    """The log's last entry behind the step."""
    at_ms: int
    """The moment that the step's entries say."""
    took_s: float
    """The time from the commit's first sending to its answer."""


class Observer(Protocol):
    """The listener of one worker. Its methods are called in the worker's loop, but for `renewals_failed`.

    They must not raise, block or wait: a session would.
    """

    def claimed(self, claimed: Claimed) -> None:
        """A session was taken."""
        ...

    def began(self, claim: Claim, state: State, *, took_over: bool) -> None:
        """A claimed session is loaded; `took_over`: a worker was lost in the middle of its work."""
        ...

    def committed(self, step: CommittedStep) -> None:
        """A step is visible."""
        ...

    def streamed(self, state: State, moment: StreamMoment) -> None:
        """The model request of `state` has come to a moment; `coming` is said of every event but the last."""
        ...

    def ended(self, claim: Claim, how: str, status: str) -> None:
        """A claim is over; `how` as `Ended` names it, `status` the session's."""
        ...

    def renewed(self, kept: int, lost: int) -> None:
        """A renewal was answered: `kept` claims stand, `lost` ones are over."""
        ...

    def renewals_failed(self, claims: int) -> None:
        """A renewal of so many claims was not answered; called in the thread that renews."""
        ...

    def killed(self, why: str) -> None:
        """The supervisor killed a command: `timeout` or `killed`."""
        ...


class Observers:
    """Several observers as one; each hears every moment, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._all = observers

    def claimed(self, claimed: Claimed) -> None:
        for each in self._all:
            each.claimed(claimed)

    def began(self, claim: Claim, state: State, *, took_over: bool) -> None:
        for each in self._all:
            each.began(claim, state, took_over=took_over)

    def committed(self, step: CommittedStep) -> None:
        for each in self._all:
            each.committed(step)

    def streamed(self, state: State, moment: StreamMoment) -> None:
        for each in self._all:
            each.streamed(state, moment)

    def ended(self, claim: Claim, how: str, status: str) -> None:
        for each in self._all:
            each.ended(claim, how, status)

    def renewed(self, kept: int, lost: int) -> None:
        for each in self._all:
            each.renewed(kept, lost)

    def renewals_failed(self, claims: int) -> None:
        for each in self._all:
            each.renewals_failed(claims)

    def killed(self, why: str) -> None:
        for each in self._all:
            each.killed(why)
