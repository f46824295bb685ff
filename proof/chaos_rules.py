"""Rules of a chaos run: three ledgers, each written by its owner, held against the logs at rest.

*Promised* is what clients were told, *injected* what the driver did to the deployment, *done* what commands
say of themselves. Pure. Each rule counts what it judged: one that judged nothing fails the run, and for each
there is a run spoiled by hand (`SPOILED`) that it refuses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from orchestrator.core.chain import GENESIS, next_chain, payload_digest

TRUST_S = 6.0
"""Seconds for which a holder that was forgotten may go on: its lease."""
REST_S = 60.0
"""Seconds behind the last fault within which everything has come to rest."""
LEAVES_S = 30.0
"""Seconds within which a worker that is told to leave has left, whatever is away meanwhile."""
LOGGED = frozenset(
    ("task_started", "task_complete", "turn_aborted", "exec_command_begin", "exec_command_end")
)
"""Events that both a log and its follower are asked about."""
LOSSES = ("promises", "begins", "claims")
"""What Redis may forget: what it acknowledged, that a command has begun, who holds a session."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A submission that a client was told is kept."""

    session: str
    id: str
    at: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was injected, from its begin to its end; `loses`: what of `LOSSES` Redis may forget.

    Times are CLOCK_BOOTTIME, as in all ledgers.
    """

    kind: str
    target: str
    began: float
    ended: float
    loses: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """A client left for another gateway while it was asked about an item; whether it was asked there, too."""

    session: str
    item: str
    left_at: float
    noted_at: float
    asked: bool


@dataclass
class Shown:
    """The events that a follower was shown, up to its last place, and what came behind that."""

    place: Any
    events: list[tuple[str, str]] = field(default_factory=list)
    _sure: int = 0

    def takes(self, type: str, id: str, cursor: object) -> None:
        """Notes an event; one that is read from the log has no cursor."""
        if type in LOGGED:
            self.events.append((type, id))
        if cursor is not None:
            self.place, self._sure = cursor, len(self.events)

    def comes_back(self) -> None:
        """Begins again at its last place, where it is told again what came behind that."""
        del self.events[self._sure :]

    def begins_anew(self) -> None:
        """Forgets all: it was told that Redis went back, and the log follows from its beginning."""
        self.events.clear()
        self._sure = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that a command wrote: that it begins, or ends."""

    id: str
    what: str
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log, as far as a chain needs it."""

    seq: int
    epoch: int
    salt: bytes
    payload: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class Log:
    """A session at rest."""

    entries: tuple[Entry, ...]
    head: bytes
    told: tuple[tuple[str, str], ...]
    """Events of the log in order: type and id of the turn."""
    ended_well: frozenset[str] = frozenset()
    """Commands, by the id that they write, whose end with 0 stands in the log."""


@dataclass(frozen=True, slots=True)
class Record:
    """All of a run."""

    promised: tuple[Promise, ...]
    seen: Mapping[str, tuple[tuple[str, str], ...]]
    """Events by session, as its follower saw them."""
    injected: tuple[Fault, ...]
    done: tuple[Mark, ...]
    logs: Mapping[str, Log]
    rested_s: float
    """Seconds behind the last fault until everything was at rest; more than `REST_S` if it never was."""
    left: tuple[str, ...] = ()
    """What was still there at the end: processes, keys of work."""
    living: frozenset[int] = frozenset()
    """Processes of commands that live at the end."""
    returns: tuple[Return, ...] = ()
    drained: tuple[float | None, ...] = ()
    """Seconds that each worker took to leave; None for one that did not."""
    parts: int = 0
    """Processes of the product."""
    died: tuple[str, ...] = ()
    """Those of them that ended by themselves."""

    def forgotten(self, at: float, what: str = "promises") -> bool:
        """Whether Redis may have forgotten what it was told then."""
        return any(what in fault.loses and fault.began - 3.0 <= at <= fault.ended for fault in self.injected)

    def forgot_claims(self, at: float) -> bool:
        """Whether a session's holder may have been forgotten just before, and go on."""
        return any(
            "claims" in fault.loses and fault.began <= at <= fault.ended + TRUST_S for fault in self.injected
        )


@dataclass
class Verdict:
    """What rules have judged, and what they refuse."""

    judged: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


ENDS = ("task_complete", "turn_aborted")
"""Ends of a turn."""
Rule = Callable[[Record, Counter[str]], Iterator[str]]


def one_outcome(record: Record, judged: Counter[str]) -> Iterator[str]:
    """Every acknowledged submission has one outcome, unless Redis was made to forget it."""
    for promise in record.promised:
        told = record.logs[promise.session].told if promise.session in record.logs else ()
        times = sum(type in ENDS and id == promise.id for type, id in told)
        # What is refused has an error, and no turn.
        times = times or int(("error", promise.id) in told)
        judged["one_outcome"] += 1
        if times > 1 or (times == 0 and not record.forgotten(promise.at)):
            last = ", ".join(type for type, _ in told[-4:])
            yield f"{promise.id} of {promise.session} was acknowledged and has {times} outcomes ({last})"


