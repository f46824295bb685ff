"""An auditor's questions to the logs of a tree: who decided about a call, and what requests have cost.

The same records come from sessions in Redis, from a full export and from a bundle. Where the chain of a log
was checked on the way, what its entries say was written so; who is named in them is still the word of a door,
of a worker or of a provider, and that is said beside each answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson

from orchestrator.core.chain import ChainKey, ChainWalk
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.bundle_form import log_member, read_line
from orchestrator.rollouts.bundle_members import lines_of, open_members
from orchestrator.rollouts.file_format import read_rollout
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.log_errors import RolloutError
from orchestrator.rollouts.segments import links_of

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.rollouts.source import LogSource

By: TypeAlias = Literal["who", "behalf", "agent", "model", "day", "token"]
UNKNOWN: Final = "unknown"
MOST_SHOWN: Final = 300
"""Characters of a command."""


@record
class Told:
    """An entry, as far as the questions read it."""

    session: str
    seq: int
    epoch: int
    line: Mapping[str, Any]

    @property
    def place(self) -> str:
        """By which an answer names it."""
        return f"{self.session}:{self.seq}"

    @property
    def payload(self) -> Mapping[str, Any]:
        """Of the entry; empty for what is no object."""
        found = self.line.get("payload")
        return found if isinstance(found, dict) else {}

    @property
    def kind(self) -> str:
        """Of a fact; empty for other entries."""
        return str(self.payload.get("kind", "")) if self.line.get("type") == "dendro" else ""


@dataclass(slots=True)
class Logs:
    """The entries of a tree's logs, and whether their chains were checked while they were read."""

    entries: list[Told] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why what the entries say is not proved to be written so; empty where each chain holds."""

    def add(self, session: str, seq: int, epoch: int, data: bytes | str) -> None:
        """Takes an entry as it is stored."""
        self.entries.append(Told(session, seq, epoch, orjson.loads(data)))


async def logs_of_tree(found: LogSource, head: SessionHead) -> Logs:
    """The logs of all sessions of a tree that are there, each with its chain checked."""
    logs = Logs()
    registry = await found.broker.trees.registry(head.tree)
    names = [SessionId(head.tree), *(agent.session for agent in registry.agents.values())]
    for each in await found.broker.logs.heads(tuple(dict.fromkeys(names))):
        walk = ChainWalk(found.secret)
        async for page in pages(found.log(each.session, each.seq)):
            if (broken := walk.take(tuple(links_of(page)))) is not None:
                logs.faults.append(f"{each.session}:{broken.seq}: {broken.reason}")
                break
            for stored in page:
                logs.add(each.session, stored.seq, stored.epoch, stored.payload)
    return logs


def logs_of_export(path: Path, key: ChainKey | None) -> Logs:
    """The log of a full export; raises `RolloutError` for any other file."""
    from orchestrator.rollouts.verify import audit_file

    logs = Logs()
    report = audit_file(path, key, None)
    logs.faults += [f"{each.seq}: {each.reason}" for each in report.findings]
    logs.faults += [report.unchecked] if report.unchecked else []
    with path.open("rb") as file:
        text = read_rollout(file)
        if text.header is None:
            raise RolloutError(f"{path}: facts are left out of it; ask a session, a bundle, or a full export")
        for line in text.lines:
            if line.entry is not None and line.place is not None:
                value = {"timestamp": line.timestamp, "type": line.entry.type, "payload": line.entry.payload}
                place = line.place
                logs.entries.append(Told(text.header.session_id, place.seq, place.epoch, value))
    return logs


def logs_of_bundle(path: Path, key: ChainKey | None) -> Logs:
    """The logs of a bundle."""
    from orchestrator.rollouts.bundle_check import check_bundle

    logs = Logs()
    report = check_bundle(path, None, key)
    logs.faults += [f"{each.code} {each.place}: {each.text}" for each in report.findings]
    if report.manifest is None:
        return logs
    members = open_members(path)
    try:
        for log in report.logs:
            if log.startswith("session:"):
                for lines in lines_of(members.chunks(log_member(log))):
                    for line in lines:
                        read = read_line(line, tree=False)
                        if read.payload is not None:
                            logs.add(log.removeprefix("session:"), read.seq, read.epoch, read.payload)
    finally:
        members.close()
    return logs


# ── senders and workers ───────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Log:
    """The words of one session's log so far."""

    agent: str = "0"
    behalf: Mapping[str, Any] | None = None
    task: Told | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    claimed: Told | None = None

    def take(self, told: Told) -> None:
        """Reads an entry."""
        payload = told.payload
        match told.kind:
            case "configured":
                facts = payload.get("session") or {}
                self.agent, self.behalf = str(facts.get("agent_path", "0")), facts.get("behalf")
            case "task":
                self.task, self.settings = told, payload.get("settings") or {}
            case "claimed":
                self.claimed = told

    def giver(self) -> tuple[Mapping[str, Any] | None, str]:
        """For whom the session works, and the entry that says it."""
        if self.task is not None and self.task.payload.get("by"):
            return self.task.payload["by"], self.task.place
        return self.behalf, "" if self.task is None else f"{self.task.session}:2"


def name_of(by: Mapping[str, Any] | None) -> str:
    """A sender in words."""
    if not isinstance(by, Mapping) or not by.get("who"):
        return UNKNOWN
    return f"{by['who']} (scope {by.get('scope')}, token {by.get('token')}) through {by.get('via')}"


