"""The hash chain over a rollout: what makes an edit of the log visible.

    chain_0 = 32 zero bytes
    chain_n = H(chain_{n-1} | seq | epoch | H(salt_n | payload))

`H` is BLAKE2b-256, keyed if the deployment gives a key (so that somebody who can write
to Redis still cannot forge the log). `seq` and `epoch` are 8 bytes, big endian. The
payload enters only through its salted digest: redaction deletes payload and salt,
keeps the digest, and the chain still verifies while the text cannot be guessed.

Every chain begins alike; what ties one to its session is what its first entries say (`names_session`):
they are as hard to change as any other.

What stands beside a log and is believed without it (a snapshot, the first line of a full export) bears a
code made with the same key, under a purpose of its own (`mac`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from orchestrator.core.frozen import record

if TYPE_CHECKING:
    from orchestrator.core.entries import Entry

GENESIS = bytes(32)
DIGEST_BYTES = 32
SALT_BYTES = 16


@record
class ChainKey:
    """A secret that keys the chain, and the id under which entries name it."""

    id: str
    secret: bytes


@record
class Link:
    """An entry as the chain sees it: `digest` stands for salt and payload."""

    seq: int
    epoch: int
    digest: bytes
    chain: bytes


@record
class BrokenLink:
    """The first entry that does not follow from the one before it."""

    seq: int
    reason: str


NOT_FOLLOWING = "its hash does not follow from its content and the entry before it"


@record
class ExpectedHead:
    """A head noted down earlier: the log went up to `seq`, and its chain had this value there."""

    seq: int
    chain: bytes
    """The whole value, or at least its first 8 bytes."""

    def is_met(self, link: Link) -> bool:
        return link.seq == self.seq and link.chain.startswith(self.chain)


def payload_digest(salt: bytes, payload: bytes) -> bytes:
    """H(salt | payload): what a redacted entry keeps."""
    return hashlib.blake2b(salt + payload, digest_size=DIGEST_BYTES).digest()


def next_chain(previous: bytes, seq: int, epoch: int, digest: bytes, secret: bytes = b"") -> bytes:
    """The chain value of the entry `seq`, written under claim `epoch`."""
    message = previous + seq.to_bytes(8, "big") + epoch.to_bytes(8, "big") + digest
    return hashlib.blake2b(message, digest_size=DIGEST_BYTES, key=secret).digest()


def _follows(head: bytes, link: Link, secret: bytes) -> bool:
    """Whether `link` has the chain value that it should; a number that no entry can have leads to none."""
    try:
        return link.chain == next_chain(head, link.seq, link.epoch, link.digest, secret)
    except OverflowError:
        return False


def first_broken(links: Iterable[Link], head: bytes, secret: bytes = b"") -> BrokenLink | None:
    """Walks entries in order from `head`, the chain value before the first of them."""
    expected: int | None = None
    for link in links:
        if expected is not None and link.seq != expected:
            return BrokenLink(expected, f"missing: the next entry present is {link.seq}")
        if not _follows(head, link, secret):
            return BrokenLink(link.seq, NOT_FOLLOWING)
        head = link.chain
        expected = link.seq + 1
    return None


class ChainWalk:
    """Follows a hash chain piece by piece from its beginning, and remembers where it stands."""

    def __init__(self, secret: bytes) -> None:
        self.head = GENESIS
        self.seq = 0
        self._secret = secret

    def take(self, links: Sequence[Link]) -> BrokenLink | None:
        """The first of the next links that does not follow; None moves on to behind them."""
        if not links:
            return None
        if links[0].seq != self.seq + 1:
            return BrokenLink(self.seq + 1, f"missing: the next entry present is {links[0].seq}")
        broken = first_broken(links, self.head, self._secret)
        if broken is None:
            self.head, self.seq = links[-1].chain, links[-1].seq
        return broken


Purpose = Literal["snapshot", "export header", "deployment"]


def mac(secret: bytes, purpose: Purpose, *parts: bytes) -> str:
    """The code, in hex, that shows that `parts` were written with the key; a checksum if there is none.

    The purpose keeps one kind of code from passing for another, or for a chain value.
    """
    person = purpose.encode().ljust(hashlib.blake2b.PERSON_SIZE, b"\0")
    code = hashlib.blake2b(digest_size=DIGEST_BYTES, key=secret, person=person)
    for part in parts:
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.hexdigest()


def same_mac(one: str, other: str) -> bool:
    """Compares two codes in a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


NAMING_ENTRIES = 3
"""How many entries of every log, from the first on, name its session."""


def names_session(entry: Entry) -> str:
    """The session that one of the first entries says its log is of; empty if it says none."""
    # Imported here: a program that only lists sessions reads no entry.
    from orchestrator.core import entries
    from orchestrator.core.facts import Configured, states
    from orchestrator.protocol.events import SessionConfigured
    from orchestrator.protocol.wire import tag_of

    payload = entry.payload
    match entry.type:
        case entries.SESSION_META:
            named = payload.get("id")
        case entries.DENDRO if states(payload, Configured):
            named = dict(payload.get("session", {})).get("session_id")
        case entries.EVENT_MSG if payload.get("type") == tag_of(SessionConfigured):
            named = payload.get("session_id")
        case _:
            named = None
    return named if isinstance(named, str) else ""
