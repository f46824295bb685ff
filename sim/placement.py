"""The rules of places: which machine may take a portable session, and for how long others leave it.

What is unsaved, and where, is read from the logs; when a machine was heard from, from heartbeats. Neither is
what the script goes by, which reads the session's hash, nor what a worker knows of machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import orjson

from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.worker_state import SILENT_MS
from orchestrator.core.workspace import Workspace
from sim.double import Double
from sim.folders import Folders
from sim.observer import Observer

ROOMLESS = 17
"""The place of a claim's word that its worker makes no folders."""
BEATS_S = 8.0
"""Heartbeats of a worker that is there come every 5 s."""
PLACED = frozenset({"claim", "heartbeat", "revoke"})
"""Scripts that the rules go by, beside commits."""
SILENT_S = SILENT_MS / 1000
LATE_S = 60.0
"""For so long heartbeats and persons' words that Redis has forgotten are missed."""
ON_ITS_WAY_S = 12.0
"""For so long a claim may be on its way whose sender found a machine gone."""
LEFT_S = 5.0
"""A second; and for as long may an answer be on its way."""
PATIENCE_S = 12.0
"""A worker that is told to leave a session asks for heartbeats, and then again: its answers may be late."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A worker's last word of itself."""

    host: str
    pools: tuple[str, ...]
    fits: bool
    """Whether it makes folders, and takes sessions."""
    since_s: float
    """Since when it has said so at each heartbeat, and missed none."""
    heard_s: float
    redis_s: float


