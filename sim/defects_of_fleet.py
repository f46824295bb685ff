"""Defects of what a session's and a root's hash say for lists."""

from __future__ import annotations

from orchestrator.broker import fleet_feed
from orchestrator.core.decide import takeover
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
        lua("_commit_writes", " or (given_field('status') or known.status) ~= known.status", ""),
        "followers",
    ),
    Mutant(
        "titles are not told to followers",
        "who follows the fleet is not told of a title before the session rests",
        lua("_commit_writes", "given_field('meta') or given_field('name') or ", ""),
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
        text(fleet_feed.FleetFeed, "_named", "for _, fields in entries)", "for _, fields in entries[:1])"),
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
    Mutant(
        "agents are counted where they were",
        "a root's hash goes on to count an agent under the status that it had",
        lua("_states", "count_status(count_status(counts, old, -1), new, 1)", "count_status(counts, new, 1)"),
        "family",
    ),
    Mutant(
        "agents that are born are not counted",
        "a root's hash counts an agent when it comes to another status, and not before",
        lua("_commit_outcome", "if status == known.status and #children == 0", "if status == known.status"),
        "tree",
    ),
    Mutant(
        "agent is shown as the one whose number it begins with",
        "a root's hash shows agent 1 as what agent 11 is at",
        lua("_states", "'( ' .. agent_id .. ':%d*:)%S+'", "'(' .. agent_id .. ':%d*:)%S+'"),
        "brood",
        test="tests/broker/test_agent_states.py::test_agents_are_counted_as_they_are_born_and_come_to_a_status",
    ),
    Mutant(
        "agents of agents are shown below the root",
        "a root's hash names as the maker of each agent nobody but the root",
        lua("_commit_outcome", "child.parent == session and own.agent_id or ''", "'0'"),
        "brood",
        test="tests/broker/test_agent_states.py::test_agents_are_counted_as_they_are_born_and_come_to_a_status",
    ),
    Mutant(
        "trees are recounted without those that nobody listed",
        "agents that were born while a tree is recounted are not counted",
        lua("recount", "then return {'UNLISTED'} end", "then break end"),
        "followers",
        test="tests/broker/test_agent_states.py::test_tree_is_not_recounted_by_a_list_that_lacks_an_agent",
    ),
    Mutant(
        "trees are counted from their next agent on",
        "a tree of an earlier version is counted from its next change on, without the agents that it has",
        lua("_commit_outcome", "  if not states then return end\n", "  states = states or '|'\n"),
        "followers",
    ),
    Mutant(
        "follower that could not begin goes on",
        "a follower that met a failure while it began is told of changes, and never to read what there was",
        text(
            fleet_feed.FleetFeed,
            "_begun",
            "    self._looked_ms = await self._heads.server_ms()\n",
            "    self._cursors = await self._listener.tips(streams)\n"
            "    self._looked_ms = await self._heads.server_ms()\n",
        ),
        "followers",
    ),
    Mutant(
        "takeovers are told as the root's",
        "a tree's log tells of the takeover of an agent as of one of the root",
        text(takeover, "_tell_tree", "agent_id=facts.agent_id, session_id", "agent_id=0, session_id"),
        "family",
    ),
    Mutant(
        "takeovers of agents are told to nobody",
        "a tree's log tells of takeovers of its root alone",
        text(takeover, "_tell_tree", "if facts.is_root and not", "if not facts.is_root or not"),
        "family",
        test="tests/core/test_tree_ending.py::test_tree_s_log_tells_who_was_taken_over_and_under_which_claim",
    ),
)
