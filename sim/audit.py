"""Rules that must hold when everything has come to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import orjson

from orchestrator.broker.replies import stored_event
from orchestrator.core.blobs import references
from orchestrator.core.chain import GENESIS
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry, decode_entry
from orchestrator.core.history import CALL_KINDS, INHERITED, OUTPUT_KINDS
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.views.event import Event
from sim.double import Double
from sim.exported import Exported
from sim.grammar_terms import ADDED, BOTH, text_of
from sim.inputs import check_inputs
from sim.lookups import check_lookups, check_prompts
from sim.machines import Site
from sim.nemesis import Nemesis
from sim.people import Diary
from sim.pictures import check_name, check_pictures
from sim.read_back import ReadBack
from sim.seen import Seen
from sim.undecidable import tells_of_a_try
from sim.viewed import Viewed
from sim.watch import QUARANTINED, Watch

SHOWN = frozenset(
    {
        "user_input",
        "user_turn",
        "compact",
        "plan",
        "review",
        "get_path",
        "configure_session",
        "run_user_shell_command",
    }
)
"""Ops that leave their id in the log whatever becomes of them."""
TOLD_OF_THE_TREE = frozenset({"agent_path", "budget"})
"""Keys that mark an agent's request and a budget's warning, which may look like the session's own."""


class Ended(Protocol):
    """A simulation that has come to rest (`sim/world.py`)."""

    site: Site
    diary: Diary
    exported: Exported
    read_back: ReadBack
    double: Double
    reads_back: bool
    """Whether this simulation reads its logs back."""
    nemesis: Nemesis
    viewed: Viewed
    views: bool
    """Whether this simulation compares what people are shown."""


def audit(world: Ended) -> None:
    """Breaks the simulation off at the first rule that does not hold at its end."""
    watch = world.site.watch
    for session, seen in watch.sessions.items():
        if seen.tree in watch.archive_moves.by_people and not watch.fields(session):
            continue
        _read_anew(world, session, seen)
        _submissions(world, session, seen)
        _calls(world, session, seen)
        _said(world, session, seen)
        check_inputs(watch, session, seen)
        check_name(watch, session, seen)
        check_pictures(watch, session, seen, world.diary.shown)
        check_lookups(watch, session, seen)
        if left := watch.deadlines.left(session, seen):
            watch.broken("timers", f"{session} is at rest, and {sorted(left)} are set for nobody")
    if watch.folders is not None and watch.folders.unborn.swept:
        watch.folders.unborn.at_rest()
    _admitted(world)
    _trees(world)
    _patches(world)
    _followed(world)
    watch.archive_moves.at_rest()
    if watch.doors is not None:
        watch.doors.at_rest()
    _questions(world)
    check_prompts(world)
    world.exported.at_rest()
    if world.reads_back:
        world.read_back.at_rest(watch.keys)
    if world.views:
        world.viewed.at_rest()
    _overdue(world)
    _sent_home(world)


def _questions(world: Ended) -> None:
    """Where servers ask, and queues are kept, all heard what became of it."""
    watch = world.site.watch
    if world.site.model.odds.elicits and watch.went_back_s <= 0:
        for session, seen in watch.sessions.items():
            events = world.double.stream_after(watch.keys.eq(session), 0)
            queue = (orjson.loads(stored_event(*event).payload)["msg"] for event in events)
            watch.odd_servers.at_rest(session, seen.entries, queue)


def _sent_home(world: Ended) -> None:
    """A worker that hears at a heartbeat that a person has sent it home drains."""
    watch = world.site.watch
    for machine in world.nemesis.living:
        told_s = None if machine.is_held else watch.told_home.get(machine.name)
        if told_s is not None and world.site.loop.time() - max(told_s, machine.awake_s) > ANSWERED_WITHIN_S:
            watch.reach.saw("sent_home")
            if not machine.worker._draining.is_set():
                watch.broken("sent_home", f"{machine.name} was sent home, and claims on")


