"""Rules of `doors`: clients of gateways are told what sessions have told.

Clients of version 2 are told of turns and items: each once, in the order of the log. Clients of version 1
are told the events themselves: the path of events that a client was told must be one that a queue had.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.broker.replies import stored_event
from orchestrator.core.entries import EVENT_MSG
from orchestrator.gateways.bursts import NOT_ON_A_LINE
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.principals import HOME_NAMESPACE, Principal, Scope
from orchestrator.requests import call_id_of
from sim.door_turns import Heard, unlike
from sim.double import Double
from sim.network import sessions_of

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

UNLOCKS = frozenset(
    {
        "exec_approval",
        "patch_approval",
        "resolve_ask_user_question",
        "resolve_elicitation",
        "resolve_plan_approval",
        "run_user_shell_command",
        "user_input_answer",
    }
)
"""Operations by which a person decides what a session may do."""
LOOKS = frozenset(
    {"get_history_entry_request", "get_path", "list_custom_prompts", "list_mcp_tools", "list_models"}
)
"""Operations that change nothing."""
NOTICED_S = 5.0
"""A gateway that runs knows after so long that a token was revoked."""
DELIVERED_S = 60.0
"""Longer than gateways and Redis stand still."""
UNDERWAY_S = 15.0
"""So long a command may be on its way to Redis."""
ASKING = frozenset({"exec_approval_request", "apply_patch_approval_request"})
ENDS = frozenset({"task_complete", "turn_aborted"})
QUIET_S = 8.0
"""So long nothing was written of a session: what was written before has reached everybody."""
PLACE = "/srv/of/the/machine/key"
"""A path that no tenant is told."""
Name = tuple[int, int, str]
"""The name of an event: its number, its entry of the log, the hash of that."""
Told = tuple[Any, ...]
"""The parts of an event that are the same in a queue and at a client."""


def told_of(id: str, message: Mapping[str, Any]) -> Told:
    """The parts by which events of a session are told apart."""
    delta = message.get("delta")
    return id, message["type"], str(message.get("call_id")), delta if isinstance(delta, str) else ""


@dataclass(frozen=True)
class Given:
    """An answer that a client has sent, while the request was open for all that it had been told."""

    ears: Ears
    session: str
    call: str
    agent: int
    at_s: float
    rewinds: int


@dataclass
class Thread:
    """A thread as one connection of version 2 was told of it since it hears it."""

    session: str
    since_s: float
    running: str = ""
    """The turn that runs, as far as it was told."""
    joined: bool = True
    """Whether the turn that runs may have begun before."""
    ended: list[str] = field(default_factory=list)
    """Turns that were told to have ended, in order, from the answer to `thread/resume` on."""
    items: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Items that were told to have begun; True: and to have ended."""
    asked: dict[int, str] = field(default_factory=dict)
    """Open requests: items by the id of the request."""
    pieces: dict[tuple[str, str], str] = field(default_factory=dict)
    """The text of messages that were told to have begun, as far as its pieces came."""
    settled: Counter[str] = field(default_factory=Counter)
    """How often each item was asked about and settled; one judged anew may be asked about again."""
    early: set[str] = field(default_factory=set)
    """Items that were told to be settled while the log waited still: the client's own answer ends the turn.

    Who hears the thread anew where its gateway is behind that answer is asked once more, and told again.
    """
    begun: dict[str, Heard] = field(default_factory=dict)
    """Turns that were heard from their beginnings on, without a gap."""
    gaps: bool = False
    """Whether it was told of a gap: agents that were made there are in no log of the session's own."""


@dataclass
class Conversation:
    """A conversation as one connection of version 1 was told of it since it listens."""

    session: str
    places: set[Name] | None = None
    """The events of the queue that the last one may have been; None: any, and entries of the log."""
    asked: dict[tuple[str, int], str] = field(default_factory=dict)
    """Open requests: the request's id by call and agent."""
    turns: dict[str, str] = field(default_factory=dict)
    """The turns of requests, by their ids: one may be asked before the end of the turn before it is told."""


