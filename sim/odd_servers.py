"""Model providers and MCP servers that do what none may, and rules on what logs hold of it.

A provider repeats an item, gives a call an id that another one has, shows text that belongs to no item, and
begins items that never end. A server dies in the middle of a call, also while a question of it is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from orchestrator.core.entries import DENDRO, Entry
from orchestrator.core.history import CALL_KINDS
from orchestrator.model.prompt import Item, ItemAdded, ItemDone, ModelEvent, TextDelta
from sim.ledger import Ledger
from sim.rule import Case, Rule

if TYPE_CHECKING:
    from sim.watch import Watch

DIED = "died"
"""How a run ends whose server is gone."""
ODD_RULES = {
    "own_ids": Rule(
        (
            "Calls of one response have ids of their own: an id that the model repeats within a turn is told "
            "apart by a number, and nothing else of the call is another."
        ),
        Case("the model repeated a call's id within a response"),
    ),
    "served": Rule(
        (
            "The end of an MCP server's call is told once, as done if and only if the server has answered, "
            "and so is the end of each of its questions."
        ),
        Case("a server died in the middle of a call"),
    ),
}


def oddly(events: list[ModelEvent], rng: Random) -> list[ModelEvent]:
    """A response as a provider gives it that keeps no rules."""
    told = list(events)
    for _ in range(rng.choice((1, 1, 2))):
        done = [at for at, event in enumerate(told) if isinstance(event, ItemDone)]
        calls = [at for at, event in enumerate(told) if _is_call(event)]
        match rng.choice(("twice", "same id", "same id", "lost text", "late text", "begun")):
            case "twice" if done:
                told.insert(rng.randrange(done[-1], len(told)) + 1, told[rng.choice(done)])
            case "same id" if calls:
                done_calls = (event for event in told if isinstance(event, ItemDone) and _is_call(event))
                ids = [event.item["call_id"] for event in done_calls]
                again = told[at := rng.choice(calls)]
                if isinstance(again, ItemDone):
                    told[at] = ItemDone({**again.item, "call_id": rng.choice(ids)})
            case "lost text":
                told.append(TextDelta("<lost>"))
            case "late text" if done:
                told.insert(rng.choice(done) + 1, TextDelta("<late>"))
            case "begun":
                item: Any = rng.choice(({}, {"id": "i1"}, None, {"type": "message", "id": 7}))
                told.insert(rng.randrange(len(told) + 1), ItemAdded(item))
            case _:
                pass
    return told


def _is_call(event: ModelEvent) -> bool:
    return isinstance(event, ItemDone) and event.item.get("type") in CALL_KINDS


class OddServers:
    """The rules `own_ids` and `served`."""

    def __init__(self, watch: Watch, ledger: Ledger) -> None:
        self._watch, self._ledger = watch, ledger
        self._ids: dict[str, set[str]] = {}
        """The ids of the calls of each session's last response."""
        self._earlier: dict[str, set[str]] = {}
        """Those of all responses of a tree: a root knows answers to its agents by call and turn alone."""
        self._unjudged: list[tuple[str, str]] = []
        """Sessions and numbered ids of their calls, while logs are read anew one by one."""
        self._ended: Counter[tuple[str, str]] = Counter()

    def begins(self, session: str) -> None:
        """A request begins: calls of the responses before have ended."""
        self._ids[session] = set()
        for place in [place for place in self._ended if place[0] == session]:
            del self._ended[place]

    def went_back(self) -> None:
        """Logs are read anew, from their beginnings."""
        self._ids.clear()
        self._earlier.clear()
        self._unjudged.clear()
        self._ended.clear()

    def are_read_anew(self) -> None:
        """All logs have been read: an id may be told apart from that of another session's call."""
        for session, id in self._unjudged:
            self._is_told_apart(session, id)
        self._unjudged.clear()

    def called(self, session: str, item: Mapping[str, Any]) -> None:
        """A log has a call."""
        id = item["call_id"]
        if session not in self._ids:
            # A fork's own birth, as its parent's model called for it.
            return
        if id in self._ids[session]:
            self._watch.broken("own_ids", f"{session} has two calls {id} of one response")
        if self._watch.reads_anew:
            self._unjudged.append((session, id))
        else:
            self._is_told_apart(session, id)
        self._ids[session].add(id)
        self._earlier_in_tree(session).add(id)

    def _is_told_apart(self, session: str, id: str) -> None:
        """An id with a number: the tree has calls with the id itself and with all numbers below."""
        base, _, number = id.rpartition("#")
        if not base or not number.isdecimal():
            return
        self._watch.reach.saw("own_ids")
        earlier = self._earlier_in_tree(session)
        if wrong := [each for each in _before(base, int(number)) if each not in earlier]:
            self._watch.broken("own_ids", f"{session} has a call {id}, and none {wrong}")

    def _earlier_in_tree(self, session: str) -> set[str]:
        return self._earlier.setdefault(self._watch.sessions[session].tree, set())

    def ended(self, session: str, event: Mapping[str, Any]) -> None:
        """A log tells the end of a server's call."""
        place = session, event["call_id"]
        self._ended[place] += 1
        if self._ended[place] > 1:
            self._watch.broken("served", f"{session}: the end of {event['call_id']} is told again")
        runs = self._ledger.by_call.get(place, ())
        if any(run.state == DIED for run in runs):
            self._watch.reach.saw("served")
        done = "Ok" in event["result"]
        if done is not any(run.state == "finished" for run in runs) and (done or not _unsure(runs)):
            states = [run.state for run in runs]
            self._watch.broken("served", f"{session}: {event['call_id']} is told as {done}, and is {states}")

    def at_rest(self, session: str, entries: Sequence[Entry], queue: Iterable[Mapping[str, Any]]) -> None:
        """Checks that followers were told of each question that was withdrawn while its task went on."""
        asked: dict[str, str] = {}
        over: list[str] = []
        left: set[str] = set()
        for fact in (entry.payload for entry in entries if entry.type == DENDRO):
            if fact["kind"] == "elicitation":
                asked[fact["id"]] = fact["call_id"]
            elif fact["kind"] == "elicitation_closed" and fact["decision"] == "withdrawn":
                left.add(fact["id"])
            elif fact["kind"] == "call" and fact["phase"] == "done":
                over += [id for id in left if asked.get(id) == fact["call_id"]]
        msgs = list(queue) if over else []
        told = {msg.get("call_id") for msg in msgs if msg["type"] == "request_resolved"}
        # The end of a question that has left the queue may have left it, too.
        kept = {msg["id"] for msg in msgs if msg["type"] == "elicitation_request"}
        if untold := sorted(kept.intersection(over).difference(told)):
            self._watch.broken("served", f"{session}: nobody was told that {untold} were withdrawn")


def _unsure(runs: Sequence[Any]) -> bool:
    """Whether somebody who did not see the end may have told of it."""
    return len(runs) != 1 or runs[0].state != DIED


def _before(base: str, number: int) -> list[str]:
    return [base, *(f"{base}#{n}" for n in range(2, number))]


def as_said(item: Item, logged: Item) -> Item:
    """An item as the log may have it: a call by the id that it has there."""
    if item.get("type") not in CALL_KINDS or item.get("call_id") == logged.get("call_id"):
        return item
    base, _, number = str(logged.get("call_id")).rpartition("#")
    renamed = base == item.get("call_id") and number.isdecimal()
    return {**item, "call_id": logged["call_id"]} if renamed else item
