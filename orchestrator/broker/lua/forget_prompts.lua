-- uses: base
-- takes: places(n~)
-- gives: OK gone# now#
--
-- Removes prompts from a person's history, with their bytes and keys. The others keep their numbers. The key
-- of one that is kept out stays: its worker may not have heard that it was added, and would add it again.
--
-- KEYS  1 history:<name> stream   2 history_keys:<name> hash (as in `add_to_history`)

local bad = misfit(KEYS[1], 'stream') or misfit(KEYS[2], 'hash')
if bad then return bad end
local now, gone = now_ms(), 0
local bytes = num(redis.call('HGET', KEYS[2], 'bytes'))
for _, n in ipairs(places) do
  local found = redis.call('XRANGE', KEYS[1], n .. '-0', n .. '-0')[1]
  if found then
    gone, bytes = gone + 1, bytes - #found[2][6]
    redis.call('XDEL', KEYS[1], n .. '-0')
    local field = 'k:' .. found[2][8]
    if redis.call('HGET', KEYS[2], field) ~= '0' then redis.call('HDEL', KEYS[2], field) end
  end
end
if gone > 0 then redis.call('HSET', KEYS[2], 'bytes', text(math.max(bytes, 0))) end
return {'OK', gone, now}
