"""A session's log in a bundle as the lines of a full export, so that what reads those reads bundles, too."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import CommitRequest, Committed, LogPlace, StoredEntry
from orchestrator.broker.seal import LogWriter, seal
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.chain import ChainKey, next_chain
from orchestrator.core.commit_parts import NewEntry
from orchestrator.core.counts import counted
from orchestrator.core.entries import encode_entry, encode_json
from orchestrator.core.ids import SessionId
from orchestrator.core.sender import Sender
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_check import check_bundle
from orchestrator.rollouts.bundle_form import HASH, MOST_TEXT_BYTES, Line, Manifest, log_member, read_line
from orchestrator.rollouts.bundle_members import lines_of, open_members
from orchestrator.rollouts.bundle_writer import Made
from orchestrator.rollouts.file_format import Header, full_line
from orchestrator.rollouts.inherited_lines import LogLine
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.signed_notes import Signer


class OpenBundle:
    """A bundle as a source of its root's log; raises `RolloutError` for one that does not hold."""

    def __init__(self, path: Path, key: ChainKey | None) -> None:
        report = check_bundle(path, key=key)
        if report.findings or report.manifest is None:
            found = counted(len(report.findings) + report.more, "finding")
            raise RolloutError(f"it does not hold: {found}, which `dendro verify` names")
        self._manifest: Manifest = report.manifest
        self._withheld = frozenset(report.manifest.withheld)
        self._key = key
        self._members = open_members(path)

    def __enter__(self) -> OpenBundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._members.close()

    @property
    def agents(self) -> int:
        """Sessions beside the root's, which are not read."""
        return sum(bool(log.session) for log in self._manifest.logs) - 1

    def lines(self) -> Iterator[bytes]:
        """The full export of the tree's root."""
        id = f"session:{self._manifest.tree}"
        log = next((log for log in self._manifest.logs if log.id == id), None)
        if log is None:
            raise RolloutError("the root of its tree was left out of it")
        keyed = self._key is not None and self._key.id == log.key_id
        secret = self._key.secret if self._key is not None and keyed else b""
        yield Header(log.session, "default", log.size, log.head, log.key_id).encode(secret) + b"\n"
        for lines in lines_of(self._members.chunks(log_member(id))):
            for data in lines:
                yield self._exported(read_line(data, tree=False))

    def tree_lines(self) -> dict[int, bytes]:
        """The SHA-256 of each line that an export has of the tree's log, by number, where it has its text."""
        found: dict[int, bytes] = {}
        for lines in lines_of(self._members.chunks(log_member(f"tree:{self._manifest.tree}"))):
            for data in lines:
                line = read_line(data, tree=True)
                if line.payload is not None:
                    found[line.seq] = sha256(_told(line, orjson.loads(line.payload))).digest()
        return found

    def _exported(self, line: Line) -> bytes:
        if line.payload is None and (f"session:{self._manifest.tree}", line.seq) not in self._withheld:
            # The check has found a fact that says who redacted it.
            entry = StoredEntry(line.seq, line.epoch, b"", b"", line.chain, line.digest)
            return full_line(LogLine(entry), self._text)
        if line.payload is None:
            raise RolloutError(
                f"entry {line.seq} has no text in it: what it did to the state is not known any more"
            )
        entry = StoredEntry(line.seq, line.epoch, line.payload.encode(), line.salt, line.chain)
        return full_line(LogLine(entry), self._text)

    def _text(self, digest: str) -> str | None:
        member = self._members.members.get(f"texts/{digest}") if HASH.fullmatch(digest) else None
        if member is None or member.bytes > MOST_TEXT_BYTES:
            return None
        return b"".join(self._members.chunks(member.name)).decode("utf-8", "surrogatepass")

    def copy_pack(self, sha256: str, target: Path) -> bool:
        """Copies a pack to a new file of this user's; False if it is not here."""
        from orchestrator.private_files import replacing

        member = self._members.members.get(f"packs/{sha256}.pack") if HASH.fullmatch(sha256) else None
        if member is None:
            return False
        with replacing(target) as out:
            for chunk in self._members.chunks(member.name):
                out.write(chunk)
        return True


