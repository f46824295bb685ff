"""The vectors on the page of bundles: what a stranger computes from it is what is computed here."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from orchestrator.core.commands import signed_answer
from orchestrator.core.entries import BEHIND_TIME, decode_entry, request_digest
from orchestrator.core.merkle import leaf_hash
from orchestrator.rollouts.bundle_form import leaf, read_line
from orchestrator.rollouts.bundle_receipts import read_statement
from orchestrator.rollouts.signed_notes import (
    COSIGNATURE,
    Checkpoint,
    Note,
    Signer,
    Signers,
    VerifierKey,
    signature_of,
)
from tests.rollouts.bundles import private

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "bundle.md"


def vector(name: str) -> str:
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


def test_line_of_the_page_has_its_digest_and_its_leaf() -> None:
    text = vector("a line of a tree")
    line = read_line(text.encode(), tree=True)
    assert line.digest.hex() == vector("D")
    assert leaf(line.seq, line.epoch, line.digest, line.chain).hex() == vector("leaf")
    assert line.encode() == f"{text}\n".encode()


def test_line_without_text_is_written_as_the_page_has_it() -> None:
    text = vector("a line without text")
    assert read_line(text.encode(), tree=False).encode() == f"{text}\n".encode()


def test_statement_of_the_page_has_its_leaf() -> None:
    text = json.loads(vector("a statement, as JSON"))
    assert (read_statement(0, text).size, read_statement(0, text).state) == (8, "rest")
    assert leaf_hash(text.encode()).hex() == vector("its leaf")


def test_checkpoint_of_the_page_is_signed_by_its_log_and_its_witness() -> None:
    data = json.loads(vector("a checkpoint, as JSON")).encode()
    note = Note.read(data)
    log, witness = (VerifierKey.read(vector(f"key of the {name}")) for name in ("log", "witness"))
    assert note.signed_by([log, witness]) == {log: 0, witness: 1_795_462_860}
    assert (Checkpoint.of(note).size, Checkpoint.of(note).text) == (14, note.text)
    assert note.encode() == data
    assert Signer(log.name, private("log")).key == log
    assert VerifierKey.of(witness.name, Signer("w", private("witness")).key.public, COSIGNATURE) == witness
    assert Signer(log.name, private("log")).signed(note.text).signatures == note.signatures[:1]


def test_answer_of_the_page_is_signed_by_its_person() -> None:
    text, shown = json.loads(vector("an answer, as JSON")), json.loads(vector("shown with it"))
    ada, signature = VerifierKey.read(vector("key of ada")), signature_of(vector("its signature"))
    fields = text.split("\n")
    assert fields[6:] == [sha256(shown.encode()).hexdigest(), ""]
    assert signed_answer(*fields[1:7]) == text
    assert Signers([ada])("ada", signature, text.encode())
    assert Signer("ada", private("ada")).key == ada


def test_answer_of_the_page_is_signed_for_its_request() -> None:
    line, text = vector("a request's line").encode(), json.loads(vector("answer to it, as JSON"))
    digest = sha256(line[BEHIND_TIME:]).hexdigest()
    request = decode_entry(line)
    assert vector("its digest") == digest == request_digest(request.id, request.payload)
    _, session, turn, call, asked, decision, words, at_ms, shown, _ = text.split("\n")
    about = (session, turn, call, decision, at_ms, shown)
    assert signed_answer(*about, request=asked, response=words) == text
    assert asked == digest
    signers = Signers([VerifierKey.read(vector("key of ada"))])
    assert signers("ada", signature_of(vector("signature under it")), text.encode())
