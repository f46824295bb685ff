-- uses: base
-- takes: job ends kept_ms#
-- gives: QUEUED TAKEN LOST GONE now# | DONE now# result!
--
-- How a job stands. `ends`: 'waiting' ends it unless a worker has it, 'any' ends it anyway; its worker hears of that
-- when it says that it is at it. A job whose worker was not heard from in time is over for good: an answer that comes
-- later finds nobody. What is over leaves its state for a while, so that a copy of its offer that comes late puts
-- nothing into the queue: also where the offer has not come yet.
--
-- KEYS  1 job hash   2 jobs zset of its pool

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local now = now_ms()
local found = fields_of(KEYS[1], {'state', 'until', 'result'})
local state = found.state or 'gone'
if state == 'done' then return {'DONE', now, found.result} end
if state == 'taken' and num(found['until']) < now then state = 'lost' end
local stands = state == 'queued' or state == 'taken' or not found.state
if (state == 'lost' and found.state ~= 'lost') or (stands and (ends == 'any' or (ends == 'waiting' and state ~= 'taken')))
then
  -- A full server lets a script write on that has begun with what needs no memory.
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], job)
  redis.call('HSET', KEYS[1], 'state', state == 'lost' and 'lost' or 'gone')
  redis.call('PEXPIRE', KEYS[1], text(kept_ms))
end
return {string.upper(state), now}
