"""`dendro witness` and `dendro anchor`: checkpoints in the hands of others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.cli import witness as commands
from orchestrator.cli.notary import checkpoint
from orchestrator.rollouts.register import Signed
from orchestrator.rollouts.signed_notes import Note, read_signature
from orchestrator.terminal.faults import Fault
from tests.rollouts import bundles as b
from tests.rollouts.test_witnesses import grown

CTX = cast(typer.Context, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a key, and a register of three and then nine statements."""
    register = SimpleNamespace(url=(tmp_path / "r").as_uri())
    told: Any = SimpleNamespace(settings=lambda: SimpleNamespace(receipts=register))
    monkeypatch.setattr("orchestrator.cli.invocation.Invocation.of", lambda ctx: told)
    pem = b.private("witness").private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    grown(tmp_path / "r", 3)
    return tmp_path


def signs(folder: Path, **more: Any) -> None:
    given = {"log": [str(b.OPERATOR.key)], "name": b.WITNESS.name, **more}
    commands.sign(folder / "request", state=folder / "seen.json", key=folder / "key", **given)


def test_witness_by_hand_signs_what_continues_and_says_what_it_needs(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for old, sizes in ((0, (3,)), (3, (3, 9))):
        grown(folder / "r", *sizes)
        commands.request(CTX, old=old)
        (folder / "request").write_bytes(capfdbinary.readouterr().out)
        signs(folder)
        line, said = capfdbinary.readouterr()
        checkpoint(CTX)
        signed = Signed.read(capfdbinary.readouterr().out)
        note = Note(signed.note.text, (*signed.note.signatures, read_signature(line.decode().rstrip("\n"))))
        assert signed.point.size == sizes[-1]
        assert list(note.signed_by([b.WITNESS.witness_key])) == [b.WITNESS.witness_key]
        assert str(b.WITNESS.witness_key) in said.decode()
    with pytest.raises(Fault, match="request --old 9"):
        signs(folder)
    with pytest.raises(Fault, match="not signed: no key"):
        signs(folder, log=[str(b.WITNESS.key)])
    with pytest.raises(Fault, match="no name"):
        signs(folder, name="a b")
    with pytest.raises(Fault, match="not 10"):
        commands.request(CTX, old=10)


def test_checkpoint_is_committed_to_a_repository_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = folder / "receipts"
    with pytest.raises(Fault, match="git init"):
        commands.git(CTX, repository)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hooked\n")
    hook.chmod(0o755)
    commands.git(CTX, repository)
    commands.git(CTX, repository)
    assert "committed already" in capsys.readouterr().out
    grown(folder / "r", 3, 9)
    commands.git(CTX, repository)
    log = subprocess.run(
        ["git", "-C", str(repository), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout.splitlines() == ["fleet.example/home: 9 statements", "fleet.example/home: 3 statements"]
    assert Signed.read((repository / "fleet.example-home.note").read_bytes()).point.size == 9
    assert not (folder / "hooked").exists(), "no hook of the repository is started"
