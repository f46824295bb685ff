"""An auditor's question who decided about a call, and the logs of a tree that all questions are put to.

The same records come from sessions in Redis, from a full export and from a bundle. Where the chain of a log
was checked on the way, what its entries say was written so; who is named in them is still the word of a door,
of a worker or of a provider, and that is said beside each answer. Logs are read entry by entry, each log
whole, in the order in which their sessions were made; what is held of them is what an answer needs. Facts and
events are read as the records that they are: a log whose facts this version cannot read is not answered from.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from orchestrator.core import facts as f
from orchestrator.core.blobs import is_reference, may_refer, references
from orchestrator.core.calls import CallWork, CustomWork, ExecWork, McpWork, MergeWork, PatchWork, Phase
from orchestrator.core.chain import ChainKey, ChainWalk
from orchestrator.core.entries import (
    DENDRO,
    EVENT_MSG,
    RESPONSE_ITEM,
    Entry,
    Kind,
    decode_entry,
    is_event,
    kind_of,
    read_event,
    request_digest,
)
from orchestrator.core.sender import Sender
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol import items
from orchestrator.protocol.events import EventMsg, ExecCommandEnd
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonMapping, JsonValue, written
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_form import log_member, read_line
from orchestrator.rollouts.bundle_members import Members, lines_of, open_members
from orchestrator.rollouts.chain_check import is_keyed
from orchestrator.rollouts.file_format import BadLine, Header, lines_in, read_rollout
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.replay import instead_in, instead_of
from orchestrator.rollouts.segments import links_of
from orchestrator.rollouts.signed_notes import REQUESTS, SignedAnswers, Signers
from orchestrator.rollouts.verify import unchecked_for

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead, Spend, StoredEntry
    from orchestrator.rollouts.bundle_receipts import Head
    from orchestrator.rollouts.log_source import LogSource

UNKNOWN: Final = "unknown"
MOST_SHOWN: Final = 300
"""Characters of a command, of words of a person or of a model."""
MOST_ENTRIES: Final = 1_000
"""Entries that one answer names; more are counted."""
NOBODY: Final = Signers(())
_NO_TEXTS: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class Told:
    """An entry, as far as the questions read it; without `line` where its text was redacted or withheld."""

    session: str
    seq: int
    epoch: int
    line: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    """Large texts that it refers to, by their SHA-256, where they were asked for and are stored."""
    instead: Entry | None = None
    """The entry that the fold takes in the place of one that was redacted; it answers nothing."""
    _fact: f.Fact | f.UnknownFact | None = field(default=None, init=False, repr=False, compare=False)

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
    def kind(self) -> Kind | None:
        """The record that it is read as; None without text."""
        return kind_of(self.type, self.payload) if self.line else None

    @property
    def fact(self) -> f.Fact | f.UnknownFact | None:
        """The fact that it states; None for another entry.

        Raises `RolloutError` for one that lacks a field of its kind, or has a wrong one.
        """
        if self._fact is None and self.type == DENDRO:
            try:
                self._fact = f.decode(self.payload)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                why = f"it lacks a field of its kind, or has a wrong one ({error!r:.100})"
                raise RolloutError(
                    f"{self.place}: {why}, so this version cannot answer from the log"
                ) from None
        return self._fact

    @property
    def event(self) -> EventMsg | None:
        """The event that it is; None for another entry."""
        return read_event(self.payload) if (kind := self.kind) and is_event(kind) else None

    @property
    def item(self) -> Kind | None:
        """The kind of the conversation's item that it is; None for another entry."""
        return self.kind if self.type == RESPONSE_ITEM else None

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

    @property
    def statements(self) -> Sequence[Head]:
        """Statements of a register about the logs, in its order; a bundle with receipts brings them along."""
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
    statements: Sequence[Head] = ()

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
        self.statements: Sequence[Head] = ()
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
        if stored.digest:
            return Told(session, stored.seq, stored.epoch, {}, instead=decode_entry(stored.payload))
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
    statements: Sequence[Head] = ()

    def __init__(self, path: Path, key: ChainKey | None) -> None:
        from orchestrator.rollouts.verify import audit_file

        self._path = path
        with path.open("rb") as file:
            try:
                header = read_rollout(lines_in(file)).header
            except BadLine as error:
                raise RolloutError(f"{path}: {error}") from None
        if header is None:
            raise RolloutError(f"{path}: facts are left out of it; ask a session, a bundle, or a full export")
        self._header: Header = header
        self._instead = instead_in(path)
        report = audit_file(path, key, None)
        self.faults = [f"{each.seq}: {each.reason}" for each in report.findings]
        self.unchecked = report.unchecked

    async def entries(self, *, texts: bool = False) -> AsyncIterator[Told]:
        for told in self._lines():
            yield told

    def _lines(self) -> Iterator[Told]:
        kept: dict[str, bytes] = {}
        with self._path.open("rb") as file:
            for line in read_rollout(lines_in(file), kept).lines:
                texts = {name: data.decode("utf-8", "surrogatepass") for name, data in kept.items()}
                kept.clear()
                if line.place is None:
                    continue
                value: dict[str, Any] = {}
                if line.entry is not None:
                    entry = line.entry
                    value = {"timestamp": line.timestamp, "type": entry.type, "payload": entry.payload}
                    value |= {"id": entry.id} if entry.id else {}
                place, instead = line.place, None if value else self._instead.get(line.place.seq)
                yield Told(self._header.session_id, place.seq, place.epoch, value, texts, instead)

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
        self._redacted = bool(report.redacted)
        told = (head for log in report.receipts.logs.values() for head in log.heads)
        self.statements: Sequence[Head] = sorted(told, key=lambda head: head.index)
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
                instead = self._instead_of(members, name)
                for lines in lines_of(members.chunks(name)):
                    for line in lines:
                        read = read_line(line, tree=False)
                        text = read.payload or ""
                        value = orjson.loads(text) if text else {}
                        named = _NO_TEXTS
                        if texts and may_refer(text.encode()):
                            named = await self.texts(set(references(value)))
                        other = None if value else instead.get(read.seq)
                        yield Told(session, read.seq, read.epoch, value, named, other)
        finally:
            members.close()

    def _instead_of(self, members: Members, name: str) -> Mapping[int, Entry]:
        """The entries that stand instead of those of a log that were redacted."""
        if not self._redacted:
            return {}
        lines = (line for some in lines_of(members.chunks(name)) for line in some)
        payloads = (read_line(line, tree=False).payload or "" for line in lines)
        return instead_of(payload.encode("utf-8", "surrogatepass") for payload in payloads)

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
class Reading:
    """The words of one session's log so far."""

    agent: str = "0"
    behalf: Sender | None = None
    task: f.TaskBegun | None = None
    task_entry: Told | None = None
    claimed: f.Claimed | None = None
    claimed_entry: Told | None = None
    approved: dict[str, str] = field(default_factory=dict)
    """Keys that were approved for the session, each with the entry that says so."""

    @property
    def settings(self) -> TurnSettings | None:
        """Of the last task."""
        return self.task.settings if self.task is not None else None

    def take(self, told: Told) -> None:
        """Reads an entry."""
        match told.fact:
            case f.Configured(session=facts):
                self.agent, self.behalf = facts.agent_path, facts.behalf
            case f.TaskBegun() as task:
                self.task, self.task_entry = task, told
            case f.Claimed() as claimed:
                self.claimed, self.claimed_entry = claimed, told
            case f.ApprovedForSession(keys=keys):
                self.approved |= dict.fromkeys(keys, told.place)
            case _:
                pass

    def giver(self) -> tuple[Sender | None, str]:
        """For whom the session works, and the entry that says it."""
        if self.task is None or self.task_entry is None:
            return self.behalf, ""
        if self.task.by is not None:
            return self.task.by, self.task_entry.place
        return self.behalf, f"{self.task_entry.session}:2"


