"""An auditor's questions to the logs of a tree: who decided about a call, and what requests have cost.

The same records come from sessions in Redis, from a full export and from a bundle. Where the chain of a log
was checked on the way, what its entries say was written so; who is named in them is still the word of a door,
of a worker or of a provider, and that is said beside each answer. Logs are read entry by entry, each log
whole, in the order in which their sessions were made; what is held of them is what an answer needs.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import orjson

from orchestrator.core.blobs import is_reference, may_refer, references
from orchestrator.core.chain import ChainKey, ChainWalk
from orchestrator.core.frozen import record
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.audit import is_keyed
from orchestrator.rollouts.bundle_form import log_member, read_line
from orchestrator.rollouts.bundle_members import lines_of, open_members
from orchestrator.rollouts.file_format import Header, read_rollout
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.segments import links_of
from orchestrator.rollouts.verify import unchecked_for

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead, Spend, StoredEntry
    from orchestrator.rollouts.source import LogSource

By: TypeAlias = Literal["who", "behalf", "agent", "model", "day", "token"]
UNKNOWN: Final = "unknown"
MOST_SHOWN: Final = 300
"""Characters of a command, of words of a person or of a model."""
MOST_ENTRIES: Final = 1_000
"""Entries that one answer names; more are counted."""
_NO_TEXTS: Final[Mapping[str, str]] = {}


@record
class Told:
    """An entry, as far as the questions read it; without `line` where its text was redacted or withheld."""

    session: str
    seq: int
    epoch: int
    line: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    """Large texts that it refers to, by their SHA-256, where they were asked for and are stored."""

    @property
    def place(self) -> str:
        """By which an answer names it."""
        return f"{self.session}:{self.seq}"

    @property
    def at(self) -> str:
        """Its time, as it says."""
        return str(self.line.get("timestamp", ""))

    @property
    def type(self) -> str:
        """Of its line; empty without one."""
        return str(self.line.get("type", ""))

    @property
    def payload(self) -> Mapping[str, Any]:
        """Of the entry; empty for what is no object."""
        found = self.line.get("payload")
        return found if isinstance(found, dict) else {}

    @property
    def kind(self) -> str:
        """Of a fact; empty for other entries."""
        return str(self.payload.get("kind", "")) if self.line.get("type") == "dendro" else ""

    def text(self, value: Any) -> str:
        """A text of the entry, or the one that stands in its place beside the log; empty for what is none."""
        if is_reference(value):
            return self.texts.get(value["$blob"], "")
        return value if isinstance(value, str) else ""


class Source(Protocol):
    """The logs of a tree, wherever they are."""

    @property
    def faults(self) -> list[str]:
        """Why what the entries say is not proved to be written so; empty where each chain holds."""
        ...

    @property
    def unchecked(self) -> str:
        """Why it cannot be checked here; empty where it was."""
        ...

    @property
    def spent(self) -> Spend | None:
        """The usage by the tree's registry; None where none is at hand, or the tree's logs grow."""
        ...

    def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        """All entries, log by log; with the large texts that they refer to, if `texts`."""
        ...

    async def texts(self, digests: Collection[str]) -> Mapping[str, str]:
        """Large texts by their SHA-256; one that is not stored is left out."""
        ...


@dataclass(slots=True)
class Logs:
    """Entries in memory."""

    told: list[Told] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unchecked: str = ""
    spent: Spend | None = None
    stored: Mapping[str, str] = field(default_factory=dict)

    def add(self, session: str, seq: int, epoch: int, data: bytes | str) -> None:
        """Takes an entry as it is stored."""
        self.told.append(Told(session, seq, epoch, orjson.loads(data)))

    async def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        for told in self.told:
            yield Told(told.session, told.seq, told.epoch, told.line, self.stored if texts else _NO_TEXTS)

    async def texts(self, digests: Collection[str]) -> Mapping[str, str]:
        return {digest: self.stored[digest] for digest in digests if digest in self.stored}


class _Tree:
    """The logs of all sessions of a tree that are there, each with its chain checked."""

    def __init__(self, found: LogSource, head: SessionHead) -> None:
        self.faults: list[str] = []
        self.unchecked = ""
        self.spent: Spend | None = None
        self._found, self._tree = found, head.tree
        self._heads: list[SessionHead] = []

    async def check(self) -> None:
        """Follows each chain once: an answer says whether it is proved before the next log is read."""
        trees = self._found.broker.trees
        [before] = await trees.accounts([self._tree])
        self._heads = sorted((await trees.heads_at_once(self._tree))[1], key=lambda head: str(head.session))
        [after] = await trees.accounts([self._tree])
        self.spent = after.used if after.used == before.used else None
        for head in self._heads:
            walk = ChainWalk(self._found.secret)
            async for page in pages(self._found.log(head.session, head.seq)):
                links = tuple(links_of(page))
                if (broken := walk.take(links)) is not None:
                    if not self._found.secret and is_keyed(links, broken):
                        self.unchecked = unchecked_for("")
                    else:
                        self.faults.append(f"{head.session}:{broken.seq}: {broken.reason}")
                    break
            else:
                if (walk.seq, walk.head) != (head.seq, head.head):
                    self.faults.append(f"{head.session}:{walk.seq + 1}: the log should go on to {head.seq}")

    async def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        for head in self._heads:
            async for page in pages(self._found.log(head.session, head.seq)):
                for stored in page:
                    yield await self._told(str(head.session), stored, texts=texts)

    async def _told(self, session: str, stored: StoredEntry, *, texts: bool) -> Told:
        line = orjson.loads(stored.payload)
        named = await self.texts(set(references(line))) if texts and may_refer(stored.payload) else _NO_TEXTS
        return Told(session, stored.seq, stored.epoch, line, named)

    async def texts(self, digests: Collection[str]) -> Mapping[str, str]:
        return await self._found.large_texts(self._tree, digests)


async def logs_of_tree(found: LogSource, head: SessionHead) -> Source:
    """The logs of all sessions of a tree that are there, each with its chain checked."""
    tree = _Tree(found, head)
    await tree.check()
    return tree


class _Export:
    """The log of a full export: its large texts stand in its lines."""

    spent: Spend | None = None

    def __init__(self, path: Path, key: ChainKey | None) -> None:
        from orchestrator.rollouts.verify import audit_file

        self._path = path
        with path.open("rb") as file:
            header = read_rollout(file).header
        if header is None:
            raise RolloutError(f"{path}: facts are left out of it; ask a session, a bundle, or a full export")
        self._header: Header = header
        report = audit_file(path, key, None)
        self.faults = [f"{each.seq}: {each.reason}" for each in report.findings]
        self.unchecked = report.unchecked

    async def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        for told in self._lines():
            yield told

    def _lines(self) -> Iterator[Told]:
        kept: dict[str, bytes] = {}
        with self._path.open("rb") as file:
            for line in read_rollout(file, kept).lines:
                texts = {name: data.decode("utf-8", "surrogatepass") for name, data in kept.items()}
                kept.clear()
                if line.place is None:
                    continue
                value: dict[str, Any] = {}
                if line.entry is not None:
                    entry = line.entry
                    value = {"timestamp": line.timestamp, "type": entry.type, "payload": entry.payload}
                    value |= {"id": entry.id} if entry.id else {}
                yield Told(self._header.session_id, line.place.seq, line.place.epoch, value, texts)

    async def texts(self, digests: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for told in self._lines():
            found |= {digest: told.texts[digest] for digest in digests if digest in told.texts}
        return found


def logs_of_export(path: Path, key: ChainKey | None) -> Source:
    """The log of a full export; raises `RolloutError` for any other file."""
    return _Export(path, key)


class _Bundle:
    """The logs of a bundle."""

    spent: Spend | None = None

    def __init__(self, path: Path, key: ChainKey | None) -> None:
        from orchestrator.rollouts.bundle_check import check_bundle

        report = check_bundle(path, None, key)
        self.faults = [f"{each.code} {each.place}: {each.text}" for each in report.findings]
        self.unchecked = ""
        self._path = path
        self._sessions: list[str] = []
        if report.manifest is not None:
            self._sessions = sorted(log.session for log in report.manifest.logs if log.session)
            keyed = {log.key_id for log in report.manifest.logs if log.key_id}
            unknown = sorted(keyed - {key.id if key is not None else ""})
            self.unchecked = unchecked_for(unknown[0]) if unknown else ""

    async def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        if not self._sessions:
            return
        members = open_members(self._path)
        try:
            for session in self._sessions:
                name = log_member(f"session:{session}")
                if name not in members.members:
                    continue
                for lines in lines_of(members.chunks(name)):
                    for line in lines:
                        read = read_line(line, tree=False)
                        text = read.payload or ""
                        value = orjson.loads(text) if text else {}
                        named = _NO_TEXTS
                        if texts and may_refer(text.encode()):
                            named = await self.texts(set(references(value)))
                        yield Told(session, read.seq, read.epoch, value, named)
        finally:
            members.close()

    async def texts(self, digests: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        members = open_members(self._path)
        try:
            for digest in digests:
                if (name := f"texts/{digest}") in members.members:
                    data = b"".join(members.chunks(name))
                    if sha256(data).hexdigest() == digest:
                        found[digest] = data.decode("utf-8", "surrogatepass")
        finally:
            members.close()
        return found


def logs_of_bundle(path: Path, key: ChainKey | None) -> Source:
    """The logs of a bundle."""
    return _Bundle(path, key)


# ── senders and workers ───────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Log:
    """The words of one session's log so far."""

    agent: str = "0"
    behalf: Mapping[str, Any] | None = None
    task: Told | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    claimed: Told | None = None
    approved: dict[str, str] = field(default_factory=dict)
    """Keys that were approved for the session, each with the entry that says so."""

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
            case "approved_for_session":
                self.approved |= dict.fromkeys(map(str, payload.get("keys") or ()), told.place)

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
    at: str = ""
    cwd: str = ""
    sandboxed: bool | None = None
    asked: str = ""
    shown: str = ""
    decision: str = ""
    by: str = ""
    by_entry: str = ""
    key: str = ""
    """The key that the answer names as the one that signed it."""
    unasked: str = ""
    behalf: str = ""
    behalf_entry: str = ""
    worker: str = ""
    worker_entry: str = ""
    result: str = ""
    entries: list[str] = field(default_factory=list)


