"""More questions of an auditor: a file, the context of a decision, secrets, egress, redactions.

Each answer says whether it is *proved* (what it says stands in entries whose chain held) or *stated* (it is
the word of somebody, or found by likeness of words).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

import orjson

from orchestrator.core import calls as w
from orchestrator.core import facts as f
from orchestrator.core.birth import needed, opened
from orchestrator.core.blobs import is_reference, resolve
from orchestrator.core.calls import Phase
from orchestrator.core.calls.patch import verb_of
from orchestrator.core.context import CONTEXT_TAGS, INSTRUCTIONS_TAG, ROLE_OPENING
from orchestrator.core.entries import RESPONSE_ITEM, Entry
from orchestrator.core.evolve import evolve
from orchestrator.core.frozen import record
from orchestrator.core.history import OUTPUT_KINDS, for_model, message_text, searched
from orchestrator.core.ids import SessionId
from orchestrator.core.lines import CompactedLine
from orchestrator.core.modes import with_plan
from orchestrator.core.sender import sender_wire
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State
from orchestrator.core.user_turns import SKILL_TAG
from orchestrator.folders.names import quoted
from orchestrator.model.canonical import CanonicalRequests
from orchestrator.model.prompt import Prompt
from orchestrator.protocol import items
from orchestrator.protocol.commands import ListFilesCommand, ReadCommand, SearchCommand, parsed_commands
from orchestrator.protocol.events import ExecCommandEnd, PatchApplyEnd
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import tag_of
from orchestrator.views.audit_cost import tokens
from orchestrator.views.audit_who import (
    CALLS,
    MOST_ENTRIES,
    MOST_SHOWN,
    OUTPUTS,
    UNKNOWN,
    Source,
    Told,
    digest_of,
    has_network,
    name_of,
)
from orchestrator.views.find import Abbreviation, whole_id


@dataclass(slots=True)
class Answer:
    """An answer: a line for people, the same as values, and the entries that say so."""

    text: str
    values: Mapping[str, Any]
    entries: Sequence[str]
    proved: bool = True
    """False: it is somebody's word, or found by likeness."""


def _short(text: str, most: int = MOST_SHOWN) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[:most]}…"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(slots=True)
class _Session:
    """The words of one session's log so far, as these questions read it."""

    id: str = ""
    agent: str = "0"
    words: str = ""
    words_entry: str = ""
    reasoning: str = ""
    reasoning_entry: str = ""
    settings: TurnSettings | None = None
    task: str = ""
    task_entry: str = ""

    def take(self, told: Told) -> None:
        match told.fact:
            case f.Configured(settings=settings, session=facts):
                self.agent, self.settings = facts.agent_path, settings
            case f.TaskBegun(id=id, settings=settings):
                self.task, self.task_entry, self.settings = id, told.place, settings
            case _:
                self._said(told)

    def _said(self, told: Told) -> None:
        payload = told.payload
        if told.item is items.Message:
            text = message_text(payload)
            if payload.get("role") == "user" and not text.startswith(CONTEXT_TAGS):
                self.words, self.words_entry = _short(text), told.place
            elif payload.get("role") == "assistant":
                self.reasoning, self.reasoning_entry = _short(text), told.place
        elif told.item is items.Reasoning:
            said = " ".join(
                str(part.get("text", "")) for part in payload.get("summary") or () if isinstance(part, dict)
            )
            if said:
                self.reasoning, self.reasoning_entry = _short(said), told.place

    def about(self) -> dict[str, str]:
        return {
            "session": self.id,
            "agent": self.agent,
            "task": self.task,
            "words": self.words,
            "before": self.reasoning,
        }

    def said_at(self) -> list[str]:
        return [place for place in (self.task_entry, self.words_entry, self.reasoning_entry) if place]


async def _walk(logs: Source, *, texts: bool = False) -> AsyncIterator[tuple[_Session, Told]]:
    """Every entry, with its session as it is at it."""
    session = _Session()
    async for told in logs.entries(texts=texts):
        if told.session != session.id:
            session = _Session(told.session)
        session.take(told)
        yield session, told


# ── file ──────────────────────────────────────────────────────────────────────────────────────────


def _is_path(said: object, wanted: str, cwd: str) -> bool:
    """Whether a path that an entry names is the one that is asked for: whole, below `cwd`, or by its end."""
    if not isinstance(said, str) or not said:
        return False
    whole = posixpath.normpath(posixpath.join(cwd or "/", said))
    asked = posixpath.normpath(wanted)
    if asked.startswith("/"):
        return whole == asked
    return posixpath.normpath(said) == asked or whole.endswith(f"/{asked}")


@dataclass(slots=True)
class _Touch:
    """A call that may have touched the file."""

    answer: Answer
    names: bool
    """Whether the call names the file; one that does not is told of where a snapshot says that it changed."""


