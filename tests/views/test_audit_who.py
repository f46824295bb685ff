"""An auditor's questions: who let a call run, where, and what requests have cost, from the entries alone."""

from __future__ import annotations

import base64
from hashlib import sha256
from itertools import product

import pytest

from orchestrator.broker.records import Spend
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.calls import MergeWork, Phase
from orchestrator.core.facts import Answered, CallMoved, Claimed, WorkspaceSaved
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.sender import Sender
from orchestrator.core.tokens import Price
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.signed_notes import Signers
from orchestrator.views.audit_cost import Total, cost
from orchestrator.views.audit_questions import file
from orchestrator.views.audit_who import Logs, who
from tests.core.driver import USAGE, Session, a_command, exec_end, op, text
from tests.rollouts.bundles import ADA, OPERATOR

ANN = Sender("ann@host", "", "admin", "terminal", "machine")
BEN = Sender("ben", "", "approve", "app-server", "ab12")


def logs_of(session: Session) -> Logs:
    logs = Logs()
    for seq, line in enumerate(session.lines, 1):
        logs.add("s1", seq, 0 if seq == 1 else 1, line)
    return logs


def asked(session: Session) -> None:
    """Ann asks for something, and the model for a command that a person has to allow."""
    worker = Claimed("w1", "build-2", "uid:7", "0.2", sandbox={"kind": "bubblewrap"}, settings="5f0c" * 16)
    session.record(e.fact(worker))
    session.submit(op("user_input", items=[text("go")]), "u1", by=ANN)
    session.begin()
    session.calls("call_1")
    session.ends(usage=USAGE)
    session.assessed("call_1", a_command("make", "install"))


async def test_auditor_is_told_who_allowed_a_command_for_whom_and_where_it_ran() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    session.decides("call_1", "approved", by=BEN, who="ben")
    session.finishes("call_1")
    [found] = [one async for one in who(logs_of(session), "make*")]
    assert (found.call_id, found.command, found.decision) == ("call_1", "make install", "approved")
    assert found.by == "ben (scope approve, token ab12) through app-server"
    assert found.behalf == "ann@host (scope admin, token machine) through terminal"
    assert found.worker.startswith("w1 on build-2 (version 0.2, bubblewrap, settings 5f0c5f0c")
    lines = [e.decode_entry(line).payload for line in session.lines]
    assert lines[int(found.by_entry.partition(":")[2]) - 1]["kind"] == "answer"
    assert lines[int(found.behalf_entry.partition(":")[2]) - 1]["kind"] == "task"
    assert lines[int(found.worker_entry.partition(":")[2]) - 1]["kind"] == "claimed"
    assert [one async for one in who(logs_of(session), "call_1")] == [found]
    assert [one async for one in who(logs_of(session), "rm*")] == []
    assert [one async for one in who(logs_of(session), "make*", "2100")] == []


@pytest.mark.parametrize(("session_id", "signed"), [("s1", True), ("another", False)])
async def test_signature_under_an_answer_is_held_against_the_persons_key(
    session_id: str, signed: bool
) -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    nothing = sha256(b"").hexdigest()
    request = session.call("call_1").request
    said = c.signed_answer(session_id, "u1", "call_1", "approved", session.now_ms, nothing, request=request)
    sig = base64.b64encode(ADA.private.sign(said.encode())).decode()
    given = c.Signature(session.now_ms, sig, str(ADA.key), "call_1", "u1", request=request)
    session.decides("call_1", "approved", by=BEN, who="ben", signature=given)
    [found] = [one async for one in who(logs_of(session), "call_1", "", Signers([ADA.key]))]
    assert (found.key, found.signed) == (str(ADA.key), signed)
    [unknown] = [one async for one in who(logs_of(session), "call_1", "", Signers([OPERATOR.key]))]
    assert unknown.signed is None


