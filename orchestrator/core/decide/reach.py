"""Where a call would run if a person allows it, and what it could do there, in Dendro's own words.

A model's justification is one line of bounded length: it cannot be taken for a line of ours.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Final, assert_never

from orchestrator.core.calls import CustomWork, ExecWork, McpWork, MergeWork, PatchWork, RunnableWork
from orchestrator.core.calls.merge import writable_folders
from orchestrator.core.calls.verdict import Ask
from orchestrator.core.decide.draft import Draft
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import Reach
from orchestrator.protocol.scalars import LargeText

MOST_SAID: Final = 2_000
"""Characters of a justification that a request shows."""
MOST_NAMED: Final = 5
"""Paths that one line names."""
OUTSIDE: Final = "OUTSIDE THE SANDBOX"
ALL_RIGHTS: Final = "with all rights of the user who runs the worker: every file of theirs, and the network"


def reach_of(draft: Draft, work: RunnableWork, asked: Ask) -> Reach:
    """The reach of a call that is about to be asked about."""
    confined = _stays_confined(work, asked)
    return Reach(
        sandboxed=confined,
        text=one_line(_text(draft.state, draft.task.settings, work, asked, draft.moment.machine)),
        machine=draft.moment.machine,
        why=one_line(asked.reason or ""),
        says=said(asked.says),
        by_link=_by_link(work, asked) or None,
    )


def _by_link(work: RunnableWork, asked: Ask) -> bool:
    """Whether a link leads from a path of the request to another one, outside of the sandbox's folders."""
    if not isinstance(work, PatchWork) or work.left_out:
        return False
    moved = (change.get("move_path") for change in work.changes.values() if isinstance(change, dict))
    return not {*asked.outside} <= {*work.changes, *(path for path in moved if isinstance(path, str))}


def server_reach(draft: Draft, call: Call, server: str) -> Reach:
    """Where the server of a call works that asks a person in the middle of it."""
    folder = call.work.cwd if isinstance(call.work, McpWork) else draft.state.in_force.cwd
    where, gains = _at(draft.state, folder, draft.moment.machine), "lets nothing run in Dendro"
    text = f"{OUTSIDE}, {where}, the MCP server {server} works: an answer goes to it, and {gains}"
    return Reach(sandboxed=False, text=one_line(text), machine=draft.moment.machine)


def _stays_confined(work: RunnableWork, asked: Ask) -> bool:
    match work:
        case ExecWork():
            return work.sandboxed
        case PatchWork() | MergeWork():
            return not asked.outside
        case CustomWork() | McpWork():
            return False
        case _:
            assert_never(work)


def _text(state: State, settings: TurnSettings, work: RunnableWork, asked: Ask, machine: str) -> str:
    where = _where(state, work, machine)
    match work:
        case ExecWork():
            lasts = "; it may go on running behind its call" if work.lasting is not None else ""
            return f"{_command(state, settings, work.sandboxed, where)}{lasts}"
        case PatchWork() | MergeWork() if asked.outside:
            return f"{OUTSIDE}, {where}: Dendro writes {named(asked.outside)}"
        case PatchWork() | MergeWork():
            return f"inside of the folders that the sandbox lets it write, {where}: Dendro writes the files"
        case McpWork():
            return f"{OUTSIDE}, {where}: the MCP server {work.server} does it, {ALL_RIGHTS}"
        case CustomWork():
            return f"{OUTSIDE}, {where}: the worker's own program does it, {ALL_RIGHTS}"
        case _:
            assert_never(work)


def _where(state: State, work: RunnableWork, machine: str) -> str:
    folder = work.folder or state.in_force.cwd if isinstance(work, MergeWork) else work.cwd
    return _at(state, folder, machine)


def _at(state: State, folder: LargeText, machine: str) -> str:
    place = f"in {folder if isinstance(folder, str) else '[a long path]'}"
    if state.facts.portable is not None:
        return f"{place} on a worker of the pool {state.facts.pool}"
    return f"{place} on {machine}" if machine else place


def _command(state: State, settings: TurnSettings, sandboxed: bool, where: str) -> str:
    if not sandboxed:
        granted = ": the session has full access" if settings.full_access else ""
        return f"{OUTSIDE}, {where}{granted}, {ALL_RIGHTS}"
    policy = settings.sandbox_policy
    if policy["mode"] != "workspace-write":
        return f"in the sandbox, {where}: it can read files, and write none; it has no network"
    network = "it has the network" if policy.get("network_access") else "it has no network"
    roots = dict.fromkeys((*writable_folders(settings), *state.granted_roots))
    temporary = policy.get("exclude_slash_tmp") and policy.get("exclude_tmpdir_env_var")
    also = "" if temporary else " and temporary folders"
    return f"in the sandbox, {where}: it can read files, and write in {named(roots)}{also}; {network}"


def named(paths: Iterable[str]) -> str:
    """Paths in a line, the first few of them."""
    found = [posixpath.normpath(path) for path in paths]
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def said(text: str) -> str:
    """A model's justification as a request shows it: it cannot end the quotation marks around it."""
    line = one_line(text).replace("“", '"').replace("”", '"')
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}…"


def one_line(text: str) -> str:
    """A text without what begins a new line or steers a screen."""
    return "".join(char if char.isprintable() else _escaped(char) for char in " ".join(text.split()))


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}"