async def who(logs: Source, wanted: str, since: str = "") -> AsyncIterator[Decided]:
    """The calls of this id, or whose command or tool fits the pattern, in their order.

    `since` is the beginning of a time in UTC, as entries have it; calls that were made before are left out.
    """
    log, session = _Log(), ""
    calls: dict[str, Decided] = {}
    async for told in logs.entries():
        if told.session != session or told.kind == "task_ended":
            # Nothing is told of a call behind its task's end.
            for call in calls.values():
                if _fits(call, wanted, since):
                    yield call
            calls.clear()
        if told.session != session:
            log, session = _Log(), told.session
        log.take(told)
        _call(log, told, calls)
    for call in calls.values():
        if _fits(call, wanted, since):
            yield call


def _fits(call: Decided, wanted: str, since: str) -> bool:
    if since and call.at < since:
        return False
    return call.call_id == wanted or any(
        text and fnmatchcase(text, wanted) for text in (call.command, call.name)
    )


def _call(log: _Log, told: Told, calls: dict[str, Decided]) -> None:
    payload = told.payload
    key = str(payload.get("call_id", ""))
    if told.type == "response_item" and payload.get("type") in _CALLS:
        name = str(payload.get("name") or payload.get("type"))
        calls[key] = Decided(told.session, log.agent, key, name, name, at=told.at, entries=[told.place])
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
        call.key = str(payload.get("key") or "")
        call.shown = _shown(payload)
        call.entries.append(told.place)


