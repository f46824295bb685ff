"""Trees leave Redis when they rest, and everything when their time is over; whoever is needed again stays."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.blobs import Texts
from orchestrator.broker.connection import Connection
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import FolderPlace, NewTree, SessionHead
from orchestrator.broker.trees import RestingTree
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import NewSession, Timer, TreePart
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.settings import TurnSettings
from orchestrator.core.tree import Mail
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.imports import IMPORTING
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.runtime.loader import restore_session
from orchestrator.runtime.sq_entries import PatientTexts
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.workers.actors import DAY_MS, Author, head_of, is_told, log_of, session_id, some_entries
from workers import upkeep_resting, upkeep_sealing
from workers.upkeep import Upkeep, archive, look, retain
from workers.upkeep_resting import archive_tree, due_trees, enlist_trees
from workers.upkeep_retention import old_imports
from workers.upkeep_sealing import Moved, Mover, archive_session

pytestmark = pytest.mark.realredis

TREES, AGENTS = int(os.environ.get("DENDRO_GROWTH_TREES", "40")), 9
"""`make growth` closes 500 trees."""
AT_ONCE = 20
HOUR_MS = 3_600_000


async def _tree(storage: Storage, agents: int = 2, *, closed: bool = True, shard: int = 3) -> list[Author]:
    """A tree whose agents have worked, the root first; made now."""
    now_ms = await storage.broker.server_ms()
    root = Author(storage, session_id(shard))
    born = NewSession(root.session, TreeId(root.session), "default", AgentId(0))
    await storage.broker.commits.create(NewTree(born))
    numbers = await storage.broker.trees.reserve(TreeId(root.session), agents)
    family = [Author(storage, session_id(shard)) for _ in numbers]
    children = tuple(
        NewSession(author.session, TreeId(root.session), "default", AgentId(number))
        for author, number in zip(family, numbers, strict=True)
    )
    entries = [e.fact(f.Closed())] if closed else some_entries(1)
    status = "closed" if closed else "idle"
    for author in family:
        author.position = Author(storage).position
    await root.writes(entries, status=status, ended_ms=now_ms, tree=TreePart(children=children))
    for author in family:
        await author.writes(some_entries(3), ended_ms=now_ms)
    return [root, *family]


def _at(storage: Storage, monkeypatch: pytest.MonkeyPatch, after_ms: int) -> None:
    """Sets the clock that upkeep goes by to so long after now."""
    real = Deployment.now_ms
    monkeypatch.setattr(Deployment, "now_ms", lambda self: real(self) + after_ms)


class _Queue:
    """A queue whose jobs are done at once, some together."""

    def __init__(self, context: dict[str, Any]) -> None:
        self._context = context
        self._jobs: list[tuple[str, str]] = []

    async def enqueue_job(self, name: str, subject: str, **_: Any) -> None:
        self._jobs.append((name, subject))

    async def is_empty(self) -> None:
        jobs, self._jobs = self._jobs, []
        assert {name for name, _ in jobs} <= {"archive"}
        bounds = [*range(0, len(jobs), AT_ONCE), len(jobs)]
        for low, high in pairwise(bounds):
            await asyncio.gather(*(archive(self._context, tree) for _, tree in jobs[low:high]))


def _context(mover: Mover, retention_ms: int | None) -> dict[str, Any]:
    upkeep = Upkeep(mover, retention_ms, 0, reaping=lambda: pytest.fail("nobody is to be reaped"))
    context: dict[str, Any] = {"upkeep": upkeep}
    context["redis"] = _Queue(context)
    return context


async def _heads(storage: Storage, family: Sequence[Author]) -> list[SessionHead]:
    return [await head_of(storage, author.session) for author in family]


async def _archived(storage: Storage, family: Sequence[Author]) -> list[bool]:
    return [head.archived for head in await _heads(storage, family)]


async def _due(mover: Mover, now_ms: int) -> list[TreeId]:
    return [tree async for tree in due_trees(mover, now_ms)]


# ── a whole fleet ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_closed_trees_leave_nothing_in_redis_archive_or_packs_behind_their_time(
    mover: Mover, storage: Storage, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = set(await connection.command("KEYS", "*"))
    packs = Packs(Objects((tmp_path / "archive").as_uri()))
    trees: list[list[Author]] = []
    for shard in range(0, TREES, AT_ONCE):
        made = (
            _tree(storage, AGENTS, shard=(shard + n) % storage.broker.config.shards) for n in range(AT_ONCE)
        )
        trees += await asyncio.gather(*made)
    root = trees[0][0].session
    (tmp_path / "pack").write_text("a folder")
    digest = hashlib.sha256(b"a folder").hexdigest()
    await packs.put(PackName(TreeId(root), root, 1, "ab12", digest), tmp_path / "pack")
    context = _context(mover, 3 * DAY_MS)

    await look(context)
    await context["redis"].is_empty()
    assert not any(await _archived(storage, trees[0])), "nothing is archived before its time"
    _at(storage, monkeypatch, 2 * DAY_MS)
    await look(context)
    await context["redis"].is_empty()
    logs = await connection.command("KEYS", "*:rollout:*")
    logs += await connection.command("KEYS", "*:snapshot:*")
    assert logs == [], "the agents' logs leave Redis with the root's"
    await retain(context)
    assert len(await storage.broker.logs.sessions(100_000)) == TREES * (AGENTS + 1)
    _at(storage, monkeypatch, 2 * DAY_MS)
    await retain(context)
    # The notes of these deletions stay until a later look.
    await retain(context)

    left = set(await connection.command("KEYS", "*")) - empty
    # The pools' clocks and notices are the deployment's, not the trees'.
    beside = (b":clock:", b":ready:", b":deleted", b":released", b":changed")
    assert [key for key in left if not any(part in key for part in beside)] == []
    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []


async def test_what_is_due_is_found_however_much_changed_later(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_LISTED", 2)
    first = await _tree(storage, 1)
    for _ in range(4):
        await _tree(storage, 1, closed=False)
    context = _context(mover, None)
    _at(storage, monkeypatch, DAY_MS)
    await look(context)
    await context["redis"].is_empty()
    assert await _archived(storage, first) == [True, True]


async def test_half_an_import_is_found_after_a_day_where_trees_are_archived_within_hours(
    mover: Mover, storage: Storage
) -> None:
    [half] = await _tree(storage, 0, closed=False)
    await half.writes(some_entries(1), status=IMPORTING)
    [closed] = await _tree(storage, 0)
    hourly, now_ms = replace(mover, archive_after_ms=HOUR_MS), await storage.broker.server_ms()
    for hours in range(1, 24):
        assert await _due(hourly, now_ms + hours * HOUR_MS + 60_000) == [TreeId(closed.session)]
        assert await old_imports(storage, now_ms + hours * HOUR_MS) == []
    [found] = await old_imports(storage, now_ms + DAY_MS)
    assert found.session == half.session


async def test_more_trees_than_are_read_at_once_are_all_found_and_what_is_archived_is_not_read_again(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("orchestrator.broker.trees", "workers.upkeep_resting"):
        monkeypatch.setattr(f"{module}.RESTING_AT_ONCE", 2)
    closed = [await _tree(storage, 0) for _ in range(5)]
    for _ in range(5):
        await _tree(storage, 0, closed=False)
    now_ms = await storage.broker.server_ms() + DAY_MS
    assert set(await _due(mover, now_ms)) == {TreeId(tree[0].session) for tree in closed}
    for tree in closed:
        assert await archive_tree(mover, TreeId(tree[0].session), now_ms) is Moved.DONE
    assert await storage.broker.trees.trees_of(storage.broker.keys.to_archive(3)) == set()


async def test_tree_that_nobody_closed_may_go_sooner_than_a_closed_one(
    mover: Mover, storage: Storage
) -> None:
    mover = replace(mover, archive_after_ms=3 * DAY_MS, idle_after_ms=DAY_MS)
    (closed,), (idle,) = await _tree(storage, 0), await _tree(storage, 0, closed=False)
    now_ms = await storage.broker.server_ms()
    for days, author in ((1, idle), (3, closed)):
        tree, at_ms = TreeId(author.session), now_ms + days * DAY_MS
        assert await _due(mover, at_ms - DAY_MS // 2) == []
        assert await _due(mover, at_ms) == [tree]
        assert await archive_tree(mover, tree, at_ms) is Moved.DONE


# ── who stays ─────────────────────────────────────────────────────────────────────────────────


async def test_tree_stays_while_one_of_its_sessions_is_spoken_to_held_or_was_used_lately(
    mover: Mover, storage: Storage
) -> None:
    root, told, used = await _tree(storage)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms() + DAY_MS
    await is_told(storage, told.session)
    assert await archive_tree(mover, tree, now_ms) is Moved.BUSY
    held = await storage.broker.claims.claim_session(told.session, "w", "c")
    assert held is not None
    assert await archive_tree(mover, tree, now_ms + upkeep_resting.SOON_MS) is Moved.BUSY
    assert not any(await _archived(storage, [root, told, used]))


async def test_agent_that_rests_for_less_than_its_root_keeps_the_tree(mover: Mover, storage: Storage) -> None:
    root, agent = await _tree(storage, 1)
    now_ms = await storage.broker.server_ms()
    await agent.writes(some_entries(1), ended_ms=now_ms + DAY_MS // 2)
    assert await archive_tree(mover, TreeId(root.session), now_ms + DAY_MS) is Moved.NOT_DUE
    assert not any(await _archived(storage, [root, agent]))
    assert await _due(mover, now_ms + DAY_MS) == []
    assert await archive_tree(mover, TreeId(root.session), now_ms + DAY_MS + DAY_MS // 2 + 1) is Moved.DONE
    assert all(await _archived(storage, [root, agent]))


async def test_agent_whose_root_goes_on_while_it_is_archived_stays(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, agent = await _tree(storage, 1)
    now_ms = await storage.broker.server_ms() + DAY_MS
    archive_blobs = upkeep_sealing._archive_blobs

    async def meanwhile(*given: Any) -> None:
        await archive_blobs(*given)
        await root.writes(some_entries(1), status="idle", ended_ms=now_ms)

    with monkeypatch.context() as patched:
        patched.setattr(upkeep_sealing, "_archive_blobs", meanwhile)
        assert await archive_session(mover, agent.session, now_ms) is Moved.BUSY
    assert not any(await _archived(storage, [root, agent]))


@pytest.mark.parametrize("waits", ["awaiting_approval", "awaiting_answer", "waiting", "paused"])
async def test_agent_that_waits_stays_in_redis(mover: Mover, storage: Storage, waits: str) -> None:
    root, agent = await _tree(storage, 1)
    begun_ms = await storage.broker.server_ms()
    await agent.writes(some_entries(1), status=waits, ended_ms=begun_ms)
    now_ms = begun_ms + DAY_MS
    assert await archive_tree(mover, TreeId(root.session), now_ms) is Moved.BUSY
    assert await _archived(storage, [root, agent]) == [True, False]
    assert await _due(mover, now_ms) == [], "it is not looked at again at once"
    assert await _due(mover, now_ms + upkeep_resting.LATER_MS) == []
    assert await _due(mover, now_ms + DAY_MS // 7) == [TreeId(root.session)]


async def test_what_waits_is_looked_at_less_often_the_longer_it_waits(mover: Mover, storage: Storage) -> None:
    root, agent = await _tree(storage, 1)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms() + DAY_MS
    await agent.writes(some_entries(1), status="awaiting_approval", ended_ms=now_ms - DAY_MS)
    looks = []
    for hour in range(7 * 24):
        at_ms = now_ms + hour * DAY_MS // 24
        if tree in await _due(mover, at_ms):
            looks.append(hour)
            assert await archive_tree(mover, tree, at_ms) is Moved.BUSY
    assert len(looks) < 40
    assert await _archived(storage, [root, agent]) == [True, False]
    await agent.writes([], status="idle", ended_ms=now_ms)
    assert await archive_tree(mover, tree, now_ms + 9 * DAY_MS) is Moved.DONE


async def test_session_with_a_timer_stays_in_redis(mover: Mover, storage: Storage) -> None:
    (root,) = await _tree(storage, 0)
    now_ms = await storage.broker.server_ms()
    await root.writes([], status="closed", ended_ms=now_ms, timers_set=(Timer("t", 1, now_ms * 2),))
    assert await archive_tree(mover, TreeId(root.session), now_ms + 2 * DAY_MS) is Moved.BUSY
    assert await _archived(storage, [root]) == [False]


SETTINGS = TurnSettings("/repo", "never", {"mode": "read-only"}, "m")
TASK = f.TaskBegun(SubmissionId("t1"), "user", SETTINGS)
OWED: dict[str, tuple[Sequence[f.Fact], f.Fact]] = {
    "a task": ((TASK,), f.TaskEnded("completed")),
    "an answer to a look-up": (
        (f.LookUpAsked(SubmissionId("l"), {"type": "list_skills"}, "c", ""),),
        f.LookUpEnded(SubmissionId("l"), "c"),
    ),
    "a process": (
        (f.ProcessKept(1, CallId("c1"), SubmissionId("t1"), "make", "/repo", 1, ""),),
        f.ProcessOver(1),
    ),
    "a slot": ((f.AgentChanged({"slot": True}),), f.AgentChanged({"slot": False})),
    "word to children that end": ((f.ToEnd((AgentId(5),), "closed"),), f.ToldToEnd(1)),
    "unread mail of a cancelled agent": (
        (
            f.AgentChanged({"canceling": "canceled"}),
            f.MailReceived(Mail("k", "message", 1, False, 1, {"agent_id": 0}, {"prompt": "go"})),
        ),
        f.MailTaken(("k",)),
    ),
}


@pytest.mark.parametrize("owes", OWED)
@pytest.mark.parametrize("closed", [True, False])
async def test_session_whose_log_says_that_it_owes_something_stays_in_redis_until_that_is_over(
    mover: Mover, storage: Storage, closed: bool, owes: str
) -> None:
    """Lists call it idle, or closed, all the same."""
    begun, over = OWED[owes]
    root, agent = await _tree(storage, 1, closed=closed)
    mover = replace(mover, idle_after_ms=DAY_MS)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms()
    await agent.writes(map(e.fact, begun), ended_ms=now_ms)
    assert await archive_tree(mover, tree, now_ms + DAY_MS) is Moved.BUSY
    assert await _archived(storage, [root, agent]) == [True, False]
    assert await _due(mover, now_ms + DAY_MS + upkeep_resting.LATER_MS // 2) == [], "it is let rest for long"
    await agent.writes([e.fact(over)], ended_ms=now_ms)
    assert await archive_tree(mover, tree, now_ms + 3 * DAY_MS) is Moved.DONE
    assert await _archived(storage, [root, agent]) == [True, True]


@pytest.mark.parametrize("closed", [True, False])
async def test_changes_that_one_machine_has_keep_a_session_in_redis_until_its_tree_is_closed(
    mover: Mover, storage: Storage, closed: bool
) -> None:
    root, agent = await _tree(storage, 1, closed=closed)
    mover = replace(mover, idle_after_ms=DAY_MS)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms()
    await agent.writes(some_entries(1), ended_ms=now_ms, folder=FolderPlace("m1", unsaved=True))
    moved = await archive_tree(mover, tree, now_ms + DAY_MS)
    assert moved is (Moved.DONE if closed else Moved.BUSY)
    assert await _archived(storage, [root, agent]) == [True, closed]
    if not closed:
        await agent.writes(some_entries(1), ended_ms=now_ms, folder=FolderPlace("m1"))
        assert await archive_tree(mover, tree, now_ms + 3 * DAY_MS) is Moved.DONE


async def test_session_that_was_set_aside_stays_and_the_others_of_its_tree_go(
    mover: Mover, storage: Storage
) -> None:
    root, lost, other = await _tree(storage)
    now_ms = await storage.broker.server_ms()
    for number in range(storage.broker.config.max_tries):
        await is_told(storage, lost.session)
        if await storage.broker.claims.claim_session(lost.session, "w", f"c{number}") is None:
            break
        await storage.broker.command("ZADD", storage.broker.keys.leases(3, "default"), 1, lost.session)
    assert (await head_of(storage, lost.session)).quarantined
    now_ms = max(now_ms, await storage.broker.server_ms()) + DAY_MS
    assert await archive_tree(mover, TreeId(root.session), now_ms) is Moved.BUSY
    assert await _archived(storage, [root, lost, other]) == [True, False, True]
    assert await _due(mover, now_ms + upkeep_resting.LATER_MS // 2) == []


# ── what cannot be read ───────────────────────────────────────────────────────────────────────


class _Listed:
    """A queue that only lists what it is given."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str]] = []

    async def enqueue_job(self, name: str, subject: str, **_: Any) -> None:
        self.jobs.append((name, subject))


