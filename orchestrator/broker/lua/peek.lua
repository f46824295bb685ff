-- uses: base
-- takes: offset# count#
-- gives: now# expired(session) due(session)
--
-- Who could be claimed, oldest expiry and fairest turn first. Decides nothing: claim checks again.
--
-- KEYS  1 due:<pool> zset   2 leases:<pool> zset

local now = now_ms()
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', offset, count)
local due = redis.call('ZRANGE', KEYS[1], offset, offset + count - 1)
return {now, expired, due}
