"""The picture of a tree at one moment: its registry, and how far each session got.

The registry lists the agents; a session's head holds its status; the end of its log
says since when, what it waits for and its last message. A log is read again only when it
has grown, so that looking at a large tree every second costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import BudgetKind, Registry, SessionHead, Spend, StoredEntry, TreeEntry
from orchestrator.broker.worker_state import Serving
from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, HelperWork, Phase, VariantsWork
from orchestrator.core.commit_parts import SPAWNED
from orchestrator.core.counts import age, counted
from orchestrator.core.entries import (
    Kind,
    decode_entry,
    event_kind,
    is_event,
    line_ms,
    read_event,
    stored_kind,
)
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, projected
from orchestrator.core.tree import ROOT
from orchestrator.protocol import events as e
from orchestrator.protocol.turn_items import PlanItem
from orchestrator.requests import TYPES, CommandRequest, PatchRequest, Request, request_of
from orchestrator.requests.approvals import command_text
from orchestrator.views.event_text import lifecycle_text, mcp_call_text, resolved_text, whole_or_note
from orchestrator.views.readable import UNREADABLE, readable
from orchestrator.views.sessions import session_status, wants_worker

TAIL = 80
"""Entries at a log's end in which an agent's doings are looked for."""
AT_ONCE = 16
"""Sessions that are read side by side."""


@record
class Doing:
    """The facts that the end of a log holds."""

    seq: int = -1
    since_ms: int = 0
    """The time at which the agent came to its status."""
    waits_for: str = ""
    until_ms: int | None = None
    awaited: tuple[int, ...] = ()
    """The agents that an await names; empty for any."""
    last: str = ""
    tokens: int = 0


@record
class AgentPicture:
    """An agent of the picture."""

    agent_id: int
    parent: int | None
    session: SessionId
    summary: Mapping[str, Any]
    """The SubagentSummary; for the root only what there is."""
    status: str
    """The session's own status: the activity, not whether its result was read."""
    holder: str | None
    used: Spend
    doing: Doing
    canceling: bool = False
    wants_worker: str = ""
    """The worker that the agent waits for, if no worker serves it."""
    lost_ms: int | None = None
    """The time since which the agent's worker is lost."""
    forked_from: str | None = None
    """The session that the root was forked from."""
    change: Mapping[str, int] | None = None
    """The size of what was changed in its portable folder, by its last rest."""
    copy_on: str = ""
    """The machine that has the copy of the agent's portable folder."""

    @property
    def machine(self) -> str:
        """The machine of the agent's worker; at rest, of its portable folder's last copy, or empty."""
        return machine_of(self.holder) if self.holder else self.copy_on

    @property
    def since_ms(self) -> int:
        """The time at which the agent came to its status."""
        return self.doing.since_ms if self.lost_ms is None else self.lost_ms

    @property
    def standing(self) -> str:
        """The agent's status in its tree; the root's is its session's."""
        return str(self.summary.get("status") or self.status)

    @property
    def tokens(self) -> int:
        """By the tree's accounts, which begin with the first child; before that by the session's own."""
        return max(self.used.tokens, self.doing.tokens)


@record
class TreePicture:
    """A tree at one moment of Redis's clock."""

    registry: Registry
    agents: Mapping[int, AgentPicture]
    now_ms: int
    left_behind: int = 0
    """The agents that an imported root's log tells of: they stay in the tree where they were made."""

    @property
    def tree(self) -> TreeId:
        return self.registry.tree

    def children_of(self, agent_id: int) -> list[AgentPicture]:
        return [agent for agent in self.agents.values() if agent.parent == agent_id]


