"""A tree drawn for people, and as JSON for programs. Knows pictures of trees, not how they are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from orchestrator.broker.records import Account, Registry
from orchestrator.core.counts import age, change_size, counted
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ACTIVE
from orchestrator.terminal.text import plain
from orchestrator.views.find import short_id, short_ids
from orchestrator.views.sessions import agent_status
from orchestrator.views.tree import AgentPicture, TreePicture, amount, money

STYLES = {
    "running": "cyan",
    "queued": "blue",
    "waiting": "yellow",
    "awaiting_approval": "bold yellow",
    "awaiting_answer": "bold yellow",
    "paused": "bold yellow",
    "due": "blue",
    "lost": "bold red",
    "ready": "green",
    "idle": "dim green",
    "failed": "bold red",
    "quarantined": "bold red",
    "canceled": "red",
}
WAITS = ("waiting", "awaiting_approval", "awaiting_answer", "paused")
LAST_CHARS = 100
REMEDY = "→ start `dendro worker` on the machine of the pool (host:…), or `dendro worker --pool POOL`"
Shorts = Mapping[SessionId, str]
LABEL_CHARS = 40
COUNTED = ("tokens", "requests")
"""Budgets of what is counted, and not measured."""


def drawing(picture: TreePicture) -> Tree:
    """The whole tree, two lines an agent."""
    shorts = short_ids(agent.session for agent in picture.agents.values())
    root = Tree(_node(picture, picture.agents[0], shorts), guide_style="dim")
    _grow(picture, root, 0, shorts)
    if any(agent.wants_worker for agent in picture.agents.values()):
        root.add(Text(REMEDY, style="bold"))
    return root


def _grow(picture: TreePicture, branch: Tree, agent_id: int, shorts: Shorts) -> None:
    for child in picture.children_of(agent_id):
        _grow(picture, branch.add(_node(picture, child, shorts)), child.agent_id, shorts)


def _node(picture: TreePicture, agent: AgentPicture, shorts: Shorts) -> Text:
    label = agent.summary.get("label") or ("root" if not agent.agent_id else agent.summary.get("summary"))
    text = Text(f"{agent.agent_id} ", style="bold")
    text.append(_cut(label or "", LABEL_CHARS), style="bold")
    shown = status_of(agent)
    text.append(f"  {shown}", style=STYLES.get(shown, ""))
    if since := max(0, picture.now_ms - agent.since_ms):
        text.append(f" {age(since / 1000)}", style="dim")
    for part, style in _remarks(picture, agent):
        text.append(f" · {part}", style=style)
    if agent.agent_id:
        text.append(f" · {shorts[agent.session]}", style="dim")
    if agent.doing.last:
        text.append(f"\n{_cut(agent.doing.last, LAST_CHARS)}", style="dim")
    return text


def status_of(agent: AgentPicture) -> str:
    """The status in one word: an agent's in the tree, for the root its session's."""
    return agent_status(agent.standing, agent.status) if agent.summary else agent.status


def waits_for(picture: TreePicture, agent: AgentPicture) -> str:
    """The worker, agents, message or room that an agent needs to go on; empty if it is served, or at rest."""
    if agent.wants_worker:
        return agent.wants_worker
    doing = agent.doing
    if status_of(agent) not in WAITS or not doing.waits_for:
        return ""
    if doing.waits_for != "agents":
        return doing.waits_for
    working = [child.agent_id for child in picture.children_of(agent.agent_id) if child.standing in ACTIVE]
    named = doing.awaited or working
    return f"agents {', '.join(map(str, named))}" if named else "mail"


def until_ms(agent: AgentPicture) -> int | None:
    """The end of the agent's wait, in ms; None without one, and while it waits for a worker."""
    return None if agent.wants_worker else agent.doing.until_ms