async def file(logs: Source, path: str) -> AsyncIterator[Answer]:
    """Everything that touched a file, in the order of the logs: patches, commands, merges and snapshots."""
    touched = _Touched(path)
    async for log, told in _walk(logs):
        for answer in touched.take(log, told):
            yield answer
    for session, answer in touched.last.items():
        snapshot = answer.values["snapshot"]
        text = f"at the end of {session}'s log its content is that of snapshot {snapshot}"
        yield Answer(text, {"what": "final", "session": session, "snapshot": snapshot}, answer.entries)


class _Touched:
    """The calls and snapshots that have touched a file so far."""

    def __init__(self, path: str) -> None:
        self.last: dict[str, Answer] = {}
        """The last snapshot of each session that has another content of it."""
        self._path = path
        self._quoted = quoted(path.encode("utf-8", "surrogateescape"))
        self._calls: dict[str, _Touch] = {}
        self._session = ""

    def take(self, log: _Session, told: Told) -> Iterator[Answer]:
        """The answers that an entry gives."""
        if log.id != self._session:
            self._calls.clear()
            self._session = log.id
        if told.kind in (ExecCommandEnd, PatchApplyEnd):
            yield from self._ended(log, told)
            return
        match told.fact:
            case f.CallMoved(call_id=id, phase=Phase.RUNNING, work=work):
                yield from self._began(log, told, id, work)
            case f.WorkspaceSaved() as saved:
                yield from self._saved(log, told, saved)
                self._calls.clear()
            case f.WorkspaceMerged() as merged if merged.call_id in self._calls:
                values = {"what": "merged", "snapshot": merged.snapshot, **log.about()}
                yield Answer(f"{log.agent}  merged from agent {merged.agent_id}", values, [told.place])
            case _:
                pass

    def _began(self, log: _Session, told: Told, id: str, work: w.CallWork | None) -> Iterator[Answer]:
        touch = _touch(log, told, id, work, self._path)
        if touch is None:
            return
        self._calls[id] = touch
        if len(self._calls) > MOST_ENTRIES:
            self._calls.pop(next(iter(self._calls)))
        if touch.names:
            yield touch.answer

    def _ended(self, log: _Session, told: Told) -> Iterator[Answer]:
        match told.event:
            case ExecCommandEnd(call_id=id, exit_code=code):
                done = code == 0
            case PatchApplyEnd(call_id=id, success=success):
                done = success
            case _:
                return
        if id in self._calls and self._calls[id].names:
            values = {"what": "end", "call": id, "success": done}
            word = "succeeded" if done else "failed"
            yield Answer(f"{log.agent}/{id}  {word}", values, [told.place])

    def _saved(self, log: _Session, told: Told, saved: f.WorkspaceSaved) -> Iterator[Answer]:
        values: dict[str, Any]
        snapshot, names = saved.snapshot, saved.names
        changed = saved.files.total
        if any(_is_path(name, self._quoted, "") for name in names):
            between = [id for id in saved.call_ids if id in self._calls]
            for id in between:
                if not self._calls[id].names:
                    yield self._calls[id].answer
            by = f", behind {', '.join(between)}" if between else ""
            values = {"what": "snapshot", "snapshot": snapshot, "calls": between, **log.about()}
            text = f"{log.agent}  snapshot {snapshot} has another content of it than the one before{by}"
            self.last[log.id] = answer = Answer(text, values, [told.place])
            yield answer
        elif changed > len(names):
            values = {"what": "snapshot", "snapshot": snapshot, "may": True}
            listed = f"{len(names)} of {changed} changed files"
            text = f"{log.agent}  a snapshot names {listed}: it may be among them"
            yield Answer(text, values, [told.place], proved=False)


def _touch(log: _Session, told: Told, id: str, work: w.CallWork | None, path: str) -> _Touch | None:
    does, names = "", False
    match work:
        case w.PatchWork():
            for name, change in work.changes.items():
                if _is_path(name, path, _folder(work.cwd)):
                    does, names = f"patch: {verb_of(change) or 'change'}", True
        case w.MergeWork():
            if any(_is_path(name, path, work.folder) for name in work.names):
                does, names = f"merge of agent {work.agent_id}", True
        case w.ExecWork():
            names, does = _names(work, path), f"command: {_short(' '.join(_words(work)))}"
        case (
            None
            | w.StdinWork()
            | w.CopyWork()
            | w.CustomWork()
            | w.McpWork()
            | w.AwaitWork()
            | w.HelperWork()
            | w.VariantsWork()
            | w.QuestionWork()
            | w.UserInputWork()
            | w.PlanWork()
            | w.ClientToolWork()
            | w.UnknownWork()
        ):
            return None
        case _:
            assert_never(work)
    if not does:
        return None
    values = {"what": work.kind, "call": id, "does": does, **log.about()}
    text = f"{log.agent}/{id}  {does}  for “{log.words}”, after “{log.reasoning}”"
    return _Touch(Answer(text, values, [told.place, *log.said_at()]), names)


def _folder(cwd: LargeText) -> str:
    return cwd if isinstance(cwd, str) else ""


