"""`dendro witness` and `dendro anchor`: checkpoints in the hands of others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.cli import witness as commands
from orchestrator.cli.notary import checkpoint
from orchestrator.rollouts.register import Signed
from orchestrator.rollouts.signed_notes import Note, read_signature
from orchestrator.rollouts.witnesses import BadStamp, ask_for_stamp, stamp_query, stamped
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


@pytest.mark.parametrize("beside", ["nothing", "unknown", "staged", "changed"])
def test_checkpoint_is_committed_once_whatever_else_the_repository_holds(
    beside: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, other = folder / "receipts", folder / "receipts" / "other"
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")

    def git(*words: str) -> str:
        words = ("git", "-C", str(repository), *words)
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    repository.mkdir()
    git("init", "-q")
    if beside != "nothing":
        other.write_text("mine\n")
    if beside in ("staged", "changed"):
        git("add", "other")
    if beside == "changed":
        git("commit", "-qm", "mine")
        other.write_text("mine, and more\n")
    before = git("status", "--porcelain")
    for _ in range(3):
        commands.git(CTX, repository)
    told = capsys.readouterr().out.splitlines()
    assert ["committed already" in line for line in told] == [False, True, True]
    assert git("log", "--format=%s").splitlines()[0] == "fleet.example/home: 3 statements"
    assert git("status", "--porcelain") == before, "what else is there stays as it was"


# ── time stamps, by OpenSSL's authority ───────────────────────────────────────────────────────────

AUTHORITY = """
[tsa]
default_tsa = own
[own]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
certs = tsa.pem
ess_cert_id_alg = sha256
[extensions]
extendedKeyUsage = critical,timeStamping
"""


def openssl(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done


def authority(folder: Path, name: str = "ca") -> Path:
    """Makes an authority for time stamps; answers the certificate that stands behind it."""
    (folder / "tsa.cnf").write_text(AUTHORITY)
    (folder / "serial").write_text("01\n")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    days, out = ("-days", "30"), ("-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl(folder, "req", "-x509", *new, *days, *out, "-subj", f"/CN={name}")
    if name == "ca":
        openssl(folder, "req", *new, "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", "/CN=stamps")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", *days, "-out", "tsa.pem")
        kind = ("-extfile", "tsa.cnf", "-extensions", "extensions")
        openssl(folder, "x509", "-req", "-in", "tsa.csr", *signed, *kind)
    return folder / f"{name}.pem"


def stamp(folder: Path, query: str, reply: str) -> None:
    key = ("-signer", "tsa.pem", "-inkey", "tsa.key")
    openssl(folder, "ts", "-reply", "-config", "tsa.cnf", *key, "-queryfile", query, "-out", reply)


def test_time_stamp_of_an_authority_is_checked_here_and_by_openssl(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    roots, other = authority(folder), authority(folder, "other")
    checkpoint(CTX)
    note = folder / "seen.note"
    note.write_bytes(capfdbinary.readouterr().out)
    commands.tsa(note, query=folder / "seen.tsq")
    stamp(folder, "seen.tsq", "seen.tsr")
    reply = folder / "seen.tsr"
    commands.tsa(note, reply=reply, roots=roots)
    assert b"proved by your roots" in capfdbinary.readouterr().out
    commands.tsa(note, reply=reply)
    assert b"stated" in capfdbinary.readouterr().out
    (folder / "text").write_bytes(note.read_bytes().split(b"\n\n")[0] + b"\n")
    verify = ("ts", "-verify", "-data", "text", "-in", "seen.tsr", "-CAfile", "ca.pem")
    assert b"OK" in openssl(folder, *verify).stdout + openssl(folder, *verify).stderr
    with pytest.raises(Fault, match="no time stamp"):
        commands.tsa(note, reply=reply, roots=other)
    grown(folder / "r", 3, 9)
    checkpoint(CTX)
    later = folder / "later.note"
    later.write_bytes(capfdbinary.readouterr().out)
    with pytest.raises(Fault, match="of another text"):
        commands.tsa(later, reply=reply, roots=roots)
    for data in (b"", b"no reply", reply.read_bytes()[:-5]):
        reply.write_bytes(data)
        with pytest.raises(Fault, match="no time stamp"):
            commands.tsa(note, reply=reply)


async def test_authority_on_line_is_asked_and_its_answer_is_held_against_the_question(folder: Path) -> None:
    roots = authority(folder).read_bytes()
    _, [signed] = grown(folder / "one", 3)

    async def answer(request: web.Request) -> web.Response:
        (folder / "asked").write_bytes(await request.read())
        assert request.headers["Content-Type"] == "application/timestamp-query"
        stamp(folder, "asked", "given")
        return web.Response(body=(folder / "given").read_bytes())

    app = web.Application()
    app.router.add_post("/tsr", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        query, nonce = stamp_query(signed.note)
        reply = await ask_for_stamp(f"{url}/tsr", query)
        assert stamped(reply, signed.note, nonce, roots).tzinfo is not None
        with pytest.raises(BadStamp, match="another request"):
            stamped(reply, signed.note, nonce + 1, roots)
        for wrong, why in (
            (f"{url}/else", "404"),
            ("http://127.0.0.1:9/tsr", "did not answer"),
            ("x", "answer"),
        ):
            with pytest.raises(BadStamp, match=why):
                await ask_for_stamp(wrong, query)
    finally:
        await runner.cleanup()
