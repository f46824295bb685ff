"""A tree's log that is sealed in Redis: whoever reads it finds what it found before."""

from __future__ import annotations

import pytest
import zstandard

from orchestrator.broker import logs
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import Refused, Stored, TreeEntry
from orchestrator.core.commit_parts import TreeEvent
from orchestrator.core.ids import TreeId
from tests.broker.actors import Backend
from tests.broker.families import Agent, root_of

EVERY_BYTE = bytes(range(256))


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TREE_SEGMENT_ENTRIES", 3)


async def _told(broker: Broker, count: int) -> tuple[Agent, tuple[TreeEntry, ...]]:
    """A tree of which so many events are told, and its log."""
    root = await root_of(broker)
    for number in range(count):
        event = TreeEvent((b"event %d" % number + EVERY_BYTE,), about=EVERY_BYTE)
        await root.does(tree_events=(event,))
    return root, await broker.logs.read_tree(root.tree)


async def _seals(broker: Broker, root: Agent, segments: int = 1_000) -> None:
    for _ in range(segments):
        after, entries = await broker.logs.unsealed(root.tree)
        if not entries:
            return
        assert isinstance(await broker.commits.seal_tree(root.tree, after, entries), Stored)


async def _in_stream(broker: Broker, root: Agent) -> object:
    """The number of entries that are not sealed."""
    return await broker.command("XLEN", broker.keys.tree(root.tree))


@pytest.mark.parametrize("segments", [1, 2, 1_000])
async def test_reader_finds_every_page_of_a_sealed_log(broker: Broker, segments: int) -> None:
    root, log = await _told(broker, 8)
    await _seals(broker, root, segments)
    assert await _in_stream(broker, root) == max(0, 8 - 3 * segments)
    for after in range(10):
        for count in (1, 2, 4, 100):
            assert await broker.logs.read_tree(root.tree, after, count) == log[after : after + count]
            before, back = after + 1, log[:after][::-1][:count]
            assert await broker.logs.read_tree_back(root.tree, before, count) == back
    for count in (1, 4, 100):
        assert await broker.logs.read_tree_back(root.tree, None, count) == log[::-1][:count]


async def test_tree_goes_on_behind_its_sealed_log(broker: Broker) -> None:
    root, log = await _told(broker, 4)
    await _seals(broker, root)
    await root.does(tree_events=(TreeEvent((b"next",)),))
    entries = await broker.logs.read_tree(root.tree)
    assert entries[:4] == log
    assert (entries[4].tree_seq, entries[4].payload) == (5, b"next")
    await _seals(broker, root)
    assert await _in_stream(broker, root) == 0
    assert await broker.logs.read_tree(root.tree) == entries


