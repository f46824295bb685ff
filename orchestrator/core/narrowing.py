"""Narrowing: a child runs under what its parent's turn has, or less.

The turn counts, not what the session was started with: a turn that was narrowed to
read-only makes read-only children.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.wire import JsonMapping
from orchestrator.tables import SANDBOX_MODES

_RANK = {mode: rank for rank, mode in enumerate(SANDBOX_MODES)}
_WORDS = {
    "read": "read-only",
    "readonly": "read-only",
    "workspace": "workspace-write",
    "workspacewrite": "workspace-write",
    "danger": "danger-full-access",
    "fullaccess": "danger-full-access",
    "dangerfullaccess": "danger-full-access",
}


class Widening(ValueError):
    """A child was to get more than its parent's turn has, or something that nobody knows."""


def sandbox_mode(text: str) -> str:
    """The mode that a model's word means; case, `_`, `-` and spaces do not matter."""
    folded = "".join(letter for letter in text.lower() if letter not in "_- ")
    mode = _WORDS.get(folded)
    if mode is None:
        raise Widening(f"unknown sandbox_mode {text!r}: read-only, workspace-write or danger-full-access")
    return mode


def narrowed(parent: TurnSettings, mode: str | None, model: str | None) -> TurnSettings:
    """The child's settings; raises `Widening` with what was asked for and what the parent has."""
    settings = parent if model is None else parent.changed({"model": model})
    if mode is None:
        return settings
    wanted, has = sandbox_mode(mode), parent.sandbox_policy["mode"]
    if _RANK[wanted] > _RANK.get(has, 0):
        raise Widening(
            f"an agent may not get more than its parent: {wanted} was asked for, {has} is in force"
        )
    return replace(settings, sandbox_policy=_policy(parent.sandbox_policy, wanted))


def _policy(parent: JsonMapping, mode: str) -> JsonMapping:
    if mode == parent["mode"]:
        return parent
    return {"mode": mode}


def helper_settings(parent: TurnSettings, model: str | None) -> TurnSettings:
    """The settings of a helper: read-only, and no approval is ever asked for."""
    settings = narrowed(parent, "read-only", model)
    return replace(settings, approval_policy="never")