# ── who ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Decided:
    """A call, who let it run, and what came of it; each with the entries that say so."""

    session: str
    agent: str
    call_id: str
    command: str
    name: str = ""
    cwd: str = ""
    sandboxed: bool | None = None
    asked: str = ""
    shown: str = ""
    decision: str = ""
    by: str = ""
    by_entry: str = ""
    unasked: str = ""
    behalf: str = ""
    behalf_entry: str = ""
    worker: str = ""
    worker_entry: str = ""
    result: str = ""
    entries: list[str] = field(default_factory=list)


def who(logs: Logs, wanted: str) -> list[Decided]:
    """The calls of this id, or whose command or tool fits the pattern, in their order."""
    known: dict[str, _Log] = {}
    calls: dict[tuple[str, str], Decided] = {}
    for told in logs.entries:
        log = known.setdefault(told.session, _Log())
        log.take(told)
        _call(log, told, calls)
    return [call for call in calls.values() if _fits(call, wanted)]


def _fits(call: Decided, wanted: str) -> bool:
    return call.call_id == wanted or any(
        text and fnmatchcase(text, wanted) for text in (call.command, call.name)
    )


def _call(log: _Log, told: Told, calls: dict[tuple[str, str], Decided]) -> None:
    payload = told.payload
    key = told.session, str(payload.get("call_id", ""))
    if told.line.get("type") == "response_item" and payload.get("type") in _CALLS:
        name = str(payload.get("name") or payload.get("type"))
        calls[key] = Decided(told.session, log.agent, key[1], name, name, entries=[told.place])
        return
    call = calls.get(key)
    if call is None:
        return
    if told.line.get("type") == "response_item" and str(payload.get("type", "")).endswith("_output"):
        call.entries.append(told.place)
    elif told.line.get("type") == "event_msg" and payload.get("type") == "exec_command_end":
        call.result = f"exit {payload.get('exit_code')}"
        call.entries.append(told.place)
    elif told.kind == "call":
        _moved(log, told, call)
    elif told.kind == "answer" and payload.get("agent_id") is None:
        call.decision, call.by_entry = str(payload.get("decision")), told.place
        by = payload.get("by")
        call.by = name_of(by) if by else f"{payload.get('who')} (older entry: no door is named)"
        shown = payload.get("shown")
        call.shown = "the text that they had before them is kept" if shown else ""
        call.entries.append(told.place)


def _moved(log: _Log, told: Told, call: Decided) -> None:
    work, phase = told.payload.get("spec") or {}, told.payload.get("phase")
    words = work.get("command")
    if isinstance(words, list):
        call.command = shlex.join(map(str, words))[:MOST_SHOWN]
    call.cwd = str(work.get("cwd") or call.cwd)
    call.sandboxed = work.get("sandboxed", call.sandboxed)
    call.entries.append(told.place)
    if phase == "awaiting_approval":
        call.asked = told.place
    if phase != "running":
        return
    by, entry = log.giver()
    call.behalf, call.behalf_entry = name_of(by), entry
    if log.claimed is not None and log.claimed.epoch == told.epoch:
        worker = log.claimed.payload
        sandbox = worker.get("sandbox") or {}
        call.worker = (
            f"{worker.get('worker')} on {worker.get('machine')} (version {worker.get('version')}, "
            f"{sandbox.get('kind', UNKNOWN)}, settings {str(worker.get('settings') or 'untold')[:8]}, "
            f"rules {str(worker.get('rules') or 'none')[:8]})"
        )
        call.worker_entry = log.claimed.place
    if not call.decision:
        mode = (log.settings.get("sandbox_policy") or {}).get("mode")
        call.unasked = f"approvals {log.settings.get('approval_policy')}, sandbox {mode}"


_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Cost:
    """The requests of one group."""

    name: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0
    unpriced: int = 0
    """Requests that used tokens and have no price: their cost is unknown, and not zero."""
    entries: list[str] = field(default_factory=list)


def cost(logs: Logs, by: By) -> list[Cost]:
    """The cost of all requests by the group, the dearest first."""
    known: dict[str, _Log] = {}
    groups: dict[str, Cost] = {}
    for told in logs.entries:
        log = known.setdefault(told.session, _Log())
        log.take(told)
        if told.kind != "request_ended":
            continue
        group = groups.setdefault(name := _group(log, told, by), Cost(name))
        usage, price = told.payload.get("usage") or {}, told.payload.get("price")
        group.requests += 1
        group.input_tokens += int(usage.get("input_tokens") or 0)
        group.output_tokens += int(usage.get("output_tokens") or 0)
        group.cost_micro += int(price["cost_micro"]) if isinstance(price, dict) else 0
        group.unpriced += bool(usage) and not isinstance(price, dict)
        group.entries.append(told.place)
    return sorted(groups.values(), key=lambda group: (-group.cost_micro, group.name))


def _group(log: _Log, told: Told, by: By) -> str:
    task = log.task.payload if log.task is not None else {}
    match by:
        case "agent":
            return log.agent
        case "model":
            served = (told.payload.get("served_by") or {}).get("model")
            return str(served or log.settings.get("model") or UNKNOWN)
        case "day":
            return str(told.line.get("timestamp", UNKNOWN))[:10]
        case "who":
            return _named(task.get("by"), "who") if task.get("by") else "nobody (mail began the task)"
        case "token":
            return _named(log.giver()[0], "token")
        case "behalf":
            return _named(log.giver()[0], "who")


def _named(by: Mapping[str, Any] | None, name: str) -> str:
    return str(by.get(name) or UNKNOWN) if isinstance(by, Mapping) else UNKNOWN
