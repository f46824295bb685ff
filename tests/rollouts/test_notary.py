"""The notary: what it states, when, and what it refuses to state."""

from __future__ import annotations

import errno
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.broker.errors import Unavailable
from orchestrator.cli import notary as command
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.merkle import leaf_hash, root_of
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_check import check_bundle
from orchestrator.rollouts.bundle_receipts import BadTrust, Head, Receipt, Trust, read_statement
from orchestrator.rollouts.bundle_writer import Made, Order, WantedReceipts, write_bundle
from orchestrator.rollouts.notary import Notary
from orchestrator.rollouts.notary_state import Alarm, BadState, KnownLog, NotaryState
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.register import BadRegister, Forked, Register, Signed, rotate
from orchestrator.rollouts.signed_notes import Checkpoint, Note, Signer, VerifierKey, read_private_key
from orchestrator.terminal.faults import Fault
from tests.rollouts import bundles as b
from tests.rollouts.deployments import NOW_MS, Kept, said
from tests.rollouts.test_bundle_check import _by_receipts
from tests.rollouts.test_redaction import redacted
from workers.notary import Figures

pytestmark = pytest.mark.asyncio
MINUTE = 60_000


@dataclass
class Office:
    """A notary of a deployment, with a clock of its own."""

    kept: Kept
    folder: Path
    now_ms: int = 1_800_000_000_000
    objects: Objects = field(init=False)
    state: NotaryState = field(init=False)
    notary: Notary = field(init=False)

    def __post_init__(self) -> None:
        self.objects = Objects((self.folder / "register").as_uri())
        NotaryState.create(self.folder / "state", "fleet.example", b.OPERATOR.key.public.hex())
        self.open()

    def open(self) -> None:
        self.state = NotaryState.open(self.folder / "state")
        self.notary = Notary(
            self.kept,
            self.state,
            self.objects,
            lambda origin: Signer(origin, b.private("log")),
            MINUTE,
            lambda: self.now_ms,
        )

    def again(self) -> None:
        """The notary is stopped, and another one started with its state."""
        self.state.close()
        self.open()
        self.notary.start()

    async def looks(self, later_ms: int = 0) -> list[Head]:
        """The statements of a look, so much later."""
        self.now_ms += later_ms
        before = len(self.heads())
        await self.notary.look()
        return self.heads()[before:]

    def heads(self, register: str = "home") -> list[Head]:
        """The statements that are published, under a checkpoint that holds."""
        found = Register(self.objects, register)
        newest = found.newest()
        if newest is None:
            return []
        assert newest.note.signed_by([Signer(newest.point.origin, b.private("log")).key])
        texts = list(found.statements(newest.point.size))
        assert newest.point.root == root_of([leaf_hash(text.encode()) for text in texts])
        return [read_statement(n, text) for n, text in enumerate(texts)]

    def alarms(self) -> dict[str, str]:
        return {log: alarm.kind for log, alarm in self.state.alarms.items()}


@pytest.fixture
def double() -> Any:
    """An empty Redis whose data can be dumped, as for a backup."""
    return fakeredis.FakeAsyncRedis()


@pytest.fixture
def office(kept: Kept, tmp_path: Path) -> Office:
    return Office(kept, tmp_path)


async def grow(kept: Kept, session: SessionId, words: str, status: str = "running", at_ms: int = 0) -> None:
    """Puts an entry behind a session's log, as a commit does."""
    from orchestrator.core.chain import next_chain, payload_digest
    from orchestrator.core.entries import encode_entry

    keys, head = kept.broker.keys, await kept.head(session)
    payload, salt, seq = encode_entry(said(words), NOW_MS, {}).line, b"s" * 16, head.seq + 1
    chain = next_chain(head.head, seq, 1, payload_digest(salt, payload))
    await kept.redis.xadd(keys.rollout(session), {"e": 1, "p": payload, "s": salt, "h": chain}, id=f"{seq}-0")
    await kept.redis.hset(keys.session(session), mapping={"seq": seq, "head": chain, "status": status})
    await touch(kept, session, at_ms)


async def touch(kept: Kept, session: SessionId, at_ms: int = 0) -> None:
    keys = kept.broker.keys
    sessions = keys.sessions(keys.shard_of(session))
    [(_, last)] = await kept.redis.zrange(sessions, -1, -1, withscores=True)
    await kept.redis.zadd(sessions, {session: at_ms or last + 1})


async def test_log_is_stated_when_it_is_born_as_a_bundle_has_it(kept: Kept, office: Office) -> None:
    from orchestrator.rollouts.bundle_writer import Order, write_bundle

    session = await kept.has(said("go"))
    [head] = await office.looks()
    made = await write_bundle(kept, TreeId(session), io.BytesIO(), Order("x", "", "d"))
    told = made.manifest.logs[0]
    assert (head.log, head.tree) == (f"session:{session}", session)
    assert (head.size, head.root, head.chain) == (told.size, told.root, told.head)
    assert (head.ms, head.state) == (office.now_ms, "rest")
    assert await office.looks() == [], "nothing has changed"
    assert await office.looks(MINUTE) == []


async def test_session_whose_end_could_not_be_read_is_stated_by_the_next_look(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_: object) -> Any:
        raise Unavailable("the connection was lost")

    first, later = await kept.has(said("go")), await kept.has(said("later"))
    await touch(kept, later)
    with monkeypatch.context() as context:
        context.setattr(kept.broker.logs, "tips", lost)
        with pytest.raises(Unavailable):
            await office.looks()
    stated = {head.log for head in await office.looks(1_000)}
    assert stated == {f"session:{first}", f"session:{later}"}


