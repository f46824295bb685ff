"""The keys of one call: as they were before it, and as a statement says that they are behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sim.store import EXPIRES, Store

Fields = dict[bytes, bytes]
EXPIRING = frozenset((b"job", b"spend", b"deleted_by", b"secrets"))
"""Hashes that expire: the field `EXPIRES` says when."""
KEPT = (b"blob", b"blobs")
"""Texts and sets that are kept for a while only, where nobody has persisted them."""
HASHES = frozenset(
    (
        b"session",
        b"drains",
        b"seen",
        b"timer",
        b"agents",
        b"approvals",
        b"workers",
        b"provider",
        b"history_keys",
        b"looked",
        b"redacted",
        b"sealed_tree",
        *EXPIRING,
    )
)
ZSETS = frozenset(
    (
        b"jobs",
        b"seen_at",
        b"due",
        b"leases",
        b"timers",
        b"sessions",
        b"index",
        b"heard",
        b"waiting",
        b"unborn",
        b"to_archive",
        b"to_delete",
        b"deleted",
        b"redactions",
        b"open",
        b"serving",
    )
)
STREAMS = frozenset(
    (
        b"jobs_ready",
        b"rollout",
        b"eq",
        b"sq",
        b"tree",
        b"ready",
        b"asked",
        b"released",
        b"changed",
        b"watched",
        b"near",
        b"history",
    )
)
NOTICES = 1024
FOLLOWED_MS = 60_000
HINT = -1
"""The number of an entry whose id is the server's own."""


@dataclass(slots=True)
class Stream:
    """A stream whose entries are numbered, as far as a call can change it: its ends."""

    length: int
    last: int
    expires_us: float | None
    behind: int
    """The last number before the call: what was added comes behind it."""
    added: list[tuple[int, Fields]] = field(default_factory=list)

    def add(self, n: int, entry: Fields, keep: int | None = None) -> None:
        self.length, self.last = self.length + 1, n
        self.added.append((n, entry))
        if keep is not None:
            self.length = min(self.length, keep)

    def begins_at(self, n: int) -> None:
        """Removes every entry before a number."""
        self.length = min(self.length, max(0, self.last - n + 1))

    def loses(self) -> None:
        """Removes an entry that was there before the call."""
        self.length -= 1

    def is_gone(self) -> None:
        self.length, self.behind, self.expires_us = 0, 0, None
        self.added.clear()


@lru_cache(maxsize=10_000)
def kind_of(key: bytes) -> bytes:
    return key.partition(b"}:")[2].partition(b":")[0]


