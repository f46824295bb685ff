-- uses: base
-- takes: job worker lease_ms# kept_ms#
-- gives: OK payload! now# | NONE now#
--
-- Gives a waiting job to a worker, who says every so often that it is at it (keep_job). It never comes back into the
-- queue: what was begun is not begun again.
--
-- KEYS  1 job hash   2 jobs zset of its pool

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local now = now_ms()
local found = fields_of(KEYS[1], {'state', 'payload', 'worker'})
-- An answer that was lost: the worker asks again, and has it already.
if found.state == 'taken' and found.worker == worker and found.payload then return {'OK', found.payload, now} end
if found.state ~= 'queued' then
  redis.call('ZREM', KEYS[2], job)
  return {'NONE', now}
end
redis.call('HSET', KEYS[1], 'state', 'taken', 'worker', worker, 'until', text(now + lease_ms))
redis.call('ZREM', KEYS[2], job)
redis.call('PEXPIRE', KEYS[1], text(kept_ms))
return {'OK', found.payload, now}