def _read_anew(world: Ended, session: str, seen: Seen) -> None:
    """Nothing was changed behind what was read, and folded, as the log grew."""
    moves = world.site.watch.archive_moves
    found = moves.log_after(session, 0)
    if found != seen.stored and not moves.is_redacting(session, found, seen):
        world.site.watch.broken("chain", f"the log of {session} is not what was read as it grew")


def applied(seen: Seen) -> Counter[str]:
    """How often each submission's id was taken into the log as the beginning of something."""
    found: Counter[str] = Counter()
    for entry in seen.entries:
        if entry.type == RESPONSE_ITEM and ADDED in entry.payload:
            found[f"text:{text_of(entry.payload)}"] += 1
        elif entry.type == DENDRO and ADDED in entry.payload.get("item", ()):
            # Several of one submission; each is counted where it joins the conversation.
            continue
        elif entry.type == DENDRO and entry.payload["kind"] in ("task", "steered", "queued"):
            found[f"{entry.payload['kind']}:{entry.payload['id']}"] += 1
        elif entry.type == EVENT_MSG and entry.payload["type"] == "conversation_path":
            found[f"path:{entry.id}"] += 1
        elif entry.type == EVENT_MSG and entry.payload["type"] == "session_configured":
            found[f"configured:{entry.id}"] += 1
        elif entry.type == EVENT_MSG and entry.payload["type"] == "user_message":
            # Each input has a text of its own: an input that is sent again under another id shows here.
            found[f"text:{entry.payload['message']}"] += 1
    return found


def _sent_again(watch: Watch, text: str) -> int:
    """Calls with this text that an odd server gave again, each under an id that tells it apart."""
    calls = (
        entry.payload
        for seen in watch.sessions.values()
        for entry in seen.entries
        if entry.type == RESPONSE_ITEM and entry.payload.get("type") == "function_call"
    )
    return sum("#" in call["call_id"] and f'"{text}"' in call["arguments"] for call in calls)


def _submissions(world: Ended, session: str, seen: Seen) -> None:
    watch, diary = world.site.watch, world.diary
    counts = applied(seen)
    for what, count in counts.items():
        most = 2 if what.endswith(BOTH) else 1
        if count > most and count > most + _sent_again(watch, what.partition(":")[2]):
            watch.broken("applied_once", f"{session}: {what} is in the log {count} times")
    known = {what.partition(":")[2] for what in counts}
    known |= {
        entry.id for entry in seen.entries if entry.type == EVENT_MSG and entry.payload["type"] == "error"
    }
    for noted in diary.acknowledged.values():
        taken = watch.taken[noted.id]
        # Submissions to a primary that was left are not known here.
        kept = any(watch.kept(at_s) for at_s in taken) or not (taken or watch.was_parted)
        if noted.session == session and noted.kind in SHOWN and kept and noted.id not in known:
            watch.broken(
                "acknowledged", f"{session}: {noted.id} ({noted.kind}) was acknowledged and is nowhere"
            )


def _calls(world: Ended, session: str, seen: Seen) -> None:
    calls = Counter(item["call_id"] for item in seen.state.history if item.get("type") in CALL_KINDS)
    outputs = Counter(item["call_id"] for item in seen.state.history if item.get("type") in OUTPUT_KINDS)
    if seen.state.task is None and calls != outputs:
        world.site.watch.broken("outputs", f"{session}: calls {calls - outputs}, outputs {outputs - calls}")


def _said(world: Ended, session: str, seen: Seen) -> None:
    """Texts of people stay in the conversation, or in the part of it that a compaction keeps."""
    if seen.instead:
        # A compaction that was redacted keeps the words of nobody.
        return
    kept = {*seen.state.kept_user_texts, *_texts(seen.state.history)}
    for seq, entry in enumerate(seen.entries, 1):
        if entry.type == DENDRO and entry.payload["kind"] == "rewound":
            # A person who goes back to an earlier turn drops what was said behind it.
            kept |= _texts(seen.at[seq - 1].history) | set(seen.at[seq - 1].kept)
    whole = "\n".join(kept)
    for entry in seen.entries:
        said = entry.payload.get("message") if entry.type == EVENT_MSG else None
        if said is not None and entry.payload["type"] == "user_message" and said not in whole:
            world.site.watch.broken("said", f"{session}: {said!r} is in no conversation any more")


