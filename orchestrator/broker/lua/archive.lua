-- uses: base fleet
-- takes: session worker claim epoch of_closed#
-- gives: OK now# | FENCED epoch# | REFUSED reason
--
-- Leaves of an ended, wholly sealed session only its hash: log, queues and snapshot go, the claim
-- ends. Refused while anything is queued, or while the log holds what no segment has, and if `of_closed` is 1
-- and the tree's root was closed at the look and has gone on since.
--
-- KEYS  1 session hash   2 leases zset   3 rollout stream   4 eq stream   5 sq stream   6 snapshot string
--       7 hash of the tree's root   8 changed stream   9 redacted hash

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset') or misfit(KEYS[3], 'stream')
  or misfit(KEYS[4], 'stream') or misfit(KEYS[5], 'stream') or misfit(KEYS[6], 'string') or misfit(KEYS[7], 'hash')
  or tell_changes(KEYS[8]) or misfit(KEYS[9], 'hash')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'seq', 'sealed_seq', 'sq', 'cursor', 'redacting'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
if num(s.seq) ~= num(s.sealed_seq) then return {'REFUSED', 'not sealed to its end'} end
if num(s.sq) ~= num(s.cursor) then return {'REFUSED', 'its queue is not read to the end'} end
if (s.redacting or '') ~= '' then return {'REFUSED', 'copies of what was redacted are not removed yet'} end
if of_closed == 1 and redis.call('HGET', KEYS[7], 'status') ~= 'closed' then
  return {'REFUSED', 'the root of its tree is not closed any more'}
end

redis.call('HSET', KEYS[1], 'archived', '1', 'owner', '', 'claim', '')
redis.call('ZREM', KEYS[2], session)
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[9])
notify_changed(session)
return {'OK', now_ms()}