@pytest.mark.parametrize("back", [False, True])
async def test_log_that_is_sealed_further_while_it_is_read_has_each_entry_once(
    back: bool, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, log = await _told(broker, 8)
    await _seals(broker, root, 1)
    sealed_end = broker.logs._sealed_end

    async def meanwhile(tree: TreeId) -> int:
        monkeypatch.setattr(broker.logs, "_sealed_end", sealed_end)
        await _seals(broker, root, 1)
        return await sealed_end(tree)

    monkeypatch.setattr(broker.logs, "_sealed_end", meanwhile)
    read = broker.logs.read_tree_back(root.tree) if back else broker.logs.read_tree(root.tree)
    assert await read == (log[::-1] if back else log)


async def test_late_watcher_of_a_sealed_log_gets_what_was(broker: Broker) -> None:
    root, log = await _told(broker, 4)
    await _seals(broker, root)
    assert await broker.logs.wait_tree(root.tree, 2, timeout_s=5) == log[2:]
    assert await broker.logs.wait_tree(root.tree, 4, timeout_s=0.05) == ()


async def test_segment_of_a_log_that_went_on_otherwise_is_refused(backend: Backend) -> None:
    broker = backend.broker()
    root, _ = await _told(broker, 3)
    after, entries = await broker.logs.unsealed(root.tree)
    key = broker.keys.tree(root.tree)
    changed = {**entries[1][1], b"h": bytes(32)}
    await broker.command("DEL", key)
    for entry_id, fields in (entries[0], (entries[1][0], changed), entries[2]):
        await broker.command("XADD", key, entry_id, *(part for pair in fields.items() for part in pair))
    before = await broker.logs.read_tree(root.tree)
    refused = await broker.commits.seal_tree(root.tree, after, entries)
    assert isinstance(refused, Refused)
    assert refused.reason == "the log has another entry"
    await broker.command("DEL", key)
    shorter = await broker.commits.seal_tree(root.tree, after, entries)
    assert isinstance(shorter, Refused)
    assert shorter.reason == "the log is shorter"
    assert not await broker.command("EXISTS", broker.keys.sealed_tree(root.tree))
    assert len(before) == 3
    await broker.aclose()


async def test_of_two_who_seal_the_second_is_refused(broker: Broker) -> None:
    root, log = await _told(broker, 5)
    after, entries = await broker.logs.unsealed(root.tree)
    assert isinstance(await broker.commits.seal_tree(root.tree, after, entries), Stored)
    again = await broker.commits.seal_tree(root.tree, after, entries)
    assert isinstance(again, Refused)
    assert again.reason == "sealed further already"
    nothing = await broker.commits.seal_tree(root.tree, 3, [])
    assert isinstance(nothing, Refused)
    assert nothing.reason == "no entries"
    assert await broker.logs.read_tree(root.tree) == log


async def test_log_with_a_hole_is_sealed_up_to_it(broker: Broker) -> None:
    root, log = await _told(broker, 3)
    await broker.command("XDEL", broker.keys.tree(root.tree), "2-0")
    await _seals(broker, root)
    assert await _in_stream(broker, root) == 1
    assert await broker.logs.read_tree(root.tree) == (log[0], log[2])


async def test_segment_holds_no_more_bytes_than_it_may(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 1_500)
    root, log = await _told(broker, 3)
    _, entries = await broker.logs.unsealed(root.tree)
    assert len(entries) == 2
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 10)
    _, entries = await broker.logs.unsealed(root.tree)
    assert len(entries) == 1
    await _seals(broker, root)
    assert await broker.logs.read_tree(root.tree) == log


@pytest.mark.parametrize("segment", [b"not packed", logs.packed([])[:-3], zstandard.compress(b"[[1]]")])
async def test_segment_that_cannot_be_read_is_corrupt(broker: Broker, segment: bytes) -> None:
    root, _ = await _told(broker, 2)
    await _seals(broker, root)
    await broker.command("HSET", broker.keys.sealed_tree(root.tree), "1", segment)
    with pytest.raises(Corrupt, match="a segment of it cannot be read"):
        await broker.logs.read_tree(root.tree)


async def test_segment_that_unpacks_to_more_than_it_may_is_corrupt(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = await _told(broker, 2)
    await _seals(broker, root)
    monkeypatch.setattr(logs, "_MOST_BYTES", 100)
    with pytest.raises(Corrupt, match="a segment of it cannot be read"):
        await broker.logs.read_tree(root.tree)


async def test_deleted_tree_leaves_no_sealed_log(broker: Broker) -> None:
    root, _ = await _told(broker, 2)
    await _seals(broker, root)
    await root.parks()
    await broker.trees.delete_session(root.session)
    assert not await broker.command("EXISTS", broker.keys.sealed_tree(root.tree))


async def test_trees_that_rest_are_those_whose_last_entry_is_old_and_not_sealed(broker: Broker) -> None:
    resting, sealed, silent = (await _told(broker, 2))[0], (await _told(broker, 1))[0], await root_of(broker)
    await _seals(broker, sealed)
    trees = [resting.tree, sealed.tree, silent.tree]
    last = (await broker.logs.read_tree_back(resting.tree, None, 1))[0].at_ms
    assert await broker.logs.resting_trees(trees, last) == (resting.tree,)
    assert await broker.logs.resting_trees(trees, last - 1) == ()


@pytest.mark.parametrize("damage", ["no entry", "no stream"])
async def test_tree_whose_log_is_damaged_hides_no_other_that_rests(broker: Broker, damage: str) -> None:
    damaged, resting = (await _told(broker, 2))[0], (await _told(broker, 2))[0]
    if damage == "no stream":
        await broker.command("SET", broker.keys.tree(damaged.tree), "x")
    else:
        await broker.command("XADD", broker.keys.tree(damaged.tree), "99-0", "p", "no entry of a tree")
    last = (await broker.logs.read_tree_back(resting.tree, None, 1))[0].at_ms
    assert await broker.logs.resting_trees([damaged.tree, resting.tree], last) == (resting.tree,)