SUMMARIES = ("words", "[]", '{"updated_ms": null}', '{"updated_ms": "soon"}')
"""Summaries that say nothing of when their session came to rest."""


async def _damages(storage: Storage, author: Author, field: str = "seq", value: str = "many") -> None:
    await storage.broker.command("HSET", storage.broker.keys.session(author.session), field, value)


@pytest.mark.parametrize("which", ["root", "agent"])
@pytest.mark.parametrize("damage", [("seq", "many"), *(("meta", summary) for summary in SUMMARIES)])
async def test_session_that_cannot_be_read_holds_up_neither_archiving_nor_retention_of_other_trees(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch, which: str, damage: tuple[str, str]
) -> None:
    before, family, behind = [await _tree(storage, 1) for _ in range(3)]
    damaged = family[0] if which == "root" else family[1]
    await _damages(storage, damaged, *damage)
    _at(storage, monkeypatch, DAY_MS + HOUR_MS)
    context = _context(mover, None)
    queue = context["redis"] = _Listed()
    await look(context)
    trees = [TreeId(one[0].session) for one in (before, family, behind)]
    due = [subject for name, subject in queue.jobs if name == "archive"]
    assert set(due) == {trees[0], trees[2], *([trees[1]] if which == "agent" else [])}
    now_ms = storage.broker.now_ms()
    moved = [await archive_tree(mover, tree, now_ms) for tree in trees]
    assert moved == [Moved.DONE, Moved.BUSY, Moved.DONE]
    assert await archive_tree(mover, trees[1], now_ms) in (Moved.BUSY, Moved.NOT_DUE)
    key = storage.broker.keys.to_archive(3)
    assert await storage.broker.trees.trees_of(key) == {trees[1]}, "it is looked at again when it is mended"
    await retain(_context(mover, HOUR_MS))
    left = {one for one in trees if await storage.broker.command("EXISTS", storage.broker.keys.agents(one))}
    # When a tree has ended its root's summary alone says.
    assert left == ({trees[1]} if "seq" in damage or which == "root" else set())


