"""Refusals of calls about agents: each is of a known kind, and true of the log of the agent that asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sim.grammar import Grammar
from sim.grammar_terms import check

Holds = Callable[[Mapping[str, Any], Grammar, str], object]
"""Whether a refusal holds for a call with these arguments; the text is the number, or name, that it tells."""


def refusal_is_true(name: str, given: Mapping[str, Any], output: str, log: Grammar) -> None:
    """The output of a call that carried out nothing; raises `Wrong`."""
    for pattern, holds in _REFUSALS:
        if found := pattern.match(output):
            told = found.group(1) if pattern.groups else ""
            check(holds(given, log, told), f"{name} {dict(given)} is refused: {output}")
            return
    check(False, f"{name} {dict(given)} is answered with {output!r}")


def may_make(log: Grammar) -> bool:
    """Whether an agent may make others, as far as its own log says."""
    return not log.facts["helper_call"] and _depth(log) < log.facts["tree_rules"]["depth"]


def _depth(log: Grammar) -> int:
    return str(log.facts["agent_path"]).count("/")


def _too_deep(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    most = log.facts["tree_rules"]["depth"]
    return int(told) == most and _depth(log) >= most and not log.facts["helper_call"]


def _reads_only(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    return bool(log.facts["helper_call"])


def _listed(log: Grammar) -> set[int]:
    return {id for id, child in log.children.items() if not child["pruned"]}


def _no_children(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    return not _listed(log)


def _names_a_stranger(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    return bool(set(given.get("agent_ids") or ()) - _listed(log))


def _not_listed(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    """An agent above may have pruned a child, and word of that be on its way."""
    number = int(told)
    return number == given.get("agent_id") and (number not in _listed(log) or log.is_pruned(number))


def _canceled(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    """Of a child; agents further down are known to the registry alone."""
    return int(told) == given.get("agent_id")


def _timeout(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    rules, asked = log.facts["tree_rules"], given.get("timeout_s") or 0.0
    return bool(asked) and not rules["await_floor_s"] <= asked <= rules["await_cap_s"]


def _interval(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    floor_s = log.facts["tree_rules"]["watchdog_floor_s"]
    return bool(float(told) == floor_s and given["interval_s"] < floor_s)


def _most_watchdogs(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    most = log.facts["tree_rules"]["watchdogs"]
    return int(told) == most == len(log.watchdogs) and given.get("agent_id") not in log.watchdogs


def _to_itself(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    return bool(given.get("agent_id") == log.facts["agent_id"])


def _interrupts_root(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    return given.get("agent_id") == 0 and bool(given.get("interrupt"))


def to_be_refused(name: str, given: Mapping[str, Any], log: Grammar) -> bool:
    """Whether a call with these arguments may not be carried out, as far as its own log tells."""
    match name:
        case "subagent_await":
            return _timeout(given, log, "")
        case "subagent_watchdog":
            floor_s = log.facts["tree_rules"]["watchdog_floor_s"]
            return not given.get("cancel") and bool(given["interval_s"] < floor_s)
        case "subagent_send_message":
            return _to_itself(given, log, "") or _interrupts_root(given, log, "")
        case _:
            return False


def _copies(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    """Of an agent for which a folder is to be copied, by a call that runs."""
    return given.get("workspace") == "own" and not log.facts.get("portable")


def _always(given: Mapping[str, Any], log: Grammar, told: str) -> bool:
    """Accepts refusals that only the tree can judge: see `slots`, `spawned`, `budget` and `marked`."""
    return True


_REFUSALS: tuple[tuple[re.Pattern[str], Holds], ...] = tuple(
    (re.compile(pattern), holds)
    for pattern, holds in (
        (r"this agent only reads for another one", _reads_only),
        (r"the tree's depth limit is (\d+)", _too_deep),
        (r"this tree may make \d+ agents in all", lambda given, log, told: may_make(log)),
        (r"no slot is free", _always),
        (r"the tree's budget of \w+ is spent", _always),
        (r"there is no agent to wait for", _no_children),
        (r"not a child of yours", _names_a_stranger),
        (r"there is no agent (\d+)", _not_listed),
        (r"agent (\d+) is not below you", _not_listed),
        (r"agent (\d+) was canceled", _canceled),
        (r"none of these agents is below you", _always),
        (r"an agent does not write to itself", _to_itself),
        (r"the root is not interrupted by its agents", _interrupts_root),
        (r"timeout_s: ", _timeout),
        (r"interval_s: at least ([\d.]+) seconds", _interval),
        (r"an agent keeps at most (\d+) watchdogs?", _most_watchdogs),
        (r"that agent's queue is full|that agent is archived|no such agent", _always),
        (r"the helper failed: |the helper was stopped", _always),
        (r"not made: the last changes of the folder", lambda given, log, told: log.unsaved is not None),
        (r"not made: (the folder .* cannot be copied|the store of folders|this machine )", _copies),
        (r"not run: |killed after ", _copies),
    )
)
