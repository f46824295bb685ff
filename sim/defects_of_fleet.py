"""Defects of what a session's and a root's hash say for lists."""

from __future__ import annotations

from orchestrator.broker import fleet_feed
from orchestrator.runtime import journal
from sim.mutant import Mutant, lua, text

DEFECTS = (
    Mutant(
        "turn that was stopped counts as going on",
        "a session's hash names the last turn that was completed, and none that was aborted behind it",
        text(
            journal.Step,
            "_append",
            "event_kind(encoded.entry.payload) in TURN_ENDS",
            'encoded.entry.payload["type"] == "task_complete"',
        ),
        "single",
    ),
    Mutant(
        "turn's end is the end of its step",
        "a session's hash names the last entry of the step in which its turn ended",
        text(journal.Step, "_append", "self.ended_seq = seq", "self.ended_seq = seq + 1"),
        "single",
    ),
    Mutant(
        "claims are not told to followers",
        "who follows the fleet is not told that a worker took a session",
        lua("claim", "notify_changed(session)\nreturn answer", "return answer"),
        "followers",
    ),
    Mutant(
        "quarantines are not told to followers",
        "who follows the fleet is not told that a session was quarantined",
        lua("claim", "  notify_changed(session)\n  return {'QUARANTINED'}", "  return {'QUARANTINED'}"),
        "followers",
    ),
    Mutant(
        "status is told to followers at a rest alone",
        "who follows the fleet is not told of a session that waits for approval and runs on",
        lua("_commit_writes", "name == 'status' and field.value ~= known.status", "false"),
        "followers",
    ),
    Mutant(
        "titles are not told to followers",
        "who follows the fleet is not told of a title before the session rests",
        lua("_commit_writes", "name == 'meta' or name == 'name' or", ""),
        "followers",
    ),
    Mutant(
        "sessions that become due are not told to followers",
        "who follows the fleet is not told that a session waits for a worker",
        lua("_wake", "  notify_changed(session)\n", ""),
        "followers",
    ),
    Mutant(
        "agents are born unseen",
        "who follows the fleet is not told of a new agent that has nothing to do yet",
        lua("_birth", "    notify_changed(b.session)\n", ""),
        "tree",
    ),
    Mutant(
        "revoked claims are not told to followers",
        "who follows the fleet is not told that a claim was taken",
        lua("revoke", "    notify_changed(row.session)\n", ""),
        "followers",
    ),
    Mutant(
        "what is put away stays in sight of followers",
        "who follows the fleet is not told that a root was put away",
        lua("enlist", "notify_changed(session)\n", ""),
        "followers",
    ),
    Mutant(
        "archived sessions are told to nobody",
        "who follows the fleet is not told that a session was archived",
        lua("archive", "notify_changed(session)\n", ""),
        "archives",
    ),
    Mutant(
        "restored sessions are told to nobody",
        "who follows the fleet is not told that a session came back from the archive",
        lua("restore", "notify_changed(session)\n", ""),
        "archives",
    ),
    Mutant(
        "followers are believed for ever",
        "scripts go on telling changes of a shard when nobody has followed it for long",
        lua("_fleet", "now - WATCHED_MS", "0"),
        "followers",
        test="tests/broker/test_fleet_feed.py::test_scripts_believe_a_follower_for_a_minute",
    ),
    Mutant(
        "follower is told of a shard's first change",
        "of several changes that are read at once a follower looks at the first",
        text(fleet_feed, "_named", "for _, fields in entries)", "for _, fields in entries[:1])"),
        "followers",
    ),
    Mutant(
        "follower goes on behind a moment that Redis went back to",
        "a follower does not notice that the last entry that it read is gone",
        text(fleet_feed.FleetFeed, "_are_there", "if rows else True", "or True"),
        "followers",
        test="tests/broker/test_fleet_feed.py::test_follower_reads_anew_where_redis_went_back",
    ),
    Mutant(
        "follower says once that it follows",
        "scripts tell a follower nothing when it has followed for a minute",
        text(
            fleet_feed.FleetFeed,
            "_watch",
            "if not anew and now_s - self._watched_s < WATCH_S:",
            "if not anew:",
        ),
        "followers",
        test="tests/broker/test_fleet_feed.py::test_follower_says_again_and_again_that_it_follows",
    ),
)
