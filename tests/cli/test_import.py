"""Importing: what a session becomes under a new id, and that it is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.records import CommitRequest, Fenced
from orchestrator.cli.export import _bounded
from orchestrator.cli.invocation import opened
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.calls import Phase, work_of
from orchestrator.core.entries import Entry
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import PortableFolder, TurnSettings
from orchestrator.core.snapshot import encode
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.export import Tally, exported, header_of
from orchestrator.rollouts.file_format import BadLine, RolloutText, read_rollout
from orchestrator.rollouts.imports import ImportPlan, Newcomer, plan_import, store
from orchestrator.rollouts.replay import fold_session
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.new_sessions import new_birth
from orchestrator.wiring.open_deployment import Opened
from tests.broker.actors import holder_died
from tests.servers import RedisServer

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
NOW_MS = 1_790_000_000_000
CALL = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"}
ASK = {"type": "exec_approval_request", "call_id": "c1", "command": ["touch", "x"], "cwd": "/w"}
SPEC: dict[str, Any] = {
    "kind": "exec",
    "keys": ["k"],
    "command": ["touch", "x"],
    "cwd": "/w",
    "parsed_cmd": [],
    "timeout_ms": None,
    "env": {},
    "sandboxed": False,
}


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> Settings:
    with redis_server.client() as client:
        client.flushall()
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "own"),
        "DENDRO_REDIS_URL": redis_server.url,
    }
    return load_settings(SettingsSources(cwd=tmp_path, environ=environ))


@pytest.fixture
async def found(settings: Settings) -> AsyncIterator[Opened]:
    async with opened(settings) as found:
        yield found


def birth(settings: Settings) -> Birth:
    return new_birth(settings, Workspace(), NOW_MS, os.urandom)


def newcomer(settings: Settings) -> Newcomer:
    born = birth(settings)
    return Newcomer(born.facts, born.settings, "0", NOW_MS)


def planned(settings: Settings, *entries: Entry) -> ImportPlan:
    """A session with these entries behind its first ones."""
    from orchestrator.core.evolve import fold
    from orchestrator.core.state import State

    born = birth(settings)
    whole = (*first_entries(born), *entries)
    return ImportPlan(tuple((entry, NOW_MS) for entry in whole), fold(State(), whole, 1), born.facts)


def busy(settings: Settings, phase: Phase) -> ImportPlan:
    """A session whose one call stands at `phase`."""
    turn = birth(settings).settings
    rows = [
        e.fact(f.TaskBegun(SubmissionId("1"), "user", turn)),
        e.item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}),
        e.fact(f.RequestBegun(1, "turn", 1)),
        e.item(CALL),
        e.fact(f.RequestCompleted(1)),
    ]
    if phase is Phase.AWAITING_APPROVAL:
        rows += [
            Entry(e.EVENT_MSG, ASK, "1"),
            e.fact(f.CallMoved(CallId("c1"), Phase.AWAITING_APPROVAL, work=work_of(SPEC))),
        ]
    else:
        rows.append(e.fact(f.CallMoved(CallId("c1"), Phase.RUNNING, epoch=1, work=work_of(SPEC))))
    return planned(settings, *rows)


async def file_of(found: Opened, session: SessionId) -> list[bytes]:
    head = await found.broker.logs.head(session)
    assert head is not None
    lines = [header_of(head, "").encode(found.secret)]
    async for chunk in exported(found, head, True, Tally()):
        lines += chunk.splitlines(keepends=True)
    return lines


async def copied(found: Opened, session: SessionId) -> tuple[SessionId, ImportPlan]:
    blobs: dict[str, bytes] = {}
    text = read_rollout(await file_of(found, session), blobs)
    plan = plan_import(text, newcomer(found.settings), blobs, None)
    return await store(found, plan, blobs, NOW_MS, "an importer"), plan


async def state_of(found: Opened, session: SessionId) -> bytes:
    head = await found.broker.logs.head(session)
    assert head is not None
    folded = await fold_session(found, head, None)
    assert folded.broken is None
    assert folded.matches
    return encode(folded.state)


async def test_a_long_session_is_written_in_pieces_and_is_equal_but_for_its_id(found: Opened) -> None:
    rows = [e.item({"type": "message", "role": "user", "content": str(n) * 50}) for n in range(450)]
    big = e.item({"type": "function_call_output", "call_id": "c", "output": "large " * 9000})
    original = await store(found, planned(found.settings, big, *rows), {}, NOW_MS, "an importer")
    copy, plan = await copied(found, original)
    renamed = (await state_of(found, original)).replace(original.encode(), copy.encode())
    assert await state_of(found, copy) == renamed
    head = await found.broker.logs.head(copy)
    assert head is not None
    assert (head.seq, head.status, head.holder) == (len(plan.entries), "idle", None)


async def test_a_worker_takes_an_imported_session_only_when_it_is_whole(
    found: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    commit = found.broker.commits.commit

    async def looked_at(request: CommitRequest) -> Any:
        answer = await commit(request)
        if request.min_core is None:
            await holder_died(found.broker, request.claim.session)
            seen.append(
                await found.broker.claims.claim_session(request.claim.session, "other", "x", parked=True)
            )
        return answer

    monkeypatch.setattr(type(found.broker.commits), "commit", staticmethod(looked_at))
    rows = [e.item({"type": "message", "role": "user", "content": str(n)}) for n in range(300)]
    with pytest.raises(RolloutError, match="was not imported"):
        await store(found, planned(found.settings, *rows), {}, NOW_MS, "an importer")
    assert seen == [None]


async def test_an_import_that_fails_half_way_leaves_no_session(
    found: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fenced(request: CommitRequest) -> Fenced:
        return Fenced(9, "somebody else")

    monkeypatch.setattr(type(found.broker.commits), "commit", staticmethod(fenced))
    rows = [e.item({"type": "message", "role": "user", "content": str(n)}) for n in range(300)]
    plan = planned(found.settings, *rows)
    with pytest.raises(RolloutError, match="somebody else"):
        await store(found, plan, {}, NOW_MS, "an importer")
    assert await found.broker.logs.head(SessionId(plan.facts.session_id)) is None


async def test_an_open_request_is_in_the_fleets_queue_again(found: Opened) -> None:
    session = await store(found, busy(found.settings, Phase.AWAITING_APPROVAL), {}, NOW_MS, "an importer")
    copy, _ = await copied(found, session)
    [approval] = await found.broker.requests.approvals(copy)
    assert approval.key == "c1"
    head = await found.broker.logs.head(copy)
    assert head is not None
    assert head.status == "awaiting_approval"


async def test_a_call_that_ran_under_the_old_session_belongs_to_no_claim_of_the_new_one(
    found: Opened,
) -> None:
    session = await store(found, busy(found.settings, Phase.RUNNING), {}, NOW_MS, "an importer")
    _, plan = await copied(found, session)
    assert plan.state.task is not None
    assert [call.epoch for call in plan.state.task.calls] == [0]


async def test_a_file_with_a_broken_chain_is_refused(found: Opened) -> None:
    session = await store(
        found, planned(found.settings, e.item({"type": "other", "text": "one"})), {}, NOW_MS, "an importer"
    )
    lines = [line.replace(b'"one"', b'"two"') for line in await file_of(found, session)]
    with pytest.raises(RolloutError, match="its chain is broken at entry"):
        plan_import(read_rollout(lines), newcomer(found.settings), {}, None)


async def test_a_file_that_ends_early_is_refused(found: Opened) -> None:
    session = await store(found, planned(found.settings), {}, NOW_MS, "an importer")
    lines = await file_of(found, session)
    with pytest.raises(RolloutError, match="it ends at entry"):
        plan_import(read_rollout(lines[:-1]), newcomer(found.settings), {}, None)


def recording(name: str) -> RolloutText:
    return read_rollout((TRANSCRIPTS / name / "rollout.jsonl").read_bytes().splitlines())


@pytest.mark.parametrize("name", sorted(path.name for path in TRANSCRIPTS.iterdir() if path.is_dir()))
def test_every_recorded_rollout_becomes_an_idle_session_with_its_history(
    name: str, settings: Settings
) -> None:
    from orchestrator.core.evolve import fold
    from orchestrator.core.state import State

    plan = plan_import(recording(name), newcomer(settings), {}, None)
    lines = [line.entry for line in recording(name).lines]
    told = fold(State(), [entry for entry in lines if entry is not None], 1)
    assert list(plan.state.history) == list(told.history)
    assert plan.state.tokens == told.tokens
    assert (plan.state.settings.model, plan.state.settings.cwd) == (told.settings.model, told.settings.cwd)
    assert plan.state.settings.sandbox_policy == told.settings.sandbox_policy
    assert (plan.state.status, plan.state.native) == ("idle", True)
    assert plan.state.facts.session_id == plan.facts.session_id


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            b'{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user"}}',
            "line 2: resp",
        ),
        (b'{"timestamp":"t","type":"dendro","payload":{"kind":"closed"}}', "line 2: a fact of Dendro's own"),
        (
            b'{"timestamp":"t","type":"event_msg","payload":{"type":"token_count","info":{"a":1}}}',
            "line 2: it does not fit",
        ),
    ],
)
def test_a_damaged_line_of_a_peer_is_named(line: bytes, said: str, settings: Settings) -> None:
    good = b'{"timestamp":"t","type":"session_meta","payload":{"id":"x"}}'
    with pytest.raises(BadLine) as caught:
        plan_import(read_rollout([good, line]), newcomer(settings), {}, None)
    assert str(caught.value).startswith(said)


WORKSPACE = {"mode": "workspace-write"}
FREE = {"mode": "danger-full-access"}


def turn(cwd: Path, approval: str, sandbox: Any) -> TurnSettings:
    return TurnSettings(str(cwd), approval, sandbox, "gpt-5")


@pytest.mark.parametrize(
    ("named", "counts"),
    [
        (("never", FREE), ("on-request", WORKSPACE)),
        (("never", {"mode": "read-only"}), ("on-request", {"mode": "read-only"})),
        (("untrusted", FREE), ("untrusted", WORKSPACE)),
        (("untrusted", {**WORKSPACE, "network_access": True}), ("untrusted", WORKSPACE)),
        (("untrusted", {**WORKSPACE, "writable_roots": ["/"]}), ("untrusted", WORKSPACE)),
        *((("untrusted", odd), ("untrusted", WORKSPACE)) for odd in ({}, "x", None, [FREE], {"type": "x"})),
        (("untrusted", {**WORKSPACE, "writable_roots": [5]}), ("untrusted", WORKSPACE)),
    ],
)
def test_strangers_file_permits_no_more_than_the_persons_settings(
    tmp_path: Path, named: tuple[str, Any], counts: tuple[str, Any]
) -> None:
    own = turn(tmp_path, "on-request", WORKSPACE)
    assert _bounded(own, turn(tmp_path / "below", *named), None) == turn(tmp_path / "below", *counts)


def test_commands_of_a_strangers_session_in_another_folder_only_read(tmp_path: Path) -> None:
    own, told = turn(tmp_path / "project", "never", WORKSPACE), turn(tmp_path, "never", WORKSPACE)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "link").symlink_to(tmp_path)
    for elsewhere in (told, turn(tmp_path / "project" / "link", "never", WORKSPACE)):
        assert _bounded(own, elsewhere, None).sandbox_policy == {"mode": "read-only"}
    copy = turn(tmp_path / "copies" / "s" / "f", "never", WORKSPACE)
    assert _bounded(own, copy, PortableFolder(str(tmp_path / "copies"), "f")) == copy
    free = turn(tmp_path / "project", "never", FREE)
    assert _bounded(free, turn(tmp_path, "never", FREE), None).sandbox_policy == FREE
