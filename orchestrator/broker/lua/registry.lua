-- uses: base
-- gives: now# fields*
--
-- Reads the projection of a tree, and the time that its wall clock is measured by. Writes nothing.
--
-- KEYS  1 agents hash

return {now_ms(), redis.call('HGETALL', KEYS[1])}
