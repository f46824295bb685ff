-- uses: base
-- takes: job gives_up?
-- settle_job(…) -> QUEUED now | TAKEN now | LOST now | DONE now result | GONE now | CORRUPT key why
--
-- How a job stands. Who gives it up takes it out of the queue, or lets its worker know by its absence. A job whose
-- worker was not heard from in time is over for good: an answer that comes later finds nobody.
--
-- KEYS  1 job hash   2 jobs zset of its pool

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end
local now = now_ms()
local found = fields_of(KEYS[1], {'state', 'until', 'result'})
if not found.state then return {'GONE', now} end
if found.state == 'done' then return {'DONE', now, found.result} end
local lost = found.state == 'taken' and num(found['until']) < now
if gives_up or lost then
  redis.call('ZREM', KEYS[2], job)
  redis.call('DEL', KEYS[1])
end
if lost then return {'LOST', now} end
return {found.state == 'taken' and 'TAKEN' or 'QUEUED', now}
