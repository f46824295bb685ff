"""The plan of an imported session: entries from a file, rewritten for a new session id.

A full export keeps every entry; only the names of the old session and its old claims
change. Codex's rollout is folded first; behind its lines come the settings that
the fold ended with, and the session is idle. Whoever wrote a file may have written anything into it: unless a
person vouches for it, or its chain is keyed by our key, it permits nothing (`Newcomer.bound`). Pure: a file's
lines in, a plan out.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pydantic import ValidationError

from orchestrator.broker.records import (
    Claimed,
    CommitRequest,
    Committed,
    Fenced,
    NewTree,
    Refused,
    Unstored,
)
from orchestrator.broker.seal import LogWriter, event_of, seal
from orchestrator.core import CORE_VERSION
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import ORIGINATOR, session_configured
from orchestrator.core.blobs import references, resolve
from orchestrator.core.calls import (
    AskWork,
    AwaitWork,
    Call,
    HelperWork,
    Phase,
    VariantsWork,
    answer_item,
    timer_of,
)
from orchestrator.core.chain import GENESIS, NOT_FOLLOWING, ChainKey
from orchestrator.core.commit_parts import (
    Approval,
    NewEntry,
    NewEvent,
    Timer,
    approval,
    approval_timer,
    new_session,
    wait_timer,
)
from orchestrator.core.counts import counted
from orchestrator.core.entries import Encoded, Entry, encode_entry, kind_of, timestamp
from orchestrator.core.evolve import evolve, fold
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId
from orchestrator.core.lines import MetaLine, read_meta, told_of_git
from orchestrator.core.packs import Pack, read_pack
from orchestrator.core.sender import Sender
from orchestrator.core.settings import FACTS, PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.codec import rollout_item
from orchestrator.protocol.events import SessionConfigured, ShutdownComplete, SubagentLifecycle
from orchestrator.protocol.wire import UNSET, written
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.file_format import BadLine, FileLine, FileWalk, Header, RolloutText
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.session_summary import Position, session_meta
from orchestrator.rollouts.verify import header_lacks_code, keyed_elsewhere

HELPERS_STAY = "not answered: the helpers of this call stay in the tree of the session that was exported"
NO_CLAIM = 0
"""The epoch that no claim has: work of an earlier life is in doubt, never taken for one's own."""

Bound: TypeAlias = Callable[[TurnSettings, PortableFolder | None], TurnSettings]


@record
class Newcomer:
    """The new session that the entries are rewritten for."""

    facts: SessionFacts
    fallback: TurnSettings
    """Settings that Codex's rollout does not contain."""
    version: str
    now_ms: int
    bound: Bound | None = None
    """The settings that count where a stranger's file names others; None: a person vouches for the file."""
    by: Sender | None = None
    """The person who imports it."""

    def permitted(self, told: TurnSettings, portable: PortableFolder | None = None) -> TurnSettings:
        """The settings of a file, as far as they count."""
        return told if self.bound is None else self.bound(told, portable)


@record
class ImportPlan:
    """A session to be created: its entries with the times they keep, and what they fold to."""

    entries: tuple[tuple[Entry, int], ...]
    state: State
    facts: SessionFacts
    lines: int = 0
    """The entries that stand in the file."""
    left_out: int = 0
    """Entries of the log of which the file has only the digests."""
    notes: tuple[str, ...] = ()
    packs: tuple[Pack, ...] = ()
    """Packs of its portable folder, by their names in the exporter's tree."""
    bounded: bool = False
    """Whether the file names policies that do not count."""


def plan_import(
    text: RolloutText,
    newcomer: Newcomer,
    blobs: Mapping[str, bytes],
    key: ChainKey | None,
    *,
    accept_old_header: bool = False,
    instead: Mapping[int, Entry] = {},
) -> ImportPlan:
    """Reads the whole file before anything is made of it; raises `BadLine` or `RolloutError`.

    `instead` has what stands in the place of entries that were redacted (`replay.instead_in`).
    """
    if text.header is None:
        return _plan_foreign(text, newcomer, blobs, key)
    return _plan_full(text, text.header, newcomer, key, accept_old_header, instead)