@pytest.mark.parametrize("summary", SUMMARIES)
async def test_session_whose_rest_nobody_knows_hides_none_that_is_to_be_sealed(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch, summary: str
) -> None:
    families = [await _tree(storage, 0, closed=False) for _ in range(3)]
    await _damages(storage, families[1][0], "meta", summary)
    _at(storage, monkeypatch, HOUR_MS)
    context = _context(replace(mover, seal_idle_ms=HOUR_MS), None)
    queue = context["redis"] = _Listed()
    await look(context)
    sealed = [subject for name, subject in queue.jobs if name == "seal"]
    assert sorted(sealed) == sorted(families[at][0].session for at in (0, 2))


async def test_trees_of_an_earlier_version_are_enlisted_though_a_session_of_their_shard_cannot_be_read(
    storage: Storage,
) -> None:
    first, damaged, last = [await _tree(storage, 0) for _ in range(3)]
    keys = storage.broker.keys
    await storage.broker.command("DEL", keys.to_archive(3), keys.to_delete(3))
    await _damages(storage, damaged[0])
    assert await enlist_trees(storage, idle=True) == 2
    found = await storage.broker.trees.trees_of(keys.to_archive(3))
    assert found == {first[0].session, last[0].session}


# ── what nobody closes ────────────────────────────────────────────────────────────────────────