def _texts(history: Iterable[Mapping[str, Any]]) -> set[str]:
    items = list(history)
    said = (item for item in items if item.get("role") == "user")
    put_back = (item.get("user_texts", ()) for item in items if item.get("type") == INHERITED)
    return {part.get("text", "") for item in said for part in item["content"]}.union(*put_back)


def _admitted(world: Ended) -> None:
    """Under limits, nothing was sent that was not let through."""
    watch, model = world.site.watch, world.site.model
    if model.providers and watch.went_back_s < 0 and model.asked > watch.admissions.total:
        watch.broken("limits", f"{model.asked} were sent, {watch.admissions.total} let through")


def _trees(world: Ended) -> None:
    """At rest nobody holds a slot, and nothing waits in an inbox that its session does not know of."""
    watch = world.site.watch
    for tree, (view, _) in watch.trees.items():
        if left := watch.surfaced.left(tree):
            watch.broken("kin", f"{tree} is at rest, and was not told that {left} need no answer")
        counted, held = watch.slots(tree)
        if counted or held:
            watch.broken("slots", f"{tree} is at rest: {counted} slots are counted, {held} agents hold one")
        for agent in view.agents.values():
            inbox = watch.sessions[agent.session].state.tree.inbox if agent.session in watch.sessions else ()
            lanes = (sum(not mail.interrupt for mail in inbox), sum(mail.interrupt for mail in inbox))
            if lanes != agent.pending:
                watch.broken("inbox", f"agent {agent.agent_id} of {tree}: {agent.pending} told, {lanes} wait")


def _patches(world: Ended) -> None:
    ledger, watch = world.site.ledger, world.site.watch
    for (session, call_id), count in ledger.written.items():
        if count > 1 and watch.forgot_s < 0 and (session, call_id) not in ledger.missed:
            watch.broken("effects_once", f"{session}: {call_id} was written {count} times")


ANSWERED_WITHIN_S = 2.0
"""The time that an answer takes to a worker that stands still nowhere."""
WHOLE = len("<t1:0>")
"""Characters of the shortest text that no other message of a model has."""
_OFTEN = ("_delta", "_activity", "item_started", "raw_response_item")
"""Suffixes of events that are shown whenever there is news: a log has none of them, or the first alone."""


def _followed(world: Ended) -> None:
    """Followers have seen the log's events, each once; deltas never come behind the finished text."""
    watch = world.site.watch
    if watch.went_back_s > 0:
        return
    for (person, session), events in world.diary.seen.items():
        # A deleted session has no log to compare with any more.
        if session in watch.sessions:
            _saw_the_log(watch, session, person, events, world.diary.attached.get((person, session), 0))
            _saw_deltas_in_time(watch, session, person, events)


def _saw_the_log(watch: Watch, session: str, person: str, events: list[Event], after: int) -> None:
    """The log's events, in its order, each once, also where the reading of a gap's log was broken off."""
    seen = _Shown(watch, session, person, after)
    for event in events:
        if event.msg.get("message") in GAP_TEXTS.values():
            watch.reach.saw("events")
            if watch.keeps_all_events(session):
                watch.broken("events", f"{session}: {person} was told of a gap, and all events are kept")
            if event.msg["message"] == GAP_TEXTS["rewound"]:
                watch.broken("events", f"{session}: {person} was told that Redis went back, and it never did")
            seen.gap()
        elif not (
            TOLD_OF_THE_TREE & event.msg.keys() or event.msg == QUARANTINED["msg"] or tells_of_a_try(event)
        ):
            seen.event(event)
    seen.end()


