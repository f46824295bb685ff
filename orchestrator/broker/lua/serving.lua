-- uses: base
-- takes: sessions(session)
-- gives: now# found(lease_ms% due?)
--
-- Whether somebody holds each session, until when, and whether one waits to be claimed: of a single
-- pool, at a single moment. Writes nothing and decides nothing.
--
-- KEYS  1 due:<pool> zset   2 leases:<pool> zset

local found = {}
for _, session in ipairs(sessions) do
  found[#found + 1] = redis.call('ZSCORE', KEYS[2], session) or ''
  found[#found + 1] = redis.call('ZSCORE', KEYS[1], session) and 1 or 0
end
return {now_ms(), found}
