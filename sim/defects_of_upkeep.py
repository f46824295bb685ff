"""Defects of upkeep: of what is sealed, archived, restored and deleted, and of cancels that nobody serves."""

from __future__ import annotations

from typing import Any

from orchestrator.broker import commits
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.trees import Trees
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.segments import encode_entries, segment_of
from orchestrator.runtime import unserved_cancels
from orchestrator.runtime.runner import Runner
from sim.mutant import Mutant, lua, swapped, text
from workers import upkeep_cancels, upkeep_resting, upkeep_sealing


def _unwritten(real: Any) -> Any:
    async def write_segment(self: Archive, tree: Any, session: Any, before: bytes, entries: Any) -> Any:
        return segment_of(f"{tree}/{session}", before, entries, encode_entries(entries))

    return write_segment


def _one_by_one(real: Any) -> Any:
    async def delete_tree(self: Trees, seen: Any, *, owed: bool = False, by: str = "") -> None:
        for head in seen:
            try:
                await self.delete_session(head.session, owed=owed, epoch=head.epoch)
            except UnknownSession:
                continue

    return delete_tree


def _whatever_is_queued() -> None:
    # What was queued since somebody looked shows in the queue's end, too.
    lua("delete", "if not owed_too and (row.due or num(s.sq) ~= num(s.cursor)) then", "if false then")()
    lua("delete", " or row.sq ~= '' and num(s.sq) ~= num(row.sq)", "")()


def _archives_at_once() -> None:
    for module in (upkeep_sealing, upkeep_resting):
        swapped(module, "rest_wanted_ms", lambda real: lambda mover, root: _nothing_of(real(mover, root)))()
    swapped(upkeep_resting, "_least_ms", lambda real: lambda mover: 0)()


def _nothing_of(wanted_ms: int | None) -> int | None:
    return None if wanted_ms is None else 0


def _root_alone(real: Any) -> Any:
    async def members(self: Trees, tree: Any) -> Any:
        return (await real(self, tree))[-1:]

    return members


def _however_young(real: Any) -> Any:
    async def resting_trees(self: Logs, trees: Any, before_ms: int) -> Any:
        return await real(self, trees, before_ms + 1_000_000)

    return resting_trees


DEFECTS = (
    Mutant(
        "agents stay in Redis",
        "of a closed tree the root is archived alone",
        swapped(Trees, "members", _root_alone),
        "archives",
    ),
    Mutant(
        "sealed before it is written",
        "a log leaves Redis on the strength of a segment that is not in the archive",
        swapped(Archive, "write_segment", _unwritten),
        "archives",
    ),
    Mutant(
        "seal takes one too many",
        "`seal` trims the first entry that no segment holds, too",
        lua("seal", "text(seq + 1) .. '-0'", "text(seq + 2) .. '-0'"),
        "archives",
    ),
    Mutant(
        "sealed to its end at once",
        "a log leaves Redis to its end as soon as its session waits, however short a time ago",
        text(upkeep_sealing, "due_to_seal_whole", "now_ms - rested_ms(head) >= mover.seal_idle_ms", "True"),
        "resting",
    ),
    Mutant(
        "whole seal leaves the snapshot",
        "`seal` drops a log to its end and leaves the snapshot, which nobody reads any more",
        lua("seal", "redis.call('DEL', KEYS[2], KEYS[3])", "redis.call('DEL', KEYS[2])"),
        "resting",
    ),
    Mutant(
        "tree's log is sealed at once",
        "a tree's log is sealed as soon as somebody looks, however short a time ago it grew",
        swapped(Logs, "resting_trees", _however_young),
        "resting",
    ),
    Mutant(
        "tree's segment lacks its last entry",
        "a tree's log leaves the stream with one entry more than its segment holds",
        swapped(commits, "packed", lambda real: lambda entries: real(entries[:-1])),
        "resting",
    ),
    Mutant(
        "sealed tree is not read",
        "a reader of a tree's log gets what stands in the stream alone",
        text(Logs, "read_tree", "if end <= after:", "if True:"),
        "resting",
    ),
    Mutant(
        "segments of before go first",
        "what is written anew takes away the segments that Redis still names",
        text(
            upkeep_sealing,
            "_seal_whole",
            "    async with _claimed_untouched",
            "    for old in Manifest.decode(head.manifest).segments:\n"
            "        await storage.archive.remove_segment(old.name)\n"
            "    async with _claimed_untouched",
        ),
        "resting",
    ),
    Mutant(
        "archive does not look at the queue",
        "`archive` drops a queue that has grown since the session was looked at",
        lua("archive", "if num(s.sq) ~= num(s.cursor) then", "if false then"),
        "archives",
    ),
    Mutant(
        "archived when it is closed",
        "a session is archived as soon as it is closed, however short a time ago",
        _archives_at_once,
        "archives",
    ),
    Mutant(
        "summary of an earlier rest",
        "a session that rests when work without a step ends keeps the summary of its last rest",
        text(Runner, "_finish", "(owes_summary and not self._arrivals.unread)", "False"),
        test="tests/runtime/test_portable_folders.py"
        "::test_what_a_process_wrote_before_a_look_saw_its_end_is_recorded_before_the_look_ends",
    ),
    Mutant(
        "archive keeps the lease",
        "`archive` ends the claim and leaves the lease",
        lua("archive", "redis.call('ZREM', KEYS[2], session)\n", ""),
        "archives",
    ),
    Mutant(
        "restored without its state",
        "`restore` brings a session back and forgets to store its snapshot",
        lua("restore", "redis.call('SET', KEYS[2], state)\n", ""),
        "archives",
    ),
    Mutant(
        "deleted with what was queued",
        "`delete` looks whether a worker holds the session, and not whether one is to take it",
        _whatever_is_queued,
        "archives",
        test="tests/broker/test_deletion.py::test_tree_of_which_one_session_is_used_keeps_every_session",
    ),
    Mutant(
        "deleted after it was used",
        "`delete` does not ask whether a worker has had the session since somebody looked",
        lua("delete", "if moved or used or redis.call(", "if moved or redis.call("),
        "archives",
        test="tests/broker/test_deletion.py::test_tree_of_which_one_session_is_used_keeps_every_session",
    ),
    Mutant(
        "deleted one by one",
        "a tree is deleted session by session, its agents first",
        swapped(Trees, "delete_tree", _one_by_one),
        "archives",
    ),
    Mutant(
        "deleted by nobody",
        "`delete` keeps that a session was deleted, and not by whom",
        lua("delete", ".. beginning(by, MOST_BY))", ")"),
        test="tests/broker/test_deletion.py::test_every_session_of_a_tree_has_who_deleted_it_and_when",
    ),
    Mutant(
        "deletion that no machine hears of",
        "`delete` does not note which sessions went, so that their files stay on disks for ever",
        lua(
            "delete",
            "for _, row in ipairs(sessions) do redis.call('ZADD', KEYS[12], text(now), row.session) end\n",
            "",
        ),
        "archives",
    ),
    Mutant(
        "workers reap nobody",
        "a worker leaves cancelled agents of other pools to their own workers, who are gone",
        swapped(unserved_cancels.Reaper, "poll", lambda real: lambda self: _nothing()),
        "abandoned",
    ),
    Mutant(
        "upkeep reaps nobody",
        "upkeep leaves cancelled agents to workers, of whom there are none",
        swapped(upkeep_cancels, "forsaken", lambda real: lambda broker, tree: _nobody()),
        "abandoned",
    ),
)


async def _nothing() -> None:
    return None


async def _nobody() -> unserved_cancels.Forsaken:
    return unserved_cancels.Forsaken(False, ())
