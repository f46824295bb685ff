"""Signed notes and checkpoints as C2SP writes them: a text, a blank line, a line for each signature.

    — <name> base64(key id | signature)

A key id is the first four bytes of SHA-256(name | 0x0A | type | public key). Type 0x01 is Ed25519 over the
text; type 0x04 (cosignature/v1) is a time, and Ed25519 over a line with it and the text. The formats are
c2sp.org/signed-note, /tlog-checkpoint and /tlog-cosignature.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.frozen import record
from orchestrator.private_files import replacing
from orchestrator.sandbox.trusted_files import read_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519: Final = 0x01
COSIGNATURE: Final = 0x04
MOST_NOTE_BYTES: Final = 256 << 10
"""A checkpoint with a signature of each of a thousand witnesses is shorter."""
MOST_KEY_BYTES: Final = 64 << 10
"""Bytes of a file with a private key: one of Ed25519 has some hundreds."""
_NAME = re.compile(r"[^\s+]+")
_DASH = "— "


class BadNote(ValueError):
    """A note, a key or a signature that is none; the message says why."""


@record
class VerifierKey:
    """A public key with the name that its signatures stand under."""

    name: str
    id: bytes
    type: int
    public: bytes

    @classmethod
    def of(cls, name: str, public: bytes, type: int = ED25519) -> VerifierKey:
        return cls(name, key_id(name, public, type), type, public)

    @classmethod
    def read(cls, text: str) -> VerifierKey:
        """Reads `name+hex key id+base64(type | public key)`; raises `BadNote`."""
        name, _, rest = text.partition("+")
        id, _, encoded = rest.partition("+")
        key = _decoded(encoded)
        if not is_name(name) or len(key) != 33 or key[0] not in (ED25519, COSIGNATURE):
            raise BadNote(f"{text!r} is no verifier key (name+key id+base64 of an Ed25519 key)")
        found = cls.of(name, key[1:], key[0])
        if found.id.hex() != id:
            raise BadNote(
                f"the verifier key {text!r} has the key id {id}, and its key the id {found.id.hex()}"
            )
        return found

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.type]) + self.public).decode()
        return f"{self.name}+{self.id.hex()}+{encoded}"


def key_id(name: str, public: bytes, type: int = ED25519) -> bytes:
    """The four bytes by which a signature names its key."""
    return sha256(name.encode() + b"\n" + bytes([type]) + public).digest()[:4]


def is_name(text: str) -> bool:
    """Whether a key or an origin may be called so: one word, without `+`."""
    return _NAME.fullmatch(text) is not None


@record
class Signature:
    """A signature line: who signed, by which key, and the bytes."""

    name: str
    id: bytes
    value: bytes


@record
class Note:
    """A text, and the signatures under it."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def read(cls, data: bytes) -> Note:
        """Reads a note; one without a signature is an unsigned one. Raises `BadNote`."""
        if len(data) > MOST_NOTE_BYTES:
            raise BadNote(f"a note has at most {MOST_NOTE_BYTES} bytes")
        try:
            whole = data.decode()
        except UnicodeDecodeError:
            raise BadNote("a note is UTF-8") from None
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or any(char < " " and char != "\n" for char in whole):
            raise BadNote("a note is a text, a blank line, and signatures")
        if lines and not lines.endswith("\n"):
            raise BadNote("the last signature has no end")
        return cls(f"{text}\n", tuple(map(read_signature, lines.split("\n")[:-1])))

    def encode(self) -> bytes:
        lines = (f"{_DASH}{s.name} {base64.b64encode(s.id + s.value).decode()}\n" for s in self.signatures)
        return f"{self.text}\n{''.join(lines)}".encode()

    def with_signatures(self, more: Iterable[Signature]) -> Note:
        """The note with more signatures; one of a key that has signed already takes that one's place."""
        found = {(one.name, one.id): one for one in (*self.signatures, *more)}
        return Note(self.text, tuple(found.values()))

    def signed_by(self, keys: Iterable[VerifierKey]) -> dict[VerifierKey, int]:
        """Those of the keys that signed it, and the Unix time that a cosignature states (else 0).

        Raises `BadNote` for a signature that names one of them and is none of it.
        """
        found: dict[VerifierKey, int] = {}
        for key in keys:
            for signature in self.signatures:
                if (signature.name, signature.id) == (key.name, key.id):
                    found[key] = _time_of(self.text, signature, key)
        return found


def read_signature(line: str) -> Signature:
    """Reads a line without its end; raises `BadNote`."""
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    value = _decoded(encoded)
    if not line.startswith(_DASH) or not is_name(name) or len(value) < 5:
        raise BadNote(f"the line {line[:80]!r} is no signature")
    return Signature(name, value[:4], value[4:])


