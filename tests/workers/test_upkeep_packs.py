"""Packs that no entry names are removed, and no others."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.errors import BirthGivenUp
from orchestrator.broker.records import NewTree
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import NewSession
from orchestrator.core.entries import Entry
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.protocol.ids import SnapshotId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.workers.actors import Author, head_of, session_id, some_entries
from workers.upkeep_packs import SETTLED_S, YOUNG_S, collect_packs, collect_unborn
from workers.upkeep_sealing import Moved, Mover, seal_session

pytestmark = pytest.mark.realredis

TOMORROW = YOUNG_S + 60.0


@pytest.fixture
def packs(tmp_path: Path) -> Packs:
    return Packs(Objects((tmp_path / "archive").as_uri()))


async def stored(packs: Packs, author: Author, epoch: int, content: str, tmp_path: Path) -> PackName:
    digest = hashlib.sha256(content.encode()).hexdigest()
    name = PackName(TreeId(author.session), author.session, epoch, "ab12", digest)
    (tmp_path / "pack").write_text(content)
    await packs.put(name, tmp_path / "pack")
    return name


def naming(name: PackName) -> Entry:
    snapshot, pack = SnapshotId("1" * 40), Pack(str(name), name.sha256, 3)
    return e.fact(f.WorkspaceSaved(snapshot, None, pack, FileCounts(0, 0, 0), (), (), 1))


async def left(packs: Packs, author: Author) -> set[PackName]:
    return set(await packs.names(TreeId(author.session), author.session))


async def test_pack_of_an_earlier_claim_that_no_entry_names_is_removed(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    named = await stored(packs, author, 1, "named", tmp_path)
    await stored(packs, author, 1, "never named", tmp_path)
    await author.writes([naming(named)])
    await author.writes([])
    assert await collect_packs(storage, packs, [author.session], time.time() + TOMORROW) == 1
    assert await left(packs, author) == {named}


async def test_pack_of_the_claim_that_holds_the_session_stays(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    epoch = (await head_of(storage, author.session)).epoch
    names = {await stored(packs, author, epoch + more, f"at {more}", tmp_path) for more in (0, 1)}
    assert await collect_packs(storage, packs, [author.session], time.time() + TOMORROW) == 0
    assert await left(packs, author) == names


async def test_young_pack_stays(storage: Storage, packs: Packs, tmp_path: Path) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    await author.writes([])
    name = await stored(packs, author, 1, "young", tmp_path)
    assert await collect_packs(storage, packs, [author.session], time.time() + YOUNG_S - 60) == 0
    assert await left(packs, author) == {name}


async def test_pack_that_a_sealed_entry_names_stays(
    mover: Mover, storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    named = await stored(packs, author, 1, "named", tmp_path)
    await (await author.writes([naming(named), *some_entries(40)])).snapshots()
    await author.writes(some_entries(3))
    assert await seal_session(mover, author.session) is Moved.DONE
    assert await collect_packs(storage, packs, [author.session], time.time() + TOMORROW) == 0
    assert await left(packs, author) == {named}


async def test_log_that_cannot_be_read_whole_costs_no_pack(
    mover: Mover, storage: Storage, packs: Packs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    named = await stored(packs, author, 1, "named", tmp_path)
    await (await author.writes([naming(named), *some_entries(40)])).snapshots()
    await author.writes(some_entries(3))
    assert await seal_session(mover, author.session) is Moved.DONE
    for segment in (tmp_path / "archive").rglob("*.jsonl.zst"):
        segment.unlink()
    with caplog.at_level(logging.WARNING, "dendro.upkeep"):
        assert await collect_packs(storage, packs, [author.session], time.time() + TOMORROW) == 0
    assert "its packs were not looked at" in caplog.text
    assert await left(packs, author) == {named}


async def test_log_that_loses_its_end_while_it_is_read_costs_no_pack(
    storage: Storage, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await Author(storage).is_born()
    await author.writes([])
    named = await stored(packs, author, 1, "named", tmp_path)
    await author.writes([*some_entries(3), naming(named)])
    await author.writes([])

    async def shorter(logs: Any, archive: Any, session: Any, after: int, through: int) -> AsyncIterator[Any]:
        async for entry in full_log(logs, archive, session, after, through - 1):
            yield entry

    with monkeypatch.context() as patched:
        patched.setattr("workers.upkeep_packs.full_log", shorter)
        assert await collect_packs(storage, packs, [author.session], time.time() + TOMORROW) == 0
    assert await left(packs, author) == {named}


# --- sessions that never were


async def unborn(storage: Storage, packs: Packs, tmp_path: Path) -> Author:
    """A client that has stored the first pack of a session, and not yet created it."""
    author = Author(storage)
    author.announced_ms = await storage.broker.commits.announce(author.session)
    await stored(packs, author, 0, f"first of {author.session}", tmp_path)
    return author


async def creates(storage: Storage, author: Author) -> bool:
    root = NewSession(author.session, TreeId(author.session), "default", AgentId(0))
    return (await storage.broker.commits.create(NewTree(root, announced_ms=author.announced_ms))) is True


async def test_packs_of_a_session_that_nobody_made_are_removed_after_a_day(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    lost, other = await unborn(storage, packs, tmp_path), Author(storage)
    # Announced by nobody here: another deployment's, whose store it is as well.
    await stored(packs, other, 0, "theirs", tmp_path)
    now_ms = storage.broker.now_ms()
    assert await collect_unborn(storage.broker.commits, packs, now_ms) == 0
    assert len(await left(packs, lost)) == 1
    assert await collect_unborn(storage.broker.commits, packs, now_ms + int(TOMORROW * 1000)) == 1
    assert await left(packs, lost) == set()
    assert len(await left(packs, other)) == 1
    assert await storage.broker.commits.unborn(now_ms + int(TOMORROW * 1000)) == ()


async def test_packs_stay_until_it_is_sure_that_their_session_is_given_up(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    lost, back = [await unborn(storage, packs, tmp_path) for _ in range(2)]
    broker = storage.broker
    for author in (lost, back):
        await _was_announced(storage, author, broker.now_ms() - int(TOMORROW * 1000))
    at_ms = broker.now_ms()
    assert await collect_unborn(broker.commits, packs, at_ms) == 0
    # A replica was promoted that had not heard of it; the client, who never heard either, makes the session.
    await _was_announced(storage, back, broker.now_ms() - int(TOMORROW * 1000))
    assert await creates(storage, back)
    for later_s, removed in ((SETTLED_S - 1, 0), (SETTLED_S + 1, 1)):
        assert await collect_unborn(broker.commits, packs, at_ms + int(later_s * 1000)) == removed
    assert await left(packs, lost) == set()
    assert len(await left(packs, back)) == 1


async def _was_announced(storage: Storage, author: Author, at_ms: int) -> None:
    """Sets Redis to where a session was announced at another time, and not given up since."""
    key = storage.broker.keys.unborn(storage.broker.keys.shard_of(author.session))
    await storage.broker.command("ZADD", key, at_ms, author.session)
    author.announced_ms = at_ms


async def test_session_that_was_made_keeps_its_packs_and_is_announced_no_more(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    author = await unborn(storage, packs, tmp_path)
    assert await creates(storage, author)
    assert not await creates(storage, author), "asked again it is the same session"
    later = storage.broker.now_ms() + int(TOMORROW * 1000)
    assert await storage.broker.commits.unborn(later) == ()
    # An announcement that came late, behind the session.
    await storage.broker.commits.announce(author.session)
    assert await collect_unborn(storage.broker.commits, packs, later) == 0
    assert len(await left(packs, author)) == 1
    assert await storage.broker.commits.unborn(later) == ()


async def test_client_that_comes_after_its_packs_were_given_up_is_refused(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    late, never = await unborn(storage, packs, tmp_path), Author(storage)
    assert await storage.broker.commits.give_up(late.session) is not None
    for author in (late, never):
        with pytest.raises(BirthGivenUp, match="begin again"):
            await creates(storage, author)
        assert await storage.broker.logs.head(author.session) is None


async def test_packs_that_come_after_the_removal_go_once_their_client_was_refused(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    late = Author(storage)
    late.announced_ms = await storage.broker.commits.announce(late.session)
    later = storage.broker.now_ms() + int(TOMORROW * 1000)
    assert await collect_unborn(storage.broker.commits, packs, later) == 1
    await stored(packs, late, 0, "behind the removal", tmp_path)
    with pytest.raises(BirthGivenUp):
        await creates(storage, late)
    with pytest.raises(BirthGivenUp):
        await creates(storage, late)
    # Soon: no day has to pass.
    soon = storage.broker.now_ms() + int(SETTLED_S * 1000) + 1
    assert await collect_unborn(storage.broker.commits, packs, soon) == 1
    assert await left(packs, late) == set()


async def test_what_a_lost_upkeep_or_a_store_that_is_away_left_is_removed_by_the_next_round(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    lost = await unborn(storage, packs, tmp_path)
    later = storage.broker.now_ms() + int(TOMORROW * 1000)
    away = Packs(Objects((tmp_path / "away").as_uri()))
    (tmp_path / "away").write_text("a file where a folder should be")
    assert await collect_unborn(storage.broker.commits, away, later) == 0
    # Given up, and not removed: no day has to pass once more.
    assert await storage.broker.commits.unborn(1) == (lost.session,)
    assert await collect_unborn(storage.broker.commits, packs, later) == 1
    assert await left(packs, lost) == set()


async def test_copy_of_an_announcement_that_comes_behind_the_removal_does_not_stand_for_it(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    late, commits = await unborn(storage, packs, tmp_path), storage.broker.commits
    later = storage.broker.now_ms() + int(TOMORROW * 1000)
    assert await collect_unborn(commits, packs, later) == 1
    assert await commits.announce(late.session) > late.announced_ms
    with pytest.raises(BirthGivenUp, match="begin again"):
        await creates(storage, late)
    assert await storage.broker.logs.head(late.session) is None
    # What its client stores behind that is still looked for.
    assert await commits.unborn(later + int(TOMORROW * 1000)) == (late.session,)


async def test_announcement_that_is_sent_again_has_the_moment_of_the_first(
    storage: Storage, packs: Packs, tmp_path: Path
) -> None:
    author, commits = await unborn(storage, packs, tmp_path), storage.broker.commits
    assert await commits.announce(author.session) == author.announced_ms
    assert await creates(storage, author)


async def test_client_is_told_at_once_that_what_it_announces_again_was_given_up(storage: Storage) -> None:
    late, commits = Author(storage), storage.broker.commits
    await commits.announce(late.session)
    assert await commits.give_up(late.session) is not None
    with pytest.raises(BirthGivenUp, match="begin again"):
        await commits.announce(late.session)


class Patchy(Packs):
    """A store that does not answer for one session."""

    away: SessionId

    async def names(self, tree: TreeId, session: SessionId) -> tuple[PackName, ...]:
        if session == self.away:
            raise ArchiveUnavailable("no answer from the store")
        return await super().names(tree, session)


@pytest.mark.parametrize("away", [0, 1, 2])
@pytest.mark.parametrize("fault", ["store", "hash", "log"])
async def test_session_that_is_gone_or_whose_packs_cannot_be_judged_holds_up_no_other(
    storage: Storage, tmp_path: Path, away: int, fault: str
) -> None:
    packs = Patchy(Objects((tmp_path / "archive").as_uri()))
    authors = [await Author(storage).is_born() for _ in range(3)]
    packs.away = SessionId("")
    for author in authors:
        await author.writes([])
        for number in range(2):
            await stored(packs, author, 1, f"orphan {number} of {author.session}", tmp_path)
        await author.writes([])
    keys, wrong = storage.broker.keys, authors[away].session
    match fault:
        case "store":
            packs.away = wrong
        case "hash":
            await storage.broker.command("HSET", keys.session(wrong), "seq", "many")
        case _:
            await storage.broker.command("HSET", keys.session(wrong), "seq", "1")
            await storage.broker.command("SET", keys.rollout(wrong), "x")
    asked = [Author(storage).session, *(author.session for author in authors)]
    assert await collect_packs(storage, packs, asked, time.time() + TOMORROW) == 4
    packs.away = SessionId("")
    assert [len(await left(packs, author)) for author in authors] == [2 * (at == away) for at in range(3)]


@pytest.mark.parametrize("away", [0, 1, 2])
@pytest.mark.parametrize("fault", ["store", "hash"])
async def test_all_packs_of_each_session_that_nobody_made_go_but_of_one_that_cannot_be_listed(
    storage: Storage, tmp_path: Path, away: int, fault: str
) -> None:
    packs = Patchy(Objects((tmp_path / "archive").as_uri()))
    packs.away = SessionId("")
    lost = [Author(storage, session_id(shard)) for shard in (0, 3, 15)]
    for author in lost:
        await storage.broker.commits.announce(author.session)
        for number in range(2):
            await stored(packs, author, 0, f"{number} of {author.session}", tmp_path)
    if fault == "store":
        packs.away = lost[away].session
    else:
        await storage.broker.command("SET", storage.broker.keys.session(lost[away].session), "x")
    later = storage.broker.now_ms() + int(TOMORROW * 1000)
    assert await collect_unborn(storage.broker.commits, packs, later) == 2
    packs.away = SessionId("")
    assert [len(await left(packs, author)) for author in lost] == [2 * (at == away) for at in range(3)]
    assert await storage.broker.commits.unborn(later) == (lost[away].session,), "it is looked for again"
