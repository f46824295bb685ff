"""Redaction: the text of entries is taken away for good, and the log says who did it, when and why.

Each copy is looked for first: the event and the item of one output, agents' and forks' logs, the tree's log,
large texts, prompts. Then, for each log, one commit states a fact for each entry (`Redacted`) and takes the
text away in Redis, with the session's snapshot and its queue of events. What is not in Redis follows:
segments of the archive, large texts. A session is marked until all of that is done (`redacting`), also with
entries and sessions that the redaction has not come to, so that upkeep goes on where a process died. Chain
and Merkle roots stay: they go by the digest.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import orjson

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import AtRest
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import (
    Claim,
    Claimed,
    CommitRequest,
    Committed,
    RedactedEntry,
    SessionHead,
    Stored,
    StoredEntry,
    TreeEntry,
)
from orchestrator.broker.seal import LogWriter, seal
from orchestrator.core import facts as f
from orchestrator.core.blobs import REFERENCE, is_reference, may_refer, references
from orchestrator.core.chain import GENESIS, NAMING_ENTRIES
from orchestrator.core.counts import counted
from orchestrator.core.entries import (
    COMPACTED,
    DENDRO,
    EVENT_MSG,
    RESPONSE_ITEM,
    Entry,
    Kind,
    decode_entry,
    encode_entry,
    encode_json,
    fact,
    kind_of,
    line_ms,
    stored_kind,
)
from orchestrator.core.evolve import evolve
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import INHERITED
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import Sender
from orchestrator.core.state import State
from orchestrator.protocol import agents, scalars
from orchestrator.protocol.catalog import SkillScope
from orchestrator.protocol.events import CodexErrorKind, HttpFaultKind
from orchestrator.protocol.policy import NetworkAccess
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.pending_prompts import pending_prompts, unread
from orchestrator.rollouts.segments import BrokenArchive, Manifest
from orchestrator.rollouts.session_summary import Position, session_meta
from orchestrator.rollouts.tree_log import tree_entries

log = logging.getLogger("dendro.redaction")

INSTEAD: Final = "[redacted]"
LEAST_WORDS: Final = 8
"""Characters of a text by which copies of it are looked for: shorter ones stand in many places by chance."""
MOST_ENTRIES: Final = 2_000
"""Entries that one redaction takes."""
AT_ONCE: Final = 40
"""Entries of a commit: a fact of each, and what stands instead."""
AT_ONCE_BYTES: Final = 384 << 10
"""Bytes of what stands instead in a commit, where more than one entry has them: it is told twice."""
_NO_IMAGE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwC"
    "AAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
"""A picture of one clear dot: a provider refuses a request whose picture is none."""
_KEPT: Final = frozenset(
    {
        *("type", "kind", "role", "status", "phase", "outcome", "purpose", "decision", "of", "task", "turn"),
        *("id", "call_id", "callId", "turn_id", "response_id", "session", "session_id", "tree_id", "source"),
        *(
            "agent_id",
            "agent_path",
            "item_id",
            "process_id",
            "submission",
            "op_id",
            "client",
            "server",
            "tool",
        ),
        *("snapshot", "base", "sha256", "digest", "key", "event", "model", "model_provider", "lane", "cwd"),
        *("who", "surface", "namespace", "rights", "secret", "timestamp", "mode", "policy", "fork"),
        *("approval_policy", "personality", "effort", "delivery", "last_response_id", "expected_turn_id"),
        "client_user_message_id",
    }
)
"""Fields whose texts stay: types, ids and names by which the log is folded."""
_WHOLE: Final = frozenset({"settings", "by", "sender", "parent", "grant_root"})
"""Fields that stay with all that is in them."""
_CHOICES: Final[Mapping[str, frozenset[str]]] = {
    "summary": frozenset(scalars.ReasoningSummary),
    "codex_error_info": frozenset((*CodexErrorKind, *HttpFaultKind)),
    "reason": frozenset((*scalars.Refusal, *scalars.TurnAbortReason)),
    "collaboration_mode_kind": frozenset(scalars.ModeKind),
    "reasoning_effort": frozenset(scalars.ReasoningEffort),
    "stream": frozenset(scalars.OutputStream),
    "cancel": frozenset(agents.CancelEvidence),
    "origin": frozenset(agents.AgentOrigin),
    "state": frozenset(("starting", "ready", "failed", "cancelled")),
    "scope": frozenset(SkillScope),
    "network_access": frozenset(NetworkAccess),
}
"""Values of fields where those are no words: a client decodes no event that has another text there."""
WITH_WORDS: Final[frozenset[type[f.Fact]]] = frozenset(
    {
        *(f.TaskBegun, f.Steered, f.InputQueued, f.QueuedEdited, f.MailReceived, f.SummaryReceived),
        *(f.CallMoved, f.Answered, f.Named, f.Instructed, f.Rewound, f.Forked, f.TextKept, f.PlanPinned),
        *(f.PlanDecided, f.ProcessKept, f.ProcessOver, f.Failing, f.VariantDrafted, f.ElicitationOpened),
        *(f.Ending, f.LookUpAsked, f.AnswerBegins),
    }
)
"""Facts with words in them; others say what the log is, or what came of its session."""
_CONVERSATIONS: Final[frozenset[Kind]] = frozenset({f.Forked, f.Rewound})
"""Facts that may hold a whole conversation."""
_WORD: Final = re.compile("[A-Za-z_]*")
"""A name of a field, or a word of the protocol, and not a path, an address or an id."""
_ESCAPED: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\(?P<letter>.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_MOST_INSIDE: Final = 2
"""Depth of JSON inside of JSON."""
_RESTS: Final = frozenset({"idle", "closed"})
"""Statuses of sessions that have no task."""
_NOTED: Final[frozenset[Kind]] = frozenset({f.TaskBegun, f.RequestBegun})


_GOES_ON: Final = "`dendro upkeep` does the rest when it can"


class NotRedacted(RolloutError):
    """The redaction is refused; its message says what was done before, where something was."""


# ── what stands instead ───────────────────────────────────────────────────────────────────────────


def is_redactable(seq: int, line: Mapping[str, Any]) -> bool:
    """Whether an entry has words, and is not one of those that say whose log it is."""
    payload = line.get("payload")
    if seq <= NAMING_ENTRIES or not isinstance(payload, Mapping):
        return False
    if line.get("type") == DENDRO:
        return f.kind_of(payload) in WITH_WORDS
    return line.get("type") in (RESPONSE_ITEM, EVENT_MSG, COMPACTED)


def instead_of(line: Mapping[str, Any], text_of: Callable[[str], str | None]) -> dict[str, Any]:
    """The line with its words replaced: what the fold of the log takes in its place."""
    payload, inside = line["payload"], _conversation(line)
    made: dict[str, Any] = _replaced(payload, _is_name(line))
    if inside is not None:
        made["content"] = _inherited(inside, text_of)
    return {**line, "payload": made}


def _kind(line: Mapping[str, Any]) -> Kind:
    return kind_of(line["type"], line["payload"])


def _conversation(line: Mapping[str, Any]) -> str | JsonObject | None:
    """The conversation that an entry holds; None for none."""
    if _kind(line) not in _CONVERSATIONS:
        return None
    stated = f.decode(line["payload"])
    return stated.content if isinstance(stated, f.Forked | f.Rewound) else None


def _is_name(line: Mapping[str, Any]) -> bool:
    """Whether `name` in an entry is the words of a person, and not the name of a tool or a server."""
    return _kind(line) is f.Named


def _inherited(content: Any, text_of: Callable[[str], str | None]) -> str:
    """A conversation as the JSON text of its items, with their words replaced."""
    text = text_of(content[REFERENCE]) if is_reference(content) else content
    try:
        items = orjson.loads(text or "[]")
    except orjson.JSONDecodeError:
        items = []
    return orjson.dumps([_item(item, text_of) for item in items if isinstance(item, dict)]).decode()


def _item(item: dict[str, Any], text_of: Callable[[str], str | None]) -> dict[str, Any]:
    if item.get("type") == INHERITED:
        return {"type": INHERITED, "content": _inherited(item.get("content"), text_of)}
    made: dict[str, Any] = _replaced(item, False)
    return made


def _replaced(value: Any, names: bool) -> Any:
    if isinstance(value, str):
        return INSTEAD
    if isinstance(value, list | tuple):
        return [_replaced(inner, names) for inner in value]
    if not isinstance(value, Mapping):
        return value
    if is_reference(value):
        return INSTEAD
    if value.get("type") == "input_image":
        return {**value, "image_url": _NO_IMAGE}
    made: dict[str, Any] = {}
    for name, inner in value.items():
        if name == "encrypted_content":
            continue
        if name in _WHOLE or (isinstance(inner, str) and _stays(name, inner, names)):
            made[name] = inner
        elif name == "arguments":
            made[name] = "{}"
        else:
            made[name] = _replaced(inner, names)
    return made


def _stays(name: str, text: str, names: bool) -> bool:
    """Whether a field's text is no words of anybody."""
    return name in _KEPT or (name == "name" and not names) or text in _CHOICES.get(name, ())


def words_of(value: Any, names: bool = False) -> Iterator[str]:
    """The texts of a payload that would be replaced; of one beside the log its digest."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from words_of(inner, names)
    elif isinstance(value, Mapping):
        if is_reference(value):
            yield value[REFERENCE]
            return
        for name, inner in value.items():
            kept = isinstance(inner, str) and _stays(name, inner, names)
            if name not in _WHOLE and not kept:
                yield from words_of(inner, names)


def names_of(value: Any, names: bool = False, whole: bool = False) -> Iterator[str]:
    """The texts of a payload that stay: names of fields, which may be paths, and values that are kept.

    Names of fields as the protocol has them, and its words, are left out.
    """
    if isinstance(value, str):
        yield from (value,) if whole and not _WORD.fullmatch(value) else ()
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from names_of(inner, names, whole)
    elif isinstance(value, Mapping) and not is_reference(value):
        for name, inner in value.items():
            yield from () if _WORD.fullmatch(name) else (name,)
            kept = isinstance(inner, str) and _stays(name, inner, names)
            yield from names_of(inner, names, whole or kept or name in _WHOLE)


# ── copies ────────────────────────────────────────────────────────────────────────────────────────


@record
class Copy:
    """A place where the text stands, and whether it goes."""

    place: str
    """`session:seq`, `tree:<id>:seq`, `text:<sha256>`, `request …`, and so on."""
    what: str
    goes: bool = True


@dataclass(slots=True)
class Plan:
    """All that a redaction takes: entries by session, and large texts that no other entry needs."""

    tree: TreeId
    heads: dict[SessionId, SessionHead] = field(default_factory=dict)
    entries: dict[SessionId, list[int]] = field(default_factory=dict)
    chains: dict[SessionId, bytes] = field(default_factory=dict)
    """The chain value of the last of a session's entries."""
    texts: list[tuple[TreeId, str]] = field(default_factory=list)
    """Large texts that go, each with the tree that has it."""
    copies: list[Copy] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    find: re.Pattern[str] | None = None
    people: set[str] = field(default_factory=set)
    """People who gave something, whose prompts may have the words."""

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    def has(self, text: str) -> bool:
        """Whether a text is one of those that are to go, or has one of them, with escapes of JSON or not."""
        return any(map(self._is_said, _readings(text)))

    def _is_said(self, text: str) -> bool:
        if self.find is not None and self.find.search(text):
            return True
        return any(word in text or (len(text) >= 2 * LEAST_WORDS and text in word) for word in self.words)

    def has_name(self, name: str) -> bool:
        """Whether a name has one of the texts that are to go: words may well have the name of a folder."""
        found = self.find is not None and self.find.search(name) is not None
        return found or any(word in name for word in self.words)


@record
class Wanted:
    """The wish: entries of one session, texts by their digests, and what a pattern finds."""

    session: SessionId
    seqs: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    find: re.Pattern[str] | None = None


async def plan_of(found: LogSource, head: SessionHead, wanted: Wanted) -> Plan:
    """Looks for every copy; raises `NotRedacted` for entries that cannot be redacted."""
    plan = Plan(head.tree, find=wanted.find)
    trees = [head.tree, *await _forks(found, head.tree)]
    for tree in dict.fromkeys(trees):
        _, heads = await found.broker.trees.heads_at_once(tree)
        plan.heads |= {each.session: each for each in heads}
    await _take_words(found, plan, wanted)
    texts = _Texts({(head.tree, digest) for digest in wanted.texts})
    for each in sorted(plan.heads.values(), key=lambda each: str(each.session)):
        asked = frozenset(wanted.seqs) if each.session == wanted.session else frozenset[int]()
        await _Look(found, plan, each, asked, texts).through()
        await _look_at_queue(found, plan, each)
    for tree in dict.fromkeys(trees):
        await _look_through_tree(found, plan, tree, texts)
    for tree in dict.fromkeys(head.tree for head in plan.heads.values()):
        # A step that was refused has stored its texts, and nothing names them.
        stored = {(tree, digest) for digest in await found.broker.trees.texts_of(tree)}
        read = await found.large_texts(tree, sorted(d for _, d in stored - texts.named - texts.needed))
        texts.named |= {(tree, digest) for digest, text in read.items() if plan.has(text)}
    plan.texts = sorted(texts.named - texts.needed)
    digests = sorted({digest for _, digest in plan.texts})
    plan.copies += [Copy(f"text:{digest}", "a large text") for digest in digests]
    return plan


async def _forks(found: LogSource, tree: TreeId) -> list[TreeId]:
    """The trees of sessions that were forked from this tree's, and from theirs."""
    known, trees = {str(head.session) for head in (await found.broker.trees.heads_at_once(tree))[1]}, []
    grows = True
    while grows:
        grows = False
        async for page in found.broker.logs.session_ids():
            for head in await found.broker.logs.heads(page):
                source = head.summary.get("forked_from")
                if source in known and str(head.session) not in known:
                    trees.append(head.tree)
                    members = (await found.broker.trees.heads_at_once(head.tree))[1]
                    known |= {str(member.session) for member in members}
                    grows = True
    return trees


async def _take_words(found: LogSource, plan: Plan, wanted: Wanted) -> None:
    head = plan.heads.get(wanted.session)
    if head is None or any(seq < 1 or seq > head.seq for seq in wanted.seqs):
        raise NotRedacted(f"session {wanted.session} has no such entry")
    words: dict[str, None] = dict.fromkeys(wanted.texts)
    for seq in wanted.seqs:
        async for entry in found.log(head.session, seq, seq - 1):
            line = orjson.loads(entry.payload)
            if entry.digest:
                raise NotRedacted(f"entry {seq} of session {wanted.session} was redacted before")
            if not is_redactable(seq, line) or instead_of(line, _no_text) == line:
                raise NotRedacted(
                    f"entry {seq} of session {wanted.session} cannot be redacted: it says whose log it is, "
                    "what its tree is made of, or has no words"
                )
            told = list(words_of(line["payload"], _is_name(line)))
            texts = await found.large_texts(head.tree, [word for word in told if _is_digest(word)])
            every = [reading for word in (*told, *texts.values()) for reading in _readings(word)]
            words |= dict.fromkeys(word for word in every if len(word) >= LEAST_WORDS)
    words.pop(INSTEAD, None)
    plan.words = list(words)


def _no_text(_: str) -> None:
    return None


def _is_digest(word: str) -> bool:
    return len(word) == 64 and all(each in "0123456789abcdef" for each in word)


async def _texts_in(
    found: LogSource, tree: TreeId, line: Mapping[str, Any], named: Collection[str]
) -> list[str]:
    """The texts of an entry, and the large ones that it names."""
    payload = line["payload"]
    told = [word for word in words_of(payload, _is_name(line)) if word != INSTEAD]
    texts = await found.large_texts(tree, named) if named else {}
    return [*told, *texts.values()]


def _readings(text: str) -> Iterator[str]:
    """The text, and what it says where it is JSON, as arguments of calls are: JSON inside of a text.

    A line of the tree's log is JSON with such texts in it.
    """
    yield text
    for _ in range(_MOST_INSIDE):
        if "\\" not in text:
            return
        text = _ESCAPED.sub(_unescaped, text)
        yield text


def _unescaped(found: re.Match[str]) -> str:
    if (letter := found["letter"]) is not None:
        return _LETTERS.get(letter, letter)
    # Two of them may be the halves of one character.
    units = bytes.fromhex(found[0].replace("\\u", ""))
    return units.decode("utf-16-be", "replace")


@dataclass(slots=True)
class _Texts:
    """Large texts, each with the tree that has it."""

    named: set[tuple[TreeId, str]]
    """By entries that go, and by the person."""
    needed: set[tuple[TreeId, str]] = field(default_factory=set)
    """By entries that stay."""


@dataclass(slots=True)
class _Look:
    """A reading of a session's log, which finds the entries that go and the texts that entries name."""

    found: LogSource
    plan: Plan
    head: SessionHead
    asked: frozenset[int]
    """Entries that the person named."""
    texts: _Texts
    provider: str = ""
    late: int = 0
    """Requests that were sent with the words."""
    named: list[int] = field(default_factory=list)
    """Entries that have the words in names, which stay."""

    async def through(self) -> None:
        """Reads the log; raises `NotRedacted` where more entries go than one redaction takes."""
        head, plan, taken = self.head, self.plan, list[int]()
        seen = False
        async for page in pages(self.found.log(head.session, head.seq)):
            for entry in page:
                line = orjson.loads(entry.payload)
                self._note(entry, line, sent=seen)
                if any(map(plan.has_name, names_of(line["payload"], _is_name(line)))):
                    self.named.append(entry.seq)
                named = await _named_in(self.found, head.tree, line)
                hit = not entry.digest and await self._has(entry, line, named)
                seen |= hit
                goes = hit and is_redactable(entry.seq, line)
                names = self.texts.named if goes else self.texts.needed
                names |= {(head.tree, name) for name in named}
                if goes:
                    taken.append(entry.seq)
                    plan.chains[head.session] = entry.chain
                if hit and (goes or _kind(line) is not f.Redacted):
                    tag = str(line["payload"].get("kind") or line["payload"].get("type"))
                    what = tag if goes else f"{tag}: it cannot be redacted"
                    plan.copies.append(Copy(f"{head.session}:{entry.seq}", what, goes))
        if self.named:
            what = f"names, such as of files and folders, in {counted(len(self.named), 'entry')}: they stay"
            plan.copies.append(Copy(f"{head.session}:{self.named[0]}", what, goes=False))
        if (more := self.late - MOST_ENTRIES) > 0:
            what = f"{counted(more, 'further request')}, each of which was sent with it"
            plan.copies.append(Copy(f"{head.session}:{head.seq}", what, goes=False))
        if taken:
            plan.entries[head.session] = taken
            if where := head.summary.get("rollout_path"):
                plan.copies.append(Copy(where, "the rollout's file, on the machines that wrote it"))
        if plan.count > MOST_ENTRIES:
            raise NotRedacted(f"more than {MOST_ENTRIES} entries have it: take fewer at once")

    async def _has(self, entry: StoredEntry, line: Mapping[str, Any], named: Collection[str]) -> bool:
        if entry.seq in self.asked:
            return True
        return any(self.plan.has(text) for text in await _texts_in(self.found, self.head.tree, line, named))

    def _note(self, entry: StoredEntry, line: Mapping[str, Any], *, sent: bool) -> None:
        """Keeps who gave words, and says of a request that it was sent with the words."""
        self.plan.people |= _givers(line["payload"])
        match f.decode(line["payload"]) if _kind(line) in _NOTED and not entry.digest else None:
            case f.TaskBegun(settings=settings):
                self.provider = settings.model_provider
            case f.RequestBegun(n=n) if sent:
                self.late += 1
                if self.late <= MOST_ENTRIES:
                    what = f"request {n} to {self.provider or 'a provider'} at {line['timestamp']}"
                    place = f"{self.head.session}:{entry.seq}"
                    self.plan.copies.append(Copy(place, f"{what} was sent with it", goes=False))
            case _:
                pass


def _givers(payload: Mapping[str, Any]) -> set[str]:
    """The people who gave what an entry says: a task, words that joined one or wait, an answer, a message."""
    mail = payload.get("mail")
    content = mail.get("content") if isinstance(mail, Mapping) else None
    given = [payload.get("by"), content.get("by") if isinstance(content, Mapping) else None]
    return {str(by["who"]) for by in given if isinstance(by, Mapping) and by.get("who")}


async def _look_through_tree(found: LogSource, plan: Plan, tree: TreeId, texts: _Texts) -> None:
    async for entry in tree_entries(found.broker.logs, tree):
        text = entry.payload.decode("utf-8", "replace") + entry.about.decode("utf-8", "replace")
        if plan.has(text):
            what = "the tree's log, and its registry: it cannot be redacted there"
            plan.copies.append(Copy(f"tree:{tree}:{entry.tree_seq}", what, goes=False))
        texts.needed |= {(tree, digest) for digest in _named_by_tree(entry)}


def _named_by_tree(entry: TreeEntry) -> set[str]:
    """The large texts that an entry of a tree's log names."""
    return set(references(orjson.loads(entry.payload))) if may_refer(entry.payload) else set()


async def _look_at_queue(found: LogSource, plan: Plan, head: SessionHead) -> None:
    """Says of what nobody has read yet that it stays: it is said again, behind what the redaction takes."""
    if not head.has_unread:
        return
    waiting = 0
    async for entry in unread(found, head):
        waiting += plan.has(entry.payload.decode("utf-8", "replace"))
    if waiting:
        what = f"{counted(waiting, 'submission')} that no worker has read yet: redact again when one has"
        plan.copies.append(Copy(f"{head.session}:sq", what, goes=False))


async def _named_in(found: LogSource, tree: TreeId, line: Mapping[str, Any]) -> set[str]:
    """The large texts that an entry names, and those that a conversation in it names."""
    named = set(references(line["payload"]))
    inside = _conversation(line)
    waiting: list[Any] = [] if inside is None else [inside]
    while waiting:
        content = waiting.pop()
        if isinstance(content, dict) and is_reference(content):
            digest = str(content[REFERENCE])
            content = (await found.large_texts(tree, [digest])).get(digest)
        try:
            items = orjson.loads(content) if isinstance(content, str) else []
        except orjson.JSONDecodeError:
            continue
        named |= set(references(items))
        waiting += [item.get("content") for item in items if item.get("type") == INHERITED]
    return named


