"""`dendro verify` names the changes of somebody who can write to Redis, or to a file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import fakeredis
import orjson
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, SessionHead, StoredEntry
from orchestrator.broker.redis_keys import Keys
from orchestrator.cli.verify import _expected, _reports
from orchestrator.core.chain import GENESIS, ChainKey, next_chain, payload_digest
from orchestrator.core.ids import SessionId, TreeId, created_ms
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.chain_check import audit_session
from orchestrator.rollouts.file_format import PLACE, read_rollout
from orchestrator.rollouts.imports import Newcomer, plan_import
from orchestrator.rollouts.replay import fold_file
from orchestrator.rollouts.verify import audit_file
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import chain_key
from orchestrator.wiring.new_sessions import new_birth
from tests.cli.machine import Machine
from tests.old_sessions.kept import Kept
from tests.redis_clients import PlainRedis
from tests.servers import RedisServer

KEYS = Keys("dendro:", 16)


def key_of(settings: Settings) -> ChainKey | None:
    return chain_key(settings)


@dataclass
class Deployment:
    """An old deployment in a real Redis, an archive that may be damaged, and a person who verifies."""

    kept: Kept
    redis: PlainRedis
    settings: Settings

    async def findings(self, source: str, *, tree: bool = False, head: str | None = None) -> list[str]:
        """The findings of verify, in the order of the sessions."""
        reports = await _reports(self.settings, source, tree, False, _expected(head))
        return [f"{broken.seq} {broken.reason}" for report in reports for broken in report.findings]

    def head(self, session: str) -> str:
        """The session's head, as verify printed it on an earlier day."""
        seq, head = self.redis.hmget(KEYS.session(session), ["seq", "head"])
        return f"{int(seq)}:{head.hex()}"

    def cut(self, session: str, last: int) -> None:
        """Takes the log's end away, and puts the session's hash back to match: the chain fits."""
        key = KEYS.rollout(session)
        for at, _ in self.redis.xrange(key, f"({last}-0"):
            self.redis.xdel(key, at)
        [(_, fields)] = self.redis.xrange(key, f"{last}-0", f"{last}-0")
        self.redis.hset(KEYS.session(session), mapping={"seq": last, "head": fields[b"h"]})

    def agents(self) -> dict[str, str]:
        """Every agent of the tree, by its number."""
        found = self.redis.hgetall(KEYS.agents(self.kept.made("tree")))
        return {name[2:].decode(): value.decode() for name, value in found.items() if name[:2] == b"s:"}

    def forks(self) -> list[str]:
        return [s for s in self.agents().values() if b'"kind":"forked"' in self.text(s)]

    def text(self, session: str) -> bytes:
        return b"".join(fields[b"p"] for _, fields in self.redis.xrange(KEYS.rollout(session)))


@pytest.fixture(params=["plain", "keyed"])
def deployment(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path) -> Deployment:
    kept = Kept.of(request.param)
    redis = redis_server.client()
    redis.flushall()
    kept.put_into(redis)
    shutil.copytree(kept.archive, tmp_path / "own" / "archive")
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "own"),
        "DENDRO_REDIS_URL": redis_server.url,
        **kept.environ,
    }
    return Deployment(kept, redis, load_settings(SettingsSources(cwd=tmp_path, environ=environ)))


real = pytest.mark.realredis


@real
async def test_untouched_tree_agrees_with_all_that_noted_it(deployment: Deployment) -> None:
    reports = await _reports(deployment.settings, deployment.kept.made("tree"), True, False, None)
    assert [report.findings for report in reports] == [[]] * (len(deployment.agents()) + 1)
    assert all("it is this session's log" in report.shown for report in reports[:-1])
    assert reports[-1].what == f"tree {deployment.kept.made('tree')}"
    root = reports[0]
    assert any("notes of others agree" in text for text in root.shown)
    every = await _reports(deployment.settings, "", False, True, None)
    of_sessions = sorted(report.what for report in every if report.what.startswith("session"))
    assert of_sessions == sorted(f"session {s}" for s in deployment.kept.sessions)
    assert not any(report.findings for report in every)


