"""Commands that lie in a socket until the worst moment for them to arrive.

A network may hold a message back for as long as it likes. A campaign of chance alone seldom
holds the one message that matters, to the one moment that matters; each one here does, and
does nothing that a network could not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, ClassVar

from sim.commits import arguments, commit_id, without_entries
from sim.machines import Site
from sim.network import Sent, session_of

SLOW_S = 3.5
"""A commit that takes longer outlives its sender's trust in the claim."""
TRUSTED_LATE_S = (2.1, 3.7)
"""Trust for four seconds from an answer that is later outlives a lease of six."""
CLAIM_TRUSTED_S = 3.9
UNSAID_S = 150.0
"""Long enough for upkeep to come by."""


@dataclass
class HeldMessage(ABC):
    """A delay of one machine's command, until a command of another sender lets it go."""

    site: Site
    rng: Random
    victim: str
    cuts: Callable[[str, float, float], None]
    """Told a machine, and from when on and for how long it is to reach nobody."""
    again: ClassVar[bool] = False
    """Whether it lies in wait for the next command when one has arrived."""
    session: str = ""
    held: tuple[Sent, Future[Any]] | None = None

    @abstractmethod
    def holds(self, sent: Sent) -> bool:
        """Whether this is the command that is to be late."""

    @abstractmethod
    def caught(self) -> None:
        """The command is held: what is its sender to think?"""

    @abstractmethod
    def frees(self, sent: Sent, reply: Any) -> float | None:
        """After what somebody else did: in how many seconds the command arrives; None if not yet."""

    def takes(self, sent: Sent, future: Future[Any]) -> bool:
        """Takes a command off the network, or lets it pass."""
        if self.held is not None or not self.holds(sent):
            return False
        self.session, self.held = session_of(sent.name, sent.args), (sent, future)
        self.site.trace.note("nemesis", "holds", sent.lane, sent.name, self.session[-4:])
        self.caught()
        return True

    def saw(self, sent: Sent, reply: Any) -> bool:
        """Looks at a command that took effect; True if the wait is over."""
        if self.held is None or session_of(sent.name, sent.args) != self.session:
            return False
        after = self.frees(sent, reply) if _done(reply) else None
        if after is None:
            return False
        self.lets_go(after)
        return not self.again

    def lets_go(self, after_s: float = 0.0) -> None:
        """Delivers the held command."""
        if self.held is not None:
            self.site.network.deliver(*self.held, after_s)
            self.held = None


class LateCommit(HeldMessage):
    """A holder's commit arrives just when another worker was given the session, and has written nothing."""

    def holds(self, sent: Sent) -> bool:
        return sent.name == "commit" and sent.machine == self.victim

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])
        # Else it sends the step again, and there is nothing left to be late.
        self.cuts(self.victim, 0.0, 14.0)

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return self.rng.uniform(0.0, 0.002) if sent.name == "claim" and sent.machine != self.victim else None


class LateCopy(HeldMessage):
    """A commit without entries was sent again and answered; the first copy arrives behind the next commit.

    Where that one has entries, the copy is on top of another log: then it waits for another copy.
    """

    again = True

    def holds(self, sent: Sent) -> bool:
        return sent.name == "commit" and without_entries(sent.args)

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])

    def frees(self, sent: Sent, reply: Any) -> float | None:
        assert self.held is not None
        behind = sent.name == "commit" and commit_id(sent.args) != commit_id(self.held[0].args)
        return 0.0 if behind else None


class LateStopped(HeldMessage):
    """A revoked holder's word that it has stopped arrives when its worker has the session again."""

    def holds(self, sent: Sent) -> bool:
        if sent.name != "release" or sent.machine != self.victim:
            return False
        _, _, _, claim, *_ = arguments(sent.args)
        return bool(self.site.watch.claim_of(session_of(sent.name, sent.args)) != claim)

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])

    def frees(self, sent: Sent, reply: Any) -> float | None:
        if sent.name != "claim":
            return None
        return self.rng.uniform(0.0, 0.5) if sent.machine == self.victim else None


class LateBurial(HeldMessage):
    """A dead worker's claim is given back twice; the first copy arrives when another one has the session."""

    def holds(self, sent: Sent) -> bool:
        return sent.name == "bury"

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return self.rng.uniform(0.0, 0.5) if sent.name == "claim" else None


class VeryLateBurial(LateBurial):
    """The first copy arrives when the session has been taken from somebody else, who has not stopped yet."""

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return self.rng.uniform(0.0, 0.1) if sent.name == "revoke" else None


class LateClaim(HeldMessage):
    """A claim arrives when somebody else has the session, and his renewals have been lost for a while."""

    def holds(self, sent: Sent) -> bool:
        return sent.name == "claim" and sent.machine == self.victim

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])

    def frees(self, sent: Sent, reply: Any) -> float | None:
        if sent.name != "claim":
            return None
        self.cuts(sent.machine, self.rng.uniform(0.1, 1.9), 5.0)
        return self.rng.uniform(3.05, 5.9)


