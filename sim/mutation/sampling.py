"""Which changes a sample holds: the seed's choice, and the same one as long as a place reads the same.

A sample is split evenly over its scopes (Lua, core, runtime; of what is forgotten also what stands around
them). Within a scope a statement is
chosen (each is as likely as any other, however much can be changed in it), then one of the operators that
fit it, then one of their changes. All of it by numbers that are made of the seed and of the text: a line
added elsewhere moves nothing, and a larger sample of the same seed holds the smaller one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from sim.mutation import lua_operators, python_operators
from sim.mutation.change import ROOT, Change
from sim.mutation.python_operators import Group

SCOPES = {
    "lua": ("broker/lua/*.lua",),
    "core": ("core/**/*.py",),
    "runtime": ("rollouts/**/*.py", "runtime/**/*.py"),
}
"""Of the files of `orchestrator/`; what the runtime writes and reads again counts as it does."""
AROUND = {
    "broker": ("broker/*.py",),
    "doors": ("gateways/**/*.py", "requests/**/*.py"),
    "commands": ("cli/**/*.py", "terminal/**/*.py", "wiring/**/*.py"),
    "views": ("views/**/*.py", "telemetry/**/*.py"),
    "settings": ("settings/**/*.py", "*.py", "instructions/**/*.py"),
    "work": tuple(
        f"{name}/**/*.py" for name in ("folders", "mcp", "model", "sandbox", "tools", "workspaces")
    ),
}
"""Around those: samples of what may be forgotten are drawn from here, too."""


def files(scope: str) -> tuple[Path, ...]:
    """The files of a scope."""
    folder = ROOT / "orchestrator"
    return tuple(sorted(file for glob in (SCOPES | AROUND)[scope] for file in folder.glob(glob)))


def scopes(group: Group) -> tuple[str, ...]:
    """The scopes of a group's samples; nothing is forgotten in scripts, whose branches are dropped anyway."""
    if group == "turned":
        return tuple(SCOPES)
    return tuple(scope for scope in (*SCOPES, *AROUND) if scope != "lua")


@cache
def all_changes(scope: str, group: Group = "turned") -> tuple[Change, ...]:
    """Every change that could be made in a scope, and some that do not compile."""
    found: list[Change] = []
    for file in files(scope):
        path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            found += python_operators.changes(path, text, group)
        else:
            found += lua_operators.changes(path, text)
    return tuple(found)


def compiles(change: Change) -> bool:
    return python_operators.compiles(change) if change.module else lua_operators.compiles(change)


def sample(count: int, seed: int, named: Sequence[str] = (), group: Group = "turned") -> list[Change]:
    """`count` changes, an even share of each scope (those named, or all of the group).

    The first scopes have one more where it does not divide.
    """
    chosen: list[Change] = []
    among = named or scopes(group)
    for at, scope in enumerate(among):
        share = count // len(among) + (at < count % len(among))
        chosen += _chosen(all_changes(scope, group), share, seed)
    return chosen


def _chosen(changes: Iterable[Change], share: int, seed: int) -> list[Change]:
    statements: dict[tuple[str, str, str], dict[str, list[Change]]] = {}
    for change in changes:
        operators = statements.setdefault((change.path, change.function, change.statement), {})
        operators.setdefault(change.operator, []).append(change)
    found: list[Change] = []
    for statement in sorted(statements, key=lambda statement: _lot(seed, *statement)):
        if len(found) == share:
            break
        operators = statements[statement]
        ordered = sorted(operators, key=lambda operator: _lot(seed, *statement, operator))
        candidates = (
            change
            for operator in ordered
            for change in sorted(operators[operator], key=lambda change: _lot(seed, change.id))
        )
        fitting = next((change for change in candidates if compiles(change)), None)
        if fitting is not None:
            found.append(fitting)
    return found


def _lot(seed: int, *names: str) -> bytes:
    return hashlib.sha256("\0".join((str(seed), *names)).encode()).digest()
