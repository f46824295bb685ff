"""Imported sessions as they are stored: in how many pieces, with what on the queue and in the fleet's."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import orjson
import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import CommitRequest, Fenced, NewTree, Submit
from orchestrator.core import CORE_VERSION
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, ClientToolWork, Phase
from orchestrator.core.commit_parts import Timer, approval_timer, wait_timer
from orchestrator.core.entries import Entry
from orchestrator.core.ids import TreeId
from orchestrator.core.snapshot import digest
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import written
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.imports import IMPORTING, store
from orchestrator.rollouts.replay import fold_session
from tests.rollouts.deployments import NOW_MS, Kept, asking, output, plan_of, said
from workers.upkeep_retention import IMPORT_MS, end_imports


@pytest.fixture
def commits(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> list[CommitRequest]:
    """Every commit that is made, as it is made."""
    seen: list[CommitRequest] = []
    commit = kept.broker.commits.commit

    async def noted(request: CommitRequest) -> Any:
        seen.append(request)
        return await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", noted)
    return seen


async def test_importer_of_a_short_session_claims_nothing(kept: Kept, commits: list[CommitRequest]) -> None:
    session = await kept.has(said("one"))
    head = await kept.head(session)
    assert (head.epoch, head.status, head.holder, commits) == (0, "idle", None, [])


async def test_importer_fills_each_commit_by_entries(kept: Kept, commits: list[CommitRequest]) -> None:
    session = await kept.has(*(said(str(n)) for n in range(600)))
    written = [len(request.entries) for request in commits]
    # The first piece creates the session, behind a bar that an empty commit lowers.
    assert written == [200, 200, (await kept.head(session)).seq - 600, 0]
    assert [request.min_core for request in commits] == [None, None, None, CORE_VERSION]
    assert commits[-1].release == "park"


async def test_importer_fills_each_commit_by_bytes(kept: Kept, commits: list[CommitRequest]) -> None:
    # Inline as each is: what is larger than that stands beside the log.
    session = await kept.has(*(said("x" * 65_000) for _ in range(17)))
    sizes = [sum(len(entry.payload) for entry in request.entries) for request in commits if request.entries]
    assert [512 << 10 >= size > 456_000 for size in sizes] == [True, False]
    assert (await kept.head(session)).status == "idle"


async def test_importer_fills_a_commit_to_the_last_byte(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, commits: list[CommitRequest]
) -> None:
    await kept.has(*(said("same") for _ in range(300)))
    size = len(commits[0].entries[-1].payload)
    monkeypatch.setattr("orchestrator.rollouts.imports.PIECE_BYTES", 40 * size)
    commits.clear()
    await kept.has(*(said("same") for _ in range(300)))
    assert [len(request.entries) for request in commits[:-2]] == [40] * (len(commits) - 2)


async def test_importer_of_one_entry_that_is_larger_than_a_piece_writes_it_alone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, commits: list[CommitRequest]
) -> None:
    monkeypatch.setattr("orchestrator.rollouts.imports.PIECE_BYTES", 10)
    plan = plan_of(said("one"))
    await store(kept, plan, {}, NOW_MS, "an importer")
    assert [len(request.entries) for request in commits] == [*[1] * (len(plan.entries) - 1), 0]


async def test_follower_of_an_imported_session_is_told_that_it_is_configured_and_no_news_of_old(
    kept: Kept,
) -> None:
    old = Entry(e.EVENT_MSG, {"type": "agent_message", "message": "long ago"}, "t1")
    configured = Entry(e.EVENT_MSG, {"type": "session_configured", "session_id": "again"}, "")
    lookalike = e.item({"type": "session_configured"})
    session = await kept.has(old, lookalike, configured)
    events = [orjson.loads(event.payload)["msg"] for event in await kept.broker.logs.read_eq(session)]
    assert [event["type"] for event in events] == ["session_configured"] * 2
    assert events[1]["session_id"] == "again"


async def test_imported_log_folds_to_what_its_summary_says(kept: Kept) -> None:
    plan = plan_of(said("one"), output("y" * 20_000))
    session = await store(kept, plan, {}, NOW_MS, "an importer")
    folded = await fold_session(kept, await kept.head(session), None)
    assert folded.matches is True
    assert folded.seq == len(plan.entries)
    assert await kept.large_texts(TreeId(session), [_reference(list(folded.state.history)[-1])])


def _reference(item: Any) -> str:
    found: str = item["output"]["$blob"]
    return found


async def test_texts_that_came_with_a_file_are_stored_beside_its_log(kept: Kept) -> None:
    name = hashlib.sha256(b"kept").hexdigest()
    session = await store(kept, plan_of(said("one")), {name: b"kept"}, NOW_MS, "an importer")
    assert await kept.stored.blobs.get(TreeId(session), name) == b"kept"


@pytest.mark.parametrize("named", ["call_id", "callId"])
async def test_person_finds_an_imported_request_as_it_was_asked(
    kept: Kept, commits: list[CommitRequest], named: str
) -> None:
    session = await kept.has(*asking(named))
    [approval] = await kept.broker.requests.approvals(session)
    asked = orjson.loads(approval.payload)
    assert (approval.key, asked["kind"], asked["turn"]) == ("c1", "exec", "1")
    assert asked["event"][named] == "c1"
    assert (await kept.head(session)).status == "awaiting_approval"
    assert [request.timers_set for request in commits][-1] == ()


async def test_person_finds_the_last_question_of_a_call_that_was_asked_about_twice(kept: Kept) -> None:
    again = Entry(e.EVENT_MSG, {"type": "exec_approval_request", "call_id": "c1", "command": ["again"]}, "1")
    other = Entry(e.EVENT_MSG, {"type": "exec_approval_request", "call_id": "c9", "command": ["other"]}, "1")
    unlike = Entry(e.EVENT_MSG, {"type": "exec_command_end", "call_id": "c1"}, "1")
    session = await kept.has(*asking(), again, other, unlike)
    [approval] = await kept.broker.requests.approvals(session)
    assert orjson.loads(approval.payload)["event"]["command"] == ["again"]


@pytest.mark.parametrize("order", [("c1", "c2", "c3"), ("c3", "c1", "c2")])
async def test_each_of_several_imported_requests_is_found_as_it_was_asked_with_its_own_time(
    kept: Kept, commits: list[CommitRequest], order: tuple[str, ...]
) -> None:
    """However the requests of one response stand in its log, and what else is said of a call behind them."""
    begins, people, request, item, completed, event, moved = asking()
    timers = {"c1": 4, "c2": None, "c3": 7}

    def of(entry: Entry, call: str) -> Entry:
        told = orjson.loads(orjson.dumps(entry.payload).replace(b'"c1"', b'"%s"' % call.encode()))
        told |= {"command": ["touch", call]} if "type" in told and "command" in told else {}
        if "spec" in told:
            told["spec"] |= {"command": ["touch", call], "timer": timers[call]}
        return Entry(entry.type, told, entry.id)

    log = [begins, people, request, *(of(item, call) for call in order), completed]
    log += [of(event, call) for call in reversed(order)] + [of(moved, call) for call in order]
    session = await kept.has(*log, approval_timeout_ms=60_000)
    approvals = {one.key: orjson.loads(one.payload) for one in await kept.broker.requests.approvals(session)}
    assert {call: told["event"]["command"] for call, told in approvals.items()} == {
        call: ["touch", call] for call in order
    }
    assert {told["turn"] for told in approvals.values()} == {"1"}
    set_ones = {timer.id: (timer.generation, timer.at_ms) for timer in commits[-1].timers_set}
    assert set_ones == {
        approval_timer(CallId(call)): (timers[call], NOW_MS + 60_000) for call in ("c1", "c3")
    }


async def test_imported_request_has_all_of_its_time_again(kept: Kept, commits: list[CommitRequest]) -> None:
    await kept.has(*asking(timer=4), approval_timeout_ms=60_000)
    [timer] = commits[-1].timers_set
    assert (timer.generation, timer.at_ms) == (4, NOW_MS + 60_000)
    await kept.has(*asking(timer=4))
    await kept.has(*asking(), approval_timeout_ms=60_000)
    assert [request.timers_set for request in commits[-2:]] == [(), ()]


async def test_imported_call_of_a_clients_tool_is_asked_for_again_and_ends_in_its_own_time(
    kept: Kept, commits: list[CommitRequest]
) -> None:
    work = ClientToolWork("draw", "painter", limit_ms=90_000, given='{"what": "a fox"}', timer=4)
    asked = written(work.request(CallId("c1"), SubmissionId("1")))
    moved = e.fact(f.CallMoved(CallId("c1"), Phase.ASKING, work=work))
    session = await kept.has(*asking()[:-2], Entry(e.EVENT_MSG, asked, "1"), moved)
    [approval] = await kept.broker.requests.approvals(session)
    told = orjson.loads(approval.payload)
    assert (approval.key, told["kind"], told["event"]) == ("c1", "client_tool", asked)
    [timer] = commits[-1].timers_set
    assert (timer.id, timer.generation, timer.at_ms) == (approval_timer(CallId("c1")), 4, NOW_MS + 90_000)


async def test_imported_session_waits_for_agents_up_to_the_time_that_its_log_says(
    kept: Kept, commits: list[CommitRequest]
) -> None:
    work = AwaitWork((), 5, NOW_MS + 7)
    await kept.has(*asking()[:-2], e.fact(f.CallMoved(CallId("c1"), Phase.WAITING, work=work)))
    assert commits[-1].timers_set == (Timer(wait_timer(CallId("c1")), 5, NOW_MS + 7),)


async def test_request_that_no_event_asks_for_is_told_and_not_imported(kept: Kept) -> None:
    log = asking()
    with pytest.raises(RolloutError, match="call c1 waits for an answer, and no event of the file asks"):
        await kept.has(*log[:-2], log[-1])


async def test_nobody_is_shown_half_of_a_session(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    commit = kept.broker.commits.commit

    async def looked_at(request: CommitRequest) -> Any:
        head = await kept.head(request.claim.session)
        seen.append((head.status, len(await kept.broker.requests.approvals(request.claim.session))))
        return await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", looked_at)
    session = await kept.has(*asking())
    assert seen == [("importing", 0)]
    assert len(await kept.broker.requests.approvals(session)) == 1


async def test_session_that_a_worker_took_is_not_imported_and_not_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(kept.broker.claims, "claim_session", taken)
    plan = plan_of(*(said(str(n)) for n in range(300)))
    with pytest.raises(RolloutError, match="was taken by a worker"):
        await store(kept, plan, {}, NOW_MS, "an importer")
    assert await kept.broker.logs.head(plan.facts.session_id) is None


async def test_worker_is_not_given_a_session_that_is_not_whole(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, claims = kept.broker.commits.create, list[object]()

    async def created_and_spoken_to(new: NewTree) -> Any:
        made = await create(new)
        root = new.root
        await kept.broker.commits.submit(Submit(root.session, "somebody", "s1", b"hello"))
        claims.append(await kept.broker.claims.claim_session(root.session, "w1", "c1"))
        return made

    monkeypatch.setattr(kept.broker.commits, "create", created_and_spoken_to)
    session = await kept.has(*(said(str(n)) for n in range(300)))
    assert claims == [None]
    assert await kept.broker.claims.claim_session(session, "w1", "c2") is not None, (
        "it is whole, and owes an answer"
    )


async def test_half_an_import_whose_process_died_is_deleted_by_upkeep_after_a_day(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, begun, goes_on = kept.broker.commits.commit, asyncio.Event(), asyncio.Event()

    async def stands_still(request: CommitRequest) -> Any:
        begun.set()
        await goes_on.wait()
        return await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", stands_still)
    importing = asyncio.create_task(kept.has(*(said(str(n)) for n in range(300))))
    await begun.wait()
    [half] = await kept.broker.logs.sessions(10)
    assert half.status == IMPORTING
    # It was spoken to, as nothing forbids.
    await kept.broker.commits.submit(Submit(half.session, "somebody", "s1", b"hello"))
    ends_ms = half.created_ms + IMPORT_MS
    assert await end_imports(kept.stored, [half], ends_ms - 1) == 0
    # Its lease has not run out: nothing is deleted beside a holder that may live.
    assert await end_imports(kept.stored, [half], ends_ms) == 0
    keys = kept.broker.keys
    leases = keys.leases(keys.shard_of(half.session), half.pool)
    await kept.broker.command("ZADD", leases, "XX", 1, half.session)
    assert await end_imports(kept.stored, [half], ends_ms) == 1
    assert await kept.broker.logs.head(half.session) is None
    assert await end_imports(kept.stored, [half], ends_ms) == 0
    goes_on.set()
    with pytest.raises((RolloutError, UnknownSession)):
        await importing
    assert await kept.broker.logs.head(half.session) is None


async def test_texts_that_redis_loses_during_an_import_are_stored_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = kept.broker.commits.commit, list[str]()

    async def behind_a_loss(request: CommitRequest) -> Any:
        if request.texts and not lost:
            lost.extend(request.texts)
            keys = (kept.broker.keys.blob(request.claim.tree, text) for text in lost)
            await kept.broker.command("DEL", *keys)
        return await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", behind_a_loss)
    session = await kept.has(*(said(str(n)) for n in range(300)), output("y" * 70_000))
    assert lost
    for text in lost:
        assert await kept.stored.blobs.get(TreeId(session), text) is not None


async def test_session_whose_last_commit_is_refused_is_not_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = kept.broker.commits.commit

    async def refused_at_last(request: CommitRequest) -> Any:
        return Fenced(9, "somebody else") if request.release == "park" else await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", refused_at_last)
    plan = plan_of(*(said(str(n)) for n in range(300)))
    with pytest.raises(RolloutError, match="was not imported: somebody else"):
        await store(kept, plan, {}, NOW_MS, "an importer")
    assert await kept.broker.logs.head(plan.facts.session_id) is None


async def test_imported_sessions_state_is_the_one_that_was_planned(kept: Kept) -> None:
    plan = plan_of(said("one"), said("two"))
    session = await store(kept, plan, {}, NOW_MS, "an importer")
    assert digest((await fold_session(kept, await kept.head(session), None)).state) == digest(plan.state)