def digest_of(value: Any) -> str:
    """The SHA-256 of a text, or of the one that is referred to; empty for what is no text."""
    if is_reference(value):
        return str(value["$blob"])
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest() if isinstance(value, str) else ""


def _shown(answer: Mapping[str, Any]) -> str:
    """The text that the person had before them, where and for how long, as their client states it."""
    shown, opened = answer.get("shown"), answer.get("opened_ms") or 0
    parts = [f"text {digest_of(shown)}"] if shown else []
    parts += [f"in {answer['surface']}"] if answer.get("surface") else []
    seconds = (int(answer.get("answered_ms") or 0) - int(opened)) / 1000
    parts += [f"open for {seconds:.0f} s"] if opened and seconds >= 0 else []
    return ", ".join(parts)


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
        given = [log.approved[key] for key in map(str, work.get("keys") or ()) if key in log.approved]
        if given:
            call.unasked += ", approved for the session"
            call.entries += dict.fromkeys(given)


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
    more_entries: int = 0


@dataclass(slots=True)
class Total:
    """All requests, as the registry of their tree counts them."""

    tokens: int = 0
    cost_micro: int = 0
    requests: int = 0
    unpriced: int = 0
    unknown: int = 0
    """Requests whose usage nobody knows: the registry has an estimate of each."""
    imported: bool = False
    """Whether a session was made from a file: what it had used before, its tree's registry does not count."""

    def take(self, payload: Mapping[str, Any]) -> None:
        """Takes the end of a request."""
        usage, price = payload.get("usage") or {}, payload.get("price")
        if usage:
            self.tokens += int(usage.get("total_tokens") or 0)
            self.cost_micro += int(price["cost_micro"]) if isinstance(price, dict) else 0
            self.unpriced += not isinstance(price, dict)
            self.requests += 1
        elif payload.get("served") is False:
            self.requests += 1
        elif payload.get("outcome") != "waiting":
            self.unknown += 1

    def compared(self, spent: Spend) -> str:
        """The difference of the registry's sums that these requests do not explain; empty for none."""
        differ = []
        for name, here, there, may_be_more in (
            ("tokens", self.tokens, spent.tokens, self.unknown),
            ("requests", self.requests, spent.requests, self.unknown),
            ("millionths of a dollar", self.cost_micro, spent.cost, self.unknown or self.unpriced),
        ):
            if here > there or (here < there and not may_be_more):
                differ.append(f"{there} {name} by the tree's registry, {here} by the logs")
        return "; ".join(differ)


