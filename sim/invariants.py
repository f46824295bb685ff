"""Rules that must hold in every simulation, each with a name and a sentence.

The names are what a failure says, what `docs/simulator.md` lists, and what the table of
planted defects counts by.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.invariants_of_doors import DOOR_CASES, DOOR_RULES
from sim.invariants_of_folders import FOLDER_CASES, FOLDER_RULES
from sim.invariants_of_processes import PROCESS_RULES
from sim.notary_rules import NOTARY_CASES, NOTARY_RULES
from sim.odd_servers import ODD_RULES
from sim.redactions import REDACTION_CASES, REDACTION_RULES
from sim.rule import Case, Rule

RULES = {
    "gapless": Rule(
        "The entries of a session's log are numbered 1, 2, 3, …, and its hash names the last one.",
        Case("a commit came for a place in the log that was taken by then", ("reply commit FENCED seq",)),
    ),
    "chain": Rule(
        "Every entry's chain value follows from the one before it, and the hash names the last value.",
        Case("a log went on behind a moment to which Redis had gone back"),
    ),
    "epochs": Rule(
        "Every entry was written under the epoch that the session had then, and epochs only grow.",
        Case("a commit of an earlier claim was refused", ("reply commit FENCED claim",)),
    ),
    "log": Rule(
        (
            "No log holds what no log may hold: two tasks at once, a call that starts twice for one "
            "decision, an event under a foreign id, a task without exactly one end."
        ),
        Case("a task was stopped while a request or a call of it was in flight", ("fact stopping",)),
    ),
    "one_place": Rule(
        (
            "A session that owes something is in exactly one of `due` and `leases`; one that is in "
            "neither has read its queue to the end."
        ),
        Case("a session was to be parked, and its queue had grown meanwhile"),
    ),
    "owner": Rule(
        "A session has an owner if and only if it is in `leases`.",
        Case("a session was claimed from a holder whose lease had run out"),
    ),
    "cursor": Rule(
        "The queue's cursor never goes back and never passes the queue's end.",
        Case("a commit consumed a part of a queue"),
    ),
    "acknowledged": Rule(
        (
            "A submission that was acknowledged is in the queue or was applied, as long as Redis keeps "
            "what it acknowledged."
        ),
        Case("Redis went back behind an acknowledged submission, and kept others"),
    ),
    "applied_once": Rule(
        "No submission is applied twice, whatever was sent again, and by whom.",
        Case("a submission was sent again, and Redis had it", ("reply submit DUP",)),
    ),
    "scripts": Rule(
        "Each script answers, and leaves behind in its keys, what is stated of it in `sim/reference`.",
        Case("a commit was written", ("reply commit OK",)),
    ),
    "written_once": Rule(
        "No commit is written twice, whatever was sent again, and however late a copy of it comes.",
        Case("a copy of a commit came behind another one", ("reply commit FENCED commit",)),
    ),
    "dated": Rule(
        "No step is dated ahead of Redis's clock, by whatever clock its worker goes.",
        Case("a step was decided more than five minutes after its simulation's beginning"),
    ),
    "in_order": Rule(
        (
            "Inputs begin in the order in which they were submitted, within their lane; before a session "
            "rests each begins a task, joins one, or is answered with an error, as is a message to an agent "
            "that does not take it; of inputs that two clients submit under one id, each."
        ),
        Case("an input began that had waited behind another"),
    ),
    "begun_in_log": Rule(
        (
            "When a call starts, the log says that it runs, under the claim that starts it; where Redis "
            "has forgotten that, nothing of it runs for longer than a claim is trusted."
        ),
        Case("a worker woke up behind its deadline, and was about to start a call"),
    ),
    "started_once": Rule(
        "A decision to run a call starts it at most once.",
        Case("a call that a lost worker had begun was judged"),
    ),
    "effects_once": Rule(
        "A patch is written at most once.", Case("a patch that a lost worker had begun was judged")
    ),
    "leases": Rule(
        "Nobody is given a session whose holder's lease has not run out.",
        Case("somebody asked for a session whose lease had not run out"),
    ),
    "revoked": Rule(
        "Of a session that was revoked no claim stands until it is claimed anew.",
        Case("a session was taken from a holder whose lease had not run out"),
    ),
    "sent_home": Rule(
        "A worker that hears at a heartbeat that a person has sent it home drains.",
        Case("a worker was told so behind the last fault"),
    ),
    "alone": Rule(
        "When a session is claimed, no command of an earlier claim runs any more.",
        Case("a session was claimed of which a command had been killed in the last ten seconds"),
    ),
    "buried": Rule(
        (
            "A session is given back for its worker only when that is dead and nothing of it runs, only "
            "under the claim that it had, and not if the session may have killed two workers. A worker's "
            "register has the claims that it holds, and no others."
        ),
        Case("a session was given back for a dead worker, of which a command had been killed"),
    ),
    "trusted": Rule(
        "Nobody is given a session from a holder who still trusts its claim.",
        Case("a session was claimed from a holder whose lease had run out", ("case owner",)),
    ),
    "right_to_run": Rule(
        "When everything has come to rest no command runs any more.",
        Case("a command was killed by its supervisor: by a deadline, or with its worker"),
    ),
    "stopped": Rule(
        "When the end of a task is in the log, none of its commands runs any more.",
        Case("a task ended of which a command had been killed"),
    ),
    "outputs": Rule(
        (
            "Every call in the conversation has exactly one output once no task holds the session, and a "
            "request never carries a call without one."
        ),
        Case("a task ended, and calls of it were open"),
    ),
    "told_truly": Rule(
        (
            "The output that the model reads of a call is what the call gave, or says that it did not "
            "run, was stopped, or is in doubt."
        ),
        Case("a call was told to be in doubt"),
    ),
    "grammar": Rule(
        (
            "A log that is read by a second reader, who shares nothing with the fold, has everything in its "
            "order, with the numbers that follow from it, and comes to the state of the fold. The model is "
            "told the mode, the personality and the policies that are in force; people are warned of all "
            "that is in doubt, and told whose words they read. A request that was not answered ends as its "
            "provider said, and is sent again as often and as late as it may be."
        ),
        Case("a task was stopped while a request or a call of it was in flight", ("fact stopping",)),
    ),
    "conversation": Rule(
        (
            "The model is asked what some log has begun to ask, item by item and as a whole, in the form "
            "that its task is to have; and what it said to the end is in the log as it said it."
        ),
        Case("a request was begun", ("fact request_begun",)),
    ),
    "kin": Rule(
        (
            "A letter says what its sender's log says: a result is the end of the sender's task, a message "
            "what the sender's model wrote, and a person's what was said; an order that is passed on names "
            "who gave it, and why. An agent stops, watches and ends "
            "those alone that are below it, and begins under the settings of the turn that made it."
        ),
        Case("letters were put into a log", ("fact mail",)),
    ),
    "live_state": Rule(
        (
            "The state that a worker works with, behind every commit, and every snapshot is the fold of "
            "the log up to the same entry."
        ),
        Case("a worker's state was compared behind a commit"),
    ),
    "deltas": Rule(
        "No delta of a text is shown behind the finished text.",
        Case("a delta came whose claim was over", ("reply emit FENCED",)),
    ),
    "events": Rule(
        (
            "A client that follows a session sees its events once each and in the order of the log, from "
            "where it came, unless it is told of a gap, and of one that there is."
        ),
        Case("a follower was told of a gap, or came to a session that was at work"),
    ),
    "deadlines": Rule(
        "Once faults are over, a timer becomes an entry of its session's queue within half a minute.",
        Case("a timer fired", ("reply fire OK",)),
    ),
    "awaits": Rule(
        (
            "Once faults are over, every await ends within half a minute of its deadline, or of room for "
            "its session."
        ),
        Case("an await was ended by its deadline"),
    ),
    "timers": Rule(
        (
            "What waits for a deadline has its timer, under the generation that it was given and for as long "
            "as was asked, or the fired timer in its queue; no await and no watchdog leaves one "
            "behind, and at rest none is set."
        ),
        Case("a timer was cleared, or set anew, before it had fired"),
    ),
    "early": Rule(
        "A retry, an approval, an await and a watchdog are never ended or set off before their time.",
        Case("a timer ended something"),
    ),
    "watchdogs": Rule(
        "An agent that was cancelled, and a session that is closed, keep no watchdog.",
        Case("a watchdog ended with its agent or its session"),
    ),
    "registry": Rule(
        (
            "The registry of a tree (agents, their status, marks and inbox depths) is the fold of its "
            "tree log, after every commit; and what it says of an agent is what that one's log says."
        ),
        Case("a commit told something of its tree"),
    ),
    "slots": Rule(
        "After every commit a tree counts as many slots as its agents hold and letters bring; at rest none.",
        Case("a step was refused for want of a slot", ("reply commit REFUSED slots",)),
    ),
    "spawned": Rule(
        "A tree counts the agents that it made, and makes no more than it may.",
        Case(
            "a step was refused because the tree had made all its agents", ("reply commit REFUSED spawned",)
        ),
    ),
    "inbox": Rule(
        (
            "After every commit the inbox depths that are told are those of the letters that wait, in the"
            " queue and in the state."
        ),
        Case("letters left an inbox", ("fact mail_taken",)),
    ),
    "budget": Rule(
        (
            "After every commit what a tree holds in reserve is reserved for requests that are in flight,"
            " and what it spent is what the logs of its agents say."
        ),
        Case("a request ended, and nobody said what it had used"),
    ),
    "by_day": Rule(
        (
            "What all days together have used is what all trees have spent, each settlement once, for the"
            " model that was asked."
        ),
        Case("usage was settled, and the days had some already"),
    ),
    "places": Rule(
        "A worker asks for one more session only while it runs fewer turns than it may at once.",
        Case("a worker that kept a session for its processes alone asked for one more"),
    ),
    "warned": Rule(
        (
            "Who gives a claim back has told people of every budget that its commits before were told to be"
            " nearly used up, under the limit that it had then. A warning names the agent that met the limit,"
            " and nobody pauses for a budget that was spent untold."
        ),
        Case("a claim was given back behind a commit that was told so"),
    ),
    "hour": Rule(
        "A tree's requests of the last hour are counted once, each in the five minutes in which it ended.",
        Case("a request ended, and the hour had some already"),
    ),
    "overshoot": Rule(
        (
            "No request begins when a budget is spent, or when it does not fit beside what others reserved; "
            "each reserves its input and a full answer."
        ),
        Case(
            "a request was refused by a budget",
            ("reply commit REFUSED budget_spent", "reply commit REFUSED budget_reserved"),
        ),
    ),
    "room": Rule(
        "Who sleeps until there is room in a budget is on a list that somebody will wake.",
        Case("somebody who slept for room was woken"),
    ),
    "forks": Rule(
        (
            "A fork names an entry of its parent's log by its chain value, and begins with what had been "
            "said there, under the instructions that hold there."
        ),
        Case("a session was forked", ("fact forked",)),
    ),
    "gone_back": Rule(
        "Input that goes back to before a compaction meets the conversation that its turn ended with.",
        Case("a conversation of before a compaction was put back"),
    ),
    "said": Rule(
        "What people said is in the conversation, or in what a compaction kept of it.",
        Case("a conversation was compacted"),
    ),
    "limits": Rule(
        (
            "A provider is sent what was let through, and in no time more requests or tokens than its "
            "limits allow in that time and a minute; each request is let through with the tokens of all that "
            "it says and of a full answer."
        ),
        Case("a request had to wait for its provider's limit", ("reply admit WAIT",)),
    ),
    "cancelled": Rule(
        "When an agent is reported canceled, no command of it, or of an agent below it, runs any more.",
        Case("an agent was cancelled while commands ran at it or below"),
    ),
    "marked": Rule(
        (
            "Where an agent is marked as cancelled nothing begins, nor below it: no task, no request, no "
            "call, no agent."
        ),
        Case("a step was refused because its agent was marked", ("reply commit REFUSED marked",)),
    ),
    "evidence": Rule(
        (
            "The end of an agent is called proved only if whoever ran its commands saw them end, and "
            "those of all below it; it is presumed only if nobody did, and their host had been silent for"
            " as long as a claim is trusted, or said that it had stopped."
        ),
        Case("an agent's end was presumed"),
    ),
    "told": Rule(
        (
            "Every entry of the tree log is on the root's event queue by the commit that wrote it, and "
            "what becomes of an agent and of its inbox on its parent's: once each, in order."
        ),
        Case("somebody beside the root was told"),
    ),
    "awaited": Rule(
        (
            "An await brings all that is there to read, interrupts first and else as it came; it goes on with"
            " the step that brings something, or an order, or the end of the last one that it waits for. A"
            " letter begins a turn of an idle session if it is an order, or a result that is wanted. A helper"
            " works only while its call waits, or until it has ended as it was told."
        ),
        Case("an agent waited for others, behind a step"),
    ),
    "counts_on": Rule(
        (
            "An agent knows which of those that it made are at work, when nothing is on its way to it or"
            " to them, whoever gave them work."
        ),
        Case("an agent was at work again"),
    ),
    "listed": Rule(
        (
            "A list of agents has each that was there when it was asked for and is there still, in the order"
            " in which they were made; a cancel names those that its step has marked, and a prune those that"
            " it has taken off. What a call tells of an agent was so since the model asked for it."
        ),
        Case("agents were listed"),
    ),
    "asked": Rule(
        (
            "After every commit the fleet's queue of approvals holds what the session's log waits for, "
            "and nothing else."
        ),
        Case("a commit left an approval open"),
    ),
    "answer_shown": Rule(
        "An answer in the log has the words that the person had before them.",
        Case("somebody decided about a command or a patch"),
    ),
    "span_once": Rule(
        "No span is told twice, whichever workers a task has had, unless Redis went back.",
        Case("a worker told a span of a tree of which another one had told some"),
    ),
    "answer_signed": Rule(
        "Where answers have to be signed, each of a person bears a signature of its own, for its request.",
        Case("somebody answered a request that has to be signed"),
    ),
    "asked_first": Rule(
        "An answer counts only for a question that had been asked when it was given.",
        Case("a call was asked about again"),
    ),
    "secret": Rule(
        (
            "A secret answer is shown to the model while its turn goes on, and stands in no log, queue or "
            "event; when its tree rests it is nowhere."
        ),
        Case("a request showed a secret answer"),
    ),
    "shown": Rule(
        "An input's picture is in the conversation and in the event that tells of it, once each.",
        Case("an input with a picture was taken"),
    ),
    "looked_up": Rule(
        "A look-up that was accepted is answered once, by whichever worker, unless the session is closed.",
        Case("a look-up was accepted by one claim, and answered by another"),
    ),
    "typed_once": Rule(
        "A person's history has each prompt that a session took, once for each submission of each client.",
        Case("two clients typed a prompt under one id"),
    ),
    "named": Rule(
        "A session bears the name that it was given last.",
        Case("a session was given another name than it had"),
    ),
    "ended": Rule(
        "A session's hash names the last entry that ended a turn of it, whoever asks and whoever took over.",
        Case("a turn ended of a session that had ended one before"),
    ),
    "counted": Rule(
        "A root's hash says of each agent of its tree what that one's own hash says.",
        Case("an agent came to another status than it had, or was born"),
    ),
    "followed": Rule(
        "Who follows the fleet knows of each session what its hash says, when nothing happens for a while.",
        Case("a follower was told of a session that lists show otherwise"),
    ),
    "raised": Rule(
        "A change of a tree's limits counts once, whatever was sent again.",
        Case("a limit was raised again under the same change", ("reply raise_limits DUP",)),
    ),
    "renewed": Rule(
        (
            "Only the claim that stands is renewed, for a whole lease from then on, and only where the log "
            "holds what its holder was answered."
        ),
        Case("a claim was renewed behind a commit"),
    ),
    "requests": Rule(
        (
            "Whoever is trusted sends a model request once, and only when the log says that it has begun;"
            " a holder whose trust has ended ends its requests within three seconds of noticing, and "
            "sends none behind that."
        ),
        Case("a worker woke up behind its deadline, and sent a request or read on"),
    ),
    "versions": Rule(
        "A session whose log a newer worker has written is given to no older one.",
        Case("an older worker asked for a session that it may not hold", ("reply claim OLD",)),
    ),
    "exported": Rule(
        (
            "The file of a rollout holds the log's first lines, each once, whenever somebody has written "
            "it; before `conversation_path` and `shutdown_complete` all that went before, or a `warning` "
            "says why; and of what came to rest when all faults were over, every line."
        ),
        Case("a rollout's file was torn"),
    ),
    "read_back": Rule(
        (
            "A log that is exported whole, and read again from there, verifies, folds to the session's "
            "state, and is the same conversation when it is imported."
        ),
        Case("a log with large texts was read back"),
    ),
    "reaped": Rule(
        (
            "A cancel that was begun comes to its end where the agents' workers are gone for good, as "
            "long as any other worker lives, or upkeep."
        ),
        Case("an agent was ended that its workers had left for good"),
    ),
    "sealed": Rule(
        (
            "What leaves Redis is in the archive: segments and stream together are the log as it grew, "
            "entry by entry. To its end a log leaves when its session has waited for as long as it must. "
            "So it is with a tree's log and its segments in Redis."
        ),
        Case("a log was sealed", ("reply seal OK",)),
    ),
    "archived": Rule(
        "A session that is archived is of a closed tree, has rested for as long as it must, and owes "
        "and awaits nothing.",
        Case("a session was archived", ("reply archive OK",)),
    ),
    "restored": Rule(
        (
            "An archived session that is spoken to begins with the state that it ended with, and with "
            "every large text of its log; and no look at its tree from before moves anything any more."
        ),
        Case("a session was brought back from the archive", ("reply restore OK",)),
    ),
    "deleted": Rule(
        (
            "A session is deleted only when it has rested for as long as it is to be kept, a root closed,"
            " and when it has been given nothing to do; and with it every session of its tree. A note in the"
            " archive tells of that before, and for as long as the archive has something of the tree; the"
            " next look of upkeep ends what a lost process has begun. Machines are told of each session."
        ),
        Case("a session was deleted", ("reply delete OK",)),
    ),
    "replied": Rule(
        (
            "The step that takes a submission answers it under its own id; an answer to a request decides it,"
            " is sent on, or is told what was decided of that very call, and by whom, unless it says the same"
            " again, and one that fits no question decides nothing; one that was sent on decides at its"
            " agent, or the root is told, unless it says what was decided last; a decision is told at the"
            " root, but for one of a root without agents; what interrupts stops what runs, and reaches all"
            " agents below where it is for a tree, and settings that an input brings are set. An error has"
            " a reason for programs where its turn is why, and no other one has; a message is shown under the"
            " name that its client gave it."
        ),
        Case("an answer to a request was taken from a queue"),
    ),
    "viewed": Rule(
        (
            "Lists, pages and pictures of sessions, their turns, requests and agents have what the logs say,"
            " each thing once and in its order, from either end and however many at a time; and who hears a"
            " session from its first event on is told the same, and that a request is over when its call"
            " begins."
        ),
        Case("what people are shown was compared with the logs"),
    ),
    **FOLDER_RULES,
    **PROCESS_RULES,
    **DOOR_RULES,
    **ODD_RULES,
    **NOTARY_RULES,
    **REDACTION_RULES,
    "rest": Rule(
        (
            "When faults are over and people answer, every session comes to rest, and every closed one is"
            " in the archive where there is upkeep."
        ),
        Case("a simulation with faults came to rest"),
    ),
    "jobs": Rule(
        "A job of a pool is begun at most once, and answered at most once, by the worker that took it.",
        Case("a job that a worker had taken was given up, or lost"),
    ),
    "jobs_kept": Rule(
        (
            "A job is kept until it is answered, its worker is lost, or its asker has given it up; behind "
            "all faults it is done."
        ),
        Case("an asker heard what its job gave"),
    ),
    "jobs_end": Rule(
        "Nothing that a job runs lives on for longer than a claim is trusted when the job is over.",
        Case("a job was over while its command ran"),
    ),
    "no_crash": Rule(
        "No step raises what nobody expects, and no session is quarantined but one that kills its workers.",
        Case("a command was not answered"),
    ),
}
SENTENCES = {name: rule.sentence for name, rule in RULES.items()}

CASES = {
    "reasons": Case("an error said that its turn was why a submission did nothing"),
    "broken_off": Case("a provider ended a request by an error"),
    "takeover_told": Case("a tree's log told of a takeover"),
    "recounted": Case("the agents of a tree were counted anew"),
    "follows_anew": Case("a follower of the fleet read everything anew"),
    "snapshot_compared": Case("a snapshot was compared with the log"),
    "stopping_taken_over": Case("a session was claimed from a holder that was stopping its task"),
    "cancel_taken_over": Case("an agent was claimed from a holder that was ending it"),
    "looked_up_by_two": Case("two clients asked under one id, and neither was answered yet"),
    "answered_by_turn": Case("somebody answered a request for approval by its turn"),
    "answered_by_agent": Case("somebody answered a request of an agent by the agent's number"),
    "supervisor_missed": Case(
        "a session was claimed while a supervisor stood still that should have killed its command"
    ),
    "refused": Case("a command was refused: Redis was out of memory, read only, or loading"),
    "unknown_scripts": Case("a script was asked for that Redis had forgotten"),
    "quarantined": Case("a session was quarantined"),
    "unconfirmed": Case("replicas did not confirm in time that a call was to start"),
    "counts_for_nothing": Case("replicas did not confirm in time that a claim was renewed"),
    "outlived": Case("a session was claimed at a new primary whose holder still reached the old one"),
    "ending": Case("a task with more open calls than a commit closes ended in pieces", ("fact ending",)),
    "told_to_end": Case("more agents were cancelled than one commit tells", ("fact told_to_end",)),
    "helper_ended": Case("a helper's end was held against its own log"),
    "described": Case("a call told of the agent that it was about"),
    "passed_on": Case("an order of a person was passed on to an agent below"),
    "passed_on_late": Case("more agents were told of an order of a person than one commit tells"),
    "inbox_above": Case("an agent below the root was told of the inbox of one that it has made"),
    "intervals": Case("a deadline was held against the time that it was set for"),
    "taken_off": Case("a prune named those that it has taken off the list"),
    "heeded": Case("a conversation was inherited with instructions that hold in it"),
    "queue_full": Case("a queue took nothing more", ("reply submit FULL", "reply commit REFUSED queue_full")),
    "merged": Case("an agent's folder was merged into its parent's", ("fact workspace_merged",)),
    "unsaved": Case("a store was away, or a disk full, as a call ended", ("fact workspace_unsaved",)),
    "moved_on": Case(
        "a session was claimed elsewhere, whose unsaved changes were on a machine that was gone"
    ),
    "birth_given_up": Case(
        "a client came to make a session whose packs were given up", ("reply create GIVEN_UP",)
    ),
    "birth_copied": Case("a session began with the packs of another one's folder"),
    "announced_anew": Case("an announcement came behind the removal of its packs"),
    "announced_late": Case("an announcement came behind its session", ("reply give_up BORN",)),
    "unstored": Case("Redis lost a text before the commit that names it", ("reply commit UNSTORED",)),
    "birth_unstored": Case(
        "a text was gone before the session that is born with it", ("reply create UNSTORED",)
    ),
    "approval_expired": Case("a request for approval was ended by its timer"),
    "client_tools": Case("somebody answered a call of a tool of its client", ("op dynamic_tool_response",)),
    "buried_revoked": Case("a revoked claim was given back for its dead worker"),
    "buried_late": Case("a dead worker's claim was to be given back that was over", ("reply bury FENCED",)),
    "buried_not": Case(
        "a session that may have killed its worker was left to its lease", ("reply bury LEFT",)
    ),
    "cut_off": Case("a worker's socket to its supervisor closed, and the worker lived"),
    "survived": Case("a command outlived the kill of its dead worker's supervisor"),
    **FOLDER_CASES,
    **DOOR_CASES,
    **NOTARY_CASES,
    **REDACTION_CASES,
}
"""Cases that belong to no single rule, and that a campaign is to reach as well."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that did not hold, and what was seen."""

    rule: str
    at_s: float
    seen: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at_s:.4f}: {self.seen}"


class Broken(Exception):
    """Ends a simulation at the moment when a rule was broken."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation
