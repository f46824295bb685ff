"""Agents as others tell of them, in letters, lists, results and the registry: each by that agent's own log.

Written from `docs/trees.md`: whoever describes an agent says of it what its log says just then, and who
passes an order on says who gave it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from orchestrator.core.registry import Agent, RegistryView
from sim.grammar_terms import REDACTED

if TYPE_CHECKING:
    from sim.grammar import Grammar
    from sim.queued import Waiting

AT_WORK = ("queued", "running")
STRANGER = ("session_id", "agent_id", "parent_agent_id", "origin", "label", "summary", "parent_session_id")
"""Names of an agent's card that whoever has not made it is told."""
OF_CANCEL = (
    *("session_id", "origin", "status", "label", "summary"),
    *("parent_session_id", "started_at_ms", "initial_message_count"),
)
"""Names of an agent of which the output of its cancel tells."""
CLOSED_ABOVE = "the session above was closed"
"""The reason for which the agents of a root that is closed end."""
STOPPED = "aborted"
"""How the reasons begin for which helpers of calls end that were stopped."""
PASSED_ON = frozenset({"cancel", "interrupt"})
"""Letters that go on to the agents below."""
Row = Mapping[str, Any]


def card(log: Grammar) -> dict[str, Any]:
    """An agent by its own log, but for its status."""
    facts, agent = log.facts, log.agent
    above = str(facts["agent_path"]).split("/")[:-1]
    return {
        "agent_id": facts["agent_id"],
        "parent_agent_id": int(above[-1]) if above else None,
        "session_id": facts["session_id"],
        "parent_session_id": facts.get("parent_session") or None,
        "origin": facts.get("origin") or "",
        "label": agent.get("label"),
        "summary": agent.get("summary"),
        "reasoning_header": agent.get("header"),
        "started_at_ms": agent.get("started_ms", 0),
        "agent_path": facts["agent_path"],
    }


def record(log: Grammar) -> dict[str, Any]:
    """An agent as the registry is to have it."""
    return {**card(log), "status": log.agent["status"], "turn": log.agent["turns"]}


def child_row(child: Row, facts: Row) -> dict[str, Any]:
    """An agent as the one that made it tells of it."""
    return {
        "session_id": child["session"],
        "agent_id": child["agent_id"],
        "parent_agent_id": facts["agent_id"],
        "origin": child["origin"],
        "status": child["status"],
        "label": child.get("label"),
        "summary": child.get("summary"),
        "parent_session_id": facts["session_id"],
        "started_at_ms": child["started_ms"],
        "initial_message_count": child.get("initial_messages", 0),
    }


def awaited_row(child: Row | None, sender: Row, facts: Row) -> dict[str, Any]:
    """The metadata of an agent in an await's output, with its start."""
    if child is None:
        known = {name: sender.get(name) for name in (*STRANGER, "started_at_ms")}
        return {**known, "status": None, "reasoning_header": None}
    status = "running" if child["status"] == "queued" else child["status"]
    return {**child_row(child, facts), "status": status, "reasoning_header": child.get("header")}


def listed_row(agent: Agent) -> dict[str, Any]:
    """An agent of the registry as a list has it."""
    known = dict(agent.record)
    turn = known.pop("turn")
    if known["status"] == "ready" and turn and turn == agent.read_turn:
        known["status"] = "idle"
    return {**known, "pending_messages": agent.pending[0], "pending_interrupts": agent.pending[1]}


def unlike(told: Row, own: Row) -> str:
    """The names under which something else is told; empty if all is told as it is."""
    names = sorted(name for name in told.keys() | own.keys() if told.get(name) != own.get(name))
    names = [name for name in names if REDACTED not in str(told.get(name)) + str(own.get(name))]
    return "; ".join(f"{name} is {own.get(name)!r}, told as {told.get(name)!r}" for name in names)