class SlowCommit(HeldMessage):
    """Commits, of any machine, are on their way while the timers fire that they end or set anew."""

    again = True

    def holds(self, sent: Sent) -> bool:
        if sent.name != "commit":
            return False
        soon = self.site.watch.deadlines.within(session_of(sent.name, sent.args), SLOW_S)
        return not soon.isdisjoint(arg for arg in sent.args if isinstance(arg, str))

    def caught(self) -> None:
        self.site.loop.on(self.site.network.lane, self.lets_go, after=SLOW_S)

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return 0.0 if sent.name == "fire" else None


class LateAnnouncement(HeldMessage):
    """The first copy of an announcement that was sent again arrives behind its session's birth."""

    def holds(self, sent: Sent) -> bool:
        return sent.name == "announce"

    def caught(self) -> None:
        assert self.held is not None
        self.site.network.loses(self.held[1])

    def saw(self, sent: Sent, reply: Any) -> bool:
        if self.held is None or sent.name != "create" or not _done(reply):
            return False
        announced, *_ = arguments(self.held[0].args)
        if str(announced) != session_of(sent.name, sent.args):
            return False
        self.lets_go(0.001)
        return True

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return None


@dataclass
class LostText(HeldMessage):
    """A commit that names a large text is on its way while Redis forgets that it was given the text."""

    forgets: Callable[[float], float] = field(default=lambda loses_s: 0.0)
    """Takes Redis down with what it was told in the last seconds; for how long, is answered."""
    put_s: float = -inf

    def saw(self, sent: Sent, reply: Any) -> bool:
        if sent.name == "put_blob" and not self.session:
            self.victim, self.put_s = sent.machine, self.site.loop.time()
        return bool(self.session) and self.held is None

    def holds(self, sent: Sent) -> bool:
        soon = self.site.loop.time() < self.put_s + 0.1
        return sent.name == "commit" and sent.machine == self.victim and soon

    def caught(self) -> None:
        down_s = self.forgets(self.site.loop.time() - self.put_s + 0.0001)
        self.site.loop.on(self.site.network.lane, self.lets_go, after=down_s + 0.001)

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return None


class LateWord(HeldMessage):
    """A submission to a closed session arrives just when upkeep looks at the session, or holds it."""

    again = True

    def holds(self, sent: Sent) -> bool:
        seen = self.site.watch.sessions.get(session_of(sent.name, sent.args))
        return sent.name == "submit" and seen is not None and seen.state.closed

    def caught(self) -> None:
        self.site.loop.on(self.site.network.lane, self.lets_go, after=UNSAID_S)

    def saw(self, sent: Sent, reply: Any) -> bool:
        """Every step of upkeep counts, and each may be the one."""
        touched = self.held is not None and session_of(sent.name, sent.args) == self.session
        if touched and sent.lane.startswith("u") and self.rng.random() < 0.3:
            self.lets_go(self.rng.uniform(0.0, 0.01))
        return False

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return None


class LateAnswer(HeldMessage):
    """A claim's first renewal is answered so late that the lease has run out before what is counted from the
    answer does; then its machine reaches nobody.

    The renewal must be sent soon: the claim itself is trusted until the answer is there. The next one is sent
    at once behind the answer, and is lost, too.
    """

    claimed_s: float = -inf
    answers_late: bool = False
    over: bool = False

    def takes(self, sent: Sent, future: Future[Any]) -> bool:
        if sent.name == "renew" and sent.machine == self.victim:
            if self.answers_late:
                self.over = True
                self.site.network.loses(future)
                return True
            least_s, most_s = TRUSTED_LATE_S
            most_s = min(most_s, self.claimed_s + CLAIM_TRUSTED_S - self.site.loop.time())
            if most_s > least_s:
                late_s = self.rng.uniform(least_s, most_s)
                self.site.network.answers_s[sent.lane] = late_s, late_s
        return False

    def saw(self, sent: Sent, reply: Any) -> bool:
        if self.answers_late:
            return self.over
        if sent.name == "claim" and _done(reply):
            self.victim, self.claimed_s = sent.machine, self.site.loop.time()
        if sent.name != "renew" or sent.lane not in self.site.network.answers_s:
            return False
        late_s, _ = self.site.network.answers_s.pop(sent.lane)
        self.cuts(sent.machine, late_s + 0.01, 14.0)
        self.answers_late = True
        return False

    def lets_go(self, after_s: float = 0.0) -> None:
        """Renewals of the victim are answered at once from here on."""
        self.site.network.answers_s.pop(f"{self.victim}/renew", None)

    def holds(self, sent: Sent) -> bool:
        return False

    def caught(self) -> None:
        return None

    def frees(self, sent: Sent, reply: Any) -> float | None:
        return None


def _done(reply: Any) -> bool:
    return isinstance(reply, list) and bool(reply) and reply[0] == b"OK"