async def test_idle_tree_is_archived_after_its_days_and_only_if_it_is_asked_for(
    mover: Mover, storage: Storage
) -> None:
    family = await _tree(storage, closed=False)
    tree, idle = TreeId(family[0].session), replace(mover, idle_after_ms=3 * DAY_MS)
    now_ms = await storage.broker.server_ms()
    assert await archive_tree(mover, tree, now_ms + 9 * DAY_MS) is Moved.NOT_DUE
    assert await _due(idle, now_ms + 2 * DAY_MS) == []
    assert await _due(idle, now_ms + 3 * DAY_MS) == [tree]
    assert await archive_tree(idle, tree, now_ms + 3 * DAY_MS) is Moved.DONE
    assert all(await _archived(storage, family))


async def test_closed_tree_is_found_though_it_was_passed_over_while_it_was_open(
    mover: Mover, storage: Storage
) -> None:
    (root,) = await _tree(storage, 0, closed=False)
    assert await _due(mover, await storage.broker.server_ms() + DAY_MS) == []
    assert await storage.broker.trees.trees_of(storage.broker.keys.to_archive(3)) == set()
    await root.closes(ended_ms=await storage.broker.server_ms())
    assert await _due(mover, await storage.broker.server_ms() + DAY_MS) == [TreeId(root.session)]