def _decoded(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    # Other texts decode to the same bytes: of those one is written.
    return found if base64.b64encode(found).decode() == text else b""


def _time_of(text: str, signature: Signature, key: VerifierKey) -> int:
    value, time, said = signature.value, 0, text.encode()
    if key.type == COSIGNATURE:
        if len(value) != 72:
            raise BadNote(f"the cosignature of {key.name} has another length than 72 bytes")
        time = int.from_bytes(value[:8], "big")
        value, said = value[8:], _cosigned(text, time)
    if not verifies(key.public, value, said):
        raise BadNote(f"the signature of {key.name} does not fit the text")
    return time


def _cosigned(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether an Ed25519 signature is one of the message by this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def signature_of(encoded: str) -> bytes:
    """The bytes of a signature in base64; none for what is no base64."""
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        return b""


class Signers:
    """People's verifier keys, by which signatures under their answers are checked."""

    def __init__(self, keys: Iterable[VerifierKey], called: Mapping[str, VerifierKey] | None = None) -> None:
        """`called` are keys that have another name, too."""
        pairs = [*((one.name, one) for one in keys), *(called or {}).items()]
        self._keys = tuple((f"{name}{str(one)[len(one.name) :]}+", one) for name, one in pairs)

    def __call__(self, key: str, signature: bytes, message: bytes) -> bool | None:
        """Whether it is a signature of the message by a key that `key` names: whole, or its beginning.

        A key that is not there, under the name of one that is, signs nothing. None: no name is its.
        """
        name = f"{key.partition('+')[0]}+"
        if not any(text.startswith(name) for text, _ in self._keys):
            return None
        named = [one for text, one in self._keys if text.startswith(f"{key}+")]
        return any(verifies(one.public, signature, message) for one in named)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────
# Signatures of people under answers that stand in logs, each for its request alone.


REQUESTS: Final = frozenset(
    {
        "exec_approval_request",
        "apply_patch_approval_request",
        "ask_user_question_request",
        "request_user_input",
        "plan_approval_request",
        "elicitation_request",
    }
)
"""Events that ask a person."""
MOST_ASKED: Final = 100_000
"""Requests of one log that are held; answers to later ones are held against none."""


class SignedAnswers:
    """The answers of logs, read one behind the other: a request is answered once, a signature counts once."""

    def __init__(self, signers: Signers) -> None:
        self._signers = signers
        self._asked: set[str] = set()
        self._all_read = True
        self._counted: set[bytes] = set()

    def begins(self) -> None:
        """Goes on with the next log."""
        self._asked.clear()
        self._all_read = True

    def asks(self, digest: str) -> None:
        """Takes a request by its digest (`request_digest`)."""
        if len(self._asked) < MOST_ASKED:
            self._asked.add(digest)
        else:
            self._all_read = False

    def unread(self) -> None:
        """Takes an entry without text, which may have been a request."""
        self._all_read = False

    def fault(self, session: str, answer: Mapping[str, Any], shown: object) -> str | None:
        """The fault of the signature in a fact `answer`; empty for none, None where nobody has its key.

        `shown` is the digest of what was shown.
        """
        from orchestrator.core.commands import signed_answer

        key, signature = str(answer.get("key", "")), signature_of(str(answer.get("sig")))
        request, response = str(answer.get("request", "")), answer.get("digest", "")
        turn, call, decision, ms = map(answer.get, ("turn", "call_id", "decision", "answered_ms"))
        said = signed_answer(session, turn, call, decision, ms, shown, request=request, response=response)
        holds = self._signers(key, signature, said.encode("utf-8", "surrogatepass"))
        if holds is None:
            return None
        if not holds:
            return f"its signature is not one of {key:.80} under this answer"
        if signature in self._counted:
            return "its signature was given to another answer"
        if request and request in self._asked:
            self._asked.remove(request)
        elif request and self._all_read:
            return "it is signed for a request that is not in this log before it, or that was answered"
        self._counted.add(signature)
        return ""


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


@record
class Checkpoint:
    """The size and the root of a register, as its note says."""

    origin: str
    size: int
    root: bytes

    @classmethod
    def of(cls, note: Note) -> Checkpoint:
        """Reads the note's text; raises `BadNote`."""
        lines = note.text.split("\n")
        if (
            len(lines) < 4
            or not re.fullmatch(r"0|[1-9][0-9]{0,17}", lines[1])
            or len(_decoded(lines[2])) != 32
        ):
            raise BadNote("a checkpoint is an origin, a size and a root, each in a line")
        return cls(lines[0], int(lines[1]), _decoded(lines[2]))

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


# ── signing ───────────────────────────────────────────────────────────────────────────────────────


@record
class Signer:
    """An Ed25519 key that signs under a name."""

    name: str
    private: Ed25519PrivateKey

    @property
    def key(self) -> VerifierKey:
        return VerifierKey.of(self.name, self.private.public_key().public_bytes_raw())

    @property
    def witness_key(self) -> VerifierKey:
        """The key by which its cosignatures are checked."""
        return VerifierKey.of(self.name, self.key.public, COSIGNATURE)

    def cosigned(self, text: str, time_s: int) -> Signature:
        """The signature of a witness that saw a checkpoint at a Unix time (cosignature/v1)."""
        value = self.private.sign(_cosigned(text, time_s))
        return Signature(self.name, self.witness_key.id, time_s.to_bytes(8, "big") + value)

    def signed(self, text: str) -> Note:
        """The note of a text, which ends with a line feed."""
        return Note(text, (Signature(self.name, self.key.id, self.private.sign(text.encode())),))


def own_private_key(path: Path) -> Ed25519PrivateKey:
    """This user's own key, which is made at its first use; raises `BadNote`, `NotPrivate`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not path.exists():
        private = Ed25519PrivateKey.generate()
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with replacing(path) as file:
            file.write(pem)
    return read_private_key(path)


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 key from a file as OpenSSH or OpenSSL writes it, without a passphrase; raises `BadNote`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    data = read_regular(path, MOST_KEY_BYTES + 1)
    if len(data) > MOST_KEY_BYTES:
        raise BadNote(f"{path} has more than {MOST_KEY_BYTES:,} bytes: it is no private key")
    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
    try:
        key = load(data, password=None)
    except TypeError:
        raise BadNote(f"{path} is under a passphrase: name a key without one") from None
    except Exception as error:
        raise BadNote(f"{path} is no private key as OpenSSH or OpenSSL writes it: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadNote(f"{path} is no Ed25519 key; make one: ssh-keygen -t ed25519 -N '' -f {path.name}")
    return key