def _words(work: w.ExecWork) -> list[str]:
    """The words of a command, but for those that stand beside the log."""
    return [word for word in work.command if isinstance(word, str)]


def _names(work: w.ExecWork, path: str) -> bool:
    """Whether a command names the file, as far as its words tell."""
    cwd, words = _folder(work.cwd), _words(work)
    if any(_is_path(word, path, cwd) for word in words):
        return True
    for parsed in parsed_commands(work.parsed_cmd):
        match parsed:
            case ReadCommand(path=named, name=name):
                if _is_path(named, path, cwd) or _is_path(name, path, cwd):
                    return True
            case ListFilesCommand(path=named) | SearchCommand(path=named):
                if _is_path(named, path, cwd):
                    return True
            case _:
                pass
    # A script is one word: the name in it, between what no path has.
    ends = r"(?<![^\s'\"=<>|;:(])" + re.escape(path) + r"(?![^\s'\"<>|;:)])"
    return any(re.search(ends, word) for word in words)


# ── egress ────────────────────────────────────────────────────────────────────────────────────────


_URL = re.compile(r"\b(?:https?|wss?|ssh|git|ftp)://(?:[^/\s'\"@]*@)?(\[[0-9a-fA-F:]+\]|[^/\s'\":?#)]+)")


def _hosts(text: str) -> list[str]:
    return sorted({host.lower() for host in _URL.findall(text)})


async def egress(logs: Source) -> AsyncIterator[Answer]:
    """Everything that may have left the machine: requests, commands with network, MCP calls, searches."""
    calls: dict[str, Answer] = {}
    session = ""
    async for log, told in _walk(logs):
        if log.id != session or told.kind is f.TaskEnded:
            for answer in calls.values():
                yield answer
            calls.clear()
            session = log.id
        if (sent := _left(log, told, calls)) is not None:
            yield sent
    for answer in calls.values():
        yield answer


def _left(log: _Session, told: Told, calls: dict[str, Answer]) -> Answer | None:
    """The answer that an entry gives; a call's is kept in `calls` until its output comes."""
    payload = told.payload
    if told.item is items.WebSearchCall:
        words = searched(payload)
        values = {"what": "search", "hosts": _hosts(words), "bytes": len(words.encode()), **log.about()}
        return Answer(f"{log.agent}  web search by the provider: {_short(words)}", values, [told.place])
    if told.item in OUTPUTS:
        known = calls.pop(str(payload.get("call_id")), None)
        if known is not None:
            size = _bytes(payload.get("output"))
            known.values = {**known.values, "bytes_back": size}
            known.text += f", {size} bytes came back to the model"
            known.entries = [*known.entries, told.place]
        return known
    match told.fact:
        case end if isinstance(end, f.RequestEnded):
            return _sent(log, told, end)
        case f.CallMoved(call_id=id, phase=Phase.RUNNING, work=work):
            if (leaves := _leaves(log, told, id, work)) is not None:
                calls[id] = leaves
        case _:
            pass
    return None


def _bytes(value: Any) -> int:
    if is_reference(value):
        return int(value["bytes"])
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return 0 if value is None else len(orjson.dumps(value))


def _sent(log: _Session, told: Told, end: f.RequestEnded) -> Answer:
    served = end.served_by if isinstance(end, f.RequestCompleted) else None
    origin = (served.origin if served is not None else "") or UNKNOWN
    given = tokens(end, "input_tokens")
    values = {
        "what": "request",
        "n": end.n,
        "hosts": [origin],
        "provider": log.settings.model_provider if log.settings is not None else "",
        "bytes": None,
        "input_tokens": given,
        **log.about(),
    }
    text = f"{log.agent}  request {end.n} to {origin}: {_counted(given, 'input token')}"
    # The request's end is an entry; that it went to this origin is the worker's word.
    return Answer(text, values, [told.place], proved=False)


def _leaves(log: _Session, told: Told, id: str, work: w.CallWork | None) -> Answer | None:
    values: dict[str, Any]
    match work:
        case w.ExecWork():
            if work.sandboxed and not has_network(log.settings):
                return None
            words = " ".join(_words(work))
            why = "with network" if work.sandboxed else "outside the sandbox"
            hosts = _hosts(words)
            values = {"what": "command", "call": id, "hosts": hosts, "why": why, "bytes": None}
            at = f" to {', '.join(hosts)}" if hosts else ""
            text = f"{log.agent}/{id}  command {why}{at}: {_short(words)}"
        case w.McpWork(server=server, tool=tool):
            size = _bytes(work.arguments)
            values = {"what": "mcp", "call": id, "hosts": [f"mcp:{server}"], "tool": tool, "bytes": size}
            text = f"{log.agent}/{id}  MCP server {server}, tool {tool}: {size} bytes of arguments"
        case (
            None
            | w.StdinWork()
            | w.PatchWork()
            | w.MergeWork()
            | w.CopyWork()
            | w.CustomWork()
            | w.AwaitWork()
            | w.HelperWork()
            | w.VariantsWork()
            | w.QuestionWork()
            | w.UserInputWork()
            | w.PlanWork()
            | w.ClientToolWork()
            | w.UnknownWork()
        ):
            return None
        case _:
            assert_never(work)
    return Answer(text, {**values, **log.about()}, [told.place])