def _told(line: Line, told: Mapping[str, Any]) -> bytes:
    """A line of the tree's log as an export has it."""
    caused_by = {"session_id": line.by, "seq": line.epoch, "chain": line.chain.hex()}
    value = {name: told.get(name, "") for name in ("timestamp", "type", "payload", "id")}
    return orjson.dumps({**value, "tree_seq": line.seq, "caused_by": caused_by})


# ── in-toto ───────────────────────────────────────────────────────────────────────────────────────

STATEMENT = "application/vnd.in-toto+json"
PREDICATE = "urn:dendro:bundle:1"


def statement_of(name: str, sha256: str, manifest: Manifest, manifest_sha256: str, signer: Signer) -> bytes:
    """An in-toto statement (v1) whose subject is a bundle, in a DSSE envelope under its maker's key.

    It says of the bundle what its manifest says; what it proves, the bundle proves.
    """
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "origin": manifest.origin,
            "made": manifest.made_at,
            "by": manifest.by,
            "tree": manifest.tree,
            "manifest": {"sha256": manifest_sha256},
            "logs": [{"id": log.id, "size": log.size, "root": log.root.hex()} for log in manifest.logs],
        },
    }
    payload = orjson.dumps(statement)
    kind = STATEMENT.encode()
    said = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    signed = {"keyid": str(signer.key), "sig": base64.b64encode(signer.private.sign(said)).decode()}
    envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": STATEMENT}
    return orjson.dumps({**envelope, "signatures": [signed]}) + b"\n"


# ── in the log ────────────────────────────────────────────────────────────────────────────────────


class NotNoted(RolloutError):
    """The log does not say that the bundle was made; the message says why."""


async def note_bundle(found: LogSource, made: Made, worker: f.Claimed, by: Sender, key: str) -> None:
    """States in the log of the tree's root that a bundle of it was made: by whom, and up to which entry.

    Raises `NotNoted` where the root is at work, is not in Redis, or its chain's key is not here.
    """
    try:
        await _note(found, made, worker, by, key)
    except BrokerError as error:
        raise NotNoted(str(error)) from error


async def _note(found: LogSource, made: Made, worker: f.Claimed, by: Sender, key: str) -> None:
    manifest, claims = made.manifest, found.broker.claims
    session, logs = SessionId(manifest.tree), {log.session: log for log in manifest.logs if log.session}
    sizes = [log.size for log in manifest.logs if log.session == session]
    if not sizes:
        raise NotNoted("the log of its root was left out")
    listed = await found.broker.logs.head(session)
    held = await claims.claim_at_rest(listed, worker.worker, uuid.uuid4().hex) if listed else None
    if held is None:
        raise NotNoted("the root of its tree is at work, or archived")
    claimed = held.claimed
    try:
        if not await _has_key(found, session, claimed):
            raise NotNoted("its chain is under a key that is not configured here")
        kept_back = len(manifest.withheld)
        fact = f.Bundled(made.sha256, sizes[0], len(logs), kept_back, key, by.who, by=by)
        now_ms, writer = claimed.now_ms, LogWriter(os.urandom, found.secret, claimed.claim.epoch)
        entries, seq, head = list[NewEntry](), claimed.seq, claimed.head
        for stated in (worker, fact):
            seq += 1
            line: JsonObject = orjson.loads(encode_entry(e.fact(stated), now_ms, {}).line)
            entries.append(seal(encode_json(line), seq, head, writer))
            head = entries[-1].chain
        request = CommitRequest(
            claimed.claim, uuid.uuid4().hex, claimed.seq, claimed.head, claimed.last_commit, tuple(entries)
        )
        answer = await found.broker.commits.commit(request)
        if not isinstance(answer, Committed):
            raise NotNoted(f"session {session} was not written to: {answer}")
        held.end = answer
    finally:
        await held.give_back()


async def _has_key(found: LogSource, session: SessionId, at: LogPlace) -> bool:
    """Whether the last entry follows from the one before it by this process's key."""
    last = [entry async for entry in found.log(session, at.seq, max(0, at.seq - 2))]
    if len(last) != 2:
        return False
    before, entry = last
    return next_chain(before.chain, entry.seq, entry.epoch, entry.covered, found.secret) == at.head
