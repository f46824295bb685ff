"""No fault at any moment of a script leaves half of it.

One story runs every script. Before each of its calls, the very call is provoked to fail in every
way that a server knows, and all that Redis holds is compared, byte for byte, before and after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import ProviderLimits
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import BrokerError, OutOfMemory
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.job_queue import Ends
from orchestrator.broker.records import (
    BrokerConfig,
    BudgetWait,
    Claimed,
    CommitRequest,
    Committed,
    LimitChange,
    NewTree,
    RedactedEntry,
    Reservation,
    Settlement,
    Spend,
    Stored,
    Submit,
)
from orchestrator.broker.rights import missing_rights
from orchestrator.core.chain import GENESIS
from orchestrator.core.commit_parts import (
    Approval,
    Debit,
    NewEvent,
    NewSession,
    NewSubmission,
    OutboundMessage,
    Timer,
    TreeEvent,
)
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.secrets import SET_APART
from tests.broker.actors import (
    SHARD,
    Backend,
    RecordingConnection,
    claimed,
    entries_after,
    everything,
    new_session,
    session_id,
    step,
    submitted,
)

READ_ONLY = {"look", "peek", "timers_due", "registry", "serving", "rights", "tree_heads"}
SHRINKING = {"drop_texts", "delete", "forget_prompts", "settle_job", "turn_away", "pass_on"}
"""Scripts that only free memory: they run whole although the server is full."""

DELETED_ANYHOW = {"rollout", "eq", "sq", "seen", "seen_at", "snapshot", "redacted"}
DELETED_ANYHOW |= {"tree", "sealed_tree", "blob", "secrets"}
"""Keys that `delete` deletes whatever they are."""

Provoke = Callable[[Backend, Connection, ScriptCall], Awaitable[None]]


async def tell_story(backend: Backend, provoke: Provoke) -> set[str]:
    """Runs every script once with all that it can carry; answers the names of those that ran."""
    inner = backend.connect()
    connection = RecordingConnection(inner)

    broker = backend.broker(BrokerConfig(lease_s=60.0, max_tries=3), connection=connection)

    async def before(call: ScriptCall) -> None:
        # Some keys are written only while somebody follows the fleet, and the story may take minutes.
        await broker.fleet_feed().keep_watching()
        await provoke(backend, inner, call)

    connection.before = before
    async with aclosing(broker):
        await _life_of_a_tree(broker, connection)
        await _end_of_a_session(broker)
    return {call.script.name for call in connection.calls}


async def _life_of_a_tree(broker: Broker, connection: Connection) -> None:
    root = new_session(
        entries=entries_after(GENESIS, 0, 0, [b"born"]),
        events=(NewEvent(b"hello", 1, "00000000"),),
        submissions=(NewSubmission("client", "s0", b"op"),),
    )
    announced_ms = await broker.commits.announce(root.session)
    limits = {"limit:slots": b"4", "limit:tokens": b"50"}
    await broker.commits.create(NewTree(root, limits, announced_ms=announced_ms))
    assert await broker.commits.give_up(session_id())
    session = root.session
    await submitted(broker, session)
    await broker.commits.submit(Submit(session, "client", "a1", b"answer", SET_APART, secret=b"texts"))
    held = await broker.claims.claim("default", "w1", "c1", SHARD)
    assert held is not None
    await broker.commits.emit(held.claim, [NewEvent(b"delta", 1, hash8_of(held.head))])
    await broker.claims.renew([held.claim])
    await broker.trees.reserve(held.claim.tree, 1)
    await Blobs(connection, broker.keys).put(held.claim.tree, b"content")
    await broker.requests.keep_secret(await broker.logs.place(session), "9-0", "in clear", b"texts")
    await broker.claims.heartbeat("w1", b"state")
    await broker.claims.drain("w1")
    await broker.claims.look(["default", "other"])
    await broker.claims.turn_away("w1", ["default"], await broker.claims.attend("w1", ["default"]))
    await broker.claims.pass_on("default", [session])
    assert await missing_rights(connection, broker.keys) == ()
    for ticket in ("first", "second"):
        await broker.claims.admit("openai", ticket, 10, ProviderLimits(1, 10))
    await broker.claims.settle("openai", 10, 5, ProviderLimits(1, 10))
    await broker.requests.add_to_history("anna@host", "k", (session, "typed"), b"12345678")
    assert await broker.requests.forget_prompts("anna@host", bool) == 1
    await broker.requests.add_code("digest", b"rights", 60_000)
    assert await broker.requests.sign_in("t1", b"record", ("digest", b"rights"), ["t0"]) == "OK"
    await broker.jobs.offer_job("default", "j1", b"look", 60_000)
    assert await broker.jobs.take_job("default", "j1", "w1") == b"look"
    assert await broker.jobs.keep_job("j1", "w1")
    assert await broker.jobs.answer_job("j1", "w1", b"seen")
    await broker.jobs.look_at_job("default", "j1")
    await broker.jobs.look_at_job("default", "j2", Ends.ANY)
    child = NewSession(
        session_id(),
        held.claim.tree,
        "other",
        AgentId(1),
        session,
        submissions=(NewSubmission("p", "s", b"op"),),
    )
    done = await broker.commits.commit(_everything_at_once(held, child))
    assert isinstance(done, Committed)
    again = await claimed(broker, session, "w1", "c2")
    request = step(
        done,
        again.claim,
        "k2",
        outbox=(OutboundMessage(child.session, "message", b"to the child", "m2", interrupt=True),),
        tree_events=(
            TreeEvent((b"<", b"/", b">"), (session, child.session), child.session, about=b"x", once="first"),
        ),
        settlements=(Settlement("1", Spend(100, 5, 1)),),
        timers_set=(Timer("budget", 2, 1 << 45),),
        budget_wait=BudgetWait(Spend(1, 1, 1), "budget"),
    )
    assert isinstance(await broker.commits.commit(request), Committed)
    told = TreeEvent((b"raised",), (session,))
    assert (await broker.trees.raise_limits(held.claim.tree, LimitChange("r1", {"tokens": 100}, told))).fresh
    assert (await broker.trees.registry(held.claim.tree)).limits == {"slots": 4, "tokens": 150}
    assert (await broker.logs.serving(await broker.logs.sessions())).keys() == {session, child.session}
    await broker.trees.heads_at_once(held.claim.tree)
    at, told_before = await broker.logs.unsealed(held.claim.tree)
    assert isinstance(await broker.commits.seal_tree(held.claim.tree, at, told_before[:1]), Stored)
    await broker.claims.fire(SHARD)
    await broker.trees.revoke(session)
    await broker.claims.release(again.claim)
    third = await claimed(broker, session, "w1", "c3")
    assert await broker.claims.bury([third.claim]) == [True]
    await broker.trees.revoke(session)
    fourth = await claimed(broker, session, "w1", "c4")
    await broker.claims.release(fourth.claim)
    await claimed(broker, session, "w1", "c5")


def _everything_at_once(held: Claimed, child: NewSession) -> CommitRequest:
    """A first step that has something of each kind."""
    return step(
        held,
        held.claim,
        "k1",
        [b"one", b"two"],
        cursor="1-0",
        children=(child,),
        outbox=(OutboundMessage(held.claim.session, "message", b"to myself", "m"),),
        timers_set=(Timer("t", 1, 1_000),),
        timers_clear=("never",),
        tree_events=(TreeEvent((b"spawned",)),),
        approvals_open=(Approval("a", b"x"),),
        approvals_close=("b",),
        summary={"a:1": b"queued"},
        debits=(Debit("slots", 1, "limit:slots"),),
        secrets_dropped=("in clear",),
        reservation=Reservation("1", Spend(10, 5, 1)),
        status="running",
        meta=b"meta",
        release="yield",
    )


async def _end_of_a_session(broker: Broker) -> None:
    born = new_session(submissions=(NewSubmission("client", "s0", b"op"),))
    await broker.commits.create(NewTree(born))
    await broker.command("HDEL", broker.keys.session(born.session), "states")
    await broker.trees.recount(born.tree)
    await broker.trees.enlist(born.session, shelve=True)
    await broker.requests.note(born.session, "git", b"main", b"")
    held = await claimed(broker, born.session, "w1", "e1")
    done = await broker.commits.commit(step(held, held.claim, "k1", cursor="1-0"))
    assert isinstance(done, Committed)
    gone = RedactedEntry(1, 0, bytes(32), bytes(32), b"instead")
    redacting = step(done, held.claim, "k2", redacted=(gone,), redacting=("0" * 64,))
    assert isinstance(await broker.commits.commit(redacting), Committed)
    await broker.commits.snapshot(held.claim, 2, b"state")
    await broker.commits.seal(held.claim, 2, b"manifest")
    assert isinstance(await broker.commits.rewrite(held.claim, b"manifest", b"rewritten"), Stored)
    await broker.commits.archive(held.claim)
    await broker.commits.restore(born.session, 2, b"state")
    seen = await broker.trees.resting_since(TreeId(born.session))
    assert seen is not None
    await broker.trees.drop_texts(seen, ["0" * 64])
    await broker.trees.look_again(seen, seen.since_ms + 5)
    await broker.trees.delete_session(born.session)


async def _refused(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    """The call must fail, and leave everything as it was."""
    before = await _lasting(backend, call)
    try:
        reply = await connection.run(call)
    except BrokerError:
        pass
    else:
        assert reply[0] in (b"CORRUPT", b"FENCED"), (call.script.name, reply)
    assert await _lasting(backend, call) == before, call.script.name


async def _lasting(backend: Backend, call: ScriptCall) -> dict[bytes, Any]:
    """Everything, but for jobs that are none of the script's: they go after a minute by themselves."""
    found = await everything(backend.look())
    of_jobs = call.script.name.endswith("_job")
    return {key: value for key, value in found.items() if of_jobs or b":job:" not in key}


