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
from orchestrator.runtime.loading import BrokenLog, Cache
from orchestrator.runtime.runner import Ended
from tests.runtime.stage import Stage

pytestmark = pytest.mark.realredis
KEY = ChainKey("2026-01", b"a secret of this test")
FULL, RESTRICTED = b'"danger-full-access"', b'"read-only"'


@pytest.fixture
def keyed(stage: Stage) -> Stage:
    """The stage of a deployment whose chain is keyed."""
    stage.client = Client(replace(stage.client._ports, chain_key=KEY), stage.client.client_id)
    return stage


async def _with_snapshot(stage: Stage) -> SessionId:
    """A session that has come to rest behind a snapshot, known to no worker's memory."""
    session = await stage.session()
    await stage.say(session)
    assert await stage.run(session, chain_key=KEY, snapshot_every=1) is Ended.PARKED
    stage.cache = Cache()
    return session


async def _stored(stage: Stage, session: SessionId) -> bytes:
    data = await stage.broker.snapshot_of(session)
    assert data is not None
    return data


async def _put(stage: Stage, session: SessionId, data: bytes) -> None:
    await stage.broker.command("SET", stage.broker.keys.snapshot(session), data)


async def _mode_after(stage: Stage, session: SessionId) -> str:
    """Under which sandbox the session's next task runs."""
    await stage.say(session, "go on")
    claimed = await stage.claimed(session)
    runner = stage.runner(claimed, chain_key=KEY, snapshot_every=256)
    assert await runner.run() is Ended.PARKED
    return str(runner._journal.state.settings.sandbox_policy["mode"])


async def test_worker_does_not_obey_an_edited_snapshot(
    keyed: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    session = await _with_snapshot(keyed)
    data = await _stored(keyed, session)
    assert FULL in data
    await _put(keyed, session, data.replace(FULL, RESTRICTED))
    with caplog.at_level(logging.WARNING):
        assert await _mode_after(keyed, session) == "danger-full-access"
    assert "it was changed, or written with another chain key" in caplog.text


async def test_worker_does_not_obey_the_snapshot_of_another_session(keyed: Stage) -> None:
    session, other = await _with_snapshot(keyed), await _with_snapshot(keyed)
    await _put(keyed, session, await _stored(keyed, other))
    assert await _mode_after(keyed, session) == "danger-full-access"


async def test_worker_folds_the_log_past_a_snapshot_without_a_code_and_writes_one_with(keyed: Stage) -> None:
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


async def test_worker_says_what_was_wrong_when_neither_snapshot_nor_log_can_be_used(keyed: Stage) -> None:
    session = await _with_snapshot(keyed)
    await _put(keyed, session, (await _stored(keyed, session)).replace(FULL, RESTRICTED))
    await keyed.broker.command("XDEL", keyed.broker.keys.rollout(session), "1-0")
    await keyed.say(session, "go on")
    with pytest.raises(BrokenLog, match="its snapshot is of no use: it was changed"):
        await keyed.run(session, chain_key=KEY)


async def test_worker_does_not_run_a_log_that_is_another_session_s(stage: Stage) -> None:
    """Without a key too: nothing needs to be forged to exchange two logs."""
    one, other = await stage.session(), await stage.session()
    keys, command = stage.broker.keys, stage.broker.command
    found = await stage.broker.head(other)
    assert found is not None
    await command("COPY", keys.rollout(other), keys.rollout(one), "REPLACE")
    await command("HSET", keys.session(one), "seq", found.seq, "head", found.head)
    await stage.say(one)
    with pytest.raises(BrokenLog, match=f"session {one} is the log of session {other}"):
        await stage.run(one)


@pytest.mark.parametrize(("field", "value"), [("agent_id", "3"), ("pool", "elsewhere")])
async def test_worker_does_not_run_a_session_that_was_moved_by_an_edit(
    stage: Stage, field: str, value: str
) -> None:
    session = await stage.session()
    await stage.broker.command("HSET", stage.broker.keys.session(session), field, value)
    await stage.say(session)
    with pytest.raises(BrokenLog, match="somebody changed the hash"):
        await stage.run(session)
