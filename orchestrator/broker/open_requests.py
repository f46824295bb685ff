"""Requests to people that are open, and what is kept beside logs for those who answer them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from orchestrator.broker.connection import call
from orchestrator.broker.errors import BrokerError, SecretsFull, UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.notices import Listener
from orchestrator.broker.port import Deployment, Port
from orchestrator.broker.records import OpenApproval, Place
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.script_requests import SECRETS, queue_number
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import OF_ISSUER

if TYPE_CHECKING:
    from orchestrator.broker.replies import ForgetPromptsOk, KeepSecretSecrets, NoteFull, NoteWas
    from orchestrator.core.settings import HistoryHead

# ── notes ─────────────────────────────────────────────────────────────────────────────────────────
# Notes about sessions: what clients keep beside a log, each under a name, gone with the session.
#
# Deciding what a note says is the caller's; here it is bytes that are replaced only where nobody else
# did. News are what the owner's webhook is told of: who tells them, and that they were told; one command
# each.


MOST_NOTES: Final = 256
"""Notes of one session."""
MOST_NOTE_BYTES: Final = 4_096
"""Bytes of one note."""
_FIELD: Final = "note:"
_TOLD: Final = b"told"
NEWS_KEPT_MS: Final = 7 * 86_400_000
"""The time for which it is known of news that they were told."""


class TooManyNotes(BrokerError):
    """A session has as many notes as it may."""


class Notes(Port):
    """The part of the broker that keeps notes."""

    async def notes(self, name: str, sessions: Sequence[SessionId]) -> list[bytes]:
        """The notes of this name, in the order of the sessions; empty where there is none."""
        rows = [("HGET", self.keys.session(session), _FIELD + name) for session in sessions]
        found = await self._connection.commands(rows) if rows else []
        return [note or b"" for note in found]

    async def note(self, session: SessionId, name: str, value: bytes, was: bytes) -> bytes:
        """Replaces a note that is still `was`; the note that stands then, which is another's if it was not.

        Raises `UnknownSession`, `TooManyNotes`.
        """
        keys = [self.keys.session(session), self.keys.changed(self.keys.shard_of(session))]
        made = call("note", keys, session=session, name=name, value=value, was=was, most=MOST_NOTES)
        reply = await self._run(made, session)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return value
            case "WAS":
                other: NoteWas = reply.fields
                return other["stands"]
            case "FULL":
                full: NoteFull = reply.fields
                raise TooManyNotes(f"session {session} has {full['notes']} notes, the most that are kept")
            case _:
                raise reply.unexpected()

    async def take_news(self, id: str, owner: str, lease_ms: int) -> Literal["ours", "theirs", "told"]:
        """Takes it upon a process to tell news, until its lease is over."""
        key = self.keys.news(id)
        if await self._connection.command("SET", key, owner, "NX", "PX", lease_ms) is not None:
            return "ours"
        return "told" if await self._connection.command("GET", key) == _TOLD else "theirs"

    async def keep_news(self, id: str, owner: str, lease_ms: int) -> None:
        """Keeps news that are this process's for another lease."""
        await self._connection.command("SET", self.keys.news(id), owner, "PX", lease_ms)

    async def settle_news(self, id: str) -> None:
        """Has nobody tell these news again."""
        await self._connection.command("SET", self.keys.news(id), _TOLD, "PX", NEWS_KEPT_MS)


# ── open requests ─────────────────────────────────────────────────────────────────────────────────


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────
# Texts of answers that stand beside the log: read by the workers of their tree, until a commit drops
# them.
#
# Knows not which of them are secret. `submit` writes them with the submission that they belong to.


class Secrets(Port):
    """The part of the broker that keeps what no log may have."""

    async def secret(self, tree: TreeId, name: str) -> bytes:
        """The texts under a name; empty if they are gone."""
        found: bytes | None = await self._connection.command("HGET", self.keys.secrets(tree), name)
        return found or b""

    async def keep_secret(self, place: Place, sq_id: str, name: str, texts: bytes) -> None:
        """Sets texts apart that came in clear, unless their entry is consumed already; safe to repeat."""
        keys = [self.keys.session(place.session), self.keys.secrets(place.tree)]
        keep = call("keep_secret", keys, n=queue_number(sq_id), name=name, value=texts, **SECRETS)
        reply = await self._run(keep, place.session)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
            case "SECRETS":
                full: KeepSecretSecrets = reply.fields
                raise SecretsFull(place.session, full["most"])
            case _:
                raise reply.unexpected()


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────
# Tokens of clients: a hash of records by id, one of them a token. Knows no token's text, only its digest.


