"""The catalogue of every key: name, type, writer, readers, lifetime. The only place that builds one.

Names begin with the prefix (a setting, `dendro:`) and the shard's hash tag, so that all keys of
a tree live in one slot and a script may touch them together.

    key                     type    written by                   read by           lives as long as
    topology                hash    first process, and the first every process     the deployment
                                    with a key of the chain
    {s}:session:<session>   hash    every script                 all               the session
                                    its fields: below
    {s}:sq:<session>        stream  submit fire commit create    claim, worker     unread entries
    {s}:eq:<session>        stream  commit emit claim create     followers         eq_ttl_s after the last
                                    raise_limits; commits of others of its tree
    {s}:rollout:<session>   stream  commit create; seal trims    worker, replay    sealed behind a snapshot
    {s}:snapshot:<session>  string  snapshot restore; a commit   worker            the session
                                    that redacts, and seal of a
                                    whole log, delete it
    {s}:redacted:<session>  hash    commit                       readers of logs   the session's log in Redis
    {s}:seen:<session>      hash    submit create commit         submit            1,024 ids and 24 h
    {s}:seen_at:<session>   zset    submit create commit         submit            as seen
    {s}:timer:<session>     hash    commit; fire clears          fire, delete      its timers
    {s}:tree:<tree>         stream  commit raise_limits;         tree views        sealed when it rests
                                    seal_tree trims
    {s}:sealed_tree:<tree>  hash    seal_tree                    tree views        the tree
    {s}:agents:<tree>       hash    create commit wakes          guards, registry, the tree
                                    reserve_ids raise_limits     delete; its fields: records.py
    {s}:blob:<tree>:<hash>  string  put_blob; drop_texts         any               the tree, until it rests
    {s}:blobs:<tree>        set     put_blob                     delete            the tree
    {s}:secrets:<tree>      hash    submit keep_secret; commit   worker            their tasks; at most a day
                                    drops                                          after the last one
    {s}:due:<pool>          zset    all wakes; claim takes       look peek serving its members
    {s}:leases:<pool>       zset    claim renew commit release   look peek serving its members
                                    bury revoke archive          wakes
    {s}:looked              hash    look                         look              the deployment
    {s}:clock:<pool>        string  claim                        wakes             the deployment
    {s}:ready:<pool>        stream  wakes                        waiting workers   the last 256 notices
    {s}:timers              zset    commit raise_limits; fire    look timers_due   its members
    {s}:confirmed           string  confirmed                    nobody            the deployment
    {s}:spend:<day>         hash    commit                       views             400 days
    {s}:approvals           hash    commit                       approval queue    until decided
    {s}:asked               stream  commit delete                doors, people     the last 1,024 changes
    {s}:released            stream  commit release bury delete   who waits         the last 256 notices
    {s}:changed             stream  create revoke enlist archive followers of the  the last 1,024 notices
                                    restore note bury; watched,  fleet
                                    also commit claim submit fire
    {s}:watched             stream  followers of the fleet       the same scripts  the last one
    {s}:sessions            zset    create commit; claim of one  upkeep, search    the sessions
                                    that it quarantines
    {s}:unborn              zset    announce give_up; create     upkeep            until the session is there,
                                    removes                                        or a day
    {s}:index               zset    create commit enlist         listings          what is listed
    {s}:to_archive          zset    create commit restore        upkeep            trees with logs in Redis
                                    enlist; look_again
    {s}:to_delete           zset    commit enlist; look_again    upkeep            closed trees
    {s}:deleted             zset    delete                       workers' files    30 days
    {s}:deleted_by          hash    delete                       doors             as deleted
    {s}:redactions          zset    commit                       workers' files,   30 days, and while owed
                                                                 upkeep
    {s0}:workers            hash    heartbeat                    views, doctor     a day after the last beat
    {s0}:heard              zset    heartbeat                    as workers        as workers
    {s0}:drains             hash    drain; heartbeat clears      heartbeat         as workers
    {s0}:serving:<pool>     zset    heartbeat                    heartbeat         its workers, in a cluster
    {s0}:control:<worker>   stream  notify                       that worker       10 min after the last one
    {s0}:near:<worker>      stream  attend turn_away submit      that worker       3 s after the last word
                                    fire create commit
    {s0}:open:<pool>        zset    attend turn_away submit      the same scripts  its members
                                    fire create commit
    {s0}:job:<job>          hash    the scripts of jobs          its asker         its asker waits, then
                                                                                   a minute
    {s0}:jobs:<pool>        zset    offer_job; take_job and      workers, look     its members
                                    settle_job remove
    {s0}:jobs_ready:<pool>  stream  offer_job                    waiting workers   the last 256 notices
    {s0}:news:<id>          string  take_news, settle_news       upkeep            while it is told, then
                                                                                   a week
    {s0}:tokens             hash    add_token; sign_in;          gateways          until revoked
                                    remove_tokens
    {s0}:code:<digest>      string  add_code; sign_in            sign_in           ten minutes, one sign-in
    {s0}:provider:<name>    hash    admit settle                 admit settle      the deployment
    {s0}:waiting:<name>     zset    admit                        admit             its members
    {h…}:history:<person>   stream  add_to_history               history look-ups  the newest 10,000
                                    forget_prompts               redactions
    {h…}:history_keys:<person>      add_to_history history_head  the same          the deployment
                            hash    forget_prompts keep_out

`wakes` are the scripts that may make a session due: submit fire create commit release bury revoke. What
`delete` removes is not repeated; `archive` removes rollout, eq, sq and snapshot.

The fields of a session's hash, by who writes them:

    tree pool agent_id parent created created_ms     birth: in which tree and pool, under which digest
    owner claim epoch tries                          claim release bury revoke commit archive: who holds it
    revoked                                          revoke: the claim whose holder may not have stopped;
                                                     gone with the next claim, or its release
    buried_ms                                        bury: when the claim of a dead worker was last given back
    quarantined                                      claim, and revoke, which readmits
    seq head cursor commit result                    commit: the log's end, what was consumed, and the
                                                     last commit's id and answer; the next one names it
    eq                                               all that append events: the last one's number
    sq sq_total sq_done regular interrupts           all that enqueue, and commit: the queue's end, the
                                                     bytes ever enqueued and consumed, inbox depths
    status meta name min_core                        birth, and commit: for listings; what may fold the log
    ended_seq                                        commit: the entry that ended the last turn
    states                                           create commit recount, of a root: what the agents of
                                                     its tree are at
    namespace source who ephemeral                   birth: where it is listed, who may see it, who made it
    recency shelved                                  birth commit enlist: its place in the fleet's index
    note:<name>                                      note: kept for clients beside the log
    copy_on                                          birth, and commit: the machine of a portable folder's
                                                     copy; empty where there is none, and only such sessions
                                                     have it
    unsaved failed_on                                commit: whether that machine alone has the last changes,
                                                     and who could not make the folder
    last due_ms                                      claim: who had it last, and wants to be told alone of it;
                                                     submit fire commit: when it was; pass_on clears
    left_ms                                          claim: when others first left it to that machine
    abandoned                                        revoke: who gave these changes up; commit clears
    snapshot_seq                                     snapshot restore
    sealed_seq manifest                              seal rewrite
    redacting                                        commit: copies of what it redacted are still to be
                                                     removed, with these large texts, and entries of these
                                                     sessions to be redacted; rewrite sets, or clears
    archived                                         archive restore
"""