# ── the redaction ─────────────────────────────────────────────────────────────────────────────────


@record
class Act:
    """A person's redaction: who, why, and the process that does it."""

    why: str
    by: Sender
    worker: f.Claimed
    now_ms: int


@record
class _Rest:
    """Entries of a session that are still to be redacted."""

    session: SessionId
    seqs: tuple[int, ...]
    chain: bytes
    """The chain value of the last of them: behind a moment to which Redis went back these may be others."""

    @property
    def word(self) -> str:
        return f"{self.session}:{','.join(map(str, self.seqs))}:{self.chain.hex()}"

    @classmethod
    def of(cls, word: str) -> _Rest:
        session, seqs, chain = word.split(":")
        return cls(SessionId(session), tuple(map(int, seqs.split(","))), bytes.fromhex(chain))


@record
class _Owed:
    """The part of a redaction that is still to be done, as the mark of a session has it (`redacting`).

    A large text of the session's own tree is its digest there, one of another tree `tree/digest`.
    """

    texts: tuple[tuple[TreeId, str], ...] = ()
    rests: tuple[_Rest, ...] = ()

    def words(self, tree: TreeId) -> tuple[str, ...]:
        texts = (digest if of == tree else f"{of}/{digest}" for of, digest in self.texts)
        return (*texts, *(rest.word for rest in self.rests))

    @classmethod
    def read(cls, words: Iterable[str], tree: TreeId) -> _Owed:
        words = list(words)
        texts = [word.rpartition("/") for word in words if ":" not in word]
        return cls(
            tuple((TreeId(of or tree), digest) for of, _, digest in texts),
            tuple(_Rest.of(word) for word in words if ":" in word),
        )

    def covers(self, other: _Owed) -> bool:
        """Whether another mark is of this redaction, or of a part of it."""
        own = {rest.session: {*rest.seqs} for rest in self.rests}
        return {*other.texts} <= {*self.texts} and all(
            {*rest.seqs} <= own.get(rest.session, set()) for rest in other.rests
        )


async def redact(found: LogSource, storage: Storage, plan: Plan, act: Act) -> int:
    """Takes the planned entries' text away; answers how many. Each session has to be at rest.

    Raises `NotRedacted` for the first session that is not, and nothing was changed; but where it began to
    work meanwhile, those before it are done, and upkeep does the rest when it is at rest. Large texts go with
    the last session: until then another one may need them.

    Prompts, also those on their way, and texts of trees without such an entry go first: no log says that they
    are owed, and a second call finds the words by the entries. What an earlier redaction of these sessions
    owes is done before.
    """
    rests = tuple(_Rest(each, tuple(seqs), plan.chains[each]) for each, seqs in plan.entries.items())
    holder = _Holder(found, act.worker.worker)
    for rest in rests:
        await _see_at_rest(holder, plan.heads[rest.session], rest if len(rests) > 1 else None)
    for rest in rests:
        await _go_on(found, storage, rest.session, act.worker)
    trees = {plan.heads[session].tree for session in plan.entries}
    owed = _Owed(tuple(text for text in plan.texts if text[0] in trees), rests)

    async def first() -> None:
        for prompt in await pending_prompts(found, plan.people - {""}, plan.has):
            await found.broker.requests.keep_out(prompt.who, prompt.key)
        for who in sorted(plan.people - {""}):
            await found.broker.requests.forget_prompts(who, plan.has)
        await _remove_texts(holder, storage, (text for text in plan.texts if text[0] not in trees))

    holder.first = first
    async with holder:
        return await _redact_sessions(holder, storage, owed, act)


@dataclass(slots=True)
class _Holder:
    """A process that redacts, and the sessions that it holds: a long log may take longer than a lease."""

    found: LogSource
    worker: str
    held: list[AtRest] = field(default_factory=list)
    first: Callable[[], Awaitable[None]] | None = None
    """Done before the first session is changed, when nothing refuses that any more."""

    async def claim(self, head: SessionHead) -> AtRest:
        """Takes a session at rest; raises `NotRedacted` where a worker has it."""
        held = await self.found.broker.claims.claim_at_rest(head, self.worker, uuid.uuid4().hex)
        if held is None:
            raise NotRedacted(f"session {head.session} is at work, or archived: it is redacted at rest")
        self.held.append(held)
        return held

    async def stay(self) -> None:
        """Keeps what is held from running out; called again and again."""
        for held in self.held:
            await held.stay()

    async def give_back(self, held: AtRest) -> None:
        """Ends a claim."""
        self.held.remove(held)
        await held.give_back()

    async def __aenter__(self) -> None:
        """Gives back at the end what is held then, whatever ends it."""

    async def __aexit__(self, *_: object) -> None:
        while self.held:
            await self.give_back(self.held[-1])


async def _redact_sessions(holder: _Holder, storage: Storage, owed: _Owed, act: Act) -> int:
    """Redacts one session after the other; each is marked until the next one is.

    So there is no moment between at which nothing says what is still to be done.
    """
    done, before = 0, None
    for at, rest in enumerate(owed.rests):
        try:
            taken = await _redact_session(holder, rest, replace(owed, rests=owed.rests[at:]), act)
        except NotRedacted as error:
            if before is None:
                raise
            # A session that lost nothing says of no redaction that it goes on.
            await before.finish(storage, replace(owed, rests=owed.rests[at:]) if before.count else None)
            if not done:
                raise
            raise NotRedacted(f"{error}; what comes before it is done, and {_GOES_ON}") from error
        if taken is None:
            continue
        done += taken.count
        if before is not None and not taken.count:
            # It was done before, and is not marked with what comes behind it.
            await taken.finish(storage, None)
            continue
        if before is not None:
            await before.finish(storage, None)
        before = taken
    if before is not None:
        await _remove_texts(holder, storage, owed.texts)
        await before.finish(storage, None)
    return done


