"""`dendro token`, as a person types it."""

from __future__ import annotations

import re

from tests.cli.machine import Machine


def test_person_makes_lists_and_revokes_a_token(machine: Machine) -> None:
    made = machine.run("token", "new", "ci", "--scope", "approve", "--days", "3")
    assert re.fullmatch(r"dendro_[a-z2-7]{8}_[\w-]{43}\n", made.stdout)
    token_id, secret = made.stdout.strip().split("_", 2)[1:]
    listed = machine.run("token", "list").stdout
    assert f"{token_id}  ci  approve  your sessions  until 20" in listed
    assert secret not in listed
    assert machine.run("token", "revoke", token_id).returncode == 0
    again = machine.run("token", "revoke", token_id)
    assert again.returncode == 1
    assert "there is no token" in again.stderr


def test_scope_that_does_not_exist_is_refused_with_those_that_do(machine: Machine) -> None:
    refused = machine.run("token", "new", "ci", "--scope", "root")
    assert refused.returncode == 2
    assert "read, submit, approve, admin" in refused.stderr


def test_token_that_would_be_over_at_once_or_never_is_not_made(machine: Machine) -> None:
    for days in ("0", "-1", "nan", "inf", "1e300"):
        refused = machine.run("token", "new", "ci", "--days", days)
        assert (refused.returncode, "--days" in refused.stderr) == (2, True)
    assert "no tokens" in machine.run("token", "list").stdout


def test_person_says_where_the_sessions_of_a_token_work(machine: Machine) -> None:
    made = machine.run("token", "new", "ben", "--workspace", "portable")
    assert "ben  submit  your sessions  portable folders  until revoked" in made.stderr
    assert "portable folders" in machine.run("token", "list").stdout
    refused = machine.run("token", "new", "ben", "--workspace", "cloud")
    assert refused.returncode == 2
    assert "'cloud' is no kind of folder: host, portable" in refused.stderr