@real
async def test_exchanged_logs_are_named(deployment: Deployment) -> None:
    one, other = list(deployment.agents().values())[-2:]
    redis = deployment.redis
    for key in (KEYS.session, KEYS.rollout, KEYS.snapshot):
        redis.rename(key(one), "aside")
        redis.rename(key(other), key(one))
        redis.rename("aside", key(other))
    for session, named in ((one, other), (other, one)):
        found = await deployment.findings(session)
        assert any(f"it names session {named}" in text for text in found), found


@real
async def test_cut_end_is_shown_by_the_tree_log(deployment: Deployment) -> None:
    """The chain of what is left fits, and so does the session's hash."""
    agent = deployment.agents()["1"]
    assert await deployment.findings(agent) == []
    seq = int(deployment.head(agent).partition(":")[0])
    deployment.cut(agent, seq - 3)
    found = await deployment.findings(agent)
    assert any("of the tree's log names entry" in text and "cut off" in text for text in found), found


@real
async def test_log_that_was_written_anew_is_shown_by_the_tree_log(deployment: Deployment) -> None:
    """Without a key anybody can chain another log; a key that leaked lets its holder do so, too."""
    agent, head = deployment.agents()["1"], GENESIS
    key, secret = KEYS.rollout(agent), deployment.kept.secret
    entries = deployment.redis.xrange(key)
    deployment.redis.delete(key)
    for seq, (at, fields) in enumerate(entries, 1):
        fields[b"p"] = fields[b"p"].replace(b"gpt-5", b"gpt-4")
        head = next_chain(head, seq, int(fields[b"e"]), payload_digest(fields[b"s"], fields[b"p"]), secret)
        deployment.redis.xadd(key, {**fields, b"h": head}, id=at)
    deployment.redis.hset(KEYS.session(agent), "head", head)
    found = await deployment.findings(agent)
    assert found
    assert all("of the tree's log names another hash for it" in text for text in found), found


@real
async def test_cut_end_is_shown_by_a_fork(deployment: Deployment) -> None:
    """A forger who removes the tree's log, too, meets the fork's own chain, which notes its parent's."""
    root = deployment.kept.made("tree")
    deployment.redis.delete(KEYS.tree(root))
    [fork] = deployment.forks()
    deployment.cut(root, 12)
    assert await deployment.findings(root) == [], "one log alone shows nothing of it"
    found = await deployment.findings(root, tree=True)
    assert any(f"of its fork {fork} names entry" in text for text in found), found


@real
async def test_cut_end_is_shown_by_the_archive(deployment: Deployment) -> None:
    """Segments stay where they are when Redis is made to forget them."""
    talk = deployment.kept.made("talk")
    manifest = json.loads(deployment.redis.hget(KEYS.session(talk), "manifest") or b"")
    assert manifest["segments"]
    asking = deployment.kept.made("asking")
    folder = Path(deployment.settings.upkeep.archive_url.removeprefix("file://")) / asking / asking
    folder.mkdir(parents=True)
    (folder / "1-900-00112233.jsonl.zst").write_bytes(b"")
    found = await deployment.findings(asking)
    assert any("a segment in the archive names entry 900" in text for text in found), found


@real
async def test_cut_end_of_a_lone_session_is_shown_by_a_head_that_was_noted(deployment: Deployment) -> None:
    asking = deployment.kept.made("asking")
    noted = deployment.head(asking)
    (report,) = await _reports(deployment.settings, asking, False, False, _expected(noted))
    assert (report.findings, report.shown[1:]) == ([], ("1 note of others agrees",))
    assert await deployment.findings(asking, head=noted[:-48]) == [], "a shorter note shows nearly as much"
    deployment.cut(asking, int(noted.partition(":")[0]) - 2)
    assert await deployment.findings(asking) == [], "nobody else has noted it"
    found = await deployment.findings(asking, head=noted)
    assert any("--expect-head names entry" in text for text in found), found


