"""Submissions of people, held against the session's log: all are in it, once, and in order."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from orchestrator.core.entries import DENDRO, EVENT_MSG
from sim.grammar_terms import BOTH, BRINGS
from sim.queued import BY_PERSON, MESSAGE, submission_of
from sim.seen import Seen
from sim.watch import Watch


class Taken(NamedTuple):
    """The ids that a log has taken, in its order."""

    begun: list[str]
    steered: list[str]
    queued: set[str]
    refused: set[str]
    messages: set[str]
    """From people."""
    moved: set[str]
    """Ids that a person put in another order."""
    added: set[str]
    """Ids of what joined the conversation without a turn, and of what was taken out of the queue."""
    brought: list[tuple[str, str]]
    """The inputs that brought settings along, with the summary that their tasks began with."""
    errors: list[str]
    taken_out: list[str]
    """Ids of inputs that were taken out of the queue."""


def check_inputs(watch: Watch, session: str, seen: Seen) -> None:
    """The rule `in_order`, for a session that is at rest."""
    taken, agent_id = _taken(seen), seen.state.facts.agent_id
    places = {given.id: given.n for given in seen.given if given.n <= seen.cursor}
    for lane in (taken.begun, taken.steered):
        known = [id for id in lane if id in places and id not in taken.moved and not id.endswith(BOTH)]
        if known != sorted(known, key=places.__getitem__):
            watch.broken("in_order", f"{session}: {known} is not the order in which they were submitted")
    if any(id in taken.queued for id in taken.begun):
        watch.reach.saw("in_order")
    for id, summary in taken.brought:
        if not id.endswith(f"{BRINGS}{summary}"):
            watch.broken("in_order", f"{session}: {id} began with the summary {summary}")
    waits = {waiting.id for waiting in seen.state.queue}
    if waits and not (seen.state.closed or seen.state.tree.canceling):
        watch.broken("in_order", f"{session} is at rest, and {sorted(waits)} wait")
    met = {*taken.begun, *taken.steered, *taken.refused, *taken.messages, *taken.added, *waits}
    turns = [given.id for given in seen.given if given.id in places and given.is_turn]
    said_to = _named_by_people(watch, seen)
    if strayed := [id for id in taken.messages if said_to.get(id, agent_id) != agent_id]:
        watch.broken("in_order", f"{session}: {strayed} were written to another agent than {agent_id}")
    if lost := [id for id in turns if id not in met]:
        watch.broken("in_order", f"{session}: {lost} were taken from the queue, and nothing came of them")
    _each_of_two_is_met(watch, session, seen, taken, turns)
    _every_message_is_answered(watch, session, seen, taken)


def _each_of_two_is_met(watch: Watch, session: str, seen: Seen, taken: Taken, turns: list[str]) -> None:
    """Two clients' inputs under one id: something comes of each of them."""
    given = Counter(id for id in turns if id.endswith(BOTH))
    ends = Counter((*taken.begun, *taken.steered, *taken.taken_out, *taken.errors))
    ends.update(waiting.id for waiting in seen.state.queue)
    if given:
        watch.reach.saw("in_order")
    if lost := given - ends:
        watch.broken("in_order", f"{session}: of two clients' inputs {sorted(lost)} nothing came")


def _every_message_is_answered(watch: Watch, session: str, seen: Seen, taken: Taken) -> None:
    """Every message of a person to this agent is in its log, or an error at the root says it is not."""
    told = {*taken.messages, *taken.refused, *watch.surfaced.errors(seen.tree)}
    words = [given.id for given in seen.given if given.op == MESSAGE and given.n <= seen.cursor]
    if unanswered := [id for id in words if id not in told]:
        watch.broken("in_order", f"{session}: the words {unanswered} were not taken, and nobody was told")


def _named_by_people(watch: Watch, seen: Seen) -> dict[str, int]:
    """The agent that each word to an agent of the tree names; all of them are said at its root."""
    root = watch.sessions.get(seen.tree)
    given = root.given if root is not None else ()
    return {one.id: one.agent_id for one in given if one.op == "message_agent" and one.agent_id is not None}


def _taken(seen: Seen) -> Taken:
    taken = Taken([], [], set(), set(), set(), set(), set(), [], [], [])
    waiting: list[str] = []
    for entry in seen.entries:
        if entry.type == EVENT_MSG and entry.payload["type"] == "error":
            taken.refused.add(entry.id)
            taken.errors.append(entry.id)
        elif entry.type == EVENT_MSG and entry.payload["type"] == "items_injected":
            taken.added.add(entry.id)
        elif entry.type == DENDRO:
            match entry.payload["kind"]:
                case "queue_ordered":
                    left = list(entry.payload["ids"])
                    out = (Counter(waiting) - Counter(left)).keys()
                    taken.added.update(out)
                    taken.taken_out.extend(out)
                    taken.moved.update(left if not out else ())
                    waiting = left
                case "task":
                    if entry.payload["id"] in waiting:
                        waiting.remove(entry.payload["id"])
                    taken.begun.append(entry.payload["id"])
                    if BRINGS in entry.payload["id"]:
                        brought = entry.payload["id"], entry.payload["settings"]["summary"]
                        taken.brought.append(brought)
                case "steered":
                    taken.steered.append(entry.payload["id"])
                case "queued":
                    taken.queued.add(entry.payload["id"])
                    waiting.append(entry.payload["id"])
                case "mail" if entry.payload["mail"]["key"].startswith(BY_PERSON):
                    taken.messages.add(submission_of(entry.payload["mail"]["key"]))
                case _:
                    pass
    return taken