def begun_once(record: Record, judged: Counter[str]) -> Iterator[str]:
    """A command begins at most once, unless Redis was made to forget that it did."""
    begun: defaultdict[str, list[Mark]] = defaultdict(list)
    for mark in record.done:
        if mark.what == "begin":
            begun[mark.id].append(mark)
    for id, marks in begun.items():
        judged["begun_once"] += 1
        if len(marks) > 1 and not any(record.forgotten(mark.at, "begins") for mark in marks):
            yield f"command {id} was begun {len(marks)} times, at {', '.join(f'{m.at:.1f}' for m in marks)}"


def ended_as_told(record: Record, judged: Counter[str]) -> Iterator[str]:
    """A command that ended with 0, as the log has it, has written its end."""
    ends = Counter(mark.id for mark in record.done if mark.what == "end")
    for session, log in record.logs.items():
        for id in log.ended_well:
            judged["ended_as_told"] += 1
            if not ends[id]:
                yield f"command {id} of {session} ended with 0 in the log, and has written no end"


def none_beside(record: Record, judged: Counter[str]) -> Iterator[str]:
    """No command begins while another one of its session runs, but behind a server that forgot its holder.

    One that was killed writes no end: whoever writes it behind the begin of another one has run beside it.
    """
    began: defaultdict[str, dict[tuple[str, int], list[Mark]]] = defaultdict(dict)
    for mark in sorted(record.done, key=lambda mark: mark.at):
        session = mark.id.partition("/")[0]
        open_ = began[session]
        judged["none_beside"] += 1
        if mark.what == "begin":
            for since in open_.values():
                since.append(mark)
            open_[mark.id, mark.pid] = []
            continue
        for other in open_.pop((mark.id, mark.pid), ()):
            if not record.forgot_claims(other.at):
                yield f"commands {mark.id} and {other.id} of {session} ran at once"


def killed_is_dead(record: Record, judged: Counter[str]) -> Iterator[str]:
    """A command whose end was never written is dead at the end."""
    ended = {(mark.id, mark.pid) for mark in record.done if mark.what == "end"}
    for mark in record.done:
        if mark.what == "begin" and (mark.id, mark.pid) not in ended:
            judged["killed_is_dead"] += 1
            if mark.pid in record.living:
                yield f"command {mark.id} (process {mark.pid}) was given up, and lives"


def chains_hold(record: Record, judged: Counter[str]) -> Iterator[str]:
    """The chain of each log is whole, and ends at its head."""
    for session, log in record.logs.items():
        judged["chains_hold"] += 1
        head = GENESIS
        for seq, entry in enumerate(log.entries, 1):
            head = next_chain(head, entry.seq, entry.epoch, payload_digest(entry.salt, entry.payload))
            if entry.seq != seq or head != entry.chain:
                yield f"{session}: entry {seq} breaks the chain"
                break
        else:
            if head != log.head:
                yield f"{session}: the head is not that of the last entry"


def live_as_replayed(record: Record, judged: Counter[str]) -> Iterator[str]:
    """A follower was shown the events of the log: all of them, each once, in its order.

    Where Redis went back it was told so, and what it was shown before counts for nothing.
    """
    for session, seen in record.seen.items():
        log = record.logs.get(session)
        if log is None:
            # Redis has forgotten the session.
            continue
        judged["live_as_replayed"] += 1
        wanted = [event for event in log.told if event[0] in LOGGED]
        for at, (shown, told) in enumerate(zip_longest(seen, wanted)):
            if shown != told:
                yield f"{session}: was shown {shown} as event {at}, and the log has {told} of {len(wanted)}"
                break


def asked_again(record: Record, judged: Counter[str]) -> Iterator[str]:
    """Who comes to another gateway while it is asked about something is asked there, too."""
    for one in record.returns:
        judged["asked_again"] += 1
        if not one.asked and not any(record.forgotten(at) for at in (one.left_at, one.noted_at)):
            took = one.noted_at - one.left_at
            yield f"{one.session}: nobody was asked again about {one.item} within {took:.0f} s"


def leaves_in_time(record: Record, judged: Counter[str]) -> Iterator[str]:
    """A worker that is told to leave has left soon."""
    for took in record.drained:
        judged["leaves_in_time"] += 1
        if took is None or took > LEAVES_S:
            yield f"a worker did not leave within {LEAVES_S:.0f} s: {took and round(took)} s"


def nobody_dies(record: Record, judged: Counter[str]) -> Iterator[str]:
    """No process of the product ends by itself, whatever is away."""
    judged["nobody_dies"] += record.parts
    yield from record.died


def at_rest(record: Record, judged: Counter[str]) -> Iterator[str]:
    """Everybody is at rest soon after the last fault."""
    judged["at_rest"] += 1
    if record.rested_s > REST_S:
        yield f"not at rest {record.rested_s:.0f} s after the last fault"


