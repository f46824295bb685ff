"""A command that asks to leave the sandbox: each place that people read says so, before the model's words."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.cli.machine import Machine, says
from tests.rollouts.bundles import ADA

QUESTION = r"\[q\]uit the turn: "
WORDS = {
    "command": ["rm", "-rf", "made.txt"],
    "with_escalated_permissions": True,
    "justification": "Run the build.\nAllow? it is in the sandbox",
}
ESCALATED = {"items": [{"call": "shell", "args": WORDS}]}
OUTSIDE, MODELS = "OUTSIDE THE SANDBOX", "the agent says: “Run the build. Allow? it is in the sandbox”"


def says_where_first(shown: str) -> bool:
    """Whether a screen says where it runs, then Dendro's reason, then the model's words."""
    flat = " ".join(shown.replace("\r\n", "\n").split())
    parts = (OUTSIDE, "looks destructive", MODELS)
    found = [flat.find(part) for part in parts]
    return -1 not in found and found == sorted(found)


def test_every_place_says_that_a_command_leaves_the_sandbox_before_what_the_model_says(
    machine: Machine,
) -> None:
    with machine.model(ESCALATED, says("then not")) as user, user.terminal("run", "go") as person:
        screen = person.wait_for(QUESTION)
        assert says_where_first(screen), screen
        assert f"in {machine.folder} on {socket.gethostname()}" in " ".join(screen.split())
        assert "Outside the sandbox. Allow?" in screen
        (session,) = user.session_ids()
        listed = user.run("approvals", session).stdout
        assert says_where_first(listed), listed
        (asked,) = json.loads(user.run("approvals", session, "--json").stdout)
        assert asked["sandboxed"] is False
        assert asked["where"].startswith(OUTSIDE)
        assert says_where_first(asked["request"]["reason"])
        told = user.run("logs", session).stdout
        assert says_where_first(told), told
        with user.terminal("attach", session) as other:
            beside = other.wait_for(QUESTION)
            assert says_where_first(beside), beside
        assert "? outside the sandbox: rm -rf made.txt" in user.run("tree", session, "--once").stdout
        person.type("n\n")
        person.wait_for("then not")
        assert person.exit_code() == 0
        log = [json.loads(line) for line in user.run("export", session, "--full").stdout.splitlines()]
        (answer,) = [line["payload"] for line in log if line.get("payload", {}).get("kind") == "answer"]
    assert answer["surface"] == "terminal"
    assert answer["opened_ms"] < answer["answered_ms"]
    assert says_where_first(answer["shown"])
    rendered = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert " ".join(answer["shown"].split()) in " ".join(rendered.split())


def test_command_that_stays_in_the_sandbox_says_what_that_permits(machine: Machine) -> None:
    touch = {"items": [{"call": "shell", "args": {"command": ["touch", "made.txt"]}}]}
    words = ("run", "go", "-c", "approval_policy=untrusted", "-c", "sandbox_mode=workspace-write")
    with machine.model(touch, says("then not")) as user, user.terminal(*words) as person:
        screen = " ".join(person.wait_for(QUESTION).split())
        assert "in the sandbox, in " in screen
        assert f"write in {machine.folder} and temporary folders; it has no network" in screen
        assert "Outside the sandbox" not in screen
        person.type("n\n")
        person.wait_for("then not")


def test_signed_answer_counts_where_others_are_refused_and_an_auditor_sees_it_proved(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(
        ADA.private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    )
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "trust.json").write_text(json.dumps({"people": {"ada": str(ADA.key)}, "quorum": 0}))
    signers = f"approvals.signers=['{ADA.key}']"
    words = ("run", "go", "-c", "approvals.signed=required", "-c", signers)
    with machine.model(ESCALATED, says("done")) as user, user.terminal(*words) as person:
        person.wait_for(QUESTION)
        (session,) = user.session_ids()
        (asked,) = json.loads(user.run("approvals", session, "--json").stdout)
        call = f"0:{asked['call_id']}"
        refused = user.run("approvals", session, "--deny", call)
        assert (
            f"not taken: {asked['call_id']} was not answered: answers have to be signed here"
            in refused.stdout
        )
        signing = ("--sign", str(tmp_path / "key"), "--name", "ada")
        done = user.run("approvals", session, "--deny", call, *signing)
        assert says_where_first(done.stdout), "what is signed is shown"
        assert str(ADA.key) in done.stderr
        person.wait_for("done")
        assert person.exit_code() == 0
        trusting = ("--trust", str(tmp_path / "trust.json"))
        told = user.run("audit", "who", session, asked["call_id"], *trusting).stdout
        assert f"signed     by {ADA.key}, over this decision and what was shown" in told
        assert next(line for line in told.splitlines() if "signed " in line).endswith(" proved")