class Placement:
    """Sessions, machines and persons, as far as claims depend on them."""

    def __init__(self, watch: Observer, double: Double, keys: Keys, folders: Folders) -> None:
        self._watch, self._double, self._keys, self._folders = watch, double, keys, folders
        self._beats: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By host and worker: the last heartbeat, by Redis's clock."""
        self._gone_s: dict[str, float] = {}
        """When a host was gone last."""
        self._left_s: dict[str, tuple[float, float]] = {}
        """When a session was left first since it was claimed, or since the clock was set back behind that;
        and how far Redis's clock was ahead then."""
        self._forsaken_s: dict[str, float] = {}
        """The same, since its machine is gone or its changes were given up."""
        self._told: dict[str, _Told] = {}
        """The last word of each worker about itself."""
        self._fit_s: dict[tuple[str, tuple[str, ...]], float] = {}
        """By host and pools: when a worker was heard last that makes folders."""
        self._given_up: dict[str, tuple[str, float]] = {}
        """The person who gave a session's unsaved changes up, and when, until its log says so."""

    def wrote(self, name: str, words: Sequence[Any], reply: Any, session: str) -> None:
        """Holds what a script has done against the rules."""
        code = reply[0]
        if name == "heartbeat" and code == b"OK":
            self._heard(words)
        elif name == "claim" and code == b"LEFT" and int(words[ROOMLESS]):
            self._passed_over(session, _text(words[2]))
        elif name == "claim" and code == b"LEFT":
            self._left(session)
        elif name == "claim" and code == b"OK" and _text(words[7]) != "parked":
            self._had_room(session, words)
            self._claimed(session, _text(words[2]))
        elif name == "revoke" and code == b"OK" and _text(words[-1]):
            self._gives_up(_text(words[-3]), _text(words[-1]), reply)

    def agrees(self, session: str) -> None:
        """A commit was accepted: the hash says of the folder what the log says."""
        known, data = self._known(session), self._double.hash(self._keys.session(session))
        if known is None or b"unsaved" not in data:
            return
        said = data[b"unsaved"] == b"1", data[b"copy_on"].decode()
        if said[0] != (known.unsaved is not None) or (known.unsaved and said[1] != known.unsaved.machine):
            self._watch.broken("placed", f"{session}: its hash says {said}, its log {known.unsaved}")

    def told(self, session: str, by: str) -> None:
        """An entry says that a folder fell back, and who gave its changes up."""
        who, _ = self._given_up.pop(session, ("", 0.0))
        if by and by != who and not self.is_excused():
            self._watch.broken("given_up", f"{session}: {by} is said to have given changes up")
        if by:
            self._watch.reach.saw("given_up")

    def saved(self, session: str) -> None:
        """An entry says that a folder's changes are stored."""
        if session in self._given_up and not self.is_excused():
            self._watch.broken("given_up", f"{session}: {self._given_up[session]} gave up what is stored now")
        self._given_up.pop(session, None)

    # ── machines ──────────────────────────────────────────────────────────────────────────────

    def _heard(self, words: Sequence[Any]) -> None:
        worker, state = _text(words[0]), orjson.loads(words[1])
        host = state.get("machine_id", "")
        self._is_gone(host)
        if int(words[2]):
            self._beats[host].pop(worker, None)
            self._told.pop(worker, None)
        else:
            self._beats[host][worker] = self._watch.redis_s
            self._says(worker, host, state)

    def _is_gone(self, host: str) -> bool:
        """Whether no worker of the host was heard from lately; notes when that was so."""
        last = max(self._beats[host].values(), default=-inf)
        gone = self._watch.redis_s - last >= SILENT_S
        if gone:
            self._gone_s[host] = self._watch.now_s
        return gone

    # ── room ──────────────────────────────────────────────────────────────────────────────────

    def _says(self, worker: str, host: str, state: dict[str, Any]) -> None:
        fits = not state.get("unfit") and not state.get("draining")
        now_s, redis_s, pools = self._watch.now_s, self._watch.redis_s, tuple(state["pools"])
        before = self._told.get(worker)
        same = before is not None and before.fits == fits and 0 <= redis_s - before.redis_s <= BEATS_S
        since_s = before.since_s if before is not None and same else now_s
        self._told[worker] = _Told(host, pools, fits, since_s, now_s, redis_s)
        if fits:
            self._fit_s[host, pools] = now_s
        # What it says now it has looked at behind its last word.
        full_s, last_s = self._folders.full.get(host, inf), before.heard_s if before is not None else -inf
        if fits and full_s + ON_ITS_WAY_S < last_s and not self.is_excused():
            self._watch.broken("roomy", f"{worker} has room, and {host} has had none since {full_s:.1f} s")

    def _passed_over(self, session: str, worker: str) -> None:
        """A worker without room has left a session to others."""
        self._watch.reach.saw("roomy")
        now_s, own, host = self._watch.now_s, self._told.get(worker), self._folders.host_of(worker)
        if own is None or own.heard_s < now_s - BEATS_S:
            # It has stood still, and goes by what it knew before.
            return
        late_s = now_s - SILENT_S - ON_ITS_WAY_S
        pool = self._pool(session)
        others = (at for (there, pools), at in self._fit_s.items() if there != host and pool in pools)
        if not self.is_excused() and all(at < late_s for at in others):
            self._watch.broken("taken", f"{session} is left by {worker}, and no other machine has room")

    def _had_room(self, session: str, words: Sequence[Any]) -> None:
        """A portable session was claimed: its worker has room, or no other, or alone has its changes."""
        seen, worker = self._watch.sessions.get(session), _text(words[2])
        if seen is None or seen.state.facts.portable is None or self.is_excused():
            return
        host, unsaved = self._folders.host_of(worker), seen.state.workspace.unsaved
        if unsaved is not None and unsaved.machine == host:
            return
        # An adopted one needs no folder to be told what waits for it; it is not claimed as the next one.
        knew = _text(words[7]) == "next" and self._knew_of_room(worker, host, seen.pool)
        if int(words[ROOMLESS]) or knew:
            self._watch.broken("roomy", f"{session}: {worker} takes it, and {host} has no room for folders")

    def _knew_of_room(self, worker: str, host: str, pool: str) -> bool:
        """Whether a worker whose machine has no room must have known that another machine has some."""
        now_s, own, full_s = self._watch.now_s, self._told.get(worker), self._folders.full.get(host)
        known_s = now_s - ON_ITS_WAY_S
        if own is None or own.fits or own.since_s > known_s or full_s is None:
            return False
        others = (one for one in self._told.values() if one.host != host and pool in one.pools)
        return any(one.fits and one.since_s < known_s and one.heard_s > now_s - BEATS_S for one in others)

    def _pool(self, session: str) -> str:
        seen = self._watch.sessions.get(session)
        return seen.pool if seen is not None else ""

    # ── claims ────────────────────────────────────────────────────────────────────────────────

    def _claimed(self, session: str, worker: str) -> None:
        known, now_s = self._known(session), self._watch.now_s
        if self._left_s.pop(session, None) is not None:
            self._watch.reach.saw("taken")
        self._forsaken_s.pop(session, None)
        if known is None or known.unsaved is None or self.is_excused():
            return
        there, host = known.unsaved.machine, self._folders.host_of(worker)
        was_gone = self._is_gone(there) or self._gone_s.get(there, -inf) > now_s - ON_ITS_WAY_S
        if host != there and session not in self._given_up:
            self._watch.reach.saw("moved_on")
        if host != there and not was_gone and session not in self._given_up:
            self._watch.broken("placed", f"{session}: {worker} on {host} takes what is unsaved on {there}")

    def _left(self, session: str) -> None:
        known, now_s = self._known(session), self._watch.now_s
        if known is None or self.is_excused():
            self._left_s[session] = now_s, self._ahead_s
            self._forsaken_s.pop(session, None)
            return
        first_s, ahead_s = self._left_s.setdefault(session, (now_s, self._ahead_s))
        if self._ahead_s < ahead_s:
            first_s, _ = self._left_s[session] = now_s, self._ahead_s
        if known.unsaved is None:
            if now_s - first_s > LEFT_S:
                self._watch.broken("taken", f"{session} is left for {now_s - first_s:.1f} s, and is saved")
            return
        self._watch.reach.saw("placed")
        if session in self._given_up:
            self._watch.broken("taken", f"{session} is left, and {self._given_up[session]} gave it up")
        if not self._is_gone(known.unsaved.machine):
            self._forsaken_s.pop(session, None)
            return
        since_s = max(self._forsaken_s.setdefault(session, now_s), self._watch.peace_s)
        if self._watch.peace_s and now_s - since_s > PATIENCE_S:
            self._watch.broken("taken", f"{session} is left to {known.unsaved.machine}, which is gone")

    @property
    def _ahead_s(self) -> float:
        return round(self._watch.redis_s - self._watch.now_s, 3)

    def _gives_up(self, session: str, who: str, reply: Any) -> None:
        if reply[2][0] in (b"free", b"revoked"):
            self._given_up[session] = who, self._watch.now_s

    def _known(self, session: str) -> Workspace | None:
        seen = self._watch.sessions.get(session)
        return seen.state.workspace if seen is not None else None

    def is_excused(self) -> bool:
        """Redis has forgotten heartbeats, entries or persons' words, or two servers have some each."""
        return self._watch.now_s < self._watch.went_back_s + LATE_S


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
