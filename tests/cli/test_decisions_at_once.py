"""All the ways in which `dendro approvals` answers, at once: each answer counts once, signed if it can be."""

from __future__ import annotations

from itertools import combinations
from typing import Any, cast

import pytest

from orchestrator.cli.approvals import Words, _answer
from orchestrator.core.commands import AnswerOp
from orchestrator.core.decide.call import reply_of
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways import submit
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import request_of
from orchestrator.terminal.faults import Fault
from orchestrator.views import Contradiction, decided_requests
from orchestrator.views import approvals as views
from orchestrator.views.approvals import NOT_TAKEN, Asked, Decided, Needed
from tests.requests.test_answers import ASKS, PREFIX
from tests.rollouts.bundles import ADA

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
EVENTS = {**ASKS, "prefix": PREFIX}
ALLOW, SESSIONS, DENY = (
    ReviewDecision.APPROVED,
    ReviewDecision.APPROVED_FOR_SESSION,
    ReviewDecision.DENIED,
)
DECIDES = {"--allow": ALLOW, "--for-session": SESSIONS, "--deny": DENY}
WAYS: dict[str, dict[str, str]] = {
    "command": dict(zip(DECIDES, ("approved", "approved_for_session", "denied"), strict=True)),
    "patch": dict(zip(DECIDES, ("approved", "approved_for_session", "denied"), strict=True)),
    "prefix": {"--allow": "approved", "--amend": "git", "--deny": "denied"},
    "choices": {"--answer": "answered", "--cancel": "cancelled"},
    "input": {"--cancel": "cancelled"},
    "plan": {"--allow": "approved", "--deny": "rejected", "--revise": "revised"},
    "elicitation": {"--allow": "accept", "--deny": "decline", "--cancel": "cancel"},
    "client_tool": {"--deny": "failed", "--cancel": "failed"},
}
"""The options that answer each kind, and the decision that its session reads."""
SIGNED = WAYS.keys() - {"client_tool"}
"""A client's tool is answered for a program."""


def asked(kind: str) -> Asked:
    event = EVENTS[kind]
    named = "id" if kind == "elicitation" else "callId" if "callId" in event else "call_id"
    told = {**event, named: kind, "turn_id": "t"}
    return Asked(SESSION, TreeId(SESSION), 0, "0", kind, 5, request_of(told), 1, turn="t")


def words(said: list[tuple[str, str]]) -> tuple[dict[ReviewDecision, list[str]], Words]:
    """The words of a command line, as it reads them."""
    texts = {"--answer": "{} Store=Redis", "--revise": "{} shorter"}
    given: dict[str, list[str]] = {}
    for kind, option in said:
        given.setdefault(option, []).append(texts.get(option, "{}").format(f"0:{kind}"))
    wishes = {decision: given.get(option, []) for option, decision in DECIDES.items()}
    return wishes, Words.of(*(given.get(one, []) for one in ("--answer", "--cancel", "--amend", "--revise")))


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[AnswerOp]:
    """The answers that were handed in."""
    found: list[AnswerOp] = []

    async def hand_in_all(client: Any, deployment: Any, answers: Any) -> list[Decided]:
        found.extend(op for _, op in answers)
        return [Decided(one, reply_of(op).decision, "ann", True) for one, op in answers]

    async def needed(deployment: Any, some: Any) -> list[Needed]:
        return [Needed(one, "7c1e95aa", "Title", "", "/w") for one in some]

    async def before(*_: Any) -> decided_requests.Before:
        return decided_requests.Before()

    monkeypatch.setattr(submit, "hand_in_all", hand_in_all)
    monkeypatch.setattr(views, "needed", needed)
    monkeypatch.setattr(decided_requests, "decided_before", before)
    return found


async def answers(said: list[tuple[str, str]], *, sign: bool) -> None:
    wishes, spoken = words(said)
    found = cast(Any, type("Found", (), {"client": lambda self: None})())
    open_ones = [asked(kind) for kind in WAYS]
    await _answer(found, TreeId(SESSION), open_ones, wishes, spoken, ADA if sign else None)


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize("round", range(3))
async def test_every_kind_is_answered_in_every_way_among_all_others_and_signed_where_it_can_be(
    handed: list[AnswerOp], round: int, sign: bool
) -> None:
    said = [(kind, list(ways)[min(round, len(ways) - 1)]) for kind, ways in WAYS.items()]
    await answers(said, sign=sign)
    found = {reply_of(op).id: op for op in handed}
    assert len(found) == len(handed) == len(WAYS)
    for kind, option in said:
        decision = reply_of(found[kind]).decision
        assert WAYS[kind][option] in decision, kind
        signature = getattr(found[kind], "signature", None)
        assert (signature is not None) is (sign and kind in SIGNED), (kind, option)


