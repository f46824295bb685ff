-- uses: base
-- emit(worker, claim, epoch, eq_keep, eq_ttl_ms, events) -> OK n tip now | FENCED epoch | CORRUPT key why
--
-- Appends deltas to the event queue of a session that the caller still holds. Those of an entry that is
-- not the log's last any more are dropped: their sender gave them up, and the text that they led up to
-- has been shown since.
--
-- KEYS  1 session hash   2 eq stream

local worker, claim, epoch = take(), take(), take()
local eq_keep, eq_ttl_ms = text(take_number()), text(take_number())
local events = take_list(3)
all_taken()

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream')
if bad then return bad end
local s = redis.call('HMGET', KEYS[1], 'owner', 'claim', 'epoch', 'eq', 'sq', 'seq')
if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3])} end
local n = num(s[4])
if ahead(KEYS[2], n) then return ahead_reply(KEYS[2], n) end
for _, e in ipairs(events) do
  if tonumber(e[2]) ~= num(s[6]) then return {'OK', n, num(s[5]), now_ms()} end
end

redis.call('HSET', KEYS[1], 'eq', text(n + #events))
for i, e in ipairs(events) do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', eq_keep, text(n + i) .. '-0', 'p', e[1], 's', e[2], 'h', e[3])
end
redis.call('PEXPIRE', KEYS[2], eq_ttl_ms)
return {'OK', n + #events, num(s[5]), now_ms()}
