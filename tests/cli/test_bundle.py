"""`dendro bundle`: a tree as one file, and what it shows without a server."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.rollouts.signed_notes import VerifierKey
from tests.cli.machine import Machine
from tests.cli.parked_tree import TESTS, ParkedTree, parked_tree
from tests.rollouts.test_bundle_check import example

pytestmark = pytest.mark.realredis
NOWHERE = "unix:///nowhere/redis.sock"
ORIGIN = "fleet.example/home"


def stranger(path: Path) -> set[str]:
    """The findings of the checker that has nothing of ours."""
    return {code for code, *_ in example().Check(path).run()}


def key_file(folder: Path) -> VerifierKey:
    """Writes a key to sign by; answers the one to check by."""
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / "key").write_bytes(pem)
    return VerifierKey.of(ORIGIN, private.public_key().public_bytes_raw())


def noted(found: ParkedTree, bundle: Path, key: VerifierKey) -> None:
    """The log of the root says that the bundle was made, and its chain holds behind that."""
    with zipfile.ZipFile(bundle) as archive:
        manifest = archive.read("manifest.json")
    [line] = found.says("audit", "redactions", found.root, "--json").splitlines()
    told = json.loads(line)
    size = next(log["size"] for log in json.loads(manifest)["logs"] if log["id"] == f"session:{found.root}")
    assert (told["digest"], told["key"]) == (sha256(manifest).hexdigest(), str(key))
    assert (told["up_to"], told["sessions"]) == (f"{found.root}:{size}", 8)
    assert told["by"]["via"] == "cli"
    assert "entries follow" in found.says("verify", found.root)
    assert found.run("bundle", found.root, "-o", "again.zip", "--unnoted").returncode == 0
    assert found.says("audit", "redactions", found.root, "--json").count("bundled") == 1


def receipted(found: ParkedTree, folder: Path, key: VerifierKey) -> None:
    """A notary states the tree, and a bundle with receipts shows that they are of it."""
    url = (folder / "register").as_uri()
    register = ("-c", f'receipts.url="{url}"', "-c", 'receipts.name="fleet.example"')
    bundle = ("bundle", found.root, "-o", "seen.zip", "--receipts", "all", "--key", "key", *register)
    assert "no register yet" in found.refused(*bundle)[1]
    notary = found.says("notary", "init", *register).strip()
    assert notary.startswith(f"{ORIGIN}+")
    assert "never made anew" in found.refused("notary", "init", *register)[1]
    assert found.run("notary", "run", "--once", *register).returncode == 0
    assert f"{ORIGIN}  " in found.says("notary", "status", *register)
    assert "is of fleet.example/home" in found.refused(*bundle, "--origin", "other/home")[1]
    done = found.run(*bundle)
    assert done.returncode == 0, done.stderr
    (folder / "trust.json").write_text(json.dumps({"log": [notary, str(key)]}))
    (folder / "r.json").write_text(found.says("receipt", found.root, *register))
    seen = found.says("verify", "seen.zip", "--trust", "trust.json", "--receipt", "r.json")
    assert "all of them under receipts" in seen
    assert "it continues the checkpoint that you had" in seen


def test_tree_is_bundled_and_a_stranger_checks_it_by_the_key_alone(machine: Machine) -> None:
    with parked_tree(machine) as found:
        folder = Path(found.machine.folder)
        key = key_file(folder)
        signed = ("--key", "key", "--origin", ORIGIN)
        done = found.run("bundle", found.root, "-o", "run.zip", *signed)
        assert done.returncode == 0, done.stderr
        assert str(key) in done.stderr, "whoever checks it needs the key"
        assert "warning" not in done.stderr
        noted(found, folder / "run.zip", key)
        refused = found.refused("bundle", found.root, "-o", "x.zip", "--withhold", f"{found.root}:2")
        assert refused[0] == 1
        assert "cannot be withheld" in refused[1]
        assert not (folder / "x.zip").exists()
        named = found.refused("redact", found.root, "2", "--why", "a name")
        assert (named[0], "cannot be redacted: it says whose log it is" in named[1]) == (1, True)
        listed = found.says("redact", found.root, "--find", "Survey this repository", "--dry-run")
        assert listed.startswith(f"goes   {found.root}:")
        busy = found.refused("redact", found.root, "--find", "Survey this repository", "--why", "a name")
        assert (busy[0], "it is redacted at rest" in busy[1]) == (1, True)
        agent = found.agent(TESTS)["session_id"]
        back = ("--withhold", f"{found.root[-8:]}:9", "--withhold", "tree:3", "--withhold", agent[-8:])
        own = found.run("bundle", found.root, "-o", "less.zip", *back)
        assert own.returncode == 0, own.stderr
        assert "withheld   2 entries, 1 session left out" in own.stderr
        [kept] = (folder.parent / "home").glob("**/bundle.key")
        assert kept.stat().st_mode & 0o777 == 0o600
        assert "findings   none" in found.says("bundle", "--open", "run.zip")
        assert stranger(folder / "run.zip") == stranger(folder / "less.zip") == set()
        receipted(found, folder, key)
        assert found.run("export", found.root, "root.jsonl").returncode == 0
        assert "of the tree's log: not proved by this file" in found.says("verify", "root.jsonl")
        proved = found.says("verify", "root.jsonl", "--tree-from", "run.zip")
        assert "of the tree's log, as the bundle has it" in proved
        assert "not proved by this file" not in proved
        told = (folder / "root.jsonl").read_text()
        (folder / "other.jsonl").write_text(told.replace('"label":"hello"', '"label":"jello"'))
        otherwise = found.run("verify", "other.jsonl", "--tree-from", "run.zip")
        assert (otherwise.returncode, "the bundle has another one" in otherwise.stdout) == (1, True)
        imported = found.run("import", "run.zip", "--trust")
        assert imported.returncode == 0, imported.stderr
        assert "7 agents of its tree stay in the bundle" in imported.stderr
        assert "entries follow" in found.says("verify", imported.stdout.strip())
        refused = found.refused("import", "less.zip")
        assert refused[0] == 1
        assert "entry 9 has no text in it" in refused[1]
    alone = replace(found.machine, environ={**found.machine.environ, "DENDRO_REDIS_URL": NOWHERE})
    (folder / "trust.json").write_text(json.dumps({"log": [str(key)], "quorum": 0}))
    held = alone.run("verify", "run.zip", "--trust", "trust.json")
    assert held.returncode == 0, held.stdout + held.stderr
    assert "signed by a key you trust (proved)" in held.stdout
    assert "8 sessions and the tree's log" in held.stdout
    unknown = alone.run("verify", "less.zip")
    assert unknown.stdout.startswith("bundle     agrees with itself; who made it is not shown\n")
    assert "2 entries withheld by who made the bundle; 1 session left out" in unknown.stdout
    assert "signed, by a key that you did not name" in unknown.stdout
    strange = alone.run("verify", "less.zip", "--trust", "trust.json")
    assert (strange.returncode, "FINDING    signer" in strange.stdout) == (1, True)
