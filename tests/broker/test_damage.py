"""Damage in Redis is named by its key and its place, and stops nobody who reads something else."""

from __future__ import annotations

import pytest
import zstandard

from orchestrator.broker import blobs, logs
from orchestrator.broker.blobs import Blobs, digest_of
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, CommitTooLarge, Corrupt, DamagedEntry
from orchestrator.core.ids import SessionId, TreeId
from tests.broker.actors import POOL, SHARD, Backend, created, session_id, step, submitted, working
from tests.broker.families import root_of


async def test_reader_of_a_session_whose_hash_holds_no_number_is_told_which_key_it_is(
    backend: Backend,
) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    session = await created(broker)
    key = broker.keys.session(session)
    await connection.command("HSET", key, "seq", "many")
    with pytest.raises(Corrupt, match="a field of it cannot be read") as caught:
        await broker.logs.head(session)
    assert key in str(caught.value)
    await broker.aclose()


@pytest.mark.parametrize("how", ["no number", "no hash"])
@pytest.mark.parametrize("page", [1, 2, 250])
async def test_sessions_of_a_tree_are_found_beside_a_damaged_one_of_another_tree(
    page: int, how: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a damaged one of the tree itself is no session that could be left out."""
    monkeypatch.setattr(logs, "_HEADS", page)
    root, *others = [await root_of(broker) for _ in range(3)]
    children = [await root.spawns(number) for number in (1, 2, 3)]
    await others[0].spawns(1)
    await children[2].parks()
    await broker.command("HDEL", broker.keys.agents(root.tree), "s:2")
    for other in others:
        key = broker.keys.session(other.session)
        if how == "no number":
            await broker.command("HSET", key, "seq", "many")
        else:
            await broker.command("DEL", key)
            await broker.command("SET", key, "no hash")
    wanted = {root.session, *(child.session for child in children)}
    assert {head.session for head in await broker.logs.heads_of_tree(root.tree)} == wanted
    _, heads = await broker.trees.heads_at_once(root.tree)
    assert {head.session for head in heads} == wanted
    await broker.command("HSET", broker.keys.session(children[1].session), "seq", "many")
    with pytest.raises(Corrupt):
        await broker.logs.heads_of_tree(root.tree)


@pytest.mark.parametrize("beside", [0, 1, 2])
async def test_key_of_another_type_is_named_by_each_plain_command_that_meets_it(
    backend: Backend, beside: int
) -> None:
    connection = backend.connect()
    keys = ["one", "two", "three"][: beside + 1]
    for key in keys:
        await connection.command("SET", key, "x")
    rows: list[tuple[str, ...]] = [("GET", key) for key in keys]
    rows[beside] = ("HGET", keys[beside], "field")
    with pytest.raises(Corrupt, match=f"key {keys[beside]}: WRONGTYPE"):
        await connection.commands(rows)
    # Of a command that names its keys later nobody knows which one it is.
    with pytest.raises(BrokerError, match="WRONGTYPE") as caught:
        await connection.command("XREAD", "COUNT", 1, "STREAMS", keys[0], "0")
    assert not isinstance(caught.value, Corrupt)
    await connection.aclose()


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("damage", ["no number", "no hash"])
async def test_heads_of_all_but_the_damaged_sessions_are_read_in_their_order(
    broker: Broker, damage: str, places: tuple[int, ...]
) -> None:
    sessions = [await created(broker) for _ in range(3)]
    wrong = [broker.keys.session(sessions[place]) for place in places]
    for key in wrong:
        if damage == "no hash":
            await broker.command("SET", key, "x")
        else:
            await broker.command("HSET", key, "seq", "many")
    damaged: dict[SessionId, Corrupt] = {}
    heads = await broker.logs.heads([*sessions, session_id()], damaged)
    assert [head.session for head in heads] == [
        session for place, session in enumerate(sessions) if place not in places
    ]
    assert [error.key for error in damaged.values()] == wrong
    with pytest.raises(Corrupt, match="key "):
        await broker.logs.heads(sessions)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("p", "{}", "s", "salt", "h", "head"), "entry 3: it lacks its field 'e'"),
        (("p", "{}", "s", "salt", "h", "head", "e", "one"), "entry 3: a field of it cannot be read"),
    ],
    ids=["a field is missing", "a field is no number"],
)
async def test_reader_of_a_log_with_an_entry_that_is_none_is_told_its_number(
    backend: Backend, fields: tuple[str, ...], reason: str
) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k", [b"a", b"b"]))
    session = held.claim.session
    await connection.command("XADD", broker.keys.rollout(session), "3-0", *fields)
    assert [entry.seq for entry in await broker.logs.read_rollout(session, 0, 2)] == [1, 2]
    with pytest.raises(DamagedEntry, match=reason) as caught:
        await broker.logs.read_rollout(session)
    assert caught.value.number == 3
    await broker.aclose()


@pytest.mark.parametrize(
    ("fields", "by_guess"), [(("k", "submission"), False), (("q", "many"), True), (("u", b"\xff"), False)]
)
async def test_session_whose_queue_has_what_is_no_entry_keeps_no_other_waiting(
    fields: tuple[str, str | bytes], by_guess: bool, backend: Backend
) -> None:
    """A worker that met it with its claim would leave, and the next one, until the session is set aside."""
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    bad, good = await created(broker), await created(broker)
    for session in (bad, good):
        await submitted(broker, session)
    queue = broker.keys.sq(bad)
    (entry,) = await connection.command("XRANGE", queue, "-", "+")
    damaged = {**entry[1], fields[0].encode(): fields[1]}
    if fields[0] == "k":
        del damaged[b"p"]
    await connection.command("XADD", queue, "2-0", *(part for pair in damaged.items() for part in pair))
    found = await broker.claims.claim(POOL, "w1", "c1", SHARD, bad if by_guess else None)
    assert found is not None
    assert found.claim.session == good
    await broker.aclose()


async def test_member_of_a_set_that_is_no_session_keeps_no_session_waiting(backend: Backend) -> None:
    """Each worker would meet it with each of its polls, and leave."""
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    due, leases, *_ = broker.keys.pool(SHARD, POOL)
    timers = broker.keys.timers(SHARD)
    sessions = [await created(broker) for _ in range(3)]
    for session in sessions:
        await submitted(broker, session)
    await connection.command("ZADD", due, -1, "nobody")
    await connection.command("ZADD", leases, 0, "nobody else")
    for number, guess in enumerate((None, SessionId("nobody"), sessions[2])):
        found = await broker.claims.claim(POOL, "w1", f"c{number}", SHARD, guess)
        assert found is not None
        assert (found.claim.session in sessions, found.after in (None, *sessions)) == (True, True)
    with pytest.raises(Corrupt, match="'nobody else', due or held, is no session"):
        await broker.claims.claim(POOL, "w1", "c3", SHARD)
    for member in ("nobody:retry", ":", f"{sessions[0]}:retry"):
        await connection.command("ZADD", timers, 1, member)
    await connection.command("HSET", broker.keys.timer(sessions[0]), "retry", "1:")
    damaged: list[Corrupt] = []
    fired = await broker.claims.fire(SHARD, damaged=damaged)
    assert [(one.session, one.timer) for one in fired] == [(sessions[0], "retry")]
    assert len(damaged) == 2
    await broker.aclose()


async def test_notice_that_names_no_session_wakes_who_waits_and_says_no_more(backend: Backend) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    keys = broker.keys
    near = [keys.near("w1")] if keys.nearby else []
    first = await broker.claims.wait_for_notices(POOL, "w1", {}, 0.1)
    ready = keys.pool(SHARD, POOL)[2]
    for stream in (ready, keys.control("w1"), *near):
        for fields in (("s", "nobody"), ("x", "1"), ("s", b"\xff", "p", POOL)):
            await connection.command("XADD", stream, "*", *fields)
    found = await broker.claims.wait_for_notices(POOL, "w1", first.cursors, 0.1)
    assert (found.named, found.notified, found.alone) == ({}, (), ())
    assert found.shards in ((SHARD,), ()), "in a cluster each stream is read by itself"
    await broker.aclose()


async def test_content_that_cannot_be_unpacked_is_corrupt(backend: Backend) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held = await working(broker)
    tree, digest = held.claim.tree, digest_of(b"content")
    for damaged in (b"not packed", zstandard.compress(b"content")[:-2]):
        await connection.command("SET", broker.keys.blob(tree, digest), damaged)
        with pytest.raises(Corrupt, match="cannot be unpacked"):
            await Blobs(connection, broker.keys).get(tree, digest)
    await broker.aclose()


async def test_content_that_unpacks_to_more_than_the_bound_is_corrupt(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held = await working(broker)
    tree, stored = held.claim.tree, Blobs(connection, broker.keys)
    digest = await stored.put(tree, b"x" * 1_001)
    assert await stored.get(tree, digest) == b"x" * 1_001
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 1_000)
    with pytest.raises(Corrupt, match=r"its content has more than 1,000 bytes"):
        await stored.get(tree, digest)
    await broker.aclose()


async def test_content_beyond_the_bound_is_refused_before_it_is_sent(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 1_000)
    connection = backend.connect()
    broker = backend.broker(connection=connection)
    held = await working(broker)
    stored = Blobs(connection, broker.keys)
    with pytest.raises(CommitTooLarge, match=r"may have 1,000 bytes, this has 1,001"):
        await stored.put(held.claim.tree, b"x" * 1_001)
    assert await stored.get(held.claim.tree, digest_of(b"x" * 1_001)) is None
    assert await stored.put(held.claim.tree, b"x" * 1_000) == digest_of(b"x" * 1_000)
    await broker.aclose()


async def test_lists_of_sessions_have_each_once_by_the_shard_that_it_is_in(broker: Broker) -> None:
    here = [await created(broker) for _ in range(3)]
    elsewhere = await created(broker, session_id(SHARD + 1))
    for one in (*here, elsewhere):
        assert [head.session for head in await broker.logs.heads_of_tree(TreeId(one))] == [one]
    everywhere = [id async for page in broker.logs.session_ids() for id in page]
    assert sorted(everywhere) == sorted([*here, elsewhere])
    assert await broker.logs.count_sessions() == 4
    assert await broker.trees.registries([]) == []


async def test_old_sessions_of_a_large_shard_are_among_all(broker: Broker) -> None:
    """Redactions and verifications go by this list: what is not on it keeps its words."""
    oldest = await created(broker)
    for start in range(0, 100_000, 1_000):
        later = [(2 * broker.now_ms() + n, f"later-{n}") for n in range(start, start + 1_000)]
        await broker.command("ZADD", broker.keys.sessions(SHARD), *(part for pair in later for part in pair))
    found = [id async for page in broker.logs.session_ids() for id in page]
    assert (len(found), found[-1]) == (100_001, oldest)
