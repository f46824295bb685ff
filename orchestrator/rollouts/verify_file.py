"""Verification of an exported file, without any server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.chain import NAMING_ENTRIES, BrokenLink, ExpectedHead, names_session
from orchestrator.core.entries import DENDRO
from orchestrator.core.facts import Configured, states
from orchestrator.rollouts.errors import RolloutError
from orchestrator.rollouts.file_format import BadLine, FileLine, FileWalk, Header, RolloutText, read_rollout
from orchestrator.rollouts.verify import Report


@dataclass(slots=True)
class _Seen:
    """The counts and names collected while reading a file."""

    lines: int = 0
    left_out: int = 0
    redacted: int = 0
    sessions: set[str] = field(default_factory=set)
    """The sessions that the first entries name: one, or none if the entries are redacted."""
    pool: str | None = None
    texts_missing: int = 0


def audit_file(path: Path, secret: bytes, expected: ExpectedHead | None) -> Report:
    """Walks a file to its end, `secret` keys its chain; raises `RolloutError` for one that is no export."""
    try:
        with path.open("rb") as file:
            text = read_rollout(file)
            if text.kind == "foreign":
                raise RolloutError(f"{path}: Codex's rollout has no hash chain, there is nothing to verify")
            walk, seen = FileWalk(secret, expected), _Seen()
            broken = _walked(text, walk, seen) or walk.unproved()
    except BadLine as error:
        raise RolloutError(f"{path}: {error}") from None
    findings = [broken] if broken else _wrong_at_the_end(text.header, walk, seen, secret, expected)
    key_id = text.header.key_id if text.header is not None else ""
    return Report(str(path), walk.seq, walk.head, tuple(_shown(text.header, seen)), findings, key_id)


def _walked(text: RolloutText, walk: FileWalk, seen: _Seen) -> BrokenLink | None:
    for line in text.lines:
        broken = walk.take_line(line)
        if broken is not None:
            return broken
        _note(line, seen)
    return None


def _note(line: FileLine, seen: _Seen) -> None:
    if line.inherited is not None:
        return
    seen.lines += 1
    seen.left_out += len(line.omitted)
    seen.redacted += line.entry is None
    if line.entry is None or line.place is None:
        return
    seen.texts_missing += line.texts_missing
    if line.place.seq <= NAMING_ENTRIES:
        seen.sessions |= {named for named in [names_session(line.entry)] if named}
        if line.entry.type == DENDRO and states(line.entry.payload, Configured):
            seen.pool = line.entry.payload.get("session", {}).get("pool")


def _wrong_at_the_end(
    header: Header | None, walk: FileWalk, seen: _Seen, secret: bytes, expected: ExpectedHead | None
) -> list[BrokenLink]:
    """The faults that show only when all of a file was read, or beside its chain."""
    wrong: list[str] = []
    changed = header.fault(secret) if header is not None else None
    if header is not None:
        named = seen.sessions | {header.session_id}
        wrong += [
            f"the file should go on to {header.seq}" if walk.seq != header.seq else "",
            "the first line names another head" if walk.head != header.head else "",
            f"the first line and the entries name several sessions: {', '.join(sorted(named))}"
            if len(named) > 1
            else "",
            f"the first line says pool {header.pool!r}, the entries say {seen.pool!r}"
            if seen.pool not in (None, header.pool)
            else "",
        ]
    elif len(seen.sessions) > 1:
        wrong.append(f"the entries name several sessions: {', '.join(sorted(seen.sessions))}")
    if expected is not None and not walk.met_expected:
        wrong.append(f"it does not contain the head that was expected at entry {expected.seq}")
    found = [changed] if changed is not None else []
    return found + [BrokenLink(walk.seq + 1 if "go on" in text else walk.seq, text) for text in wrong if text]


def _shown(header: Header | None, seen: _Seen) -> list[str]:
    parts = f"{seen.lines} stand in the file, {seen.left_out} are left out of it but for their digests"
    shown = [parts if seen.left_out else f"all {seen.lines} stand in the file"]
    shown += [f"{seen.redacted} of them redacted"] if seen.redacted else []
    shown += [f"{seen.texts_missing} large texts are not in the file"] if seen.texts_missing else []
    named = sorted(seen.sessions)
    shown.append(f"it is the log of session {named[0]}" if named else "its entries name no session")
    if header is not None and not header.mac:
        shown.append("its first line bears no code, as older versions wrote it: state_sha256 is not proved")
    return shown