@real
async def test_cut_end_is_shown_by_the_file_that_a_worker_wrote(
    deployment: Deployment, tmp_path: Path
) -> None:
    kept, asking = deployment.kept, deployment.kept.made("asking")
    [name] = [name for name in kept.files() if name.endswith(f"{asking}.rollout.jsonl")]
    # Days are local, and the worker was in another time zone.
    moment = datetime.fromtimestamp(created_ms(asking) / 1000) + timedelta(days=1)
    day = tmp_path / "own" / "sessions" / moment.strftime("%Y/%m/%d")
    day.mkdir(parents=True)
    file = kept.file(name, tmp_path).rename(day / name.replace(".rollout", ""))
    assert await deployment.findings(asking) == []
    with file.open("ab") as torn:
        torn.write(b'{"timestamp": "a line that a crash tore')
    noted = json.loads(file.read_bytes().splitlines()[-2])["seq"]
    deployment.cut(asking, noted - 1)
    [found] = await deployment.findings(asking)
    assert f"the file {file} names entry {noted}, which the log does not have" in found
    assert await deployment.findings(asking, tree=True) == [found]


@real
async def test_large_text_that_was_changed_or_is_gone_is_named_with_its_entry(deployment: Deployment) -> None:
    talk = deployment.kept.made("talk")
    key = next(deployment.redis.scan_iter(f"*:blob:{talk}:*"))
    whole = deployment.redis.get(key)
    assert whole is not None
    assert await deployment.findings(talk) == []
    deployment.redis.set(key, whole[:-2] + b"\0\0")
    [changed] = await deployment.findings(talk)
    assert "is damaged" in changed
    deployment.redis.delete(key)
    [gone] = await deployment.findings(talk)
    assert "is neither in Redis nor in the archive" in gone
    assert int(gone.split()[0]) > 0
    archive = Archive.at(deployment.settings.upkeep.archive_url)
    await archive.write_blob(TreeId(talk), key.decode().rpartition(":")[2], zstandard.decompress(whole))
    assert await deployment.findings(talk) == []


@real
@pytest.mark.parametrize(("field", "value"), [("pool", "elsewhere"), ("agent_id", "7")])
async def test_session_that_was_moved_in_its_hash_is_named(
    deployment: Deployment, field: str, value: str
) -> None:
    asking = deployment.kept.made("asking")
    deployment.redis.hset(KEYS.session(asking), field, value)
    found = await deployment.findings(asking)
    assert any(f"it says {field}" in text for text in found), found


def _rewritten(
    deployment: Deployment, change: Callable[[dict[bytes, bytes]], None], last: int = 10**9
) -> None:
    """Writes the tree's log anew, up to an entry, each entry as `change` makes it."""
    key = KEYS.tree(deployment.kept.made("tree"))
    entries = deployment.redis.xrange(key)
    deployment.redis.delete(key)
    for at, fields in entries[:last]:
        change(fields)
        deployment.redis.xadd(key, fields, id=at)


def _reworded(fields: dict[bytes, bytes], names: tuple[bytes, ...] = (b"p", b"a")) -> None:
    for name in names:
        fields[name] = fields[name].replace(b"Wait for orders.", b"Delete it all.")


@real
async def test_tree_log_that_was_cut_is_found_by_the_registry(deployment: Deployment) -> None:
    tree = deployment.kept.made("tree")
    _rewritten(deployment, lambda fields: None, last=3)
    found = await deployment.findings(tree, tree=True)
    assert any("the registry says that the tree's log goes on to" in text for text in found), found
    deployment.redis.hset(KEYS.agents(tree), "tree_seq", 3)
    found = await deployment.findings(tree, tree=True)
    assert any("its fold is not the registry" in text for text in found), found
    assert any("which a session's log made" in text for text in found), found


