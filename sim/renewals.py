"""Renewals of claims: which are granted, for how long, and over which log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.broker.redis_keys import Keys
from sim.commits import CLAIM, arguments, reply_fields
from sim.double import Double
from sim.loop import SimLoop, current_lane
from sim.network import Sent, session_of
from sim.observer import Observer

NOTED_S = 0.05
"""Twice so long behind an answer its receiver has taken it in, if its loop is not stuck meanwhile."""


class Renewals:
    """The rule `renewed`."""

    def __init__(self, watch: Observer, loop: SimLoop, double: Double, keys: Keys) -> None:
        self._watch = watch
        self._loop = loop
        self._double = double
        self._keys = keys
        self._at: dict[str, int] = {}
        """Where each session's log ended when its claim was renewed last."""
        self._reached: dict[str, int] = {}
        """How far the log went by what the holder of a claim was answered."""
        self._asked: dict[int, tuple[Sequence[Any], int]] = {}
        """The same when a renewal was sent, by the identity of its words."""

    def went_back(self) -> None:
        self._at.clear()

    def answered(self, sent: Sent, reply: Any) -> None:
        """The sender of a commit goes on with its answer."""
        if not reply or reply[0] != b"OK":
            return
        fields = reply_fields("commit", reply)
        if fields["pokes"] or fields["woken"]:
            # First it tells others, and a renewal may be sent while it waits for their streams.
            return
        lane, claim = current_lane(), str(arguments(sent.args)[CLAIM])
        later: Callable[..., Any] = self._loop.on
        later(lane, later, lane, self._notes, claim, fields["seq"], after=NOTED_S)

    def _notes(self, claim: str, seq: int) -> None:
        self._reached[claim] = max(seq, self._reached.get(claim, 0))

    def leaves(self, args: Sequence[Any]) -> None:
        """A renewal is sent."""
        self._asked[id(args)] = args, self._reached.get(str(arguments(args)[2]), 0)

    def granted(self, args: Sequence[Any]) -> None:
        """A claim was renewed: it is the one that stands, its lease is whole, and so is its log."""
        session, words = session_of("renew", args), arguments(args)
        data = self._double.hash(self._keys.session(session))
        stands = [data.get(name, b"").decode() for name in (b"owner", b"claim", b"epoch")]
        if stands != (given := [str(word) for word in words[1:4]]):
            self._watch.broken("renewed", f"{session} is held by {stands}, and {given} was renewed")
        place = self._keys.leases(self._keys.shard_of(session), data[b"pool"].decode())
        left_ms = (self._double.scored(place, session) or 0.0) - self._double.now_s() * 1000
        if abs(left_ms - int(words[4])) > 1.0:
            self._watch.broken("renewed", f"{session} was renewed for {left_ms:.0f} ms instead of {words[4]}")
        _, reached = self._asked.pop(id(args), (args, 0))
        seq = self._watch.sessions[session].seq
        if seq < reached:
            told = f"its holder was answered up to {reached}, and the log ends at {seq}"
            self._watch.broken("renewed", f"{session} was renewed: {told}")
        if seq > self._at.get(session, 0):
            self._watch.reach.saw("renewed")
        self._at[session] = seq
