"""Which calls need somebody's leave: the table of approval policies, written down a second time.

Knows what the simulated model asks for (`ask`: a command that is not known to be safe; `escalated`,
`dangerous`, `outside`; `prefix`: begins with `touch`; `reads`: a tool of an MCP server that only reads) and
nothing of the product's rules. Simulated workers can always confine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Verdict = tuple[Literal["run", "ask", "refuse"], bool]
"""The decision on a call, and whether the call runs confined."""
PREFIX_KEY = 'prefix:["touch"]'
"""The key of the prefix that people allow."""
REFUSED: Verdict = ("refuse", False)


def verdict(
    name: str,
    given: Mapping[str, Any],
    spec: Mapping[str, Any],
    settings: Mapping[str, Any],
    approved: set[str],
    *,
    may_leave: bool,
) -> Verdict:
    """On a call with the arguments `given`, where the keys `approved` were approved for the session.

    `may_leave`: a prefix that people allow outside of the sandbox takes this agent's commands out of it.
    """
    policy, free = settings["approval_policy"], settings["sandbox_policy"]["mode"] == "danger-full-access"
    if name == "apply_patch":
        return _of_patch(given, spec, policy, approved)
    if is_tool(name):
        known = given.get("reads") or any(key in approved for key in spec.get("keys", ()))
        return ("run" if known or policy != "untrusted" else "ask"), False
    if given.get("prefix") and not given.get("dangerous"):
        outside = f"unconfined:{PREFIX_KEY}" in approved
        if outside and (may_leave or free):
            return "run", False
        if (outside or PREFIX_KEY in approved) and not given.get("escalated"):
            return "run", not free
    escalated, confined = bool(given.get("escalated")), not free and not given.get("escalated")
    if escalated and policy != "on-request":
        return REFUSED
    keys = spec.get("keys", ())
    if any(f"unconfined:{key}" in approved for key in keys):
        return "run", False
    if (free or confined) and any(key in approved for key in keys):
        return "run", confined
    if given.get("dangerous"):
        return REFUSED if policy == "never" else ("ask", confined)
    if not given.get("ask"):
        return "run", not free
    return ("ask", confined) if escalated or policy == "untrusted" else ("run", confined)


def is_tool(name: str) -> bool:
    """Whether a call is one of an MCP server's tool."""
    return name.startswith("mcp__")


def _of_patch(given: Mapping[str, Any], spec: Mapping[str, Any], policy: str, approved: set[str]) -> Verdict:
    if spec.get("keys") and set(spec["keys"]) <= approved:
        return "run", False
    if policy == "untrusted":
        return "ask", False
    if not given.get("outside"):
        return "run", True
    return REFUSED if policy == "never" else ("ask", False)


def asks_for_more(policy: str) -> bool:
    """Whether a command that its confinement stopped is asked about again."""
    return policy in ("on-failure", "untrusted")