class Tokens(Port):
    """The part of the broker that keeps who may come in from the network."""

    async def add_token(self, token_id: str, record: bytes) -> bool:
        """Keeps a token's record; False if the id is taken, by this very record or by another."""
        return bool(await self._connection.command("HSETNX", self.keys.tokens(), token_id, record))

    async def token(self, token_id: str) -> bytes | None:
        """The record of a token; None if there is none (any more)."""
        found: bytes | None = await self._connection.command("HGET", self.keys.tokens(), token_id)
        return found

    async def tokens(self) -> dict[str, bytes]:
        """The records of all tokens by their ids."""
        found = await self._connection.command("HGETALL", self.keys.tokens())
        return {token_id.decode(errors="replace"): record for token_id, record in found.items()}

    async def remove_tokens(self, token_ids: Sequence[str]) -> int:
        """Removes the records of these tokens, together; as many as there were."""
        return int(await self._connection.command("HDEL", self.keys.tokens(), *token_ids))

    async def add_code(self, digest: str, rights: bytes, kept_ms: int) -> None:
        """Keeps what a code for one sign-in gives."""
        await self._connection.command("SET", self.keys.sign_in_code(digest), rights, "PX", kept_ms)

    async def code(self, digest: str) -> bytes | None:
        """The rights that a code gives; None if there is none (any more)."""
        found: bytes | None = await self._connection.command("GET", self.keys.sign_in_code(digest))
        return found

    async def sign_in(
        self, token_id: str, record: bytes, code: tuple[str, bytes] | None, gone: Sequence[str]
    ) -> Literal["OK", "USED", "TAKEN"]:
        """Keeps the token of a browser, and uses up the code it came with: its digest, and what it gave.

        The tokens that are `gone` are removed with it. USED: the code is gone, TAKEN: the id is another's.
        """
        digest, rights = code or ("", b"")
        keys = [self.keys.tokens(), self.keys.sign_in_code(digest) if code else self.keys.tokens()]
        made = call("sign_in", keys, code=rights, token_id=token_id, record=record, gone=list(gone))
        reply = await self._run(made)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
                return "OK"
            case "USED" | "TAKEN" as code_:
                return code_
            case _:
                raise reply.unexpected()


# ── history ───────────────────────────────────────────────────────────────────────────────────────
# The history of prompts: one log for each person and deployment, shared by all of the person's sessions.
#
# An entry's place counts from the oldest that was ever written, so it stays when older ones are trimmed.
# A log has an id, drawn once: a place means something only in the log that it was told for.


MOST_ENTRIES = 10_000
MOST_BYTES = 32 << 20
"""Bytes of the texts that are kept."""
MOST_TEXT = 32 << 10
"""Bytes of one text."""
_ID_BYTES = 6
"""Any program that reads JSON keeps a number of this size."""
_MOST_OFFSET = 1 << 53
_OF_ISSUER = re.compile(rf"([^/@]*/)?{re.escape(OF_ISSUER)}")
"""The names of those with a token of an issuer, in a namespace or in none."""
_FORGOTTEN_AT_ONCE = 500
"""Prompts that one script removes: Redis serves nobody else meanwhile."""


@record
class KeptPrompt:
    """An entry of the log."""

    session: SessionId
    at_ms: int
    text: str


