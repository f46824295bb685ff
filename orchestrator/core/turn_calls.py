"""The calls of one turn: their phases, and what may follow what.

          ┌────────────── rerun wider ───────────────┐
          ▼                                          │
    PROPOSED ──► AWAITING_APPROVAL ──► RUNNING(epoch) ──► DONE
        │  ▲             │                 │               ▲
        │  └─── no trace left by a lost worker             │
        ├──────────────── refused, denied, stopped ────────┤
        ├──► WAITING (for agents, holding nothing) ────────┤
        └──► ASKING (a person, holding nothing) ───────────┘

A transition that is not in `TRANSITIONS` raises `IllegalTransition` and leaves the calls as they were: they
are values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice

from orchestrator.core.calls import CallWork
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item
from orchestrator.protocol.ids import CallId


class Phase(StrEnum):
    """The phase of a tool call."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    WAITING = "waiting"
    ASKING = "asking"
    RUNNING = "running"
    DONE = "done"


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROPOSED: frozenset(
        {Phase.AWAITING_APPROVAL, Phase.WAITING, Phase.ASKING, Phase.RUNNING, Phase.DONE}
    ),
    Phase.AWAITING_APPROVAL: frozenset({Phase.RUNNING, Phase.DONE}),
    Phase.WAITING: frozenset({Phase.DONE}),
    Phase.ASKING: frozenset({Phase.DONE}),
    Phase.RUNNING: frozenset({Phase.AWAITING_APPROVAL, Phase.PROPOSED, Phase.DONE}),
    Phase.DONE: frozenset(),
}


class IllegalTransition(ValueError):
    """A call was asked to move to a phase that its own does not lead to."""


@record
class Call:
    """A tool call of the current turn."""

    call_id: CallId
    name: str
    item: Item
    phase: Phase = Phase.PROPOSED
    epoch: int = 0
    """The claim under which it runs."""
    work: CallWork | None = None
    """The work of the call, as assessed: written before it starts, read by the worker that starts or judges
    it."""
    asked_seq: int = 0
    """The entry that opened its approval, or asked: an answer by turn id counts only after it."""

    def moved(self, phase: Phase, changes: Mapping[str, object]) -> Call:
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"call {self.call_id} is {self.phase}, it cannot become {phase}")
        return replace(self, phase=phase, **changes)


ANSWERABLE = frozenset({Phase.AWAITING_APPROVAL, Phase.ASKING})
"""The phases of a call that people are asked about."""
MOST_EARLIER_CALLS = 4_096
"""Calls of earlier responses that are remembered; behind so many the response's own are."""
_BEGUN = frozenset({Phase.AWAITING_APPROVAL, Phase.WAITING, Phase.ASKING, Phase.RUNNING})


class Calls:
    """The calls of one turn, in the order of the response; a change leaves every earlier version valid.

    A response may ask for a thousand, and each of them is asked for many times: which calls are open,
    and which have begun, is known without a look at the others.
    """

    __slots__ = ("_all", "_begun", "_done", "_earlier", "_places")

    _all: tuple[Call, ...]
    _places: Mapping[str, int]
    """The place of each call by its id."""
    _begun: tuple[int, ...]
    """The places of the calls that are neither to be assessed nor done."""
    _done: int
    """The number of calls at the beginning that are done; the next one is not."""
    _earlier: frozenset[str]

    def __init__(self, calls: Iterable[Call] = (), earlier: frozenset[str] = frozenset()) -> None:
        """`earlier`: ids of the turn's earlier responses. They are in no snapshot."""
        self._all = tuple(calls)
        self._earlier = earlier
        self._places = {call.call_id: place for place, call in enumerate(self._all)}
        self._begun = tuple(place for place, call in enumerate(self._all) if call.phase in _BEGUN)
        self._done = self._done_from(0)

    def _done_from(self, done: int) -> int:
        while done < len(self._all) and self._all[done].phase is Phase.DONE:
            done += 1
        return done

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calls) and self._all == other._all

    def __hash__(self) -> int:
        raise TypeError("calls hold JSON, which has no hash")

    @property
    def any_open(self) -> bool:
        """Whether a call is not done."""
        return self._done < len(self._all)

    @property
    def open(self) -> Iterator[Call]:
        """The calls that are not done."""
        return (call for call in islice(self._all, self._done, None) if call.phase is not Phase.DONE)

    @property
    def begun(self) -> tuple[Call, ...]:
        """The calls that run, or wait for people or for agents."""
        # Mostly there are none, and this is asked of every entry.
        return tuple([self._all[place] for place in self._begun]) if self._begun else ()

    @property
    def used(self) -> frozenset[str]:
        """The ids of these calls, and of the turn's earlier ones: at most `MOST_EARLIER_CALLS`."""
        used = self._earlier.union(self._places)
        return used if len(used) <= MOST_EARLIER_CALLS else frozenset(self._places)

    def has_used(self, call_id: str) -> bool:
        """Whether a call of the turn has the id, one of an earlier response too."""
        return call_id in self._places or call_id in self._earlier

    def get(self, call_id: str) -> Call | None:
        place = self._places.get(call_id)
        return None if place is None else self._all[place]

    def append(self, call: Call) -> Calls:
        """The calls with one more, which the model has just asked for."""
        places = {call.call_id: len(self._all), **self._places}
        return self._made((*self._all, call), places, self._begun)

    def changed(self, call: Call) -> Calls:
        """The calls with `call` in the place of the one of its id."""
        place = self._places.get(call.call_id)
        if place is None:
            return self
        begun = [other for other in self._begun if other != place]
        if call.phase in _BEGUN:
            begun = sorted((*begun, place))
        everything = (*self._all[:place], call, *self._all[place + 1 :])
        return self._made(everything, self._places, tuple(begun))

    def closed(self, call_ids: Collection[str]) -> Calls:
        """The calls with these done."""
        moved = (call.moved(Phase.DONE, {}) if call.call_id in call_ids else call for call in self._all)
        return Calls(moved, self._earlier)

    def _made(self, calls: tuple[Call, ...], places: Mapping[str, int], begun: tuple[int, ...]) -> Calls:
        made = object.__new__(Calls)
        made._all, made._places, made._begun, made._earlier = calls, places, begun, self._earlier
        # What is done stays so: the count goes on from here.
        made._done = made._done_from(self._done)
        return made
