"""Answers under a person's signature, which counts for its request alone."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson
import pytest

from orchestrator.core.calls.ask import digest_of
from orchestrator.core.commands import signed_answer
from orchestrator.core.commit_parts import OpenRequest
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol import ops
from orchestrator.protocol.plans import RequestUserInputAnswer, RequestUserInputResponse
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of as request_of_event
from orchestrator.rollouts.signed_notes import REQUESTS, Signers
from orchestrator.runtime.sq_entries import MOST_KEY
from orchestrator.views.approvals import Asked, signed
from tests.core.driver import RULES
from tests.rollouts.bundles import ADA, OPERATOR
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends

SHOWN = "run c1, OUTSIDE THE SANDBOX"
REQUIRED = replace(RULES, signed_answers="required")


async def signature(
    harness: Harness,
    session: SessionId,
    turn: str = "u1",
    call: str = "c1",
    decision: str = "approved",
    **other: Any,
) -> ops.AnswerSignature:
    """Ada's, over an answer; `other` are the session that it names, the time, the text that was shown, the
    request, the digest of words, and the key that is named."""
    at_ms = other.get("at_ms", time.time_ns() // 1_000_000)
    said = signed_answer(
        other.get("named", session),
        turn,
        call,
        decision,
        at_ms,
        sha256(other.get("shown", SHOWN).encode()).hexdigest(),
        request=other["request"] if "request" in other else await request_of(harness, session),
        response=other.get("response", ""),
    )
    sig = base64.b64encode(ADA.private.sign(said.encode())).decode()
    return ops.AnswerSignature(answered_ms=at_ms, sig=sig, key=other.get("key", str(ADA.key)))


async def request_of(harness: Harness, session: SessionId) -> str:
    """The digest of the last request, of the bytes in the log."""
    lines = [entry.payload for entry in await harness.log(session)]
    last = [line for line in lines if json.loads(line)["payload"].get("type") in REQUESTS][-1]
    return sha256(last[40:]).hexdigest()


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
    signed = await signature(harness, session, "u1")
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
        "session": await signature(harness, session, named="another"),
        "turn": await signature(harness, session, "u0"),
        "call": await signature(harness, session, "u1", "c2"),
        "decision": await signature(harness, session, "u1", decision="denied"),
        "shown": await signature(harness, session, "u1", shown="in the sandbox"),
        "stranger": await signature(harness, session, "u1", key=str(OPERATOR.key)),
        "nonsense": ops.AnswerSignature(answered_ms=1, sig="!", key="ada"),
    }[kind]
    await harness.submit(session, answer(signed))
    await harness.run(session, rules=REQUIRED)
    (error,) = await harness.logged_events(session, "error")
    why = {"none": "answers have to be signed here", "stranger": "approvals.signers names no key"}
    assert why.get(kind, "its signature is none of 'ada") in error["message"]
    assert error["message"].endswith("it stays open")
    assert (harness.tools.started, await harness.facts(session, "answer")) == ({}, [])
    await harness.submit(session, answer(await signature(harness, session, "u1")))
    await harness.run(session, rules=REQUIRED)
    assert harness.tools.started == {"c1": 1}


@pytest.mark.parametrize("call", ["c\n1", "c1\n", "c\t1"])
async def test_request_whose_name_could_be_two_lines_is_answered_under_no_signature(
    harness: Harness, call: str
) -> None:
    """A name is a line of what is signed: with two lines it would sign another answer, too."""
    harness.ports = replace(harness.ports, signers=Signers([ADA.key]))
    harness.models.will([calls(call, ask=True), ends()], [ends()])
    session = await harness.session("untrusted")
    await harness.say(session, id="u1")
    await harness.run(session, rules=REQUIRED)
    signed = answer(await signature(harness, session, call=call)).model_copy(update={"id": call})
    await harness.submit(session, signed)
    await harness.run(session, rules=REQUIRED)
    assert (harness.tools.started, await harness.facts(session, "answer")) == ({}, [])
    (error,) = await harness.logged_events(session, "error")
    assert "its signature is for no request that is open" in error["message"]


def words(signed: ops.AnswerSignature | None, said: str = "A") -> ops.UserInputAnswer:
    given = RequestUserInputResponse(answers={"q": RequestUserInputAnswer(answers=(said,))})
    shown = ops.Shown(text=SHOWN, surface="cli", opened_ms=1)
    return ops.UserInputAnswer(id="c1", response=given, shown=shown, signature=signed)


@pytest.mark.parametrize("secret", [False, True])
async def test_words_of_a_person_count_under_a_signature_over_them_that_tells_no_secret(
    harness: Harness, secret: bool
) -> None:
    harness.ports = replace(harness.ports, signers=Signers([ADA.key]))
    question = {"id": "q", "header": "Q", "question": "Which?", "isOther": True, "isSecret": secret}
    harness.models.will([calls("c1", "request_user_input", questions=[question]), ends()], [ends()])
    session = await harness.session()
    await harness.say(session, id="u1")
    await harness.run(session, rules=REQUIRED)
    told = digest_of(written(words(None).response))
    right = await signature(harness, session, decision="answered", response="" if secret else told)
    refused = [None, await signature(harness, session, decision="answered", response=told if secret else "")]
    for wrong in refused:
        await harness.submit(session, words(wrong))
        await harness.run(session, rules=REQUIRED)
        assert await harness.facts(session, "answer") == []
    assert len(await harness.logged_events(session, "error")) == len(refused)
    await harness.submit(session, words(right))
    await harness.run(session, rules=REQUIRED)
    (fact,) = await harness.facts(session, "answer")
    assert (fact["sig"], fact["shown"], fact.get("digest", "")) == (right.sig, SHOWN, "" if secret else told)
    assert fact["request"] == await request_of(harness, session)


async def test_signature_over_another_request_than_the_worker_has_asked_counts_for_none(
    harness: Harness,
) -> None:
    session = await asked(harness, rules=REQUIRED)
    (opened,) = await harness.broker.requests.approvals_of([harness.broker.keys.shard_of(TreeId(session))])
    told = OpenRequest.read(orjson.loads(opened.payload))
    request = request_of_event(told.event, told.sandboxed)
    one = Asked(session, TreeId(session), 0, "0", "c1", 1, request, 1, turn=told.turn, digest=told.digest)
    shown = ops.Shown(text=SHOWN, surface="cli", opened_ms=1)
    at_ms = time.time_ns() // 1_000_000
    forged = {**one.request.event, "command": ["ls"]}
    for event, started in ((forged, {}), (one.request.event, {"c1": 1})):
        shown_one = replace(one, request=replace(one.request, event=event))
        op = signed(shown_one, answer(None), ADA, shown, at_ms)
        assert isinstance(op, ops.ExecApproval)
        await harness.submit(session, op)
        await harness.run(session, rules=REQUIRED)
        assert harness.tools.started == started


@pytest.mark.parametrize("ms", [-601_000, 301_000])
async def test_signature_of_another_time_is_refused(harness: Harness, ms: int) -> None:
    session = await asked(harness)
    at_ms = time.time_ns() // 1_000_000 + ms
    await harness.submit(session, answer(await signature(harness, session, "u1", at_ms=at_ms)))
    await harness.run(session)
    (error,) = await harness.logged_events(session, "error")
    assert "its signature is older than ten minutes, or of a time that is still to come" in error["message"]
    assert harness.tools.started == {}


async def test_forged_signature_in_the_name_of_a_known_key_is_refused_also_where_none_is_asked_for(
    harness: Harness,
) -> None:
    session = await asked(harness)
    await harness.submit(session, answer(await signature(harness, session, "u1", decision="denied")))
    await harness.run(session)
    assert harness.tools.started == {}


async def test_signature_of_somebody_whom_the_worker_does_not_know_is_kept_for_an_auditor(
    harness: Harness,
) -> None:
    session = await asked(harness)
    await harness.submit(session, answer(await signature(harness, session, "u1", key=str(OPERATOR.key))))
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
    await harness.submit(session, answer(await signature(harness, session, "u1", key=str(OPERATOR.key))))
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
    await harness.submit(
        session, answer(await signature(harness, session, "u1", key=name + "x" * (most - len(name))))
    )
    await harness.run(session)
    assert harness.tools.started == started


async def test_text_of_another_length_than_a_signatures_is_refused_also_under_a_strangers_name(
    harness: Harness,
) -> None:
    session = await asked(harness)
    signed = await signature(harness, session, "u1", key="eve")
    longer = base64.b64encode(base64.b64decode(signed.sig) + b"x").decode()
    await harness.submit(session, answer(signed.model_copy(update={"sig": longer})))
    await harness.run(session)
    (error,) = await harness.logged_events(session, "error")
    assert "64 bytes in base64" in error["message"]
    assert harness.tools.started == {}
