"""A folded state as bytes: what a resume reads instead of the history before it.

A snapshot is used only if its core version is this one; otherwise the rollout is folded
from the start. `digest` is the state's identity: two folds agree when it does. Where the chain
is keyed, a snapshot bears a code of the same key (`chain.mac`), and one without is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, make_dataclass
from functools import lru_cache
from operator import attrgetter
from threading import Lock
from typing import TypeVar, cast

import orjson

from orchestrator.core import CORE_VERSION
from orchestrator.core.calls import Call, Calls, Phase, spec_of, work_of
from orchestrator.core.chain import mac, same_mac
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, Log
from orchestrator.core.lines import encode_line, read_meta
from orchestrator.core.secrets import SecretAnswer
from orchestrator.core.sender import sender_of, sender_wire
from orchestrator.core.settings import FACTS_EMPTY, NEW_SETTINGS, USUAL_FACTS, SessionFacts, TurnSettings
from orchestrator.core.state import (
    NO_EXTRAS,
    NO_PROCESSES,
    USUAL_PROCESSES,
    USUAL_TASK,
    Answer,
    Branch,
    Elicitation,
    Processes,
    Queued,
    Request,
    Response,
    State,
    Task,
    read_extras,
    without_extras,
    write_extras,
)
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.core.tree import STORED_EMPTY, USUAL_TREE, TreeView, decode_tree
from orchestrator.core.user_turns import UserTurn
from orchestrator.core.workspace import NO_WORKSPACE, USUAL_COPIES, USUAL_WORKSPACE, Workspace
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

R = TypeVar("R")

SAME_SNAPSHOTS = frozenset({4, 5, 6, 7, CORE_VERSION})
"""The versions whose snapshots are what a fold of today gives: they lack look-ups, modes, questions and
senders."""


def encode(state: State, *, again: bool = True) -> bytes:
    """Canonical JSON: equal states are equal bytes.

    `again`: what this state shares with those that follow it is kept for them, and the state with it.
    """
    return _json(_stated(_stored(state, _PARTS if again else _Parts()), _USUAL))


_USUAL: Mapping[str, object] = {
    **USUAL_PROCESSES,
    **USUAL_WORKSPACE,
    "extras": NO_EXTRAS,
    "approved_signed": frozenset(),
}


def _json(value: object) -> bytes:
    return orjson.dumps(value, default=_default, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


class _Parts:
    """JSON of parts of states that the next state mostly has as well: the very same objects."""

    MOST_BYTES = 8 << 20
    MOST = 2_048
    """Parts: small ones are objects of several times the size of their JSON."""
    LARGEST = 1 << 20

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, orjson.Fragment, int]] = {}
        self._size = 0
        self._lock = Lock()

    def of(self, part: R, stored: Callable[[R], object] = lambda part: part) -> R:
        """Stands for the part in what is to be encoded; `stored` is its form there."""
        kept = self._kept.get(id(part))
        if kept is None or kept[0] is not part:
            data = _json(stored(part))
            kept = part, orjson.Fragment(data), len(data)
            if len(data) <= self.LARGEST:
                self._keep(kept)
        return cast(R, kept[1])

    def _keep(self, kept: tuple[object, orjson.Fragment, int]) -> None:
        with self._lock:
            if id(kept[0]) in self._kept:
                return
            # While an object is kept, no other one has its id.
            self._kept[id(kept[0])] = kept
            self._size += kept[2]
            while self._size > self.MOST_BYTES or len(self._kept) > self.MOST:
                _, _, size = self._kept.pop(next(iter(self._kept)))
                self._size -= size


_PARTS = _Parts()


def digest(state: State, *, again: bool = True) -> str:
    """SHA-256 of the canonical form, in hex; `again` as in `encode`."""
    return hashlib.sha256(encode(state, again=again)).hexdigest()


def _stored(state: State, parts: _Parts) -> State:
    """The state with JSON in the place of what has a form of its own in a snapshot."""
    return replace(
        state,
        **_empty_texts(state, _STATE_EMPTY),
        meta={**encode_line(state.meta), **write_extras(state.extras)},
        extras=NO_EXTRAS,
        facts=parts.of(state.facts, _stored_facts),
        settings=parts.of(state.settings, _stored_settings),
        history=Log(parts.of(state.history.chunks), state.history.tail),
        bookmarks=Log(parts.of(state.bookmarks.chunks), state.bookmarks.tail),
        queue=tuple(_waiting(queued) for queued in state.queue),
        task=_stored_task(state.task) if state.task is not None else None,
        tree=parts.of(state.tree, _stored_tree),
        answers=tuple(_stated(answer, {"digest": "", "signed_ms": 0}) for answer in state.answers),
        workspace=_stored_workspace(state.workspace),
    )


def _stored_facts(facts: SessionFacts) -> SessionFacts:
    return _stated(_emptied(facts, FACTS_EMPTY), USUAL_FACTS)


def _stored_settings(settings: TurnSettings) -> TurnSettings:
    return _stated(settings, NEW_SETTINGS)


def _stored_tree(tree: TreeView) -> TreeView:
    return _stated(_emptied(tree, STORED_EMPTY), USUAL_TREE)


def _stored_workspace(known: Workspace) -> Workspace:
    return known if known == NO_WORKSPACE else _stated(known, USUAL_COPIES)


def _stated(record: R, usual: Mapping[str, object]) -> R:
    """The record without the fields that have their usual values, as before there were such fields."""
    unsaid = tuple([name for name, value in usual.items() if getattr(record, name) == value])
    cls: type = type(record)
    stated, values = _without(cls, unsaid)
    return cast(R, stated(*values(record)))


@lru_cache(maxsize=256)
def _without(cls: type, unsaid: tuple[str, ...]) -> tuple[type, Callable[[object], Sequence[object]]]:
    """A record of the other fields of `cls`, in their order as in no mapping, and what reads their values."""
    names = [spec.name for spec in fields(cls) if spec.name not in unsaid]
    return make_dataclass("Stated", names, slots=True), attrgetter(*names)


def _stored_task(task: Task) -> Task:
    asked = tuple(_stated(one, _OLD_REQUEST) for one in task.elicitations)
    stored = replace(
        _emptied(task, _TASK_EMPTY), settings=_stored_settings(task.settings), elicitations=asked
    )
    return _stated(stored, USUAL_TASK)


_STATE_EMPTY = ("closing", "outcome")
_TASK_EMPTY = ("client", "stopping", "ending", "response_id", "failure")
"""Fields whose None is an empty text in a snapshot."""


def _emptied(record: R, names: tuple[str, ...]) -> R:
    return replace(record, **_empty_texts(record, names))


def _empty_texts(record: object, names: tuple[str, ...]) -> dict[str, str]:
    return {name: "" for name in names if getattr(record, name) is None}


@record
class _Waiting:
    """`Queued` as a snapshot has it; a record keeps the order of its fields, a mapping would not."""

    id: str
    op: JsonMapping
    client: str
    by: JsonMapping | None


def _waiting(queued: Queued) -> _Waiting:
    waiting = _Waiting(queued.id, queued.turn.wire(), queued.client or "", sender_wire(queued.by))
    return _stated(waiting, {"by": None})


_OLD_REQUEST: Mapping[str, object] = {"request": ""}


@record
class _Kept:
    """`Call` as a snapshot has it."""

    call_id: str
    name: str
    item: JsonMapping
    phase: Phase
    epoch: int
    spec: JsonMapping
    asked_seq: int
    request: str = ""


def _kept(call: Call) -> _Kept:
    spec = spec_of(call.work) if call.work is not None else {}
    place = call.asked_seq, call.request
    return _stated(
        _Kept(call.call_id, call.name, call.item, call.phase, call.epoch, spec, *place), _OLD_REQUEST
    )


def _default(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Calls):
        return [_kept(call) for call in value]
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a state holds a {type(value).__name__}, which has no canonical form")


class Unauthenticated(ValueError):
    """A snapshot that was not written with the chain's key, or was changed since."""


