"""Redactions, held against the logs: what goes, what stays, and what stands instead.

Of a redacted entry the log keeps a line without its words; the rules of what happened go by the entry as it
was written, those of what can still be read by the line that stands instead. Where Redis goes back behind
a redaction, the words are back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import zstandard

from orchestrator.broker.records import StoredEntry
from orchestrator.broker.replies import stored_entry
from orchestrator.core.blobs import references
from orchestrator.core.entries import DENDRO, Entry, decode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.history import INHERITED
from orchestrator.core.state import State
from orchestrator.model.prompt import Prompt
from sim.double import Double
from sim.grammar_terms import REDACTED
from sim.inherited import Place
from sim.objects import SimObjects
from sim.queued import Waiting
from sim.rule import Case, Rule

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

PACKED = b"\x28\xb5\x2f\xfd"
"""The first bytes of what zstd has made."""
_TEXT = re.compile("([0-9a-f-]{36})(?::|/blobs/)([0-9a-f]{64})")
"""The tree and the digest in the key of a large text, and in the name of an archived one."""
REDACTION_RULES = {
    "redacted": Rule(
        (
            "A redaction takes the entries that it names, and no other: each has a fact that names its "
            "digest, the reason that was given, whoever goes on with it, and what stands instead; the chain "
            "goes on by that digest, and the log folds to a state of the same shape."
        ),
        Case("an entry was redacted"),
    ),
    "redacted_whole": Rule(
        (
            "A redaction that has begun comes to its end, whoever dies: when upkeep has looked, all that it "
            "was to take is taken, in each of its sessions, or Redis has lost it."
        ),
        Case("a process that redacted died when a part of its entries was taken"),
    ),
    "words_gone": Rule(
        (
            "When a redaction is done, its words are nowhere in Redis, in the archive or in a request to the "
            "model, but where it said that they stay or where they were written meanwhile; of prompts, those "
            "of all who gave something in its logs are gone. A follower that comes is not told them."
        ),
        Case("words were looked for that were redacted"),
    ),
}
REDACTION_CASES = {
    "redaction_died": Case("a process that redacted died in the middle"),
    "prompt_owed": Case("words were redacted while a session without a worker had taken them as a prompt"),
    "redaction_ended": Case("upkeep removed the copies that a redaction had left", ("reply rewrite OK",)),
    "redaction_unnamed": Case("a process that redacted died between segments and the manifest"),
    "redacted_prompts": Case("a prompt was forgotten that had redacted words", ("reply forget_prompts OK",)),
    "redacted_sealed": Case("an entry was redacted that was in the archive"),
    "redacted_heard": Case("a follower was told what stands instead of redacted words"),
    "redacted_writers": Case("words were looked for in the prompts of several who had written"),
    "redaction_owed": Case("a tree stayed as it alone says what a redaction owes to a fork"),
    "redaction_lost": Case("Redis went back behind a redaction"),
}


def as_stored(entry_id: bytes, fields: Mapping[bytes, bytes]) -> StoredEntry:
    """An entry as it was seen, a redacted one with its digest."""
    if b"d" not in fields:
        return stored_entry(entry_id, dict(fields))
    number = int(entry_id.partition(b"-")[0])
    return StoredEntry(number, int(fields[b"e"]), fields[b"p"], b"", fields[b"h"], fields[b"d"])


def instead_fields(stored: bytes) -> dict[bytes, bytes]:
    """The line that Redis keeps instead of an entry, as fields of one."""
    place, _, payload = stored.partition(b"\n")
    value = orjson.loads(place)
    epoch, chain, digest = b"%d" % value["e"], bytes.fromhex(value["h"]), bytes.fromhex(value["d"])
    return {b"e": epoch, b"p": payload, b"s": b"", b"h": chain, b"d": digest}


@dataclass(frozen=True, slots=True)
class Gone:
    """Words that a redaction has taken away."""

    words: tuple[str, ...]
    places: tuple[tuple[str, bytes], ...]
    """The sessions and digests of the entries that had them: where Redis lost a redaction, they are back."""
    stays: frozenset[str]
    """Where it said that they stay: `session:seq`, and trees."""
    ends: Mapping[str, int]
    """How far the logs went that it has looked through."""
    began_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A redaction as its process has planned it."""

    why: str
    """Its reason, which no other one has: each fact of it says so, whoever goes on with it."""
    entries: tuple[tuple[str, int, bytes], ...]
    """Session, number and digest of each entry that it is to take."""
    words: tuple[str, ...]

    @property
    def sessions(self) -> set[str]:
        return {session for session, _, _ in self.entries}

    def has(self, words: Sequence[str]) -> bool:
        """Whether it takes some of these words, too."""
        return any(own in word or word in own for own in self.words for word in words)