async def test_growing_log_is_stated_each_interval_and_at_rest(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    await grow(kept, session, "one")
    assert await office.looks(1_000) == []
    await grow(kept, session, "two")
    assert await office.looks(MINUTE - 2_000) == []
    [head] = await office.looks(1_000)
    assert (head.size, head.state) == ((await kept.head(session)).seq, "open")
    await grow(kept, session, "three", "idle")
    [head] = await office.looks(1_000)
    assert (head.size, head.state) == ((await kept.head(session)).seq, "rest")
    await grow(kept, session, "four", "closed")
    assert [one.state for one in await office.looks()] == ["closed"]


async def test_notary_that_was_stopped_goes_on_where_it_was(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    office.again()
    assert await office.looks() == []
    await grow(kept, session, "more", "idle")
    await kept.redis.xtrim(kept.broker.keys.rollout(session), minid="3-0")
    [head] = await office.looks()
    assert head.size == (await kept.head(session)).seq, "no entry is read twice: those before are gone"


async def test_trees_log_is_stated_with_the_sessions_it_names_as_of_one_moment(
    kept: Kept, office: Office
) -> None:
    root = await kept.has(said("go"))
    await tell(kept, root, 1)
    first = await office.looks()
    assert [(one.log.partition(":")[0], one.size) for one in first] == [("session", 5), ("tree", 1)]
    await tell(kept, root, 2)
    await grow(kept, root, "more", "idle")
    assert [(one.log.partition(":")[0], one.size) for one in await office.looks()] == [
        ("session", 6),
        ("tree", 2),
    ]


async def test_log_that_grows_while_its_tree_is_looked_at_is_stated_as_of_the_moment_of_the_trees_log(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await kept.has(said("go"))
    await tell(kept, root, 1)
    ends_at_once = kept.broker.trees.ends_at_once

    async def then_grows(tree: TreeId, sessions: Iterable[SessionId]) -> Any:
        found = await ends_at_once(tree, sessions)
        await grow(kept, root, "more")
        await tell(kept, root, 2)
        return found

    monkeypatch.setattr(kept.broker.trees, "ends_at_once", then_grows)
    assert [(one.log.partition(":")[0], one.size) for one in await office.looks()] == [
        ("session", 5),
        ("tree", 1),
    ]


async def test_logs_of_a_tree_that_grow_when_its_sessions_are_listed_end_where_its_own_log_does(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await kept.has(said("go"))
    ends_at_once = kept.broker.trees.ends_at_once

    async def grown(tree: TreeId, sessions: Iterable[SessionId]) -> Any:
        await grow(kept, root, "meanwhile")
        await tell(kept, root, 1)
        return await ends_at_once(tree, sessions)

    monkeypatch.setattr(kept.broker.trees, "ends_at_once", grown)
    tree_seq, [head] = await kept.broker.trees.heads_at_once(TreeId(root))
    now = await kept.head(root)
    assert (tree_seq, head.seq, head.head) == (1, now.seq, now.head)


async def tell(kept: Kept, root: SessionId, number: int, words: str = "told", salt: bytes = b"") -> None:
    """An entry of the tree's log, caused by the root's last entry."""
    keys, head = kept.broker.keys, await kept.head(root)
    payload = json.dumps({"id": "", "msg": {"type": "warning", "message": words}}).encode()
    fields: dict[str, Any] = {"p": payload, "s": root, "q": head.seq, "h": head.head, "d": "", "t": NOW_MS}
    more = {"z": salt} if salt else {}
    await kept.redis.xadd(keys.tree(TreeId(root)), {**fields, "a": "", **more}, id=f"{number}-0")
    await kept.redis.hset(keys.agents(TreeId(root)), "tree_seq", number)


# ── bundles with receipts ─────────────────────────────────────────────────────────────────────────


async def bundled(
    office: Office, session: SessionId, whole: bool = True, since: Checkpoint | None = None
) -> Made:
    """Writes a bundle of a session's tree with receipts."""
    wanted = WantedReceipts.of(Register(office.objects, "home"), whole=whole, since=since)
    order = Order(
        wanted.newest.point.origin, "2026-11-23T20:00:00.000Z", "d", signer=b.OPERATOR, receipts=wanted
    )
    with (office.folder / "run.zip").open("wb") as out:
        return await write_bundle(office.kept, TreeId(session), out, order)


def found_in(office: Office, **trust: Any) -> set[str]:
    """The findings in that bundle, of both checkers."""
    told = json.dumps({"log": [str(b.OPERATOR.key)], **trust}).encode()
    report = check_bundle(office.folder / "run.zip", Trust.read(told))
    found = {finding.code for finding in report.findings}
    assert _by_receipts(office.folder / "run.zip", told) == found
    return found


async def test_bundle_goes_as_far_as_the_notary_has_stated_and_holds(kept: Kept, office: Office) -> None:
    session, other = await kept.has(said("go")), await kept.has(said("of another tree"))
    await tell(kept, session, 1, salt=b"z" * 16)
    await office.looks()
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    await grow(kept, session, "later")
    made = await bundled(office, session)
    assert (made.behind, made.disputed) == (1, ())
    assert found_in(office) == set()
    await grow(kept, other, "later", "idle")
    await office.looks(MINUTE)
    seen = newest.note.encode().decode()
    for whole in (True, False):
        made = await bundled(office, session, whole, newest.point)
        assert made.behind == 0
        assert found_in(office, checkpoint=seen) == set()
    witness = {"witnesses": [str(b.witness_key())], "quorum": 1}
    assert found_in(office, checkpoint=seen, **witness) == {"chosen", "witnesses"}


@pytest.mark.parametrize("told", [0, 1, 3])
@pytest.mark.parametrize("grown", [0, 2])
async def test_entries_of_each_log_that_are_not_stated_yet_are_counted_as_behind(
    kept: Kept, office: Office, grown: int, told: int
) -> None:
    session = await kept.has(said("go"))
    await tell(kept, session, 1)
    await office.looks()
    for number in range(told):
        await tell(kept, session, 2 + number, "later")
    for number in range(grown):
        await grow(kept, session, f"later {number}")
    made = await bundled(office, session)
    assert made.behind == grown + told
    assert found_in(office) == set()


async def test_what_the_register_says_of_a_changed_tree_is_found_in_its_bundle(
    kept: Kept, office: Office
) -> None:
    session = await kept.has(said("go"), said("the deed"))
    await tell(kept, session, 1, "as it was")
    await tell(kept, session, 2, "as it was, too")
    await office.looks()
    await kept.redis.delete(kept.broker.keys.tree(TreeId(session)))
    await tell(kept, session, 1, "as it was not")
    await tell(kept, session, 2, "as it was, too")
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {}, "an entry before the last one is not read twice"
    made = await bundled(office, session)
    assert made.disputed == (f"tree:{session}",)
    assert found_in(office) == {"prefix"}
    *before, _ = await kept.redis.xrange(kept.broker.keys.rollout(session))
    cut = {"seq": 5, "head": before[-1][1][b"h"]}
    await kept.redis.hset(kept.broker.keys.session(session), mapping=cut)
    await bundled(office, session)
    assert found_in(office) >= {"prefix", "complete"}


async def test_bundle_that_shows_another_past_than_a_clients_receipt_is_found(
    kept: Kept, office: Office, tmp_path: Path
) -> None:
    session = await kept.has(said("go"), said("the deed"))
    await office.looks()
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    [head] = office.heads()
    proof = Register(office.objects, "home").inclusion(1, 0)
    own = Receipt.read(Receipt(head, tuple(proof), newest.note).encode())
    trust = Trust.read(json.dumps({"log": [str(b.OPERATOR.key)]}).encode()).holding(own)
    await bundled(office, session)
    assert check_bundle(tmp_path / "run.zip", trust).findings == []
    await grow(kept, session, "a later deed", "idle")
    (tmp_path / "anew").mkdir()
    office.state.close()
    anew = Office(kept, tmp_path / "anew", office.now_ms + MINUTE)
    await anew.looks()
    await bundled(anew, session)
    report = check_bundle(tmp_path / "anew" / "run.zip", trust)
    assert {finding.code for finding in report.findings} == {"earlier"}, "another register of the same key"


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(t=value["t"].replace("rest", "open")),
        lambda value: value.update(i=1),
        lambda value: value.update(i="0"),
        lambda value: value.update(version=2),
        lambda value: value.update(p=["AA=="]),
        lambda value: value.update(t=1),
        lambda value: value.update(checkpoint="no note"),
        lambda value: value.pop("p"),
    ],
)
async def test_receipt_that_does_not_hold_is_none(
    kept: Kept, office: Office, change: Callable[[dict[str, Any]], object]
) -> None:
    await kept.has(said("go"))
    await office.looks()
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    value = json.loads(Receipt(office.heads()[0], (), newest.note).encode())
    change(value)
    with pytest.raises(BadTrust):
        Receipt.read(json.dumps(value).encode())


async def test_receipt_of_a_register_that_nobody_trusts_shows_nothing(kept: Kept, office: Office) -> None:
    await kept.has(said("go"))
    await office.looks()
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    own = Receipt(office.heads()[0], (), newest.note)
    stranger = Trust.read(json.dumps({"log": [str(b.ADA.key)]}).encode())
    with pytest.raises(BadTrust, match="no key"):
        stranger.holding(own)
    trust = Trust.read(json.dumps({"log": [str(b.OPERATOR.key)]}).encode()).holding(own)
    with pytest.raises(BadTrust, match="already"):
        trust.holding(own)


async def test_no_bundle_with_receipts_is_made_where_nothing_is_stated(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    with pytest.raises(RolloutError, match="no register yet"):
        await bundled(office, session)
    await office.looks()
    later = await kept.has(said("go"))
    with pytest.raises(RolloutError, match="no statement about it"):
        await bundled(office, later)
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    for wrong in (replace(newest.point, size=9), replace(newest.point, origin="another/home")):
        with pytest.raises(RolloutError, match="is none of"):
            await bundled(office, session, since=wrong)


async def test_witness_that_was_away_is_asked_again_and_one_that_signed_is_not_forgotten(
    kept: Kept, office: Office
) -> None:
    answers: list[tuple[Signer, ...]] = [(), (), (b.WITNESS,), (b.ADA,)]

    async def witnessed(name: str, signed: Signed) -> Note:
        now = answers.pop(0)
        return signed.note.with_signatures([one.cosigned(signed.point.text, office.now_ms) for one in now])

    office.notary._witnessed = witnessed
    await kept.has(said("go"))
    await office.looks()
    await office.looks(1_000)
    await office.looks(MINUTE)
    await office.looks(MINUTE)
    newest = Register(office.objects, "home").newest()
    assert newest is not None
    both = [b.WITNESS.witness_key, b.ADA.witness_key]
    assert list(newest.note.signed_by(both)) == both
    assert answers == []


# ── attacks by who can write to Redis ─────────────────────────────────────────────────────────────


async def test_log_that_was_cut_is_an_alarm_and_not_stated_again(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"), said("the deed"))
    await office.looks()
    rollout = kept.broker.keys.rollout(session)
    *before, _ = await kept.redis.xrange(rollout)
    await kept.redis.delete(rollout)
    for id, fields in before:
        await kept.redis.xadd(rollout, fields, id=id)
    cut = {"seq": 5, "head": before[-1][1][b"h"]}
    await kept.redis.hset(kept.broker.keys.session(session), mapping=cut)
    assert await office.looks(MINUTE) == [], "within an interval, though no list says that it changed"
    assert office.alarms() == {f"session:{session}": "rewound"}
    await grow(kept, session, "another deed", "idle")
    await grow(kept, session, "and on", "idle")
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {f"session:{session}": "changed"}
    office.again()
    assert office.alarms() == {f"session:{session}": "changed"}, "an alarm outlives the notary"


async def test_other_logs_are_stated_beside_one_that_is_refused(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    await kept.redis.hset(kept.broker.keys.session(session), "head", bytes(32))
    await touch(kept, session)
    other = await kept.has(said("go"))
    assert [head.log for head in await office.looks(MINUTE)] == [f"session:{other}"]
    assert office.alarms() == {f"session:{session}": "head"}


async def test_log_that_agrees_again_is_stated_again(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    head = (await kept.head(session)).head
    await kept.redis.hset(kept.broker.keys.session(session), "head", bytes(32))
    await office.looks(MINUTE)
    await kept.redis.hset(kept.broker.keys.session(session), "head", head)
    await office.looks(MINUTE)
    assert office.alarms() == {}
    await grow(kept, session, "on", "idle")
    assert len(await office.looks()) == 1


async def test_backup_of_redis_that_was_brought_back_is_an_alarm_within_a_minute(
    kept: Kept, office: Office
) -> None:
    grown, born = await kept.has(said("go")), None
    await office.looks()
    backup = {key: await kept.redis.dump(key) for key in await kept.redis.keys("*")}
    await grow(kept, grown, "one", "idle")
    born = await kept.has(said("later"))
    await office.looks(1_000)
    office.again()
    await office.looks(1_000)
    await kept.redis.flushall()
    for key, value in backup.items():
        await kept.redis.restore(key, 0, value)
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {f"session:{grown}": "rewound", f"session:{born}": "vanished"}


async def test_session_that_somebody_took_away_is_an_alarm_and_one_that_was_deleted_is_stated(
    kept: Kept, office: Office
) -> None:
    stolen, removed = await kept.has(said("go")), await kept.has(said("go"))
    await tell(kept, removed, 1)
    await office.looks()
    for key in await kept.redis.keys(f"*{stolen}*"):
        await kept.redis.delete(key)
    keys = kept.broker.keys
    await kept.redis.zrem(keys.sessions(keys.shard_of(stolen)), stolen)
    await kept.broker.trees.delete_tree([await kept.head(removed)])
    stated = await office.looks(MINUTE)
    assert {(head.log, head.state) for head in stated} == {
        (f"session:{removed}", "deleted"),
        (f"tree:{removed}", "deleted"),
    }
    assert office.alarms() == {f"session:{stolen}": "vanished"}
    assert await office.looks(MINUTE) == []


async def test_alarm_ends_where_the_log_was_deleted_and_that_is_recorded(kept: Kept, office: Office) -> None:
    root = await kept.has(said("go"))
    await tell(kept, root, 1, "as it was")
    await office.looks()
    await kept.redis.hset(kept.broker.keys.session(root), "head", bytes(32))
    await kept.redis.delete(kept.broker.keys.tree(TreeId(root)))
    await tell(kept, root, 1, "as it is told now")
    await tell(kept, root, 2)
    await office.looks(MINUTE)
    assert office.alarms() == {f"session:{root}": "head", f"tree:{root}": "changed"}
    await kept.broker.trees.delete_tree([await kept.head(root)])
    assert {(head.log, head.state) for head in await office.looks(MINUTE)} == {
        (f"session:{root}", "deleted"),
        (f"tree:{root}", "deleted"),
    }
    assert office.alarms() == {}


async def test_alarm_of_before_ends_also_in_a_notary_that_has_stated_the_deletion_already(
    kept: Kept, office: Office
) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    await kept.broker.trees.delete_tree([await kept.head(session)])
    await office.looks(MINUTE)
    office.state.add([], {f"session:{session}": Alarm("changed", "of an earlier version", 1)})
    office.again()
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {}


async def test_trees_log_that_was_made_anew_is_an_alarm(kept: Kept, office: Office) -> None:
    root = await kept.has(said("go"))
    await tell(kept, root, 1, "as it was")
    await office.looks()
    await kept.redis.delete(kept.broker.keys.tree(TreeId(root)))
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {f"tree:{root}": "missing"}
    await tell(kept, root, 1, "as it was not")
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {f"tree:{root}": "changed"}, "though it ends where it did"
    await tell(kept, root, 2)
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {f"tree:{root}": "changed"}


async def test_entry_that_is_missing_or_no_entry_is_an_alarm(kept: Kept, office: Office) -> None:
    gap, damaged = await kept.has(said("go"), said("on")), await kept.has(said("go"))
    await kept.redis.xdel(kept.broker.keys.rollout(gap), "3-0")
    await kept.redis.delete(kept.broker.keys.rollout(damaged))
    await kept.redis.xadd(kept.broker.keys.rollout(damaged), {"x": "y"}, id="1-0")
    assert await office.looks() == []
    assert office.alarms() == {f"session:{gap}": "missing", f"session:{damaged}": "unreadable"}


async def test_tree_or_namespace_that_no_statement_can_name_is_an_alarm(kept: Kept, office: Office) -> None:
    wrong, lost, unread = [await kept.has(said("go")) for _ in range(3)]
    await kept.redis.hset(kept.broker.keys.session(wrong), "namespace", "../elsewhere")
    await kept.redis.hset(kept.broker.keys.session(lost), "tree", "a\nb")
    await kept.redis.hset(kept.broker.keys.session(unread), "seq", "many")
    sound = await kept.has(said("go"))
    assert [head.log for head in await office.looks()] == [f"session:{sound}"]
    assert office.alarms() == {f"session:{wrong}": "unreadable", f"session:{lost}": "unreadable"}


async def test_key_of_another_kind_hides_no_other_trees_from_the_notary(kept: Kept, office: Office) -> None:
    sessions = [await kept.has(said("go")) for _ in range(3)]
    await office.looks()
    hidden, damaged, sound = sessions
    listed = kept.broker.keys.sessions(kept.broker.keys.shard_of(sound))
    await kept.redis.zadd(listed, {"no session": 2**50, f"{sound[:15]}fff{sound[18:]}": 2**50})
    await kept.redis.zadd(kept.broker.keys.sessions(0), {"": 1})
    await kept.redis.set(kept.broker.keys.session(hidden), "no hash")
    await kept.redis.set(kept.broker.keys.rollout(damaged), "no stream")
    await touch(kept, hidden)
    for session in (damaged, sound):
        await kept.redis.hset(kept.broker.keys.session(session), mapping={"seq": 6, "status": "idle"})
        await touch(kept, session)
    await kept.redis.hset(kept.broker.keys.session(sound), "seq", 5)
    await grow(kept, sound, "more", "idle")
    assert [head.log for head in await office.looks(1_000)] == [f"session:{sound}"]
    assert office.alarms() == {f"session:{hidden}": "unreadable", f"session:{damaged}": "unreadable"}
    assert await office.looks(MINUTE) == []


async def test_trees_that_could_not_be_looked_at_are_looked_at_later(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [await kept.has(said("go")) for _ in range(3)]
    real, calls = kept.broker.trees.ends_at_once, list[str]()

    async def fails(tree: TreeId, known: Any) -> Any:
        calls.append(tree)
        if len(calls) == 2:
            raise Unavailable("away")
        return await real(tree, known)

    monkeypatch.setattr(kept.broker.trees, "ends_at_once", fails)
    with pytest.raises(Unavailable):
        await office.notary.look()
    await office.notary.look()
    assert {head.log for head in office.heads()} == {f"session:{session}" for session in sessions}


async def test_redaction_is_stated_and_changes_no_root(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"), said("the password is swordfish"))
    await office.looks()
    await redacted(kept, session, (await kept.head(session)).seq)
    stated = await office.looks(MINUTE)
    assert [(head.log, head.state) for head in stated] == [(f"session:{session}", "redacted")]
    assert office.alarms() == {}
    await bundled(office, session)
    assert found_in(office) == set()
    with zipfile.ZipFile(office.folder / "run.zip") as archive:
        assert all(b"swordfish" not in archive.read(name) for name in archive.namelist())


async def test_redaction_is_stated_also_where_its_log_has_gone_on_since(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"), said("the password is swordfish"))
    await office.looks()
    await redacted(kept, session, (await kept.head(session)).seq)
    await grow(kept, session, "more", "idle")
    stated = await office.looks(MINUTE)
    assert [(head.log, head.state) for head in stated] == [(f"session:{session}", "redacted")]


async def test_all_is_looked_at_at_once_where_redis_was_away(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = await kept.has(said("go")), await kept.has(said("go"))
    await office.looks()

    async def away(*_: object) -> None:
        raise Unavailable("away")

    with monkeypatch.context() as gone:
        gone.setattr(kept.broker.logs, "changed_since", away)
        with pytest.raises(Unavailable):
            await office.notary.look()
    await kept.redis.hset(kept.broker.keys.session(session), "seq", 3)
    await office.looks(1_000)
    assert office.alarms() == {f"session:{session}": "rewound"}


async def test_time_to_come_in_the_list_of_sessions_hides_no_later_change(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    sessions = kept.broker.keys.sessions(kept.broker.keys.shard_of(session))
    [(_, last)] = await kept.redis.zrange(sessions, -1, -1, withscores=True)
    office.now_ms = int(last)
    await kept.redis.zadd(sessions, {session: 2**50})
    await office.looks()
    later = await kept.has(said("go"))
    assert [head.log for head in await office.looks(1_000)] == [f"session:{later}"]


async def test_session_that_is_not_in_turn_is_looked_at_where_its_time_is_another_one(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = await kept.has(said("go")), await kept.has(said("go"))
    sessions = kept.broker.keys.sessions(kept.broker.keys.shard_of(session))
    await kept.redis.zincrby(sessions, -5, session)
    monkeypatch.setattr("orchestrator.rollouts.notary.ROUND_TREES", 0)
    await office.looks()
    await kept.redis.hset(kept.broker.keys.session(session), "seq", 3)
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {}
    await kept.redis.zadd(sessions, {session: 1})
    await office.looks(MINUTE)
    assert office.alarms() == {f"session:{session}": "rewound"}


async def test_times_of_a_register_do_not_fall_where_the_clock_is_set_back(
    kept: Kept, office: Office
) -> None:
    await kept.has(said("go"))
    [first] = await office.looks()
    await kept.has(said("go"))
    [second] = await office.looks(-MINUTE)
    assert (first.ms, second.ms) == (office.now_ms + MINUTE, office.now_ms + MINUTE)


async def test_namespaces_are_stated_in_registers_of_their_own(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    await kept.redis.hset(kept.broker.keys.session(session), "namespace", "team-a")
    await kept.has(said("go"))
    await office.looks()
    assert [head.log for head in office.heads("team-a")] == [f"session:{session}"]
    assert len(office.heads()) == 1


REGISTERS = ("home", "team-a", "team-b")


async def in_each_namespace(kept: Kept) -> dict[str, SessionId]:
    """A session for each register."""
    sessions = {name: await kept.has(said("go")) for name in REGISTERS}
    for name, session in sessions.items():
        namespace = "" if name == "home" else name
        await kept.redis.hset(kept.broker.keys.session(session), "namespace", namespace)
    return sessions


async def test_each_register_is_published_and_shown_to_witnesses_and_again_at_each_interval(
    kept: Kept, office: Office
) -> None:
    asked: list[str] = []

    async def witnessed(name: str, signed: Signed) -> Note:
        asked.append(name)
        return signed.note

    office.notary._witnessed = witnessed
    sessions = await in_each_namespace(kept)
    await office.notary.look()
    for name, session in sessions.items():
        assert [head.log for head in office.heads(name)] == [f"session:{session}"]
    assert set(asked) == set(REGISTERS)
    asked.clear()
    await office.looks(1_000)
    assert asked == []
    await office.looks(MINUTE)
    assert sorted(asked) == sorted(REGISTERS)
    for session in sessions.values():
        await grow(kept, session, "more", "idle")
    await office.notary.look()
    assert [len(office.heads(name)) for name in REGISTERS] == [2, 2, 2]
    assert office.state.unpublished() == []


@pytest.mark.parametrize("fails", REGISTERS)
async def test_each_register_that_was_kept_and_not_told_is_told_by_the_next_notary(
    kept: Kept, office: Office, fails: str
) -> None:
    sessions, put = await in_each_namespace(kept), office.objects.put

    def full(name: str, content: bytes) -> None:
        if name.startswith(f"{fails}/"):
            raise ArchiveUnavailable("the disk is full")
        put(name, content)

    office.objects.put = full  # type: ignore[method-assign]
    with pytest.raises(ArchiveUnavailable):
        await office.notary.look()
    office.objects.put = put  # type: ignore[method-assign]
    office.again()
    await office.notary.look()
    for name, session in sessions.items():
        assert [head.log for head in office.heads(name)] == [f"session:{session}"]


@pytest.mark.parametrize("lost", REGISTERS)
async def test_each_register_is_held_against_the_state_at_the_start(
    kept: Kept, office: Office, lost: str
) -> None:
    await in_each_namespace(kept)
    await office.looks()
    office.again()
    office.objects.remove(f"{lost}/checkpoint")
    with pytest.raises(BadRegister, match=f"the register fleet.example/{lost} was published with 1"):
        office.again()


@pytest.mark.parametrize("name", ["MOST_PAGES", "TREES_AT_ONCE"])
async def test_more_sessions_and_trees_than_are_read_at_once_are_all_stated(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(f"orchestrator.rollouts.notary.{name}", 2)
    sessions = [await kept.has(said("go")) for _ in range(5)]
    for at, session in enumerate(sessions):
        await touch(kept, session, at + 1)
    assert {head.log for head in await office.looks()} == {f"session:{session}" for session in sessions}
    for session in sessions:
        await grow(kept, session, "more", "idle")
    assert len(await office.looks(1_000)) == 5


async def test_each_log_that_was_changed_is_an_alarm_within_a_round_and_each_that_agrees_again_is_none(
    kept: Kept, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.rollouts.notary.ROUND_TREES", 2)
    sessions = [await kept.has(said("go")) for _ in range(4)]
    await office.looks()
    heads = {session: (await kept.head(session)).head for session in sessions}
    for session in sessions:
        await kept.redis.hset(kept.broker.keys.session(session), "head", bytes(32))
    for _ in range(3):
        assert await office.looks(MINUTE) == []
    alarms = {f"session:{session}": "head" for session in sessions}
    assert office.alarms() == alarms
    office.again()
    assert office.alarms() == alarms, "all of them are on the disk"
    for session, head in heads.items():
        await kept.redis.hset(kept.broker.keys.session(session), "head", head)
    assert await office.looks(MINUTE) == []
    assert office.alarms() == {}, "what is refused is looked at each interval"
    office.again()
    assert office.alarms() == {}


async def test_alarm_that_becomes_another_one_is_told_as_that_one(
    kept: Kept, office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    await kept.redis.hset(kept.broker.keys.session(session), "seq", 3)
    for _ in range(3):
        await office.looks(MINUTE)
    await kept.redis.hset(kept.broker.keys.session(session), mapping={"seq": 5, "head": bytes(32)})
    for _ in range(3):
        await office.looks(MINUTE)
    told = [line.split(":")[0] for line in caplog.messages if line.startswith("ALARM")]
    assert told == ["ALARM rewound", "ALARM head"]
    assert office.alarms() == {f"session:{session}": "head"}


async def test_times_of_a_register_do_not_fall_for_a_notary_that_was_stopped(
    kept: Kept, office: Office
) -> None:
    await kept.has(said("go"))
    [first] = await office.looks()
    office.again()
    await kept.has(said("go"))
    [second] = await office.looks(-MINUTE)
    assert second.ms == first.ms


# ── one root for one size ─────────────────────────────────────────────────────────────────────────


async def test_root_that_was_kept_and_not_told_is_the_one_that_is_told(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    told = office.objects.put

    def fails(name: str, content: bytes) -> None:
        raise ArchiveUnavailable("the disk is full")

    office.objects.put = fails  # type: ignore[method-assign]
    with pytest.raises(ArchiveUnavailable):
        await office.notary.look()
    office.objects.put = told  # type: ignore[method-assign]
    kept_size = office.state.registers["home"].frontier.size
    root = office.state.registers["home"].frontier.root()
    await grow(kept, session, "meanwhile", "idle")
    office.again()
    office.now_ms += MINUTE
    await office.notary.look()
    successor = office.objects.get("home/next/0")
    assert successor is not None
    assert successor.decode().split("\n")[1] == str(kept_size) == "1"
    import base64

    assert base64.b64decode(successor.decode().split("\n")[2]) == root
    assert [head.size for head in office.heads()] == [5, 6]


async def test_register_goes_on_under_another_key_behind_a_checkpoint_of_both(
    kept: Kept, office: Office
) -> None:
    session = await kept.has(said("go"))
    await office.looks()
    former = Signer(office.state.origin("home"), b.private("log"))
    following = Signer(office.state.origin("home"), b.private("next"))
    note = rotate(office.objects, "home", former, following)
    assert note is not None
    assert note.signed_by([former.key, following.key]).keys() == {former.key, following.key}
    assert office.objects.get("home/rotated/1") == office.objects.get("home/checkpoint") == note.encode()
    office.state.rotated(following.key.public.hex())
    office.again()
    assert office.state.key == following.key.public.hex()
    await grow(kept, session, "on", "idle")
    assert len(await office.looks()) == 1
    with pytest.raises(BadRegister, match="another key than the one of before"):
        rotate(office.objects, "home", following, former)


async def test_state_of_a_backup_does_not_start(kept: Kept, office: Office, tmp_path: Path) -> None:
    await kept.has(said("go"))
    await office.looks()
    backup = (tmp_path / "state" / "notary.db").read_bytes()
    await kept.has(said("go"))
    await office.looks()
    office.state.close()
    (tmp_path / "state" / "notary.db").write_bytes(backup)
    office.open()
    with pytest.raises(Forked, match="older"):
        office.notary.start()
    await kept.has(said("go"))
    with pytest.raises(Forked, match="another notary"):
        await office.notary.look()


async def test_register_that_lost_its_files_is_told(kept: Kept, office: Office) -> None:
    await kept.has(said("go"))
    await office.looks()
    office.objects.remove("home/checkpoint")
    with pytest.raises(BadRegister, match="backup"):
        office.again()


async def test_state_is_made_once_and_used_by_one(office: Office, tmp_path: Path) -> None:
    with pytest.raises(BadState, match="never made anew"):
        NotaryState.create(tmp_path / "state", "fleet.example", "ab")
    with pytest.raises(BadState, match="another notary uses"):
        NotaryState.open(tmp_path / "state")
    with pytest.raises(BadState, match="init"):
        NotaryState.open(tmp_path / "elsewhere")
    office.state.close()
    (tmp_path / "state" / "notary.db").write_bytes(b"no database, but long enough to be one" * 100)
    with pytest.raises(BadState, match="damaged"):
        NotaryState.open(tmp_path / "state")
    (tmp_path / "state" / "notary.db").write_bytes(b"")
    with pytest.raises(BadState, match="half-way"):
        NotaryState.open(tmp_path / "state")


async def test_files_of_a_notary_are_its_users_alone(kept: Kept, office: Office, tmp_path: Path) -> None:
    await kept.has(said("go"))
    await office.looks()
    files = [
        path for part in ("state", "register") for path in (tmp_path / part).rglob("*") if path.is_file()
    ]
    assert files
    assert [path for path in files if path.stat().st_mode & 0o077] == []


async def test_register_of_hundreds_of_statements_forgets_what_is_in_full_tiles(
    kept: Kept, office: Office
) -> None:
    known = KnownLog(
        f"session:{b.ROOT}", "home", b.ROOT, 1, bytes(32), bytes(32), (bytes(32),), NOW_MS, "rest"
    )
    heads = [
        Head(0, f"session:{b.ROOT}", b.ROOT, n, bytes(32), bytes(32), NOW_MS, "rest") for n in range(520)
    ]
    for first, end in ((0, 200), (200, 256), (256, 519), (519, 520)):
        office.state.add([(known, head) for head in heads[first:end]], {})
        await office.notary.look()
    assert [head.size for head in office.heads()] == list(range(520))
    assert len(office.state.statements("home", 0, 1_000)) == 520 % 256


async def test_figures_of_a_notary_tell_of_alarms_and_of_their_end(kept: Kept, office: Office) -> None:
    session = await kept.has(said("go"))
    figures = Figures()
    figures.looked(await office.notary.look(), 5.0)
    assert "dendro_notary_statements_total 1.0" in figures.page()
    assert "dendro_notary_looked_timestamp_seconds 5.0" in figures.page()
    head = (await kept.head(session)).head
    for stored, alarms in ((bytes(32), "1.0"), (head, "0.0")):
        await kept.redis.hset(kept.broker.keys.session(session), "head", stored)
        office.now_ms += MINUTE
        figures.looked(await office.notary.look(), 6.0)
        assert f'dendro_notary_logs_refused{{kind="head"}} {alarms}' in figures.page()
    assert figures.fault == ""


async def test_key_is_rotated_by_the_command_and_the_former_one_signs_no_more(
    kept: Kept,
    office: Office,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await kept.has(said("go"))
    await office.looks()
    office.state.close()
    pem = b.private("log").private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "former").write_bytes(pem)
    told: Any = SimpleNamespace(
        url=(office.folder / "register").as_uri(), state=office.state.folder, key_file=tmp_path / "former"
    )
    given: Any = SimpleNamespace(settings=lambda: SimpleNamespace(receipts=told))
    monkeypatch.setattr("orchestrator.cli.invocation.Invocation.of", lambda ctx: given)
    command.rotate(given, tmp_path / "next")
    note, origin = Note.read(capsys.readouterr().out.encode()), office.state.origin("home")
    keys = {Signer(origin, key).key for key in (b.private("log"), read_private_key(tmp_path / "next"))}
    assert note.signed_by(keys).keys() == keys
    with pytest.raises(Fault, match="is not the key that"):
        command.rotate(given, tmp_path / "third")


@dataclass
class Rotations:
    """The command that gives a notary's registers another key, and what it prints."""

    office: Office
    printed: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        self.given: Any = SimpleNamespace(settings=lambda: SimpleNamespace(receipts=self.told))
        self.told: Any = SimpleNamespace(
            url=(self.office.folder / "register").as_uri(),
            state=self.office.state.folder,
            key_file=self.office.folder / "former",
        )
        pem = b.private("log").private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        self.told.key_file.write_bytes(pem)

    def to(self, name: str = "next") -> list[Note]:
        """The checkpoints that are printed."""
        command.rotate(self.given, self.office.folder / name)
        _, *texts = re.split(r"^(?=fleet\.example/)", self.printed.readouterr().out, flags=re.MULTILINE)
        return [Note.read(text.encode()) for text in texts]

    def keys(self, register: str, name: str = "next") -> set[VerifierKey]:
        """The key of before and the next one."""
        private = (b.private("log"), read_private_key(self.office.folder / name))
        return {Signer(self.office.state.origin(register), each).key for each in private}

    def have_both_keys(self, printed: list[Note]) -> None:
        """Each register's newest checkpoint is signed by both, printed, and published beside it."""
        assert len(printed) == len(REGISTERS)
        for name, note in zip(REGISTERS, printed, strict=True):
            found = Register(self.office.objects, name).newest()
            assert found is not None
            assert note.signed_by(self.keys(name)).keys() == self.keys(name)
            assert note.encode() == found.note.encode()
            assert self.office.objects.get(f"{name}/rotated/{found.point.size}") == note.encode()

    def next_is_in_force(self) -> None:
        """The state knows the next key, and that of before gives no other one."""
        state = NotaryState.open(self.office.folder / "state")
        following = read_private_key(self.office.folder / "next").public_key().public_bytes_raw()
        assert state.key == following.hex()
        state.close()
        with pytest.raises(Fault, match="is not the key that"):
            self.to("third")


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("fails", range(2 * len(REGISTERS)))
async def test_change_of_the_key_that_broke_off_at_any_write_is_done_by_the_same_command_again(
    kept: Kept,
    office: Office,
    fails: int,
    goes_on: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sessions, rotations = await in_each_namespace(kept), Rotations(office, capsys)
    await office.looks()
    office.state.close()
    monkeypatch.setattr("orchestrator.cli.invocation.Invocation.of", lambda ctx: rotations.given)
    put, written = Objects.put, list[str]()

    def breaks_off(self: Objects, name: str, content: bytes) -> None:
        if len(written) == fails:
            raise ArchiveUnavailable(f"the store does not take {name}")
        written.append(name)
        put(self, name, content)

    for _ in range(2):
        written.clear()
        with monkeypatch.context() as patched, pytest.raises(Fault, match="does not take"):
            patched.setattr(Objects, "put", breaks_off)
            rotations.to()
        assert capsys.readouterr().out == "", "nothing is said to be done"
    if goes_on:
        office.open()
        office.notary.start()
        for session in sessions.values():
            await grow(kept, session, "on", "idle")
        assert len(await office.looks()) == 1
        office.state.close()
    rotations.have_both_keys(rotations.to())
    rotations.next_is_in_force()


class Full:
    """An output to a disk that has room for so many notes, and says of the last one only behind it."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.buffer = self

    def write(self, data: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            self.flush()

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rotated.note")


@pytest.mark.parametrize("most", range(len(REGISTERS) + 1))
async def test_key_of_before_stays_in_force_until_all_checkpoints_are_printed(
    kept: Kept,
    office: Office,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By them, whoever trusts that key checks the next one."""
    await in_each_namespace(kept)
    rotations = Rotations(office, capsys)
    await office.looks()
    office.state.close()
    monkeypatch.setattr("orchestrator.cli.invocation.Invocation.of", lambda ctx: rotations.given)
    with monkeypatch.context() as patched, pytest.raises(Fault, match="No space left"):
        patched.setattr("sys.stdout", Full(most))
        rotations.to()
    rotations.have_both_keys(rotations.to())
    rotations.next_is_in_force()