def encode_snapshot(state: State, seq: int, head: bytes, secret: bytes = b"", *, again: bool = True) -> bytes:
    """The state folded through `seq`, where the chain's head was `head`; authenticated if there is a key.

    `again` as in `encode`.
    """
    place: JsonObject = {"core": CORE_VERSION, "seq": seq, "head": head.hex()}
    body = encode(state, again=again)
    if secret:
        place["mac"] = mac(secret, "snapshot", orjson.dumps(place), body)
    return orjson.dumps(place) + b"\n" + body


def decode_snapshot(data: bytes, secret: bytes = b"") -> tuple[State, int, bytes] | None:
    """(state, seq, head); None if another core version wrote it, so that the log has to be folded.

    Raises `Unauthenticated` if the snapshot is not what was written with the key, or without one; another
    `ValueError` for what is no snapshot.
    """
    first, _, body = data.partition(b"\n")
    place = orjson.loads(first)
    if not isinstance(place, dict):
        raise ValueError("its first line is not an object")
    found = place.pop("mac", "")
    if found and not secret:
        # Work that this process would add could not be verified with the key, nor the log before it without.
        raise Unauthenticated("it was written with a chain key, and none is configured here")
    if secret and not found:
        raise Unauthenticated(
            "it bears no code of the chain's key: an older version wrote it, or somebody else"
        )
    if secret and not same_mac(str(found), mac(secret, "snapshot", orjson.dumps(place), body)):
        raise Unauthenticated("it was changed, or written with another chain key")
    if place["core"] not in SAME_SNAPSHOTS:
        return None
    return decode(body), int(place["seq"]), bytes.fromhex(place["head"])


