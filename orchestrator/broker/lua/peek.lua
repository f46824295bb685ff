-- uses: base
-- peek(count) -> {now, {session whose lease expired, …}, {session due, …}}
--
-- Who could be claimed, oldest expiry and fairest turn first. Decides nothing: claim checks again.
--
-- KEYS  1 due:<pool> zset   2 leases:<pool> zset

local now = now_ms()
local count = take_number()
all_taken()
return {
  now,
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, count),
  redis.call('ZRANGE', KEYS[1], 0, count - 1),
}
