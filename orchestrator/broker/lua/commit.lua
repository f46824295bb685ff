-- uses: base fleet wake queue birth states tree budget index rest texts
-- takes: session pool_name tree worker claim epoch commit_id expect_seq expect_head expect_commit
-- takes: cursor_arg cursor_mark release taken_regular# taken_interrupts# eq_keep~ eq_ttl_ms~ sq_max# sq_max_bytes#
-- takes: fields(name value) entries(payload salt chain) events(payload seq hash8 at_ms~)
-- takes: timers_clear(id) timers_set(id generation at_ms~ payload) approvals_open(key payload) approvals_close(key) texts#
-- takes: others[near takes? pools(name) targets(session pool#) mail(to# payload interrupt key counted? bounded?)
-- takes:   children(<birth>) tree_events(<tree_event>) summary(field value) draws(counter amount# limit) unless_marked(field)
-- takes:   within_budget?
-- takes:   settlements(request estimated? used$ model) spend_ms~
-- takes:   reservations(request amount$) waits(timer amount$) secrets_drop(name)
-- takes:   redacted(seq# stored) redacting]
-- gives: OK seq# head! tip# eq# released? tree_seq# now# pokes(session worker) woken# depths accounts{<account>}
-- gives: FENCED epoch# why | REFUSED reason detail accounts{<account>} | MOVED tree pool session
-- then: commit_refusals commit_outcome commit_writes
--
-- The one write of the system: everything that one step of a session does becomes visible at once.
-- Accepted only from the claim that holds the session, on top of the very entry and the very commit that it
-- built on: under a commit without entries seq and head stand still, and only its id tells before from behind.
-- The same commit id again gets the first answer, also after it released the claim.
--
-- The large texts that the step names were stored before it (`put_blob`). Redis may have lost them since, and the step
-- may not stand without them: UNSTORED names those that are to be stored again.
--
-- cursor_mark is the entry at the cursor as it was read, its time and its submission: Redis may have lost that entry
-- since, and given its number to another one, which nobody has read. Empty: it is not asked.
-- expect_commit and cursor_arg may be empty: no commit yet, and a cursor that stays. Most steps concern nobody else
-- (`others`). In mail and events target 0 is the session itself, the others are numbered from 1. Who `takes` claims
-- behind this call whom it had last, and is not told of that.
--
-- KEYS  1 session    hash    claim, seq, head, cursor, last commit and its result
--       2 rollout    stream  receives the entries          3 eq     stream  receives the events
--       4 sq         stream  trimmed to the new cursor     5 tree   stream  the tree log
--       6 agents     hash    projection, guards, budgets, fair turn
--       7 due zset   8 leases zset   9 ready stream   10 clock string   of the session's pool
--      11 timers     zset    the shard's deadlines        12 timer  hash    id -> generation:payload
--      13 approvals  hash    the fleet's open approvals   14 sessions zset  by last change
--      15 index     zset    the fleet's index             16 asked    stream  who was asked, and whose request ended
--      17 to_archive zset trees by when they may rest   18 to_delete zset closed trees by when they rest
--      19 released   stream  who has given a session back
--      20 changed    stream  whose row in lists is another    21 watched  stream  whether somebody follows that
--      22 hash of the tree's root: what its agents are at
--      23… four keys (as 7-10) for each further pool, then for each target of mail or events its
--          session hash, sq stream and eq stream, then for each child the six keys of a birth, then, if usage is
--          settled, the hash of the day, then each text, and the last, if secrets are dropped, their hash, or if
--          entries are redacted three: hash of what stands instead, snapshot, zset of redactions

-- Everything that is read: the refusal, or nothing and what is to be written.
local function judged()
  -- Is this the claim, and the entry, that may be built upon?
  local own, known = read_own()
  if not own then return {'FENCED', 0, 'unknown session'} end
  if known.commit == commit_id then return first_answer(own, known) end
  local why = fenced(own, known)
  if why then return {'FENCED', num(known.epoch), why} end

  local now = now_ms()
  local refused, drawn, budget = check_rules(own, known, now)
  refused = refused or check_targets(own) or check_children() or check_texts()
  if refused then return refused end

  -- The release is decided here, before the first write.
  local outcome
  refused, outcome = outcome_of(own, known, now)
  return refused, own, known, outcome, drawn, budget, now
end

place_others()
local bad = misfit_to_write()
if bad then return bad end
local refused, own, known, outcome, drawn, budget, now = looked(judged, misfit_read)
if refused then return refused end

write_session(own, known, outcome, now)
local pokes = write_mail(now)
write_children(known, now)
write_timers()
write_tree(outcome, drawn, now)
local woken = write_budget(budget, now)
write_approvals(now)
drop_secrets()
redact(now)
write_standing(outcome, known, now)
return {'OK', outcome.seq, outcome.head, outcome.tip, outcome.eq, outcome.released and 1 or 0, outcome.tree_seq, now, pokes,
  woken, outcome.depths, budget and accounts(budget.kept) or {}}