# ── redactions ────────────────────────────────────────────────────────────────────────────────────


async def redactions(logs: Source) -> AsyncIterator[Answer]:
    """Each redaction: what, by whom, when and why; and the bundles that were made of the tree, and when.

    A bundle of before may have what was redacted.
    """
    bundles: list[tuple[str, str]] = []
    async for _, told in _walk(logs):
        if isinstance(stated := told.fact, f.Bundled):
            bundles.append((told.at, stated.digest))
            yield _bundled(told, stated)
    async for _, told in _walk(logs):
        if isinstance(stated := told.fact, f.Redacted):
            target = f"{stated.log.removeprefix('session:')}:{stated.seq}"
            before = [digest for at, digest in bundles if at <= told.at]
            values = {
                "what": "redacted",
                "entry": target,
                "digest": stated.digest,
                "who": stated.who,
                "why": stated.why,
                "at": told.at,
                "by": sender_wire(stated.by),
                "bundles": before,
            }
            text = f"{target}  redacted at {told.at} by {name_of(stated.by)}: {stated.why}"
            text += f"; {_counted(len(before), 'bundle')} made before may have it" if before else ""
            yield Answer(text, values, [told.place, target], proved=False)
        elif not told.line:
            text = f"{told.place}  has no text"
            yield Answer(text, {"what": "without text", "entry": told.place}, [told.place])


def _bundled(told: Told, stated: f.Bundled) -> Answer:
    values = {
        "what": "bundled",
        "digest": stated.digest,
        "up_to": f"{told.session}:{stated.seq}",
        "sessions": stated.sessions,
        "withheld": stated.withheld,
        "key": stated.key,
        "who": stated.who,
        "at": told.at,
        "by": sender_wire(stated.by),
    }
    about = f"{_counted(stated.sessions, 'session')}, this one up to entry {stated.seq}"
    text = (
        f"bundle {stated.digest}  made at {told.at} by {name_of(stated.by)}: {about}, signed by {stated.key}"
    )
    return Answer(text, values, [told.place], proved=False)


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────


PATTERNS: Final[Mapping[str, str]] = {
    "private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "AWS secret key": r"(?i)aws_secret_access_key['\"]?\s*[:=]\s*['\"]?[0-9A-Za-z/+]{40}\b",
    "GitHub token": r"\bgh[pousr]_[0-9A-Za-z]{36,255}\b",
    "GitHub fine-grained token": r"\bgithub_pat_[0-9A-Za-z_]{60,255}\b",
    "GitLab token": r"\bglpat-[0-9A-Za-z_-]{20,}\b",
    "Slack token": r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",
    "Slack webhook": r"https://hooks\.slack\.com/services/T[0-9A-Z]+/B[0-9A-Z]+/[0-9A-Za-z]{16,}",
    # Before the next one, whose form it has as well.
    "Anthropic key": r"\bsk-ant-[0-9A-Za-z_-]{20,}\b",
    "OpenAI key": r"\bsk-(?:proj-|svcacct-)?[0-9A-Za-z_-]{20,}\b",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "Google OAuth secret": r"\bGOCSPX-[0-9A-Za-z_-]{28}\b",
    "Stripe key": r"\b[rs]k_live_[0-9A-Za-z]{16,}\b",
    "npm token": r"\bnpm_[0-9A-Za-z]{36}\b",
    "PyPI token": r"\bpypi-[0-9A-Za-z_-]{50,}\b",
    "Docker token": r"\bdckr_pat_[0-9A-Za-z_-]{20,}\b",
    "Hugging Face token": r"\bhf_[0-9A-Za-z]{30,}\b",
    "SendGrid key": r"\bSG\.[0-9A-Za-z_-]{16,32}\.[0-9A-Za-z_-]{16,64}\b",
    "Twilio key": r"\bSK[0-9a-f]{32}\b",
    "DigitalOcean token": r"\bdo[opr]_v1_[0-9a-f]{64}\b",
    "JSON web token": r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}",
    "address with a password": r"\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@'\"]{1,64}:[^\s/@'\"]{3,128}@[^\s/'\"]+",
    "bearer token": (
        r"(?i)\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+[0-9A-Za-z._~+/=-]{12,}"
    ),
    "password": (
        r"(?i)\b(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?token)['\"]?\s*[:=]\s*"
        # The text of a worker's settings has this word in the place of each secret.
        r"['\"](?!\(hidden\)['\"])[^'\"\s]{6,128}['\"]"
    ),
    "password in a variable": r"\b[A-Z0-9_]*(?:PASSWORD|SECRET|TOKEN|API_KEY)\s*=\s*[^\s'\"$]{6,128}",
    "value withheld by Dendro": r"\[redacted\]",
}
"""Forms of secrets, by what they are."""
MOST_SECRETS: Final = 1_000


