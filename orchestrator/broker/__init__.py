"""The broker: sessions, queues and logs on Redis. The only package that knows Redis.

Everything durable is changed by a Lua script (`lua/`), which Redis runs alone and whole; each has one
typed function on a port of `Broker`: `claims`, `commits`, `logs`, `trees`, `requests`, `jobs`. Payloads are
opaque bytes: the broker never reads what it keeps.

Design note: the right to write a session
=========================================

Authority. `due:<pool>` and `leases:<pool>` say what is claimable; the hash `session:<session>` says
who may write, and on top of what; the rollout stream is what was written. Notices and a
worker's memory are none of these: lost or doubled, they change when something happens, never what.

States of a session, by where it stands:

    parked       in neither set; owes nothing; costs no worker anything
    due          in `due`, at its tree's fair turn
    held         in `leases`, with the expiry of its claim as score
    expired      held, and the expiry has passed; nothing else has changed
    revoked      held by nobody's claim any more, under the expiry that the last one had
    quarantined  in neither set, marked; was claimed too often without progress

    parked  ── submit, mail, timer ─────────────▶ due
    due     ── claim: epoch+1, new claim id ────▶ held
    held    ── renew ───────────────────────────▶ held, later expiry (also when it had expired)
    held    ── commit(park), queue at its end ──▶ parked
    held    ── commit(park), something queued ──▶ held; the answer says so
    held    ── release(end), both as they are ──▶ parked
    held    ── commit(yield), other releases ───▶ due
    held    ── revoke: epoch+1, no claim id ────▶ revoked
    revoked ── release: "nothing runs any more" ▶ due
    revoked ── the expiry passes ───────────────▶ expired
    expired ── claim: epoch+1, new claim id ────▶ held by another
    expired ── revoke ──────────────────────────▶ due
    due     ── the 5th claim without progress ──▶ quarantined ── revoke ─▶ due

The fence. A commit is accepted only if worker, claim id, epoch, `seq`, chain head and the id of the commit
before it all match, in the script that writes. A claim id is random, so that a claim made before Redis was
put back to an earlier moment is not mistaken for one made after it under the same epoch; seq and head
refuse a holder whose log went on where Redis's did not. A step may write messages, events and timers and no
entry: seq and head stand still then, and only the commit before tells a copy that arrives late from a step
that is new. An id, and not a number of commits, which behind a restored copy might be reached once more.
Expiry alone takes nothing away: it only lets others claim.

Trust. A worker counts its lease from the moment it *sent* its last successful renewal, by its own
monotonic clock, and stops its work before the lease that Redis counts (from later) can run out. So
between the old holder's last effect and the new holder's first one lies the difference, whatever the
clocks say. A paused holder that wakes later still cannot write: see the fence.

What fails, and what follows
----------------------------
- The reply to a commit is lost: the worker sends it again, with the same commit id. If it had been
  applied, the first answer comes back, also when it had released the claim. If another worker has
  committed since, the answer is FENCED, and that worker built on it.
- The reply to a claim is lost: the session is held by nobody who knows. The lease runs out.
- The holder dies: the lease runs out, another claims; the fifth such claim without one commit that
  moved anything quarantines the session, with an `error` event for its followers.
- The holder hangs but renews (its thread lives, its loop does not): the renewal stops by itself;
  `revoke` takes the claim from one that lies. It can write nothing from then on, and its session goes
  to the next when it says that it has stopped, or when its supervisor must have killed.
- A submission arrives while the holder releases: the release is decided inside the commit that
  compares the cursor with the queue's tip. Either the commit saw the entry and keeps the claim, or
  the submission saw a parked session and made it due.
- A script meets a key that is not what the catalogue says: it answers CORRUPT before its first write.
  Scripts check first and write last, with commands that cannot fail once the types are known.
- Redis is out of memory: it refuses a script's first growing write and no later one. Every script's
  first write is a growing one (`delete` has none), so nothing is half done. Renewals are refused as
  well; nobody can claim either.
- Redis restarts without its last second, or is restored: every holder is held to seq and head; a
  follower whose cursor (n, seq, hash8) does not match any more is served from the log.
- `LOADING`, `BUSY`, `READONLY`, `MISCONF`, a lost connection: `Unavailable`; send the same again.

Fairness. Trees take turns in a pool (start-time fair queueing): a session becomes due at
max(the pool's clock, its tree's last turn) + 1, and a claim moves the clock to the turn it took. A notice
names a session, and a claim names who comes next: a worker that believes them saves the poll, and nobody
gets in out of turn, because the script claims such a one only if it is the next.

Design note: what several sessions of a tree share
==================================================

Authority. A session decides from its own log. `agents:<tree>` is a projection that only scripts
change, and the one place where what concerns several sessions is compared: counters against limits,
marks, budgets. `tree:<tree>` is the order of what happened to several: each entry stands beside the
(session, seq, head) that caused it, and an event queue that was told of it keeps its `tree_seq`.

All keys of a tree are in one slot, so a commit reaches every session of it. It names them, because a
script may touch no key that it was not given; hence two rules:
- Who is *told* of an event may be gone: the tree log has it. Who is *written to* may not: REFUSED.
- Who waits for a budget is known to Redis alone, so the commit that makes room cannot name the keys
  that wake it. Each waits with a timer of its own and stands in a list of the tree; making room is to
  make the listed timers due, in the one `timers` key that every commit has. The rest is `fire`.

Depths. A message is counted where it is enqueued and where it is taken, by the commit that does so. An
event that tells depths carries its payload in parts, and the script writes the numbers between
them: they are true for everybody who can see the event, and nothing has to read the payload.

Budgets. spent + held + asked ≤ limit, or the step is refused: `budget_spent` if nothing is left,
`budget_reserved` if somebody's settlement may yet make room. With nothing held there is nobody to wait
for, so what is left may be overdrawn once: the overshoot is what is in flight.

    asked ── fits, or nothing is held ──▶ held ── settled by use, or as an estimate ──▶ spent
      │                                                        │
      ├── budget_reserved ─▶ waits ◀───────────── makes due ───┤
      └── budget_spent ────▶ waits ◀── makes due ── raise_limits

- Room is made between the refusal and the wait: the commit that waits looks again, and is refused
  `budget_free`. So nobody begins to wait for what has already happened.
- The worker that made room dies before it fires the timers: they are due, and any worker fires them.
- Who was woken finds the room taken: it waits again. Everybody in the list is woken, so that none
  depends on whether another, woken first, still wants what it waited for.
- The holder of a reservation dies: the takeover settles it, or reserves again under the same request.
- A limit is raised twice by one client whose answer was lost: the change's id was seen, DUP.

Claims of a cancelled agent. Its mark refuses the steps that would start something, at once. The
claim of a holder that is not heard from is taken by `revoke`, and only if its lease ran out long enough
ago that its supervisor has killed by its own clock.
"""
