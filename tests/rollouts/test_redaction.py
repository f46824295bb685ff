"""Redaction: the text is nowhere any more, and chain, checkers, replay and import go on without it."""

from __future__ import annotations

import io
import json
import re
import uuid
import zipfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import orjson
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, Stored, StoredEntry, Submit
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import opened
from orchestrator.core.blobs import INLINE_BYTES, references
from orchestrator.core.entries import Entry, decode_entry
from orchestrator.core.evolve import fold
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.sender import Sender
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.core.state import PendingLookUp, State
from orchestrator.core.user_turns import UserTurn
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission
from orchestrator.protocol.ids import CallId, ResponseId, SnapshotId, SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.rollouts.bundle_export import OpenBundle
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.deletion import DeletedFiles, NotDeleted, delete_everywhere
from orchestrator.rollouts.file_format import read_rollout
from orchestrator.rollouts.imports import plan_import
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.redaction import (
    INSTEAD,
    WITH_WORDS,
    Act,
    NotRedacted,
    Plan,
    Wanted,
    finish_redactions,
    instead_of,
    plan_of,
    redact,
)
from orchestrator.rollouts.replay import fold_file, fold_session, instead_in
from orchestrator.rollouts.replay import instead_of as instead_in_lines
from orchestrator.rollouts.rollout_file import RolloutFile, locked, rollout_path
from orchestrator.rollouts.segments import Manifest
from orchestrator.rollouts.session_summary import Position
from orchestrator.rollouts.verify import audit_file
from orchestrator.runtime.loader import Cache, Loaded, load, restore_session
from tests.rollouts.conftest import kept
from tests.rollouts.deployments import NOW_MS, SETTINGS, Kept, newcomer, output, said
from tests.rollouts.test_bundle_writer import bundled, held

__all__ = ["kept"]
ANN = Sender("ann@host", "", "admin", "cli", "machine")
SECRET = "the number of ACME is 4711-0815"
LARGE = f"{SECRET} " + "and more of the page " * INLINE_BYTES
UPKEEP = f.Claimed("upkeep", "host", "uid:1", "0")
ACT = Act("personal data", ANN, f.Claimed("cli@host", "host", "uid:1", "0"), NOW_MS)


def worked() -> list[Entry]:
    """A task in which a person tells a secret, and a command prints it in a long output."""
    call = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": '{"command":["cat","x"]}'}
    shown = {"type": "exec_command_end", "call_id": "c", "stdout": LARGE, "stderr": "", "exit_code": 0}
    return [
        e.fact(f.TaskBegun(SubmissionId("1"), "user", SETTINGS, by=ANN)),
        said(f"look: {SECRET}"),
        Entry(e.EVENT_MSG, {"type": "user_message", "message": f"look: {SECRET}"}, "1"),
        e.fact(f.RequestBegun(1, "turn", 1)),
        e.item(call),
        e.fact(f.RequestCompleted(1)),
        Entry(e.EVENT_MSG, shown, "1"),
        output(LARGE),
        e.item(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
        ),
        e.fact(f.TaskEnded("completed")),
    ]


async def finished(kept: Kept) -> int:
    """Looks for what redactions owe, as upkeep does each minute; answers of how many sessions it was done."""
    return await finish_redactions(kept.stored, UPKEEP, partial(restore_session, kept.stored))


async def planned(kept: Kept, session: SessionId, *seqs: int, find: str = "") -> Plan:
    wanted = Wanted(session, seqs, (), re.compile(find) if find else None)
    return await plan_of(kept, await kept.head(session), wanted)


async def redacted(kept: Kept, session: SessionId, *seqs: int, find: str = "") -> int:
    return await redact(kept, kept.stored, await planned(kept, session, *seqs, find=find), ACT)


async def everything(kept: Kept, folder: Path) -> bytes:
    """All that Redis and the folders hold, with what is packed there unpacked."""
    import zstandard

    found: list[bytes] = []

    def take(data: object) -> None:
        if isinstance(data, bytes):
            found.append(data)
            if data.startswith(b"\x28\xb5\x2f\xfd"):
                found.append(zstandard.decompress(data, max_output_size=1 << 28))
        elif isinstance(data, dict):
            for key, value in data.items():
                take(key)
                take(value)
        elif isinstance(data, Iterable) and not isinstance(data, str):
            for value in data:
                take(value)

    reads = {b"string": "GET", b"hash": "HGETALL", b"set": "SMEMBERS"}
    for key in await kept.redis.keys("*"):
        kind = await kept.redis.type(key)
        if kind in reads:
            take(await kept.redis.execute_command(reads[kind], key))
        elif kind == b"stream":
            take(await kept.redis.xrange(key))
    for path in folder.rglob("*"):
        if path.is_file():
            take(path.read_bytes())
    return b"\n".join(found)


async def sealed(kept: Kept, session: SessionId, through: int) -> None:
    """The first entries go into the archive, as upkeep seals them."""
    head = await kept.head(session)
    claimed = await kept.broker.claims.claim_session(session, "u", uuid.uuid4().hex, parked=True)
    assert claimed is not None
    entries = [entry async for entry in kept.log(session, head.seq)]
    state = fold(State(), (decode_entry(entry.payload) for entry in entries), 1)
    snapshot = encode_snapshot(state, head.seq, head.head, kept.secret)
    assert isinstance(await kept.broker.commits.snapshot(claimed.claim, head.seq, snapshot), Stored)
    segment = await kept.stored.archive.write_segment(head.tree, session, bytes(32), entries[:through])
    manifest = Manifest().with_segment(segment).encode()
    assert isinstance(await kept.broker.commits.seal(claimed.claim, through, manifest), Stored)
    await kept.broker.claims.release(claimed.claim)