async def test_agent_that_is_spoken_to_comes_back_and_rests_again(mover: Mover, storage: Storage) -> None:
    root, agent = await _tree(storage, 1)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms() + DAY_MS
    log = await log_of(storage, agent.session)
    assert await archive_tree(mover, tree, now_ms) is Moved.DONE
    assert await restore_session(storage, agent.session)
    assert await _archived(storage, [root, agent]) == [True, False]
    assert await archive_tree(mover, tree, now_ms - DAY_MS) is Moved.NOT_DUE, "it was just brought back"
    await agent.writes(some_entries(1), ended_ms=now_ms - DAY_MS)
    assert (await log_of(storage, agent.session))[: len(log)] == log
    assert await archive_tree(mover, tree, now_ms + DAY_MS) is Moved.DONE
    assert all(await _archived(storage, [root, agent]))


async def test_trees_of_each_shard_are_due_and_enlisted(mover: Mover, storage: Storage) -> None:
    shards = (0, 3, 15)
    assert max(shards) == storage.broker.config.shards - 1
    trees = {TreeId((await _tree(storage, 1, shard=shard))[0].session) for shard in shards}
    now_ms, keys = await storage.broker.server_ms() + DAY_MS + 1, storage.broker.keys
    assert set(await _due(mover, now_ms)) == trees
    for shard in shards:
        await storage.broker.command("DEL", keys.to_archive(shard), keys.to_delete(shard))
    assert await _due(mover, now_ms) == []
    assert await enlist_trees(storage, idle=False) == len(trees)
    assert set(await _due(mover, now_ms)) == trees


