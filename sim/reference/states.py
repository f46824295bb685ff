"""The states of a tree's agents, as its root's hash says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given
from sim.reference.sight import Fields, Sight

FIRST = 64


class States:
    """The field `states` of a root's hash."""

    def __init__(self, stored: bytes = b"|") -> None:
        shape, counts = stored.split(b"|")
        self._first = [one.split(b":") for one in shape.split()]
        self._counts = {one.split(b"=")[0]: int(one.split(b"=")[1]) for one in counts.split()}

    def born(self, agent: bytes, parent: bytes, status: bytes) -> None:
        if len(self._first) < FIRST:
            self._first.append([agent, parent, status])
        self._counts[status] = self._counts.get(status, 0) + 1

    def comes_to(self, agent: bytes, old: bytes, new: bytes) -> None:
        for row in self._first:
            if row[0] == agent:
                row[2] = new
        self._counts[old] = self._counts.get(old, 0) - 1
        self._counts[new] = self._counts.get(new, 0) + 1

    @property
    def stored(self) -> bytes:
        shape = b" ".join(b":".join(row) for row in self._first)
        return shape + b"|" + b" ".join(b"%s=%d" % one for one in self._counts.items())


def changes(root: Fields, own: Fields, status: bytes, children: Sequence[tuple[bytes, bytes, bytes]]) -> None:
    """A step gives its session a status, and makes agents; a tree of an earlier version is not counted."""
    if b"states" not in root or (status == own[b"status"] and not children):
        return
    states = States(root[b"states"])
    if status != own[b"status"]:
        states.comes_to(own[b"agent_id"], own[b"status"], status)
    for row in children:
        states.born(*row)
    root[b"states"] = states.stored


def recount(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    root, agents = sight.hash(keys[0]), sight.hash(keys[1])
    sessions = [row[0] for row in given.rows(1)]
    if b"tree" not in root:
        return [b"UNKNOWN"]
    if b"states" not in root:
        if any(name[:2] == b"s:" and one not in sessions for name, one in agents.items()):
            return [b"UNLISTED"]
        states, numbers = States(), dict[bytes, bytes]()
        for name, key in zip(sessions, keys[2:], strict=True):
            there = sight.hash(key)
            if b"agent_id" in there:
                numbers[name] = there[b"agent_id"]
                states.born(there[b"agent_id"], numbers.get(there[b"parent"], b""), there[b"status"])
        root[b"states"] = states.stored
    return [b"OK", root[b"states"]]