def _remarks(picture: TreePicture, agent: AgentPicture) -> Iterator[tuple[str, str]]:
    if agent.wants_worker:
        yield f"no worker serves it: it needs {agent.wants_worker}", "bold red"
    elif what := waits_for(picture, agent):
        until = until_ms(agent)
        left = f" (at most {age((until - picture.now_ms) / 1000)} more)" if until else ""
        yield f"waits for {what}{left}", "yellow"
    if agent.machine:
        yield f"{'on' if agent.holder else 'last on'} {_cut(agent.machine, LABEL_CHARS)}", "dim"
    if agent.canceling and agent.standing in ACTIVE:
        yield "being cancelled", "red"
    elif agent.canceling and agent.standing != "canceled":
        # It had come to its end before; no message starts it again.
        yield "ended for good", "dim red"
    for name, mark, style in (("pending_messages", "✉", "magenta"), ("pending_interrupts", "⚡", "bold red")):
        if count := agent.summary.get(name):
            yield f"{mark} {count}", style
    if agent.change:
        yield change_size(**agent.change), ""
    if agent.forked_from:
        yield f"fork of {short_id(agent.forked_from)}", "dim"
    if agent.tokens:
        yield counted(agent.tokens, "token"), ""
    if agent.used.cost:
        yield money(agent.used.cost), ""


def _cut(text: str, most: int) -> str:
    shown = plain(" ".join(text.split()))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


# ── the tree's accounts ───────────────────────────────────────────────────────────────────────────


def headline(picture: TreePicture) -> Text:
    """The tree, its agents, and its budgets."""
    registry = picture.registry
    active = sum(agent.standing in ACTIVE for agent in picture.agents.values() if agent.agent_id)
    slots, spawned = registry.limits.get("slots"), registry.counters.get("spawned", 0)
    text = Text(f"tree {short_id(picture.tree)}", style="bold")
    text.append(f" · {picture.tree}", style="dim")
    made = f"{counted(spawned, 'agent')} made"
    if picture.left_behind:
        made = f"imported without its {counted(picture.left_behind, 'agent')}: none made here"
    text.append(f"\n{made}, {active} at work{f' of {slots} slots' if slots else ''}")
    for part, style in budget_parts(registry):
        text.append(" · ")
        text.append(part, style=style)
    return text


def budget_parts(registry: Registry) -> Iterator[tuple[str, str]]:
    """A phrase for each budget that is limited or used."""
    for account in registry.budget.values():
        limited = account.limit is not None
        if limited or (account.spent and account.kind != "wall"):
            spent = amount(account.kind, account.spent)
            if account.limit is None:
                yield _used(account.kind, account.spent), ""
                continue
            share = account.spent / account.limit if account.limit else 1.0
            style = "bold red" if share >= 1 else "yellow" if share >= 0.8 else ""
            yield f"{account.kind} {spent} of {amount(account.kind, account.limit)} ({share:.0%})", style


def _used(kind: str, value: int) -> str:
    return counted(value, kind.removesuffix("s")) if kind in COUNTED else f"{amount(kind, value)} {kind}"


# ── for programs ──────────────────────────────────────────────────────────────────────────────────


def as_value(picture: TreePicture) -> dict[str, Any]:
    """The registry, with what each session does."""
    registry = picture.registry
    return {
        "tree_id": picture.tree,
        "tree_seq": registry.tree_seq,
        "now_ms": picture.now_ms,
        "agents": [_agent_value(picture, agent) for agent in picture.agents.values()],
        "counters": dict(registry.counters),
        "limits": dict(registry.limits),
        "budget": {kind: _account_value(account) for kind, account in registry.budget.items()},
    }


def _agent_value(picture: TreePicture, agent: AgentPicture) -> dict[str, Any]:
    doing = agent.doing
    return {
        **({"agent_id": 0, "session_id": agent.session} | dict(agent.summary)),
        "session_status": agent.status,
        "holder": agent.holder,
        "machine": agent.machine or None,
        "since_ms": agent.since_ms,
        "waits_for": waits_for(picture, agent) or None,
        "until_ms": until_ms(agent) if waits_for(picture, agent) else None,
        "canceling": agent.canceling and agent.standing in ACTIVE,
        "ended_for_good": agent.canceling,
        "tokens": agent.tokens,
        "cost_micro": agent.used.cost,
        "requests": agent.used.requests,
        **({"forked_from": agent.forked_from} if agent.forked_from else {}),
        **({"change": agent.change} if agent.change else {}),
        "last": doing.last or None,
    }


def _account_value(account: Account) -> dict[str, Any]:
    return {
        "spent": account.spent,
        "held": account.held,
        "limit": account.limit,
        "guessed": account.guessed,
    }
