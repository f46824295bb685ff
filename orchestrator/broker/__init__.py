"""The broker: sessions, queues and logs on Redis. The only package that knows Redis.

Everything durable is changed by a Lua script (`lua/`), which Redis runs alone and whole; each has one
typed function on `Broker`. Payloads are opaque bytes: the broker never reads what it keeps.

Design note: the right to write a session
=========================================

Authority. `due:<pool>` and `leases:<pool>` say what is claimable; the hash `session:<session>` says
who may write, and on top of what; the rollout stream is what was written. Hints, pokes and a
worker's memory are none of these: lost or doubled, they change when something happens, never what.

States of a session, by where it stands:

    parked       in neither set; owes nothing; costs no worker anything
    due          in `due`, at its tree's fair turn
    held         in `leases`, with the expiry of its claim as score
    expired      held, and the expiry has passed; nothing else has changed
    quarantined  in neither set, marked; was claimed too often without progress

    parked  ── submit, mail, timer ─────────────▶ due
    due     ── claim: epoch+1, new claim id ────▶ held
    held    ── renew ───────────────────────────▶ held, later expiry (also when it had expired)
    held    ── commit(park), queue at its end ──▶ parked
    held    ── commit(park), something queued ──▶ held; the answer says so
    held    ── commit(yield), release, revoke ──▶ due
    expired ── claim: epoch+1, new claim id ────▶ held by another
    due     ── the 5th claim without progress ──▶ quarantined ── revoke ─▶ due

The fence. A commit is accepted only if worker, claim id, epoch, `seq` and chain head all match, in the
script that writes. A claim id is random, so that a claim made before Redis was put back to an earlier
moment is not mistaken for one made after it under the same epoch; seq and head refuse a holder whose
log went on where Redis's did not. Expiry alone takes nothing away: it only lets others claim.

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
  `revoke` takes the claim from one that lies.
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
max(the pool's clock, its tree's last turn) + 1, and a claim moves the clock to the turn it took.
"""
