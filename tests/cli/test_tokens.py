"""`dendro token`, as a person types it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.cli.token import _line, _lines, _link, revoke
from orchestrator.gateways.bearer_tokens import OfWindow, TokenRecord
from orchestrator.gateways.principals import Scope
from orchestrator.terminal.faults import Fault
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


TOKEN = TokenRecord("k7m2q4xa", "0" * 64, "ana", "", Scope.SUBMIT, 5)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "k7m2q4xa  ana  submit  your sessions  until revoked"),
        ({"scope": Scope.ADMIN}, "k7m2q4xa  ana  admin  your sessions  until revoked"),
        ({"namespace": "acme"}, "k7m2q4xa  ana  submit  namespace acme  until revoked"),
        ({"workspace": "portable"}, "k7m2q4xa  ana  submit  your sessions  portable folders  until revoked"),
        ({"workspace": "host"}, "k7m2q4xa  ana  submit  your sessions  host folders  until revoked"),
        ({"window": OfWindow()}, "k7m2q4xa  window of ana  submit  your sessions  until revoked"),
        ({"expires_ms": 1_000}, "k7m2q4xa  ana  submit  your sessions  over since 19"),
        ({"expires_ms": 4_000_000_000_000}, "k7m2q4xa  ana  submit  your sessions  until 2096-"),
        (
            {"window": OfWindow("parent"), "namespace": "acme", "expires_ms": 1_000},
            "k7m2q4xa  window of ana  submit  namespace acme  over since 19",
        ),
    ],
)
def test_list_says_of_each_token_whose_it_is_how_far_it_reaches_and_until_when(
    changes: dict[str, Any], line: str
) -> None:
    assert _line(replace(TOKEN, **changes)).startswith(line)
    listed = list(_lines([TOKEN, replace(TOKEN, **changes)], ["k3\x1b[2J"]))
    assert listed[1].startswith(line)
    assert listed[2].startswith("k3␛[2J  cannot be read, and lets nobody in: dendro token revoke ")


@pytest.mark.parametrize(
    ("at", "link"),
    [
        (None, None),
        ("https://dendro.example", "https://dendro.example/#c="),
        ("http://127.0.0.1:4600/", "http://127.0.0.1:4600/#c="),
        ("http://[::1]:4600", "http://[::1]:4600/#c="),
    ],
)
def test_link_of_a_code_leads_to_the_first_page_of_the_window(at: str | None, link: str | None) -> None:
    assert _link(at) == link


@pytest.mark.parametrize(
    "at", ["dendro.example", "ws://h:1", "https://", "https://h/fleet", "https://h/?a=b"]
)
def test_code_has_no_link_to_what_is_no_address_of_a_window(at: str) -> None:
    with pytest.raises(ValueError, match="is no address of a window"):
        _link(at)


@pytest.mark.parametrize("id", ["x\udce9", "café", "\ud800"])
def test_id_that_no_token_has_is_that_of_none(id: str) -> None:
    """Bytes of another encoding are no question that Redis could be asked."""
    with pytest.raises(Fault, match="there is no token"):
        revoke(cast(Any, None), id)
