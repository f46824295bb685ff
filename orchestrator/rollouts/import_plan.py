"""The plan of an imported session: entries from a file, rewritten for a new session id.

A full export keeps every entry; only the names of the old session and its old claims
change. Codex's rollout is folded first; behind its lines come the settings that
the fold ended with, and the session is idle. Whoever wrote a file may have written anything into it: unless a
person vouches for it, or its chain is keyed by our key, it permits nothing (`Newcomer.bound`). Pure: a file's
lines in, a plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pydantic import ValidationError

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import ORIGINATOR, session_configured
from orchestrator.core.blobs import resolve
from orchestrator.core.chain import NOT_FOLLOWING, ChainKey
from orchestrator.core.counts import counted
from orchestrator.core.entries import Entry, timestamp
from orchestrator.core.evolve import evolve
from orchestrator.core.frozen import record
from orchestrator.core.lines import MetaLine, read_meta
from orchestrator.core.packs import Pack, read_pack
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.codec import rollout_item
from orchestrator.protocol.events import SubagentLifecycle
from orchestrator.protocol.wire import UNSET, written
from orchestrator.rollouts.errors import RolloutError
from orchestrator.rollouts.file_format import BadLine, FileLine, FileWalk, Header, RolloutText
from orchestrator.rollouts.verify_file import header_lacks_code, keyed_elsewhere

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
) -> ImportPlan:
    """Reads the whole file before anything is made of it; raises `BadLine` or `RolloutError`."""
    if text.header is None:
        return _plan_foreign(text, newcomer, blobs, key)
    return _plan_full(text, text.header, newcomer, key, accept_old_header)


def _plan_full(
    text: RolloutText, header: Header, newcomer: Newcomer, key: ChainKey | None, accept_old: bool
) -> ImportPlan:
    notes, elsewhere, export_mac = [], keyed_elsewhere(header, key), False
    walk = FileWalk(key.secret if key else b"", keyed=not elsewhere)
    # A chain that our key has made is a log of our own workers.
    vouched = newcomer.bound is None or key is not None
    entries: list[tuple[Entry, int]] = []
    packs: list[Pack] = []
    at_ms, last = newcomer.now_ms, 0
    for line in text.lines:
        broken = walk.take_line(line)
        if broken is not None:
            raise RolloutError(f"its chain is broken at entry {broken.seq}: {broken.reason}")
        if line.entry is None:
            raise RolloutError(
                f"line {line.number} is redacted: what it did to the state is not known any more"
            )
        at_ms, last = _at_ms(line, at_ms), line.place.seq if line.place else last
        packs += _packs_in(line.entry)
        if line.entry.type == e.DENDRO and f.states(line.entry.payload, f.Configured):
            export_mac |= line.entry.payload.get("export_mac") is True
        entry = renamed(line.entry, newcomer.facts)
        entries.append((entry if vouched else _without_approvals(entry), at_ms))
    if last != header.seq:
        raise RolloutError(f"it ends at entry {last}, its first line says {header.seq}")
    if walk.head != header.head:
        raise RolloutError("its first line names another head than its last entry has")
    changed = header_lacks_code(header, key, export_mac, accept_old)
    if not elsewhere or not header.as_written:
        changed = header.fault(key.secret if key else b"") or changed
    if changed:
        raise RolloutError(changed.reason)
    if elsewhere:
        notes.append(f"its chain was not checked: the key {elsewhere!r} is not configured here")
    state = _folded(entries, start_line=2)
    facts = replace(state.facts, **{name: getattr(newcomer.facts, name) for name in OWN_FACTS})
    plan = ImportPlan(tuple(entries), state, facts, len(entries), notes=tuple(notes), packs=tuple(packs))
    return plan if vouched else _harmless(plan, newcomer)


def _without_approvals(entry: Entry) -> Entry:
    """The entry of a stranger's file; what it says to be approved for the session is not."""
    if entry.type != e.DENDRO or not f.states(entry.payload, f.ApprovedForSession):
        return entry
    return replace(entry, payload={**entry.payload, "keys": [], "roots": []})


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
    portable = None if plan.facts.portable is None else replace(plan.facts.portable, setup=None)
    settings = newcomer.permitted(state.settings, portable)
    facts = replace(plan.facts, **owners, portable=portable)
    if (settings, facts) == (state.settings, plan.facts):
        return plan
    configured = e.fact(f.Configured(settings, facts, export_mac=True))
    entries = (*plan.entries, (configured, newcomer.now_ms))
    return replace(
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


OWN_FACTS = ("session_id", "tree_id", "agent_id", "pool", "rollout_path", "imported_from")
"""Facts that are set when a session is created, and anew when it is imported."""
OWNERS_FACTS = ("tree_rules", "web_search", "view_image", "unified_exec", "agents")
"""Facts that are the person's own where a stranger's file says otherwise."""


def renamed(entry: Entry, facts: SessionFacts) -> Entry:
    """The entry as the new session's: ids, paths and epochs are its own, nothing else changes."""
    return replace(entry, payload=_renamed(entry, facts))


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
    return replace(meta, **missing, id=newcomer.facts.session_id)


def _settled(state: State, newcomer: Newcomer) -> Iterator[Entry]:
    """The settings that the conversation goes on with, and the event that tells a client of them."""
    settings = newcomer.permitted(_last_settings(state, newcomer))
    yield e.fact(f.Configured(settings, newcomer.facts, export_mac=True))
    yield session_configured("", newcomer.facts, settings)


def _last_settings(state: State, newcomer: Newcomer) -> TurnSettings:
    """The settings that the conversation ended with."""
    fallback, told = newcomer.fallback, state.settings
    return replace(
        fallback,
        cwd=told.cwd or str(state.meta.cwd or fallback.cwd),
        model=told.model or fallback.model,
        model_provider=str(state.meta.model_provider or fallback.model_provider),
        effort=told.effort if told.model else fallback.effort,
        summary=told.summary if told.model else fallback.summary,
        approval_policy=told.approval_policy if told.model else fallback.approval_policy,
        sandbox_policy=told.sandbox_policy if told.model else fallback.sandbox_policy,
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