async def test_all_answers_are_handed_in_together_so_that_one_that_fails_hides_no_other_ones_outcome(
    handed: list[AnswerOp], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches: list[int] = []

    async def hand_in_all(client: Any, deployment: Any, answers: Any) -> list[Decided]:
        batches.append(len(answers))
        told = [(NOT_TAKEN, "its queue is full") if not n else ("approved", "ann") for n in range(3)]
        return [Decided(one, *told[n], True) for n, (one, _) in enumerate(answers)]

    monkeypatch.setattr(submit, "hand_in_all", hand_in_all)
    await answers([("choices", "--answer"), ("command", "--allow"), ("patch", "--allow")], sign=False)
    assert batches == [3]
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["its queue is full", "allowed", "allowed"]


INSTEAD = {
    "choices": "--answer '0:choices", "input": "--answer '0:input", "plan": "--allow 0:plan",
    "elicitation": "--allow, --deny or --cancel 0:elicitation", "client_tool": "--deny 0:client_tool",
}  # fmt: skip
OTHERS = [(kind, option) for kind in INSTEAD for option in DECIDES if option not in WAYS[kind]]


@pytest.mark.parametrize(("kind", "option"), OTHERS)
async def test_decision_that_a_request_cannot_be_given_is_refused_with_the_way_there_is(
    handed: list[AnswerOp], kind: str, option: str
) -> None:
    with pytest.raises(Fault) as refused:
        await answers([("command", "--allow"), (kind, option)], sign=False)
    assert INSTEAD[kind] in str(refused.value)
    assert handed == []


def test_each_answer_of_the_command_line_is_for_its_question_and_its_call() -> None:
    """Several to one question are several options; a text may hold what the option is made of."""
    said = Words.of(["0:c Auth=a", "0:c Auth=b = c d", "3:c Auth=", "0:c Two words=x"])
    assert said.by_call == {"0:c": {"Auth": ["a", "b = c d"], "Two words": ["x"]}, "3:c": {"Auth": [""]}}


TWICE = [(kind, *pair) for kind, ways in WAYS.items() for pair in combinations(ways, 2)]


@pytest.mark.parametrize(("kind", "one", "other"), TWICE)
async def test_two_different_answers_to_one_request_are_refused_before_any_is_given(
    handed: list[AnswerOp], kind: str, one: str, other: str
) -> None:
    beside = [("patch", "--allow")] if kind != "patch" else [("command", "--allow")]
    with pytest.raises((Fault, Contradiction)) as refused:
        await answers([*beside, (kind, one), (kind, other)], sign=False)
    assert f"0:{kind}" in str(refused.value)
    assert handed == []


WORDED = ("--answer", "--cancel", "--amend", "--revise")
"""The options that answer by words, or by a call alone."""


@pytest.mark.parametrize("option", [*DECIDES, *WORDED])
@pytest.mark.parametrize("count", [1, 2])
async def test_answer_in_any_way_that_comes_second_is_told_who_decided_beside_others_that_count(
    option: str,
    count: int,
    handed: list[AnswerOp],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settled = [f"settled{n}" for n in range(count)]

    async def before(found: Any, tree: Any, open_ones: Any, wishes: Any) -> decided_requests.Before:
        asked_for = {call for calls in wishes.values() for call in calls}
        calls = {f"0:{kind}": f"0:{kind}: already answered, by ann" for kind in settled}
        return decided_requests.Before({call: line for call, line in calls.items() if call in asked_for})

    monkeypatch.setattr(decided_requests, "decided_before", before)
    beside = [(kind, ways) for kind in WAYS for ways in WAYS[kind] if ways == option][:1]
    await answers([*((kind, option) for kind in settled), *beside, ("patch", "--deny")], sign=False)
    wanted = {"patch", *(kind for kind, _ in beside)}
    assert {reply_of(op).id for op in handed} == wanted
    told = capsys.readouterr().out.splitlines()
    assert told[:count] == [f"0:{kind}: already answered, by ann" for kind in settled]


@pytest.mark.parametrize("option", WORDED)
async def test_words_for_a_call_that_nobody_asks_about_are_refused(
    option: str, handed: list[AnswerOp]
) -> None:
    with pytest.raises(Fault, match="meant by '0:unknown'"):
        await answers([("patch", "--deny"), ("unknown", option)], sign=False)
    assert handed == []


def test_every_option_that_answers_is_tried() -> None:
    options = {option for ways in WAYS.values() for option in ways}
    assert options == {*DECIDES, "--answer", "--cancel", "--amend", "--revise"}
    assert EVENTS.keys() == WAYS.keys()
