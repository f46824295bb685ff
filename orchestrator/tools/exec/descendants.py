"""Finding and killing every descendant of a process, those that called setsid included.

Works on the parent links in /proc: an orphan's parent is the nearest living subreaper above
it, so nothing that a command started can leave the tree of its shim. Loaded into the
supervisor, which forks per command: only light imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import signal


def descendants_of(root: int, spared: frozenset[int] = frozenset()) -> list[int]:
    """The living processes below `root`, without `spared` and what is below those; zombies are left out."""
    children = _children_by_parent()
    found: list[int] = []
    frontier = [root]
    while frontier:
        for pid, state in children.get(frontier.pop(), ()):
            if pid in spared:
                continue
            frontier.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found


def kill_all(pids: list[int]) -> int:
    """Kills the processes; how many could not be, because they belong to another user.

    Stops them all first: a stopped process cannot fork, so a fork bomb that is met half-way
    through the list finds no brother left to replace what was killed.
    """
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    return sum(not _send(pid, signal.SIGKILL) for pid in pids)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _children_by_parent() -> dict[int, list[tuple[int, str]]]:
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # gone between the listing and the reading
        # The name in parentheses may hold blanks and parentheses itself: count from its end.
        state, parent = stat[stat.rindex(b")") + 2 :].split(b" ", 2)[:2]
        children.setdefault(int(parent), []).append((int(name), state.decode()))
    return children
