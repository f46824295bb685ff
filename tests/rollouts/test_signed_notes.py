"""Signed notes, verifier keys and the files of private keys: what is none of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from orchestrator.rollouts.signed_notes import (
    MOST_NOTE_BYTES,
    BadNote,
    Checkpoint,
    Note,
    Signer,
    VerifierKey,
    own_private_key,
    read_private_key,
)
from tests.rollouts.bundles import OPERATOR, STRANGER, private

TEXT = "a line\nanother\n"


def test_note_is_read_as_it_was_signed_and_knows_its_signer() -> None:
    note = Note.read(OPERATOR.signed(TEXT).encode())
    assert note == OPERATOR.signed(TEXT)
    assert list(note.signed_by([OPERATOR.key, STRANGER.key])) == [OPERATOR.key]
    assert Note.read(b"a line\n\n") == Note("a line\n", ())


def test_signature_that_names_a_key_and_is_none_of_it_is_refused() -> None:
    note = OPERATOR.signed(TEXT)
    with pytest.raises(BadNote, match="does not fit"):
        Note("another text\n", note.signatures).signed_by([OPERATOR.key])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no blank line\n",
        b"text\n\n\xff",
        b"text\r\n\n",
        b"text\n\n\xe2\x80\x94 name QUJDREVGRw==",
        b"text\n\nname QUJDREVGRw==\n",
        "text\n\n— na me QUJDREVGRw==\n".encode(),
        "text\n\n— name QUJD\n".encode(),
        "text\n\n— name QUJDREVGRx==\n".encode(),
        "text\n\n— name !!!!\n".encode(),
        b"x" * (MOST_NOTE_BYTES + 1),
    ],
)
def test_bytes_that_are_no_note_are_refused(data: bytes) -> None:
    with pytest.raises(BadNote):
        Note.read(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000+AA==",
        str(OPERATOR.key).replace("fleet", "fleed"),
        str(OPERATOR.key)[:-2],
        f" {OPERATOR.key}",
        str(OPERATOR.key).replace("+A", "+B", 1),
    ],
)
def test_text_that_is_no_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(BadNote):
        VerifierKey.read(text)
    assert VerifierKey.read(str(OPERATOR.key)) == OPERATOR.key


@pytest.mark.parametrize("text", ["o\n01\nAA==\n", "o\n1\nAA==\n", "o\n-1\n\n", "o\n1\n"])
def test_note_that_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BadNote):
        Checkpoint.of(Note(text, ()))


def test_keys_are_read_as_openssh_and_openssl_write_them(tmp_path: Path) -> None:
    key, file = private("log"), tmp_path / "key"
    for form in (PrivateFormat.OpenSSH, PrivateFormat.PKCS8):
        file.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        assert Signer("n", read_private_key(file)).key == Signer("n", key).key


def test_file_that_holds_no_usable_key_is_refused_with_the_reason(tmp_path: Path) -> None:
    file, key = tmp_path / "key", private("log")
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    with pytest.raises(BadNote, match="under a passphrase"):
        read_private_key(file)
    file.write_bytes(b"nothing")
    with pytest.raises(BadNote, match="no private key"):
        read_private_key(file)
    other = rsa.generate_private_key(65_537, 1_024)
    file.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(BadNote, match="ssh-keygen -t ed25519"):
        read_private_key(file)


def test_own_key_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "bundle.key"
    first = own_private_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert Signer("n", own_private_key(file)).key == Signer("n", first).key