async def test_text_is_nowhere_and_chain_and_checkers_hold(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    plan = await planned(kept, session, 12)
    assert SECRET.encode() in await everything(kept, tmp_path)
    # The item, the event of the same output, and what the person had said: all have it.
    assert len(plan.entries[session]) == 2
    assert len(plan.texts) == 1
    assert await redacted(kept, session, find="ACME") == 4
    assert SECRET.encode() not in await everything(kept, tmp_path)
    head = await kept.head(session)
    audit = await audit_session(kept.stored, head)
    assert (audit.findings, audit.redacted) == ([], 4)
    assert INSTEAD in head.summary["title"]
    _, data = await bundled(kept, session)
    assert SECRET.encode() not in b"".join(_members(data))
    report = held(data, tmp_path)
    assert report.redacted == {("ann@host", "personal data"): 4}


def _members(data: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [archive.read(name) for name in archive.namelist()]


async def test_words_in_names_are_said_to_stay(kept: Kept) -> None:
    begins: dict[str, Any] = {"type": "patch_apply_begin", "call_id": "c", "auto_approved": True}
    path = {"/w/ACME-4711.txt": {"add": {"content": "x"}}}
    runs = {"type": "exec_command_begin", "call_id": "d", "command": ["ls"], "cwd": "/w/ACME-4711"}
    session = await kept.has(
        Entry(e.EVENT_MSG, {**begins, "changes": path}, "1"),
        Entry(e.EVENT_MSG, {**runs, "parsed_cmd": []}, "1"),
        Entry(e.EVENT_MSG, {**runs, "cwd": "/w", "parsed_cmd": []}, "1"),
        said("it is in ACME-4711"),
    )
    plan = await planned(kept, session, find="ACME-[0-9]{4}")
    assert plan.entries == {session: [8]}
    [told] = [copy for copy in plan.copies if not copy.goes]
    assert (told.place, "in 2 entries" in told.what) == (f"{session}:5", True)
    # A word of the protocol is no name of anybody.
    plan = await planned(kept, session, find="exec_command|changes|it is")
    assert [copy for copy in plan.copies if not copy.goes] == []


async def test_export_of_redacted_log_verifies_replays_and_is_imported(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    await redacted(kept, session, find="ACME")
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(await kept.file(session)))
    report = audit_file(path, None, None)
    assert report.findings == []
    assert "4 of them redacted" in report.shown
    folded, live = fold_file(path, None, None), await fold_session(kept, await kept.head(session), None)
    assert (folded.broken, folded.redacted, live.redacted) == (None, 4, 4)
    assert folded.state == live.state
    assert live.matches is None, "it was folded otherwise than by the worker that brought it to rest"
    with path.open("rb") as file:
        plan = plan_import(read_rollout(file), newcomer(), {}, None, instead=instead_in(path))
    assert len(plan.state.history) == len(live.state.history)
    assert "4 of its entries were redacted: what stands instead is imported" in plan.notes
    shaped = tmp_path / "shaped.jsonl"
    shaped.write_bytes(b"".join(await kept.file(session, full=False)))
    assert audit_file(shaped, None, None).findings == []
    (tmp_path / "run.zip").write_bytes((await bundled(kept, session))[1])
    with OpenBundle(tmp_path / "run.zip", None) as bundle:
        again = plan_import(
            read_rollout(bundle.lines()), newcomer(), {}, None, instead=instead_in_lines(bundle.lines())
        )
    assert len(again.state.history) == len(plan.state.history)


async def test_export_has_large_texts_that_stand_instead_as_its_log_does(kept: Kept, tmp_path: Path) -> None:
    path, inherited = tmp_path / "run.jsonl", orjson.dumps([said(SECRET).payload] * 60).decode()
    parent = f.ForkedAt(session=new_session_id(NOW_MS, 0, 1), seq=1, chain=bytes(32).hex())
    fork = await kept.has(e.fact(f.Forked(parent, inherited)))
    await redacted(kept, fork, find="ACME")
    lines, blobs = await kept.file(fork), dict[str, bytes]()
    path.write_bytes(b"".join(lines))
    live = await fold_session(kept, await kept.head(fork), None)
    assert fold_file(path, None, None).state == live.state
    text, instead = read_rollout(lines, blobs), instead_in_lines(lines, blobs)
    plan = plan_import(text, newcomer(), blobs, None, instead=instead)
    assert list(plan.state.history) == list(live.state.history)
    assert blobs.keys() == {digest for item in live.state.history for digest in references(item)}


async def test_model_is_shown_what_stands_instead_by_a_worker_that_had_the_words(kept: Kept) -> None:
    session = await kept.has(*worked())
    before = await kept.head(session)
    words = await fold_session(kept, before, None)
    assert SECRET in repr(list(words.state.history))
    await redacted(kept, session, find="ACME")
    claimed = await kept.broker.claims.claim_session(session, "w", "k", parked=True)
    assert claimed is not None
    cache = Cache()
    cache.keep(session, Loaded(Position(words.state, before.seq, before.head)))
    loaded = await load(_source(kept), claimed, cache)
    assert SECRET not in repr(loaded.position.state)
    assert INSTEAD in repr(list(loaded.position.state.history))
    assert len(loaded.position.state.history) == len(words.state.history)


def _source(kept: Kept):  # type: ignore[no-untyped-def]
    return kept.stored


async def test_sealed_entries_are_written_anew_in_the_archive(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    await sealed(kept, session, 9)
    [old] = Manifest.decode((await kept.head(session)).manifest).segments
    await redacted(kept, session, find="ACME")
    [new] = Manifest.decode((await kept.head(session)).manifest).segments
    assert (new.first, new.last, new.after) == (old.first, old.last, old.after)
    assert new.name != old.name
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert (await audit_session(kept.stored, await kept.head(session))).findings == []
    assert await kept.stored.archive.sealed_through(TreeId(session), session) == 9


async def test_words_are_not_read_from_a_segment_that_is_not_written_anew_yet(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def died(*_: object) -> None:
        raise NotRedacted("the process died")

    session = await kept.has(*worked())
    await sealed(kept, session, 9)
    with monkeypatch.context() as context:
        context.setattr("orchestrator.rollouts.redaction._finish", died)
        with pytest.raises(NotRedacted, match="died"):
            await redacted(kept, session, find="ACME")
    head = await kept.head(session)
    assert not [
        entry for entry in [one async for one in kept.log(session, head.seq)] if b"ACME" in entry.payload
    ]
    claimed = await kept.broker.claims.claim_session(session, "u", uuid.uuid4().hex, parked=True)
    assert claimed is not None
    refused = await kept.broker.commits.archive(claimed.claim, None)
    assert not isinstance(refused, Stored), "its copies in the archive are owed"


async def test_log_that_is_read_from_a_redacted_and_sealed_entry_on_is_whole(kept: Kept) -> None:
    session = await kept.has(*worked())
    await sealed(kept, session, 9)
    await redacted(kept, session, find="ACME")
    head = await kept.head(session)
    numbers = sorted(await kept.broker.logs.redacted_numbers(session))
    for after in range(head.seq):
        read = [entry.seq async for entry in kept.log(session, head.seq, after)]
        assert read == list(range(after + 1, head.seq + 1)), f"{after}, redacted: {numbers}"


async def test_texts_and_segments_that_nothing_names_go_too(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    head = await kept.head(session)
    await kept.stored.blobs.put(head.tree, f"a step that was refused: {SECRET}".encode())
    entries = [entry async for entry in kept.log(session, head.seq)]
    for through in (12, 8, 6):
        await kept.stored.archive.write_segment(head.tree, session, bytes(32), entries[:through])
    assert SECRET.encode() in await everything(kept, tmp_path)
    await redacted(kept, session, find="ACME")
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_what_a_writer_of_the_archive_has_not_finished_goes_too(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    head = await kept.head(session)
    digest = await kept.stored.blobs.put(head.tree, LARGE.encode())
    folder = tmp_path / "archive" / session
    left = [
        folder / session / ".1-9-0a1b2c3d.jsonl.zst.00ff00ff.part",
        folder / "blobs" / f".{digest}.zst.0f.part",
    ]
    others = folder / "blobs" / f".{'0' * 64}.zst.00ff00ff.part"
    for path in (*left, others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SECRET.encode() if path in left else b"of another text")
    await redacted(kept, session, find="ACME")
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert ([path.exists() for path in left], others.exists()) == ([False, False], True)


async def test_entries_with_long_tables_of_numbers_are_redacted_in_several_commits(kept: Kept) -> None:
    told = {
        "Ok": {"content": [{"type": "text", "text": SECRET}], "structuredContent": {"rows": [*range(20_000)]}}
    }
    call = {"server": "s", "tool": "t", "arguments": {}}
    ended = {"type": "mcp_tool_call_end", "call_id": "c", "invocation": call, "result": told}
    session = await kept.has(*(Entry(e.EVENT_MSG, ended, "1") for _ in range(12)), said(SECRET))
    head = await kept.head(session)
    assert await redacted(kept, session, find="ACME") == 13
    claims = [entry async for entry in kept.log(session, 99, head.seq) if b'"redacted"' in entry.payload]
    assert len(claims) == 13
    assert (await audit_session(kept.stored, await kept.head(session))).findings == []


def test_what_stands_instead_of_a_queued_turn_is_a_turn() -> None:
    from orchestrator.rollouts.redaction import instead_of

    turn = {
        "type": "user_turn",
        "items": [{"type": "text", "text": SECRET}],
        "cwd": "/w",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "m",
        "summary": "auto",
        "personality": "friendly",
    }
    line = {"type": "dendro", "payload": {"kind": "queued", "id": "1", "op": turn}}
    made = instead_of(line, lambda _: None)["payload"]["op"]
    assert SECRET not in repr(made)
    assert UserTurn.of(made).op.type == "user_turn"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "error", "message": SECRET, "codex_error_info": "bad_request", "reason": "other_turn"},
        {"type": "turn_aborted", "reason": "replaced"},
        {"type": "task_started", "model_context_window": None, "collaboration_mode_kind": "plan"},
        {"type": "exec_command_output_delta", "call_id": "c", "stream": "stderr", "chunk": "YQ=="},
        {"type": "subagent_lifecycle", "event": "status", "status": "canceled", "cancel": "proved"},
        {"type": "mcp_startup_update", "server": "s", "status": {"state": "failed", "error": SECRET}},
    ],
    ids=lambda message: message["type"],
)
def test_what_stands_instead_of_an_event_has_the_choices_that_a_client_decodes_it_by(
    message: dict[str, Any],
) -> None:
    from orchestrator.rollouts.redaction import instead_of

    line = {"type": "event_msg", "id": "t", "payload": message}
    made = instead_of(line, lambda _: None)["payload"]
    chosen = ("codex_error_info", "reason", "collaboration_mode_kind", "stream", "cancel")
    assert {name: made.get(name) for name in chosen} == {name: message.get(name) for name in chosen}
    assert SECRET not in repr(made)
    assert made.get("status", {}) in ("canceled", {}, {"state": "failed", "error": "[redacted]"})


def test_reason_in_words_is_replaced() -> None:
    from orchestrator.rollouts.redaction import instead_of

    asked = {"type": "exec_approval_request", "call_id": "c", "command": ["x"], "reason": SECRET}
    line = {"type": "event_msg", "payload": asked}
    assert instead_of(line, lambda _: None)["payload"]["reason"] == "[redacted]"


@pytest.mark.parametrize("copies", ["have the text", "are without a name", "are written anew"])
async def test_upkeep_finishes_what_a_process_that_died_has_left(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: str
) -> None:
    from orchestrator.rollouts import redaction

    session = await kept.has(*worked())
    await sealed(kept, session, 9)

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if copies == "have the text":
            patch.setattr(redaction, "_finish", dies)
        elif copies == "are without a name":
            patch.setattr(kept.stored.archive, "remove_segment", dies)
        else:
            patch.setattr(kept.broker.commits, "rewrite", dies)
        await redacted(kept, session, find="ACME")
    assert SECRET.encode() in await everything(kept, tmp_path), "the manifest names segments with it"
    assert await finished(kept) == 1
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert await finished(kept) == 0
    assert (await audit_session(kept.stored, await kept.head(session))).findings == []


async def test_redactions_are_finished_though_an_archive_of_another_is_broken(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.rollouts import redaction

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    broken, whole = await kept.has(*worked()), await kept.has(*worked())
    for each in (broken, whole):
        await sealed(kept, each, 9)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(redaction, "_finish", dies)
            await redacted(kept, each, find="ACME")
    [segment] = Manifest.decode((await kept.head(broken)).manifest).segments
    [file] = [path for path in tmp_path.rglob("*") if str(path).endswith(segment.name)]
    kept_bytes = file.read_bytes()
    file.write_bytes(b"no segment")
    assert await finished(kept) == 1
    assert await kept.broker.logs.redacting(whole) is None
    assert await kept.broker.logs.redacting(broken) is not None, "it is owed"
    file.write_bytes(kept_bytes)
    assert await finished(kept) == 1
    assert SECRET.encode() not in await everything(kept, tmp_path)


@pytest.mark.parametrize("shard", [0, 15])
async def test_redaction_is_gone_on_with_in_each_shard(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    from orchestrator.rollouts import redaction

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    def new_id(now_ms: int, _: int, random: int) -> SessionId:
        return new_session_id(now_ms, shard, random)

    monkeypatch.setattr("tests.rollouts.deployments.new_session_id", new_id)
    session = await kept.has(*worked())
    assert kept.broker.keys.shard_of(session) == shard < kept.broker.config.shards <= 16
    await sealed(kept, session, 9)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(redaction, "_finish", dies)
        await redacted(kept, session, find="ACME")
    assert await finished(kept) == 1
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_redactions_are_finished_though_the_archive_does_not_answer_for_another(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from orchestrator.rollouts import redaction

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    sessions = [await kept.has(*worked()) for _ in range(3)]
    for each in sessions:
        await sealed(kept, each, 9)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(redaction, "_finish", dies)
            await redacted(kept, each, find="ACME")
    away, bytes_of = sessions[1], kept.stored.archive._objects.get

    def answers(name: str) -> Any:
        if away in name:
            raise ArchiveUnavailable("no answer from the store")
        return bytes_of(name)

    with monkeypatch.context() as patch:
        patch.setattr(kept.stored.archive._objects, "get", answers)
        assert await finished(kept) == 2
    owed = [each for each in sessions if await kept.broker.logs.redacting(each) is not None]
    assert owed == [away]
    assert f"session {away}: its redaction cannot be finished: no answer" in caplog.text
    assert await finished(kept) == 1
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_archived_log_that_does_not_follow_from_itself_is_a_broken_archive_to_upkeep(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.rollouts.segments import BrokenArchive
    from orchestrator.runtime.loader import BrokenLog
    from workers import upkeep

    async def broken(*_: object) -> bool:
        raise BrokenLog("entry 4 does not follow from the one before it")

    monkeypatch.setattr(upkeep, "restore_session", broken)
    with pytest.raises(BrokenArchive, match="entry 4"):
        await upkeep.restored(kept.stored, await kept.has())


async def dies_at(kept: Kept, monkeypatch: pytest.MonkeyPatch, commit: int, plan: Plan) -> None:
    """A redaction whose process dies before one of its commits, of one entry each."""
    from orchestrator.rollouts import redaction

    real, left = kept.broker.commits.commit, [commit]

    async def commits(request: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return await real(request)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(redaction, "AT_ONCE", 1)
        patch.setattr(kept.broker.commits, "commit", commits)
        await redact(kept, kept.stored, plan, ACT)


@pytest.mark.parametrize("commit", [2, 3, 4, 5])
async def test_redaction_whose_process_dies_between_its_commits_is_done_by_upkeep(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    await sealed(kept, session, 9)
    plan = await planned(kept, session, find="ACME")
    assert (list(plan.entries), plan.count) == ([session, fork], 5)
    await dies_at(kept, monkeypatch, commit, plan)
    assert SECRET.encode() in await everything(kept, tmp_path)
    assert await finished(kept) >= 1
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert await finished(kept) == 0
    for each, seqs in plan.entries.items():
        head = await kept.head(each)
        assert (head.holder, (await audit_session(kept.stored, head)).findings) == (None, [])
        told = [one async for one in kept.log(each, head.seq)]
        facts = [f.decode(decode_entry(one.payload).payload) for one in told if b'"redacted"' in one.payload]
        stated = [fact for fact in facts if isinstance(fact, f.Redacted)]
        assert sorted(fact.seq for fact in stated) == sorted(seqs), "each once"
        assert {(fact.why, fact.by) for fact in stated} == {("personal data", ANN)}


async def test_redaction_is_gone_on_with_when_its_other_session_is_at_rest_or_was_archived(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    await sealed(kept, session, 9)
    plan = await planned(kept, session, find="ACME")
    await dies_at(kept, monkeypatch, 1 + len(plan.entries[session]), plan)
    held = await kept.broker.claims.claim_session(fork, "w", "k", parked=True)
    assert held is not None
    assert await finished(kept) == 0
    assert await kept.broker.logs.redacting(session), "the fork is owed"
    with pytest.raises(NotDeleted, match=f"words of {fork} are still to be redacted"):
        await delete_everywhere(kept.stored, [await kept.head(session)], owed=True)
    manifest = Manifest.decode((await kept.head(session)).manifest)
    inside = [one for each in manifest.segments for one in await kept.stored.archive.read_segment(each)]
    assert inside
    assert not any(SECRET.encode() in one.payload for one in inside), "its own copies are gone"
    await kept.broker.claims.release(held.claim)
    brought = list[SessionId]()

    async def restored(other: SessionId) -> bool:
        brought.append(other)
        await kept.redis.hset(kept.broker.keys.session(fork), "archived", "")
        return True

    await kept.redis.hset(kept.broker.keys.session(fork), "archived", "1")
    assert await finish_redactions(kept.stored, UPKEEP, restored) == 1
    assert (brought, await finished(kept)) == ([fork], 0)
    await delete_everywhere(kept.stored, [await kept.head(session)], owed=True)
    assert await kept.broker.logs.head(session) is None
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_redaction_whose_other_session_is_at_work_for_months_is_gone_on_with(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, done, another = await kept.has(*worked()), await kept.has(*worked()), await kept.has(*worked())
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    await redacted(kept, done, find="ACME")
    await dies_at(kept, monkeypatch, 1 + len(plan.entries[session]), plan)
    keys = kept.broker.keys
    lists = {keys.redactions(keys.shard_of(each)) for each in (session, done, another)}
    assert len(lists) == 1
    [known] = lists
    for each in (session, done):
        await kept.redis.zadd(known, {each: await kept.broker.server_ms() - 31 * 86_400_000})
    await redacted(kept, another, find="ACME")
    assert await kept.redis.zrange(known, 0, -1) == [session.encode(), another.encode()]
    assert await finished(kept) == 1
    assert not await _words_of(kept, fork)


async def _words_of(kept: Kept, session: SessionId) -> list[int]:
    head = await kept.head(session)
    return [entry.seq async for entry in kept.log(session, head.seq) if b"ACME" in entry.payload]


async def test_second_redaction_does_first_what_the_one_before_owes(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.has(*worked(), said("and the other number is 0815-0815"))
    await dies_at(kept, monkeypatch, 2, await planned(kept, session, find="ACME"))
    assert await redacted(kept, session, find="0815-0815") == 1
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert await finished(kept) == 0


@pytest.mark.parametrize("shorter", [False, True])
async def test_entries_that_redis_has_lost_since_are_not_taken_by_their_numbers(
    kept: Kept, shorter: bool
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    plan.chains[fork] = bytes(32)
    before = await kept.head(fork)
    if shorter:
        plan.entries[fork].append(before.seq + 1)
    assert await redact(kept, kept.stored, plan, ACT) == len(plan.entries[session])
    assert (await kept.head(fork)).seq == before.seq
    assert await finished(kept) == 0


@pytest.mark.parametrize("lost", [False, True])
async def test_session_that_begins_to_work_meanwhile_is_said_to_be_owed_by_those_that_lost_text(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    if lost:
        plan.chains[session] = bytes(32)
    begins, real = list[Any](), kept.broker.requests.forget_prompts

    async def forgotten(*asked: Any) -> int:
        begins.append(await kept.broker.claims.claim_session(fork, "w", "k", parked=True))
        return await real(*asked)

    monkeypatch.setattr(kept.broker.requests, "forget_prompts", forgotten)
    with pytest.raises(NotRedacted, match="redacted at rest") as refused:
        await redact(kept, kept.stored, plan, ACT)
    assert ("upkeep` does the rest" in str(refused.value)) == (not lost)
    assert (await kept.broker.logs.redacting(session) is None) == lost
    await kept.broker.claims.release(begins[0].claim)
    assert await finished(kept) == (0 if lost else 1)
    assert bool(await _words_of(kept, fork)) == lost


LEASE_S = 60.0
PAGE = 5


@dataclass
class SlowLogs(Kept):
    """Where a page of a log takes most of a lease to be read."""

    clock: list[float]
    left_s: list[float]
    """Seconds that each lease has left when a page has been read."""

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        async for entry in super().log(session, through, after):
            if entry.seq % PAGE == 0:
                await self._take_long()
            yield entry

    async def _take_long(self) -> None:
        self.clock[0] += LEASE_S * 0.75
        now_ms = await self.broker.server_ms()
        for shard in range(self.broker.config.shards):
            leases = self.broker.keys.leases(shard, "default")
            for one in await self.redis.zrange(leases, 0, -1):
                ends_ms = await self.redis.zscore(leases, one) - LEASE_S * 750
                self.left_s.append((ends_ms - now_ms) / 1000)
                await self.redis.zadd(leases, {one: ends_ms})


async def test_sessions_are_held_for_as_long_as_it_takes_to_read_their_logs(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    assert list(plan.entries) == [session, fork]
    clock = [0.0]
    broker = Broker(Connection(kept.redis, kept.redis), BrokerConfig(lease_s=LEASE_S), lambda: clock[0])
    stored = replace(kept.stored, broker=broker)
    slow = SlowLogs(stored, kept.texts, kept.rollout_files, kept.redis, clock, [])
    monkeypatch.setattr("orchestrator.rollouts.full_log.PAGE", PAGE)
    assert await redact(slow, stored, plan, ACT) == plan.count
    assert len(slow.left_s) > 4
    assert min(slow.left_s) > 0


async def test_upkeep_leaves_the_mark_of_a_redaction_that_began_meanwhile(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.rollouts import redaction

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    session = await kept.has(*worked())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(redaction, "_finish", dies)
        await redacted(kept, session, find="ACME")
    key, real = kept.broker.keys.session(session), kept.broker.claims.claim_at_rest
    meanwhile = f"owed {session}:4:{bytes(32).hex()}"

    async def claims(*asked: Any) -> Any:
        await kept.redis.hset(key, "redacting", meanwhile)
        return await real(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(kept.broker.claims, "claim_at_rest", claims)
        await finished(kept)
    assert await kept.redis.hget(key, "redacting") == meanwhile.encode()


async def test_entries_that_name_the_session_and_sessions_at_work_are_refused(kept: Kept) -> None:
    session = await kept.has(*worked())
    for seq in (1, 2, 3, 5, 99):
        with pytest.raises(NotRedacted):
            await planned(kept, session, seq)
    plan = await planned(kept, session, find="ACME")
    assert await kept.broker.claims.claim_session(session, "w", "k", parked=True) is not None
    with pytest.raises(NotRedacted, match="at work"):
        await redact(kept, kept.stored, plan, ACT)
    busy = await kept.has(*worked()[:-1])
    with pytest.raises(NotRedacted, match="in the middle of a task"):
        await redacted(kept, busy, find="ACME")
    assert (await kept.head(busy)).holder is None


async def test_input_that_a_session_was_closed_over_loses_its_words(kept: Kept, tmp_path: Path) -> None:
    waits = {"type": "user_input", "items": [{"type": "text", "text": f"and look at {SECRET}"}]}
    begun, *entries = worked()
    queued = e.fact(f.InputQueued(SubmissionId("2"), UserTurn.of(waits), None, by=ANN))
    session = await kept.has(begun, queued, *entries, e.fact(f.Closed()))
    assert await redacted(kept, session, find="ACME") > 0
    assert b"4711-0815" not in await everything(kept, tmp_path)
    folded = await fold_session(kept, await kept.head(session), None)
    assert [one.id for one in folded.state.queue] == ["2"]


async def test_session_that_is_due_is_given_back_due_whether_it_was_redacted_or_not(kept: Kept) -> None:
    rests, works, fork = await kept.has(*worked()), await kept.has(*worked()[:-1]), await kept.has(*worked())
    plans = {each: await planned(kept, each, find="ACME") for each in (rests, works)}
    for each in (rests, works, fork):
        await kept.make_due(each)
    assert await redact(kept, kept.stored, plans[rests], ACT) > 0
    for _ in range(9):
        with pytest.raises(NotRedacted, match="in the middle of a task"):
            await redact(kept, kept.stored, plans[works], ACT)
    # Each of several is looked at before the first one is changed.
    both = await planned(kept, fork, find="ACME")
    both.entries[works], both.heads[works] = plans[works].entries[works], plans[works].heads[works]
    both.chains[works] = plans[works].chains[works]
    with pytest.raises(NotRedacted, match="in the middle of a task"):
        await redact(kept, kept.stored, both, ACT)
    assert [await kept.is_due(each) for each in (rests, works, fork)] == [True, True, True]
    assert (await kept.head(works)).claims_without_progress <= 1


async def a_fork(kept: Kept, source: SessionId) -> SessionId:
    """A session that begins with all that another one has said."""
    head = await kept.head(source)
    content = orjson.dumps(list((await fold_session(kept, head, None)).state.history)).decode()
    parent = f.ForkedAt(session=source, seq=head.seq, chain=head.head.hex())
    fork = await kept.has(e.fact(f.Forked(parent, content)))
    told = orjson.dumps({**(await kept.head(fork)).summary, "forked_from": source})
    await kept.redis.hset(kept.broker.keys.session(fork), "meta", told)
    return fork


@pytest.mark.parametrize("at_work", [True, False])
async def test_redaction_of_several_sessions_changes_nothing_where_a_later_one_is_not_at_rest(
    kept: Kept, at_work: bool
) -> None:
    session = await kept.has(*worked())
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    assert list(plan.entries) == [session, fork]
    before, stored = await kept.head(session), await _stored(kept, plan)
    assert stored
    if at_work:
        assert await kept.broker.claims.claim_session(fork, "w", "k", parked=True) is not None
    else:
        await kept.redis.hset(kept.broker.keys.session(fork), "status", "awaiting_answer")
    with pytest.raises(NotRedacted, match="at rest"):
        await redact(kept, kept.stored, plan, ACT)
    after = await kept.head(session)
    assert (after.seq, after.holder, await _stored(kept, plan)) == (before.seq, None, stored)


async def _stored(kept: Kept, plan: Plan) -> list[str]:
    """The large texts of a plan that are there."""
    return [digest for tree, digest in plan.texts if await kept.stored.blobs.get(tree, digest) is not None]


async def test_large_text_stays_until_the_last_session_of_its_tree_is_redacted(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins to work when all were seen at rest."""
    from orchestrator.rollouts import redaction

    session = await kept.has(*worked())
    other = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    tree = TreeId(session)
    plan.heads[other] = replace(plan.heads[other], tree=tree)
    held = await kept.broker.claims.claim_session(other, "w", "k", parked=True)
    assert held is not None

    async def seen(*_: object) -> None:
        pass

    with monkeypatch.context() as patch, pytest.raises(NotRedacted, match=f"{other} is at work"):
        patch.setattr(redaction, "_see_at_rest", seen)
        await redact(kept, kept.stored, plan, ACT)
    assert (await kept.head(session)).seq > plan.heads[session].seq, "the first one is done"
    shared = [digest for of, digest in plan.texts if of == tree]
    assert shared
    assert all([await kept.stored.blobs.get(tree, digest) for digest in shared])
    await kept.broker.claims.release(held.claim)
    await redact(kept, kept.stored, await planned(kept, session, find="ACME"), ACT)
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_rollout_file_loses_the_text_on_each_machine(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    path = rollout_path(tmp_path / "sessions", str(session), int(NOW_MS))
    file = RolloutFile(path, session, TreeId(session))
    ports = _Ports(kept)
    await file.bring_up_to(ports, await kept.head(session))
    assert SECRET in path.read_text()
    await redacted(kept, session, find="ACME")
    other = tmp_path / "other" / path.relative_to(tmp_path / "sessions")
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    await file.bring_up_to(ports, await kept.head(session))
    assert SECRET not in path.read_text()
    assert audit_file(path, None, None).findings == []
    assert await DeletedFiles(tmp_path / "sessions").remove_redacted(kept.broker) == 0
    assert await DeletedFiles(tmp_path / "other").remove_redacted(kept.broker) == 1
    assert not other.exists()


class _Ports:
    """The sources of a rollout's file."""

    def __init__(self, kept: Kept) -> None:
        self.broker, self.texts, self.archive, self.files = (
            kept.broker,
            kept.texts,
            kept.stored.archive,
            locked,
        )


async def test_unexplained_hole_and_another_line_instead_are_found(kept: Kept) -> None:
    session = await kept.has(*worked())
    await redacted(kept, session, 6)
    key = kept.broker.keys.redacted(session)
    stored = (await kept.redis.hget(key, "6")).replace(INSTEAD.encode(), b"[something]")
    await kept.redis.hset(key, "6", stored)
    [found] = (await audit_session(kept.stored, await kept.head(session))).findings
    assert "another line stands instead" in found.reason
    await kept.redis.hdel(key, "6")
    [found] = (await audit_session(kept.stored, await kept.head(session))).findings
    assert "missing" in found.reason


async def test_copies_that_stay_are_listed(kept: Kept) -> None:
    call = {"type": "function_call", "name": "shell", "call_id": "d", "arguments": "{}"}
    more = [
        e.fact(f.TaskBegun(SubmissionId("2"), "user", SETTINGS)),
        e.fact(f.RequestBegun(2, "turn", 1)),
        e.item(call),
        e.fact(f.RequestCompleted(2)),
        e.fact(f.TaskEnded("completed")),
    ]
    session = await kept.has(*worked(), *more)
    plan = await planned(kept, session, find="ACME")
    stays = [copy.what for copy in plan.copies if not copy.goes]
    assert len(stays) == 2, "both requests behind the words"
    assert all("was sent with it" in what for what in stays)


async def test_requests_beyond_the_bound_are_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.rollouts import redaction

    monkeypatch.setattr(redaction, "MOST_ENTRIES", 6)
    more = [e.fact(f.TaskBegun(SubmissionId("2"), "user", SETTINGS))]
    for number in range(2, 11):
        more += [e.fact(f.RequestBegun(number, "turn", 1)), e.fact(f.RequestCompleted(number))]
    session = await kept.has(*worked(), *more, e.fact(f.TaskEnded("completed")))
    plan = await planned(kept, session, find="ACME")
    stays = [copy.what for copy in plan.copies if not copy.goes]
    assert sum(what.startswith("request ") for what in stays) == 6
    assert stays[6:] == ["4 further requests, each of which was sent with it"]


async def test_provider_gets_no_encrypted_words_back(kept: Kept) -> None:
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "sealed words"}
    session = await kept.has(*worked(), e.item(thought))
    await redacted(kept, session, 15)
    folded = await fold_session(kept, await kept.head(session), None)
    assert list(folded.state.history)[-1] == {"type": "reasoning", "summary": []}


async def test_prompts_and_archived_texts_go_and_a_text_that_another_entry_needs_stays(
    kept: Kept, tmp_path: Path
) -> None:
    session = await kept.has(*worked())
    await kept.broker.requests.add_to_history("ann@host", "k", (session, f"look: {SECRET}"), b"12345678")
    await kept.broker.requests.add_to_history("ann@host", "l", (session, "something else"), b"12345678")
    [(tree, digest)] = (await planned(kept, session, 12)).texts
    await kept.stored.archive.write_blob(tree, digest, LARGE.encode())
    await redact(kept, kept.stored, await planned(kept, session, find="ACME"), ACT)
    assert not await kept.stored.archive.has_blob(tree, digest)
    left = await everything(kept, tmp_path)
    assert SECRET.encode() not in left
    assert b"something else" in left


async def test_prompts_of_all_who_gave_words_go_and_first_so_that_a_second_call_finds_them(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from orchestrator.rollouts import redaction

    bob = replace(ANN, who="bob@host")
    letter = {"seq": 1, "kind": "message", "content": {"by": {"who": "eve@host"}}}
    session = await kept.has(*worked(), e.fact(f.Named("work", bob)))
    steered = e.fact(f.Steered(SubmissionId("2"), {"type": "message"}, bob))
    assert redaction._givers(steered.payload) == {"bob@host"}
    assert redaction._givers({"kind": "mail", "mail": letter}) == {"eve@host"}
    for who in ("ann@host", "bob@host"):
        await kept.broker.requests.add_to_history(who, "k", (session, f"look: {SECRET}"), b"12345678")
    plan = await planned(kept, session, find="ACME")
    assert plan.people == {"ann@host", "bob@host"}

    async def dies(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(redaction, "_commit", dies)
        with pytest.raises(ConnectionError):
            await redact(kept, kept.stored, plan, ACT)
    for who in ("ann@host", "bob@host"):
        assert await kept.broker.requests.forget_prompts(who, bool) == 0
    assert await redacted(kept, session, find="ACME") > 0
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_prompt_on_its_way_into_a_history_does_not_come_there_behind_the_redaction(kept: Kept) -> None:
    def typed(id: str, text: str) -> tuple[PendingLookUp, bytes]:
        op = ops.AddToHistory(text=text)
        asked = PendingLookUp(SubmissionId(id), written(op), "c", "ann@one")
        return asked, encode_submission(Submission(asked.id, op))

    async def comes(asked: PendingLookUp) -> bool:
        key = f"{other}|{asked.key}"
        return await kept.broker.requests.add_to_history("ann@one", key, (other, "typed"), b"12345678")

    session = await kept.has(*worked())
    read, unread, harmless = typed("1", LARGE), typed("2", f"look: {SECRET}"), typed("3", "something else")
    asked = read[0]
    other = await kept.has(e.fact(f.LookUpAsked(asked.id, asked.op, asked.client, asked.who)))
    await kept.make_due(other)
    for to, (each, line) in ((other, unread), (other, harmless), (session, unread)):
        await kept.broker.commits.submit(Submit(to, "c", each.id, line, sender="ann@two"))
    torn = await kept.has()
    await kept.make_due(torn)
    await kept.redis.xadd(kept.broker.keys.sq(torn), {"k": "submission"})
    plan = await planned(kept, session, find="ACME")
    waits = [copy for copy in plan.copies if copy.place == f"{session}:sq"]
    assert [(copy.goes, copy.what[:12]) for copy in waits] == [(False, "1 submission")]
    await redact(kept, kept.stored, plan, ACT)
    assert [await comes(each) for each, _ in (read, unread, harmless)] == [False, False, True]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("stands", ["due", "held", "quarantined"])
async def test_prompt_that_a_session_owes_to_a_history_does_not_come_behind_the_redaction(
    kept: Kept, stands: str, is_there: bool
) -> None:
    """Nothing waits in its queue any more: a worker has left the session, has it, or was lost too often.

    The worker may have added the prompt, and was lost before the log said so.
    """
    asked = PendingLookUp(SubmissionId("1"), written(ops.AddToHistory(text=LARGE)), "c", "ann@one")
    session = await kept.has(*worked())
    other = await kept.has(e.fact(f.LookUpAsked(asked.id, asked.op, asked.client, asked.who)))
    match stands:
        case "due":
            await kept.make_due(other)
        case "held":
            assert await kept.broker.claims.claim_session(other, "a worker", "its claim", parked=True)
        case _:
            await kept.redis.hset(kept.broker.keys.session(other), "quarantined", "1")
    add = "ann@one", f"{other}|{asked.key}", (other, LARGE), b"12345678"
    if is_there:
        assert await kept.broker.requests.add_to_history(*add)
    await redact(kept, kept.stored, await planned(kept, session, find="ACME"), ACT)
    assert not await kept.broker.requests.add_to_history(*add)
    assert await kept.broker.requests.forget_prompts("ann@one", bool) == 0


async def test_text_that_another_entry_names_stays(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.rollouts import redaction

    session = await kept.has(*worked())
    [(_, digest)] = (await planned(kept, session, find="ACME")).texts
    is_redactable = redaction.is_redactable
    monkeypatch.setattr(redaction, "is_redactable", lambda seq, line: seq != 12 and is_redactable(seq, line))
    plan = await planned(kept, session, find="ACME")
    assert plan.texts == []
    await redact(kept, kept.stored, plan, ACT)
    assert await kept.stored.blobs.get(TreeId(session), digest) is not None
    assert [copy.place for copy in plan.copies if "cannot be redacted" in copy.what] == [f"{session}:12"]


@pytest.mark.parametrize("dies", [False, True])
async def test_text_stays_that_is_named_by_an_entry_written_since_copies_were_looked_for(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """An agent inherits words that the redaction has not come to; it names the text in its conversation."""
    session = await kept.has(*worked())
    plan = await planned(kept, session, find="ACME")
    [(tree, digest)] = plan.texts
    if dies:
        await dies_at(kept, monkeypatch, 2, plan)
    agent = await a_fork(kept, session)
    await kept.redis.hset(kept.broker.keys.session(agent), mapping={"tree": tree, "agent_id": 1})
    assert await finished(kept) == 1 if dies else await redact(kept, kept.stored, plan, ACT)
    assert await kept.stored.blobs.get(tree, digest) is not None
    assert await finished(kept) == 0


async def test_queue_of_events_goes_and_another_digest_is_found(kept: Kept) -> None:
    session = await kept.has(*worked())
    keys = kept.broker.keys
    assert await kept.redis.exists(keys.eq(session)) == 1
    await redacted(kept, session, 6)
    assert await kept.redis.exists(keys.eq(session)) == 0
    stored = await kept.redis.hget(keys.redacted(session), "6")
    [entry] = await kept.broker.logs.read_rollout(session, 5, 1)
    assert entry.digest.hex().encode() in stored
    log = [line async for line in kept.log(session, (await kept.head(session)).seq)]
    facts = [decode_entry(line.payload).payload for line in log]
    told = next(fact for fact in facts if fact.get("kind") == f.Redacted.kind)
    assert (told["seq"], told["digest"], told["log"]) == (6, entry.digest.hex(), f"session:{session}")


@pytest.mark.parametrize("more", [0, 8])
async def test_each_page_of_a_log_has_the_redacted_entries_in_their_places(kept: Kept, more: int) -> None:
    session = await kept.has(*worked(), *(said(f"again: {SECRET}") for _ in range(more)), said("thanks"))
    await redacted(kept, session, find="ACME")
    last = (await kept.head(session)).seq
    for count in (1, 2, 3, 100):
        for after in range(last):
            page = await kept.broker.logs.read_rollout(session, after, count)
            here = [entry.seq for entry in page]
            assert here == list(range(after + 1, min(after + count, last) + 1)), (after, count)


async def test_state_that_the_words_carry_is_not_changed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.rollouts import redaction

    session = await kept.has(*worked())

    def another(line: dict[str, Any], _: object) -> dict[str, Any]:
        return {**line, "type": "event_msg"}

    await kept.broker.requests.add_to_history("ann@host", "k", (session, f"look: {SECRET}"), b"12345678")
    prompts = await kept.broker.requests.history_head("ann@host", b"12345678")
    plan = await planned(kept, session, 6)
    monkeypatch.setattr(redaction, "instead_of", another)
    with pytest.raises(NotRedacted, match="another state"):
        await redact(kept, kept.stored, plan, ACT)
    assert (await kept.head(session)).holder is None
    assert await kept.broker.requests.history_entry("ann@host", prompts.log_id, 0) is not None


async def test_forks_lose_what_they_had_inherited(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(*worked())
    items = list((await fold_session(kept, await kept.head(session), None)).state.history)
    fork = await a_fork(kept, session)
    plan = await planned(kept, session, find="ACME")
    assert set(plan.entries) == {session, fork}
    await redact(kept, kept.stored, plan, ACT)
    assert SECRET.encode() not in await everything(kept, tmp_path)
    audit = await audit_session(kept.stored, await kept.head(fork))
    assert (audit.findings, audit.redacted) == ([], 1)
    state = (await fold_session(kept, await kept.head(fork), None)).state
    shown = list(opened(state.history, lambda digest: None))
    assert [item.get("type") for item in shown[-len(items) :]] == [item["type"] for item in items]
    assert INSTEAD in repr(shown)
    report = held((await bundled(kept, fork))[1], tmp_path)
    assert sum(report.redacted.values()) == 1


async def test_each_log_is_read_once_to_look_for_copies_once_to_fold_it_and_once_before_texts_go(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.has(*worked(), said("and the other number is 0815-0815"))
    await sealed(kept, session, 9)
    whole, log = list[SessionId](), Kept.log

    def counted(self: Kept, of: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        if through - after > 1:
            whole.append(of)
        return log(self, of, through, after)

    monkeypatch.setattr(Kept, "log", counted)
    plan = await planned(kept, session, find="the other")
    assert whole == [session]
    assert await redact(kept, kept.stored, plan, ACT)
    assert (whole, plan.texts) == ([session] * 2, [])
    plan = await planned(kept, session, find="ACME")
    whole.clear()
    assert await redact(kept, kept.stored, plan, ACT)
    assert (whole, len(plan.texts)) == ([session] * 2, 1)


WITHOUT_WORDS = frozenset(get_args(f.Fact)) - WITH_WORDS
IDS = (CallId, SubmissionId, ResponseId, SnapshotId, SessionId, TreeId)


def test_every_fact_is_sorted_into_those_with_words_and_those_without() -> None:
    """A new fact is sorted by who adds it: into `WITH_WORDS`, or by its name here."""
    names = {cls.__name__ for cls in WITHOUT_WORDS if cls.of != "workspace"}
    assert names == {
        *("AgentChanged", "ApprovedForSession", "Bundled", "CallsClosed", "ChildChanged", "ChildMade"),
        *("ChildrenChanged", "Claimed", "Closed", "Closing", "Configured", "ElicitationClosed"),
        *("FoldersTold", "LookUpEnded", "MailTaken", "ProcessNumbered", "ProcessRead", "ProcessesStopping"),
        *("QueueOrdered", "RateLimitsReported", "Redacted", "RequestBegun", "RequestCompleted"),
        *("RequestDelayed", "RequestFailed", "RequestRetried", "RequestSent", "RequestStopped", "RetryDue"),
        *("SettingsChanged", "SteeredJoined", "Stopping", "TaskEnded", "TimerTaken", "ToEnd"),
        *("ToldToEnd", "WatchdogEnded", "WatchdogSet"),
    }


@pytest.mark.parametrize("cls", sorted(WITH_WORDS, key=repr), ids=repr)
def test_ids_of_a_redacted_fact_stay_as_they_are(cls: type[f.Fact]) -> None:
    for name, hint in get_type_hints(cls).items():
        if hint in IDS or set(get_args(hint)) & set(IDS):
            payload: dict[str, Any] = {"kind": cls.kind, name: "an id", "content": "[]"}
            payload |= {"parent": {}, "response_id": "an id", "length": 1, "sha256": ""}
            line = {"type": e.DENDRO, "payload": payload}
            assert instead_of(line, lambda _: None)["payload"][name] == "an id"


# ── all copies ────────────────────────────────────────────────────────────────────────────────────


async def test_copies_of_each_entry_that_is_named_are_looked_for(kept: Kept) -> None:
    words = ["the alpha words", "the beta words", "the gamma words"]
    session = await kept.has(*map(said, words), *(said(f"again: {each}") for each in words))
    assert (await planned(kept, session, 5, 6)).entries == {session: [5, 6, 8, 9]}
    assert (await planned(kept, session, 5, 6, find="gamma")).entries == {session: [5, 6, 7, 8, 9, 10]}


@pytest.mark.parametrize(("words", "found"), [("1234567", [5]), ("12345678", [5, 6]), ("123456789", [5, 6])])
async def test_copies_are_looked_for_by_words_of_eight_characters_and_more(
    kept: Kept, words: str, found: list[int]
) -> None:
    session = await kept.has(said(words), said(f"it is {words}, is it not"))
    assert (await planned(kept, session, 5)).entries == {session: found}


async def test_large_text_that_is_named_goes_with_the_entries_that_name_it(
    kept: Kept, tmp_path: Path
) -> None:
    session = await kept.has(*worked())
    [(tree, digest)] = (await planned(kept, session, 12)).texts
    plan = await plan_of(kept, await kept.head(session), Wanted(session, (), (digest,)))
    assert (plan.texts, plan.entries) == ([(tree, digest)], {session: [11, 12]})
    await redact(kept, kept.stored, plan, ACT)
    assert LARGE.encode() not in await everything(kept, tmp_path)


async def test_each_fork_and_each_fork_of_one_loses_the_words_and_is_told_with_its_file(
    kept: Kept, tmp_path: Path
) -> None:
    session = await kept.has(*worked())
    forks = [await a_fork(kept, session) for _ in range(2)]
    forks.append(await a_fork(kept, forks[0]))
    forks.append(await a_fork(kept, forks[-1]))
    plan = await planned(kept, session, find="ACME")
    assert set(plan.entries) == {session, *forks}
    files = {str((await kept.head(each)).summary["rollout_path"]) for each in (session, *forks)}
    assert files <= {copy.place for copy in plan.copies}
    await redact(kept, kept.stored, plan, ACT)
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def an_agent(kept: Kept, above: SessionId, number: int, *, pruned: bool) -> SessionId:
    """An agent of a tree that was told the secret; one that was pruned is in no registry."""
    agent, tree = await kept.has(said(f"look: {SECRET}")), (await kept.head(above)).tree
    keys = kept.broker.keys
    await kept.redis.hset(keys.session(agent), mapping={"tree": tree, "agent_id": number})
    if not pruned:
        await kept.redis.hset(keys.agents(tree), f"s:{number}", agent)
    return agent


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_forks_of_each_agent_of_a_tree_and_of_its_forks_lose_the_words_however_deep_they_are(
    kept: Kept, newest_first: bool, pruned: bool, tmp_path: Path
) -> None:
    session, stranger = await kept.has(*worked()), await kept.has(said(f"of another: {SECRET}"))
    other = await an_agent(kept, stranger, 1, pruned=pruned)
    strangers = {stranger, other, await a_fork(kept, other)}
    trees = [session, await a_fork(kept, session), await a_fork(kept, session)]
    forked = list(trees)
    for _ in range(2):
        agents = [await an_agent(kept, tree, number, pruned=pruned) for tree in trees for number in (1, 2)]
        trees = [await a_fork(kept, agent) for agent in agents[:3]]
        trees.append(await a_fork(kept, agents[0]))
        forked += [*agents, *trees]
    for number, each in enumerate([*forked, *strangers]):
        keys = kept.broker.keys
        at_ms = NOW_MS + (number if newest_first else -number)
        await kept.redis.zadd(keys.sessions(keys.shard_of((await kept.head(each)).tree)), {each: at_ms})
    plan = await planned(kept, session, find="ACME")
    assert set(plan.entries) == set(forked)
    assert set(plan.heads) == set(forked)
    files = {str((await kept.head(each)).summary["rollout_path"]) for each in forked}
    assert files <= {copy.place for copy in plan.copies}
    assert await redact(kept, kept.stored, plan, ACT) == sum(map(len, plan.entries.values()))
    for each in forked:
        async for entry in kept.log(each, (await kept.head(each)).seq):
            assert SECRET.encode() not in entry.payload
    assert set((await planned(kept, stranger, find="ACME")).entries) == strangers


async def test_large_texts_of_each_tree_go_and_of_those_that_lose_no_entry(
    kept: Kept, tmp_path: Path
) -> None:
    session = await kept.has(*worked())
    clean = [await kept.has(said("nothing of it")) for _ in range(2)]
    for number, fork in enumerate(clean):
        told = orjson.dumps({**(await kept.head(fork)).summary, "forked_from": session})
        await kept.redis.hset(kept.broker.keys.session(fork), "meta", told)
        content = f"{number}: a step that was refused: {SECRET}".encode()
        digest = await kept.stored.blobs.put(TreeId(fork), content)
        await kept.stored.archive.write_blob(TreeId(fork), digest, content)
    plan = await planned(kept, session, find="ACME")
    assert {tree for tree, _ in plan.texts} == {TreeId(each) for each in (session, *clean)}
    await redact(kept, kept.stored, plan, ACT)
    assert SECRET.encode() not in await everything(kept, tmp_path)


async def test_more_entries_than_one_redaction_takes_are_counted_over_all_sessions(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.rollouts import redaction

    session = await kept.has(*worked())
    await a_fork(kept, session)
    monkeypatch.setattr(redaction, "MOST_ENTRIES", 5)
    assert (await planned(kept, session, find="ACME")).count == 5
    monkeypatch.setattr(redaction, "MOST_ENTRIES", 4)
    with pytest.raises(NotRedacted, match="more than 4 entries"):
        await planned(kept, session, find="ACME")


async def test_one_commit_takes_forty_entries_at_most(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await kept.has(*(said(f"{n}: {SECRET}") for n in range(85)))
    taken, commit = list[int](), kept.broker.commits.commit

    async def noted(request: Any) -> Any:
        taken.append(len(request.redacted))
        return await commit(request)

    monkeypatch.setattr(kept.broker.commits, "commit", noted)
    assert await redacted(kept, session, find="ACME") == 85
    assert taken == [40, 40, 5]


async def test_words_are_found_as_a_person_writes_them_where_json_escapes_them(kept: Kept) -> None:
    words = 'say "ACME-1"\nand \\ go\tC:\\new für 🦊'
    # Some providers escape whatever is not ASCII.
    arguments = json.dumps({"command": ["sh", "-c", words]})
    call = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": arguments}
    session = await kept.has(e.item(call), said(words), said("another"))
    payload = orjson.dumps({"id": "", "msg": {"type": "warning", "message": words}})
    head, keys = await kept.head(session), kept.broker.keys
    told = {"p": payload, "s": session, "q": head.seq, "h": head.head, "d": "", "t": NOW_MS, "a": ""}
    await kept.redis.xadd(keys.tree(TreeId(session)), told, id="1-0")
    await kept.redis.hset(keys.agents(TreeId(session)), "tree_seq", 1)
    for find in map(re.escape, ('say "ACME-1"\nand', "and \\ go\tC", "C:\\new f", "für 🦊")):
        plan = await planned(kept, session, find=find)
        assert plan.entries == {session: [5, 6]}
        [stays] = [copy for copy in plan.copies if not copy.goes]
        assert stays.place == f"tree:{session}:1"


async def test_words_of_a_call_are_found_where_other_entries_have_them_without_escapes(kept: Kept) -> None:
    words = 'echo "ACME-1"\tfür\nall'
    call = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": json.dumps({"cmd": words})}
    session = await kept.has(e.item(call), said(words), said("another thing altogether"))
    assert (await planned(kept, session, 5)).entries == {session: [5, 6]}


async def test_entry_that_was_redacted_is_not_redacted_again(kept: Kept) -> None:
    session = await kept.has(*worked())
    await redacted(kept, session, 6)
    with pytest.raises(NotRedacted, match=r"entry 6 .* was redacted before"):
        await planned(kept, session, 6)


@pytest.mark.parametrize("named", [f"about {SECRET}", "another name"])
async def test_name_goes_from_lists_where_it_has_the_words_and_stays_where_it_has_not(
    kept: Kept, tmp_path: Path, named: str
) -> None:
    session = await kept.has(*worked(), e.fact(f.Named(named, ANN)))
    await kept.redis.hset(kept.broker.keys.session(session), "name", named)
    await redacted(kept, session, find="ACME")
    assert SECRET.encode() not in await everything(kept, tmp_path)
    assert (await kept.head(session)).name == (INSTEAD if "ACME" in named else named)


@pytest.mark.parametrize(
    ("payload", "kept_there"),
    [
        (
            {"type": "function_call", "name": "shell", "call_id": "c", "arguments": '{"a":1}'},
            {"name": "shell"},
        ),
        ({"type": "message", "role": "user", "content": []}, {"role": "user"}),
        ({"type": "custom_tool_call", "name": "t", "call_id": "c", "input": SECRET}, {"call_id": "c"}),
    ],
)
def test_types_ids_and_names_of_tools_stay_in_what_stands_instead(
    payload: dict[str, Any], kept_there: dict[str, str]
) -> None:
    made = instead_of({"type": e.RESPONSE_ITEM, "payload": payload}, lambda _: None)["payload"]
    assert made.keys() == payload.keys()
    assert {**made, **kept_there, "type": payload["type"]} == made
    assert SECRET not in repr(made)
    assert made.get("arguments", "{}") == "{}", "a provider reads it as JSON"


def test_picture_that_stands_instead_is_one() -> None:
    import base64

    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    line = {"type": e.RESPONSE_ITEM, "payload": {"type": "message", "role": "user", "content": [image]}}
    [made] = instead_of(line, lambda _: None)["payload"]["content"]
    head, _, data = made["image_url"].partition(",")
    assert (head, base64.b64decode(data)[:8]) == ("data:image/png;base64", b"\x89PNG\r\n\x1a\n")
    assert image["image_url"] != made["image_url"]
