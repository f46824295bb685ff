"""The queue of requests for several people: what ends at once, is not taken, or was decided earlier."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import QueueFull, UnknownSession
from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.core.ids import SessionId, parse_session_id
from orchestrator.gateways import submit
from orchestrator.gateways.app_server.messages import Code, RpcError
from orchestrator.gateways.app_server.method import NoParams
from orchestrator.gateways.app_server.methods import approvals, fleet
from orchestrator.gateways.app_server.methods.approvals import ApprovalAnswer, ApprovalHistory
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window import feeds
from orchestrator.protocol import ops
from orchestrator.protocol.bounds import TEXT_BYTES
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.requests import request_of
from orchestrator.views.approvals import NOT_TAKEN, Asked, Needed
from tests.requests.test_answers import ASKS

SESSIONS = [SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(4)]


@pytest.mark.parametrize("opened", range(4))
@pytest.mark.parametrize("settled", range(4))
async def test_all_requests_that_open_and_end_at_once_are_told(
    opened: int, settled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [Opened(cast(Any, SimpleNamespace(session=one, key="c"))) for one in SESSIONS[:opened]]
    others = [Settled(one, "d") for one in SESSIONS[:settled]]
    batches = iter([[], [change for pair in product([0], [*some, *others]) for change in pair[1:]], []])

    async def changes(patience_s: float) -> list[Any]:
        return next(batches)

    async def nothing() -> None: ...

    async def asked_of(found: Any, request: Any) -> Any:
        return request

    async def needed(found: Any, asked: list[Any]) -> list[Any]:
        return asked

    async def ended(ports: Any, session: SessionId, call: str) -> dict[str, Any]:
        return {"requestId": f"{session}:{call}"}

    for name, stand_in in (("asked_of", asked_of), ("needed", needed), ("_ended", ended)):
        monkeypatch.setattr(feeds, name, stand_in)
    monkeypatch.setattr(feeds, "request_row", lambda one, reader: {"requestId": f"{one.session}:{one.key}"})
    feed = SimpleNamespace(changes=changes, aclose=nothing)
    requests = SimpleNamespace(request_feed=lambda namespace: feed)
    ports = SimpleNamespace(found=SimpleNamespace(broker=SimpleNamespace(requests=requests)))
    async with aclosing(cast(Any, feeds.needs(cast(Any, ports), "", ""))) as updates:
        assert (await anext(updates)).whole
        if opened or settled:
            update = await anext(updates)
            assert [*update.changed] == [f"{one}:c" for one in SESSIONS[:opened]]
            assert [*update.gone] == [f"{one}:d" for one in SESSIONS[:settled]]
            assert not update.whole


# ── answers of which some are not taken ───────────────────────────────────────────────────────────


class Client:
    """A client whose sessions take some answers, and refuse others."""

    who = "ann"

    def __init__(self, refuses: dict[SessionId, Exception]) -> None:
        self.refuses = refuses
        self.taken: list[SessionId] = []
        self.waited_for: list[SessionId] = []

    async def submit(self, session: SessionId, submission: Any) -> Any:
        if session in self.refuses:
            raise self.refuses[session]
        self.taken.append(session)
        return SimpleNamespace(quarantined=False)

    async def until(self, sessions: Any, look: Any, patience_s: float) -> bool:
        self.waited_for = list(sessions)
        return bool(await look())


@pytest.mark.parametrize("fails", list(product([True, False], repeat=3)))
async def test_answer_that_its_session_has_no_room_for_is_told_as_not_taken_beside_those_that_count(
    fails: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(found: Any, asked: Asked, id: str) -> tuple[str, str, int]:
        return "approved", "ann", 9

    async def patience(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr(submit, "_answer", answer)
    monkeypatch.setattr(submit, "patience", patience)
    asked = [
        Asked(one, cast(Any, one), 0, "0", "c", 5, request_of(ASKS["command"]), 3) for one in SESSIONS[:3]
    ]
    op = ops.ExecApproval(id="c", decision=ReviewDecision.APPROVED)
    errors: list[Exception] = [
        QueueFull(SESSIONS[0], 1, 1),
        UnknownSession(SESSIONS[1]),
        MalformedSubmission("op.response: too long"),
    ]
    refuses = {one: error for one, error, fail in zip(SESSIONS, errors, fails, strict=False) if fail}
    client = Client(cast(Any, refuses))
    handing = submit.hand_in_all(cast(Any, client), cast(Any, None), [(one, op) for one in asked])
    if all(fails):
        with pytest.raises(QueueFull):
            await handing
        return
    told = await handing
    assert client.taken == [one for one, fail in zip(SESSIONS, fails, strict=False) if not fail]
    assert client.waited_for == list(SESSIONS[:3]), "the news of one are not those of another"
    assert [(one.decision, one.who, one.ours) for one in told] == [
        (NOT_TAKEN, str(error), False) if fail else ("approved", "ann", True)
        for error, fail in zip(errors, fails, strict=True)
    ]


@pytest.mark.parametrize("place", [0, 1])
async def test_answer_that_holds_more_than_it_may_is_refused_before_any_is_handed_in(place: int) -> None:
    asked = [
        Asked(one, cast(Any, one), 0, "0", "c", 5, request_of(ASKS["command"]), 3) for one in SESSIONS[:2]
    ]
    given = [ops.ExecApproval(id="c", decision=ReviewDecision.APPROVED) for _ in asked]
    given[place] = given[place].model_copy(update={"id": "c" * (TEXT_BYTES + 1)})
    client = Client({})
    with pytest.raises(MalformedSubmission, match=r"op\.id"):
        await submit.hand_in_all(cast(Any, client), cast(Any, None), [*zip(asked, given, strict=True)])
    assert client.taken == []


WRONG: list[dict[str, Any]] = [
    {"decision": "accept", "feedback": "x"},
    {},
    {"feedback": "x"},
    {"answers": {"Store": ["Redis"]}},
    {"decision": "acceptWithExecpolicyAmendment"},
]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("wrong", [*range(len(WRONG)), "again", "again otherwise", "again in capitals"])
async def test_answers_of_which_one_cannot_be_are_all_refused_before_any_is_handed_in(
    wrong: int | str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def head_to_read(door: Any, thread: str) -> Any:
        session = parse_session_id(thread)
        return SimpleNamespace(session=session, tree=session)

    async def open_requests_of(found: Any, tree: Any, namespace: str) -> list[Asked]:
        return [
            Asked(SessionId(tree), tree, 0, "0", call, 5, request_of(ASKS["command"]), 3) for call in "cd"
        ]

    async def hand_in_all(client: Any, found: Any, handed: Any) -> list[Any]:
        handed_in.append([(asked.session, asked.call_id) for asked, _ in handed])
        return []

    async def earlier(door: Any, head: Any, call: str) -> dict[str, Any]:
        return {"callId": call}

    handed_in: list[Any] = []
    for name, stand_in in (
        ("head_to_read", head_to_read),
        ("open_requests_of", open_requests_of),
        ("hand_in_all", hand_in_all),
        ("_earlier", earlier),
    ):
        monkeypatch.setattr(approvals, name, stand_in)
    door = cast(
        Any,
        SimpleNamespace(
            ports=SimpleNamespace(found=None), principal=Principal("ann"), new_client=lambda: None
        ),
    )

    async def answers(given: list[dict[str, Any]]) -> Any:
        return await approvals.approval_answer(door, ApprovalAnswer.model_validate({"requests": given}))

    named = [(SESSIONS[0], "c"), (SESSIONS[0], "d"), (SESSIONS[1], "c")]
    plain = [{"threadId": one, "callId": call, "answer": {"decision": "accept"}} for one, call in named]
    await answers(plain)
    assert handed_in == [named]
    given: list[dict[str, Any]] = [dict(one) for one in plain]
    if isinstance(wrong, int):
        given[place]["answer"] = WRONG[wrong]
    else:
        word = "decline" if wrong == "again otherwise" else "accept"
        thread = f" {named[place][0].upper()}" if wrong == "again in capitals" else named[place][0]
        given.append({**plain[place], "threadId": thread, "answer": {"decision": word}})
    with pytest.raises(RpcError) as refused:
        await answers(given)
    assert refused.value.code == Code.BAD_PARAMS
    assert (
        "answered twice" if isinstance(wrong, str) else f"requests.{place}.answer"
    ) in refused.value.message
    assert handed_in == [named]


# ── earlier decisions ─────────────────────────────────────────────────────────────────────────────


TIMES = [[9, 7, 8, 7, 7, 2], [7, 7, 3], [], [9, 1]]
"""The milliseconds of the decisions of each tree, the last one first: a worker's clock was behind."""


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("trees", [1, 2, 4])
async def test_pages_of_decisions_have_each_once_also_of_those_of_one_moment(
    trees: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = {
        str(tree): [
            SimpleNamespace(at_ms=at_ms, asked=f"{tree}.{n}", decision="x", who="")
            for n, at_ms in enumerate(times)
        ]
        for tree, times in enumerate(TIMES[:trees])
    }

    async def decided_of_trees(found: Any, roots: Sequence[str]) -> list[list[Any]]:
        return [decided[root] for root in roots]

    async def needed(found: Any, asked: list[str]) -> list[str]:
        return asked

    async def listed_heads(*_: Any) -> list[Any]:
        return [(None, tree) for tree in decided]

    monkeypatch.setattr(approvals, "decided_of_trees", decided_of_trees)
    monkeypatch.setattr(approvals, "needed", needed)
    monkeypatch.setattr(approvals, "request_row", lambda one, reader: {"name": one})
    broker = SimpleNamespace(trees=SimpleNamespace(listed_heads=listed_heads))
    ports = SimpleNamespace(found=SimpleNamespace(broker=broker))
    door = cast(Any, SimpleNamespace(ports=ports, principal=Principal("ann")))
    cursor, found = None, list[dict[str, Any]]()
    while True:
        asked = ApprovalHistory.model_validate({"limit": limit, "cursor": cursor})
        page = await approvals.approval_history(door, asked)
        assert 1 <= len(page["data"]) <= limit
        found += page["data"]
        if (cursor := page["nextCursor"]) is None:
            break
    names = [row["name"] for row in found]
    assert sorted(names) == sorted(one.asked for rows in decided.values() for one in rows)
    assert [row["atMs"] for row in found] == sorted((row["atMs"] for row in found), reverse=True)
    assert {row["mayAnswer"] for row in found} == {False}, "what was decided takes no answer"


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("kind", ASKS)
def test_person_is_told_of_each_request_whether_their_rights_reach_to_answer_it(
    kind: str, scope: Scope
) -> None:
    asked = Asked(SESSIONS[0], cast(Any, SESSIONS[0]), 0, "0", "c", 5, request_of(ASKS[kind]), 3)
    row = approvals.request_row(Needed(asked, "t", "", "", ""), Principal("ann", scope=scope))
    assert row["mayAnswer"] is (scope >= Scope.APPROVE)


# ── figures ───────────────────────────────────────────────────────────────────────────────────────


async def test_each_person_is_told_the_figures_of_their_own_at_once_and_the_same_ones_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made = [100.0], list[str]()

    async def stats(door: Any) -> dict[str, Any]:
        made.append(door.principal.name)
        return {"of": door.principal.name}

    monkeypatch.setattr(fleet, "_stats", stats)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Broker:
        """Figures are kept beside one."""

    ports = SimpleNamespace(found=SimpleNamespace(broker=Broker()))
    people = [
        Principal("ann"),
        Principal("ben"),
        Principal("acme/ann", "acme"),
        Principal("acme/ben", "acme"),
    ]

    async def figures(person: Principal) -> Any:
        door = SimpleNamespace(ports=ports, principal=person)
        return (await fleet.fleet_stats(cast(Any, door), NoParams()))["of"]

    for _ in range(2):
        assert [await figures(person) for person in people] == [person.name for person in people]
    assert made == [person.name for person in people]
    now[0] += fleet.STATS_S
    assert await figures(people[1]) == "ben"
    assert made[-1] == "ben"
    assert len(fleet._at_hand(cast(Any, ports.found.broker)).stats) == 1, "what is too old is let go"


# ── follow ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wanted", [None, SESSIONS[0], SESSIONS[1]])
async def test_person_who_follows_a_tree_is_told_of_its_requests_alone_and_of_the_end_of_each(
    wanted: SessionId | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(session: SessionId, key: str) -> Any:
        return SimpleNamespace(session=session, key=key)

    async def requests() -> Any:
        for session in SESSIONS[:2]:
            for key in ("c", "d"):
                yield Opened(change(session, key))
        yield Settled(SESSIONS[2], "c")
        for session in SESSIONS[:2]:
            for key in ("d", "c"):
                yield Settled(session, key)

    async def asked_of(found: Any, request: Any) -> Any:
        return SimpleNamespace(tree=request.session, call=request.key)

    monkeypatch.setattr(submit, "asked_of", asked_of)
    client = cast(Any, SimpleNamespace(requests=requests))
    told = [one async for one in submit.followed(client, cast(Any, None), cast(Any, wanted))]
    seen: list[tuple[str, str, str]] = [
        ("over", one.asked.tree, one.asked.call)
        if isinstance(one, submit.Over)
        else ("asks", one.tree, one.call)
        for one in told
    ]
    trees: list[str] = [session for session in SESSIONS[:2] if wanted in (None, session)]
    assert seen == [
        *(("asks", tree, key) for tree in trees for key in ("c", "d")),
        *(("over", tree, key) for tree in trees for key in ("d", "c")),
    ]
