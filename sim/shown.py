"""Publications of a commit: events of the tree to watchers, and open approvals to the fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import number_of
from orchestrator.core.registry import RegistryView
from sim.double import Double

if TYPE_CHECKING:
    from sim.reach import Reach
    from sim.seen import Seen

_OF_THE_CALLER = frozenset({"updated"})
"""Events of a cancel about an agent: to the root, and to the canceller, which need not be the parent."""


class Shown:
    """The rules `told` and `asked`."""

    def __init__(self, double: Double, keys: Keys, broken: Callable[[str, str], None], reach: Reach) -> None:
        self._double = double
        self._keys = keys
        self._broken = broken
        self._reach = reach
        self._askers: dict[str, str] = {}
        """The parent of each session: one that was pruned may be woken by a message that was on its way."""

    # ── the tree log on the queues of those who watch ─────────────────────────────────────────

    def watchers(self, tree: str, view: RegistryView, message: Mapping[str, Any], by: str) -> list[str]:
        """Sessions whose queues must have this entry of the tree log, which the session `by` wrote."""
        if str(message.get("type")).startswith("sub_agent_tool_call_"):
            # A helper tells its asker alone.
            for known in view.agents.values():
                self._askers[known.session] = known.record["parent_session_id"]
            return [self._askers[by]] if by in self._askers else []
        watching = [tree]
        if message.get("type") == "agent_inbox":
            agent = view.agents.get(message["agent_id"])
            parent = agent.record["parent_session_id"] if agent is not None else tree
            if parent != tree:
                self._reach.saw("inbox_above")
            return list(dict.fromkeys((tree, parent)))
        if message.get("type") == "subagent_lifecycle" and message.get("event") not in _OF_THE_CALLER:
            agent = view.agents.get(message.get("agent_id", -1))
            parent = agent.record["parent_session_id"] if agent is not None else None
            if parent and parent != tree:
                watching.append(parent)
        return watching

    def told(
        self,
        tree: str,
        expected: Mapping[str, list[int]],
        sessions: Mapping[str, Seen],
        before: Mapping[str, int],
    ) -> None:
        """Each watcher has been shown what one commit wrote into the tree log, once and in its order.

        `before` is where each queue ended when it was looked at last.
        """
        for session, numbers in expected.items():
            data = self._double.hash(self._keys.session(session))
            if session not in sessions or data.get(b"archived") == b"1":
                continue
            entries = self._double.stream_after(self._keys.eq(session), before.get(session, 0))
            shown = [int(fields[b"x"]) for _, fields in entries if b"x" in fields]
            # Events were trimmed at once where there were more of them than a queue keeps.
            trimmed = len(entries) < int(data[b"eq"]) - before.get(session, 0)
            wanted = [n for n in numbers if not trimmed or (shown and n >= shown[0])]
            in_order = all(one < other for one, other in pairwise(shown))
            # A canceller, which need not be the root, gets the agent's event as well.
            extra = session == tree and shown != wanted
            if not in_order or extra or not set(wanted) <= set(shown):
                self._broken("told", f"{session} is to see {numbers} of its tree's log, and sees {shown}")
            if entries and number_of(entries[-1][0]) != int(data[b"eq"]):
                self._broken("told", f"the event queue of {session} does not end at {data[b'eq']!r}")
            if len(expected) > 1:
                self._reach.saw("told")

    # ── open approvals ────────────────────────────────────────────────────────────────────────

    def asked(self, session: str, seen: Seen) -> None:
        """The fleet's queue has exactly what the session waits for people to decide."""
        open_now = self._double.hash(self._keys.approvals(self._keys.shard_of(session)))
        task = seen.state.task
        awaiting: set[str] = {call.call_id for call in task.requests} if task is not None else set()
        awaiting |= {one.id for one in task.elicitations if not one.decision} if task is not None else set()
        if not open_now and not awaiting:
            return
        prefix = session.encode() + b":"
        asked = {name[len(prefix) :].decode() for name in open_now if name.startswith(prefix)}
        if asked:
            self._reach.saw("asked")
        # A request that somebody ended the turn with is decided, and its call is open until all has stopped.
        stops = task is not None and bool(task.stopping) and not task.ending
        if asked != awaiting and not (stops and asked < awaiting):
            told = f"waits for {sorted(awaiting)}, people are asked for {sorted(asked)}"
            self._broken("asked", f"{session} {told}")


def expected_of(rows: list[tuple[int, list[str]]]) -> dict[str, list[int]]:
    """By watcher: the entries of the tree log that its queue must have."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, watching in rows:
        for session in watching:
            found[session].append(number)
    return dict(found)