@dataclass(slots=True)
class _Secret:
    """A text that may be a secret, and all that is known of it; the text itself is in no answer."""

    kind: str
    length: int
    entries: list[str] = field(default_factory=list)
    more: int = 0
    agents: dict[str, str] = field(default_factory=dict)
    """Agents in whose logs it stands, each with its session."""
    requests: list[str] = field(default_factory=list)
    request_entries: list[str] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    shown_in: str = ""
    """The session whose conversation has it now, since the entry `joined`."""
    joined: str = ""

    def take(self, log: _Session, told: Told, *, joins: bool) -> None:
        if told.place not in self.entries[-1:]:
            if len(self.entries) < MOST_ENTRIES:
                self.entries.append(told.place)
            else:
                self.more += 1
        self.agents.setdefault(log.agent, log.id)
        if joins and self.shown_in != log.id:
            self.shown_in, self.joined = log.id, told.place


def finders(extra: Sequence[str]) -> list[tuple[str, re.Pattern[str]]]:
    """The patterns with those of a person; raises `re.error`."""
    own = [(f"as given by --find {number}", re.compile(text)) for number, text in enumerate(extra, 1)]
    return [*own, *((kind, re.compile(text)) for kind, text in PATTERNS.items())]


async def secrets(logs: Source, extra: Sequence[str] = ()) -> AsyncIterator[Answer]:
    """Where secrets may have been seen, and who got each: agents, requests and their providers."""
    seen = _Seen(finders(extra))
    async for log, told in _walk(logs, texts=True):
        for answer in seen.take(log, told):
            yield answer
    for number, secret in enumerate(seen.found.values(), 1):
        yield _told(number, secret)
    for answer in seen.outside:
        yield answer