class Rows:
    """Each agent of each tree as lists could show it, at each moment behind a commit."""

    def __init__(self) -> None:
        self._rows: defaultdict[str, dict[int, list[Row]]] = defaultdict(dict)
        self._since: dict[str, Mapping[int, int]] = {}
        """How many of them were past when a session's last request began."""

    def went_back(self) -> None:
        self._rows.clear()
        self._since.clear()

    def changed(self, tree: str, before: RegistryView, view: RegistryView) -> None:
        """A commit told something of a tree."""
        known = self._rows[tree]
        for id, agent in view.agents.items():
            if before.agents.get(id) is not agent:
                known.setdefault(id, []).append(listed_row(agent))

    def asks(self, session: str, tree: str) -> None:
        """A session begins a request: what the response calls is looked up later."""
        self._since[session] = {id: len(rows) - 1 for id, rows in self._rows[tree].items()}

    def of(self, session: str, tree: str, id: int) -> Sequence[Row]:
        """The agent as it was at any moment since the session's last request began."""
        return self._rows[tree].get(id, [])[self._since.get(session, {}).get(id, 0) :]


# ── letters ───────────────────────────────────────────────────────────────────────────────────────


def untrue_letter(mail: Row, log: Grammar, receiver: Grammar) -> str:
    """The error in a letter that its sender's last step has sent; empty if it is as that one's log says."""
    if "from" in mail and (wrong := unlike(mail["from"], card(log))):
        return f"its sender is another one: {wrong}"
    agent = log.agent
    ends = {"status": agent["status"], "turn": agent["turns"], "evidence": agent.get("evidence", "proved")}
    match mail["kind"]:
        case "completion":
            # The same step may have begun what it was asked to do next.
            end = log.ends[agent["turns"]]
            ends |= {name: end[name] for name in ("status", "evidence")}
            own = {**ends, "header": agent.get("header"), "born_in": log.facts.get("born_in") or ""}
            if isinstance(told := mail["completion"], Mapping) and "Canceled" in told:
                own["reason"] = end["message"] or agent.get("canceling")
                mail = {**mail, "reason": told["Canceled"]["reason"]}
        case "ended":
            own = {**ends, "born_in": log.facts.get("born_in") or ""}
        case "status" if "turn" in mail:
            # It rests though it was asked to work, as it is to end.
            own = {**ends, "born_in": log.facts.get("born_in") or ""}
            del own["evidence"]
            own |= {"status": "at rest"} if agent["status"] in AT_WORK else {}
        case "status":
            own = {"status": "running"}
        case "message" if not (mail.get("person") or mail.get("watchdog")):
            child = log.children.get(receiver.facts["agent_id"])
            own = {"turn": child["turn"] if child is not None else None}
        case _:
            return ""
    return unlike({name: mail.get(name) for name in own}, own)


# ── orders ────────────────────────────────────────────────────────────────────────────────────────


class Order(NamedTuple):
    """An end or a stop of agents that somebody has asked for."""

    by: Any
    """The person, as the door knew them; None if an agent did, or nobody known."""
    reason: str


def order_of(one: Waiting) -> Order | None:
    """The order that an entry of a queue is, or passes on; None if it is none."""
    if one.letter in PASSED_ON:
        return Order(one.mail.get("by"), str(one.mail.get("reason") or "canceled"))
    by = orjson.loads(one.by) if one.by else None
    match one.op:
        case "cancel_agent":
            words = " ".join(one.said.get("reason", "").split())
            return Order(by, words or f"cancelled by {by['who'] if by else one.client}")
        case "interrupt" | "shutdown":
            return Order(by, CLOSED_ABOVE)
        case _:
            return None


def untrue_order(mail: Row, orders: Sequence[Order]) -> bool:
    """Whether a letter that passes one of these orders on names somebody else, or another reason."""
    by, reason = mail.get("by"), str(mail.get("reason", ""))
    if mail["kind"] == "interrupt":
        return by not in [order.by for order in orders]
    if reason.startswith(STOPPED):
        return False
    givers = [order.by for order in orders if order.reason == reason]
    # For a reason of its own an agent ends others by itself.
    return by not in givers if givers else by is not None