class _Shown:
    """A follower's place in a log."""

    def __init__(self, watch: Watch, session: str, person: str, after: int) -> None:
        self._watch = watch
        self._session = session
        self._person = person
        entries = watch.sessions[session].entries
        self._logged = {
            seq: entry
            for seq, entry in enumerate(entries[after:], after + 1)
            if entry.type == EVENT_MSG and not entry.payload["type"].endswith(_OFTEN)
        }
        """Events of the log that are shown to whoever follows, by their places."""
        self._seqs = sorted(self._logged)
        self._next = 0
        self._sealed_seq = watch.archive_moves.sealed_seq(session)
        self._after_gap: tuple[int, ...] = ()
        """Where it may go on; else it goes on behind what it was shown."""

    def gap(self) -> None:
        self._after_gap = tuple(sorted({self._next, self._gone(self._next)}))

    def _gone(self, place: int) -> int:
        """The first event from there on that has not left Redis by now, whatever had when it was read."""
        while place < len(self._seqs) and self._seqs[place] <= self._sealed_seq:
            place += 1
        return place

    def event(self, event: Event) -> None:
        entry = self._logged.get(event.seq)
        is_logged = entry is not None and (entry.id, entry.payload["type"]) == (event.id, event.type)
        if is_logged:
            assert entry is not None
            place = self._seqs.index(event.seq, self._after_gap[0] if self._after_gap else 0)
            if place != self._next and not self._goes_on(place):
                self._broken(event, place)
            if not (any(references(entry.payload)) or self._is_said(entry, event)):
                self._watch.broken(
                    "events", f"{self._session}: {self._person} was shown {event}, not {entry}"
                )
            self._next, self._after_gap = place + 1, ()
        elif not event.type.endswith(_OFTEN) and self._session not in self._watch.trees:
            # Events about agents are in the tree log, in no session's.
            self._broken(event, self._next)

    def _is_said(self, entry: Entry, event: Event) -> bool:
        """Whether an event is the log's, as it was written or as it stands since it was redacted."""
        seen = self._watch.sessions[self._session]
        instead = decode_entry(seen.stored[event.seq - 1][1][b"p"])
        if instead != entry and dict(instead.payload) == event.msg:
            self._watch.reach.saw("redacted_heard")
            return True
        return dict(entry.payload) == event.msg

    def _goes_on(self, place: int) -> bool:
        """Whether it may go on there behind a gap: what lies between has left Redis, if anything does."""
        return any(start <= place <= max(start, self._gone(start)) for start in self._after_gap)

    def end(self) -> None:
        if self._after_gap and self._gone(self._next) == len(self._seqs):
            return
        if self._next != len(self._seqs):
            self._broken(None, self._next)

    def _broken(self, event: Event | None, place: int) -> None:
        wanted = [self._named(at) for at in range(self._next, min(self._next + 2, len(self._seqs)))]
        told = "nothing more" if event is None else f"{event.type} of {event.id} at {event.seq}"
        seen = f"{self._person} saw {told} behind {self._next} events of {len(self._seqs)}, not {wanted}"
        self._watch.broken("events", f"{self._session}: {seen}")

    def _named(self, place: int) -> tuple[int, str, str]:
        entry = self._logged[self._seqs[place]]
        return self._seqs[place], entry.id, entry.payload["type"]


def _saw_deltas_in_time(watch: Watch, session: str, person: str, events: list[Event]) -> None:
    done: list[str] = []
    for event in events:
        if event.msg.get("message") in GAP_TEXTS.values():
            # Events behind a gap are read from the log, and may have been shown before.
            done.clear()
        elif event.type == "agent_message":
            done.append(event.msg["message"])
        elif event.type == "agent_message_delta" and len(event.msg["delta"]) < WHOLE:
            # A piece of a marker, as the search for plans cuts them, is part of many texts.
            continue
        elif event.type == "agent_message_delta" and any(event.msg["delta"] in text for text in done):
            watch.broken("deltas", f"{session}: {person} saw {event.msg['delta']!r} behind the finished text")


def _overdue(world: Ended) -> None:
    left = world.site.ledger.running()
    if left:
        world.site.watch.broken("right_to_run", f"{[run.call_id for run in left]} run and nobody works")


__all__ = ["GENESIS", "audit"]
