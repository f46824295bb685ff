"""Answers under a person's signature, which counts for its request alone."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from orchestrator.core.commands import signed_answer
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.rollouts.signed_notes import Signers
from orchestrator.runtime.intake import MOST_KEY
from tests.core.driver import RULES
from tests.rollouts.bundles import ADA, OPERATOR
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends

SHOWN = "run c1, OUTSIDE THE SANDBOX"
REQUIRED = replace(RULES, signed_answers="required")


def signature(
    session: str, turn: str, call: str = "c1", decision: str = "approved", **other: Any
) -> ops.AnswerSignature:
    """Ada's, over an answer; `other` are the time, the text that was shown, and the key that is named."""
    at_ms = other.get("at_ms", time.time_ns() // 1_000_000)
    digest = sha256(other.get("shown", SHOWN).encode()).hexdigest()
    said = signed_answer(session, turn, call, decision, at_ms, digest)
    sig = base64.b64encode(ADA.private.sign(said.encode())).decode()
    return ops.AnswerSignature(answered_ms=at_ms, sig=sig, key=other.get("key", str(ADA.key)))


def answer(signed: ops.AnswerSignature | None, decision: str = "approved") -> ops.ExecApproval:
    shown = ops.Shown(text=SHOWN, surface="cli", opened_ms=1)
    return ops.ExecApproval(id="c1", decision=ReviewDecision(decision), shown=shown, signature=signed)


async def asked(harness: Harness, turn: str = "u1", **rules: Any) -> SessionId:
    """A session whose call waits in `turn`, on a worker that knows Ada's key."""
    harness.ports = replace(harness.ports, signers=Signers([ADA.key]))
    harness.models.will([calls("c1", ask=True), ends()], [ends()])
    session = await harness.session("untrusted")
    await harness.say(session, id=turn)
    await harness.run(session, **rules)
    return session


async def test_signed_answer_counts_and_the_log_has_signature_and_the_time_that_was_signed(
    harness: Harness,
) -> None:
    session = await asked(harness, rules=REQUIRED)
    signed = signature(session, "u1")
    await harness.submit(session, answer(signed))
    await harness.run(session, rules=REQUIRED)
    assert harness.tools.started == {"c1": 1}
    (fact,) = await harness.facts(session, "answer")
    assert (fact["sig"], fact["key"]) == (signed.sig, str(ADA.key))
    assert fact["answered_ms"] == signed.answered_ms


@pytest.mark.parametrize(
    "kind", ["none", "session", "turn", "call", "decision", "shown", "stranger", "nonsense"]
)
async def test_answer_without_a_signature_for_it_is_refused_and_the_request_stays_open(
    harness: Harness, kind: str
) -> None:
    session = await asked(harness, rules=REQUIRED)
    signed = {
        "none": None,
        "session": signature("another", "u1"),
        "turn": signature(session, "u0"),
        "call": signature(session, "u1", "c2"),
        "decision": signature(session, "u1", decision="denied"),
        "shown": signature(session, "u1", shown="in the sandbox"),
        "stranger": signature(session, "u1", key=str(OPERATOR.key)),
        "nonsense": ops.AnswerSignature(answered_ms=1, sig="!", key="ada"),
    }[kind]
    await harness.submit(session, answer(signed))
    await harness.run(session, rules=REQUIRED)
    (error,) = await harness.logged_events(session, "error")
    why = {"none": "approvals have to be signed here", "stranger": "approvals.signers names no key"}
    assert why.get(kind, "its signature is none of 'ada") in error["message"]
    assert error["message"].endswith("it stays open")
    assert (harness.tools.started, await harness.facts(session, "answer")) == ({}, [])
    await harness.submit(session, answer(signature(session, "u1")))
    await harness.run(session, rules=REQUIRED)
    assert harness.tools.started == {"c1": 1}


@pytest.mark.parametrize("ms", [-601_000, 301_000])
async def test_signature_of_another_time_is_refused(harness: Harness, ms: int) -> None:
    session = await asked(harness)
    at_ms = time.time_ns() // 1_000_000 + ms
    await harness.submit(session, answer(signature(session, "u1", at_ms=at_ms)))
    await harness.run(session)
    (error,) = await harness.logged_events(session, "error")
    assert "its signature is older than ten minutes, or of a time that is still to come" in error["message"]
    assert harness.tools.started == {}


async def test_forged_signature_in_the_name_of_a_known_key_is_refused_also_where_none_is_asked_for(
    harness: Harness,
) -> None:
    session = await asked(harness)
    await harness.submit(session, answer(signature(session, "u1", decision="denied")))
    await harness.run(session)
    assert harness.tools.started == {}


async def test_signature_of_somebody_whom_the_worker_does_not_know_is_kept_for_an_auditor(
    harness: Harness,
) -> None:
    session = await asked(harness)
    await harness.submit(session, answer(signature(session, "u1", key=str(OPERATOR.key))))
    await harness.run(session)
    (fact,) = await harness.facts(session, "answer")
    assert fact["key"] == str(OPERATOR.key)


async def test_unsigned_answer_counts_with_a_warning_where_signatures_are_wanted(harness: Harness) -> None:
    wanted = replace(RULES, signed_answers="wanted")
    session = await asked(harness, rules=wanted)
    await harness.submit(session, answer(None))
    await harness.run(session, rules=wanted)
    assert harness.tools.started == {"c1": 1}
    (warning,) = await harness.logged_events(session, "warning")
    assert "c1 was decided without a signature" in warning["message"]


async def test_signature_of_a_stranger_counts_with_a_warning_where_signatures_are_wanted(
    harness: Harness,
) -> None:
    wanted = replace(RULES, signed_answers="wanted")
    session = await asked(harness, rules=wanted)
    await harness.submit(session, answer(signature(session, "u1", key=str(OPERATOR.key))))
    await harness.run(session, rules=wanted)
    assert harness.tools.started == {"c1": 1}
    (warning,) = await harness.logged_events(session, "warning")
    assert "c1 was decided under a key that approvals.signers does not name" in warning["message"]


@pytest.mark.parametrize(("most", "started"), [(MOST_KEY, {"c1": 1}), (MOST_KEY + 1, {})])
async def test_signature_of_a_stranger_is_kept_up_to_its_bounds(
    harness: Harness, most: int, started: dict[str, int]
) -> None:
    session = await asked(harness)
    name = str(OPERATOR.key)
    await harness.submit(session, answer(signature(session, "u1", key=name + "x" * (most - len(name)))))
    await harness.run(session)
    assert harness.tools.started == started


async def test_text_of_another_length_than_a_signatures_is_refused_also_under_a_strangers_name(
    harness: Harness,
) -> None:
    session = await asked(harness)
    signed = signature(session, "u1", key="eve")
    longer = base64.b64encode(base64.b64decode(signed.sig) + b"x").decode()
    await harness.submit(session, answer(signed.model_copy(update={"sig": longer})))
    await harness.run(session)
    (error,) = await harness.logged_events(session, "error")
    assert "64 bytes in base64" in error["message"]
    assert harness.tools.started == {}
