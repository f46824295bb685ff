"""Reads the accounts of a tree from the flat fields of `agents:<tree>`, which are listed in `tree_records`.

What agents say of themselves, their inboxes and their marks is read by `core.registry.projected`.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.broker.tree_records import (
    BUDGET_KINDS,
    Account,
    BudgetKind,
    RegisteredAgent,
    Registry,
    Spend,
)
from orchestrator.core.ids import AgentId, SessionId, TreeId

_PLAIN = frozenset({"tree_seq", "wall_from", "last_agent"})
"""Numbers under a plain name that are not counters of what was drawn."""


def registry_of(tree: TreeId, fields: Mapping[str, bytes], now_ms: int) -> Registry:
    """The registry that the fields are; `now_ms` is what the wall clock's budget is measured with."""
    return Registry(
        tree=tree,
        tree_seq=int(fields.get("tree_seq", 0)),
        agents={agent_id: _agent(fields, agent_id) for agent_id in _ids(fields)},
        counters={
            name: int(value)
            for name, value in fields.items()
            if ":" not in name and name not in _PLAIN and _is_number(value)
        },
        limits={name: int(value) for name, value in _under("limit:", fields).items()},
        budget={kind: _account(kind, fields, now_ms) for kind in BUDGET_KINDS},
        reserved={key: _spend(value) for key, value in _under("r:", fields).items()},
        waiting={
            SessionId(member.partition(":")[0]): why
            for why, members in _under("wait:", fields).items()
            for member in members.decode().split()
        },
    )


def _under(prefix: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}


def _ids(fields: Mapping[str, bytes]) -> list[AgentId]:
    return sorted(AgentId(int(id)) for id in _under("s:", fields))


def _is_number(value: bytes) -> bool:
    return value.removeprefix(b"-").isdigit()


def _agent(fields: Mapping[str, bytes], agent_id: AgentId) -> RegisteredAgent:
    session = SessionId(fields[f"s:{agent_id}"].decode())
    return RegisteredAgent(session, _spend(fields.get(f"u:{agent_id}", b"0 0 0")))


def _spend(stored: bytes) -> Spend:
    tokens, cost, requests = stored.split()
    return Spend(int(tokens), int(cost), int(requests))


def _account(kind: BudgetKind, fields: Mapping[str, bytes], now_ms: int) -> Account:
    limit = fields.get(f"limit:{kind}")
    spent = int(fields.get(f"spent:{kind}", 0))
    if kind == "wall":
        spent = max(0, now_ms - int(fields.get("wall_from", now_ms)))
    return Account(
        kind=kind,
        spent=spent,
        held=int(fields.get(f"held:{kind}", 0)),
        limit=None if limit is None else int(limit),
        guessed=int(fields.get(f"guessed:{kind}", 0)),
    )