class Redactions:
    """Of one simulation."""

    def __init__(self, watch: Watch, double: Double, objects: SimObjects) -> None:
        self._watch, self._double, self._objects = watch, double, objects
        self._original: dict[bytes, Entry] = {}
        """Entries as they were written, by their digests."""
        self._facts: list[Mapping[str, Any]] = []
        self._told_s: dict[str, float] = {}
        """When a log first told of a redaction, by its reason."""
        self._begun: set[str] = set()
        """Reasons of redactions that logs told of before they were deleted."""
        self.gone: list[Gone] = []
        self.planned: list[Planned] = []
        self._typed: dict[bytes, float] = {}
        """When prompts came into a queue, by the keys under which histories have them."""
        self._prompted: list[tuple[float, bytes]] = []
        """The same of those that were added to a history, with their words."""
        self.texts = set[tuple[str, str]]()
        """Large texts, by tree and digest, that a redaction was to take, also where Redis has lost that."""

    # ── logs ──────────────────────────────────────────────────────────────────────────────────

    def original(self, stored: StoredEntry) -> Entry | None:
        """A redacted entry as it was written; None where that was never seen."""
        return self._original.get(stored.digest)

    def between(self, session: str, after: int, last: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """The lines that Redis keeps instead of entries behind one."""
        rows = self._double.hash(self._watch.keys.redacted(session))
        numbers = sorted(int(number) for number in rows)
        return [(b"%d-0" % n, instead_fields(rows[b"%d" % n])) for n in numbers if after < n <= last]

    def told(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """A fact of the log says that an entry was redacted."""
        if fact["log"] != f"session:{session}" or not 0 < fact["seq"] < seen.seq:
            self._watch.broken("redacted", f"{session}: a fact redacts {fact['log']} at {fact['seq']}")
        if all(plan.why != fact["why"] for plan in self.planned):
            told = f"{session}: {fact['seq']} is redacted for {fact['why']!r}, which nobody gave"
            self._watch.broken("redacted", told)
        if not self._watch.kept(self._told_s.setdefault(fact["why"], self._watch.now_s)):
            self._told_s[fact["why"]] = self._watch.now_s
        self._facts.append(fact)

    def removes(self, tree: str) -> None:
        """A person is to delete a tree: what its logs tell of has begun, and is to be done all the same."""
        logs = self._watch.members.get(tree, {}).values()
        self._begun |= {plan.why for plan in self.planned if any(_taken_for(plan.why, log) for log in logs)}

    def read(self, session: str, seen: Seen) -> None:
        """A part of a log was read to its end: what its facts redact is replaced, and folded anew."""
        facts, self._facts = self._facts, []
        if not facts:
            return
        known = {*seen.grammar.hidden}
        for fact in facts:
            at = fact["seq"] - 1
            entry_id, fields = seen.stored[at]
            stored = as_stored(entry_id, fields)
            if stored.covered.hex() != fact["digest"]:
                self._watch.broken("redacted", f"{session}: {fact['seq']} is redacted under another digest")
            if at < 3:
                self._watch.broken("redacted", f"{session}: {fact['seq']}, which names the log, is redacted")
            if not stored.digest:
                self._original[stored.covered] = Entry(
                    seen.entries[at].type, deepcopy(seen.entries[at].payload), seen.entries[at].id
                )
                self._watch.reach.saw("redacted")
                if self._watch.archive_moves.sealed_seq(session) >= fact["seq"]:
                    self._watch.reach.saw("redacted_sealed")
            line = _line(fact["instead"])
            if orjson.loads(line) == orjson.loads(fields[b"p"]) and not stored.digest:
                self._watch.broken("redacted", f"{session}: {fact['seq']} is redacted, and its words stay")
            seen.instead[fact["seq"]] = decode_entry(line)
            if not stored.digest:
                # What was read of it refers to it: from now on that is the line that stands instead.
                entry, seen.entries[at] = seen.entries[at], self._original[stored.covered]
                becomes(entry.payload, decode_entry(line).payload)
                whole = self._original[stored.covered].payload
                seen.grammar.hides(entry.payload, whole, fact["digest"])
            new = {b"e": fields[b"e"], b"p": line, b"s": b"", b"h": fields[b"h"], b"d": stored.covered}
            seen.stored[at] = entry_id, new
        self._watch.conversations.redacted(session, seen.grammar, known)
        self._folds(session, seen)
        self._agrees(session, seen)

    def _folds(self, session: str, seen: Seen) -> None:
        """Folds the log again with what stands instead."""
        before, seen.state = seen.state, State()
        for one in seen.stored:
            stored = as_stored(*one)
            seen.state = evolve(seen.state, decode_entry(stored.payload), stored.seq)
            place = seen.at[stored.seq]
            seen.at[stored.seq] = Place(place.head, seen.state.history, seen.state.kept_user_texts)
        said = seen.grammar.conversation
        for at, item in enumerate(seen.state.history):
            inherits = item.get("type") == INHERITED
            if at < len(said) and said[at] != item and (inherits or REDACTED in repr(item)):
                was = seen.grammar.was(said[at])
                said[at] = {**said[at], **item} if inherits else item
                seen.grammar.hides(said[at], was)
        kept = seen.state.kept_user_texts
        if len(kept) == len(seen.grammar.kept):
            both = zip(seen.grammar.kept, kept, strict=True)
            seen.grammar.kept = [now if now == REDACTED else text for text, now in both]
        if shape(before) != shape(seen.state):
            self._watch.broken("redacted", f"{session} folds to a state of another shape than before")

    def _agrees(self, session: str, seen: Seen) -> None:
        """No other entry is another one, wherever it is."""
        found = self._watch.archive_moves.log_after(session, 0)
        if [plain(one) for one in found] != [plain(one) for one in seen.stored]:
            unlike = [
                as_stored(*a).seq for a, b in zip(found, seen.stored, strict=False) if plain(a) != plain(b)
            ]
            self._watch.broken(
                "redacted", f"{session}: {len(found)} of {seen.seq} entries are there, others at {unlike}"
            )

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    def left(self, plan: Planned) -> list[str] | None:
        """The entries that a redaction which has begun has not taken; None if no log says that it began."""
        sessions = {session: self._watch.sessions.get(session) for session, _, _ in plan.entries}
        begun = plan.why in self._begun and self._watch.kept(self._told_s[plan.why])
        begun = begun and not all(map(self._watch.fields, sessions))
        if not begun and not any(seen and _taken_for(plan.why, seen) for seen in sessions.values()):
            return None
        left = []
        for session, seq, digest in plan.entries:
            seen = sessions[session]
            if seen is not None and seq <= seen.seq and self._watch.fields(session):
                stored = as_stored(*seen.stored[seq - 1])
                left += [f"{session}:{seq}"] if stored.covered == digest and not stored.digest else []
        return left

    def ended(self) -> None:
        """Each redaction that has begun is at its end."""
        for plan in self.planned:
            if left := self.left(plan):
                told = f"redaction {plan.why!r} has begun, died, and nobody goes on: {left} have their words"
                self._watch.broken("redacted_whole", told)

    # ── words ─────────────────────────────────────────────────────────────────────────────────

    def standing(self) -> Iterator[Gone]:
        """Those whose redactions Redis still has."""
        for gone in self.gone:
            logs = {session: self._watch.sessions.get(session) for session, _ in gone.places}
            kept = all(
                (seen := logs[session]) is not None
                and any(fields.get(b"d") == digest for _, fields in seen.stored)
                for session, digest in gone.places
            )
            if kept:
                yield gone
            else:
                self._watch.reach.saw("redaction_lost")

    def asked(self, prompt: Prompt) -> None:
        """No request to the model has words that are gone."""
        if not self.gone:
            return
        text = repr(prompt)
        for gone in self.standing():
            if gone.stays or self.written_since(gone):
                continue
            for word in gone.words:
                if word in text:
                    self._watch.broken("words_gone", f"{prompt.session_id}: the model is asked with {word!r}")

    def written_since(self, gone: Gone) -> list[str]:
        """Entries with its words that it did not look at."""
        found = []
        for session, seen in self._watch.sessions.items():
            for entry_id, fields in seen.stored[gone.ends.get(session, 0) :]:
                if has(fields[b"p"], gone.words) and b'"kind":"redacted"' not in fields[b"p"]:
                    found.append(f"{session}:{entry_id.partition(b'-')[0].decode()}")
        return found

    def _named_since(self, gone: Gone, place: str) -> bool:
        """Whether a place is a large text that entries name which it did not look at, as a fork's do."""
        if (found := _TEXT.search(place)) is None:
            return False
        tree, wanted = found.groups()
        named = set[str]()
        waiting = [
            digest
            for session, seen in self._watch.sessions.items()
            if seen.tree == tree
            for seq, entry in enumerate(seen.entries, 1)
            if seq > gone.ends.get(session, 0)
            for digest in references(seen.instead.get(seq, entry).payload)
        ]
        while waiting:
            if (digest := waiting.pop()) in named:
                continue
            named.add(digest)
            text = self._large_text(tree, digest)
            # A conversation, in which items may refer to others.
            waiting += references(orjson.loads(text)) if text.startswith(b"[{") else ()
        return wanted in named

    def _large_text(self, tree: str, digest: str) -> bytes:
        packed = self._double.look("GET", self._watch.keys.blob(tree, digest))
        packed = packed or self._objects.get(f"{tree}/blobs/{digest}.zst")
        return zstandard.decompress(packed, max_output_size=1 << 28) if packed else b""

    def look(self, *, rests: bool) -> None:
        """Looks for the words of all redactions; `rests`: no copy is owed any more."""
        for gone in self.standing():
            self._watch.reach.saw("words_gone")
            excused = {*gone.stays, *self.written_since(gone)}
            if excused and not rests:
                continue
            sessions = {place.rpartition(":")[0] for place in excused}
            if not rests:
                # Another redaction of the same words died, and owes the copies of its own sessions.
                owed = {one for one in self._watch.sessions if self._watch.fields(one).get(b"redacting", b"")}
                sessions |= {
                    one for plan in self.planned if plan.has(gone.words) for one in owed & plan.sessions
                }
            trees = {
                place.removeprefix("tree:").partition(":")[0] for place in excused if place[:5] == "tree:"
            }
            givers = self._givers(gone)
            for place in self._holding(gone.words, gone.done_s):
                if ":history:" in place and (self._prompted_since(gone) or place not in givers):
                    continue
                if ":sq:" in place and place.rpartition(":")[2] not in gone.ends:
                    # It comes into a log that was not looked through.
                    continue
                if not _is_excused(place, sessions, trees, self._watch) and not self._named_since(
                    gone, place
                ):
                    self._watch.broken(
                        "words_gone", f"{gone.words!r:.80} stand at {place}, excused {excused}"
                    )

    def _givers(self, gone: Gone) -> set[str]:
        """The histories of all who gave something in the logs that were looked through.

        A message to an agent stands in its log with who wrote it, as a task does, words, and an answer.
        """
        givers = {
            str(by["who"])
            for session, end in gone.ends.items()
            if (seen := self._watch.sessions.get(session)) is not None
            for entry in seen.entries[:end]
            for by in _signed_by(entry.payload)
        }
        if len(givers) > 1:
            self._watch.reach.saw("redacted_writers")
        return {key for who in givers for key in self._watch.keys.history(who)}

    def queued(self, session: str, entry: Waiting) -> None:
        """A submission comes into the queue of a session."""
        if entry.op == "add_to_history":
            key = f"{session}|{entry.client}|{entry.id}".encode()
            self._typed.setdefault(key, self._watch.now_s)

    def prompted(self, history: str, args: Sequence[Any]) -> None:
        """A prompt came into a history: none with words that were gone, but those that were typed since."""
        told = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        typed_s = next((self._typed[arg] for arg in told if arg in self._typed), self._watch.now_s)
        words = b"\n".join(told)
        self._prompted.append((typed_s, words))
        for gone in self.standing() if self.gone else ():
            if typed_s < gone.began_s and has(words, gone.words) and history in self._givers(gone):
                self._watch.broken("words_gone", f"{gone.words!r:.80} come into {history} again")

    def _prompted_since(self, gone: Gone) -> bool:
        """Whether somebody has typed its words since: those that were on their way do not come there."""
        return any(at_s > gone.began_s and has(words, gone.words) for at_s, words in self._prompted)

    def _holding(self, words: Sequence[str], done_s: float) -> Iterator[str]:
        """Keys that have one of some words, and objects that were put before.

        Who had read them may still write an object that no manifest names.
        """
        for key, value in self._double.values():
            if has(value, words):
                yield key
        for name in self._objects.all_names():
            if self._objects.put_s[name] <= done_s and has(self._objects.get(name) or b"", words):
                yield name


def _signed_by(value: Any) -> Iterator[Mapping[str, Any]]:
    """The people that an entry names, wherever in it."""
    if isinstance(value, Mapping):
        if isinstance(by := value.get("by"), Mapping) and by.get("who"):
            yield by
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _signed_by(inner)


def _taken_for(why: str, seen: Seen) -> bool:
    """Whether a log has a fact of a redaction."""
    return any(
        entry.type == DENDRO and entry.payload["kind"] == "redacted" and entry.payload["why"] == why
        for entry in seen.entries
    )


def _is_excused(place: str, sessions: Iterable[str], trees: Iterable[str], watch: Watch) -> bool:
    if any(session in place for session in sessions):
        return True
    if ":blob:" in place or "/blobs/" in place:
        # A large text that an entry needs which stays.
        trees = {*trees, *(watch.sessions[one].tree for one in sessions if one in watch.sessions)}
        return any(tree in place for tree in trees)
    of_trees = {one for one, seen in watch.sessions.items() if seen.tree in trees}
    return any(one in place for one in (*trees, *of_trees))


def has(value: bytes, words: Sequence[str]) -> bool:
    """Whether a value has one of some words, as it is or packed."""
    if value.startswith(PACKED):
        value = zstandard.decompress(value, max_output_size=1 << 28)
    return any(word.encode() in value or orjson.dumps(word)[1:-1] in value for word in words)


def plain(one: tuple[bytes, Mapping[bytes, bytes]]) -> tuple[int, int, bytes, bytes]:
    """An entry by what its chain says of it."""
    stored = as_stored(*one)
    return stored.seq, stored.epoch, stored.covered, stored.chain


def becomes(value: Any, other: Any) -> None:
    """Makes a decoded value another one, for all that refer to it."""
    if isinstance(value, dict) and isinstance(other, Mapping):
        for name in [*value]:
            if name not in other:
                del value[name]
            elif isinstance(value[name], dict | list) and type(value[name]) is type(other[name]):
                becomes(value[name], other[name])
            else:
                value[name] = other[name]
        value.update({name: other[name] for name in other if name not in value})
    elif isinstance(value, list):
        if len(value) != len(other):
            value[:] = other
            return
        for at, inner in enumerate(value):
            if isinstance(inner, dict | list) and type(inner) is type(other[at]):
                becomes(inner, other[at])
            else:
                value[at] = other[at]


def _line(instead: Any) -> bytes:
    return orjson.dumps(instead)


def shape(state: State) -> tuple[Any, ...]:
    """The parts of a state that a redaction leaves as they are."""
    calls = [(item.get("type"), item.get("call_id"), item.get("role")) for item in state.history]
    return (state.status, calls, state.closed, state.task, sorted(state.tree.children), state.facts.tree_id)


__all__ = ["REDACTION_CASES", "REDACTION_RULES", "Gone", "Planned", "Redactions", "as_stored"]