def decode(data: bytes) -> State:
    """The state that `encode` wrote; raises `ValueError` for anything else."""
    wire = orjson.loads(data)
    try:
        return _state(wire)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a snapshot of core version {CORE_VERSION}: {error}") from error


def _state(wire: JsonObject) -> State:
    return State(
        **_plain(wire, State, skip=_STATE_NESTED, empty=_STATE_EMPTY),
        meta=read_meta(without_extras(wire["meta"])),
        extras=read_extras(wire["meta"]),
        facts=SessionFacts.of(wire["facts"]),
        settings=TurnSettings.of(wire["settings"]),
        history=_log(wire["history"]),
        kept_user_texts=tuple(wire["kept_user_texts"]),
        task=_task(wire["task"]) if wire["task"] else None,
        queue=tuple(_queued(waiting) for waiting in wire["queue"]),
        tokens=_tokens(wire["tokens"]) if wire["tokens"] else None,
        told=_tokens(wire["told"]) if wire["told"] else None,
        last_response=Response(**wire["last_response"]) if wire["last_response"] else None,
        bookmarks=Log(
            tuple(tuple(_mark(mark) for mark in chunk) for chunk in wire["bookmarks"]["chunks"]),
            tuple(_mark(mark) for mark in wire["bookmarks"]["tail"]),
        ),
        approved=frozenset(wire["approved"]),
        approved_signed=frozenset(wire.get("approved_signed", ())),
        granted_roots=tuple(wire["granted_roots"]),
        answers=tuple(Answer(**answer) for answer in wire["answers"]),
        tree=decode_tree(wire["tree"]),
        processes=Processes.of(wire["processes"]) if "processes" in wire else NO_PROCESSES,
        workspace=Workspace.of(wire["workspace"]) if "workspace" in wire else NO_WORKSPACE,
    )


_STATE_NESTED = frozenset(
    {
        "meta",
        "extras",
        "facts",
        "settings",
        "history",
        "kept_user_texts",
        "task",
        "queue",
        "tokens",
        "told",
        "last_response",
        "bookmarks",
        "approved",
        "approved_signed",
        "granted_roots",
        "answers",
        "tree",
        "processes",
        "workspace",
    }
)


def _plain(wire: JsonObject, cls: type, skip: frozenset[str], empty: tuple[str, ...]) -> JsonObject:
    plain = {spec.name: wire[spec.name] for spec in fields(cls) if spec.name not in skip}
    return {**plain, **{name: plain[name] or None for name in empty}}


def _queued(wire: JsonObject) -> Queued:
    return Queued(wire["id"], UserTurn.of(wire["op"]), wire["client"] or None, sender_of(wire.get("by")))


def _mark(mark: Sequence[JsonValue]) -> tuple[str, int]:
    return mark[0], mark[1]


def _log(wire: JsonObject) -> Log[Item]:
    return Log(tuple(tuple(chunk) for chunk in wire["chunks"]), tuple(wire["tail"]))


def _tokens(wire: JsonObject) -> TokenInfo:
    return TokenInfo(Usage(**wire["total"]), Usage(**wire["last"]))


_TASK_NESTED = frozenset(
    {"settings", "request", "calls", "steered", "usage", "branch", "secrets", "elicitations"}
)


def _task(wire: JsonObject) -> Task:
    return Task(
        **_plain({**USUAL_TASK, **wire}, Task, skip=_TASK_NESTED, empty=_TASK_EMPTY),
        settings=TurnSettings.of(wire["settings"]),
        request=Request(**wire["request"]) if wire["request"] else None,
        usage=Usage(**wire["usage"]) if wire["usage"] else None,
        calls=Calls(_call(call) for call in wire["calls"]),
        steered=tuple(wire["steered"]),
        secrets=tuple(SecretAnswer(**secret) for secret in wire.get("secrets", ())),
        branch=_branch(wire["branch"]) if wire.get("branch") else None,
        elicitations=tuple(Elicitation(**asked) for asked in wire.get("elicitations") or ()),
    )


def _branch(wire: JsonObject) -> Branch:
    return Branch(
        TurnSettings.of(wire["settings"]),
        _log(wire["items"]),
        tuple(wire["opening"]),
        tuple(wire["kept_user_texts"]),
        wire["compacted"],
        Usage(**wire["last_usage"]) if wire["last_usage"] else None,
        Usage(**wire["last_told"]) if wire.get("last_told") else None,
        tuple(wire.get("told_folders") or ()),
    )


def _call(wire: JsonObject) -> Call:
    kept = _Kept(**wire)
    return Call(
        CallId(kept.call_id),
        kept.name,
        kept.item,
        Phase(kept.phase),
        kept.epoch,
        work_of(kept.spec),
        kept.asked_seq,
        kept.request,
    )