class _Seen:
    """The secrets that were found so far."""

    def __init__(self, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> None:
        self.found: dict[str, _Secret] = {}
        self.outside: list[Answer] = []
        """Commands that read outside of their folder."""
        self._patterns = patterns
        self._begun: dict[int, tuple[str, str]] = {}
        """Requests of the session by their numbers, each with its entry and its time."""
        self._session = ""

    def take(self, log: _Session, told: Told) -> Iterator[Answer]:
        """Reads an entry; what can be told of it alone is told at once."""
        if log.id != self._session:
            self._session, self._begun = log.id, {}
            self._forget()
        if told.kind is CompactedLine:
            self._forget()
        match told.fact:
            case f.RequestBegun(n=n):
                self._begun[n] = told.place, told.at
            case end if isinstance(end, f.RequestEnded):
                _got(log, told, end, self.found, self._begun)
            case f.Answered(call_id=id, secret=secret) if secret:
                values = {"what": "secret answer", "call": id, **log.about()}
                text = f"{log.agent}/{id}  a person's secret answer, beside the log"
                yield Answer(text, values, [told.place])
            case f.CallMoved(call_id=id, phase=Phase.RUNNING, work=w.ExecWork() as work):
                if len(self.outside) < MOST_SECRETS:
                    self.outside += _read_outside(log, told, id, work)
            case _:
                pass
        self._look(log, told)

    def _forget(self) -> None:
        """No conversation has them any more, as far as is known."""
        for secret in self.found.values():
            secret.shown_in = ""

    def _look(self, log: _Session, told: Told) -> None:
        joins = told.item is not None or told.kind in (CompactedLine, f.Forked, f.Rewound)
        for text, digest in _texts_of(told):
            for kind, matched in _matches(self._patterns, text):
                if matched not in self.found and len(self.found) >= MOST_SECRETS:
                    continue
                secret = self.found.setdefault(matched, _Secret(kind, len(matched)))
                secret.take(log, told, joins=joins)
                if digest:
                    secret.texts.add(digest)


def _matches(patterns: Sequence[tuple[str, re.Pattern[str]]], text: str) -> Iterator[tuple[str, str]]:
    seen: list[tuple[int, int]] = []
    for kind, pattern in patterns:
        for match in pattern.finditer(text):
            begin, end = match.span()
            # A key in an assignment is one secret, and not two.
            if begin < end and not any(begin < e and b < end for b, e in seen):
                seen.append((begin, end))
                yield kind, match[0]


def _texts_of(told: Told) -> Iterator[tuple[str, str]]:
    """The strings of an entry, each with its digest where it stands beside the log."""
    waiting: list[Any] = [told.payload]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value, ""
        elif isinstance(value, dict):
            if is_reference(value):
                yield told.text(value), str(value["$blob"])
            else:
                waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _got(
    log: _Session,
    told: Told,
    end: f.RequestEnded,
    found: Mapping[str, _Secret],
    begun: Mapping[int, tuple[str, str]],
) -> None:
    n = end.n
    entry, at = begun.get(n, (told.place, told.at))
    served = end.served_by if isinstance(end, f.RequestCompleted) else None
    provider = log.settings.model_provider if log.settings is not None else ""
    origin = (served.origin if served is not None else "") or provider
    for secret in found.values():
        # What came with this very response was not in its request.
        before = secret.shown_in == log.id and _place(secret.joined, log.id) < _place(entry, log.id)
        if before and len(secret.requests) < MOST_ENTRIES:
            secret.requests.append(f"request {n} of {log.agent} at {at} to {origin or UNKNOWN}")
            secret.request_entries.append(told.place)


def _place(entry: str, session: str) -> int:
    id, _, seq = entry.rpartition(":")
    return int(seq) if id == session else 0


def _told(number: int, secret: _Secret) -> Answer:
    agents = ", ".join(secret.agents)
    values = {
        "what": "secret",
        "number": number,
        "kind": secret.kind,
        "characters": secret.length,
        "agents": list(secret.agents),
        "requests": secret.requests,
        "request_entries": secret.request_entries,
        "texts": sorted(secret.texts),
        "more_entries": secret.more,
    }
    got = (
        f"; in {_counted(len(secret.requests), 'request')}, first {secret.requests[0]}"
        if secret.requests
        else ""
    )
    beside = f"; in {_counted(len(secret.texts), 'text')} beside the log" if secret.texts else ""
    text = f"secret {number}  {secret.kind} ({secret.length} characters), seen by {agents}{got}{beside}"
    return Answer(text, values, secret.entries, proved=False)


def _read_outside(log: _Session, told: Told, id: str, work: w.ExecWork) -> Iterator[Answer]:
    """A command that reads a file outside of its folder, as far as its words tell."""
    cwd = _folder(work.cwd) or "/"
    paths = []
    for parsed in parsed_commands(work.parsed_cmd):
        path = parsed.path or parsed.name if isinstance(parsed, ReadCommand) else None
        if isinstance(path, str):
            whole = posixpath.normpath(posixpath.join(cwd, path))
            if whole != cwd and not whole.startswith(cwd.rstrip("/") + "/"):
                paths.append(whole)
    if paths:
        values = {"what": "read outside", "call": id, "paths": paths, **log.about()}
        text = f"{log.agent}/{id}  reads outside of its folder: {', '.join(paths)}"
        yield Answer(text, values, [told.place], proved=False)


# ── context ───────────────────────────────────────────────────────────────────────────────────────


@record
class _Origin:
    """Where an item of a conversation came from."""

    place: str
    origin: str
    outside: bool = False
    """Whether it came over a network."""


@dataclass(slots=True)
class _Shown:
    """A request as it was begun."""

    entry: str
    n: int
    state: State
    items: list[Mapping[str, Any]]
    origins: list[_Origin]
    purpose: str
    sent: f.RequestSent | None = None
    sent_entry: str = ""
    instructions: Any = None
    tools: Any = None


class _Conversation:
    """A session's state, and the origin of each item of its conversation."""

    def __init__(self) -> None:
        self.state = State()
        self._origins: dict[int, tuple[Any, _Origin]] = {}
        self._shaped = _Origin("", "conversation")
        self._calls: dict[str, tuple[str, bool]] = {}
        self._by = ""
        self.texts: dict[str, Any] = {}
        """Facts `text`, by their SHA-256."""

    def take(self, log: _Session, told: Told) -> None:
        self._state_origin(log, told)
        payload = told.payload
        if told.instead is not None:
            entry = told.instead
            if entry.type == RESPONSE_ITEM:
                self._origins[id(entry.payload)] = entry.payload, _Origin(told.place, "redacted")
            self.state = evolve(self.state, entry, told.seq)
        if not told.line:
            return
        if told.item is not None:
            self._origins[id(payload)] = payload, self._of(told)
        entry = Entry(told.type, payload, str(told.line.get("id", "")))
        self.state = evolve(self.state, entry, told.seq)
        if told.kind is CompactedLine:
            kept = {id(item) for item in self.state.history}
            self._origins = {key: value for key, value in self._origins.items() if key in kept}

    def _state_origin(self, log: _Session, told: Told) -> None:
        """Says where what the conversation gets from an entry that is no item comes from."""
        if told.kind is CompactedLine:
            self._shaped = _Origin(told.place, "compaction of the conversation")
        match told.fact:
            case f.TaskBegun(by=by):
                self._by = "" if by is None else name_of(by)
                self._shaped = _Origin(told.place, "task")
            case f.CallMoved(call_id=id, work=work) if work is not None:
                self._calls[id] = _tool(log, work)
            case f.Forked(parent=parent):
                self._shaped = _Origin(told.place, f"inherited from {parent['session']}:{parent['seq']}")
            case f.Rewound():
                self._shaped = _Origin(told.place, "inherited from before a compaction")
            case f.TextKept(sha256=digest, content=content):
                self.texts[digest] = content
            case _:
                pass

    def _of(self, told: Told) -> _Origin:
        payload, kind = told.payload, told.item
        image = ", with an image" if _has_image(payload) else ""
        if kind in OUTPUTS:
            tool, outside = self._calls.get(str(payload.get("call_id")), ("tool", False))
            return _Origin(told.place, tool + image, outside)
        if kind is items.WebSearchCall:
            return _Origin(told.place, "web search", outside=True)
        if kind is not items.Message or payload.get("role") == "assistant":
            return _Origin(told.place, "model")
        text = message_text(payload)
        match payload.get("role"):
            case "user" if text.startswith(INSTRUCTIONS_TAG):
                return _Origin(told.place, "instructions file")
            case "user" if text.startswith(CONTEXT_TAGS):
                return _Origin(told.place, "Dendro: the environment")
            case "user" if text.startswith(SKILL_TAG):
                return _Origin(told.place, "skill")
            case "user" if self._by:
                return _Origin(told.place, f"person: {self._by}{image}")
            case "user":
                return _Origin(told.place, f"agent or person{image}")
            case _ if text.startswith(ROLE_OPENING):
                return _Origin(told.place, "Dendro: the agent's part")
            case _:
                return _Origin(told.place, "Dendro")

    def begun(self, told: Told, request: f.RequestBegun) -> _Shown:
        """The request that an entry begins, with what the conversation is then."""
        shown = list(self.state.conversation)
        known = [self._origins.get(id(item), (None, self._shaped))[1] for item in shown]
        return _Shown(told.place, request.n, self.state, shown, known, request.purpose)


_IMAGE: Final = tag_of(items.InputImage)


def _has_image(item: Mapping[str, Any]) -> bool:
    parts = item.get("output") if item.get("type") in OUTPUT_KINDS else item.get("content")
    return isinstance(parts, list) and any(
        isinstance(part, Mapping) and part.get("type") == _IMAGE for part in parts
    )


def _tool(log: _Session, work: w.CallWork) -> tuple[str, bool]:
    """The name of the part that answers a call, and whether the answer came over a network."""
    match work:
        case w.ExecWork():
            net = not work.sandboxed or has_network(log.settings)
            return ("command with network" if net else "local command"), net
        case w.StdinWork():
            net = has_network(log.settings)
            return ("command with network" if net else "local command"), net
        case w.McpWork(server=server):
            return f"MCP server {server}", True
        case w.ClientToolWork():
            return "a client's tool", True
        case w.CustomWork(tool=tool):
            return f"tool {tool}", True
        case w.PatchWork() | w.MergeWork():
            return f"Dendro: {work.kind}", False
        case w.QuestionWork() | w.UserInputWork() | w.PlanWork():
            return "person", False
        case w.AwaitWork() | w.HelperWork() | w.VariantsWork():
            return "agent", False
        case w.CopyWork():
            return f"tool ({work.kind})", False
        case w.UnknownWork(spec=spec):
            return f"tool ({spec.get('kind')})", False
        case _:
            assert_never(work)


_WORDS = re.compile(r"https?://[^\s'\"<>)\]]+|\b[0-9a-fA-F]{16,}\b|(?<![\w.])~?/?(?:[\w.@+-]+/)+[\w.@+-]+")
_PACKAGES = re.compile(
    r"\b(?:pip3?|uv pip|npm|pnpm|yarn|cargo|gem|go|apt-get|apt|brew)\s+(?:install|add|i|get)\s+([^;&|\n]+)"
)
MOST_WORDS: Final = 64


def _telling(action: str) -> list[str]:
    """URLs, hosts, packages, paths and long hexadecimal numbers of an action."""
    found = dict.fromkeys(_WORDS.findall(action))
    found |= dict.fromkeys(_hosts(action))
    for words in _PACKAGES.findall(action):
        found |= dict.fromkeys(word.strip("'\"") for word in words.split() if not word.startswith("-"))
    return [word for word in found if len(word) > 3][:MOST_WORDS]


async def context(logs: Source, wanted: str, *, network: bool = False) -> AsyncIterator[Answer]:
    """Everything that the model was shown when it decided on a call, or wrote an entry.

    An entry is `session:seq`, or a number alone. `network`: only what came over one.
    """
    found, action = await _decision(logs, wanted)
    if found is None:
        return
    proof, why = await _reproduced(logs, found)
    sent = found.sent.sent if found.sent is not None else ""
    values = {"what": "request", "n": found.n, "sent": sent, "reproduced": proof, "why": why}
    entries = [found.entry, *([found.sent_entry] if found.sent is not None else [])]
    yield Answer(f"request {found.n}  {why}", values, entries, proved=proof)
    texts = await _item_texts(logs, found.items)
    telling = _telling(action)
    for number, (item, origin) in enumerate(zip(found.items, found.origins, strict=True), 1):
        if network and not origin.outside:
            continue
        data = orjson.dumps(item, default=dict)
        text = texts[number - 1]
        here = [word for word in telling if word in text]
        kind, digest = str(item.get("type")), _content_digest(item, data)
        values = {
            "what": "item",
            "number": number,
            "item": kind,
            "origin": origin.origin,
            "network": origin.outside,
            "sha256": digest,
            "begins": _short(text, 80),
        }
        line = f"{number:>4}  {kind}  {origin.origin}  {digest[:16]}  {_short(text, 60)}"
        yield Answer(line, values, [origin.place] if origin.place else [], proved=proof)
        if here:
            values = {"what": "likeness", "number": number, "words": here, "origin": origin.origin}
            line = f"      heuristic: the action has, word for word, {', '.join(here)} of it"
            yield Answer(line, values, [origin.place] if origin.place else [], proved=False)


def _content_digest(item: Mapping[str, Any], data: bytes) -> str:
    """The SHA-256 of an output or of a message's only text; of the item's JSON where it has more."""
    content = item.get("output") if item.get("type") in OUTPUT_KINDS else item.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return digest_of(content) or digest_of(data.decode())


async def _decision(logs: Source, wanted: str) -> tuple[_Shown | None, str]:
    """The request before the call or the entry that is meant, and the words of what was done then."""
    part, _, seq = wanted.rpartition(":")
    number = int(seq) if re.fullmatch("[0-9]{1,15}", seq) else 0
    session = await _session_named(logs, part) if number and part else ""
    conversation, id, request = _Conversation(), "", None
    async for log, told in _walk(logs):
        if log.id != id:
            conversation, id, request = _Conversation(), log.id, None
            if number and not part:
                session = session or log.id
        conversation.take(log, told)
        match told.fact:
            case f.RequestBegun() as begun:
                request = conversation.begun(told, begun)
            case f.RequestSent() as sent if request is not None and sent.n == request.n:
                request.sent, request.sent_entry = sent, told.place
                request.instructions = conversation.texts.get(sent.instructions)
                request.tools = conversation.texts.get(sent.tools)
            case _:
                pass
        if (told.item in CALLS and told.payload.get("call_id") == wanted) or (
            number and log.id == session and told.seq == number
        ):
            return request, orjson.dumps(told.payload).decode().replace('\\"', '"')
    return None, ""


async def _session_named(logs: Source, text: str) -> str:
    """The session that an id, or a part of one, names among the logs; empty for none.

    A part that fits the root and agents means the root. Raises `ViewError` for a part of several others.
    """
    ids = dict.fromkeys([told.session async for told in logs.entries()])
    part = Abbreviation.of(text)
    # A root is older than its agents, and so are its digits lower.
    if text not in ids and part is not None and part.means(SessionId(root := min(ids))):
        return root
    return whole_id(text, ids) or ""


async def _item_texts(logs: Source, items: Sequence[Mapping[str, Any]]) -> list[str]:
    """The words of each item, with those that stand beside the log."""
    stored = await _stored(logs, items)
    return [orjson.dumps(list(opened([item], stored.get)), default=dict).decode() for item in items]


async def _stored(logs: Source, items: Sequence[Any]) -> dict[str, str]:
    """The large texts that items need, those inside of inherited conversations too."""
    texts: dict[str, str] = {}
    asked: set[str] = set()
    while missing := needed(items, texts.get) - asked:
        asked |= missing
        texts |= await logs.texts(missing)
    return texts


async def _reproduced(logs: Source, found: _Shown) -> tuple[bool, str]:
    """Whether the digest of what was sent follows from the entries before it."""
    task, sent = found.state.task, found.sent
    if sent is None:
        return False, "its digest is not in the log, so that the model was shown this is not proved"
    if found.state.task is None or found.purpose != "turn":
        return False, "it asked for a summary: its digest is not computed here"
    assert task is not None
    texts = await _stored(
        logs, [*found.items, {"text": [found.instructions, found.tools, task.output_schema]}]
    )
    shown = list(opened(for_model(found.items), texts.get))
    if task.pinned is not None:
        shown = with_plan(shown, task.pinned)
    instructions, tools = (_whole(text, texts) for text in (found.instructions, found.tools))
    if instructions is None or tools is None:
        return False, "its instructions or tools are not stored, so its digest cannot be computed"
    for reasoning in (True, False):
        prompt = Prompt(
            model=task.settings.model,
            instructions=instructions,
            input=shown,
            tools=orjson.loads(tools),
            effort=task.settings.effort,
            summary=task.settings.summary,
            verbosity=task.settings.verbosity,
            session_id="",
            supports_reasoning=reasoning,
            output_schema=resolve(task.output_schema, texts.get),
        )
        made = CanonicalRequests().of(prompt, "turn")
        if made is not None and made.sha256 == sent.sent:
            return True, f"was sent as SHA-256 {made.sha256}, which follows from these entries"
    return False, "its digest does not follow from the entries here: a secret answer, or a text that is gone"


def _whole(text: Any, texts: Mapping[str, str]) -> str | None:
    if isinstance(text, str):
        return text
    return texts.get(str(text["$blob"])) if isinstance(text, dict) and is_reference(text) else None