@pytest.mark.parametrize("forged", [0, 1])
async def test_forged_signature_is_told_also_where_the_call_has_another_answer(forged: int) -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    for answer in range(2):
        at_ms = session.now_ms + answer
        of = "another" if answer == forged else "s1"
        about, request = (of, "u1", "call_1", "approved", at_ms), session.call("call_1").request
        said = c.signed_answer(*about, sha256(b"").hexdigest(), request=request)
        sig = base64.b64encode(ADA.private.sign(said.encode())).decode()
        given = c.Signature(at_ms, sig, str(ADA.key), "call_1", "u1", request=request)
        session.decides("call_1", "approved", by=BEN, who="ben", signature=given)
        ended = (exec_end("call_1", 1),)
        session.finishes("call_1", "denied", events=ended, sandbox_denied=answer == 0)
    logs = logs_of(session)
    [found] = [one async for one in who(logs, "call_1", "", Signers([ADA.key]))]
    assert found.signed is False
    lines = [e.decode_entry(line).payload for line in session.lines]
    answers = [seq for seq, line in enumerate(lines, 1) if line.get("kind") == "answer"]
    assert found.by_entry == f"s1:{answers[forged]}"
    assert {f"s1:{seq}" for seq in answers} <= {*found.entries}


async def test_answer_that_nobody_signed_is_not_proved_by_the_signature_before_it() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    request, nothing = session.call("call_1").request, sha256(b"").hexdigest()
    said = c.signed_answer("s1", "u1", "call_1", "approved", session.now_ms, nothing, request=request)
    sig = base64.b64encode(ADA.private.sign(said.encode())).decode()
    given = c.Signature(session.now_ms, sig, str(ADA.key), "call_1", "u1", request=request)
    session.decides("call_1", "approved", by=BEN, who="ben", signature=given)
    session.finishes("call_1", "denied", events=(exec_end("call_1", 1),), sandbox_denied=True)
    session.decides("call_1", "approved", by=BEN, who="ben")
    [found] = [one async for one in who(logs_of(session), "call_1", "", Signers([ADA.key]))]
    assert (found.decision, found.key, found.signed) == ("approved", "", None)


async def test_answer_for_an_agent_whose_call_has_the_same_id_is_none_about_the_roots_call() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    session.decides("call_1", "approved", by=BEN, who="ben")
    session.finishes("call_1")
    agents = Answered(CallId("call_1"), SubmissionId("u1"), "denied", "cem", agent_id=AgentId(1), by=ANN)
    session.record(e.fact(agents))
    [found] = [one async for one in who(logs_of(session), "make*")]
    assert (found.decision, found.by) == ("approved", "ben (scope approve, token ab12) through app-server")


async def test_answer_for_an_agent_is_no_entry_of_the_roots_call_behind_a_forged_one() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    sig = base64.b64encode(ADA.private.sign(b"something else")).decode()
    request = session.call("call_1").request
    given = c.Signature(session.now_ms, sig, str(ADA.key), "call_1", "u1", request=request)
    session.decides("call_1", "approved", by=BEN, who="ben", signature=given)
    session.finishes("call_1")
    agents = Answered(CallId("call_1"), SubmissionId("u1"), "denied", "cem", agent_id=AgentId(1), by=ANN)
    session.record(e.fact(agents))
    [found] = [one async for one in who(logs_of(session), "call_1", "", Signers([ADA.key]))]
    assert (found.signed, found.by) == (False, "ben (scope approve, token ab12) through app-server")
    assert f"s1:{len(session.lines)}" not in found.entries


async def test_command_that_nobody_was_asked_about_names_the_policy_that_let_it_run() -> None:
    session = Session(settings={"approval_policy": "never"})
    asked(session)
    [found] = [one async for one in who(logs_of(session), "make install")]
    assert (found.decision, found.by) == ("", "")
    assert found.unasked.startswith("approvals never, sandbox ")


async def test_cost_is_summed_by_who_gave_the_task_and_an_unknown_price_is_not_zero() -> None:
    session = Session()
    for number, (by, price) in enumerate([(ANN, Price(250, 1.0, 0.1, 2.0)), (BEN, None)]):
        session.submit(op("user_input", items=[text("go")]), f"u{number}", by=by)
        n = session.begin()
        session.happens(c.ResponseCompleted(n, f"r{number}", USAGE, price=price))
    total = Total()
    found = {group.name: group for group in await cost(logs_of(session), "behalf", total)}
    assert found["ann@host"].cost_micro == 250
    assert found["ann@host"].unpriced == 0
    assert (found["ben"].cost_micro, found["ben"].unpriced) == (0, 1)
    assert [group.requests for group in found.values()] == [1, 1]
    assert {group.name for group in await cost(logs_of(session), "token")} == {"machine", "ab12"}
    assert [group.name for group in await cost(logs_of(session), "agent")] == ["0"]
    tokens = 2 * USAGE["total_tokens"]
    assert total.compared(Spend(tokens, 250, 2)) == ""
    assert total.compared(Spend(tokens, 900, 2)) == "", "a request without a price had one at the registry"
    assert "249 millionths of a dollar by the tree's registry, 250" in total.compared(Spend(tokens, 249, 2))
    assert "3 requests by the tree's registry, 2 by the logs" in total.compared(Spend(tokens, 250, 3))


