-- uses: base bucket
-- takes: ticket tokens# requests_limit# tokens_limit# patience_ms# grace_ms#
-- gives: OK now# | WAIT wait# now#
--
-- May this ticket's request be sent to the provider? By arrival: it goes when what is left covers it after
-- everybody who came before and still waits, so nobody is delayed by somebody later, large or small.
-- A request larger than a minute's worth goes when a whole minute is saved, and leaves a debt. Limit 0 is
-- none. WAIT keeps the ticket's place until grace_ms after the time it is told, at most patience_ms away.
--
-- KEYS  1 provider:<name> hash (levels, arrivals, t:<ticket> = tokens and until when its place is kept)
--       2 waiting:<name> zset (ticket -> number of its arrival)

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'zset')
if bad then return bad end

local PAGE = 100
local now = now_ms()
local requests_ahead, tokens_ahead, gone = 0, 0, {}

-- Counts those of a page who wait; true if the ticket itself was met.
local function count(page)
  for _, other in ipairs(page) do
    if other == ticket then return true end
    local place = redis.call('HGET', KEYS[1], 't:' .. other) or ''
    local wanted, kept_until = string.match(place, '^(%d+) (%d+)$')
    if wanted and num(kept_until) >= now then
      requests_ahead, tokens_ahead = requests_ahead + 1, tokens_ahead + num(wanted)
    else
      gone[#gone + 1] = other
    end
  end
  return #page < PAGE
end

local function delay(name, limit, before, own)
  if limit == 0 then return 0 end
  local missing = before * MINUTE + math.min(own, limit) * MINUTE - level(KEYS[1], name, limit, now)
  return math.max(0, math.ceil(missing / limit))
end

-- Who waits for the longest time anyway need not know how many more came before: however long the
-- queue, no more of it is read than a limit lets through in that time.
local wait
local offset = 0
repeat
  local counted = count(redis.call('ZRANGE', KEYS[2], offset, offset + PAGE - 1))
  wait = math.max(
    delay('requests', requests_limit, requests_ahead, 1), delay('tokens', tokens_limit, tokens_ahead, tokens))
  offset = offset + PAGE
until counted or wait >= patience_ms
wait = math.min(wait, patience_ms)

local function spend(name, limit, amount)
  if limit == 0 then return end
  keep_level(KEYS[1], name, level(KEYS[1], name, limit, now) - amount * MINUTE, now)
end

redis.call('HSET', KEYS[1], 'asked_at', text(now))
for _, other in ipairs(gone) do
  redis.call('ZREM', KEYS[2], other)
  redis.call('HDEL', KEYS[1], 't:' .. other)
end
if wait > 0 then
  local arrival = redis.call('HINCRBY', KEYS[1], 'arrivals', 1)
  redis.call('ZADD', KEYS[2], 'NX', arrival, ticket)
  redis.call('HSET', KEYS[1], 't:' .. ticket, text(tokens) .. ' ' .. text(now + wait + grace_ms))
  return {'WAIT', wait, now}
end
spend('requests', requests_limit, 1)
spend('tokens', tokens_limit, tokens)
redis.call('ZREM', KEYS[2], ticket)
redis.call('HDEL', KEYS[1], 't:' .. ticket)
return {'OK', now}
