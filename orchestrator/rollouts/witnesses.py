"""Witnesses of a register: who signs a checkpoint where it continues the one that they signed before.

The words are those of c2sp.org/tlog-witness. A request is `old <size>`, the consistency proof from that size
in base64 lines, a blank line, and the checkpoint's note; the answer is a line with a signature
(cosignature/v1). The same request goes to a witness on line and, as a file, to one by hand.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import orjson

from orchestrator.core.frozen import record
from orchestrator.core.merkle import is_consistent
from orchestrator.private_files import open_file, write_file
from orchestrator.rollouts import signed_notes
from orchestrator.rollouts.register import BadRegister, Register, Signed
from orchestrator.sandbox.trusted_files import read_regular

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("dendro.notary")

MOST_PROOF: Final = 63
"""Hashes of a proof, as tlog-witness bounds them."""
MOST_SEEN_BYTES: Final = 4 << 20
"""Bytes of a witness's state: some ten thousand registers."""
PATIENCE_S: Final = 10.0
_TRIES: Final = 3
_OLD = re.compile(r"old (0|[1-9][0-9]{0,17})")
_HASH = re.compile(r"[0-9A-Za-z+/]{43}=")


class NotWitnessed(Exception):
    """A checkpoint that a witness does not sign; the message says why."""


