"""The making of bundles: what is in them, what is kept back, and that equal logs give equal bytes."""

from __future__ import annotations

import base64
import dataclasses
import io
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.broker.records import LimitChange
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.blobs import INLINE_BYTES
from orchestrator.core.commit_parts import TreeEvent
from orchestrator.core.entries import decode_entry
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.packs import Pack
from orchestrator.core.sender import Sender
from orchestrator.core.tree import Child
from orchestrator.protocol.events import BackgroundEvent, RequestResolved
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_check import BundleReport, check_bundle
from orchestrator.rollouts.bundle_export import NotNoted, OpenBundle, note_bundle, statement_of
from orchestrator.rollouts.bundle_writer import Made, Order, read_selection, write_bundle
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.redaction import Act, Wanted, plan_of, redact
from orchestrator.rollouts.signed_notes import Signer
from orchestrator.views.audit_questions import redactions
from orchestrator.views.audit_who import logs_of_tree
from tests.rollouts.deployments import Kept, output, said
from tests.rollouts.test_bundle_check import example

pytestmark = pytest.mark.asyncio
GONE = "01a20009-0000-7000-8000-000000000000"
LARGE = "a large output " * INLINE_BYTES
ORDER = Order("fleet.example/home", "2026-11-23T20:00:00.000Z", "dendro 0.2.0")


async def bundled(
    kept: Kept, session: SessionId, withhold: tuple[str, ...] = (), **more: Any
) -> tuple[Made, bytes]:
    """The bundle of a session's tree, and its bytes."""
    out = io.BytesIO()
    order = replace(ORDER, withhold=read_selection(withhold, str(session)), **more)
    made = await write_bundle(kept, TreeId(session), out, order)
    return made, out.getvalue()


def held(data: bytes, folder: Path) -> BundleReport:
    """The report on a bundle that holds, for both checkers."""
    path = folder / "run.zip"
    path.write_bytes(data)
    report = check_bundle(path)
    assert report.findings == []
    assert example().Check(path).run() == []
    return report