async def _see_at_rest(holder: _Holder, head: SessionHead, rest: _Rest | None) -> None:
    """Raises `NotRedacted` where a session cannot be redacted, before anything of others is changed.

    `rest`: what is to be taken of it, where there are others.
    """
    found = holder.found
    async with holder:
        held = await holder.claim(await _resting(found, head.session))
        await _resting(found, head.session)
        if rest is not None:
            await _Fold(holder, head, rest).run(held.claimed.seq, held.claimed.head)


async def _resting(found: LogSource, session: SessionId) -> SessionHead:
    """The head of a session at rest. Asked before a claim, too: one of what is due counts as an attempt."""
    now = await found.broker.logs.head(session)
    if now is None or now.status not in _RESTS:
        raise NotRedacted(_in_a_task(session))
    return now


def _in_a_task(session: SessionId) -> str:
    return f"session {session} is in the middle of a task: it is redacted at rest"


async def _redact_session(holder: _Holder, rest: _Rest, owed: _Owed, act: Act) -> _Redacted | None:
    """Commits what is to be taken of a session; None where it is gone. The caller finishes it.

    `owed` is what the redaction has still to do, this session's part included.
    """
    found, session = holder.found, rest.session
    head = await found.broker.logs.head(session)
    if head is None:
        return None
    if head.status not in _RESTS:
        raise NotRedacted(_in_a_task(session))
    held = await holder.claim(head)
    known = await found.broker.logs.redacting(session)
    if known is not None and not owed.covers(_Owed.read(known, head.tree)):
        raise NotRedacted(f"another redaction of session {session} is not done yet")
    told = await _Fold(holder, head, rest).run(held.claimed.seq, held.claimed.head)
    # What a session was closed over waits until somebody resumes it, perhaps for ever.
    if told.state.task is not None or (told.state.queue and not told.state.closed):
        raise NotRedacted(_in_a_task(session))
    if holder.first is not None:
        await holder.first()
        holder.first = None
    await _commit(holder, held, told, owed, act)
    return _Redacted(holder, held, len(told.redacted), told.stated)


@dataclass(slots=True)
class _Redacted:
    """A session whose log says what was taken of it; copies beside the log are left."""

    holder: _Holder
    held: AtRest
    count: int = 0
    stated: Mapping[int, bytes] | None = None
    """The lines that stand instead, where the log was read."""

    async def finish(self, storage: Storage, still: _Owed | None) -> None:
        """Removes the copies, and ends the claim; `still` is what stays marked."""
        await _finish(storage, self, still)
        await self.holder.give_back(self.held)


class _Fold:
    """The log as it will be: folded with what stands instead."""

    def __init__(self, holder: _Holder, head: SessionHead, rest: _Rest) -> None:
        self._holder, self._head, self._rest, self._seqs = holder, head, rest, frozenset(rest.seqs)
        self.state = State()
        self.redacted: list[tuple[StoredEntry, bytes]] = []
        self.stated: dict[int, bytes] = {}
        """The line that stands instead of each entry that goes, or went before."""
        self.blobs: dict[str, bytes] = {}

    async def run(self, seq: int, head: bytes) -> _Fold:
        if seq < self._rest.seqs[-1]:
            # Redis has lost some of those that were meant: the others may be other ones by now.
            return await _Fold(self._holder, self._head, _NOTHING).run(seq, head)
        last = (0, GENESIS)
        was = State()
        async for page in pages(self._holder.found.log(self._head.session, seq)):
            await self._holder.stay()
            for entry in page:
                payload = entry.payload
                was = evolve(was, decode_entry(payload), entry.seq)
                if entry.seq in self._seqs and not entry.digest:
                    payload = await self._instead(entry)
                    self.redacted.append((entry, payload))
                if entry.digest or payload is not entry.payload:
                    self.stated[entry.seq] = payload
                self.state = evolve(self.state, decode_entry(payload), entry.seq)
                if entry.seq == self._rest.seqs[-1] and entry.chain != self._rest.chain:
                    # Redis has lost those that were meant.
                    return await _Fold(self._holder, self._head, _NOTHING).run(seq, head)
                last = (entry.seq, entry.chain)
        if last != (seq, head):
            raise NotRedacted(f"the log of session {self._head.session} is not whole: see `dendro verify`")
        if _shape(was) != _shape(self.state):
            raise NotRedacted(
                "without these words the log would fold to another state: choose other entries of session "
                f"{self._head.session}"
            )
        return self

    async def _instead(self, entry: StoredEntry) -> bytes:
        line = orjson.loads(entry.payload)
        named = set(references(line["payload"]))
        texts = await self._holder.found.large_texts(self._head.tree, named)
        made = instead_of(line, texts.get)
        encoded = encode_entry(
            Entry(made["type"], made["payload"], made.get("id", "")), line_ms(entry.payload), self.blobs
        )
        return encoded.line


_NOTHING: Final = _Rest(SessionId(""), (0,), b"")


def _shape(state: State) -> tuple[Any, ...]:
    """The parts of a state that no redaction may change."""
    return (
        state.status,
        len(state.history),
        tuple(item.get("type") for item in state.history),
        replace(state.facts, base_instructions=None),
        state.settings,
        tuple(state.tree.children),
        state.timers,
        state.closed,
        len(state.bookmarks),
    )


