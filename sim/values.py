"""What Redis has and Python has not: the status, the sorted set and the stream."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf


class Status(bytes):
    """A reply that is no data: `OK`, or the name of a type."""

    __slots__ = ()


EntryId = tuple[int, int]
Row = list[bytes]
"""An entry's fields and values, in turn."""


class SortedSet:
    """Members by score, and by their bytes where scores are equal."""

    __slots__ = ("_order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self._order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def least(self) -> float:
        """The lowest score; above all numbers where nothing is."""
        return self._order[0][0] if self._order else inf

    def put(self, member: bytes, score: float) -> bool:
        """Whether the member is new."""
        old = self.scores.get(member)
        if old != score:
            if old is not None:
                self._order.remove((old, member))
            insort(self._order, (score, member))
            self.scores[member] = score
        return old is None

    def take(self, member: bytes) -> bool:
        """Whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._order.remove((score, member))
        return True

    def ranked(self, first: int, last: int) -> list[tuple[float, bytes]]:
        """From rank to rank, both included; negative ones count from the end."""
        size = len(self._order)
        first = max(0, first + size if first < 0 else first)
        last = last + size if last < 0 else last
        return self._order[first : last + 1]

    def between(self, low: float, high: float) -> list[tuple[float, bytes]]:
        """By score, both ends included."""
        order = self._order
        if not order or order[0][0] > high:
            return []
        begin = bisect_left(order, low, key=_score)
        return order[begin : bisect_right(order, high, key=_score)]

    def backwards(self, first: int, last: int) -> list[tuple[float, bytes]]:
        """As `ranked`, from the highest score down."""
        size = len(self._order)
        first = max(0, first + size if first < 0 else first)
        last = last + size if last < 0 else last
        return self._order[::-1][first : last + 1]


def _score(pair: tuple[float, bytes]) -> float:
    return pair[0]


class Stream:
    """Entries in the order of their ids, which only grow."""

    __slots__ = ("ids", "last", "rows")

    def __init__(self) -> None:
        self.ids: list[EntryId] = []
        self.rows: list[Row] = []
        self.last: EntryId = (0, 0)

    def add(self, entry_id: EntryId, row: Row) -> bool:
        """False if the id is not above all that ever were."""
        if entry_id <= self.last:
            return False
        self.ids.append(entry_id)
        self.rows.append(row)
        self.last = entry_id
        return True

    def keep_last(self, count: int) -> int:
        """How many entries went."""
        return self._cut(len(self.ids) - count)

    def keep_from(self, entry_id: EntryId) -> int:
        return self._cut(bisect_left(self.ids, entry_id))

    def _cut(self, surplus: int) -> int:
        if surplus <= 0:
            return 0
        del self.ids[:surplus]
        del self.rows[:surplus]
        return surplus

    def after(self, entry_id: EntryId) -> slice:
        """Where the entries behind an id stand."""
        if not self.ids or self.ids[-1] <= entry_id:
            return slice(0, 0)
        return slice(bisect_right(self.ids, entry_id), len(self.ids))

    def within(self, first: EntryId, last: EntryId) -> slice:
        """Where the entries from an id to an id stand, both included."""
        return slice(bisect_left(self.ids, first), bisect_right(self.ids, last))


def id_text(entry_id: EntryId) -> bytes:
    return b"%d-%d" % entry_id
