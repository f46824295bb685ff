"""A tree's budgets: what was spent, what is held for requests in flight, who waits for room."""

from __future__ import annotations

from typing import Any

from sim.reference.given import number, written
from sim.reference.sight import Fields, Sight

KINDS = (b"tokens", b"cost", b"requests")
COST = 1


def amount_of(stored: bytes | None) -> list[int]:
    return [int(word) for word in (stored or b"0 0 0").split()]


def amount_text(amount: list[int]) -> bytes:
    return b" ".join(map(written, amount))


class Budget:
    """The fields of `agents:<tree>` that are amounts; `saved` writes them back."""

    def __init__(self, tree: Fields, now: int) -> None:
        self._tree = tree
        self.spent, self.held, self.guessed = (
            [number(tree, name + b":" + kind) for kind in KINDS] for name in (b"spent", b"held", b"guessed")
        )
        self.limits = [self._limit(kind) for kind in KINDS]
        self.wall_limit = self._limit(b"wall")
        self.wall = now - number(tree, b"wall_from") if b"wall_from" in tree else 0
        self.waiting = {why: tree.get(b"wait:" + why, b"") for why in (b"reserved", b"spent")}
        self._reserved: dict[bytes, list[int] | None] = {}

    def _limit(self, kind: bytes) -> int | None:
        stored = self._tree.get(b"limit:" + kind)
        return int(stored) if stored else None

    def accounts(self) -> list[list[Any]]:
        rows = zip(KINDS, self.spent, self.held, self.limits, self.guessed, strict=True)
        found = [[kind, spent, held, b"" if most is None else most, g] for kind, spent, held, most, g in rows]
        return [*found, [b"wall", self.wall, 0, b"" if self.wall_limit is None else self.wall_limit, 0]]

    def obstacle(self, amount: list[int]) -> tuple[bytes, bytes] | None:
        """Why there is no room for so much, and of which kind."""
        if self.limits[COST] is not None and amount[COST] < 0:
            return b"unpriced", b"cost"
        for kind, spent, most in zip(KINDS, self.spent, self.limits, strict=True):
            if most is not None and spent >= most:
                return b"spent", kind
        if self.wall_limit is not None and self.wall >= self.wall_limit:
            return b"spent", b"wall"
        for at, kind in enumerate(KINDS):
            most, wanted = self.limits[at], self.spent[at] + self.held[at] + max(0, amount[at])
            if most is not None and wanted > most and self.held[at] > 0:
                return b"reserved", kind
        return None

    def _holding(self, name: bytes) -> list[int]:
        if name in self._reserved:
            return self._reserved[name] or [0, 0, 0]
        return amount_of(self._tree.get(name))

    def lets_go(self, name: bytes) -> list[int]:
        amount = self._holding(name)
        self.held = [max(0, held - less) for held, less in zip(self.held, amount, strict=True)]
        return amount

    def settles(self, name: bytes, used: list[int] | None) -> list[int]:
        """Spends a reservation: the amount used or, if nobody knows that, the amount reserved."""
        reserved = self.lets_go(name)
        self._reserved[name] = None
        counted = reserved if used is None else used
        self.spent = [spent + more for spent, more in zip(self.spent, counted, strict=True)]
        if used is None:
            self.guessed = [guessed + more for guessed, more in zip(self.guessed, counted, strict=True)]
        return counted

    def holds(self, name: bytes, amount: list[int]) -> None:
        kept = [amount[0], max(0, amount[COST]), amount[2]]
        self.held = [held + more for held, more in zip(self.held, kept, strict=True)]
        self._reserved[name] = kept

    def waits(self, why: bytes, member: bytes) -> None:
        listed = self.waiting[why].split()
        self.waiting[why] = b" ".join(listed if member in listed else [*listed, member])

    def saved(self) -> None:
        for name, amounts in ((b"spent", self.spent), (b"held", self.held), (b"guessed", self.guessed)):
            self._tree.update(
                (name + b":" + kind, written(a)) for kind, a in zip(KINDS, amounts, strict=True)
            )
        for name, kept in self._reserved.items():
            if kept is None:
                self._tree.pop(name, None)
            else:
                self._tree[name] = amount_text(kept)
        for why, listed in self.waiting.items():
            if listed:
                self._tree[b"wait:" + why] = listed
            else:
                self._tree.pop(b"wait:" + why, None)


def used_by(tree: Fields, agent_id: bytes, amount: list[int]) -> None:
    name = b"u:" + agent_id
    tree[name] = amount_text([a + b for a, b in zip(amount_of(tree.get(name)), amount, strict=True)])


def lately(tree: Fields, requests: int, now: int) -> None:
    """Counts requests that end now among those of the hour, of which each five minutes have a count."""
    slot, counts = now // 300_000, [int(word) for word in tree.get(b"recent", b"").split()]
    known = dict(zip(range(counts[0], counts[0] - 12, -1), counts[1:], strict=False)) if counts else {}
    if known and abs(slot - counts[0]) >= 12:
        known = {}
    newest = max([slot, *known])
    known[newest] = known.get(newest, 0) + requests
    oldest = max(min(known), newest - 11)
    shown = [known.get(at, 0) for at in range(newest, oldest - 1, -1)]
    tree[b"recent"] = b" ".join(map(written, (newest, *shown)))


def wakes(sight: Sight, timers: bytes, listed: bytes) -> int:
    """The timers of those who wait are due now, where they still stand; how many were listed."""
    members = listed.split()
    for member in members:
        if member in sight.zset(timers):
            sight.zset(timers)[member] = sight.now
    return len(members)
