"""Model requests as the provider has them: by which claim each was sent, how often, for how long it went on.

The product promises less for them than for commands: no supervisor stops them, and a request that is on its
way when its worker loses the session goes on until the worker notices. The rule `requests` has the promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sim.observer import Observer

LATE_S = 3.0
"""A worker looks every half a second whether it is still trusted; to end a stream takes it less than that."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and until when whoever sent it may believe in its claim."""

    session: str
    n: int
    claim: str
    machine: str
    trusted_until_s: Callable[[], float]
    stood_still: Callable[[], tuple[float, float]]
    """Since when its machine last stood still, and when it was let go."""


class Requests:
    """The ledger of what was sent to providers."""

    def __init__(self, watch: Observer) -> None:
        self._watch = watch
        self._sent: Counter[tuple[str, str, int]] = Counter()
        self.untrusted = False
        """Whether the claim under which the last request was sent had run out: its sender stood still."""

    def sending(self, sent: Sent) -> None:
        """Called when a request leaves."""
        watch = self._watch
        now_s, (held_s, awake_s) = watch.now_s, sent.stood_still()
        # The answer that a request has begun may wait for its sender, and Redis lose the beginning meanwhile.
        noticed_s = max(watch.went_back_s, awake_s) if held_s <= watch.went_back_s else watch.went_back_s
        recent = now_s < noticed_s + LATE_S + 4.0
        self.untrusted = now_s > sent.trusted_until_s()
        seen = watch.sessions.get(sent.session)
        request = seen.state.task.request if seen is not None and seen.state.task is not None else None
        if self.untrusted:
            # Its worker has just woken up. It may have sent before it looked at the time, and no later.
            watch.reach.saw("requests")
            self._not_long_behind(sent)
            return
        if recent:
            return
        if seen is None or request is None or request.n != sent.n or seen.claim not in ("", sent.claim):
            watch.broken("requests", f"{sent.session}: a request is sent, and its log does not say so")
            return
        key = sent.session, sent.claim, sent.n
        self._sent[key] += 1
        if self._sent[key] > 1:
            watch.broken("requests", f"{sent.session}: request {sent.n} is sent {self._sent[key]} times")

    def streams(self, sent: Sent) -> None:
        """Called when a part of a response is read."""
        if self._watch.now_s > sent.trusted_until_s():
            self._not_long_behind(sent)

    def _not_long_behind(self, sent: Sent) -> None:
        behind_s = self._watch.now_s - max(sent.trusted_until_s(), sent.stood_still()[1])
        if behind_s > LATE_S:
            self._watch.broken(
                "requests",
                f"{sent.session}: {sent.machine} goes on with a request {behind_s:.1f} s behind its trust",
            )