@real
async def test_texts_of_the_tree_log_are_held_against_the_parents_chain(deployment: Deployment) -> None:
    """Also where the registry was changed alike: what a parent's log says of a birth is in its chain."""
    tree = deployment.kept.made("tree")
    _rewritten(deployment, lambda fields: _reworded(fields, (b"p",)))
    found = await deployment.findings(tree, tree=True)
    assert any("is not what it records of it" in text for text in found), found
    _rewritten(deployment, _reworded)
    for name, value in deployment.redis.hgetall(KEYS.agents(tree)).items():
        deployment.redis.hset(KEYS.agents(tree), name, value.replace(b"Wait for orders.", b"Delete it all."))
    found = await deployment.findings(tree, tree=True)
    assert any("summary not as its parent's log has it" in text for text in found), found


@real
async def test_requests_and_decisions_of_the_tree_log_are_held_against_their_agents_logs(
    deployment: Deployment,
) -> None:
    tree = deployment.kept.made("tree")

    def asks_for_more(fields: dict[bytes, bytes]) -> None:
        fields[b"p"] = fields[b"p"].replace(b'"count-objects"', b'"gc"')

    _rewritten(deployment, asks_for_more)
    found = await deployment.findings(tree, tree=True)
    assert [text.partition(" ")[2][:26] for text in found] == ["it tells of a request that"], found
    entries = deployment.redis.xrange(KEYS.tree(tree))
    asked = json.loads(next(it[b"p"] for _, it in entries if b"exec_approval_request" in it[b"p"]))["msg"]
    forged = {
        **{name: asked[name] for name in ("call_id", "agent_id", "session_id", "agent_path")},
        "type": "request_resolved",
        "turn_id": "t",
        "decision": "approved",
        "who": "ciso@bigcorp",
        "resolved_at_ms": 1,
    }
    last = entries[-1][0]

    def says_approved(fields: dict[bytes, bytes]) -> None:
        fields[b"p"] = fields[b"p"].replace(b'"gc"', b'"count-objects"')
        if fields == entries[-1][1]:
            fields[b"p"] = orjson.dumps({"id": "", "msg": forged})

    _rewritten(deployment, says_approved)
    assert last == deployment.redis.xrange(KEYS.tree(tree))[-1][0]
    found = await deployment.findings(tree, tree=True)
    assert any("it tells of a decision (approved) that the log of session" in text for text in found), found


@real
@pytest.mark.parametrize("name", [b'"status":"', b'"session_id":"', b'"agent_path":"'])
async def test_life_of_an_agent_is_told_alike_within_an_entry_of_the_tree_log(
    deployment: Deployment, name: bytes
) -> None:
    """Also where no record stands beside the event: the parent tells that it has read a result."""

    def told_otherwise(fields: dict[bytes, bytes]) -> None:
        if b'"read":' in fields[b"a"]:
            fields[b"p"] = fields[b"p"].replace(name, name + b"0", 1)

    _rewritten(deployment, told_otherwise)
    found = await deployment.findings(deployment.kept.made("tree"), tree=True)
    assert any("is not what it records of it" in text for text in found), found


@real
async def test_session_that_the_registry_exchanged_is_named(deployment: Deployment) -> None:
    tree = deployment.kept.made("tree")
    deployment.redis.hset(KEYS.agents(tree), "s:2", deployment.agents()["1"])
    found = await deployment.findings(tree, tree=True)
    assert any("agent 2 is session" in text and "in the registry" in text for text in found), found


@real
async def test_agent_that_was_deleted_is_missed_by_its_parent(deployment: Deployment) -> None:
    agent = deployment.agents()["1"]
    deployment.redis.delete(KEYS.session(agent), KEYS.rollout(agent))
    found = await deployment.findings(deployment.kept.made("tree"))
    assert any(f"it made session {agent}, which is gone" in text for text in found), found