class History(Port):
    """The part of the broker that keeps what people typed, for them to find again."""

    async def add_to_history(
        self, who: str, key: str, prompt: tuple[SessionId, str], random_bytes: bytes
    ) -> bool:
        """Appends a session's text to the log of `who`; False if that was done before under this key."""
        session, text = prompt
        add = call(
            "add_to_history",
            list(self.keys.history(person_of(who))),
            key=key,
            session=session,
            entry=text,
            fresh_id=_fresh_id(random_bytes),
            most=MOST_ENTRIES,
            most_bytes=MOST_BYTES,
        )
        reply = await self._run(add, session)
        match reply.code:
            case "OK" | "DUP" as code:
                self._clock.note(reply.now)
                return code == "OK"
            case _:
                raise reply.unexpected()

    async def history_head(self, who: str, random_bytes: bytes) -> HistoryHead:
        """The log of `who`; its id is drawn from `random_bytes` if it has none yet."""
        from orchestrator.core.settings import HistoryHead

        _, head = self.keys.history(person_of(who))
        await self._connection.command("HSETNX", head, "id", _fresh_id(random_bytes))
        log_id, count = await self._connection.command("HMGET", head, "id", "count")
        return HistoryHead(int(log_id or 0), int(count or 0))

    async def forget_prompts(self, who: str, is_meant: Callable[[str], bool]) -> int:
        """Removes prompts of a person from their history; answers how many. Others keep their places."""
        keys, gone = list(self.keys.history(person_of(who))), 0
        places = _forgotten(await self._connection.command("XRANGE", keys[0], "-", "+"), is_meant)
        for start in range(0, len(places), _FORGOTTEN_AT_ONCE):
            some = places[start : start + _FORGOTTEN_AT_ONCE]
            reply = await self._run(call("forget_prompts", keys, places=some))
            if reply.code != "OK":
                raise reply.unexpected()
            self._clock.note(reply.now)
            told: ForgetPromptsOk = reply.fields
            gone += told["gone"]
        return gone

    async def keep_out(self, who: str, key: str) -> None:
        """Lets no prompt into a person's history that comes under a key, though one may be there."""
        _, head = self.keys.history(person_of(who))
        await self._connection.command("HSET", head, f"k:{key}", "0")

    async def history_entry(self, who: str, log_id: int, offset: int) -> KeptPrompt | None:
        """The entry at a place of the log; None if the log has another id, or nothing there (any more)."""
        log, head = self.keys.history(person_of(who))
        if offset >= _MOST_OFFSET or int(await self._connection.command("HGET", head, "id") or 0) != log_id:
            return None
        at = f"{offset + 1}-0"
        found = await self._connection.command("XRANGE", log, at, at)
        return _kept(found[0][1]) if found else None


def _forgotten(found: list[tuple[bytes, dict[bytes, bytes]]], is_meant: Callable[[str], bool]) -> list[int]:
    """The numbers of the prompts that are meant."""
    meant = (id for id, fields in found if is_meant(fields[b"x"].decode("utf-8", "replace")))
    return [int(id.partition(b"-")[0]) for id in meant]


def person_of(who: str) -> str:
    """The person without the machine: `anna@host` is `anna`.

    A subject of an issuer is whole: `openid:anna@one` and `openid:anna@two` are two people.
    """
    if _OF_ISSUER.match(who):
        return who
    return who.rpartition("@")[0] or who


def _fresh_id(random_bytes: bytes) -> int:
    return int.from_bytes(random_bytes[:_ID_BYTES], "big") or 1


def _kept(fields: dict[bytes, bytes]) -> KeptPrompt:
    return KeptPrompt(
        SessionId(fields[b"s"].decode()), int(fields[b"t"]), fields[b"x"].decode("utf-8", "replace")
    )


# ── open requests ─────────────────────────────────────────────────────────────────────────────────


class Requests(History, Notes, Secrets, Tokens):
    """The port to what people are asked and tell: open requests, secrets, notes, typed texts, tokens."""

    def __init__(self, deployment: Deployment, logs: Logs) -> None:
        super().__init__(deployment)
        self._logs = logs

    async def approvals(self, session: SessionId | None = None) -> tuple[OpenApproval, ...]:
        """Open approvals of the fleet, or of one session, oldest first."""
        shards = range(self.config.shards) if session is None else [self.keys.shard_of(session)]
        opened = await self.approvals_of(shards)
        return tuple(asked for asked in opened if session is None or asked.session == session)

    async def approvals_of(self, shards: Sequence[int]) -> tuple[OpenApproval, ...]:
        """Open approvals of some shards, oldest first."""
        if not shards:
            return ()
        found = await self._connection.commands([("HGETALL", self.keys.approvals(s)) for s in shards])
        read = (_approval(f, value) for page in found for f, value in page.items())
        opened = (asked for asked in read if asked is not None)
        return tuple(sorted(opened, key=lambda a: (a.opened_ms, a.session, a.key)))

    async def count_open_requests(self) -> int:
        """The number of requests in the fleet that wait for a person."""
        rows = [("HLEN", self.keys.approvals(shard)) for shard in range(self.config.shards)]
        return sum(map(int, await self._connection.commands(rows)))

    async def askers(self) -> dict[SessionId, int]:
        """How many requests of each session wait for a person."""
        rows = [("HKEYS", self.keys.approvals(shard)) for shard in range(self.config.shards)]
        found = [name for page in await self._connection.commands(rows) for name in page]
        return dict(Counter(SessionId(name.decode("utf-8", "replace").partition(":")[0]) for name in found))

    def request_feed(self, namespace: str | None = None) -> RequestFeed:
        """A feed of the requests to people in a namespace; of all of them if it is None."""
        return RequestFeed(self, self._logs, Listener(self._connection, self.keys), namespace)


