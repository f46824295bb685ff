"""Open requests for a person: each with the names and the folder of its own session, and what is signed."""

from __future__ import annotations

import base64
import hashlib
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls.ask import digest_of
from orchestrator.core.commands import signed_answer
from orchestrator.core.entries import request_digest
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol import ops
from orchestrator.protocol.plans import RequestUserInputAnswer, RequestUserInputResponse
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of
from orchestrator.views.approvals import Asked, needed, signed
from tests.rollouts.bundles import ADA

ONE, OF_ONE, TWO, OF_TWO = (SessionId(f"0199a2b4-0000-7000-8000-{n:012}") for n in (1, 12, 203, 3004))
TREES = {ONE: ONE, OF_ONE: ONE, TWO: TWO, OF_TWO: TWO}
AGENTS = {ONE: 0, OF_ONE: 3, TWO: 0, OF_TWO: 3}
EVENT = {"type": "exec_approval_request", "call_id": "c", "command": ["make"], "cwd": "/w"}


def asked(session: SessionId, call: str = "c") -> Asked:
    event = {**EVENT, "call_id": call}
    number = AGENTS[session]
    return Asked(session, TreeId(TREES[session]), number, f"0/{number}", call, 1, request_of(event), 9)


class Fleet:
    """Two trees, each with an agent of one number; some sessions may be gone."""

    def __init__(self, *gone: SessionId) -> None:
        self.gone = gone
        self.broker = SimpleNamespace(logs=self, trees=self)

    async def heads(self, sessions: list[SessionId], damaged: Any) -> list[Any]:
        assert len(set(sessions)) == len(sessions), "each is read once"
        return [
            SimpleNamespace(session=one, title=f"title {one[-1]}", summary={"cwd": f"/work/{one[-1]}"})
            for one in sessions
            if one not in self.gone
        ]

    async def registries(self, trees: list[TreeId]) -> list[dict[str, bytes]]:
        """Of each tree agent 3 has a label that tells which tree it is of."""
        return [
            {
                "a:3": orjson.dumps(
                    {"agent_id": 3, "label": f"agent of {tree[-1]}", "session_id": "s", "agent_path": "0/3",
                     "status": "running", "turn": ""}
                )
            }
            for tree in trees
        ]  # fmt: skip


@pytest.mark.parametrize("order", list(permutations((ONE, OF_ONE, TWO, OF_TWO), 3)))
async def test_each_request_has_the_title_of_its_tree_and_label_and_folder_of_its_own_agent(
    order: tuple[SessionId, ...],
) -> None:
    some = [asked(session, f"c{place}") for place, session in enumerate((*order, order[0]))]
    found = await needed(cast(Any, Fleet()), some)
    assert [one.asked for one in found] == some
    for one in found:
        root, own = one.asked.tree, one.asked.session
        assert one.title == f"title {root[-1]}"
        assert one.folder == f"/work/{own[-1]}"
        assert one.label == (f"agent of {root[-1]}" if one.asked.agent_id else "")
        assert root.endswith(one.tree)
    assert len({one.tree for one in found}) == len({one.asked.tree for one in found})


@pytest.mark.parametrize("gone", [(ONE,), (OF_ONE,), (ONE, OF_ONE)])
async def test_request_of_a_session_that_is_going_keeps_its_place_and_no_other_ones_names(
    gone: tuple[SessionId, ...],
) -> None:
    found = await needed(cast(Any, Fleet(*gone)), [asked(OF_TWO), asked(OF_ONE), asked(TWO)])
    assert [(one.title, one.folder) for one in found] == [
        ("title 3", "/work/4"),
        ("" if ONE in gone else "title 1", "" if OF_ONE in gone else "/work/2"),
        ("title 3", "/work/3"),
    ]


# ── signatures ────────────────────────────────────────────────────────────────────────────────────


def question(name: str, secret: bool) -> dict[str, Any]:
    return {"id": name, "header": "Q", "question": "?", "isOther": True, "isSecret": secret}


SHOWN = ops.Shown(text="what was shown: é", surface="terminal", opened_ms=1)


@pytest.mark.parametrize("digest", ["", "d" * 64])
@pytest.mark.parametrize(
    ("secrets", "given", "hidden"),
    [
        ((False,), {"q0": ("a",)}, False),
        ((True,), {"q0": ("a",)}, True),
        ((False, True), {"q0": ("a",), "q1": ("b",)}, True),
        ((True, False), {"q0": ("a",), "q1": ("b",)}, True),
        ((False, True), {"q0": ("a",)}, False),
        ((False, True), {"q0": ("a",), "q1": ()}, False),
        ((True, True), {}, False),
    ],
)
def test_words_of_an_answer_are_signed_unless_one_of_them_is_a_secret(
    secrets: tuple[bool, ...], given: dict[str, tuple[str, ...]], hidden: bool, digest: str
) -> None:
    """Of a secret nobody has a digest: it could be guessed by one."""
    questions = [question(f"q{number}", secret) for number, secret in enumerate(secrets)]
    event = {"type": "request_user_input", "call_id": "c", "turn_id": "t", "questions": questions}
    one = Asked(ONE, TreeId(ONE), 0, "0", "c", 1, request_of(event), 9, turn="t", digest=digest)
    answers = {name: RequestUserInputAnswer(answers=texts) for name, texts in given.items()}
    op = ops.UserInputAnswer(id="c", response=RequestUserInputResponse(answers=answers))
    found = signed(one, op, ADA, SHOWN, 5)
    assert isinstance(found, ops.UserInputAnswer)
    assert verifies(
        one, found, "answered" if given else "cancelled", "" if hidden else digest_of(written(op.response))
    )


@pytest.mark.parametrize("decision", [ReviewDecision.APPROVED, ReviewDecision.DENIED])
def test_decision_is_signed_with_its_request_and_what_was_shown_and_has_no_words(
    decision: ReviewDecision,
) -> None:
    one = Asked(ONE, TreeId(ONE), 0, "0", "c", 1, request_of(EVENT), 9, turn="t", digest="d" * 64)
    op = signed(one, ops.ExecApproval(id="c", decision=decision), ADA, SHOWN, 5)
    assert isinstance(op, ops.ExecApproval)
    assert verifies(one, op, decision.value, "")
    assert not verifies(asked(TWO), op, decision.value, "")


def verifies(one: Asked, op: Any, decision: str, response: str) -> bool:
    """Whether the signature of an op is Ada's, under just this."""
    request = request_digest(one.turn, one.request.event) if one.digest else ""
    shown = hashlib.sha256(SHOWN.text.encode()).hexdigest()
    text = signed_answer(
        one.session, one.turn, one.call_id, decision, 5, shown, request=request, response=response
    )
    assert (op.shown, op.signature.answered_ms, op.signature.key) == (SHOWN, 5, str(ADA.key))
    return base64.b64decode(op.signature.sig) == ADA.private.sign(text.encode())