def name_of(by: Sender | None) -> str:
    """A sender in words."""
    if by is None or not by.who:
        return UNKNOWN
    return f"{by.who} (scope {by.scope}, token {by.token}) through {by.via}"


def stated_text(text: LargeText) -> str | JsonMapping:
    """A text as the log has it: itself, or the reference that stands in its place."""
    return text if isinstance(text, str) else written(text)


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
    signed: bool | None = None
    """Whether its signature is one of that key under this very decision; None: nobody told the key."""
    unasked: str = ""
    behalf: str = ""
    behalf_entry: str = ""
    worker: str = ""
    worker_entry: str = ""
    result: str = ""
    entries: list[str] = field(default_factory=list)


async def who(
    logs: Source, wanted: str, since: str = "", signers: Signers = NOBODY
) -> AsyncIterator[Decided]:
    """The calls of this id, or whose command or tool fits the pattern, in their order.

    `since` is the beginning of a time in UTC, as entries have it; calls that were made before are left out.
    `signers` are people whose signatures prove an answer.
    """
    log, session, answers = Reading(), "", SignedAnswers(signers)
    calls: dict[str, Decided] = {}
    async for told in logs.entries():
        if told.session != session or told.kind is f.TaskEnded:
            # Nothing is told of a call behind its task's end.
            for call in calls.values():
                if _fits(call, wanted, since):
                    yield call
            calls.clear()
        if told.session != session:
            log, session = Reading(), told.session
            answers.begins()
        log.take(told)
        _hear(answers, told)
        _call(log, told, calls, answers)
    for call in calls.values():
        if _fits(call, wanted, since):
            yield call


def _fits(call: Decided, wanted: str, since: str) -> bool:
    if since and call.at < since:
        return False
    return call.call_id == wanted or any(
        text and fnmatchcase(text, wanted) for text in (call.command, call.name)
    )


def _hear(answers: SignedAnswers, told: Told) -> None:
    """Takes a request to a person, or an entry that may have been one."""
    if not told.line:
        answers.unread()
    elif told.type == EVENT_MSG and str(told.payload.get("type")) in REQUESTS:
        answers.asks(request_digest(str(told.line.get("id", "")), told.payload))