async def cost(logs: Source, by: By, total: Total | None = None) -> list[Cost]:
    """The cost of all requests by the group, the dearest first; `total` takes the sum of all."""
    log, session = _Log(), ""
    groups: dict[str, Cost] = {}
    begun: set[int] = set()
    async for told in logs.entries():
        if told.session != session:
            log, session = _Log(), told.session
            if total is not None:
                total.unknown += len(begun)
            begun.clear()
        log.take(told)
        if total is not None and told.kind == "task" and told.epoch == 0:
            # No worker without a claim begins a task.
            total.imported = True
        if told.kind == "request_begun":
            begun.add(int(told.payload.get("n") or 0))
        if told.kind != "request_ended":
            continue
        begun.discard(int(told.payload.get("n") or 0))
        group = groups.setdefault(name := _group(log, told, by), Cost(name))
        usage, price = told.payload.get("usage") or {}, told.payload.get("price")
        group.requests += 1
        group.input_tokens += int(usage.get("input_tokens") or 0)
        group.output_tokens += int(usage.get("output_tokens") or 0)
        group.cost_micro += int(price["cost_micro"]) if isinstance(price, dict) else 0
        group.unpriced += bool(usage) and not isinstance(price, dict)
        if len(group.entries) < MOST_ENTRIES:
            group.entries.append(told.place)
        else:
            group.more_entries += 1
        if total is not None:
            total.take(told.payload)
    if total is not None:
        total.unknown += len(begun)
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