class Sight:
    """Keys that a statement reads and changes; `differences` compares them with what the script left."""

    def __init__(self, store: Store, keys: Sequence[bytes], now_us: int) -> None:
        self._store = store
        self._keys = list(dict.fromkeys(keys))
        self.now_us = now_us
        self.now = now_us // 1000
        self._changes = list(store.changes(self._keys))
        self._before: dict[bytes, Any] = {key: self._read(key) for key in self._keys}
        self._after: dict[bytes, Any] = {}
        self.changed_in = b""
        """The stream in which the script tells what lists show otherwise; empty if it tells nobody."""
        self._until_us = {key: self._expiry(key) for key in self._keys if kind_of(key) in KEPT}
        """When such keys are to expire."""

    def also(self, key: bytes) -> bytes:
        """A key that the script names by itself: compared from here on, which is before the call."""
        if key not in self._before:
            self._keys.append(key)
            self._changes += self._store.changes([key])
            self._before[key] = self._read(key)
        return key

    def _expiry(self, key: bytes) -> float | None:
        return self._store.until_us(key, self.now_us) or None

    def _read(self, key: bytes) -> Any:
        kind = kind_of(key)
        if kind in EXPIRING:
            return self._store.expiring(key, self.now_us)
        if kind in HASHES:
            return self._store.hash(key)
        if kind in ZSETS:
            return self._store.members(key)
        if kind in STREAMS:
            return self._store.stream(key, self.now_us)
        gone = kind in KEPT and self._store.until_us(key, self.now_us) == 0
        if kind == b"blobs":
            return frozenset() if gone else self._store.members_of_set(key)
        return None if gone else self._store.text(key)

    # ── what a statement works with ───────────────────────────────────────────────────────────

    def hash(self, key: bytes) -> Fields:
        if key not in self._after:
            self._after[key] = dict(self._before[key])
        found: Fields = self._after[key]
        return found

    def expires_in(self, key: bytes, after_ms: int) -> None:
        """States when a hash of the kind `EXPIRING` expires."""
        self.hash(key)[EXPIRES] = b"%d" % (self.now_us + after_ms * 1000)

    def is_kept(self, key: bytes, for_ms: int | None) -> None:
        """States for how long a key of the kinds `KEPT` is kept from now on; None: for ever."""
        self._until_us[key] = None if for_ms is None else self.now_us + for_ms * 1000

    def zset(self, key: bytes) -> dict[bytes, float]:
        if key not in self._after:
            self._after[key] = dict(self._before[key])
        found: dict[bytes, float] = self._after[key]
        return found

    def stream(self, key: bytes) -> Stream:
        made: Stream | None = self._after.get(key)
        if made is None:
            length, last, expires_us = self._before[key]
            made = self._after[key] = Stream(length, last, expires_us, last)
        return made

    def entries(self, key: bytes, behind: int) -> list[tuple[bytes, Fields]]:
        """A stream's entries as they were before the call."""
        return self._store.stream_after(key, behind)

    def tells_followers(self, changed: bytes, watched: bytes = b"") -> None:
        """Changes are told from here on; with `watched`, if somebody wrote there within a minute."""
        watch = self.stream(watched) if watched else None
        if watch is None or (watch.length and watch.last > self.now - FOLLOWED_MS):
            self.changed_in = changed

    def is_shown_anew(self, session: bytes) -> None:
        """Lists show something else of a session than before."""
        if self.changed_in:
            self.stream(self.changed_in).add(HINT, {b"s": session}, NOTICES)

    def text(self, key: bytes) -> bytes | None:
        found: bytes | None = self._after.get(key, self._before[key])
        return found

    def set(self, key: bytes, text: bytes) -> None:
        self._after[key] = text

    def add_member(self, key: bytes, member: bytes) -> None:
        self._after[key] = self._before[key] | {member}

    def members(self, key: bytes) -> frozenset[bytes]:
        """A set's members as they were before the call."""
        found: frozenset[bytes] = self._before[key]
        return found

    def delete(self, key: bytes) -> None:
        kind = kind_of(key)
        if kind in STREAMS:
            self.stream(key).is_gone()
        else:
            self._after[key] = {} if kind in HASHES | ZSETS else frozenset() if kind == b"blobs" else None

    # ── behind the call ───────────────────────────────────────────────────────────────────────

    def differences(self) -> list[str]:
        """The differences from the statement, key by key."""
        changes = zip(self._keys, self._changes, self._store.changes(self._keys), strict=True)
        # Of a key that nothing is stated of, and that nothing changed, there is nothing to compare.
        concerned = (
            (key, was != now)
            for key, was, now in changes
            if was != now or key in self._after or key in self._until_us
        )
        return [found for key, changed in concerned if (found := self._difference(key, changed))]

    def _difference(self, key: bytes, changed: bool) -> str:
        before, name = self._before[key], key.decode()
        now = self._read(key) if changed else before
        if kind_of(key) in STREAMS:
            return self._of_stream(name, key, before, now)
        stated = self._after.get(key, before)
        if stated is now or stated == now:
            return self._of_expiry(key) if now else ""
        if isinstance(stated, dict):
            return f"{name}: {_unlike(stated, now)}"
        return f"{name}: it holds {str(now)[:60]}, and {str(stated)[:60]} was to be expected"

    def _of_expiry(self, key: bytes) -> str:
        if kind_of(key) not in KEPT or self._expiry(key) == self._until_us[key]:
            return ""
        return f"{key.decode()}: it expires at {self._expiry(key)}, not {self._until_us[key]}"

    def _of_stream(self, name: str, key: bytes, before: Any, now: Any) -> str:
        stated: Stream | None = self._after.get(key)
        length, last, expires_us = now
        if stated is None:
            return "" if now == before else f"{name}: it changed from {before} to {now}"
        if length != stated.length:
            return f"{name}: it holds {length} entries, and {stated.length} were to be expected"
        if length and expires_us != stated.expires_us:
            return f"{name}: it expires at {expires_us}, and {stated.expires_us} was to be expected"
        if not stated.added:
            return (
                "" if not length or last == stated.last else f"{name}: it ends at {last}, not {stated.last}"
            )
        wanted = stated.added[-length:] if length else []
        if wanted and wanted[0][0] == HINT:
            found = [(HINT, entry) for _, entry in self._store.stream_after(key, stated.behind)]
            found = found[len(found) - len(wanted) :]
        else:
            entries = self._store.stream_after(key, stated.behind)
            found = [(int(identity.partition(b"-")[0]), entry) for identity, entry in entries]
        if found == wanted:
            return ""
        return f"{name}: {_first_unlike(wanted, found)}"


def _unlike(stated: dict[bytes, Any], now: dict[bytes, Any]) -> str:
    names = sorted(n for n in {*stated, *now} if stated.get(n) != now.get(n))
    told = (
        f"{n.decode(errors='replace')} is {str(now.get(n))[:40]}, not {str(stated.get(n))[:40]}"
        for n in names[:4]
    )
    return "; ".join(told)


def _first_unlike(wanted: Sequence[Any], found: Sequence[Any]) -> str:
    for one, other in zip(wanted, found, strict=False):
        if one != other:
            told = _unlike(one[1], other[1])
            return f"entry {other[0]} (stated: {one[0]}): {told}"
    return f"{len(found)} entries were added, and {len(wanted)} were to be expected"