def _call(log: Reading, told: Told, calls: dict[str, Decided], answers: SignedAnswers) -> None:
    payload = told.payload
    key = str(payload.get("call_id", ""))
    if told.item in CALLS:
        name = str(payload.get("name") or payload.get("type"))
        calls[key] = Decided(told.session, log.agent, key, name, name, at=told.at, entries=[told.place])
    elif (call := calls.get(key)) is None:
        return
    elif told.item in OUTPUTS:
        call.entries.append(told.place)
    elif told.kind is ExecCommandEnd:
        if isinstance(ended := told.event, ExecCommandEnd):
            call.result = f"exit {ended.exit_code}"
            call.entries.append(told.place)
    else:
        _stated(log, told, call, answers)


def _stated(log: Reading, told: Told, call: Decided, answers: SignedAnswers) -> None:
    match told.fact:
        case f.CallMoved() as moved:
            _moved(log, told, moved, call)
        case f.Answered(agent_id=None) as answer:
            call.entries.append(told.place)
            if call.signed is False:
                # A command that its sandbox stopped is asked about again: a forgery before stays the finding.
                return
            call.decision, call.by_entry = answer.decision, told.place
            older = f"{answer.who} (older entry: no door is named)"
            call.by = older if answer.by is None else name_of(answer.by)
            call.key = answer.key
            call.signed = None
            if answer.sig:
                fault = answers.fault(told.session, told.payload, digest_of(stated_text(answer.shown)))
                call.signed = None if fault is None else not fault
            call.shown = _shown(answer)
        case _:
            pass


def digest_of(value: Any) -> str:
    """The SHA-256 of a text, or of the one that is referred to; empty for what is no text."""
    if is_reference(value):
        return str(value["$blob"])
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest() if isinstance(value, str) else ""


def _shown(answer: f.Answered) -> str:
    """The text that the person had before them, where and for how long, as their client states it."""
    parts = [f"text {digest_of(stated_text(answer.shown))}"] if answer.shown else []
    parts += [f"in {answer.surface}"] if answer.surface else []
    seconds = (answer.answered_ms - answer.opened_ms) / 1000
    parts += [f"open for {seconds:.0f} s"] if answer.opened_ms and seconds >= 0 else []
    return ", ".join(parts)


def _moved(log: Reading, told: Told, moved: f.CallMoved, call: Decided) -> None:
    work = moved.work
    if isinstance(work, ExecWork):
        call.command = shlex.join(str(stated_text(word)) for word in work.command)[:MOST_SHOWN]
    if isinstance(work, ExecWork | PatchWork | McpWork | CustomWork):
        call.cwd = str(stated_text(work.cwd) or call.cwd)
    if isinstance(work, ExecWork | PatchWork | MergeWork):
        call.sandboxed = work.sandboxed
    call.entries.append(told.place)
    if moved.phase is Phase.AWAITING_APPROVAL:
        call.asked = told.place
    if moved.phase is not Phase.RUNNING:
        return
    by, entry = log.giver()
    call.behalf, call.behalf_entry = name_of(by), entry
    if log.claimed is not None and log.claimed_entry is not None and log.claimed_entry.epoch == told.epoch:
        call.worker, call.worker_entry = _worker_text(log.claimed), log.claimed_entry.place
    if not call.decision:
        policy = log.settings.approval_policy if log.settings is not None else None
        call.unasked = f"approvals {policy}, sandbox {sandbox_mode(log.settings)}"
        given = [log.approved[key] for key in _keys(work) if key in log.approved]
        if given:
            call.unasked += ", approved for the session"
            call.entries += dict.fromkeys(given)


def _worker_text(claimed: f.Claimed) -> str:
    return (
        f"{claimed.worker} on {claimed.machine} (version {claimed.version}, "
        f"{claimed.sandbox.get('kind', UNKNOWN)}, settings {(claimed.settings or 'untold')[:8]}, "
        f"rules {(claimed.rules or 'none')[:8]})"
    )


def sandbox_mode(settings: TurnSettings | None) -> JsonValue:
    """The sandbox that the settings name; None for none."""
    return settings.sandbox_policy.get("mode") if settings is not None else None


def has_network(settings: TurnSettings | None) -> bool:
    """Whether commands reach the network from within the sandbox."""
    if settings is None:
        return False
    network = settings.sandbox_policy.get("network_access")
    return network is True or sandbox_mode(settings) == "danger-full-access"


def _keys(work: CallWork | None) -> Iterator[str]:
    if isinstance(work, ExecWork | PatchWork | McpWork | CustomWork | MergeWork):
        yield from (key for key in work.keys if isinstance(key, str))


CALLS: Final = frozenset({items.FunctionCall, items.CustomToolCall, items.LocalShellCall})
OUTPUTS: Final = frozenset({items.FunctionCallOutput, items.CustomToolCallOutput})
