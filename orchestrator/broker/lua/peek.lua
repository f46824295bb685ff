-- uses: base
-- takes: offset# count#
-- peek(…) -> {now, {session whose lease expired, …}, {session due, …}}
--
-- Who could be claimed, oldest expiry and fairest turn first. Decides nothing: claim checks again.
--
-- KEYS  1 due:<pool> zset   2 leases:<pool> zset

local now = now_ms()
return {
  now,
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', offset, count),
  redis.call('ZRANGE', KEYS[1], offset, offset + count - 1),
}