@dataclass(slots=True)
class TreeReader:
    """Looks at one tree again and again."""

    broker: Broker
    tree: TreeId
    _doings: dict[SessionId, tuple[bytes, Doing]] = field(default_factory=dict)
    """With the chain's value at the log's end: one that was put back may be as long as before."""

    async def picture(self) -> TreePicture:
        """The tree as it is now; raises `UnknownSession` if it is gone."""
        registry, fields = await self.broker.trees.projection(self.tree)
        known = projected(fields).agents
        sessions = [SessionId(self.tree), *(SessionId(agent.session) for agent in known.values())]
        heads, gate = await readable(self.broker.logs, sessions), asyncio.Semaphore(AT_ONCE)
        doings = await asyncio.gather(*(self._doing(head, gate) for head in heads if self._grew(head)))
        self._doings |= {head.session: (head.head, doing) for head, doing in doings}
        found = [(head, self._doings[head.session][1]) for head in heads]
        served = await self.broker.logs.serving([head for head, _ in found])
        used = {int(number): agent.used for number, agent in registry.agents.items()}
        agents = {
            int(head.agent_id): _drawn(
                head, doing, served[head.session], known, used.get(head.agent_id, Spend())
            )
            for head, doing in found
        }
        behind = 0 if registry.counters.get(SPAWNED) else await self._left_behind(found)
        return TreePicture(registry, agents, self.broker.now_ms(), behind)

    async def _left_behind(self, found: Sequence[tuple[SessionHead, Doing]]) -> int:
        """The facts of a full export tell of children; of another file, the first entries of its import."""
        root = next((head for head, _ in found if head.agent_id == ROOT), None)
        if root is None:
            return 0
        entries = await self.broker.logs.read_rollout(root.session, 0, TAIL)
        told = sum(stored_kind(stored.payload) is e.SubagentLifecycle for stored in entries)
        return max(told, root.summary.get("children", 0))

    def _grew(self, head: SessionHead) -> bool:
        known = self._doings.get(head.session)
        return known is None or known[0] != head.head

    async def _doing(self, head: SessionHead, gate: asyncio.Semaphore) -> tuple[SessionHead, Doing]:
        try:
            async with gate:
                entries = await self.broker.logs.read_rollout(head.session, max(0, head.seq - TAIL), TAIL)
            return head, doing_of(entries, head)
        except UNREADABLE:
            # The damaged log of one agent must not hide all others; whoever reads it is told of the damage.
            return head, doing_of((), head)


def _drawn(
    head: SessionHead, doing: Doing, serving: Serving, known: Mapping[int, Agent], used: Spend
) -> AgentPicture:
    agent = known.get(head.agent_id)
    meta = head.summary
    return AgentPicture(
        agent_id=head.agent_id,
        parent=_nearest(agent, known) if agent is not None else None,
        session=head.session,
        summary=agent.summary() if agent is not None else {},
        status=session_status(head, serving),
        holder=head.holder,
        used=used,
        doing=doing,
        canceling=agent is not None and agent.marked,
        wants_worker=wants_worker(head, serving),
        lost_ms=serving.lost_ms,
        forked_from=meta.get("forked_from"),
        change=meta.get("change"),
        copy_on=head.copy_on,
    )


def machine_of(worker: str) -> str:
    """The machine that a worker's name begins with; empty for a name of another form."""
    machine, _, rest = worker.rpartition("-")[0].rpartition("-")
    return machine if rest.isdecimal() else ""


def _nearest(agent: Agent, known: Mapping[int, Agent]) -> int:
    """The number below which the agent is drawn: its parent's, or the next above a pruned parent's."""
    above = [int(number) for number in agent.path.split("/")[:-1]]
    return next((number for number in reversed(above) if number in known), 0)


# ── the end of a log ──────────────────────────────────────────────────────────────────────────────


def doing_of(entries: Sequence[StoredEntry], head: SessionHead) -> Doing:
    """The facts in the last entries of a log; the newest of each kind counts."""
    meta, doing = head.summary, told_by(entries, head.seq)
    return replace(
        doing,
        since_ms=doing.since_ms or meta.get("updated_ms") or head.created_ms,
        tokens=doing.tokens or meta.get("blended_total") or 0,
    )


def told_by(entries: Sequence[StoredEntry], seq: int) -> Doing:
    """The same of the entries alone, up to entry `seq`."""
    doing, over = Doing(seq=seq), set[str]()
    for stored in reversed(entries):
        doing = _back_to(doing, stored, over)
    return doing