from __future__ import annotations

from hashlib import blake2b

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId, shard_of

MOST_PERSON = 100
"""Characters of a person's name in a key, which its tag tells apart from others anyway."""
CONTROL_SHARD = 0
"""Keys that belong to no tree live here."""


@record
class Keys:
    """Builds key names for one deployment."""

    prefix: str
    shards: int
    apart: bool = True
    """Whether shards may be on several servers."""

    def topology(self) -> str:
        return f"{self.prefix}topology"

    def of_session(self, kind: str, session: SessionId | str) -> str:
        return f"{self.prefix}{{s{shard_of(session, self.shards)}}}:{kind}:{session}"

    def session(self, session: SessionId | str) -> str:
        return self.of_session("session", session)

    def sq(self, session: SessionId | str) -> str:
        return self.of_session("sq", session)

    def eq(self, session: SessionId | str) -> str:
        return self.of_session("eq", session)

    def rollout(self, session: SessionId | str) -> str:
        return self.of_session("rollout", session)

    def snapshot(self, session: SessionId | str) -> str:
        return self.of_session("snapshot", session)

    def redacted(self, session: SessionId | str) -> str:
        """The lines that stand instead of redacted entries, by their numbers."""
        return self.of_session("redacted", session)

    def redactions(self, shard: int) -> str:
        """Sessions of which entries were redacted, by when: machines remove their files."""
        return self.of_shard(shard, "redactions")

    def seen(self, session: SessionId | str) -> tuple[str, str]:
        """The hash of ids and the zset of their arrival."""
        return self.of_session("seen", session), self.of_session("seen_at", session)

    def timer(self, session: SessionId | str) -> str:
        return self.of_session("timer", session)

    def tree(self, tree: TreeId | str) -> str:
        return self.of_session("tree", tree)

    def sealed_tree(self, tree: TreeId | str) -> str:
        """Compressed segments of entries that have left the tree's log."""
        return self.of_session("sealed_tree", tree)

    def agents(self, tree: TreeId | str) -> str:
        return self.of_session("agents", tree)

    def blob(self, tree: TreeId | str, digest: str) -> str:
        return f"{self.of_session('blob', tree)}:{digest}"

    def blobs(self, tree: TreeId | str) -> str:
        return self.of_session("blobs", tree)

    def secrets(self, tree: TreeId | str) -> str:
        return self.of_session("secrets", tree)

    def of_shard(self, shard: int, name: str) -> str:
        return f"{self.prefix}{{s{shard}}}:{name}"

    def pool(self, shard: int, pool: str) -> tuple[str, str, str, str]:
        """due, leases, ready, clock: the order in which every script expects them."""
        tag = f"{self.prefix}{{s{shard}}}:"
        return f"{tag}due:{pool}", f"{tag}leases:{pool}", f"{tag}ready:{pool}", f"{tag}clock:{pool}"

    def due(self, shard: int, pool: str) -> str:
        return self.of_shard(shard, f"due:{pool}")

    def leases(self, shard: int, pool: str) -> str:
        return self.of_shard(shard, f"leases:{pool}")

    def ready(self, shard: int, pool: str) -> str:
        return self.of_shard(shard, f"ready:{pool}")

    def looked(self, shard: int) -> str:
        """When somebody looked for work of a pool, from this shard on, and found nothing."""
        return self.of_shard(shard, "looked")

    def timers(self, shard: int) -> str:
        return self.of_shard(shard, "timers")

    def confirmed(self, shard: int) -> str:
        """Written to have written: replicas that have it have all that was written before."""
        return self.of_shard(shard, "confirmed")

    def spend(self, shard: int, day: str) -> str:
        """The usage that was settled on a day (`2026-11-28`, in UTC), by namespace, model and person."""
        return self.of_shard(shard, f"spend:{day}")

    def approvals(self, shard: int) -> str:
        return self.of_shard(shard, "approvals")

    def sessions(self, shard: int) -> str:
        return self.of_shard(shard, "sessions")

    def index(self, shard: int) -> str:
        """The roots that lists show; `_index.lua` says how its members are made."""
        return self.of_shard(shard, "index")

    def to_archive(self, shard: int) -> str:
        """Trees of which Redis holds a log, by the time since which they may rest."""
        return self.of_shard(shard, "to_archive")

    def to_delete(self, shard: int) -> str:
        """Trees whose root was closed, by the time since which they may rest."""
        return self.of_shard(shard, "to_delete")

    def deleted(self, shard: int) -> str:
        """Sessions that were deleted, by when: machines remove their files."""
        return self.of_shard(shard, "deleted")

    def deleted_by(self, shard: int) -> str:
        """Of the same sessions when, in which namespace, and by whom: who asks for one is told."""
        return self.of_shard(shard, "deleted_by")

    def unborn(self, shard: int) -> str:
        """The root sessions that packs are stored for and that are not created yet."""
        return self.of_shard(shard, "unborn")

    def asked(self, shard: int) -> str:
        return self.of_shard(shard, "asked")

    def changed(self, shard: int) -> str:
        """Sessions of which lists show something else than before."""
        return self.of_shard(shard, "changed")

    def watched(self, shard: int) -> str:
        """The last time at which somebody said that they follow `changed`."""
        return self.of_shard(shard, "watched")

    def released(self, shard: int) -> str:
        """Sessions that nobody holds any more: given back, or deleted."""
        return self.of_shard(shard, "released")

    def workers(self) -> tuple[str, str, str]:
        """The hash of states, the zset of last heartbeats, the hash of workers that are to drain."""
        names = ("workers", "heard", "drains")
        states, heard, drains = (self.of_shard(CONTROL_SHARD, name) for name in names)
        return states, heard, drains

    def serving(self, pool: str) -> str:
        """The pool's workers, by when they came; only where shards may be on several servers."""
        return self.of_shard(CONTROL_SHARD, f"serving:{pool}")

    def control(self, worker: str) -> str:
        return self.of_shard(CONTROL_SHARD, f"control:{worker}")

    @property
    def nearby(self) -> str:
        """The beginning of the names of `near` and `open`, for scripts that choose a worker; else empty."""
        return "" if self.apart else self.of_shard(CONTROL_SHARD, "")

    def near(self, worker: str) -> str:
        """The notices of one worker alone; only where all shards are on one server."""
        return self.of_shard(CONTROL_SHARD, f"near:{worker}")

    def open(self, pool: str) -> str:
        """The pool's workers that have room and want to be told alone, by how often they were told."""
        return self.of_shard(CONTROL_SHARD, f"open:{pool}")

    def news(self, id: str) -> str:
        return self.of_shard(CONTROL_SHARD, f"news:{id}")

    def job(self, job: str) -> str:
        return self.of_shard(CONTROL_SHARD, f"job:{job}")

    def jobs(self, pool: str) -> tuple[str, str]:
        """The zset of the pool's waiting jobs, and the stream of notices about them."""
        return self.of_shard(CONTROL_SHARD, f"jobs:{pool}"), self.of_shard(
            CONTROL_SHARD, f"jobs_ready:{pool}"
        )

    def tokens(self) -> str:
        """The records of clients' tokens by their ids."""
        return self.of_shard(CONTROL_SHARD, "tokens")

    def sign_in_code(self, digest: str) -> str:
        """The rights that a code for one sign-in gives, by the code's SHA-256."""
        return self.of_shard(CONTROL_SHARD, f"code:{digest}")

    def provider(self, name: str) -> tuple[str, str]:
        """The hash of what may be spent, and the zset of who waits to spend it."""
        counts, waiting = (self.of_shard(CONTROL_SHARD, f"{k}:{name}") for k in ("provider", "waiting"))
        return counts, waiting

    def history(self, person: str) -> tuple[str, str]:
        """The stream of prompts and the hash of its id, counts and entries' keys; in a slot of their own."""
        name = person.encode("utf-8", "backslashreplace")
        tag = f"{self.prefix}{{h{blake2b(name, digest_size=8).hexdigest()}}}"
        shown = name.decode()[:MOST_PERSON]
        return f"{tag}:history:{shown}", f"{tag}:history_keys:{shown}"

    def shard_of(self, session: SessionId | TreeId | str) -> int:
        return shard_of(session, self.shards)

    def names_session(self, member: str) -> bool:
        """Whether a member of a set, or a notice, can be a session of this deployment: it has a shard."""
        try:
            self.shard_of(member)
        except ValueError:
            return False
        return True