def _plan_full(
    text: RolloutText,
    header: Header,
    newcomer: Newcomer,
    key: ChainKey | None,
    accept_old: bool,
    instead: Mapping[int, Entry],
) -> ImportPlan:
    notes, elsewhere, export_mac = list[str](), keyed_elsewhere(header, key), False
    walk = FileWalk(key.secret if key else b"", keyed=not elsewhere)
    # A chain that our key has made is a log of our own workers.
    vouched = newcomer.bound is None or key is not None
    entries: list[tuple[Entry, int]] = []
    packs: list[Pack] = []
    at_ms, last, redacted = newcomer.now_ms, 0, 0
    for line in text.lines:
        broken = walk.take_line(line)
        if broken is not None:
            raise RolloutError(f"its chain is broken at entry {broken.seq}: {broken.reason}")
        told = line.entry
        if told is None and line.place is not None:
            told = instead.get(line.place.seq)
            redacted += 1
        if told is None:
            raise RolloutError(
                f"line {line.number} is redacted: what it did to the state is not known any more"
            )
        at_ms, last = _at_ms(line, at_ms), line.place.seq if line.place else last
        packs += _packs_in(told)
        if told.type == e.DENDRO and f.states(told.payload, f.Configured):
            export_mac |= told.payload.get("export_mac") is True
        entry = renamed(told, newcomer.facts)
        entries.append((entry if vouched else _without_approvals(entry), at_ms))
    _require_header(header, key, (last, walk.head), export_mac, accept_old)
    if elsewhere:
        notes.append(f"its chain was not checked: the key {elsewhere!r} is not configured here")
    if redacted:
        notes.append(f"{redacted} of its entries were redacted: what stands instead is imported")
    state = _folded(entries, start_line=2)
    _require_usable(state.settings)
    facts = replace(state.facts, **{name: getattr(newcomer.facts, name) for name in OWN_FACTS})
    lines = len(entries)
    for entry in _waited_for(state):
        entries.append((entry, newcomer.now_ms))
        state = evolve(state, entry, len(entries))
    plan = ImportPlan(tuple(entries), state, facts, lines, notes=tuple(notes), packs=tuple(packs))
    return plan if vouched else _harmless(plan, newcomer)


def _waited_for(state: State) -> Iterator[Entry]:
    """The ends of what never comes to the new session: timers, a budget and agents are the old one's."""
    if state.task is not None and state.task.wait:
        # Here the request is owed, and begun when somebody speaks to it.
        yield e.fact(f.RetryDue())
    for call in state.task.calls.begun if state.task is not None else ():
        if isinstance(call.work, HelperWork | VariantsWork):
            yield e.item(answer_item(call.item, HELPERS_STAY))
            yield e.fact(f.CallMoved(call.call_id, Phase.DONE))
    if state.tree.paused:
        yield e.fact(f.AgentChanged({"paused": None}))
    if state.tree.ending_children:
        ending = tuple(id for id, child in state.tree.children.items() if child.ending)
        yield e.fact(f.ToEnd((), None))
        yield e.fact(f.ChildrenChanged(ending, {"ending": False}))
    if state.closing and state.task is None and not state.processes.living:
        yield e.fact(f.Closed())
        yield e.event(state.closing, ShutdownComplete())


def _require_header(
    header: Header, key: ChainKey | None, end: tuple[int, bytes], export_mac: bool, accept_old: bool
) -> None:
    """Raises `RolloutError` for a first line that is not of the entries behind it: `end` is the number of the
    last one, and the chain's head there.
    """
    last, head = end
    if last != header.seq:
        raise RolloutError(f"it ends at entry {last}, its first line says {header.seq}")
    if head != header.head:
        raise RolloutError("its first line names another head than its last entry has")
    changed = header_lacks_code(header, key, export_mac, accept_old)
    if not keyed_elsewhere(header, key) or not header.as_written:
        changed = header.fault(key.secret if key else b"") or changed
    if changed:
        raise RolloutError(changed.reason)


def _require_usable(settings: TurnSettings) -> None:
    """Raises `RolloutError` for settings that no turn could begin with, whatever they permit."""
    for name, value in (("cwd", settings.cwd), ("model", settings.model)):
        if not isinstance(value, str) or "\0" in value:
            raise RolloutError(f"its settings name a {name} that is no text without NUL: {value!r:.80}")


def _without_approvals(entry: Entry) -> Entry:
    """The entry of a stranger's file; what it says to be approved for the session is not."""
    if entry.type != e.DENDRO or not f.states(entry.payload, f.ApprovedForSession):
        return entry
    return replaced(entry, payload={**entry.payload, "keys": [], "roots": []})


def _harmless(plan: ImportPlan, newcomer: Newcomer) -> ImportPlan:
    """The plan of a stranger's full export, which permits no more than the person's own settings.

    Raises `RolloutError` for work under way: its calls and requests are only the file's word, and a request
    that shows one command may belong to a call of another.
    """
    state = plan.state
    if state.task is not None or state.queue:
        raise RolloutError(
            "work is under way in it, or waits, and nothing proves that a session of yours has begun it: "
            "interrupt it where it runs, and export it then; or say --trust, if you have made the file "
            "yourself"
        )
    owners = {name: getattr(newcomer.facts, name) for name in OWNERS_FACTS}
    portable = None if plan.facts.portable is None else replaced(plan.facts.portable, setup=None)
    settings = newcomer.permitted(state.settings, portable)
    facts = replace(plan.facts, **owners, portable=portable)
    if (settings, facts) == (state.settings, plan.facts):
        return plan
    configured = e.fact(f.Configured(settings, facts, export_mac=True, by=newcomer.by))
    entries = (*plan.entries, (configured, newcomer.now_ms))
    return replaced(
        plan,
        entries=entries,
        state=_folded(entries, start_line=2),
        facts=facts,
        bounded=settings != state.settings,
    )


def _packs_in(entry: Entry) -> list[Pack]:
    """The packs that an entry names first, of the session's own folder.

    Those of its agents' folders (merges, offers) keep their names: the agents stay in the exporter's tree,
    and a merge that the new session asks for is refused by the first name that is none of its tree.
    """
    if entry.type != e.DENDRO:
        return []
    if f.states(entry.payload, f.WorkspaceBegun):
        return [read_pack(pack) for pack in entry.payload["packs"]]
    if f.states(entry.payload, f.WorkspaceSaved):
        return [read_pack(entry.payload["pack"])]
    return []


OWN_FACTS = tuple(name for name, each in FACTS.items() if each.imported == "new")
"""Facts that are set when a session is created, and anew when it is imported."""
OWNERS_FACTS = tuple(name for name, each in FACTS.items() if each.imported == "owner")
"""Facts that are the person's own where a stranger's file says otherwise."""


def renamed(entry: Entry, facts: SessionFacts) -> Entry:
    """The entry as the new session's: ids, paths and epochs are its own, nothing else changes."""
    return replaced(entry, payload=_renamed(entry, facts))


def _renamed(entry: Entry, facts: SessionFacts) -> Mapping[str, Any]:
    payload = entry.payload
    match entry.type, payload.get("type"):
        case e.SESSION_META, _:
            return {**payload, "id": facts.session_id}
        case e.DENDRO, _ if f.states(payload, f.Configured):
            session = facts.wire()
            own = {name: session[name] for name in OWN_FACTS if name in session}
            kept = {name: value for name, value in payload["session"].items() if name not in OWN_FACTS}
            return {**payload, "session": {**kept, **own}, "export_mac": True}
        case e.DENDRO, _ if f.states(payload, f.WorkspaceBegun):
            return {**payload, "packs": [_pack_renamed(pack, facts) for pack in payload["packs"]]}
        case e.DENDRO, _ if f.states(payload, f.WorkspaceSaved):
            return {**payload, "pack": _pack_renamed(payload["pack"], facts)}
        case e.DENDRO, _ if "epoch" in payload:
            return {**payload, "epoch": NO_CLAIM}
        case e.EVENT_MSG, "session_configured":
            return {**payload, "session_id": facts.session_id, "rollout_path": facts.rollout_path or ""}
        case e.EVENT_MSG, "conversation_path":
            return {**payload, "conversation_id": facts.session_id, "path": facts.rollout_path or ""}
        case _:
            return payload


def _pack_renamed(pack: Mapping[str, Any], facts: SessionFacts) -> Mapping[str, Any]:
    """The pack as the new session's own: it lives as long as the new tree does."""
    file = str(pack["name"]).rpartition("/")[2]
    return {**pack, "name": f"{facts.tree_id}/workspaces/{facts.session_id}/{file}"}


class _Shaped:
    """The chain of a file in Codex's shapes. Codex goes on behind its last line, with lines of its own.

    The file does not say by which key it was chained: where that is none of ours, its entries are taken as
    Codex's are, and the notes say so.
    """

    def __init__(self, text: RolloutText, key: ChainKey | None) -> None:
        self._walk = FileWalk(key.secret if key else b"")
        self._proved = text.kind == "exported"
        self._lines = 0
        """Behind the export's last line."""
        self._unknown = False
        """Whether the chain is keyed otherwise."""

    def take(self, line: FileLine) -> None:
        if line.fault:
            raise BadLine(line.number, line.fault)
        if not self._proved:
            return
        if line.place is None and line.inherited is None and not line.tree_seq:
            self._lines += 1
        elif self._lines:
            raise BadLine(line.number, "a line of the export, behind lines that are of no export")
        elif not self._unknown and (broken := self._walk.take_line(line)):
            self._unknown = self._walk.seq == 0 and broken.reason == NOT_FOLLOWING
            if not self._unknown:
                raise RolloutError(f"its chain is broken at entry {broken.seq}: {broken.reason}")

    def notes(self) -> Iterator[str]:
        if not self._unknown and (broken := self._walk.unproved()):
            raise RolloutError(broken.reason)
        if self._unknown:
            yield "its chain was not checked: it is keyed otherwise than here, or its first entry was changed"
        if self._lines:
            yield f"{counted(self._lines, 'line')} behind the export's last one are of another program's"


def _plan_foreign(
    text: RolloutText, newcomer: Newcomer, blobs: Mapping[str, bytes], key: ChainKey | None
) -> ImportPlan:
    entries: list[tuple[Entry, int]] = []
    meta: Mapping[str, Any] = {}
    at_ms, lines, left_out = newcomer.now_ms, 0, 0
    shaped = _Shaped(text, key)
    for line in text.lines:
        shaped.take(line)
        if line.tree_seq:
            continue
        at_ms = _at_ms(line, at_ms)
        lines, left_out = lines + (line.inherited is None), left_out + len(line.omitted)
        entry = _foreign_entry(line, blobs)
        if entry.type != e.SESSION_META:
            entries.append((renamed(entry, newcomer.facts), at_ms))
        elif not meta:
            # A copied fork history may hold a second one: the first names the session.
            meta = entry.payload
    if not entries:
        raise RolloutError("it holds no conversation")
    first = e.line(_session_meta(read_meta(meta), newcomer))
    state = _folded([(first, newcomer.now_ms), *entries], start_line=1)
    whole = [(entry, newcomer.now_ms) for entry in (first, *_agents_told(text.told))] + entries
    whole += [(entry, newcomer.now_ms) for entry in _settled(state, newcomer)]
    notes, folded = tuple(shaped.notes()), _folded(whole, start_line=1)
    bounded = folded.settings != _last_settings(state, newcomer)
    return ImportPlan(tuple(whole), folded, newcomer.facts, lines, left_out, notes, bounded=bounded)


def _agents_told(told: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """An event for each agent that was listed at the file's end; nothing else of its tree is taken over.

    They stand in front of the conversation: who resumes knows the agents before what is said of them.
    """
    listed: dict[int, SubagentSummary] = {}
    for message in told:
        try:
            event = SubagentLifecycle.model_validate(message)
        except ValidationError:
            continue
        if event.event is LifecycleChange.DELETED:
            listed = {id: one for id, one in listed.items() if id != event.agent_id}
        elif isinstance(event.subagent, SubagentSummary):
            listed[event.subagent.agent_id] = event.subagent
    for summary in listed.values():
        created = SubagentLifecycle(event=LifecycleChange.CREATED, subagent=summary)
        yield Entry(e.EVENT_MSG, written(created))


def _foreign_entry(line: FileLine, blobs: Mapping[str, bytes]) -> Entry:
    entry = line.entry
    if entry is None:
        return Entry("redacted", {})
    if entry.type == e.DENDRO:
        raise BadLine(line.number, "a fact of Dendro's own, in a file that is no full export")
    if entry.type == e.RESPONSE_ITEM:
        # This is what a model will be given; a damaged item would fail every request to come.
        try:
            rollout_item(entry.type, resolve(entry.payload, lambda digest: _text(blobs, digest)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise BadLine(line.number, f"response_item {place}: {first['msg']}") from None
    return entry


def _text(blobs: Mapping[str, bytes], digest: str) -> str | None:
    content = blobs.get(digest)
    return None if content is None else content.decode("utf-8", "surrogatepass")


def _session_meta(meta: MetaLine, newcomer: Newcomer) -> MetaLine:
    usual: dict[str, Any] = {
        "timestamp": timestamp(newcomer.now_ms),
        "cwd": newcomer.fallback.cwd,
        "originator": ORIGINATOR,
        "cli_version": newcomer.version,
        "instructions": None,
    }
    missing = {name: value for name, value in usual.items() if getattr(meta, name) is UNSET}
    return replaced(meta, **missing, id=newcomer.facts.session_id, git=told_of_git(meta.git))


def _settled(state: State, newcomer: Newcomer) -> Iterator[Entry]:
    """The settings that the conversation goes on with, and the event that tells a client of them."""
    told = _last_settings(state, newcomer)
    _require_usable(told)
    settings = newcomer.permitted(told)
    yield e.fact(f.Configured(settings, newcomer.facts, export_mac=True, by=newcomer.by))
    yield session_configured("", newcomer.facts, settings)


def _last_settings(state: State, newcomer: Newcomer) -> TurnSettings:
    """The settings that the conversation ended with."""
    fallback, told = newcomer.fallback, state.settings
    return replaced(
        fallback,
        cwd=told.cwd or str(state.meta.cwd or fallback.cwd),
        model=told.model or fallback.model,
        model_provider=str(state.meta.model_provider or fallback.model_provider),
        effort=told.effort if told.model else fallback.effort,
        summary=told.summary if told.model else fallback.summary,
        approval_policy=told.approval_policy if told.model else fallback.approval_policy,
        sandbox_policy=told.sandbox_policy if told.model else fallback.sandbox_policy,
        personality=told.personality if told.model else fallback.personality,
        collaboration_mode=told.collaboration_mode if told.model else fallback.collaboration_mode,
    )


def _folded(entries: Sequence[tuple[Entry, int]], start_line: int) -> State:
    state = State()
    for seq, (entry, _) in enumerate(entries, 1):
        try:
            state = evolve(state, entry, seq)
        except (KeyError, TypeError, ValueError) as error:
            raise BadLine(seq + start_line - 1, f"it does not fit what came before ({error})") from None
    return state


def _at_ms(line: FileLine, otherwise: int) -> int:
    """The line's own time; one that cannot be read takes that of the line before."""
    try:
        moment = datetime.fromisoformat(line.timestamp)
    except ValueError:
        return otherwise
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


# ── import store ──────────────────────────────────────────────────────────────────────────────────
# Writing an imported session, so that it is there whole or not at all.
#
# What fits into one script is created by one. More is written under a claim, behind a bar: from its birth
# until the last commit the session demands a core version that nobody has, so that no worker takes a half
# of it, not even after this process was killed. A failure deletes it again.


PIECE_ENTRIES = 200
PIECE_BYTES = 512 << 10
"""Below what one commit may carry (256 entries, 1 MB): Redis serves nobody else meanwhile."""
BAR = 1 << 30
IMPORTING = "importing"
"""The status of a session that is not whole yet. One that stays so is deleted by upkeep."""
ATTEMPTS = 3
"""How often the texts of a step are stored, if Redis loses them before it."""
ASKS = (
    "exec_approval_request",
    "apply_patch_approval_request",
    "ask_user_question_request",
    "request_user_input",
    "plan_approval_request",
    "dynamic_tool_call_request",
)


@record
class Piece:
    """The entries and events that a script writes, and the log's `seq` and head after it."""

    entries: tuple[NewEntry, ...]
    events: tuple[NewEvent, ...]
    seq: int
    head: bytes


BEFORE = Piece((), (), 0, GENESIS)


@record
class _Ending:
    """The fields that become visible when the session is complete."""

    status: str
    meta: bytes
    approvals: tuple[Approval, ...]
    timers: tuple[Timer, ...]


async def store(
    found: LogSource,
    plan: ImportPlan,
    blobs: Mapping[str, bytes],
    now_ms: int,
    writer: str,
    announced_ms: int = 0,
) -> SessionId:
    """Creates the session of a plan, in the name of `writer`.

    `announced_ms` is when its packs were announced, if it has any. Raises the broker's errors, and leaves
    nothing behind then.
    """
    contents = dict(blobs)
    encoded = [encode_entry(entry, at_ms, contents) for entry, at_ms in plan.entries]
    cuts = _cuts(encoded)
    # Folded as it is stored: that is what a replay will be compared with.
    state = fold(State(), (each.entry for each in encoded), 1)
    ending = _ending(state, encoded, contents, now_ms)
    whole = len(cuts) == 1 and not ending.approvals and not ending.timers
    first = _chained(cuts[0], BEFORE, 0, found.secret)
    born = replace(
        new_session(plan.facts, state.settings),
        entries=first.entries,
        events=first.events,
        meta=ending.meta,
        status=ending.status if whole else IMPORTING,
    )
    named = tuple(contents) if whole else _texts_of(cuts[0], contents)
    new = NewTree(born, announced_ms=announced_ms, texts=named, min_core=0 if whole else BAR)
    await _create(found, new, contents)
    if not whole:
        try:
            left = {name: text for name, text in contents.items() if name not in named}
            await _continue(found, born.session, first, cuts[1:], ending, left, writer)
        except BaseException:
            await found.broker.trees.revoke(born.session)
            # Whoever it was lost to made it due, and nobody has been told of it.
            await found.broker.trees.delete_session(born.session, owed=True)
            raise
    return born.session


async def _create(found: LogSource, new: NewTree, texts: Mapping[str, bytes]) -> None:
    """Stores the texts that a birth names, and makes the session."""
    for _ in range(ATTEMPTS):
        await found.texts.store(new.root.tree, {name: texts[name] for name in new.texts}, unborn=True)
        if not isinstance(await found.broker.commits.create(new), Unstored):
            return
    raise _lost(new.root.session)


def _lost(session: SessionId) -> RolloutError:
    return RolloutError(f"session {session} was not imported: Redis lost large texts of it; import it again")


async def _continue(
    found: LogSource,
    session: SessionId,
    first: Piece,
    cuts: Sequence[list[Encoded]],
    ending: _Ending,
    texts: Mapping[str, bytes],
    writer: str,
) -> None:
    """Writes the rest under a claim; the last commit lowers the bar and parks the session."""
    claimed = await found.broker.claims.claim_session(
        session, writer, uuid.uuid4().hex, parked=True, core=BAR
    )
    if claimed is None:
        raise RolloutError(f"session {session} was taken by a worker while it was being imported")
    try:
        await _write_rest(found, claimed, first, cuts, ending, texts)
    except BaseException:
        # Nobody may delete what somebody holds.
        await found.broker.claims.release(claimed.claim)
        raise


async def _write_rest(
    found: LogSource,
    claimed: Claimed,
    first: Piece,
    cuts: Sequence[list[Encoded]],
    ending: _Ending,
    texts: Mapping[str, bytes],
) -> None:
    claim, last_commit = claimed.claim, claimed.last_commit

    async def commit(before: Piece, piece: Piece, **more: Any) -> Committed:
        nonlocal last_commit
        at = (before.seq, before.head, last_commit)
        request = CommitRequest(claim, uuid.uuid4().hex, *at, piece.entries, piece.events, **more)
        answer = await _committed(found, request, texts)
        if not isinstance(answer, Committed):
            raise RolloutError(f"session {claim.session} was not imported: {answer.reason}")
        last_commit = answer.last_commit
        return answer

    before, left = first, dict(texts)
    for cut in cuts:
        piece = _chained(cut, before, claim.epoch, found.secret)
        own = _texts_of(cut, left)
        await commit(before, piece, texts=own)
        before, left = piece, {name: left[name] for name in left if name not in own}
    last = await commit(
        before,
        _chained([], before, claim.epoch, found.secret),
        texts=tuple(left),
        min_core=CORE_VERSION,
        status=ending.status,
        approvals_open=ending.approvals,
        timers_set=ending.timers,
        release="park",
    )
    if not last.released:
        # Somebody has spoken to it meanwhile: it is due.
        await found.broker.claims.release(claim)


async def _committed(
    found: LogSource, request: CommitRequest, texts: Mapping[str, bytes]
) -> Committed | Fenced | Refused:
    """Stores the texts that a commit names, and sends it; again, if Redis lost one between."""
    for _ in range(ATTEMPTS):
        await found.texts.store(request.claim.tree, {name: texts[name] for name in request.texts})
        answer = await found.broker.commits.commit(request)
        if not isinstance(answer, Unstored):
            return answer
    raise _lost(request.claim.session)


def _texts_of(cut: Sequence[Encoded], texts: Collection[str]) -> tuple[str, ...]:
    """The texts that these entries refer to; one that the file lacked is left out."""
    named = dict.fromkeys(digest for each in cut for digest in references(each.entry.payload))
    return tuple(digest for digest in named if digest in texts)


def _cuts(encoded: Sequence[Encoded]) -> list[list[Encoded]]:
    cuts: list[list[Encoded]] = [[]]
    size = 0
    for each in encoded:
        if cuts[-1] and (len(cuts[-1]) >= PIECE_ENTRIES or size + len(each.line) > PIECE_BYTES):
            cuts.append([])
            size = 0
        cuts[-1].append(each)
        size += len(each.line)
    return cuts


def _chained(cut: Sequence[Encoded], before: Piece, epoch: int, secret: bytes) -> Piece:
    """The entries behind `before`, as written under `epoch`; old events are history, not news."""
    entries, events = [], []
    seq, head, writer = before.seq, before.head, LogWriter(os.urandom, secret, epoch)
    for each in cut:
        seq += 1
        entries.append(seal(each.line, seq, head, writer))
        head = entries[-1].chain
        if kind_of(each.entry.type, each.entry.payload) is SessionConfigured:
            events.append(event_of(each, seq, head))
    return Piece(tuple(entries), tuple(events), seq, head)


def _ending(state: State, encoded: Sequence[Encoded], blobs: dict[str, bytes], now_ms: int) -> _Ending:
    meta = session_meta(Position(state, len(encoded), GENESIS), now_ms)
    task = state.task
    if task is None:
        return _Ending(state.status, meta, (), ())
    approvals = [_approval(encoded, task.id, call, blobs) for call in task.requests]
    timers = tuple(_timers(task, state.facts.approval_timeout_ms, now_ms))
    return _Ending(state.status, meta, tuple(approvals), timers)


def _timers(task: Task, timeout_ms: int | None, now_ms: int) -> Iterator[Timer]:
    """The deadlines of the task. A request to somebody has all of its time again."""
    for call in task.requests:
        most_ms = call.work.most_ms(timeout_ms) if isinstance(call.work, AskWork) else timeout_ms
        if most_ms is not None and (timer := timer_of(call.work)):
            yield Timer(approval_timer(call.call_id), timer, now_ms + most_ms)
    waiting = task.waiting
    if waiting is not None and isinstance(waiting.work, AwaitWork):
        yield Timer(wait_timer(waiting.call_id), waiting.work.timer, waiting.work.until_ms)


def _approval(encoded: Sequence[Encoded], turn: str, call: Call, blobs: dict[str, bytes]) -> Approval:
    """The fleet's queue shows it again, as it was asked."""
    said = (each.entry.payload for each in reversed(encoded) if each.entry.payload.get("type") in ASKS)
    asked = next(
        (event for event in said if call.call_id in (event.get("call_id"), event.get("callId"))), None
    )
    if asked is None:
        raise RolloutError(f"call {call.call_id} waits for an answer, and no event of the file asks for it")
    request = {"kind": call.work.kind if call.work else "", "turn": turn, "event": asked}
    return approval(call.call_id, request, blobs)