def _approval(field: bytes, value: bytes) -> OpenApproval | None:
    """The request of a field; None for what no script has written, which is nobody's to answer."""
    opened, _, payload = value.partition(b":")
    try:
        session, _, key = field.decode().partition(":")
        return OpenApproval(SessionId(session), key, payload, int(opened))
    except ValueError:
        return None


# ── request feed ──────────────────────────────────────────────────────────────────────────────────
# Requests to people as they are opened and settled, without asking for them again and again.
#
# A commit that opens or closes a request says so in its shard's stream, in the same script. An entry
# there says "look", and nothing else is believed of it: the shard's hash of open approvals is the truth,
# and the feed tells how it differs from what it told before. So nothing is lost where the stream was
# trimmed, Redis was put back, or the connection was away: the next look finds it. A request that was
# opened and settled between two looks is not told at all.


@record
class Opened:
    """A request that waits for a person."""

    request: OpenApproval


@record
class Settled:
    """A request that waits for nobody any more, however it ended."""

    session: SessionId
    key: str


RequestChange: TypeAlias = Opened | Settled
_Id: TypeAlias = tuple[SessionId, str]


class Approvals(Protocol):
    """The reads that a feed needs."""

    @property
    def keys(self) -> Keys: ...

    async def approvals_of(self, shards: Sequence[int]) -> tuple[OpenApproval, ...]: ...


class Namespaces(Protocol):
    """The same of sessions."""

    async def namespace(self, session: SessionId) -> str: ...


class RequestFeed:
    """The open requests of a namespace, and how they change."""

    def __init__(
        self, requests: Approvals, sessions: Namespaces, listener: Listener, namespace: str | None
    ) -> None:
        self._requests = requests
        self._sessions = sessions
        self._listener = listener
        self._namespace = namespace
        self._shards = {requests.keys.asked(shard): shard for shard in range(requests.keys.shards)}
        self._cursors: dict[str, str] = {}
        """Where the streams were read to; empty before the first look, and after a failure."""
        self._told: dict[_Id, OpenApproval] = {}

    async def changes(self, timeout_s: float = 5.0) -> tuple[RequestChange, ...]:
        """Changes since the last call, at first every open request; waits at most so long for one.

        Raises `Unavailable` when Redis goes away; the call after it finds what happened meanwhile.
        """
        cursors, self._cursors = self._cursors, {}
        if not cursors:
            cursors = await self._listener.tips(list(self._shards))
            changed = await self._look(self._shards.values())
            if changed:
                self._cursors = cursors
                return changed
        found = await self._listener.read(cursors, timeout_s)
        # Without an entry all are looked at: Redis may have gone back, or an earlier version may be at work.
        changed = await self._look(self._shards[key] for key in found or self._shards)
        self._cursors = {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}
        return changed

    async def _look(self, shards: Iterable[int]) -> tuple[RequestChange, ...]:
        """Tells how the shards' open requests differ from what was told of them."""
        looked = frozenset(shards)
        there = await self._visible(await self._requests.approvals_of(sorted(looked)))
        shard_of = self._requests.keys.shard_of
        gone = [known for known in self._told if known not in there and shard_of(known[0]) in looked]
        new = [asked for known, asked in there.items() if self._told.get(known) != asked]
        for known in gone:
            del self._told[known]
        self._told.update({(asked.session, asked.key): asked for asked in new})
        return (*(Settled(*known) for known in gone), *map(Opened, new))

    async def _visible(self, asked: Iterable[OpenApproval]) -> Mapping[_Id, OpenApproval]:
        found = {}
        for request in asked:
            if self._namespace is None or await self._is_ours(request.session):
                found[request.session, request.key] = request
        return found

    async def _is_ours(self, session: SessionId) -> bool:
        try:
            return await self._sessions.namespace(session) == self._namespace
        except UnknownSession:
            return False

    async def aclose(self) -> None:
        """Ends the reads that wait."""
        await self._listener.aclose()