async def _wrong_type_at_each_key(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    if call.script.name == "look":
        # It goes on: test_looks.py
        return
    for key in dict.fromkeys(call.keys):
        if call.script.name == "delete" and key.split(":")[2] in DELETED_ANYHOW:
            continue
        kind = await connection.command("TYPE", key)
        if kind != b"none":
            await connection.command("RENAME", key, f"{key}:kept")
        await connection.command(*(("RPUSH", key, "x") if kind != b"list" else ("SET", key, "x")))
        await _refused(backend, connection, call)
        if call.script.name not in READ_ONLY:
            reply = await connection.run(call)
            assert reply[:2] == [b"CORRUPT", key.encode()], (call.script.name, key, reply)
            await _refused_by_its_arguments(
                backend, connection, replace(call, args=[*call.args, "one too many"])
            )
        await connection.command("DEL", key)
        if kind != b"none":
            await connection.command("RENAME", f"{key}:kept", key)


async def _stream_ahead_of_its_session(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    streams = [k for k in dict.fromkeys(call.keys) if k.split(":")[2] in ("rollout", "eq", "sq", "tree")]
    if call.script.name not in ("create", "commit", "submit", "emit", "fire", "raise_limits"):
        return
    for key in streams:
        if call.script.name == "submit" and ":eq:" in key:
            continue
        existed = await connection.command("EXISTS", key)
        await connection.command("XADD", key, "999999-0", "p", "from nowhere")
        await _refused(backend, connection, call)
        assert (await connection.run(call))[:2] in ([b"CORRUPT", key.encode()], [b"FENCED", 0]), (
            call.script.name
        )
        await connection.command(*(("XDEL", key, "999999-0") if existed else ("DEL", key)))
        if existed:
            await _lower_last_id(connection, key)


async def _lower_last_id(connection: Connection, key: str) -> None:
    """XDEL leaves the stream's last id where it was; the story goes on with the next one."""
    entries = await connection.command("XRANGE", key, "-", "+")
    await connection.command("DEL", key)
    for entry_id, fields in entries:
        flat: list[Any] = [part for pair in fields.items() for part in pair]
        await connection.command("XADD", key, entry_id, *flat)


async def _bad_arguments(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    if call.script.name in READ_ONLY:
        return
    args = list(call.args)
    for wrong in ([], args[:-1], args[: len(args) // 2], [*args, "one too many"]):
        await _refused_by_its_arguments(backend, connection, replace(call, args=wrong))


async def _refused_by_its_arguments(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    """The script must say so before it looks at a key."""
    before = await _lasting(backend, call)
    with pytest.raises(BrokerError, match="MISCALL"):
        await connection.run(call)
    assert await _lasting(backend, call) == before, call.script.name


async def _foreign_claim(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    at = {
        "emit": 1,
        "renew": 2,
        "release": 3,
        "bury": 3,
        "snapshot": 1,
        "seal": 1,
        "archive": 2,
        "commit": 4,
        "rewrite": 1,
    }
    if call.script.name not in at:
        return
    args = list(call.args)
    args[at[call.script.name]] = "somebody else's"
    await _refused(backend, connection, replace(call, args=args))


async def _out_of_memory(backend: Backend, connection: Connection, call: ScriptCall) -> None:
    if call.script.name in READ_ONLY | SHRINKING:
        return
    before = await everything(backend.look())
    await connection.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(OutOfMemory):
            await connection.run(call)
    finally:
        await connection.command("CONFIG", "SET", "maxmemory", "0")
    assert await everything(backend.look()) == before, call.script.name


def _all_scripts() -> set[str]:
    names = (item.name for item in files("orchestrator.broker").joinpath("lua").iterdir())
    return {name.removesuffix(".lua") for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    "provoke", [_wrong_type_at_each_key, _stream_ahead_of_its_session, _bad_arguments, _foreign_claim]
)
async def test_script_that_meets_a_fault_leaves_everything_as_it_was(
    backend: Backend, provoke: Provoke
) -> None:
    assert await tell_story(backend, provoke) == _all_scripts()


async def test_full_server_refuses_every_script_whole(server: Backend) -> None:
    assert await tell_story(server, _out_of_memory) == _all_scripts()


async def test_every_script_sent_twice_answers_and_changes_nothing_more(backend: Backend) -> None:
    idempotent = {
        "announce",
        "give_up",
        "create",
        "submit",
        "claim",
        "commit",
        "restore",
        "put_blob",
        "drop_texts",
        "fire",
        "delete",
        "enlist",
        "note",
        "raise_limits",
        "keep_secret",
        "offer_job",
        "take_job",
        "answer_job",
        "settle_job",
        "sign_in",
    }
    sent: list[ScriptCall] = []

    async def again(_: Backend, inner: Connection, call: ScriptCall) -> None:
        if sent and sent[-1].script.name in idempotent:
            before = _without_hints(await everything(backend.look()))
            await inner.run(sent[-1])
            assert _without_hints(await everything(backend.look())) == before, sent[-1].script.name
        sent.append(call)

    await tell_story(backend, again)


def _without_hints(found: dict[bytes, Any]) -> dict[bytes, Any]:
    return {key: value for key, value in found.items() if b":control:" not in key}
