"""Lists, pages and pictures that people are shown, held against a plain reading of the logs.

Doors and commands read sessions by the product's own views. Here the views read the double, beside the
simulation and outside of its time, and each whole answer is compared with what a second reading comes to.
"""

from __future__ import annotations

import asyncio
from asyncio import events as running
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson
import zstandard

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import stored_event, tree_entry
from orchestrator.core.blobs import REFERENCE, resolve
from orchestrator.core.entries import DENDRO, EVENT_MSG, Entry
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId, created_ms
from orchestrator.requests import TO_PEOPLE, call_id_of
from orchestrator.rollouts.segments import Manifest, decode_segment
from orchestrator.views.agent_past import MAIL, everything, page_before
from orchestrator.views.approvals import needed, open_requests_of
from orchestrator.views.event import Event
from orchestrator.views.event_text import GIVEN
from orchestrator.views.fleet import FleetFilter
from orchestrator.views.sessions import Filter, sessions_listed, trees_listed
from orchestrator.views.thread_list import ListAsked, ListCursor, ThreadFilter, loaded, threads_page
from orchestrator.views.thread_log import ThreadLog, waiting_inputs
from orchestrator.views.thread_pages import Asked, items_page, turns_page
from orchestrator.views.threads import Thread, settings_of, threads
from orchestrator.views.tree import TreeReader
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.projector import Projector
from sim.double import Double
from sim.exec_lines import ExecLines, turn_of
from sim.objects import SimObjects
from sim.redactions import as_stored
from sim.seen import Seen
from sim.told_turns import Told, TurnReader, as_told, whole
from sim.viewed_fleet import Trees, awaited_of, moved_ms, open_of

if TYPE_CHECKING:
    from orchestrator.broker.records import BrokerConfig
    from sim.watch import Watch

A = TypeVar("A")
_REFERS = f'"{REFERENCE}"'
MOST_CROWDED = 3
BEGIN_CALLS = frozenset(
    {"exec_command_begin", "patch_apply_begin", "mcp_tool_call_begin", "dynamic_tool_call_response"}
)
"""Events with which a request about their call is over."""
ELSEWHERE = frozenset({"agent_id", "agent_path"})
"""Keys of events that tell of an agent."""