# ── what an earlier version left ──────────────────────────────────────────────────────────────


async def test_trees_of_an_earlier_version_are_enlisted_once(mover: Mover, storage: Storage) -> None:
    closed, open_, gone = [await _tree(storage, 1, closed=closed) for closed in (True, False, True)]
    now_ms = await storage.broker.server_ms() + DAY_MS + 1
    assert await archive_tree(mover, TreeId(gone[0].session), now_ms) is Moved.DONE
    keys = storage.broker.keys
    for key in (keys.to_archive(3), keys.to_delete(3)):
        await storage.broker.command("DEL", key)
    assert await enlist_trees(storage, idle=False) == 2
    assert await storage.broker.trees.trees_of(keys.to_archive(3)) == {closed[0].session, gone[0].session}
    assert await storage.broker.trees.trees_of(keys.to_delete(3)) == {closed[0].session, gone[0].session}
    assert await enlist_trees(storage, idle=True) == 1
    assert await enlist_trees(storage, idle=True) == 0
    assert open_[0].session in await storage.broker.trees.trees_of(keys.to_archive(3))
    assert await archive_tree(mover, TreeId(closed[0].session), now_ms) is Moved.DONE


# ── large texts ───────────────────────────────────────────────────────────────────────────────

LARGE = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(4_000))


async def _with_large_text(storage: Storage) -> tuple[Author, Author, str]:
    """A tree of two that rests, whose agent has a large text, and its hash."""
    root, agent = await _tree(storage, 1)
    output = {"type": "function_call_output", "call_id": "c", "output": LARGE}
    await agent.writes([e.item(output)], ended_ms=await storage.broker.server_ms())
    (digest,) = await storage.broker.trees.texts_of(TreeId(root.session))
    return root, agent, digest