def _back_to(doing: Doing, stored: StoredEntry, over: set[str]) -> Doing:
    """The facts from the end of the log back to this entry.

    `over`: the calls that have ended behind it, while it is not known what else the agent is at.
    """
    kind = stored_kind(stored.payload)
    if kind in _MOVES and (over or not doing.since_ms):
        fact = f.decode(decode_entry(stored.payload).payload)
        if isinstance(fact, f.CallMoved) and fact.call_id in over:
            return doing
        came = _came_to(doing, fact, doing.since_ms or line_ms(stored.payload))
        if isinstance(fact, f.CallMoved) and fact.phase is Phase.DONE:
            over.add(fact.call_id)
        elif came is not doing:
            over.clear()
        return came
    if kind is e.TokenCount and not doing.tokens:
        count = read_event(decode_entry(stored.payload).payload)
        if isinstance(count, e.TokenCount) and count.info is not None:
            return replace(doing, tokens=count.info.total_token_usage.total_tokens)
    if is_event(kind) and not doing.last:
        return replace(doing, last=message_summary(decode_entry(stored.payload).payload))
    return doing


_MOVES = frozenset[Kind]({f.CallMoved, f.TaskBegun, f.TaskEnded, f.RequestBegun, f.Closed, f.AgentChanged})
"""Facts behind which an agent does something else, or may."""


def _came_to(doing: Doing, fact: f.Fact | f.UnknownFact, at_ms: int) -> Doing:
    match fact:
        case f.CallMoved():
            return replace(_waiting(doing, fact), since_ms=at_ms)
        case f.TaskBegun() | f.TaskEnded() | f.RequestBegun() | f.Closed():
            return replace(doing, since_ms=at_ms)
        case f.AgentChanged({"paused": paused}):
            return replace(doing, waits_for="room in the tree's budget" if paused else "", since_ms=at_ms)
        case _:
            return doing


def _waiting(doing: Doing, call: f.CallMoved) -> Doing:
    match call.phase, call.work:
        case Phase.AWAITING_APPROVAL, _:
            return replace(doing, waits_for="an approval")
        case Phase.ASKING, _:
            return replace(doing, waits_for="an answer")
        case Phase.WAITING, HelperWork(agent_id=agent_id):
            return replace(doing, waits_for="its helper", awaited=(agent_id,))
        case Phase.WAITING, VariantsWork(agent_ids=agent_ids):
            return replace(doing, waits_for="its helpers", awaited=agent_ids)
        case Phase.WAITING, AwaitWork(agent_ids=ids, until_ms=until_ms):
            return replace(doing, waits_for="agents", awaited=ids, until_ms=until_ms)
        case _:
            return doing


def message_summary(message: Mapping[str, Any]) -> str:
    """A line for an event of an agent; empty if the event shows nothing."""
    if message["type"] in TYPES:
        return f"? {_asked_for(request_of(message))}"
    match read_event(message):
        case e.AgentMessage(message=text) | e.AgentReasoning(text=text):
            return _first_line(text)
        case e.UserMessage(message=prompt):
            return _first_line(whole_or_note(prompt))
        case e.ExecCommandBegin(command=command):
            return f"$ {_first_line(command_text([*map(whole_or_note, command)]))}"
        case e.TerminalInteraction(process_id=process, stdin=typed):
            return f"process {process} ← {_first_line(typed)}"
        case e.McpToolCallBegin() as told:
            return f"⚙ {_first_line(mcp_call_text(told))}"
        case e.PatchApplyBegin(changes=changes, changes_left_out=left_out):
            return _changed_files(list(changes), left_out or 0)
        case e.ItemCompleted(item=PlanItem(text=plan)):
            return _first_line(f"proposes a plan: {plan.strip()}")
        case e.Error(message=fault):
            return _first_line(f"error: {whole_or_note(fault)}")
        case _ if event_kind(message) is e.TurnAborted:
            # The reason may be one of a newer version.
            return f"the turn was {message['reason']}"
        case _:
            return ""


