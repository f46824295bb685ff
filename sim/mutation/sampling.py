"""Which changes a sample holds: the seed's choice, and the same one as long as a place reads the same.

A sample is split evenly over its scopes (Lua, core, runtime). Within a scope a statement is
chosen (each is as likely as any other, however much can be changed in it), then one of the operators that
fit it, then one of their changes. All of it by numbers that are made of the seed and of the text: a line
added elsewhere moves nothing, and a larger sample of the same seed holds the smaller one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache

from sim.mutation import lua_operators, python_operators
from sim.mutation.change import ROOT, Change

SCOPES = {
    "lua": ("broker/lua/*.lua",),
    "core": ("core/**/*.py",),
    "runtime": ("rollouts/**/*.py", "runtime/**/*.py"),
}
"""Of the files of `orchestrator/`; what the runtime writes and reads again counts as it does."""


@cache
def all_changes(scope: str) -> tuple[Change, ...]:
    """Every change that could be made in a scope, and some that do not compile."""
    found: list[Change] = []
    folder = ROOT / "orchestrator"
    for file in sorted(file for glob in SCOPES[scope] for file in folder.glob(glob)):
        path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        found += (python_operators if file.suffix == ".py" else lua_operators).changes(path, text)
    return tuple(found)


def compiles(change: Change) -> bool:
    return python_operators.compiles(change) if change.module else lua_operators.compiles(change)


def sample(count: int, seed: int, scopes: Sequence[str] = tuple(SCOPES)) -> list[Change]:
    """`count` changes, an even share of each scope; the first ones have one more where it does not divide."""
    chosen: list[Change] = []
    for at, scope in enumerate(scopes):
        share = count // len(scopes) + (at < count % len(scopes))
        chosen += _chosen(all_changes(scope), share, seed)
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