class Conflict(NotWitnessed):
    """The witness has signed another size than the request is about."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the witness has signed size {size}")
        self.size = size


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


@record
class Request:
    """A checkpoint, and the proof that it continues an earlier size."""

    old: int
    proof: tuple[bytes, ...]
    signed: Signed

    @classmethod
    def of(cls, register: Register, signed: Signed, old: int) -> Request:
        """Raises `BadRegister`."""
        size = signed.point.size
        proof = register.consistency(size, old) if 0 < old < size else []
        return cls(old, tuple(proof), signed)

    @classmethod
    def read(cls, data: bytes) -> Request:
        """Raises `BadNote`."""
        head, blank, note = data.partition(b"\n\n")
        first, *lines = head.decode("utf-8", "replace").split("\n")
        old = _OLD.fullmatch(first)
        if old is None or not blank or len(lines) > MOST_PROOF or not all(map(_HASH.fullmatch, lines)):
            raise signed_notes.BadNote(
                "it is no request to a witness (`old <size>`, a proof, a blank line, a checkpoint)"
            )
        proof = tuple(base64.b64decode(line) for line in lines)
        return cls(int(old[1]), proof, Signed.read(note))

    def encode(self) -> bytes:
        lines = [f"old {self.old}", *(base64.b64encode(one).decode() for one in self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.signed.note.encode()


# ── a witness ─────────────────────────────────────────────────────────────────────────────────────


class _Last(TypedDict):
    size: int
    root: str


class Witness:
    """A witness with a file of what it has signed last, by origin."""

    def __init__(
        self, file: Path, signer: signed_notes.Signer, logs: Sequence[signed_notes.VerifierKey]
    ) -> None:
        self._file, self._signer, self._logs = file, signer, logs

    def sign(self, request: Request, time_s: int) -> signed_notes.Signature:
        """Signs a checkpoint that continues the last one; what it signed is on the disk before.

        Raises `NotWitnessed`, `BadNote` and `NotPrivate`.
        """
        with self._alone():
            return self._sign(request, time_s)

    def _sign(self, request: Request, time_s: int) -> signed_notes.Signature:
        point, known = request.signed.point, self._known()
        keys = [key for key in self._logs if key.name == point.origin]
        if not request.signed.note.signed_by(keys):
            raise NotWitnessed(f"no key of {point.origin} that you named has signed it")
        last = known.get(point.origin)
        size, root = (last["size"], bytes.fromhex(last["root"])) if last else (0, b"")
        if request.old != size:
            raise Conflict(size)
        if size == point.size and root != point.root:
            raise NotWitnessed(f"size {size} of {point.origin} has another root than the one that you signed")
        if 0 < size < point.size and not is_consistent(size, root, point.size, point.root, request.proof):
            raise NotWitnessed(f"it does not continue size {size} of {point.origin}, which you signed")
        if size > point.size:
            raise NotWitnessed(f"you have signed size {size} of {point.origin} already")
        known[point.origin] = _Last(size=point.size, root=point.root.hex())
        write_file(self._file, orjson.dumps(known, option=orjson.OPT_INDENT_2) + b"\n")
        return self._signer.cosigned(point.text, time_s)

    def size(self, origin: str) -> int:
        """The size of a register that it has signed last."""
        known = self._known().get(origin)
        return known["size"] if known else 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two that sign at once would both continue what was signed before, each with a root of its own."""
        lock = open_file(self._file.with_name(f"{self._file.name}.lock"), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _known(self) -> dict[str, _Last]:
        try:
            data = read_regular(self._file, MOST_SEEN_BYTES + 1)
            if len(data) > MOST_SEEN_BYTES:
                raise NotWitnessed(f"{self._file} has more than {MOST_SEEN_BYTES:,} bytes: it is no state")
            found: dict[str, _Last] = orjson.loads(data)
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            raise NotWitnessed(f"{self._file} is damaged: nobody knows what was signed last") from None
        return found


def line_of(signature: signed_notes.Signature) -> str:
    """A signature as a note has it, without its end."""
    return signed_notes.Note("-\n", (signature,)).encode().decode().split("\n")[2]


def checked(line: str, signed: Signed, key: signed_notes.VerifierKey) -> signed_notes.Note:
    """The note with the line of a witness under it; raises `BadNote` if it is none of this witness."""
    signature = signed_notes.read_signature(line)
    if (signature.name, signature.id) != (key.name, key.id):
        raise signed_notes.BadNote(f"the line is none of {key.name}")
    note = signed.note.with_signatures([signature])
    note.signed_by([key])
    return note


# ── witnesses on line ─────────────────────────────────────────────────────────────────────────────


@record
class OnLine:
    """A witness that is asked over HTTP."""

    key: signed_notes.VerifierKey
    url: str

    @classmethod
    def read(cls, text: str) -> OnLine:
        """Reads `VERIFIER-KEY URL`; raises `BadNote`."""
        key, _, url = text.partition(" ")
        found = signed_notes.VerifierKey.read(key)
        if found.type != signed_notes.COSIGNATURE or not re.fullmatch(r"https?://\S+", url):
            raise signed_notes.BadNote(
                f"{text!r} is no witness: a verifier key of type 0x04, a blank, and its address"
            )
        return cls(found, url.rstrip("/"))


async def asked(
    witnesses: Iterable[OnLine], register: Register, signed: Signed, seen: Callable[[str], int]
) -> signed_notes.Note:
    """The checkpoint's note with the signatures of those witnesses that gave one; the others are logged.

    `seen` answers the size that a witness, by its name, has signed last, as far as is known.
    """
    found = await asyncio.gather(*(_asked(one, register, signed, seen(one.key.name)) for one in witnesses))
    return signed.note.with_signatures(one for note in found if note for one in note.signatures)


async def _asked(witness: OnLine, register: Register, signed: Signed, old: int) -> signed_notes.Note | None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as http:
            # One that knows another size says so.
            for _ in range(_TRIES):
                request = await asyncio.to_thread(Request.of, register, signed, old)
                try:
                    return checked(await _posted(http, witness, request.encode()), signed, witness.key)
                except Conflict as conflict:
                    if conflict.size > signed.point.size:
                        raise
                    old = conflict.size
            raise NotWitnessed("it names another size each time")
    except (
        NotWitnessed,
        signed_notes.BadNote,
        BadRegister,
        aiohttp.ClientError,
        TimeoutError,
        OSError,
    ) as error:
        log.warning("the witness %s did not sign size %d: %s", witness.key.name, signed.point.size, error)
        return None


async def _posted(http: object, witness: OnLine, body: bytes) -> str:
    import aiohttp

    assert isinstance(http, aiohttp.ClientSession)
    async with http.post(f"{witness.url}/add-checkpoint", data=body, allow_redirects=False) as answer:
        told = (await _body(answer, signed_notes.MOST_NOTE_BYTES)).decode("utf-8", "replace")
        if answer.status == 409 and re.fullmatch(r"(0|[1-9][0-9]{0,17})\n?", told):
            raise Conflict(int(told))
        if answer.status != 200:
            raise NotWitnessed(f"HTTP {answer.status}: {told.strip()[:200]!r}")
    mine = [line for line in told.split("\n") if line.startswith(f"— {witness.key.name} ")]
    if not mine:
        raise NotWitnessed("its answer has no signature of its")
    return mine[0]


async def _body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The first `most` bytes of an answer, however many packets they come in."""
    data = bytearray()
    while len(data) < most and (chunk := await answer.content.read(most - len(data))):
        data += chunk
    return bytes(data)


# ── time stamps ───────────────────────────────────────────────────────────────────────────────────
# RFC 3161: an authority signs SHA-256 of a checkpoint's text, and the time. `openssl ts` reads the same.

MOST_STAMP_BYTES: Final = 64 << 10


_SHA256: Final = "2.16.840.1.101.3.4.2.1"


class BadStamp(Exception):
    """A time stamp that is none of the checkpoint; the message says why."""


def stamp_query(note: signed_notes.Note) -> tuple[bytes, int]:
    """The request for a time stamp of a checkpoint's text with the certificates, and its nonce."""
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    built = TimestampRequestBuilder().data(note.text.encode()).hash_algorithm(HashAlgorithm.SHA256)
    request = built.nonce(nonce=True).cert_request(cert_request=True).build()
    assert request.nonce is not None
    return request.as_bytes(), request.nonce


def stamped(reply: bytes, note: signed_notes.Note, nonce: int | None = None, roots: bytes = b"") -> datetime:
    """The time that an authority states of a checkpoint's text; raises `BadStamp`.

    With `roots`, certificates in PEM, one of them has to stand behind its signature; else nobody looks at it.
    """
    from cryptography.x509 import load_pem_x509_certificates
    from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

    if len(reply) > MOST_STAMP_BYTES:
        raise BadStamp(f"a time stamp has at most {MOST_STAMP_BYTES:,} bytes")
    try:
        response = decode_timestamp_response(reply)
        if response.status not in (0, 1):
            raise BadStamp(f"the authority gave none (status {response.status}: {response.status_string})")
        told = response.tst_info
        imprint = told.message_imprint
        if (imprint.hash_algorithm.dotted_string, imprint.message) != (_SHA256, _digest(note)):
            raise BadStamp("it is of another text than this checkpoint's")
        if nonce is not None and told.nonce != nonce:
            raise BadStamp("it answers another request")
        if roots:
            builder = VerifierBuilder()
            for root in load_pem_x509_certificates(roots):
                builder = builder.add_root_certificate(root)
            builder.build().verify_message(response, note.text.encode())
        found: datetime = told.gen_time
        return found
    except (ValueError, VerificationError) as error:
        raise BadStamp(str(error) or "it is no time stamp") from None


def _digest(note: signed_notes.Note) -> bytes:
    return sha256(note.text.encode()).digest()


async def ask_for_stamp(url: str, query: bytes) -> bytes:
    """The reply of an authority on line; raises `BadStamp`."""
    import aiohttp

    timeout, kind = aiohttp.ClientTimeout(total=PATIENCE_S), "application/timestamp-query"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as http,
            http.post(url, data=query, headers={"Content-Type": kind}, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise BadStamp(f"{url} answers HTTP {answer.status}")
            return await _body(answer, MOST_STAMP_BYTES + 1)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise BadStamp(f"{url} did not answer: {error or type(error).__name__}") from None
