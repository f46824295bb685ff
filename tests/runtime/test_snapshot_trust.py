"""Where the chain is keyed, a snapshot is believed only if it bears a code of the same key."""

from __future__ import annotations

import logging
from dataclasses import replace

import orjson
import pytest

from orchestrator.core.chain import ChainKey
from orchestrator.core.ids import SessionId
from orchestrator.core.snapshot import decode_snapshot
from orchestrator.gateways.client import Client
from orchestrator.runtime.loader import BrokenLog, Cache
from orchestrator.runtime.runner import Ended
from tests.runtime.harness import Harness

pytestmark = pytest.mark.realredis
KEY = ChainKey("2026-01", b"a secret of this test")
FULL, RESTRICTED = b'"danger-full-access"', b'"read-only"'


@pytest.fixture
def keyed(harness: Harness) -> Harness:
    """The harness of a deployment whose chain is keyed."""
    harness.client = Client(replace(harness.client._ports, chain_key=KEY), harness.client.client_id)
    return harness


async def _with_snapshot(harness: Harness) -> SessionId:
    """A session that has come to rest behind a snapshot, known to no worker's memory."""
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session, chain_key=KEY, snapshot_every=1) is Ended.PARKED
    harness.cache = Cache()
    return session


async def _stored(harness: Harness, session: SessionId) -> bytes:
    data = await harness.broker.logs.snapshot_of(session)
    assert data is not None
    return data


async def _put(harness: Harness, session: SessionId, data: bytes) -> None:
    await harness.broker.command("SET", harness.broker.keys.snapshot(session), data)


async def _mode_after(harness: Harness, session: SessionId) -> str:
    """Under which sandbox the session's next task runs."""
    await harness.say(session, "go on")
    claimed = await harness.claimed(session)
    runner = harness.runner(claimed, chain_key=KEY, snapshot_every=256)
    assert await runner.run() is Ended.PARKED
    return str(runner._journal.state.settings.sandbox_policy["mode"])


async def test_worker_does_not_obey_an_edited_snapshot(
    keyed: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    session = await _with_snapshot(keyed)
    data = await _stored(keyed, session)
    assert FULL in data
    await _put(keyed, session, data.replace(FULL, RESTRICTED))
    with caplog.at_level(logging.WARNING):
        assert await _mode_after(keyed, session) == "danger-full-access"
    assert "it was changed, or written with another chain key" in caplog.text


async def test_worker_does_not_obey_the_snapshot_of_another_session(keyed: Harness) -> None:
    session, other = await _with_snapshot(keyed), await _with_snapshot(keyed)
    await _put(keyed, session, await _stored(keyed, other))
    assert await _mode_after(keyed, session) == "danger-full-access"


async def test_worker_folds_the_log_past_a_snapshot_without_a_code_and_writes_one_with(
    keyed: Harness,
) -> None:
    session = await _with_snapshot(keyed)
    place, _, body = (await _stored(keyed, session)).partition(b"\n")
    named = orjson.loads(place)
    assert named.pop("mac")
    await _put(keyed, session, orjson.dumps(named) + b"\n" + body)
    await keyed.say(session, "go on")
    seq = named["seq"]
    assert await keyed.run(session, chain_key=KEY, snapshot_every=seq + 1) is Ended.PARKED
    written = decode_snapshot(await _stored(keyed, session), KEY.secret)
    assert written is not None, "an older version's snapshot costs one long load, and not one at every claim"
    assert written[1] > seq


async def test_worker_says_what_was_wrong_when_neither_snapshot_nor_log_can_be_used(keyed: Harness) -> None:
    session = await _with_snapshot(keyed)
    await _put(keyed, session, (await _stored(keyed, session)).replace(FULL, RESTRICTED))
    await keyed.broker.command("XDEL", keyed.broker.keys.rollout(session), "1-0")
    await keyed.say(session, "go on")
    with pytest.raises(BrokenLog, match="its snapshot is of no use: it was changed"):
        await keyed.run(session, chain_key=KEY)


async def test_worker_does_not_run_a_log_that_is_another_session_s(harness: Harness) -> None:
    """Without a key too: nothing needs to be forged to exchange two logs."""
    one, other = await harness.session(), await harness.session()
    keys, command = harness.broker.keys, harness.broker.command
    found = await harness.broker.logs.head(other)
    assert found is not None
    await command("COPY", keys.rollout(other), keys.rollout(one), "REPLACE")
    await command("HSET", keys.session(one), "seq", found.seq, "head", found.head)
    await harness.say(one)
    with pytest.raises(BrokenLog, match=f"session {one} is the log of session {other}"):
        await harness.run(one)


@pytest.mark.parametrize(("field", "value"), [("agent_id", "3"), ("pool", "elsewhere")])
async def test_worker_does_not_run_a_session_that_was_moved_by_an_edit(
    harness: Harness, field: str, value: str
) -> None:
    session = await harness.session()
    await harness.broker.command("HSET", harness.broker.keys.session(session), field, value)
    await harness.say(session)
    with pytest.raises(BrokenLog, match="the hash was changed"):
        await harness.run(session)