@real
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"s": "", "e": "1", "h": ""}, "it lacks its field 'p'"),
        ({"p": "", "s": "", "e": "one", "h": ""}, "a field of it cannot be read"),
        ({"p": "", "s": "", "e": str(10**30), "h": ""}, "does not follow"),
    ],
)
async def test_entry_that_is_none_is_a_finding(
    deployment: Deployment, fields: dict[str, str], words: str
) -> None:
    asking = deployment.kept.made("asking")
    seq = int(deployment.head(asking).partition(":")[0]) + 1
    deployment.redis.xadd(KEYS.rollout(asking), fields, id=f"{seq}-0")
    deployment.redis.hset(KEYS.session(asking), "seq", seq)
    found = await deployment.findings(asking)
    assert any(text.startswith(f"{seq} ") and words in text for text in found), found


@real
def test_person_reads_what_holds_what_does_not_and_what_cannot_be_shown(
    machine: Machine, redis_server: RedisServer
) -> None:
    kept = Kept.of("plain")
    with redis_server.client() as redis:
        kept.put_into(redis)
        asking = kept.made("asking")
        shown = machine.run("verify", asking)
        assert shown.returncode == 0, shown.stderr
        seq, head = kept.sessions[asking]["seq"], kept.sessions[asking]["head"]
        assert shown.stdout.splitlines()[0] == (
            f"session {asking}: {seq} entries follow from each other; it is this session's log"
        )
        assert shown.stdout.splitlines()[1] == f"head       {seq}:{head}"
        assert "not keyed" in shown.stdout
        assert "not shown" in shown.stdout
        keyed = machine.under(DENDRO_CHAIN_SECRET="a key", DENDRO_CHAIN_KEY_ID="k").run("verify", asking)
        assert keyed.returncode == 1
        assert "the log may be keyed otherwise, and here the key 'k' is configured" in keyed.stdout
        redis.xadd(KEYS.rollout(asking), {"s": "", "e": "1", "h": ""}, id=f"{seq + 1}-0")
        redis.hset(KEYS.session(asking), "seq", seq + 1)
        broken = machine.run("verify", asking)
        assert (broken.returncode, broken.stderr) == (1, "")
        assert f"  at entry {seq + 1}: it lacks its field 'p'" in broken.stdout
    for words in (["verify"], ["verify", asking, "--all"], ["verify", asking, "--expect-head", "9"]):
        assert machine.run(*words).returncode == 2


@real
def test_log_whose_key_is_not_configured_ends_with_2_and_with_it_with_0_or_1(
    machine: Machine, redis_server: RedisServer, tmp_path: Path
) -> None:
    kept = Kept.of("keyed")
    asking, told = kept.made("asking"), "cannot be checked here"
    file = kept.file(f"{kept.made('talk')}.full.jsonl", tmp_path)
    with redis_server.client() as redis:
        kept.put_into(redis)
        for words in ((asking,), (str(file),), (asking, "--tree")):
            shown = machine.run("verify", *words)
            assert (shown.returncode, shown.stderr) == (2, ""), shown.stdout
            assert told in shown.stdout, words
            assert "follow from each other" not in shown.stdout, words
            assert "BROKEN" not in shown.stdout, words
        for source in (asking, str(file), str(kept.file(f"{asking}.jsonl", tmp_path))):
            replayed = machine.run("replay", source)
            assert (replayed.returncode, told in replayed.stdout) == (2, True), replayed.stdout
            shown_alone = {line.split(" ")[0] for line in replayed.stdout.splitlines()}
            assert shown_alone <= {"file", "chain", "live"}, "nothing is told of what was not folded"
        there = machine.under(**kept.environ)
        assert there.run("verify", asking).returncode == 0
        redis.hset(KEYS.session(asking), "pool", "elsewhere")
        changed = there.run("verify", asking)
        assert (changed.returncode, "it says pool" in changed.stdout) == (1, True), changed.stdout
        assert machine.run("verify", asking).returncode == 2, "nothing can be said of it without the key"


# ── any single edit ───────────────────────────────────────────────────────────────────────────