async def _commit(holder: _Holder, held: AtRest, told: _Fold, owed: _Owed, act: Act) -> None:
    """Commits the facts; `owed` begins with this session's part, which gets shorter with each commit."""
    found, claim = holder.found, held.claimed.claim
    at: Claimed | Committed = held.claimed
    writer = LogWriter(os.urandom, found.secret, claim.epoch)
    of = f"session:{claim.session}"
    start = 0
    while some := _piece(told.redacted[start:]):
        left = told.redacted[start + len(some) :]
        own = replace(owed.rests[0], seqs=tuple(entry.seq for entry, _ in left))
        marked = replace(owed, rests=(*([own] if left else ()), *owed.rests[1:]))
        stated: list[f.Fact] = [act.worker] if start == 0 else []
        for entry, payload in some:
            digest, who = entry.covered.hex(), act.by.who
            stated.append(f.Redacted(of, entry.seq, digest, who, act.why, orjson.loads(payload), by=act.by))
        entries, seq, head = [], at.seq, at.head
        blobs = dict(told.blobs)
        for each in stated:
            seq += 1
            line = encode_json(_line(each, act.now_ms, blobs))
            entries.append(seal(line, seq, head, writer))
            head = entries[-1].chain
        meta = session_meta(Position(told.state, seq, head), act.now_ms)
        request = CommitRequest(
            claim,
            uuid.uuid4().hex,
            at.seq,
            at.head,
            at.last_commit,
            tuple(entries),
            meta=meta,
            name=told.state.name or None,
            texts=tuple(told.blobs) if start == 0 else (),
            redacted=tuple(
                RedactedEntry(entry.seq, entry.epoch, entry.covered, entry.chain, payload)
                for entry, payload in some
            ),
            redacting=marked.words(claim.tree),
        )
        await holder.stay()
        await found.texts.store(claim.tree, told.blobs if start == 0 else {})
        answer = await found.broker.commits.commit(request)
        if not isinstance(answer, Committed):
            came = f"was redacted in part, and {_GOES_ON}" if start else "was not redacted"
            raise NotRedacted(f"session {claim.session} {came}: {answer}")
        held.end = at = answer
        start += len(some)


def _piece(redacted: Sequence[tuple[StoredEntry, bytes]]) -> Sequence[tuple[StoredEntry, bytes]]:
    """The next entries that one commit takes."""
    sizes = accumulate(len(payload) for _, payload in redacted[:AT_ONCE])
    return redacted[: max(1, sum(size <= AT_ONCE_BYTES for size in sizes))]


def _line(stated: f.Fact, now_ms: int, blobs: dict[str, bytes]) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(encode_entry(fact(stated), now_ms, blobs).line)
    return value


# ── copies beside the log ─────────────────────────────────────────────────────────────────────────


async def _finish(storage: Storage, taken: _Redacted, still: _Owed | None) -> None:
    """Removes the segments with the text; the session stays marked with what is `still` to be done."""
    claim, instead = taken.held.claimed.claim, taken.stated
    head = await storage.broker.logs.head(claim.session)
    assert head is not None
    manifest = Manifest.decode(head.manifest)
    kept = []
    if manifest.segments and instead is None:
        instead = await _stated_in(storage, head, taken.holder)
    for segment in manifest.segments:
        await taken.holder.stay()
        inside = {seq: text for seq, text in (instead or {}).items() if segment.first <= seq <= segment.last}
        entries = await storage.archive.read_segment(segment) if inside else ()
        if all(entries[seq - segment.first].digest for seq in inside):
            kept.append(segment)
            continue
        made = [
            RedactedEntry(entry.seq, entry.epoch, entry.covered, entry.chain, inside[entry.seq]).entry
            if entry.seq in inside
            else entry
            for entry in entries
        ]
        kept.append(await storage.archive.rewrite_segment(claim.tree, claim.session, segment, made))
    # A writer that died, or was too late, may have left others of the same entries.
    named = {segment.name for segment in kept}
    stray = [name for name in await storage.archive.segments(claim.tree, claim.session) if name not in named]
    encoded = Manifest(tuple(kept)).encode() if manifest.segments else head.manifest
    await storage.archive.remove_unfinished(claim.tree, claim.session)
    if stray:
        # Segments that no manifest names still have the text: the mark outlives them.
        owed = await storage.broker.logs.redacting(claim.session)
        await _rewrite(storage, claim, head.manifest, encoded, owed)
        for name in stray:
            await storage.archive.remove_segment(name)
    left = None if still is None else still.words(claim.tree)
    await _rewrite(storage, claim, encoded if stray else head.manifest, encoded, left)


async def _rewrite(
    storage: Storage, claim: Claim, seen: bytes, manifest: bytes, owed: Sequence[str] | None
) -> None:
    answer = await storage.broker.commits.rewrite(claim, seen, manifest, owed)
    if not isinstance(answer, Stored):
        raise NotRedacted(f"copies of session {claim.session} stay in the archive: {answer}")


async def _remove_texts(holder: _Holder, storage: Storage, texts: Iterable[tuple[TreeId, str]]) -> None:
    """Removes large texts, but those that entries name by now.

    A session that the redaction had not come to may have gone on with the words: a fork of it inherits them.
    """
    by_tree: dict[TreeId, set[str]] = {}
    for tree, digest in texts:
        by_tree.setdefault(tree, set()).add(digest)
    for tree, digests in by_tree.items():
        digests -= await _needed_in(holder, tree)
        for digest in sorted(digests):
            await storage.blobs.remove(tree, digest)
        await storage.archive.remove_blobs(tree, sorted(digests))


async def _needed_in(holder: _Holder, tree: TreeId) -> set[str]:
    """The large texts that entries of a tree name, also those that are written while others are read."""
    found, needed, read, told = holder.found, set[str](), dict[SessionId, int](), 0
    while True:
        _, heads = await found.broker.trees.heads_at_once(tree)
        grown = [head for head in heads if head.seq > read.get(head.session, 0)]
        if not grown:
            return needed
        async for stated in tree_entries(found.broker.logs, tree, told):
            needed |= _named_by_tree(stated)
            told = stated.tree_seq
        for head in grown:
            async for page in pages(found.log(head.session, head.seq, read.get(head.session, 0))):
                await holder.stay()
                for entry in page:
                    needed |= await _named_in(found, tree, orjson.loads(entry.payload))
            read[head.session] = head.seq