async def test_large_texts_leave_redis_with_the_tree_and_readers_and_agents_find_them(
    mover: Mover, storage: Storage, connection: Connection
) -> None:
    root, agent, digest = await _with_large_text(storage)
    tree, key = TreeId(root.session), storage.broker.keys.blob(TreeId(root.session), digest)
    now_ms = await storage.broker.server_ms() + DAY_MS
    before = await connection.command("MEMORY", "USAGE", key)
    assert await archive_tree(mover, tree, now_ms) is Moved.DONE
    assert before > len(LARGE) // 4
    assert await connection.command("EXISTS", key) == 0

    texts = Texts(storage.blobs, archived=storage.archive.text)
    await texts.fetch(tree, [digest])
    assert texts.get(digest) == LARGE
    assert await restore_session(storage, agent.session)
    assert await storage.blobs.get(tree, digest) == LARGE.encode()
    assert await archive_tree(mover, tree, now_ms + DAY_MS) is Moved.DONE
    assert await connection.command("EXISTS", key) == 0


async def test_large_texts_stay_for_a_session_that_comes_back_while_they_are_proved(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, agent, digest = await _with_large_text(storage)
    tree, real = TreeId(root.session), storage.broker.trees.drop_texts

    async def dropped(seen: RestingTree, digests: Sequence[str]) -> bool:
        assert await restore_session(storage, agent.session)
        return await real(seen, digests)

    monkeypatch.setattr(storage.broker.trees, "drop_texts", dropped)
    assert await archive_tree(mover, tree, await storage.broker.server_ms() + DAY_MS) is Moved.BUSY
    assert await storage.blobs.get(tree, digest) == LARGE.encode()
    assert await storage.broker.trees.resting_since(tree) is not None, "it is looked at again"


async def test_large_text_stays_in_redis_whose_archived_copy_is_damaged(
    mover: Mover, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    root, _, digest = await _with_large_text(storage)
    tree = TreeId(root.session)
    await storage.archive.write_blob(tree, digest, b"something else")
    assert await archive_tree(mover, tree, await storage.broker.server_ms() + DAY_MS) is Moved.DONE
    assert await storage.blobs.get(tree, digest) == LARGE.encode()
    assert f"large text {digest} stays in Redis" in caplog.text


async def test_each_large_text_leaves_redis_but_those_whose_archived_copies_are_damaged(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_resting, "TEXTS_AT_ONCE", 2)
    root, _, first = await _with_large_text(storage)
    tree = TreeId(root.session)
    digests = sorted([first, *[await storage.blobs.put(tree, f"{n} of them".encode()) for n in range(4)]])
    damaged = [digests[0], digests[3]]
    for digest in damaged:
        await storage.archive.write_blob(tree, digest, b"something else")
    assert await archive_tree(mover, tree, await storage.broker.server_ms() + DAY_MS) is Moved.DONE
    left = [digest for digest in digests if await storage.blobs.get(tree, digest) is not None]
    assert left == damaged
    for digest in sorted(set(digests) - set(damaged)):
        assert await storage.archive.read_blob(tree, digest) is not None


async def test_death_behind_the_texts_is_made_good_by_the_next_look(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, agent, digest = await _with_large_text(storage)
    tree, now_ms = TreeId(root.session), await storage.broker.server_ms() + DAY_MS

    async def dies(*_: Any) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as dying:
        dying.setattr(storage.broker.trees, "look_again", dies)
        with pytest.raises(asyncio.CancelledError):
            await archive_tree(mover, tree, now_ms)
    assert await archive_tree(mover, tree, now_ms) is Moved.DONE
    assert await restore_session(storage, agent.session)
    assert await storage.blobs.get(tree, digest) == LARGE.encode()


async def test_large_text_that_left_redis_is_waited_for_while_the_archive_is_away(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _, digest = await _with_large_text(storage)
    tree, real, refused = TreeId(root.session), storage.archive.read_blob, list[str]()
    assert await archive_tree(mover, tree, await storage.broker.server_ms() + DAY_MS) is Moved.DONE

    async def away_once(*asked: Any) -> bytes | None:
        if refused:
            return await real(*asked)
        refused.append(digest)
        raise ArchiveUnavailable("not mounted")

    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr(storage.archive, "read_blob", away_once)
    texts = PatientTexts(storage.blobs, at_once, storage.archive.text)
    await texts.fetch(tree, [digest])
    assert refused == [digest]
    assert texts.get(digest) == LARGE