class Tampered:
    """A broker that answers one entry of one log otherwise."""

    def __init__(self, broker: Broker, entry: StoredEntry) -> None:
        self._broker = broker
        self._entry = entry

    @property
    def logs(self) -> Tampered:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker if hasattr(self._broker, name) else self._broker.logs, name)

    async def read_rollout(self, *where: Any) -> Sequence[StoredEntry]:
        found = await self._broker.logs.read_rollout(*where)
        return [self._entry if entry.seq == self._entry.seq else entry for entry in found]


@pytest.fixture
async def kept_storage() -> AsyncIterator[Storage]:
    """The old keyed deployment in the double."""
    kept, server = Kept.of("keyed"), fakeredis.FakeServer()
    kept.put_into(fakeredis.FakeRedis(server=server))
    client = fakeredis.FakeAsyncRedis(server=server)
    connection = Connection(client, client)
    broker = Broker(connection, BrokerConfig(), time.monotonic)
    await broker.open()
    archive = Archive.at(kept.archive.as_uri(), kept.secret)
    yield Storage(broker, Blobs(connection, broker.keys), archive, kept.secret)
    await broker.aclose()


async def _head(storage: Storage, session: str) -> SessionHead:
    found = await storage.broker.logs.head(SessionId(session))
    assert found is not None
    return found


EDITS: dict[str, Callable[[StoredEntry, bytes], StoredEntry]] = {
    "payload": lambda entry, byte: replace(entry, payload=_edited(entry.payload, byte)),
    "salt": lambda entry, byte: replace(entry, salt=_edited(entry.salt, byte)),
    "chain": lambda entry, byte: replace(entry, chain=_edited(entry.chain, byte)),
    "epoch": lambda entry, byte: replace(entry, epoch=entry.epoch + 1 + byte[0]),
}


def _edited(value: bytes, byte: bytes) -> bytes:
    """Changes one byte."""
    at = byte[0] % len(value)
    return value[:at] + bytes([value[at] ^ (byte[1] or 1)]) + value[at + 1 :]


async def test_any_edit_of_any_entry_of_a_keyed_log_is_found(kept_storage: Storage) -> None:
    head = await _head(kept_storage, Kept.of("keyed").made("asking"))
    entries = await kept_storage.broker.logs.read_rollout(head.session)
    assert (await audit_session(kept_storage, head)).findings == []
    for entry in entries:
        for name, change in EDITS.items():
            tampered = Tampered(kept_storage.broker, change(entry, bytes([entry.seq % 256, 7])))
            altered = replace(kept_storage, broker=cast(Broker, tampered))
            found = (await audit_session(altered, head)).findings
            assert [broken.seq for broken in found[:1]] == [entry.seq], f"{name} of {entry.seq}"
    for other in (
        replace(head, seq=head.seq - 1),
        replace(head, head=bytes(32)),
        replace(head, seq=head.seq + 1),
    ):
        assert (await audit_session(kept_storage, other)).findings