class _Looks(Connection):
    """A connection that reads the double, and never waits."""

    def __init__(self, double: Double) -> None:
        self._double = double

    async def run(self, call: ScriptCall) -> list[Any]:
        words = (*call.keys, *call.args)
        return list(self._double.look_by(call.script.source, len(call.keys), *words))

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]

    async def command(self, *args: Any) -> Any:
        return self._double.look(*args)

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return [self._double.look(*row) for row in rows]

    async def together(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self.commands(rows)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def done(work: Coroutine[Any, Any, A]) -> A:
    """The result of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: A = end.value
        return result
    raise AssertionError("it waits for something")


def together(work: Coroutine[Any, Any, A]) -> A:
    """The result of work that goes on in several tasks, and waits for nothing of the simulation."""
    outer = running._get_running_loop()
    running._set_running_loop(None)
    try:
        return _loop().run_until_complete(work)
    finally:
        running._set_running_loop(outer)


class _Found:
    """A log source over logs as they were seen to grow, and over the double."""

    def __init__(self, broker: Broker, watch: Watch, double: Double, objects: SimObjects) -> None:
        self.broker, self.secret = broker, watch.secret
        self._watch, self._double, self._objects = watch, double, objects
        self._logs: dict[str, tuple[Seen | None, list[StoredEntry]]] = {}

    @property
    def texts(self) -> Texts:
        raise AssertionError("texts are asked for by `large_texts`")

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for stored in self._read(session)[after:through]:
            yield stored

    def _read(self, session: SessionId) -> Sequence[StoredEntry]:
        """A log, each entry of which is decoded once."""
        seen = self._watch.sessions.get(session)
        if seen is None:
            return ()
        known, entries = self._logs.get(session, (None, []))
        if known is not seen:
            entries = []
            self._logs[session] = seen, entries
        entries += [as_stored(*one) for one in seen.stored[len(entries) :]]
        return entries

    async def sealed(self, data: bytes, after: int, count: int) -> tuple[StoredEntry, ...]:
        """Entries of a short log in the archive, also while that is away."""
        found: list[StoredEntry] = []
        for segment in Manifest.decode(data).segments:
            if (packed := self._objects.get(segment.name)) is not None:
                found += decode_segment(segment, packed, self.secret)
        return tuple([entry for entry in found if entry.seq > after][:count])

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        return {digest: text for digest in digests if (text := self.text(tree, digest)) is not None}

    def text(self, tree: str, digest: str) -> str | None:
        packed = self._double.look("GET", self._watch.keys.blob(TreeId(tree), digest))
        packed = packed or self._objects.get(f"{tree}/blobs/{digest}.zst")
        return None if packed is None else zstandard.decompress(packed).decode("utf-8", "surrogatepass")


class Viewed:
    """The rule `viewed`."""

    def __init__(
        self, watch: Watch, double: Double, objects: SimObjects, config: BrokerConfig, rng: Random
    ) -> None:
        self._watch, self._double, self._rng = watch, double, rng
        self._broker = Broker(_Looks(double), config, lambda: 0.0)
        self._found = _Found(self._broker, watch, double, objects)
        self._broker.logs.sealed = self._found.sealed
        self.logs = self._broker.logs
        """Logs as they stand, read at once."""
        self._keys: Keys = watch.keys
        self._shown = Trees(self._broker, double, rng, self._same)
        self._crowded = 0
        """How often several agents of a tree were seen to ask at once."""

    def look(self) -> None:
        """At any moment: nothing is shown that the logs do not say."""
        heads = self._heads()
        if heads is None:
            return
        self._watch.reach.saw("viewed")
        # Pages of all would cost a tenth of a simulation.
        paged = self._rng.choice([*heads]) if heads else ""
        for session, head in heads.items():
            seen = self._watch.sessions[session]
            self._turns(head, seen, paged=session == paged)
            self._inputs(head, seen)
            self._settings(head, seen)
            if session == paged:
                self._past(head, seen)
        for row in done(threads(self._broker, list(heads.values()))):
            self._stands(row, heads[str(row.id)], self._watch.sessions[row.id])
        self._requests(heads)
        self._trees(heads)
        self._rows(heads, rests=False)

    def committed(self, session: str) -> None:
        """When several agents of a tree ask at once, lists tell them apart."""
        seen = self._watch.sessions.get(session)
        if seen is None or self._crowded == MOST_CROWDED or not open_of(seen):
            return
        if sum(map(bool, map(open_of, self._watch.members[seen.tree].values()))) < 2:
            return
        heads = self._heads()
        if heads is not None:
            self._crowded += 1
            self._requests(heads)
            self._rows(heads, rests=False)

    def at_rest(self) -> None:
        """When nothing goes on any more, lists have everything, too."""
        self.look()
        heads = self._heads()
        if heads is None:
            return
        for head in heads.values():
            self._queue_tells(head, self._watch.sessions[head.session])
        for tree in {str(head.tree) for head in heads.values()}:
            self._settled(tree)
        self._threads(heads)
        self._sessions(heads)
        self._rows(heads, rests=True)
        for tree in dict.fromkeys(str(head.tree) for head in heads.values()):
            view = self._watch.trees[tree][0] if tree in self._watch.trees else None
            if tree in heads and not self._unread(tree, view):
                self._tree_at_rest(heads[tree])

    def _settled(self, tree: str) -> None:
        """Requests of agents are told at the root, and their ends: at rest none is left open."""
        open_now = set[tuple[int, str]]()
        for place, fields in self._double.tree_after(self._keys, tree, 0):
            message = orjson.loads(tree_entry(place, fields).payload)["msg"]
            agent = message.get("agent_id") or 0
            if message["type"] in TO_PEOPLE:
                open_now.add((agent, call_id_of(message)))
            elif message["type"] == "request_resolved" and agent:
                open_now.discard((agent, message["call_id"]))
        if open_now:
            self._broken(tree, f"requests of agents at rest are told to be open: {sorted(open_now)}")

    def _heads(self) -> dict[str, SessionHead] | None:
        """The heads of all sessions; None where Redis went back, and nobody has written since."""
        sessions = [SessionId(one) for one in self._watch.sessions]
        heads = {str(head.session): head for head in done(self._broker.logs.heads(sessions))}
        if any(head.seq != self._watch.sessions[session].seq for session, head in heads.items()):
            return None
        return heads

    def _broken(self, session: str, told: str) -> None:
        self._watch.broken("viewed", f"{session}: {told}")

    def _same(self, session: str, what: str, told: Any, own: Any) -> None:
        if told != own:
            self._broken(session, f"{what}: {_unlike(told, own)}")

    # ── turns ─────────────────────────────────────────────────────────────────────────────────

    def _entries(self, session: str, through: int) -> list[Entry]:
        """A log's entries, with their large texts."""
        seen, found = self._watch.sessions[session], list[Entry]()
        for entry, (_, fields) in zip(seen.readable[:through], seen.stored, strict=False):
            if _REFERS.encode() in fields[b"p"]:
                entry = whole(entry, lambda digest: self._found.text(seen.tree, digest))
            found.append(entry)
        return found

    def _logged(self, head: SessionHead, through: int) -> list[Told]:
        """The turns of a session, and of those that it was forked from, as far as they are there."""
        legs, at = [(str(head.session), through)], str(head.session)
        while (fork := self._fork(at)) is not None:
            legs.append(fork)
            at = fork[0]
        reader = TurnReader(str(head.session))
        for session, last in reversed(legs):
            for entry in self._entries(session, last):
                reader.read(entry)
            reader.leaves()
        return [turn.told() for turn in reader.turns]

    def _fork(self, session: str) -> tuple[str, int] | None:
        """The session that a root was forked from, and its last entry then."""
        seen = self._watch.sessions[session]
        if seen.state.facts.agent_id:
            return None
        for entry in seen.readable[:64]:
            if entry.type == DENDRO and entry.payload["kind"] == "forked":
                parent, seq = entry.payload["parent"]["session"], entry.payload["parent"]["seq"]
                there = parent in self._watch.sessions and self._double.hash(self._keys.session(parent))
                return (parent, seq) if there else None
        return None

    def _turns(self, head: SessionHead, seen: Seen, *, paged: bool) -> None:
        own = self._logged(head, head.seq)
        told, log = done(self._all_turns(head))
        if not head.labels.namespace:
            # A tenant is told of errors without the machine's paths.
            self._same(head.session, "its turns", [as_told(turn) for turn in told], own)
        if paged:
            self._pages(head, told, log)

    async def _all_turns(self, head: SessionHead) -> tuple[list[r.Turn], ThreadLog]:
        log = await ThreadLog.of(self._found, head)
        turns = [await log.turn(stretch) async for stretch in log.back()]
        return [turn for turn in reversed(turns) if turn is not None], log

    def _pages(self, head: SessionHead, turns: Sequence[r.Turn], log: ThreadLog) -> None:
        """Pages of turns and items, from either end, are the whole."""
        direction, limit = self._rng.choice(("asc", "desc")), self._rng.choice((1, 2, 3, 5))
        items = [(turn.id, item.id) for turn in turns for item in turn.items]
        ids = [turn.id for turn in turns]
        paged, listed = done(self._paged(log, cast(Any, direction), limit))
        if direction == "desc":
            ids, items = ids[::-1], items[::-1]
        self._same(head.session, f"its turns by {limit} {direction}", paged, ids)
        self._same(head.session, f"its items by {limit} {direction}", listed, items)

    async def _paged(
        self, log: ThreadLog, direction: Any, limit: int
    ) -> tuple[list[str], list[tuple[str, str]]]:
        turns, items = list[str](), list[tuple[str, str]]()
        asked: Asked | None = Asked(direction, limit)
        while asked is not None:
            page = await turns_page(log, asked)
            turns += [turn.id for turn in page.turns]
            asked = None if page.next is None else Asked(direction, limit, page.next)
        asked = Asked(direction, 3 * limit)
        while asked is not None:
            some = await items_page(log, asked)
            items += [(turn, item.id) for turn, item in some.items]
            asked = None if some.next is None else Asked(direction, 3 * limit, some.next)
        return turns, items

    def _queue_tells(self, head: SessionHead, seen: Seen) -> None:
        """A client that hears a session from its first event on is told the turns that its log has."""
        if self._watch.went_back_s > 0 or not self._watch.keeps_all_events(head.session):
            return
        projector, turns, open_now = (
            Projector(head.session),
            dict[str, r.Turn](),
            dict[str, r.RequestOpened](),
        )
        lines, shown = defaultdict[str, ExecLines](ExecLines), dict[str, bytes]()
        for place, fields in self._double.stream_after(self._keys.eq(head.session), 0):
            event = stored_event(place, fields)
            payload = orjson.loads(event.payload)
            told = resolve(payload["msg"], lambda digest: self._found.text(seen.tree, digest))
            self._lost_says(head.session, told, shown)
            for change in projector.receive(Event(payload.get("id", ""), told, None, event.at_ms, event.seq)):
                lines[turn_of(change)].takes(change)
                match change:
                    case r.TurnCompleted(turn):
                        turns[turn.id] = turn
                    case r.ItemCompleted(turn=id, item=item) if id in turns:
                        items = tuple(item if one.id == item.id else one for one in turns[id].items)
                        turns[id] = replace(turns[id], items=items)
                    case r.RequestOpened(session=None):
                        if change.item in open_now:
                            self._broken(head.session, f"clients are asked twice about {change.item}")
                        open_now[change.item] = change
                    case r.RequestResolved(session=None):
                        if open_now.pop(change.item, None) is None:
                            self._broken(head.session, f"clients are told that {change.item} is settled")
                    case _:
                        pass
            self._waits_for_what_is_open(head.session, told, projector.status, open_now)
        if open_now:
            self._broken(head.session, f"clients still have the requests {open_now}")
        reader = TurnReader(str(head.session))
        for entry in self._entries(head.session, head.seq):
            reader.read(entry)
        own = {turn.id: turn.told() for turn in reader.turns}
        told_now = {id: as_told(turn) for id, turn in turns.items() if id in own}
        self._same(head.session, "its turns as they were heard", told_now, own)
        ids = Counter(turn.id for turn in reader.turns)
        for logged in reader.turns:
            # Two clients may use one id: their lines are told apart by nothing.
            if ids[logged.id] == 1 and (wrong := lines[logged.id].unlike(logged)):
                self._broken(head.session, f"the lines of {logged.id}: {wrong}")

    def _waits_for_what_is_open(
        self,
        session: str,
        told: Mapping[str, Any],
        status: r.Status,
        open_now: Mapping[str, r.RequestOpened],
    ) -> None:
        """A call that begins has no open request, and a session waits for people as long as one has."""
        if told["type"] in BEGIN_CALLS and (id := told["call_id"]) in open_now:
            self._broken(session, f"clients still have the request {id} when {told['type']} is told")
        flags = status.flags if isinstance(status, r.Active) else ()
        waits = [each.item for each in open_now.values() if each.request.answered_by == "person"]
        if bool(flags) != bool(waits):
            self._broken(session, f"clients have the requests {waits}, and the status says {flags}")

    def _lost_says(self, session: str, told: Mapping[str, Any], shown: dict[str, bytes]) -> None:
        """The end of a command that was lost with its worker has what clients had been shown of it."""
        call_id = str(told.get("call_id") or told.get("who"))
        match told["type"]:
            case "exec_command_begin":
                shown[call_id] = b""
            case "exec_command_output_delta" if call_id in shown:
                shown[call_id] += b64decode(told["chunk"])
            case "exec_command_end" if told["stderr"].startswith("in doubt") and call_id in shown:
                if told["stdout"] != shown[call_id].decode():
                    self._broken(session, f"{call_id} ends with {told['stdout']!r} of {shown[call_id]!r}")
            case _:
                pass

    # ── inputs, settings, the past ────────────────────────────────────────────────────────────

    def _inputs(self, head: SessionHead, seen: Seen) -> None:
        told = [one.id for one in done(waiting_inputs(self._found, head))]
        self._same(head.session, "the inputs that wait", told, seen.grammar.queue)

    def _settings(self, head: SessionHead, seen: Seen) -> None:
        settings, own = done(settings_of(self._found, head)), seen.grammar.settings
        told = {name: getattr(settings, name) for name in ("cwd", "approval_policy", "model", "effort")}
        self._same(head.session, "its settings", told, {name: own[name] for name in told})

    def _past(self, head: SessionHead, seen: Seen) -> None:
        """Pages of an agent's past are the whole, and its own events stand there in their order."""
        limit = self._rng.choice((1, 4, 20))
        whole, paged = done(self._past_of(head, limit))
        self._same(head.session, f"its past by {limit}", paged, whole)
        own = [(e.id, e.payload) for e in map(_as_shown, seen.readable) if e.type == EVENT_MSG]
        self._same(head.session, "its past", _of_its_own(whole), _of_its_own(own))
        decided = [(told["agent_id"], told["call_id"]) for told in self._decisions(head)]
        shown = [told for _, told in whole if told["type"] == "request_resolved" and told["agent_id"]]
        told_of = sorted((told["agent_id"], told["call_id"]) for told in shown)
        self._same(head.session, "decisions in its past", told_of, sorted(decided))

    def _decisions(self, head: SessionHead) -> Iterable[Mapping[str, Any]]:
        """The ends of an agent's own requests by the tree's log; at the root those of all agents'."""
        for place, fields in self._double.tree_after(self._keys, head.tree, 0):
            message = orjson.loads(tree_entry(place, fields).payload)["msg"]
            agent = message.get("agent_id") or 0
            if message["type"] == "request_resolved" and agent and head.agent_id in (0, agent):
                yield message

    async def _past_of(self, head: SessionHead, limit: int) -> tuple[list[Any], list[Any]]:
        whole = (await page_before(self._found, head, 0, everything)).events
        paged: list[Event] = []
        page = await page_before(self._found, head, limit, everything)
        while True:
            paged = [*page.events, *paged]
            if page.before is None:
                break
            page = await page_before(self._found, head, limit, everything, page.before)
        return [(one.id, one.msg) for one in whole], [(one.id, one.msg) for one in paged]

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _requests(self, heads: Mapping[str, SessionHead]) -> None:
        """All open requests of the fleet, and of a tree, each with its asker."""
        asked = done(open_requests_of(self._found, None))
        told = sorted((str(one.session), one.call_id, one.agent_id, str(one.tree)) for one in asked)
        own = []
        for session, seen in self._watch.sessions.items():
            task = seen.state.task
            if session not in heads or task is None:
                continue
            if task.stopping:
                # What was answered by an end of the turn is decided.
                told = [one for one in told if one[0] != session]
                continue
            ids: list[str] = [call.call_id for call in task.requests]
            ids += [one.id for one in task.elicitations if not one.decision]
            own += [(session, id, seen.state.facts.agent_id, seen.tree) for id in ids]
        self._same("the fleet", "the open requests", told, sorted(own))
        for tree in {one[3] for one in own}:
            of_tree = done(open_requests_of(self._found, TreeId(tree)))
            wanted = [one for one in asked if str(one.tree) == tree]
            self._same(tree, "its open requests", [one.call for one in of_tree], [one.call for one in wanted])
        named = done(needed(self._found, asked))
        for one in named:
            seen = self._watch.sessions[one.asked.session]
            label = seen.grammar.agent.get("label") or ""
            self._same(
                one.asked.session,
                "the label of a request's agent",
                one.label,
                label if one.asked.agent_id else "",
            )

    # ── trees ─────────────────────────────────────────────────────────────────────────────────

    def _trees(self, heads: Mapping[str, SessionHead]) -> None:
        for tree in dict.fromkeys(str(head.tree) for head in heads.values()):
            view = self._watch.trees[tree][0] if tree in self._watch.trees else None
            agents = view.agents if view is not None else {}
            known = {0: tree, **{id: agent.session for id, agent in agents.items()}}
            if not heads.keys() >= {*known.values()} or self._unread(tree, view):
                continue
            picture = together(TreeReader(self._broker, TreeId(tree)).picture())
            told = {id: str(agent.session) for id, agent in picture.agents.items()}
            self._same(tree, "the agents of its picture", told, known)
            for drawn in picture.agents.values():
                self._drawn(drawn, heads[str(drawn.session)], self._watch.sessions[drawn.session], known)

    def _unread(self, tree: str, view: Any) -> bool:
        """Whether Redis went back, and nobody has written to a tree since: then its log was not read anew."""
        return view is None and bool(self._double.tree_after(self._keys, tree, 0))

    def _drawn(self, drawn: Any, drawn_from: SessionHead, seen: Seen, known: Mapping[int, str]) -> None:
        """An agent in the picture of its tree."""
        facts = seen.state.facts
        if facts.agent_id:
            above = [int(number) for number in facts.agent_path.split("/")[:-1]]
            parent = next(number for number in reversed(above) if number in known)
            self._same(drawn.session, "who is above it", drawn.parent, parent)
            self._same(
                drawn.session,
                "its label",
                drawn.summary.get("label") or None,
                seen.grammar.agent.get("label"),
            )
        waits, fact = "", _last_move(seen)
        if fact.get("kind") == "call":
            waits = _waits_for(fact)
        elif fact.get("kind") == "agent" and fact["changes"].get("paused"):
            waits = "room in the tree's budget"
        self._same(drawn.session, "what it waits for", drawn.doing.waits_for, waits)
        awaits = fact if waits in ("agents", "its helper", "its helpers") else {"phase": ""}
        told = (tuple(drawn.doing.awaited), drawn.doing.until_ms)
        self._same(drawn.session, "whom it waits for, and until when", told, awaited_of(awaits))
        moved = moved_ms(seen, _moves)
        if moved is not None and drawn.lost_ms is None and not drawn_from.sealed_seq:
            self._same(drawn.session, "since when it is at that", drawn.since_ms, moved)
        marks = self._watch.marks(seen.tree)
        marked = bool(facts.agent_id) and b"cancel:%d" % facts.agent_id in marks
        self._same(drawn.session, "whether it is being cancelled", drawn.canceling, marked)
        counts = [
            entry.payload["info"]["total_token_usage"]["total_tokens"]
            for entry in seen.readable[-80:]
            if entry.type == EVENT_MSG and entry.payload["type"] == "token_count" and entry.payload["info"]
        ]
        if counts and counts[-1] and not drawn_from.sealed_seq:
            self._same(drawn.session, "its tokens", drawn.doing.tokens, counts[-1])

    def _tree_at_rest(self, root: SessionHead) -> None:
        """The decisions and the past of a tree."""
        tree = str(root.tree)
        decided = done(self._shown.decisions(self._found, root))
        self._shown.decided(tree, decided, self._watch.sessions[tree])
        lines = self._shown.log(tree)
        at = self._rng.randint(1, len(lines)) if lines else 0
        self._shown.went(tree, together(self._shown.past(tree, at)), lines)

    # ── lists ─────────────────────────────────────────────────────────────────────────────────

    def _rows(self, heads: Mapping[str, SessionHead], *, rests: bool) -> None:
        """Rows of the fleet, a namespace and an order at a time."""
        if any(not self._is_counted(s) for s, head in heads.items() if not head.agent_id):
            return
        namespace = self._rng.choice(sorted({head.labels.namespace for head in heads.values()} or {""}))
        sort, limit = (
            cast(Any, self._rng.choice(("activity", "created", "cost"))),
            self._rng.choice((1, 2, 50)),
        )
        told = together(self._shown.pages(namespace, FleetFilter(), sort, limit))
        for row in told[0]:
            of_tree = {s: self._watch.sessions[s] for s, head in heads.items() if head.tree == row.tree}
            self._shown.row(row, of_tree, rests=rests)
        if rests:
            roots = [
                session
                for session, head in heads.items()
                if not head.agent_id
                and head.labels.namespace == namespace
                and not head.labels.ephemeral
                and not head.shelved
                and self._begun(session)
                and not self._compacts(session)
            ]
            silent = {s for s in heads if self._perhaps(s) or self._compacts(s)}
            self._shown.rows(namespace, told, sort, heads, roots, silent)

    def _is_counted(self, root: str) -> bool:
        """Whether a root's hash counts its agents; whoever looks at another one writes the counts into it."""
        agents = self._double.hash(self._keys.agents(TreeId(root)))
        return not agents or b"states" in self._double.hash(self._keys.session(SessionId(root)))

    def _threads(self, heads: Mapping[str, SessionHead]) -> None:
        """Lists of threads by every filter, in either order, some at a time."""
        rows = {str(one.id): one for one in done(threads(self._broker, list(heads.values())))}
        for session, row in rows.items():
            self._thread(session, row, heads[session])
        for namespace in {head.labels.namespace for head in heads.values()}:
            for wanted, fits in self._filters(heads):
                self._listed(
                    namespace,
                    wanted,
                    [
                        session
                        for session, head in heads.items()
                        if head.labels.namespace == namespace
                        and fits(session)
                        and self._begun(session)
                        and not head.labels.ephemeral
                        # An agent goes with its tree, where its own tree is not asked for.
                        and (
                            bool(head.agent_id and (wanted.parent or wanted.ancestor))
                            or heads.get(head.tree, head).shelved is wanted.archived
                        )
                    ],
                    heads,
                )
        mine = sorted(str(one) for one in done(loaded(self._broker.logs, 1_000, "")))
        own = sorted(s for s, h in heads.items() if not h.labels.namespace and not self._let_go(s, h))
        self._same("the fleet", "the threads that are loaded", mine, own)

    def _let_go(self, session: str, head: SessionHead) -> bool:
        seen = self._watch.sessions[session]
        held = (
            self._double.scored(self._keys.leases(self._keys.shard_of(session), seen.pool), session)
            is not None
        )
        return seen.grammar.task is None and not held and not seen.queue

    def _begun(self, session: str) -> bool:
        """Whether a person has said, named or done anything in it."""
        seen = self._watch.sessions[session]
        kinds = {entry.payload["kind"] for entry in seen.readable if entry.type == DENDRO}
        return bool(seen.state.facts.agent_id or kinds & {"task", "named", "forked"})

    def _perhaps(self, session: str) -> bool:
        """Whether messages that were added without a turn are all that was said in it."""
        seen = self._watch.sessions[session]
        added = any(e.type == EVENT_MSG and e.payload["type"] == "items_injected" for e in seen.readable)
        return added and not self._begun(session)

    def _compacts(self, session: str) -> bool:
        """Whether it was compacted, and had nothing to compact."""
        facts = [e.payload for e in self._watch.sessions[session].readable if e.type == DENDRO]
        tasks = {fact["task"] for fact in facts if fact["kind"] == "task"}
        return tasks == {"compact"} and not {"named", "forked"} & {fact["kind"] for fact in facts}

    def _filters(self, heads: Mapping[str, SessionHead]) -> Iterable[tuple[ThreadFilter, Any]]:
        agent_of = {session: self._watch.sessions[session].state.facts for session in heads}
        live = {s for s in heads if not agent_of[s].agent_id or self._in_registry(s)}
        yield ThreadFilter(), lambda s: not agent_of[s].agent_id
        yield ThreadFilter(archived=True), lambda s: not agent_of[s].agent_id
        yield ThreadFilter(kinds=frozenset({"cli", "agent"})), lambda s: True
        parents = [
            s
            for s in heads
            if any(f.parent_session == s for f in agent_of.values())
            and agent_of[s].tree_id in self._watch.trees
        ]
        if parents:
            above = self._rng.choice(parents)
            path, tree = agent_of[above].agent_path, agent_of[above].tree_id
            yield ThreadFilter(parent=above), lambda s: s in live and agent_of[s].parent_session == above
            yield (
                ThreadFilter(ancestor=above),
                lambda s: (
                    s in live
                    and agent_of[s].tree_id == tree
                    and agent_of[s].agent_path.startswith(f"{path}/")
                ),
            )

    def _in_registry(self, session: str) -> bool:
        seen = self._watch.sessions[session]
        view = self._watch.trees[seen.tree][0] if seen.tree in self._watch.trees else None
        if view is None:
            # Redis went back, and nobody has written to the tree since.
            return b"x:%d" % seen.state.facts.agent_id not in self._watch.marks(seen.tree)
        return seen.state.facts.agent_id in view.agents

    def _listed(
        self, namespace: str, wanted: ThreadFilter, own: Sequence[str], heads: Mapping[str, SessionHead]
    ) -> None:
        limit, direction = self._rng.choice((1, 2, 25)), cast(Any, self._rng.choice(("asc", "desc")))
        told = done(self._all_listed(ListAsked(limit, "created", direction, None, namespace, wanted)))
        told = [one for one in told if not self._perhaps(one)]
        born = {s: created_ms(SessionId(s)) if wanted.of_agents else heads[s].created_ms for s in own}
        ordered = sorted(own, key=lambda s: (born[s], s), reverse=direction == "desc")
        self._same(namespace or "the fleet", f"threads by {wanted} {direction}", told, ordered)

    async def _all_listed(self, asked: ListAsked) -> list[str]:
        told: list[str] = []
        while True:
            page = await threads_page(self._broker, asked)
            told += [str(one.id) for one in page.threads]
            if page.next is None:
                return told
            asked = replace(asked, cursor=ListCursor.of(str(page.next), asked.sort))

    def _stands(self, row: Thread, head: SessionHead, seen: Seen) -> None:
        """A thread at any moment: its name, what it is at, and whom it waits for."""
        names = [
            e.payload["name"] for e in seen.readable if e.type == DENDRO and e.payload["kind"] == "named"
        ]
        self._same(row.id, "its name", row.name, names[-1] if names else None)
        task = seen.grammar.task
        if head.archived or head.quarantined or head.shelved or (task is not None and task["stopping"]):
            return
        self._same(row.id, "whether it is at work", row.status == "active", task is not None)
        calls = [call["phase"] for call in task["calls"].values()] if task is not None else []
        waits = None
        if task is None or task["request"] or "running" in calls or seen.state.tree.paused:
            pass
        elif "awaiting_approval" in calls:
            waits = "approval"
        elif "asking" in calls:
            waits = "user_input"
        if seen.state.task is None or not seen.state.task.elicitations:
            self._same(row.id, "whom it waits for", row.waits, waits)

    def _thread(self, session: str, row: Any, head: SessionHead) -> None:
        """A thread as lists show it, when it rests."""
        seen = self._watch.sessions[session]
        facts = seen.state.facts
        self._same(session, "its root", row.root, seen.tree)
        self._same(session, "its folder", row.cwd, seen.grammar.settings["cwd"])
        self._same(session, "its model", row.model, seen.grammar.settings["model"])
        self._same(session, "whether it is an agent", row.spawned is not None, bool(facts.agent_id))
        if row.spawned is not None:
            self._same(session, "its parent", row.spawned.parent, facts.parent_session)
            if self._in_registry(session):
                self._same(session, "its path", row.spawned.path, facts.agent_path)
                self._same(session, "its label", row.spawned.nickname, seen.grammar.agent.get("label"))

    def _sessions(self, heads: Mapping[str, SessionHead]) -> None:
        """Lists of sessions, and of trees with the statuses of their agents."""
        listing = done(sessions_listed(self._broker, Filter(), 10_000, all=True))
        self._same(
            "the fleet", "its sessions", sorted(str(row["session_id"]) for row in listing.rows), sorted(heads)
        )
        trees = done(trees_listed(self._broker, Filter(), 10_000, all=True))
        told = {str(tree.root["tree_id"]): sum(tree.agents.values()) for tree in trees.trees}
        own = {
            tree: sum(
                1 for s, h in heads.items() if str(h.tree) == tree and s != tree and self._in_registry(s)
            )
            for tree in {str(head.tree) for head in heads.values()}
        }
        self._same("the fleet", "its trees", told, own)
        for row in listing.rows:
            seen = self._watch.sessions[row["session_id"]]
            label = (
                seen.grammar.agent.get("label")
                if seen.state.facts.agent_id and self._in_registry(row["session_id"])
                else None
            )
            self._same(row["session_id"], "its label", row["label"], label)


def _as_shown(entry: Entry) -> Entry:
    """The entry as it is shown: a task, and words that join one, with their sender."""
    fact = entry.payload
    if entry.type != DENDRO or fact["kind"] not in ("task", "steered") or not fact.get("by"):
        return entry
    return Entry(EVENT_MSG, {"type": GIVEN, "what": fact["kind"], **fact["by"]}, fact["id"])


def _of_its_own(events: Iterable[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, str, Any]]:
    """The events that tell of a session itself, and of no agent and no letter."""
    return [
        (id, told["type"], told.get("call_id") or told.get("who"))
        for id, told in events
        if told["type"] not in (MAIL, "subagent_lifecycle") and not ELSEWHERE & told.keys()
    ]


def _moves(fact: Mapping[str, Any]) -> bool:
    """Whether an agent does something else behind a fact."""
    return fact["kind"] in ("call", "task", "task_ended", "request_begun", "closed") or (
        fact["kind"] == "agent" and "paused" in fact["changes"]
    )


def _last_move(seen: Seen) -> Mapping[str, Any]:
    """The last fact behind which an agent is at something, whichever of its other calls have ended since."""
    over = set[str]()
    for entry in reversed(seen.readable[-80:]):
        fact = entry.payload
        if entry.type != DENDRO or not _moves(fact):
            continue
        if fact["kind"] != "call" or (fact["phase"] != "done" and fact["call_id"] not in over):
            return fact
        over.add(fact["call_id"])
    return {}


def _waits_for(call: Mapping[str, Any]) -> str:
    match call["phase"]:
        case "awaiting_approval":
            return "an approval"
        case "asking":
            return "an answer"
        case "waiting" if call.get("spec", {}).get("kind") == "helper":
            return "its helper"
        case "waiting" if call.get("spec", {}).get("kind") == "variants":
            return "its helpers"
        case "waiting" if call.get("spec", {}).get("kind") == "await":
            return "agents"
        case _:
            return ""


def _unlike(told: Any, own: Any) -> str:
    """Where two answers part, in a few words."""
    if isinstance(told, list | tuple) and isinstance(own, list | tuple) and type(told) is type(own):
        for place, (one, other) in enumerate(zip(told, own, strict=False)):
            if one != other:
                return f"at {place}: {_unlike(one, other)}"
        return f"{len(told)} are told of {len(own)}: {str(told[len(own) :] or own[len(told) :])[:300]}"
    if isinstance(told, dict) and isinstance(own, dict):
        for name in [*told, *own]:
            if told.get(name) != own.get(name):
                return f"{name}: {_unlike(told.get(name), own.get(name))}"
    return f"told is {str(told)[:300]}, and the log says {str(own)[:300]}"