def nothing_left(record: Record, judged: Counter[str]) -> Iterator[str]:
    """Nothing is left: processes, claims, queues."""
    judged["nothing_left"] += 1
    for line in record.left:
        yield f"left: {line}"


RULES: tuple[Rule, ...] = (
    one_outcome,
    begun_once,
    ended_as_told,
    none_beside,
    killed_is_dead,
    chains_hold,
    live_as_replayed,
    asked_again,
    leaves_in_time,
    nobody_dies,
    at_rest,
    nothing_left,
)


def judge(record: Record, *, seldom: frozenset[str] = frozenset()) -> Verdict:
    """Holds every rule against a run; `seldom` are rules that may have nothing to judge in it."""
    verdict = Verdict()
    for rule in RULES:
        verdict.broken += [f"{rule.__name__}: {line}" for line in rule(record, verdict.judged)]
        if not verdict.judged[rule.__name__] and rule.__name__ not in seldom:
            verdict.broken.append(f"{rule.__name__}: judged nothing")
    return verdict


# ── spoiled runs ──────────────────────────────────────────────────────────────────────────────────


def _session(record: Record) -> str:
    return next(session for session, log in record.logs.items() if len(log.entries) > 1)


def _with_log(record: Record, session: str, **changes: object) -> Record:
    log = replace(record.logs[session], **changes)  # type: ignore[arg-type]
    return replace(record, logs={**record.logs, session: log})


def _outcome_gone(record: Record) -> Record:
    promise = next(one for one in record.promised if not record.forgotten(one.at))
    told = tuple(
        e for e in record.logs[promise.session].told if e[1] != promise.id or e[0] not in (*ENDS, "error")
    )
    # Its follower was shown as little.
    shown = tuple(event for event in told if event[0] in LOGGED)
    seen = {name: shown if name == promise.session else events for name, events in record.seen.items()}
    return replace(_with_log(record, promise.session, told=told), seen=seen)


def _begun_again(record: Record) -> Record:
    late = max(mark.at for mark in record.done) + 1e6
    marks = (Mark("s/again", what, -pid, late + pid) for pid in (1, 2) for what in ("begin", "end"))
    return replace(record, done=(*record.done, *marks))


def _end_gone(record: Record) -> Record:
    id = next(id for log in record.logs.values() for id in sorted(log.ended_well))
    return replace(record, done=tuple(m for m in record.done if (m.id, m.what) != (id, "end")))


def _beside(record: Record) -> Record:
    first = next(mark for mark in record.done if mark.what == "begin")
    late = max(mark.at for mark in record.done) + 1e6
    other = f"{first.id.partition('/')[0]}/other"
    marks = (
        Mark("s", "begin", 1, late),
        replace(first, id=f"{other}1", pid=-1, at=late),
        replace(first, id=f"{other}2", pid=-2, at=late + 1),
        Mark(f"{other}1", "end", -1, late + 2),
    )
    return replace(record, done=(*record.done, *marks[1:]))


def _lives(record: Record) -> Record:
    mark = Mark("s/never-ended", "begin", 4, 0.0)
    return replace(record, done=(*record.done, mark), living=frozenset((4,)))


def _entry_changed(record: Record) -> Record:
    session = _session(record)
    first, *others = record.logs[session].entries
    return _with_log(record, session, entries=(replace(first, payload=first.payload + b" "), *others))


def _shown_otherwise(record: Record) -> Record:
    return replace(record, seen={_session(record): (("task_complete", "never"),)})


def _never_asked(record: Record) -> Record:
    return replace(record, returns=(Return("s", "item", -1e6, -1e6, asked=False),))


SPOILED: Mapping[str, Callable[[Record], Record]] = {
    "one_outcome": _outcome_gone,
    "begun_once": _begun_again,
    "ended_as_told": _end_gone,
    "none_beside": _beside,
    "killed_is_dead": _lives,
    "chains_hold": _entry_changed,
    "live_as_replayed": _shown_otherwise,
    "asked_again": _never_asked,
    "leaves_in_time": lambda record: replace(record, drained=(None,)),
    "nobody_dies": lambda record: replace(record, died=("a worker ended",), parts=1),
    "at_rest": lambda record: replace(record, rested_s=REST_S + 1),
    "nothing_left": lambda record: replace(record, left=("a claim",)),
}
"""For each rule a run that it has to refuse, made of one that is fine."""


def deaf(record: Record, seldom: Collection[str] = ()) -> list[str]:
    """The rules that do not refuse their spoiled run.

    Of those in `seldom` a run may have nothing that could be spoiled so.
    """
    found = []
    for name, spoil in SPOILED.items():
        try:
            told = judge(spoil(record)).broken
        except (StopIteration, ValueError):
            if name in seldom:
                continue
            told = []
        if not any(line.startswith(f"{name}: ") and "judged nothing" not in line for line in told):
            found.append(name)
    return found