@pytest.fixture(params=["plain", "keyed"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Settings, Path]:
    """A full export that this version wrote anew from an old one's header and lines."""
    kept = Kept.of(request.param)
    environ = {"HOME": str(tmp_path), **kept.environ}
    chosen = load_settings(SettingsSources(cwd=tmp_path, environ=environ))
    file = kept.file(f"{kept.made('talk')}.full.jsonl", tmp_path)
    first, *rest = file.read_bytes().splitlines(keepends=True)
    header = read_rollout([first]).header
    assert header is not None
    assert header.mac == ""
    file.write_bytes(b"".join([header.encode(kept.secret) + b"\n", *rest]))
    return chosen, file


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_edit_of_the_first_line_of_a_full_export_is_found(
    export: tuple[Settings, Path], data: st.DataObject
) -> None:
    chosen, file = export
    first, _, rest = file.read_bytes().partition(b"\n")
    value = json.loads(first)
    name = data.draw(st.sampled_from(sorted(value)))
    kind = st.integers(0, 999) if isinstance(value[name], int) else st.text("0123456789abcdef", min_size=1)
    other = {**value, name: data.draw(kind.filter(lambda drawn: drawn != value[name]))}
    forged = file.with_name("forged.jsonl")
    forged.write_bytes(json.dumps(other).encode() + b"\n" + rest)
    try:
        report = audit_file(forged, key_of(chosen), None)
    except RolloutError:
        return
    assert report.findings, name


def test_changed_first_line_is_refused_by_import_and_told_by_replay(export: tuple[Settings, Path]) -> None:
    chosen, file = export
    key = key_of(chosen)
    text = file.read_bytes()
    assert fold_file(file, None, key).broken is None
    first, _, rest = text.partition(b"\n")
    file.write_bytes(json.dumps({**json.loads(first), "state_sha256": ""}).encode() + b"\n" + rest)
    broken = fold_file(file, None, key).broken
    assert broken is not None
    assert "first line was changed" in broken.reason
    born = new_birth(chosen, Workspace(), 1_790_000_000_000, bytes)
    newcomer = Newcomer(born.facts, born.settings, "0", born.at_ms)
    with file.open("rb") as lines, pytest.raises(RolloutError, match="first line was changed"):
        plan_import(read_rollout(lines), newcomer, {}, key)


def test_file_shows_a_head_that_was_noted_and_one_that_it_lacks(export: tuple[Settings, Path]) -> None:
    chosen, file = export
    report = audit_file(file, key_of(chosen), None)
    assert report.findings == []
    assert audit_file(file, key_of(chosen), _expected(f"{report.seq}:{report.head.hex()}")).findings == []
    [missed] = audit_file(file, key_of(chosen), _expected(f"{report.seq}:{bytes(32).hex()}")).findings
    assert "expected" in missed.reason


def test_file_whose_naming_entries_are_redacted_does_not_show_whose_it_is(
    export: tuple[Settings, Path],
) -> None:
    chosen, file = export
    first, *lines = file.read_bytes().splitlines(keepends=True)
    kept = Kept.of("keyed" if chosen.chain.key else "plain")
    assert any(kept.made("talk") in text for text in audit_file(file, key_of(chosen), None).shown)
    for at in range(3):
        value = json.loads(lines[at])
        stored = {name: value[name] for name in value if name not in PLACE}
        digest = payload_digest(bytes.fromhex(value["salt"]), orjson.dumps(stored))
        place = {name: value[name] for name in ("seq", "epoch", "chain")}
        lines[at] = orjson.dumps({**place, "digest": digest.hex()}) + b"\n"
    file.write_bytes(b"".join([first, *lines]))
    report = audit_file(file, key_of(chosen), None)
    assert ["no fact of the log says who" in found.reason for found in report.findings] == [True] * 3
    assert "3 of them redacted" in report.shown
    assert "its entries name no session" in report.shown


def test_first_line_of_an_older_export_is_held_against_the_entries(tmp_path: Path) -> None:
    kept = Kept.of("keyed")
    chosen = load_settings(SettingsSources(cwd=tmp_path, environ={"HOME": str(tmp_path), **kept.environ}))
    file = kept.file(f"{kept.made('talk')}.full.jsonl", tmp_path)
    [lacks] = audit_file(file, key_of(chosen), None).findings
    assert "--accept-old-header" in lacks.reason
    old = audit_file(file, key_of(chosen), None, accept_old_header=True)
    assert (old.findings, "bears no code" in " ".join(old.shown)) == ([], True)
    first, _, rest = file.read_bytes().partition(b"\n")
    for name, other in (
        ("session_id", kept.made("asking")),
        ("pool", "host:x"),
        ("head", "00" * 32),
        ("seq", 3),
    ):
        file.write_bytes(json.dumps({**json.loads(first), name: other}).encode() + b"\n" + rest)
        assert audit_file(file, key_of(chosen), None).findings, name