async def test_bundle_has_the_log_as_it_is_stored_and_its_texts(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(said("go"), output(LARGE))
    made, data = await bundled(kept, session)
    report = held(data, tmp_path)
    assert report.texts == {"here": 1}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        lines = archive.read(f"logs/session-{session}.jsonl").splitlines()
        [text] = [archive.read(name) for name in archive.namelist() if name.startswith("texts/")]
    stored = await kept.broker.logs.read_rollout(session)
    assert [orjson.loads(line)["p"].encode() for line in lines] == [entry.payload for entry in stored]
    assert [orjson.loads(line)["salt"] for line in lines] == [entry.salt.hex() for entry in stored]
    assert text.decode() == LARGE
    head = await kept.head(session)
    assert (made.entries, made.manifest.logs[0].head) == (head.seq, head.head)


async def test_equal_logs_give_equal_bytes_but_for_the_time(kept: Kept) -> None:
    session = await kept.has(said("go"), output(LARGE))
    _, one = await bundled(kept, session)
    assert (await bundled(kept, session))[1] == one
    _, later = await bundled(kept, session, made_at="2026-11-24T20:00:00.000Z")
    assert later != one
    with zipfile.ZipFile(io.BytesIO(one)) as a, zipfile.ZipFile(io.BytesIO(later)) as b:
        differ = [name for name in a.namelist() if a.read(name) != b.read(name)]
    assert differ == ["manifest.json", "manifest.note"]


async def test_withheld_entry_keeps_its_digest_and_gives_no_text_away(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(said("go"), output(LARGE), said("the password"))
    last = (await kept.head(session)).seq
    made, data = await bundled(kept, session, (f"{session}:{last - 1}-{last}",))
    report = held(data, tmp_path)
    assert (report.withheld, report.texts) == (2, {}), "the text that only a withheld entry names has no name"
    assert made.manifest.withheld == ((f"session:{session}", last - 1), (f"session:{session}", last))
    assert b"password" not in b"".join(zipfile.ZipFile(io.BytesIO(data)).read(n) for n in _names(data))
    whole, _ = await bundled(kept, session)
    assert whole.manifest.logs[0].root == made.manifest.logs[0].root


def _names(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


async def test_withheld_texts_are_declared_and_not_here(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(output(LARGE))
    made, _ = await bundled(kept, session)
    [digest] = made.manifest.texts
    for wish in (f"text:{digest}", "texts"):
        _, data = await bundled(kept, session, (wish,))
        assert held(data, tmp_path).texts == {"withheld": 1}


async def test_text_that_is_not_stored_any_more_is_declared_and_told(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(output(LARGE))
    for key in await kept.redis.keys("*blob*"):
        await kept.redis.delete(key)
    made, data = await bundled(kept, session)
    assert made.absent_texts == 1
    assert held(data, tmp_path).texts == {"withheld": 1}


async def test_data_of_a_person_that_looks_like_a_reference_breaks_no_bundle(
    kept: Kept, tmp_path: Path
) -> None:
    fake = {"$blob": "ab" * 32, "bytes": -1}
    other = {"$blob": "cd" * 32, "bytes": 5}
    session = await kept.has(
        e.item({"type": "function_call_output", "call_id": "c", "output": [fake, other]})
    )
    _, data = await bundled(kept, session)
    assert held(data, tmp_path).texts == {"withheld": 1}


async def test_parts_of_ids_in_a_wish_mean_the_sessions_that_they_name() -> None:
    names = {"beef": "whole-1", "cafe": "whole-2"}
    words = ("beef:3", "session:cafe:4-5", "tree:6", "cafe", "texts", "other", "other:7")
    found = read_selection(words, "root", lambda id: names.get(id, id))
    assert found.entries == (
        ("session:whole-1", 3, 3),
        ("session:whole-2", 4, 5),
        ("tree:root", 6, 6),
        ("session:other", 7, 7),
    )
    assert (found.sessions, found.all_texts) == (frozenset({"whole-2", "other"}), True)
    with pytest.raises(RolloutError, match="root of a tree cannot be left out"):
        read_selection(["beef"], "whole-1", lambda id: names.get(id, id))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ("{id}:2", "cannot be withheld"),
        ("{id}:99", "has no entries 99 to 99"),
        ("{id}:5-4", "has no entries 5 to 4"),
        ("tree:1", "has no entries 1 to 1"),
        ("{id}", "root of a tree cannot be left out"),
        ("{other}", "no session"),
        ("text:" + "ab" * 32, "no entry names the text"),
        ("pack:" + "ab" * 32, "no entry names the pack"),
        ("text:x", "is none of"),
        ("pack", "is none of"),
        ("", "is none of"),
    ],
)
async def test_wish_that_nothing_answers_makes_no_bundle(kept: Kept, wish: str, why: str) -> None:
    session = await kept.has(said("go"), said("on"))
    with pytest.raises(RolloutError, match=why):
        await bundled(kept, session, (wish.format(id=session, other=GONE),))


async def test_agents_that_are_gone_are_left_out_by_name(kept: Kept, tmp_path: Path) -> None:
    gone = GONE
    child = Child(AgentId(1), SessionId(gone), "spawn", "idle", 1)
    session = await kept.has(e.fact(f.ChildMade(child)))
    made, data = await bundled(kept, session)
    held(data, tmp_path)
    assert made.manifest.left_out == (gone,)


async def test_agent_that_is_kept_back_takes_along_all_that_were_made_below_it(kept: Kept) -> None:
    below = [await kept.has(said(f"level {n}")) for n in (1, 2, 3)]
    root = await kept.has(e.fact(f.ChildMade(Child(AgentId(1), below[0], "spawn", "idle", 1))))
    for number, (parent, agent) in enumerate(zip((root, *below), below, strict=False), 1):
        await kept.redis.hset(kept.broker.keys.agents(TreeId(root)), f"s:{number}", agent)
        await kept.redis.hset(kept.broker.keys.session(agent), "parent", parent)
    made, _ = await bundled(kept, root, (str(below[0]),))
    assert [log.session for log in made.manifest.logs if log.session] == [root]


async def test_log_with_a_gap_makes_no_bundle(kept: Kept) -> None:
    session = await kept.has(said("go"), said("on"))
    await kept.redis.xdel(kept.broker.keys.rollout(session), "5-0")
    with pytest.raises(RolloutError, match="is missing"):
        await bundled(kept, session)


async def test_ends_of_a_trees_logs_are_of_one_moment_also_of_one_born_meanwhile(kept: Kept) -> None:
    root, born = await kept.has(said("go")), await kept.has(said("on"))
    await kept.redis.hset(kept.broker.keys.agents(TreeId(root)), "s:1", born)
    await kept.redis.hset(
        kept.broker.keys.agents(TreeId(root)), "s:2", "01a20009-0000-7000-8000-000000000000"
    )
    last, heads = await kept.broker.trees.heads_at_once(TreeId(root))
    assert last == 0
    known = {head.session: (head.seq, head.head) for head in heads}
    assert known == {id: (head.seq, head.head) for id in (root, born) for head in [await kept.head(id)]}


async def test_packs_come_with_it_where_asked_and_can_be_copied_out(kept: Kept, tmp_path: Path) -> None:
    content = b"objects of a folder"
    digest = sha256(content).hexdigest()
    held_pack = Pack(f"tree/workspaces/{GONE}/1-ab-{digest}.pack", digest, len(content))
    lost = Pack(f"tree/workspaces/{GONE}/2-ab-{'ab' * 32}.pack", "ab" * 32, 7)
    session = await kept.has(e.fact(f.WorkspaceBegun(SnapshotId("0" * 40), (held_pack, lost))))

    async def fetch(name: str, size: int, target: Path) -> bool:
        target.write_bytes(content)
        return (name, size) == (held_pack.name, len(content))

    named, data = await bundled(kept, session)
    assert held(data, tmp_path).packs == {"named": 2}
    made, data = await bundled(kept, session, packs="here", fetch_pack=fetch, spool=tmp_path)
    assert held(data, tmp_path).packs == {"here": 1, "named": 1}
    assert (named.absent_packs, made.absent_packs) == (0, 1)
    with OpenBundle(tmp_path / "run.zip", None) as bundle:
        assert bundle.copy_pack(digest, tmp_path / "copied")
        assert not bundle.copy_pack("ab" * 32, tmp_path / "other")
        assert not bundle.copy_pack("../run", tmp_path / "other")
    assert (tmp_path / "copied").read_bytes() == content
    _, data = await bundled(
        kept, session, (f"pack:{digest}",), packs="here", fetch_pack=fetch, spool=tmp_path
    )
    assert held(data, tmp_path).packs == {"withheld": 1, "named": 1}


async def test_decisions_of_people_are_kept_back_and_shown_as_kept_back(kept: Kept, tmp_path: Path) -> None:
    shown = "run make, outside of the sandbox " * INLINE_BYTES
    answer = f.Answered(CallId("c1"), SubmissionId("1"), "approved", "ada", shown=shown)
    late = e.error("x", "c1 was already decided: approved, by ada")
    session = await kept.has(said("go"), e.fact(answer), late, e.error("x", "the model does not answer"))
    resolved = RequestResolved(
        call_id=CallId("c1"), turn_id="1", decision="approved", who="ada", resolved_at_ms=5
    )
    for number, message in enumerate((BackgroundEvent(message="a limit was raised"), resolved)):
        told = TreeEvent((e.encode_event(e.event("1", message)),), (session,))
        await kept.broker.trees.raise_limits(TreeId(session), LimitChange(str(number), {"tokens": 1}, told))
    made, data = await bundled(kept, session, ("answers",))
    log, of_tree = f"session:{session}", f"tree:{session}"
    assert made.manifest.withheld == ((log, 6), (log, 7), (of_tree, 2))
    report = held(data, tmp_path)
    assert (report.answers, report.withheld, report.texts) == (0, 3, {})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [archive.read(name) for name in archive.namelist()]
    # With what stands around the name: a digest may have its letters.
    for word in (b"outside of the sandbox", b"approved", b'"ada"', b"by ada"):
        assert not any(word in member for member in members), word
    for word in (b"a limit was raised", b"the model does not answer"):
        assert any(word in member for member in members), word


async def test_statement_of_a_bundle_is_signed_as_envelopes_of_attestations_are(kept: Kept) -> None:
    signer = Signer("fleet.example/home", Ed25519PrivateKey.generate())
    made, data = await bundled(kept, await kept.has(said("go")), signer=signer)
    digest = sha256(data).hexdigest()
    envelope = orjson.loads(statement_of("run.zip", digest, made.manifest, made.sha256, signer))
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    [signed] = envelope["signatures"]
    said_ = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    signer.private.public_key().verify(base64.b64decode(signed["sig"]), said_)
    statement = orjson.loads(payload)
    assert statement["subject"] == [{"name": "run.zip", "digest": {"sha256": digest}}]
    assert statement["predicate"]["logs"][0]["root"] == made.manifest.logs[0].root.hex()
    assert signed["keyid"] == str(signer.key)


# ── in the log ────────────────────────────────────────────────────────────────────────────────────

ANN = Sender("ann@host", "", "admin", "cli", "machine")
TERMINAL = f.Claimed("cli@host", "host", "uid:1", "0")


async def test_log_says_that_a_bundle_was_made_and_audits_tell_what_of_it_was_redacted_later(
    kept: Kept,
) -> None:
    session = await kept.has(said("go"), said("the number is 4711"), said("stop"))
    made, _ = await bundled(kept, session)
    before = await kept.head(session)
    await note_bundle(kept, made, TERMINAL, ANN, "home+1d682d22")
    head = await kept.head(session)
    [claimed, stated] = [
        decode_entry(entry.payload).payload async for entry in kept.log(session, head.seq, before.seq)
    ]
    assert (claimed["kind"], stated["kind"]) == ("claimed", "bundled")
    assert (stated["digest"], stated["seq"]) == (made.sha256, before.seq)
    assert (stated["by"]["who"], stated["key"]) == ("ann@host", "home+1d682d22")
    assert (await audit_session(kept.stored, head)).findings == []
    act = Act("a number", ANN, TERMINAL, time.time_ns() // 1_000_000 + 60_000)
    plan = await plan_of(kept, head, Wanted(session, (before.seq - 1,), (), None))
    await redact(kept, kept.stored, plan, act)
    logs = await logs_of_tree(kept, await kept.head(session))
    answers = [answer.values async for answer in redactions(logs)]
    assert [one["what"] for one in answers] == ["bundled", "without text", "redacted"]
    assert answers[2]["bundles"] == [made.sha256]
    later, _ = await bundled(kept, session)
    await note_bundle(kept, later, TERMINAL, ANN, "home+1d682d22")
    again = await logs_of_tree(kept, await kept.head(session))
    answers = [answer.values async for answer in redactions(again)]
    assert [one["what"] for one in answers] == ["bundled", "bundled", "without text", "redacted"]


@pytest.mark.parametrize("later", [0, 1])
async def test_bundle_that_ends_before_a_redaction_has_what_it_took_as_withheld(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    session = await kept.has(said("go"), said("the number is 4711"), said("the name is Ada"))
    first = (await kept.head(session)).seq - 1

    async def taken(seq: int) -> None:
        act = Act("a number", ANN, TERMINAL, time.time_ns() // 1_000_000)
        plan = await plan_of(kept, await kept.head(session), Wanted(session, (seq,), (), None))
        await redact(kept, kept.stored, plan, act)

    await taken(first)
    seen = await kept.broker.trees.heads_at_once(TreeId(session))
    for seq in range(first + 1, first + 1 + later):
        await taken(seq)

    async def at_once(_: TreeId) -> Any:
        return seen

    monkeypatch.setattr(kept.broker.trees, "heads_at_once", at_once)
    made, data = await bundled(kept, session)
    report = held(data, tmp_path)
    assert made.manifest.withheld == ((f"session:{session}", first + 1),) * later
    assert report.redacted == {("ann@host", "a number"): 1}


@pytest.mark.parametrize("explained", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
async def test_what_was_redacted_in_one_log_explains_no_entry_of_another(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, explained: tuple[int, ...]
) -> None:
    """Of several logs each lost an entry of one number; of some the fact stands in the bundle."""
    own = ("anna's secret", "the pin of bob", "a name: carla")
    sessions = [await kept.has(said("go"), said(words), said("on")) for words in own]
    root, *agents = sessions
    for number, agent in enumerate(agents, 1):
        await kept.redis.hset(kept.broker.keys.agents(TreeId(root)), f"s:{number}", agent)
    before = {session: await kept.head(session) for session in sessions}
    (number,) = {head.seq - 1 for head in before.values()}
    for session in sessions:
        act = Act("a number", ANN, TERMINAL, time.time_ns() // 1_000_000)
        await redact(
            kept, kept.stored, await plan_of(kept, before[session], Wanted(session, (number,), (), None)), act
        )
    tree_seq, after = await kept.broker.trees.heads_at_once(TreeId(root))
    shown = {sessions[place] for place in explained}
    heads = [head if head.session in shown else before[head.session] for head in after]

    async def at_once(_: TreeId) -> Any:
        return tree_seq, heads

    monkeypatch.setattr(kept.broker.trees, "heads_at_once", at_once)
    made, _ = await bundled(kept, root)
    unexplained = [session for session in sorted(sessions) if session not in shown]
    assert made.manifest.withheld == tuple((f"session:{session}", number) for session in unexplained)


async def test_log_of_a_root_at_work_or_under_another_key_is_left_as_it_is(kept: Kept) -> None:
    session = await kept.has(said("go"))
    made, _ = await bundled(kept, session)
    head = await kept.head(session)
    keyed = replace_secret(kept, b"a key that the log has not")
    with pytest.raises(NotNoted, match="under a key"):
        await note_bundle(keyed, made, TERMINAL, ANN, "home+1d682d22")
    claims = kept.broker.claims
    assert await claims.claim_session(session, "a worker", "claim", parked=True) is not None
    with pytest.raises(NotNoted, match="at work"):
        await note_bundle(kept, made, TERMINAL, ANN, "home+1d682d22")
    after = await kept.head(session)
    assert (after.seq, after.head) == (head.seq, head.head)


async def test_root_that_is_due_is_given_back_due_behind_the_note(kept: Kept) -> None:
    session = await kept.has(said("go"))
    made, _ = await bundled(kept, session)
    await note_bundle(kept, made, TERMINAL, ANN, "home+1d682d22")
    assert not await kept.is_due(session)
    await kept.make_due(session)
    await note_bundle(kept, made, TERMINAL, ANN, "home+1d682d22")
    assert await kept.is_due(session)


def replace_secret(kept: Kept, secret: bytes) -> Kept:
    return dataclasses.replace(kept, stored=dataclasses.replace(kept.stored, secret=secret))