async def _stated_in(storage: Storage, head: SessionHead, holder: _Holder) -> dict[int, bytes]:
    """The lines that stand instead of a log's redacted entries, as its facts say."""
    told = _redactions_of(storage, head, holder)
    return {stated.seq: encode_json(stated.instead) async for stated in told}


async def _redactions_of(storage: Storage, head: SessionHead, holder: _Holder) -> AsyncIterator[f.Redacted]:
    """The redactions that a log tells of: those of its own entries."""
    from orchestrator.rollouts.full_log import full_log

    async for entry in full_log(storage.broker.logs, storage.archive, head.session, 0, head.seq):
        await holder.stay()
        if stored_kind(entry.payload) is f.Redacted:
            stated = f.decode(decode_entry(entry.payload).payload)
            assert isinstance(stated, f.Redacted)
            if stated.log == f"session:{head.session}":
                yield stated


@dataclass(frozen=True)
class StoredLogs:
    """A log source over the storage of sessions."""

    storage: Storage
    texts: Texts

    @classmethod
    def of(cls, storage: Storage) -> StoredLogs:
        return cls(storage, Texts(storage.blobs, archived=storage.archive.text))

    @property
    def broker(self) -> Broker:
        return self.storage.broker

    @property
    def secret(self) -> bytes:
        return self.storage.secret

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        from orchestrator.rollouts.full_log import full_log

        return full_log(self.broker.logs, self.storage.archive, session, after, through)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        wanted = list(digests)
        await self.texts.fetch(tree, wanted)
        found = {digest: self.texts.get(digest) for digest in wanted}
        return {digest: text for digest, text in found.items() if text is not None}


def owed_to_others(words: Iterable[str], tree: TreeId, sessions: Collection[SessionId]) -> list[str]:
    """The other sessions and trees of which, by the mark of one of a tree's sessions, something is to go."""
    owed = _Owed.read(words, tree)
    rests = [rest.session for rest in owed.rests if rest.session not in sessions]
    return [*rests, *(of for of, _ in owed.texts if of != tree)]


async def finish_redactions(
    storage: Storage, worker: f.Claimed, restore: Callable[[SessionId], Awaitable[bool]]
) -> int:
    """Upkeep's part: goes on with what a process that died has left; answers of how many sessions.

    Sessions that are at work are left for the next look, and so is one whose log cannot be read, or needs an
    archive that is away: the words of others go meanwhile.
    """
    found, done = StoredLogs.of(storage), 0
    for shard in range(storage.broker.config.shards):
        for session, _ in await storage.broker.logs.redacted_lately(shard, 0):
            try:
                done += await _go_on(found, storage, session, worker, restore)
            except UnknownSession:
                continue
            except NotRedacted as error:
                log.info("a redaction is not done yet: %s", error)
            except (RolloutError, BrokenArchive, Corrupt, ArchiveUnavailable) as error:
                log.warning("session %s: its redaction cannot be finished: %s", session, error)
    return done


async def _go_on(
    found: LogSource,
    storage: Storage,
    session: SessionId,
    worker: f.Claimed,
    restore: Callable[[SessionId], Awaitable[bool]] | None = None,
) -> bool:
    """Does what a redaction owes that a session is marked with; False where it owes nothing."""
    head = await storage.broker.logs.head(session)
    words = await storage.broker.logs.redacting(session)
    if head is None or words is None:
        return False
    owed, holder = _Owed.read(words, head.tree), _Holder(found, worker.worker)
    refused: NotRedacted | None = None
    try:
        if owed.rests:
            if restore is not None:
                await _bring_back(storage, owed, restore)
            act = await _act_of(storage, head, worker, holder)
            async with holder:
                await _redact_sessions(holder, storage, owed, act)
    except NotRedacted as error:
        refused = error
    # What is marked now has no part that is to be redacted, or one that is not at rest.
    if await storage.broker.logs.redacting(session) is not None:
        now = await storage.broker.logs.head(session) or head
        async with holder:
            taken = _Redacted(holder, await holder.claim(now))
            left = _Owed.read(await storage.broker.logs.redacting(session) or (), head.tree)
            if not owed.covers(left):
                # Another redaction has begun before the claim, and left its own mark.
                return True
            if refused is None:
                await _remove_texts(holder, storage, left.texts)
            await taken.finish(storage, None if refused is None else left)
    if refused is not None:
        raise refused
    return True


async def _bring_back(storage: Storage, owed: _Owed, restore: Callable[[SessionId], Awaitable[bool]]) -> None:
    """Sessions that were archived meanwhile come back to Redis: they are written to."""
    for rest in owed.rests:
        head = await storage.broker.logs.head(rest.session)
        if head is not None and head.archived:
            await restore(rest.session)


async def _act_of(storage: Storage, head: SessionHead, worker: f.Claimed, holder: _Holder) -> Act:
    """The redaction that a log tells of last, gone on with by another process."""
    last = f.Redacted("", 0, "", "", "", {})
    async for stated in _redactions_of(storage, head, holder):
        last = stated
    return Act(last.why, last.by or Sender(last.who), worker, storage.broker.now_ms())


__all__ = [
    "Act",
    "Copy",
    "NotRedacted",
    "Plan",
    "StoredLogs",
    "Wanted",
    "finish_redactions",
    "owed_to_others",
    "plan_of",
    "redact",
]