async def test_call_that_was_approved_for_the_session_names_the_entry_that_says_so() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    asked(session)
    session.decides("call_1", "approved_for_session", by=BEN, who="ben")
    session.finishes("call_1")
    session.asks_for("call_2")
    session.assessed("call_2", a_command("make", "install"))
    found = [one async for one in who(logs_of(session), "call_2")]
    assert found[0].unasked.endswith("approved for the session")
    kinds = [e.decode_entry(line).payload.get("kind") for line in session.lines]
    assert f"s1:{kinds.index('approved_for_session') + 1}" in found[0].entries


async def test_log_with_a_fact_that_lacks_a_field_is_not_answered_from() -> None:
    session = Session(settings={"approval_policy": "never"})
    asked(session)
    logs = logs_of(session)
    logs.add(
        "s1", len(session.lines) + 1, 1, b'{"type":"dendro","payload":{"kind":"answer","call_id":"call_1"}}'
    )
    with pytest.raises(RolloutError, match=f"s1:{len(session.lines) + 1}: it lacks a field"):
        [one async for one in who(logs, "*")]


async def test_fact_of_a_kind_that_this_version_does_not_know_is_passed_over() -> None:
    session = Session(settings={"approval_policy": "never"})
    asked(session)
    logs = logs_of(session)
    logs.add("s1", len(session.lines) + 1, 1, b'{"type":"dendro","payload":{"kind":"of_tomorrow"}}')
    assert len([one async for one in who(logs, "*")]) == 1


async def test_merge_in_the_sandbox_is_told_to_have_run_there() -> None:
    session = Session(settings={"approval_policy": "never"})
    asked(session)
    logs = logs_of(session)
    merge = MergeWork((), AgentId(1), None, SnapshotId("c0ffee"), (), 1, ("a.py",))
    line = e.encode_entry(e.fact(CallMoved(CallId("call_1"), Phase.RUNNING, 1, merge)), 1, {}).line
    logs.add("s1", len(session.lines) + 1, 1, line)
    [found] = [one async for one in who(logs, "call_1")]
    assert found.sandboxed is True


@pytest.mark.parametrize("names", list(product([True, False], repeat=3)))
@pytest.mark.parametrize("in_snapshot", [(0, 1, 2), (0, 1), (1, 2), (2,)])
async def test_all_commands_before_a_snapshot_are_told_of_a_file_that_has_changed_in_it(
    names: tuple[bool, ...], in_snapshot: tuple[int, ...]
) -> None:
    session = Session(settings={"approval_policy": "never", "sandbox_policy": {"mode": "danger-full-access"}})
    session.submit(op("user_input", items=[text("go")]), "u1", by=ANN)
    calls = [CallId(f"call_{number}") for number in range(len(names))]
    for call, named in zip(calls, names, strict=True):
        session.begin()
        session.calls(call)
        session.ends(usage=USAGE)
        session.assessed(call, a_command("touch" if named else "make", "a.txt" if named else "all"))
        session.finishes(call, "ok", events=(exec_end(call),))
    between = tuple(calls[number] for number in in_snapshot)
    pack = Pack("packs/1", "ab" * 32, 10, whole=True)
    saved = WorkspaceSaved(SnapshotId("c0ffee"), None, pack, FileCounts(1, 0, 0), ("a.txt",), between, 1)
    session.record(e.fact(saved))
    told = [one.values async for one in file(logs_of(session), "a.txt")]
    assert [one["call"] for one in told if one["what"] == "exec"] == [
        *(call for call, named in zip(calls, names, strict=True) if named),
        *(call for call, named in zip(calls, names, strict=True) if call in between and not named),
    ]
    (snapshot,) = [one for one in told if one["what"] == "snapshot"]
    assert snapshot["calls"] == list(between)