class Doors:
    """The rules `heard`, `put` and `apart`."""

    def __init__(self, watch: Watch, double: Double) -> None:
        self._watch, self._double = watch, double
        self.namespaces: dict[str, str] = {}
        """The namespace of each root that a gateway made."""
        self.answered_alone: set[tuple[str, str]] = set()
        """Calls that clients of lines have answered: where one gave the task, nobody is told of that."""
        self.given: list[Given] = []
        """Answers of clients to open requests that no session has got yet."""
        self.delivered_s = DELIVERED_S
        self.answering: Callable[[], None] = lambda: None
        """Is told that a client answers, before its answer is on its way."""
        self.ears: list[Ears] = []
        self._names: defaultdict[tuple[str, Told], set[Name]] = defaultdict(set)
        self._before: defaultdict[tuple[str, Name], set[Name]] = defaultdict(set)
        """The events that stood before an event in the queue, on any branch."""
        self._untold: set[tuple[str, Name]] = set()
        """Events that clients of lines are served without."""
        self._loosened: set[str] = set()
        """Sessions that were told by somebody that nobody need be asked."""
        self.principals: dict[str, Principal] = {}
        self.revoked_s: dict[str, float] = {}
        """When the tokens of principals were revoked, by name."""
        self._read: dict[str, tuple[int, Name]] = {}
        self._kept_from: dict[str, tuple[int, Name]] = {}
        """How far queues had been read when Redis went back last."""
        self._logged: defaultdict[str, set[Told]] = defaultdict(set)
        """The events that each log has ever told, on any branch."""
        self._logged_to: dict[str, int] = {}
        self._rewinds = 0
        self._first_by: dict[tuple[str, str, str], str] = {}
        """The senders of submissions that were taken, by session, client and id."""
        self._named_by: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        """The people of clients that called themselves by one name, by session, namespace and message."""
        self.began_s: dict[str, float] = {}
        """When each session's last turn began."""
        self.written_s: dict[str, float] = {}
        """When each session was written last."""

    # ── what queues have had ──────────────────────────────────────────────────────────────────

    def wrote(self, args: Any) -> None:
        """Reads what a command has added to the queues of events."""
        watch = self._watch
        if len(watch.rewinds) != self._rewinds:
            self._rewinds = len(watch.rewinds)
            # Of a queue that has lost its old events it is not read anew which one was the last.
            self._kept_from |= {session: read for session, read in self._read.items() if read[0]}
            self._read.clear()
            self._logged_to.clear()
            for session in watch.sessions:
                self._read_queue(session)
        for session in sessions_of(args):
            self.written_s[session] = watch.now_s
            self._read_queue(session)

    def _read_queue(self, session: str) -> None:
        n, last = self._read.get(session, (0, (0, 0, "")))
        for entry_id, fields in self._double.stream_after(self._watch.keys.eq(session), n):
            event = stored_event(entry_id, fields)
            name = (event.n, event.seq, event.hash8)
            payload = orjson.loads(event.payload)
            if payload["msg"]["type"] == "task_started":
                self.began_s[session] = self._watch.now_s
            if payload["msg"]["type"] in NOT_ON_A_LINE:
                self._untold.add((session, name))
            self._names[session, told_of(payload.get("id", ""), payload["msg"])].add(name)
            if last[0] != event.n - 1 and not n:
                n, last = self._kept_from.get(session, (n, last))
            if last[0] == event.n - 1:
                self._before[session, name].add(last)
            n, last = event.n, name
        self._read[session] = n, last
        seen = self._watch.sessions.get(session)
        if seen is not None:
            self._logged[session].update(self.entries(session, self._logged_to.get(session, 0), seen.seq))
            self._logged_to[session] = seen.seq

    def follows(self, session: str, places: set[Name] | None, told: Told) -> set[Name]:
        """The events of the queue that a told one may be, behind those that the last one may have been."""
        names = self._names.get((session, told), set())
        if places is None:
            return names
        return {name for name in names if self._before[session, name] & places}

    def named(self, session: str, n: int, seq: int, told: Told) -> set[Name]:
        """The events of the queue that a told one may be, by its place."""
        return {name for name in self._names.get((session, told), ()) if name[:2] == (n, seq)}

    def comes_behind(self, session: str, name: Name, n: int, seq: int | None) -> bool:
        """Whether clients of lines are told nothing between a place of the queue and an event."""
        reached = [name]
        while reached:
            for before in self._before[session, reached.pop()]:
                if before[0] == n and seq in (None, before[1]):
                    return True
                if (session, before) in self._untold:
                    reached.append(before)
        return False

    def is_between(self, session: str, n: int, seq: int | None) -> bool:
        """Whether an entry stands between the `n`-th event of a queue and the next one."""
        kept = self._double.stream_after(self._watch.keys.eq(session), n - 1)
        events = [stored_event(*one) for one in kept[:2]]
        if seq is None or not events or events[0].n != n:
            return False
        return events[0].seq <= seq and all(event.seq > seq for event in events[1:])

    def last_told(self, session: str) -> int:
        """The number of the last event of the queue that clients of lines are told."""
        n, name = self._read.get(session, (0, (0, 0, "")))
        if not n:
            n, name = self._kept_from.get(session, (n, name))
        while (session, name) in self._untold:
            name = next(iter(self._before[session, name]), (n, 0, ""))
        return name[0]

    def last_name(self, session: str) -> Name:
        return self._read.get(session, (0, (0, 0, "")))[1]

    @property
    def rewinds(self) -> int:
        return self._rewinds

    # ── who may do what ───────────────────────────────────────────────────────────────────────

    def creates(self, session: str, principal: Principal) -> None:
        """A gateway makes a session for somebody."""
        self.namespaces[session] = principal.namespace
        if not principal.may(Scope.SUBMIT):
            self.broken("permitted", f"{principal.name} may {principal.scope.word}, and makes {session}")

    def served(self, principal: Principal, awake_s: float, data: bytes) -> None:
        """A gateway, which stood still before then, sends something to somebody's client."""
        revoked_s = self.revoked_s.get(principal.name)
        if revoked_s is not None and self._watch.now_s - max(revoked_s, awake_s) > NOTICED_S:
            self.broken("permitted", f"{principal.name} is told {data[:200]!r}, and was revoked")

    def submitted(self, args: Any) -> None:
        """A queue has taken a submission."""
        words = args[3 + int(args[2]) :]
        session, sender = str(words[0]), str(words[8])
        self._first_by[session, str(words[3]), str(words[4])] = sender
        principal = self.principals.get(sender)
        if principal is None:
            return
        op = orjson.loads(words[7])["op"]
        kind = op["type"]
        if kind in UNLOCKS:
            self._delivered(session, sender, str(op.get("id")), op.get("agent_id") or 0)
        least = Scope.APPROVE if kind in UNLOCKS else Scope.READ if kind in LOOKS else Scope.SUBMIT
        if op.get("approval_policy") == "never" and session not in self._loosened:
            # What is in force already loosens nothing.
            least = Scope.APPROVE
            self._loosened.add(session)
        if not principal.may(least):
            self.broken("permitted", f"{session} is given {kind} by {sender}, who may {principal.scope.word}")
        if self.namespace(session) != principal.namespace:
            self.broken("permitted", f"{session} is given {kind} by {sender} of {principal.namespace!r}")
        late_s = self._watch.now_s - self.revoked_s.get(sender, self._watch.now_s)
        if late_s > NOTICED_S + UNDERWAY_S:
            self.broken("permitted", f"{session} is given {kind} {late_s:.0f} s after {sender} was revoked")

    def submitted_again(self, args: Any) -> None:
        """A submission is not taken, because there was one under its id."""
        words = args[3 + int(args[2]) :]
        session, id, sender = str(words[0]), str(words[4]), str(words[8])
        if (first := self._first_by.get((session, str(words[3]), id), sender)) != sender:
            self.broken("by_person", f"{session}: {id} of {sender} counts as {first}'s that was sent again")

    def called(self, session: str, id: str, principal: Principal) -> None:
        """A client names a message as it pleases."""
        people = self._named_by[session, principal.namespace, id]
        people.add(principal.name)
        if len(people) > 1:
            self.saw("by_person")

    @property
    def went_back(self) -> bool:
        """Whether Redis went back: an agent's birth may be lost, and its number given to another event."""
        return self._watch.went_back_s > 0

    def is_open(self, session: str, call: str) -> bool:
        """Whether the log waits for a person still: a worker may not have read an answer yet."""
        seen = self._watch.sessions.get(session)
        return seen is not None and call in (self._open(seen) or ())

    def times_asked(self, session: str, call: str) -> int:
        """How many requests about a call a queue has ever had."""
        return sum(
            len(names)
            for (of, told), names in self._names.items()
            if of == session and told[1] in ASKING and told[2] == call
        )

    def namespace(self, session: str) -> str:
        """The namespace of a session, or of its root."""
        seen = self._watch.sessions.get(session)
        return self.namespaces.get(seen.tree if seen is not None else session, HOME_NAMESPACE)

    def agent(self, session: str) -> int:
        """The number of the agent that has a session."""
        return self._watch.sessions[session].state.facts.agent_id

    def foreign(self, namespace: str) -> list[str]:
        """All sessions of other namespaces."""
        known = {*self._watch.sessions, *self.namespaces}
        return sorted(session for session in known if self.namespace(session) != namespace)

    @property
    def now_s(self) -> float:
        return self._watch.now_s

    def entries(self, session: str, after: int, last: int) -> list[Told]:
        """The events that the log tells from behind one entry to another."""
        seen = self._watch.sessions.get(session)
        told = seen.entries[after:last] if seen is not None else []
        return [told_of(one.id, one.payload) for one in told if one.type == EVENT_MSG]

    def is_of_queue(self, session: str, told: Told) -> bool:
        """Whether the queue alone has an event: most deltas, and what other sessions tell, are in no log.

        What a client reads late may have been told of a log that Redis has lost since.
        """
        return told not in self._logged[session]

    def broken(self, rule: str, seen: str) -> None:
        self._watch.broken(rule, seen)

    def saw(self, case: str) -> None:
        self._watch.reach.saw(case)

    def dialect(self, ears: Ears, message: Mapping[str, Any], *, versioned: bool) -> None:
        """The rule `dialect`, of a message to a client that says its version, or does not."""
        if versioned and str(message.get("method", "")).endswith(("/delta", "_delta")):
            self.saw("dialect")
        if message.get("jsonrpc") != ("2.0" if versioned else None):
            self.broken("dialect", f"{ears.whose} ({versioned}) is told {message!r:.200}")

    def answers(self, ears: Ears, session: str, call: str, agent: int = 0) -> None:
        """A client answers a request that is open, as far as it knows."""
        self.answering()
        self.given.append(Given(ears, session, call, agent, self.now_s, self._rewinds))

    def _delivered(self, session: str, sender: str, call: str, agent: int) -> None:
        meant = [one for one in self.given if (one.session, one.call, one.agent) == (session, call, agent)]
        mine = [one for one in meant if one.ears.whose == sender]
        if mine:
            self.saw("delivered")
            self.given.remove(mine[0])

    def settled(self, ears: Ears, session: str, call: str, agent: int) -> None:
        """A client is told that a request is settled: an answer that crossed that is one to nothing.

        What tells so must have been sent before the answer can have come to its session: a gateway that loses
        an answer, and tells of another one's later, is found.
        """
        crossed = (ears, session, call, agent)
        self.given = [
            one
            for one in self.given
            if (one.ears, one.session, one.call, one.agent) != crossed or ears.sent_s - one.at_s > UNDERWAY_S
        ]

    def _undelivered(self) -> None:
        """Looks for answers that did not arrive, though their connections have lived on since."""
        self.given = [
            one
            for one in self.given
            if one.ears.living and one.ears.whose not in self.revoked_s and one.rewinds == self._rewinds
        ]
        for one in self.given:
            if self.now_s - one.at_s > self.delivered_s and self._awaits(one):
                self.broken(
                    "delivered",
                    f"{one.ears.whose} answered {one.call} of agent {one.agent} of {one.session} in vain",
                )

    def _awaits(self, given: Given) -> bool:
        """Whether a session still waits for an answer: another one may have come before."""
        seen = self._watch.sessions.get(given.session)
        for other in self._watch.sessions.values():
            if given.agent and other.tree == given.session and other.state.facts.agent_id == given.agent:
                seen = other
        return seen is not None and given.call in (self._open(seen) or ())

    # ── moments at which everybody is to know the same ────────────────────────────────────────

    def quiet(self) -> None:
        """At a moment when nothing was written for a while, everybody is asked what is open."""
        now_s = self._watch.now_s
        self._same_ids()
        self._undelivered()
        for session, seen in sorted(self._watch.sessions.items()):
            root = self._watch.sessions.get(seen.tree, seen)
            if self.written_s.get(session, now_s) > now_s - QUIET_S or seen.queue or root.queue:
                continue
            open_now = self._open(seen)
            if open_now is None:
                continue
            listening = [
                ears
                for ears in self.ears
                if ears.living and ears.knows(session, seen.tree) and ears.has_read()
            ]
            if open_now and len([ears for ears in listening if ears.may_answer]) > 1:
                self.saw("put")
            for ears in listening:
                ears.compare(session, seen.tree, open_now)

    def _same_ids(self) -> None:
        """Looks whether two sessions of a tree ask about calls of the same id."""
        asking = Counter(
            (seen.tree, call.call_id)
            for seen in self._watch.sessions.values()
            if seen.state.task is not None
            for call in seen.state.task.requests
        )
        if any(times > 1 for times in asking.values()):
            self.saw("same_ids")

    def _open(self, seen: Seen) -> set[str] | None:
        """The calls about which people are asked; None while the task is being stopped."""
        task = seen.state.task
        if task is None:
            return set()
        return None if task.stopping or task.ending else {call.call_id for call in task.requests}

    def at_rest(self) -> None:
        """At the end every client knows of all turns, and of no open request."""
        self.quiet()
        for ears in self.ears:
            if ears.living:
                ears.at_rest()

    def ended(self, session: str) -> list[str]:
        """The turns of a session's log that have ended."""
        found, running = [], ""
        for entry in self._watch.sessions[session].entries:
            if entry.type != EVENT_MSG:
                continue
            if entry.payload["type"] == "task_started":
                running = entry.id
            elif entry.payload["type"] in ENDS and running:
                found.append(running)
                running = ""
        return found

    def known(self, session: str) -> bool:
        return session in self._watch.sessions

    def unlike(self, session: str, turns: Iterable[Heard]) -> str:
        """How turns that somebody heard are not those of the log; empty if they are."""
        seen = self._watch.sessions[session]
        root = None if seen.state.facts.agent_id == 0 else self._watch.sessions.get(seen.tree)
        return unlike(session, seen, root, turns, self._watch.text)