def _asked_for(request: Request) -> str:
    """The subject of a request; one that would leave the sandbox begins with that."""
    outside = "outside the sandbox: " if request.outside else ""
    if isinstance(request, PatchRequest):
        return f"{outside}{_changed_files(request.paths, request.left_out)}"
    subject = command_text(request.command) if isinstance(request, CommandRequest) else request.subject
    return f"{outside}{_first_line(subject)}"


def _changed_files(paths: Sequence[str], left_out: int) -> str:
    """The paths of a patch; of a merge, and of a patch that has more than an event can name, their number."""
    more = [counted(left_out, "more file" if paths else "file")] if left_out else []
    return f"± {', '.join([*paths, *more])}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


# ── the tree's log ────────────────────────────────────────────────────────────────────────────────


@record
class TreeLine:
    """An entry of a tree's log in words."""

    kind: str
    """The event's type; `takeover` where a lost worker's agent was taken over."""
    text: str
    agent_id: int | None = None
    who: str = ""
    """The person whose act it tells."""
    call_id: str = ""
    """Of a request that was decided or withdrawn: its call."""
    decision: str = ""
    """The word of the log for that."""


def tree_line(entry: TreeEntry, told: e.EventMsg | None = None) -> TreeLine:
    """The entry in words; empty where a person is shown nothing of it.

    `told` is its event, where that was decoded before.
    """
    message = orjson.loads(entry.payload)["msg"]
    kind, agent_id = str(message["type"]), message.get("agent_id")
    told = read_event(message) if told is None else told
    if entry.about and "takeover" in orjson.loads(entry.about):
        return TreeLine("takeover", f"agent {agent_id}: its worker was lost, and another took over", agent_id)
    match told:
        case e.SubagentLifecycle():
            named = told.subagent.agent_id if agent_id is None and told.subagent is not None else agent_id
            return TreeLine(kind, lifecycle_text(told), named)
        case e.RequestResolved():
            agent = f"agent {agent_id}" if agent_id else ""
            text, who = resolved_text(told, agent), told.who or ""
            return TreeLine(kind, text, agent_id, who, told.call_id, told.decision)
        case e.BackgroundEvent(message=text) | e.WarningEvent(message=text):
            text = whole_or_note(text)
            who, raised, _ = text.partition(LIMITS_RAISED)
            return TreeLine(kind, text, agent_id, who if raised else "")
        case _:
            return TreeLine(kind, message_summary(message), agent_id)


# ── costs ─────────────────────────────────────────────────────────────────────────────────────────
# The usage of a tree and its budgets, in figures with their units.


MICRO = 1_000_000
LIMITS_RAISED = " added to the tree's limits: "
"""Between the person and the amounts, in the event that tells of a change of limits."""


def used_of(registry: Registry, kind: BudgetKind) -> str:
    """A tree's usage of a kind of budget; the cost of requests whose prices were unknown is not zero."""
    spent = registry.budget[kind].spent
    unpriced = kind == "cost" and not spent and registry.budget["tokens"].spent
    return "unknown" if unpriced else amount(kind, spent)


def uncounted(registry: Registry) -> str:
    """The requests that a cost budget set now does not count; empty if it counts all."""
    used = [agent.used for agent in registry.agents.values()]
    unknown = sum(spend.requests for spend in used if spend.tokens and not spend.cost)
    if not registry.budget["cost"].spent and registry.budget["requests"].spent:
        unknown = registry.budget["requests"].spent
    if not unknown:
        return ""
    return f"cost: {counted(unknown, 'earlier request')} ran where no price was known: not counted"


def amount(kind: str, value: int) -> str:
    """A budget's figure with its unit."""
    match kind:
        case "cost":
            return money(value)
        case "wall":
            return age(value / 1000)
        case _:
            return f"{value:,}"


def money(micro: int) -> str:
    """Millionths of a dollar, to a hundredth of a cent at least."""
    return f"${micro / MICRO:,.4f}"


def budget_value(registry: Registry) -> dict[str, object]:
    """For programs."""
    return {
        "tree_id": registry.tree,
        "budget": {kind: asdict(account) for kind, account in registry.budget.items()},
        "counters": dict(registry.counters),
        "limits": dict(registry.limits),
        "waiting": dict(registry.waiting),
    }