GIVEN = ("raw_response_item", "collabAgentToolCall")
"""Items that repeat what a model was told of its agents."""


def _tells_place(told: Any) -> bool:
    """Whether words of Dendro name a path of the machine; what a model was given is the tenant's own."""
    if isinstance(told, dict):
        return told.get("type") not in GIVEN and any(map(_tells_place, told.values()))
    if isinstance(told, list):
        return any(map(_tells_place, told))
    return isinstance(told, str) and PLACE in told


class Ears:
    """Everything that one connection was told."""

    def __init__(self, doors: Doors, name: str, principal: Principal, *, asks: bool = True) -> None:
        self._doors, self._name, self._principal, self._asks = doors, name, principal, asks
        self.threads: dict[str, Thread] = {}
        self.conversations: dict[str, Conversation] = {}
        self.living = True
        self.has_read: Callable[[], bool] = lambda: True
        """Whether the client has read all that was sent."""
        self.aborted: dict[tuple[str, str], int] = {}
        """Requests that the client has answered by an end of the turn: the count of rewinds by then."""
        self.sent_s = 0.0
        """When the gateway sent what the client is being told."""
        doors.ears.append(self)

    @property
    def whose(self) -> str:
        """The name under which it submits."""
        return self._principal.name

    def aborts(self, session: str, call: str) -> None:
        """The client answers a request by an end of the turn."""
        self.aborted[session, call] = self._doors.rewinds

    def asked_now(self, id: Any) -> tuple[str, str, int] | None:
        """The session, call and agent of a request that is open, as far as it was told."""
        for thread in self.threads.values():
            if isinstance(id, int) and id in thread.asked:
                return thread.session, thread.asked[id], 0
        for heard in self.conversations.values():
            for (call, agent), known in heard.asked.items():
                if known == id:
                    return heard.session, call, agent
        return None

    @property
    def may_answer(self) -> bool:
        return self._asks and self._principal.may(Scope.APPROVE)

    def received(self, data: bytes, named: str = "") -> None:
        """A message; `named` is what the client itself had asked for, where it is an answer."""
        if self._principal.namespace and PLACE.encode() in data and _tells_place(orjson.loads(data)):
            self._doors.broken("apart", f"{self._name} got a path of the machine: {data[:300]!r}")
        for session in self._doors.foreign(self._principal.namespace):
            if session != named and session.encode() in data:
                self._doors.broken(
                    "apart", f"{self._name} of {self._principal.namespace!r} got {data[:300]!r}"
                )

    # ── threads ───────────────────────────────────────────────────────────────────────────────

    def subscribed(self, session: str, turns: list[Mapping[str, Any]]) -> None:
        """The answer to `thread/start` or `thread/resume`: the thread is heard from here on."""
        if session in self.threads:
            return
        heard = self.threads[session] = Thread(session, self._doors.now_s)
        heard.ended = [turn["id"] for turn in turns if turn["status"] != "inProgress"]
        heard.running = next((turn["id"] for turn in turns if turn["status"] == "inProgress"), "")

    def left(self, session: str) -> None:
        """The thread is not heard any more."""
        self.threads.pop(session, None)

    def adopted(self, session: str) -> None:
        """An agent's thread is heard from now on."""
        self.threads.setdefault(session, Thread(session, self._doors.now_s))

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification of version 2."""
        session = params.get("threadId")
        if not isinstance(session, str) or not method.startswith(("turn/", "item/", "warning", "serverReq")):
            return
        heard = self.threads.get(session)
        if method == "warning" and params.get("message") not in GAP_TEXTS.values():
            return
        if heard is None:
            self._broken("heard", session, f"does not hear the thread, and is told {method}")
            return
        match method:
            case "warning":
                self._warned(heard, str(params.get("message")))
            case "turn/started":
                self._begins(heard, params["turn"])
            case "turn/completed":
                self._ends(heard, params["turn"])
            case "item/started" | "item/completed":
                self._item(heard, params, done=method == "item/completed")
            case "serverRequest/resolved":
                self._resolved(heard, params["requestId"])
            case _ if method.endswith(("elta", "Delta")):
                key = (params["turnId"], params["itemId"])
                if heard.items.get(key) and method == "item/agentMessage/delta":
                    self._broken("heard", session, f"is told more of {key}, which was complete")
                if method == "item/agentMessage/delta" and key in heard.pieces:
                    heard.pieces[key] += params["delta"]

    def _warned(self, heard: Thread, message: str) -> None:
        if message not in GAP_TEXTS.values():
            return
        self._doors.saw("heard")
        heard.joined = heard.gaps = True
        heard.begun = {id: turn for id, turn in heard.begun.items() if turn.status}
        heard.items.clear()
        heard.pieces.clear()
        heard.settled.clear()
        if message == GAP_TEXTS["rewound"]:
            heard.running = ""
            heard.ended.clear()

    def _begins(self, heard: Thread, told: Mapping[str, Any]) -> None:
        turn = told["id"]
        heard.begun[turn] = Heard(turn, told["rootTurnId"])
        if turn in heard.ended or (turn == heard.running and not heard.joined):
            self._broken("heard", heard.session, f"is told twice that turn {turn} begins")
        if heard.running and not heard.joined:
            self._broken("heard", heard.session, f"is told of {turn}, and {heard.running} has not ended")
        heard.running, heard.joined = turn, False

    def _ends(self, heard: Thread, told: Mapping[str, Any]) -> None:
        turn = told["id"]
        if turn in heard.begun:
            heard.begun[turn].ends(told)
        if turn in heard.ended:
            self._broken("heard", heard.session, f"is told twice that turn {turn} ends")
        if turn != heard.running and not heard.joined:
            self._broken("heard", heard.session, f"is told that {turn} ends, and {heard.running} runs")
        heard.ended.append(turn)
        heard.running, heard.joined = "", False

    def _item(self, heard: Thread, params: Mapping[str, Any], *, done: bool) -> None:
        turn, item = params["turnId"], params["item"]["id"]
        if not heard.joined and turn != heard.running:
            self._broken(
                "heard", heard.session, f"is told of item {item} of {turn}, and {heard.running} runs"
            )
        known = heard.items.get((turn, item))
        if known is not None and (known or not done):
            self._broken("heard", heard.session, f"is told twice of item {item} of {turn}")
        heard.items[turn, item] = done
        if done and turn in heard.begun:
            heard.begun[turn].items.append(params["item"])
        if params["item"]["type"] != "agentMessage":
            return
        if not done:
            heard.pieces[turn, item] = ""
        elif (turn, item) in heard.pieces:
            told, whole = heard.pieces.pop((turn, item)), params["item"]["text"]
            # A piece may be lost, or late; none comes twice.
            if Counter(told.split(">")) - Counter(whole.split(">")):
                self._broken("heard", heard.session, f"is told {told!r} in pieces, and then {whole!r}")

    def requested(self, id: int, params: Mapping[str, Any]) -> None:
        """A request of version 2."""
        session, item = str(params["threadId"]), str(params["itemId"])
        heard = self.threads.get(session)
        if heard is None or not self.may_answer:
            self._broken("put", session, f"is asked about {item}, and may not answer")
            return
        if item in heard.asked.values():
            self._broken("put", session, f"is asked twice about {item}")
        again = heard.settled[item] and heard.settled[item] >= self._doors.times_asked(session, item)
        if item in heard.early:
            heard.early.remove(item)
        elif again and not self._doors.is_open(session, item):
            self._broken("put", session, f"is asked about {item}, which was settled")
        heard.asked[id] = item

    def _resolved(self, heard: Thread, id: int) -> None:
        item = heard.asked.pop(id, None)
        if item is None:
            self._broken("put", heard.session, f"is told that {id} is settled, which is not open")
        else:
            heard.settled[item] += 1
            if self._doors.is_open(heard.session, item):
                heard.early.add(item)
            self._doors.settled(self, heard.session, item, 0)

    # ── conversations ─────────────────────────────────────────────────────────────────────────

    def listens(self, session: str) -> None:
        """The answer to `addConversationListener`."""
        self.conversations.setdefault(session, Conversation(session))

    def told(self, session: str, id: str, message: Mapping[str, Any]) -> None:
        """An event of version 1."""
        heard = self.conversations.get(session)
        if heard is None:
            self._broken("heard", session, f"does not listen, and is told {message['type']}")
            return
        if message["type"] == "warning" and message.get("message") in GAP_TEXTS.values():
            self._doors.saw("heard")
            heard.places = None
            if message["message"] == GAP_TEXTS["rewound"]:
                heard.asked.clear()
            return
        if id or message["type"] not in ASKING:
            # Without an id it is one that was open when the client came.
            self._goes_on(heard, told_of(id, message))
        agent = message.get("agent_id") or 0
        ends = set[tuple[str, int]]()
        if message["type"] == "request_resolved":
            ends = {(str(message.get("call_id")), agent)}
        elif message["type"] in ENDS:
            ends = {
                key for key, asked in heard.asked.items() if not key[1] and heard.turns[asked] in ("", id)
            }
        for key in ends:
            heard.asked.pop(key, None)
            self._doors.settled(self, session, *key)

    def _goes_on(self, heard: Conversation, told: Told) -> None:
        """Behind a gap entries of the log come, which need not be events of the queue."""
        places = self._doors.follows(heard.session, heard.places, told)
        if places:
            heard.places = places if heard.places is not None else None
            if self._doors.is_of_queue(heard.session, told):
                # What is read from the log is over.
                heard.places = places
        elif heard.places is not None:
            self._broken("heard", heard.session, f"is told {told}, which comes behind none of {heard.places}")

    def demanded(self, id: str, params: Mapping[str, Any]) -> None:
        """A request of version 1."""
        session, agent = str(params["conversationId"]), params.get("agent_id") or 0
        heard = self.conversations.get(session)
        if heard is None or not self.may_answer:
            self._broken("put", session, "is asked, and may not answer")
            return
        key = (call_id_of(params), agent)
        if key in heard.asked:
            self._broken("put", session, f"is asked twice about {key}")
        heard.asked[key] = id
        heard.turns[id] = str(params.get("turn_id") or "")

    # ── comparing ─────────────────────────────────────────────────────────────────────────────

    def knows(self, session: str, tree: str) -> bool:
        """Whether requests of a session are put to this connection, if it may answer."""
        return session in self.threads or tree in self.threads

    def compare(self, session: str, tree: str, open_now: set[str]) -> None:
        """Compares the requests of a session that are open with those that the client has."""
        heard = self.threads.get(session)
        if heard is None:
            root = self.threads.get(tree)
            if root is None or root.gaps or self._doors.went_back:
                return
            if open_now and self.may_answer:
                self._broken("put", session, f"hears its root, and not the agent, which asks {open_now}")
            if self._doors.began_s.get(session, 0.0) > root.since_s:
                self._broken("heard", session, "hears its root, and not the agent, which has begun since")
            return
        have, wanted = set(heard.asked.values()), open_now if self.may_answer else set()
        wanted = wanted - {call for call in wanted - have if self._answer_was_lost(session, call)}
        untold = {call for of, call in self._doors.answered_alone if of == session} - wanted
        if have - untold != wanted:
            self._broken("put", session, f"is asked {sorted(have)}, and open are {sorted(wanted)}")

    def _answer_was_lost(self, session: str, call: str) -> bool:
        """Whether Redis went back behind the client's answer that ends the turn: that was told at once.

        The queue of events need not have lost anything: then nothing shows that the request is open again.
        """
        return self.aborted.get((session, call), self._doors.rewinds) < self._doors.rewinds

    def at_rest(self) -> None:
        """The turns that were told are those of the log, item by item."""
        for session, heard in sorted(self.threads.items()):
            if not self._doors.known(session):
                continue
            logged = self._doors.ended(session)
            missing = [turn for turn in logged if turn not in heard.ended]
            if session in self._doors.namespaces and missing:
                self._broken("heard", session, f"was not told of the ends of {missing}")
            if extra := [turn for turn in heard.ended if turn not in logged]:
                self._broken("heard", session, f"was told that {extra} ended, which the log has not")
            if heard.ended != [turn for turn in logged if turn in heard.ended]:
                self._broken("heard", session, f"was told {heard.ended}, and the log has {logged}")
            if not self._doors.went_back and (wrong := self._doors.unlike(session, heard.begun.values())):
                self._broken("heard", session, f"was told {wrong}")

    def _broken(self, rule: str, session: str, seen: str) -> None:
        self._doors.broken(rule, f"{session}: {self._name} {seen}")
